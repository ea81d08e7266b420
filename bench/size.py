"""Large sizes, each in one run: many transactions, partitions, producer groups, bytes, coordinators and brokers.

    python bench/size.py [--only many partitions large groups cluster grid] [--count 20000000] [--slice 2000000]

* `many`: 20,000,000 transactions through one namespace. After each slice the script notes its rate and the coordinator's memory; before
  the first and after the last one it restarts the coordinator three times and notes when it has its partitions. It takes ten minutes and, with
  messages of 100 bytes, 12 GB of disk.
* `partitions`, `large`, `groups`, `cluster`: see `STAGES`. Each takes three to five minutes. Each message has a number. A reader counts how often each one comes,
  while some transactions are rolled back and some are left to check-backs.
* `grid`: CPU per transaction by role for several numbers of partitions and coordinators: what the model on the performance page is fitted to.

Run by hand.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from clients import numbered_value
from confluent_kafka import Consumer, TopicPartition
from failover import members
from harness import (
    MESSAGE_BYTES_MAX,
    PARTITION_COUNT,
    TARGET_PARTITION_COUNT,
    Child,
    Figure,
    broker,
    coordinator,
    cpu_of,
    drop_namespace,
    has_taken_over,
    make_namespace,
    settings_line,
    show_figures,
    stored_metadata,
    wait_for,
    warm,
)

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.config import ClientConfig, SystemTopics
from txlayer.operate.topics import read_status

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.kafka_cluster import KafkaCluster

IN_FLIGHT = 5_000
NAMESPACE = "size"
REPORT_S = 10.0
CATCH_UP_S = 120.0
"""How long the rest may take when the producers have sent everything: a check-back comes after 6 s at the earliest."""
RESTARTS = 3
LISTEN_S = 3.0
"""How long a reader waits for a second copy after it has seen all."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One size. It sends `count` transactions, or fewer if `seconds` are over."""

    count: int
    seconds: int = 90
    partition_count: int = PARTITION_COUNT
    target_partition_count: int = TARGET_PARTITION_COUNT
    coordinator_count: int = 1
    group_count: int = 1
    in_flight_max: int = IN_FLIGHT
    value_bytes: int = 1_024
    undecided_every: int = 1_000
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the coordinators, as names in their environment."""
    broker_count: int = 1
    replicas: int = 1
    memory_mb_max: int = 512
    """Of the largest coordinator; by default what docs/howto/deploy.md gives it."""


STAGES = {
    "partitions": Stage(count=2_000_000, partition_count=64, target_partition_count=64, memory_mb_max=768),
    "large": Stage(
        count=500,
        value_bytes=10_000_000,
        in_flight_max=32,
        undecided_every=20,
        settings={"TXLAYER_DOUBT_AFTER": "2s"},  # what is undecided moves there whole
    ),
    "groups": Stage(
        count=600_000,
        group_count=1_000,
        undecided_every=101,
        settings={"TXLAYER_UNRESOLVED": "commit", "TXLAYER_TRANSACTION_AGE_MAX": "5s"},  # for want of answers
    ),
    "cluster": Stage(count=1_000_000, partition_count=16, coordinator_count=8, broker_count=3, replicas=3),
}
GRID = {
    f"grid{number}": Stage(
        count=150_000,
        seconds=20,
        partition_count=partition_count,
        target_partition_count=target_partition_count,
        coordinator_count=coordinator_count,
        undecided_every=100_000,
        broker_count=broker_count,
        replicas=replicas,
    )
    for number, (partition_count, target_partition_count, coordinator_count, broker_count, replicas) in enumerate(
        [
            *((4, 8, 1, 1, 1), (4, 64, 1, 1, 1), (4, 256, 1, 1, 1), (16, 8, 1, 1, 1), (64, 8, 1, 1, 1)),
            *((64, 64, 1, 1, 1), (8, 8, 2, 1, 1), (8, 8, 4, 1, 1), (8, 64, 4, 1, 1)),
            *((16, 8, 1, 3, 1), (16, 8, 1, 3, 3), (16, 8, 8, 3, 1), (16, 8, 8, 3, 3)),
        ]
    )
}


class Judge:
    """A read_committed reader that counts how often each numbered message comes."""

    def __init__(self, servers: str, namespace: str, stage: Stage) -> None:
        self._value_bytes = stage.value_bytes
        self._times_seen = bytearray(stage.count)
        self.seen_count = self.damaged_count = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"{namespace}.judge",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
                "fetch.message.max.bytes": 4 * 1024 * 1024,
            }
        )
        topic = f"{namespace}.orders"
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(stage.target_partition_count)])

    def read(self, for_s: float) -> None:
        """Count what comes."""
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            first = self._consumer.poll(0.1)
            for record in () if first is None else (first, *self._consumer.consume(9_999, 0)):
                if record.error() is None:
                    self._count(record.value())

    def _count(self, value: bytes) -> None:
        (number,) = struct.unpack_from("<Q", value)
        if value != numbered_value(number, self._value_bytes):
            self.damaged_count += 1
            return
        self.seen_count += 1
        self._times_seen[number] = min(self._times_seen[number] + 1, 255)

    def compare(self, stage: Stage, sent_count: int) -> tuple[int, int, int]:
        """(committed, of them seen once, messages that must not be visible and are)."""
        committed = once = 0
        for number in range(sent_count):
            if number % stage.undecided_every != 1:
                committed += 1
                once += self._times_seen[number] == 1
        return committed, once, self.seen_count - once + self.damaged_count

    def is_missing_some(self, stage: Stage, sent_count: int) -> bool:
        """True if a committed transaction has not come."""
        committed, once, _ = self.compare(stage, sent_count)
        return once < committed

    def close(self) -> None:
        """Give the client back."""
        self._consumer.close()


class Measured(NamedTuple):
    """A stage, until the producer had sent everything."""

    rate: float
    cpu_us: dict[str, float]
    per_kafka_transaction: float
    memory_mb: list[float]
    """Of the largest coordinator, a sample a second."""
    committed: int
    once: int
    unwanted: int


def run(name: str, stage: Stage, servers: str, broker_pids: Sequence[int]) -> Measured:
    """Send, read and compare."""
    share = stage.partition_count // stage.coordinator_count
    make_namespace(
        servers,
        name,
        partition_count=stage.partition_count,
        target_partition_count=stage.target_partition_count,
        replicas=stage.replicas,
        message_bytes_max=max(MESSAGE_BYTES_MAX, stage.value_bytes + stage.value_bytes // 20),
    )
    with ExitStack() as stack:
        stack.callback(drop_namespace, servers, name)
        ports = free_ports(stage.coordinator_count)
        middles = [coordinator(stack, servers, name, "--metrics-port", str(port), **stage.settings) for port in ports]
        wait_for(
            lambda: members(servers, name) == [share] * stage.coordinator_count,
            within_s=120,
            what=f"{stage.coordinator_count} coordinators with {share} partitions each",
            every_s=0.5,
        )
        wait_for(lambda: has_taken_over(servers, name), within_s=60, what="no take-over", every_s=0.5)
        judge = Judge(servers, name, stage)
        stack.callback(judge.close)
        numbers = (
            stage.count,
            stage.seconds,
            stage.value_bytes,
            stage.in_flight_max,
            stage.undecided_every,
            stage.group_count,
        )
        kind = "numbered" if stage.group_count == 1 else "groups"
        maker = Child("producer", ["bench/clients.py", kind, servers, name, *map(str, numbers)])
        stack.callback(maker.end)
        maker.line()
        pids = {
            "producer": [maker.pid],
            "coordinators": [middle.pid for middle in middles],
            "brokers": list(broker_pids),
        }
        before = {role: cpu_of(them) for role, them in pids.items()}
        pool = stack.enter_context(ThreadPoolExecutor(1))
        began = time.monotonic()
        maker.say("begin")
        end = pool.submit(maker.said)
        memory_mb = read_until_sent(judge, middles, end, began)
        took_s, seen = time.monotonic() - began, judge.seen_count
        cpu_us = {role: (cpu_of(them) - before[role]) / max(1, seen) * 1e6 for role, them in pids.items()}
        kafka_transactions = sum(map(kafka_transaction_count, ports))
        sent = int(end.result()["sent"])
        give_up_at = time.monotonic() + CATCH_UP_S
        while judge.is_missing_some(stage, sent) and time.monotonic() < give_up_at:
            judge.read(1.0)
        judge.read(LISTEN_S)
    return Measured(seen / took_s, cpu_us, seen / max(1, kafka_transactions), memory_mb, *judge.compare(stage, sent))


def read_until_sent(judge: Judge, middles: Sequence[Child], end: Future[Any], began: float) -> list[float]:
    """Read until the producer has sent all; the memory of the largest coordinator, a sample a second."""
    memory_mb, shown_at = list[float](), began
    while not end.done():
        judge.read(1.0)
        memory_mb.append(max(middle.memory_bytes() for middle in middles) / 1e6)
        now = time.monotonic()
        if now - shown_at >= REPORT_S:
            shown_at = now
            rate = judge.seen_count / (now - began)
            print(f"{judge.seen_count:>12,}  {rate:>9,.0f}/s  largest coordinator {memory_mb[-1]:,.0f} MB", flush=True)
    return memory_mb


def kafka_transaction_count(port: int) -> int:
    """Kafka transactions of a coordinator so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    name = "txlayer_kafka_transaction_duration_seconds_count "
    return sum(int(float(line.removeprefix(name))) for line in lines if line.startswith(name))


