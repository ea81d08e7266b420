"""Very many transactions through one namespace in one run: rate, memory and restart time must stay as they are.

    python bench/size.py [--count 20000000] [--slice 2000000] [--value-bytes 100]

One coordinator works all the time. After each slice the script notes its rate and the coordinator's memory; before the first
and after the last one it restarts the coordinator and notes when it has its partitions. Run by hand: 20,000,000 take some
ten minutes and, with 100 bytes each, 12 GB of disk.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import Any

from harness import (
    Child,
    Figure,
    broker,
    coordinator,
    has_taken_over,
    make_namespace,
    settings_line,
    show_figures,
    stored_metadata,
    wait_for,
    warm,
)

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig, SystemTopics
from txlayer.operate.offsets import read_status

IN_FLIGHT = 5_000
NAMESPACE = "size"


def restarted(stack: ExitStack, servers: str, former: Child) -> tuple[Child, float]:
    """A successor of this coordinator, and the seconds until it has its partitions."""
    names = stored_metadata(servers, NAMESPACE)
    former.end()
    began = time.monotonic()
    successor = coordinator(stack, servers, NAMESPACE)
    wait_for(lambda: stored_metadata(servers, NAMESPACE)[0] not in ("", names[0]), within_s=300, what="no take-over")
    return successor, time.monotonic() - began


def slice_rate(servers: str, count: int, value_bytes: int) -> float:
    """Transactions a second of one slice, until the coordinator has carried out all of them."""
    arguments = [servers, NAMESPACE, *map(str, (count, IN_FLIGHT, 0, value_bytes))]
    made = Child("producer", ["bench/clients.py", "submit", *arguments]).result(3_600)
    wait_for(lambda: op_lag(servers) == 0, within_s=600, what="the coordinator does not catch up")
    return count / (time.time() - made["started"])


def op_lag(servers: str) -> int:
    """Offsets of op that are not carried out."""
    topics = SystemTopics(NAMESPACE)
    with KafkaAdmin(ClientConfig(bootstrap_servers=servers, namespace=NAMESPACE)) as admin:
        return sum(each.op_lag for each in read_status(admin, topics).partitions)


def measure(kafka: Any, *, count: int, slice_count: int, value_bytes: int) -> list[Figure]:
    """Run all slices."""
    servers = kafka.bootstrap_servers
    make_namespace(servers, NAMESPACE)
    rates: list[float] = []
    memories: list[int] = []
    with ExitStack() as stack:
        reader = Child("consumer", ["bench/bare.py", "consumer", servers, NAMESPACE, str(count)])
        stack.callback(reader.end)
        reader.line()
        running = coordinator(stack, servers, NAMESPACE)
        wait_for(lambda: has_taken_over(servers, NAMESPACE), within_s=60, what="no take-over")
        running, first_s = restarted(stack, servers, running)
        for number in range(count // slice_count):
            rates.append(slice_rate(servers, slice_count, value_bytes))
            memories.append(running.memory_bytes())
            done = (number + 1) * slice_count
            print(f"{done:>12,}  {rates[-1]:>9,.0f}/s  coordinator {memories[-1] / 1e6:,.0f} MB", flush=True)
        _, last_s = restarted(stack, servers, running)
        seen_count = reader.result(600)["seen"]
    return [
        Figure("messages that a reader saw, of the transactions", seen_count / count, 1.0),
        Figure("rate of the last slice, of the second", rates[-1] / rates[min(1, len(rates) - 1)], 0.9),
        Figure(
            "memory after the last slice, of that after the second",
            memories[-1] / memories[min(1, len(rates) - 1)],
            1.2,
            is_at_most=True,
        ),
        Figure("restart after all, seconds more than before", last_s - first_s, 2.0, "s", is_at_most=True),
    ]


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000_000, help="transactions")
    parser.add_argument("--slice", type=int, default=2_000_000, help="after so many the figures are noted")
    parser.add_argument("--value-bytes", type=int, default=100, help="of each message")
    arguments = parser.parse_args()
    print(settings_line())
    with broker() as kafka:
        warm(kafka)
        return show_figures(
            measure(kafka, count=arguments.count, slice_count=arguments.slice, value_bytes=arguments.value_bytes)
        )


if __name__ == "__main__":
    raise SystemExit(main())
