"""100,000 transactions left in doubt, settled by one responder with SQLite; and what that costs everybody else.

python bench/checkback.py [--left 100000] [--count 400000] [--rounds 1]

The transactions are written as raw half records (100 B) that nobody resolves. Their time counts from when the last of
them is due until nothing of them is open. The throughput is that of other transactions, pipelined as fast as they go,
with the check-backs beside them against without.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from harness import (
    PARTITION_COUNT,
    Child,
    Figure,
    broker,
    drop_namespace,
    make_namespace,
    scratch_folder,
    settings_line,
    show_figures,
    wait_for,
    warm,
    working_coordinator,
)
from recovery import write_open
from sqlalchemy import create_engine

from txlayer.adapters.sql import SqlBarrier
from txlayer.config import SystemTopics

IN_FLIGHT = 5_000
IMMUNITY_S = 6.0
GROUP = "bench"
SETTLED_WITHIN_S = 300.0


class Settled:
    """Counts transactions that were decided by answers to check-backs."""

    def __init__(self, servers: str, topics: SystemTopics) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "bench-settled",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(topics.op, p, 0) for p in range(PARTITION_COUNT)])
        self.count = 0

    def is_reached(self, wanted: int) -> bool:
        """True when so many were."""
        for record in self._consumer.consume(10_000, 0.1):
            value = record.value() if record.error() is None else b""
            self.count += (value or b"").count(b"|barrier|")
        return self.count >= wanted

    def close(self) -> None:
        """Give the client back."""
        self._consumer.close()


def responder(stack: ExitStack, servers: str, namespace: str, folder: Path) -> Child:
    """`txlayer responder run` with a barrier of its own in SQLite, ended with the stack."""
    url = f"sqlite:///{folder / 'barrier.db'}"
    SqlBarrier(create_engine(url)).create_table()
    child = Child(
        "responder",
        [
            "-m",
            "txlayer",
            "responder",
            "run",
            "-b",
            servers,
            "-n",
            namespace,
            "--group",
            GROUP,
            "--barrier-url",
            url,
            "--log-level",
            os.environ.get("BENCH_LOG", "WARNING"),
        ],
    )
    stack.callback(child.end)
    return child


def settle(kafka: Any, namespace: str, left_count: int) -> float:
    """Seconds from when all are due until the last is settled, with nothing beside it."""
    servers = kafka.bootstrap_servers
    topics = make_namespace(servers, namespace)
    with scratch_folder() as folder, ExitStack() as stack:
        middle = working_coordinator(stack, servers, namespace)
        answering = responder(stack, servers, namespace, Path(folder))
        settled = Settled(servers, topics)
        stack.callback(settled.close)
        write_open(servers, namespace, left_count)
        due_at = time.monotonic() + IMMUNITY_S
        wait_for(lambda: settled.is_reached(left_count), within_s=SETTLED_WITHIN_S, what="not all are settled")
        took_s = time.monotonic() - due_at
        print(
            f"{left_count:,} left in doubt: settled {took_s:.1f} s after the last was due; CPU s: "
            f"coordinator {middle.cpu_s():.1f} · responder {answering.cpu_s():.1f}",
            flush=True,
        )
    drop_namespace(servers, namespace)
    return took_s


def throughput(kafka: Any, namespace: str, count: int, *, left_count: int) -> float:
    """Committed transactions per second of others, while so many are checked back."""
    servers = kafka.bootstrap_servers
    topics = make_namespace(servers, namespace)
    with scratch_folder() as folder, ExitStack() as stack:
        working_coordinator(stack, servers, namespace)
        responder(stack, servers, namespace, Path(folder))
        settled = Settled(servers, topics)
        stack.callback(settled.close)
        if left_count:
            write_open(servers, namespace, left_count)
            time.sleep(IMMUNITY_S)
        consumer = Child("consumer", ["bench/bare.py", "consumer", servers, namespace, str(count)])
        stack.callback(consumer.end)
        consumer.line()
        producer = Child("producer", ["bench/clients.py", "submit", servers, namespace, str(count), str(IN_FLIGHT)])
        stack.callback(producer.end)
        made = producer.result(600)
        rate = count / (consumer.result(600)["ended"] - made["started"])
        if left_count:
            settled.is_reached(left_count)
        print(
            f"others: {rate:,.0f}/s" + (f" with {settled.count:,} settled beside them" if left_count else ""),
            flush=True,
        )
    drop_namespace(servers, namespace)
    return rate


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--left", type=int, default=100_000, help="transactions left in doubt")
    parser.add_argument("--count", type=int, default=400_000, help="other transactions per phase")
    parser.add_argument("--rounds", type=int, default=1, help="pairs; the median ratio counts")
    arguments = parser.parse_args()
    print(settings_line())
    with broker() as kafka:
        warm(kafka)
        took_s = settle(kafka, "settle", arguments.left)
        ratios = []
        for number in range(arguments.rounds):
            none = throughput(kafka, f"none{number}", arguments.count, left_count=0)
            beside = throughput(kafka, f"beside{number}", arguments.count, left_count=arguments.left)
            ratios.append(beside / none)
    settled_figure = Figure(f"{arguments.left:,} left in doubt, settled", took_s, 60, "s", is_at_most=True)
    ratio = sorted(ratios)[len(ratios) // 2]
    return show_figures([settled_figure, Figure("others meanwhile, of without", ratio, 0.8)])


if __name__ == "__main__":
    raise SystemExit(main())