def show(name: str, stage: Stage, servers: str, broker_pids: Sequence[int]) -> Measured:
    """Run a stage and print what it took."""
    measured = run(name, stage, servers, broker_pids)
    half = len(measured.memory_mb) // 2 or 1
    middle, end = max(measured.memory_mb[:half]), max(measured.memory_mb[half:] or measured.memory_mb)
    cpu = " · ".join(f"{role} {us:.1f}" for role, us in measured.cpu_us.items())
    print(
        f"{name}: half {stage.partition_count}, target {stage.target_partition_count}, coordinators {stage.coordinator_count}, "
        f"brokers {stage.broker_count}, replicas {stage.replicas}: "
        f"{measured.rate:,.1f}/s, {measured.rate * stage.value_bytes / 1e6:,.1f} MB/s; CPU µs per transaction: {cpu}; "
        f"{measured.per_kafka_transaction:,.1f} per Kafka transaction; memory {middle:,.0f} MB at most until "
        f"the middle, then {end:,.0f} MB",
        flush=True,
    )
    return measured


def figures_of(name: str, stage: Stage, measured: Measured) -> list[Figure]:
    """What must hold of a stage."""
    return [
        Figure(f"{name}: committed transactions that a reader saw once", measured.once / measured.committed, 1.0),
        Figure(f"{name}: messages seen twice, rolled back or damaged", measured.unwanted, 0, is_at_most=True),
        Figure(
            f"{name}: memory of the largest coordinator",
            max(measured.memory_mb),
            stage.memory_mb_max,
            "MB",
            is_at_most=True,
        ),
    ]


