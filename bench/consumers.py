"""Consumers: ordered by key against a thread per partition, Pyrallel-Consumer and a bare loop, on the same topic in the same run.

    python bench/consumers.py [--only tasks empty processes failing fair restart] [--rounds 3] [--peer-python PYTHON]

Pyrallel-Consumer needs Python 3.12: `--peer-python` names one that has it (`pip install --group bench` there). Without
it its figure is left out, and said so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import Child, Figure, broker, settings_line, show_figures, wait_for

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker
from txlayer.adapters.namespace import Namespace
from txlayer.config import ClientConfig
from txlayer.core.progress import Foreign, decode
from txlayer.operate.topics import GroupTopics

PARTITION_COUNT = 4
KEY_COUNT = 1_000
VALUE = b"x" * 100
STUCK_COUNT = 100_000
BACKLOG_COUNT = 100_000
FAILING_KEY = "key-17"


class Bench:
    """The topic of all measurements, and children that consume it."""

    def __init__(self, kafka: LocalBroker, *, peer_python: str) -> None:
        self._kafka = kafka
        self.servers = kafka.bootstrap_servers
        self._peer_python = peer_python

    def fill(self, topic: str, count: int, *, backlog_count: int = 0) -> None:
        """So many records of 100 bytes, of 1,000 keys in turn; before them as many of one key as the backlog has."""
        producer = Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
        )
        for number in range(-backlog_count, count):
            key = number % KEY_COUNT if number >= 0 else 0
            name = f"key-{key}" if number >= 0 else "backlogged"
            while True:
                try:
                    producer.produce(topic, VALUE, name, partition=key % PARTITION_COUNT)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)

    def create(self, topic: str, *, partitions: int = PARTITION_COUNT) -> None:
        """Make a topic."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            made.result(20)

    def group(self, topic: str) -> str:
        """A new consumer group, with its topics."""
        name = f"bench-{uuid4().hex[:8]}"
        with KafkaAdmin(ClientConfig(bootstrap_servers=self.servers)) as admin:
            GroupTopics(admin, group=name, topics=(topic,)).apply()
        return name

    def ours(self, kind: str, topic: str, count: int, *more: str) -> dict[str, Any]:
        """What one of txlayer's consumers says at its end."""
        arguments = ["bench/consuming.py", kind, self.servers, topic, str(count), *more]
        return self._run(kind, Child(kind, arguments, BENCH_GROUP=self.group(topic)))

    def peer(self, kind: str, topic: str, count: int) -> dict[str, Any]:
        """The same of a peer."""
        arguments = ["bench/peers/consuming.py", kind, self.servers, topic, str(count)]
        python = self._peer_python if kind == "pyrallel" else sys.executable
        return self._run(kind, Child(kind, arguments, program=python))

    def side_by_side(self, kind: str, topic: str, count: int, copies: int) -> float:
        """The rate of several peers at the same time, together."""
        arguments = ["bench/peers/consuming.py", kind, self.servers, topic, str(count)]
        children = [Child(kind, arguments, program=sys.executable) for _ in range(copies)]
        try:
            results = [child.result(300) for child in children]
        finally:
            for child in children:
                child.end()
        return sum(result["count"] / result["took_s"] for result in results)

    @staticmethod
    def _run(kind: str, child: Child) -> dict[str, Any]:
        try:
            cpu_s = 0.0
            while not child.has_ended(0.2):
                cpu_s = max(cpu_s, child.cpu_s())
            result = child.result(1)
        finally:
            child.end()
        rate = result["count"] / result["took_s"]
        print(f"{kind:<18} {rate:>9,.0f}/s   {result['count']:,} records, CPU {cpu_s:.1f} s", flush=True)
        return {**result, "rate": rate}

    @contextmanager
    def broker_beside(self) -> Iterator[None]:
        """The broker keeps off the first core, which is the consumer's."""
        everywhere, others = set(range(os.cpu_count() or 1)), set(range(1, os.cpu_count() or 1))
        self._move_broker(others or everywhere)
        try:
            yield
        finally:
            self._move_broker(everywhere)

    def _move_broker(self, cores: set[int]) -> None:
        for thread in Path(f"/proc/{self._kafka.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


def measure_tasks(bench: Bench, *, count: int, has_pyrallel: bool) -> list[Figure]:
    """1,000 coroutines in flight that wait 10 ms."""
    ours = bench.ours("tasks", "orders", count)["rate"]
    threads = bench.peer("partition-threads", "orders", 2_000)["rate"]
    figures = [Figure("10 ms handlers, of a thread per partition", ours / threads, 50, "x")]
    if has_pyrallel:
        pyrallel = bench.peer("pyrallel", "orders", count // 5)["rate"]
        figures.append(Figure("10 ms handlers, of Pyrallel-Consumer", ours / pyrallel, 1, "x"))
    return figures


def measure_empty(bench: Bench, *, count: int, rounds: int) -> list[Figure]:
    """Handlers that do nothing; consumer and bare loop have the first core alone."""
    rates, parts = [], []
    with bench.broker_beside():
        for _ in range(rounds):
            bare = bench.peer("bare", "orders", count)["rate"]
            rates.append(bench.ours("empty", "orders", count)["rate"])
            parts.append(rates[-1] / bare)
    return [
        Figure("empty handlers on one core", statistics.median(rates), 100_000, "/s"),
        Figure("empty handlers, of a bare loop", statistics.median(parts), 0.3),
    ]


def measure_processes(bench: Bench, *, count: int, rounds: int) -> list[Figure]:
    """Handlers that compute for 2 ms, against a bare loop, and against the same consumer with one process."""
    cores = os.cpu_count() or 1
    of_bare, of_one = [], []
    for _ in range(rounds):
        single = bench.peer("single", "orders", count // cores)["rate"]
        together = bench.side_by_side("single", "orders", count // cores, cores)
        one = bench.ours("processes", "orders", count // cores, "1")["rate"]
        ours = bench.ours("processes", "orders", count, str(cores))["rate"]
        print(
            f"  of {cores} cores: {cores} bare loops side by side {together / (cores * single):.2f}, "
            f"txlayer {ours / (cores * single):.2f}; txlayer, of those loops: {ours / together:.2f}",
            flush=True,
        )
        of_bare.append(ours / (cores * single))
        of_one.append(ours / (cores * one))
    return [
        Figure(f"handlers that compute, of {cores} x a bare loop", statistics.median(of_bare), 0.85),
        Figure(f"handlers that compute, of {cores} x one process", statistics.median(of_one), 0.85),
    ]


def measure_failing(bench: Bench, *, count: int, rounds: int) -> list[Figure]:
    """One key of 1,000 fails for ever; how fast the others are."""
    others, parts = count - count // KEY_COUNT, []
    with bench.broker_beside():
        for _ in range(rounds):
            # The same handler, which looks for a key that there is not.
            without = bench.ours("empty", "failing", others, "nobody")["rate"]
            beside = bench.ours("empty", "failing", others, FAILING_KEY)
            print(f"  failed attempts of the one key: {beside['failed']}", flush=True)
            parts.append(beside["rate"] / without)
    return [Figure("others beside a key that always fails", statistics.median(parts), 0.95)]


def measure_fair(bench: Bench, *, count: int, rounds: int) -> list[Figure]:
    """One key has a backlog in front of all others; how fast the others are."""
    parts = []
    for _ in range(rounds):
        alone = bench.ours("fair", "alone", count)["rate"]
        parts.append(bench.ours("fair", "beside", count)["rate"] / alone)
    return [Figure("others beside a key with a backlog of 100,000", statistics.median(parts), 0.9)]


def measure_restart(bench: Bench) -> list[Figure]:
    """After kill -9 with 100,000 finished offsets above the stored one, all behind one stuck key."""
    bench.create("stuck", partitions=1)
    group = bench.group("stuck")
    arguments = ["bench/consuming.py", "stuck", bench.servers, "stuck", str(STUCK_COUNT), group]
    producer = Producer({"bootstrap.servers": bench.servers, "queue.buffering.max.messages": 500_000})
    producer.produce("stuck", b"", "stuck")
    for number in range(STUCK_COUNT):
        producer.produce("stuck", VALUE, f"key-{number % KEY_COUNT}")
    producer.flush(60)
    first = Child("stuck", arguments)
    try:
        wait_for(
            lambda: finished_above(bench.servers, group) >= STUCK_COUNT,
            within_s=60,
            what="not all is handled and stored",
        )
    finally:
        os.kill(first.pid, 9)
        first.end()
    producer.produce("stuck", b"", "mark")
    producer.flush(60)
    second = Child("stuck", arguments)
    try:
        told = second.said()
    finally:
        second.end()
    print(f"after kill -9: ready {told['ready_s']:.2f} s after assignment, {told['handled']} handled again")
    return [
        Figure("restart, 100,000 finished above: handled again", told["handled"], 0, is_at_most=True),
        Figure("restart: ready after assignment", told["ready_s"], 2, "s", is_at_most=True),
    ]


def finished_above(servers: str, group: str) -> int:
    """How many offsets above the stored one are stored as finished."""
    tp = ("stuck", 0)
    with KafkaAdmin(ClientConfig(bootstrap_servers=servers)) as admin:
        stored = admin.stored_offsets(group, [tp])[tp]
    progress = None if stored is None else decode(stored.offset, stored.metadata)
    if progress is None or isinstance(progress, Foreign):
        return 0
    return sum(end - start for start, end in progress.finished)


def has_pyrallel(python: str) -> bool:
    """True when that Python has Pyrallel-Consumer."""
    asked = subprocess.run([python, "-c", "import pyrallel_consumer"], check=False, capture_output=True)
    if asked.returncode:
        print("Pyrallel-Consumer is not measured: --peer-python names no Python 3.12 that has it")
    return asked.returncode == 0


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subjects = ("tasks", "empty", "processes", "failing", "fair", "restart")
    parser.add_argument("--only", choices=subjects, nargs="+", default=subjects)
    parser.add_argument("--rounds", type=int, default=3, help="pairs; the median counts")
    parser.add_argument("--count", type=int, default=1_000_000, help="records of empty handlers")
    parser.add_argument("--peer-python", default=sys.executable, help="has Pyrallel-Consumer")
    arguments = parser.parse_args()
    only, rounds = arguments.only, arguments.rounds
    print(settings_line())
    figures: list[Figure] = []
    with broker() as kafka:
        bench = Bench(kafka, peer_python=arguments.peer_python)
        with KafkaAdmin(ClientConfig(bootstrap_servers=bench.servers)) as admin:
            config = ClientConfig(bootstrap_servers=bench.servers)
            Namespace(admin, topics=config.topics).apply()
        bench.create("orders")
        bench.fill("orders", arguments.count)
        if "tasks" in only:
            known = has_pyrallel(arguments.peer_python)
            figures += measure_tasks(bench, count=100_000, has_pyrallel=known)
        if "empty" in only:
            figures += measure_empty(bench, count=arguments.count, rounds=rounds)
        if "processes" in only:
            figures += measure_processes(bench, count=8_000, rounds=rounds)
        if "failing" in only:
            bench.create("failing")
            bench.fill("failing", arguments.count // 2)
            figures += measure_failing(bench, count=arguments.count // 2, rounds=rounds)
        if "fair" in only:
            for topic, backlog_count in (("alone", 0), ("beside", BACKLOG_COUNT)):
                bench.create(topic)
                bench.fill(topic, 50_000, backlog_count=backlog_count)
            figures += measure_fair(bench, count=50_000, rounds=rounds)
        if "restart" in only:
            figures += measure_restart(bench)
    return show_figures(figures)


if __name__ == "__main__":
    raise SystemExit(main())