# --- very many transactions -------------------------------------------------------------------------------------------


def restarted(stack: ExitStack, servers: str, running: Child) -> tuple[Child, float]:
    """A successor of this coordinator, and the seconds until it has its partitions: the median of three restarts."""
    took: list[float] = []
    for _ in range(RESTARTS):
        names = stored_metadata(servers, NAMESPACE)
        running.end()
        began = time.monotonic()
        running = coordinator(stack, servers, NAMESPACE)
        wait_for(
            lambda former=names[0]: stored_metadata(servers, NAMESPACE)[0] not in ("", former),
            within_s=300,
            what="no take-over",
        )
        took.append(time.monotonic() - began)
    print(f"restarts: {', '.join(f'{s:.2f}' for s in took)} s", flush=True)
    return running, statistics.median(took)


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


def many(kafka: Any, *, count: int, slice_count: int, value_bytes: int) -> list[Figure]:
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


@contextmanager
def warm_brokers(count: int) -> Iterator[tuple[str, list[int]]]:
    """Their addresses and processes."""
    with ExitStack() as stack:
        kafka: Any
        if count > 1:
            kafka = stack.enter_context(KafkaCluster(brokers=count, performance=True))
            pids = list(kafka.pids.values())
        else:
            kafka = stack.enter_context(broker())
            pids = [kafka.pid]
        warm(kafka)
        yield kafka.bootstrap_servers, pids


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("many", *STAGES, "grid"), help="subjects")
    parser.add_argument("--seconds", type=int, help="at most so long per stage")
    parser.add_argument("--count", type=int, default=20_000_000, help="transactions of `many`")
    parser.add_argument("--slice", type=int, default=2_000_000, help="after so many the figures are noted")
    parser.add_argument("--value-bytes", type=int, default=100, help="of each message of `many`")
    arguments = parser.parse_args()
    chosen = arguments.only or ["many", *STAGES, "grid"]
    print(settings_line())
    figures: list[Figure] = []
    if "many" in chosen:
        with broker() as kafka:
            warm(kafka)
            sizes = {"count": arguments.count, "slice_count": arguments.slice, "value_bytes": arguments.value_bytes}
            figures += many(kafka, **sizes)
    stages = {name: stage for name, stage in STAGES.items() if name in chosen} | (GRID if "grid" in chosen else {})
    for broker_count in sorted({stage.broker_count for stage in stages.values()}):
        with warm_brokers(broker_count) as (servers, pids):
            for name, full in stages.items():
                if full.broker_count == broker_count:
                    stage = replace(full, seconds=arguments.seconds or full.seconds)
                    measured = show(name, stage, servers, pids)
                    figures += figures_of(name, stage, measured) if name in STAGES else []
    return show_figures(figures)


if __name__ == "__main__":
    raise SystemExit(main())
