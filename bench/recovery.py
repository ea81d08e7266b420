"""A coordinator with a million open transactions: restart, memory, and throughput against none.

    python bench/recovery.py [--open 1000000] [--count 300000] [--where half doubt]

The open transactions are written as raw half records (100 B). `half`: they are young and still in half. `doubt`: they
were moved to the doubt topic before the restart.

Throughput compares like with like: both sides of a pair come after a million half records were written, those with none
open into a namespace of nobody; the sides take turns to be first, topics go when a side is over, and the first phase of
all does not count. The median of the pairs does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import ExitStack
from typing import Any
from zlib import crc32

from bare import TARGET_PARTITION_COUNT, half_producer, uuid7
from confluent_kafka import Consumer, TopicPartition
from harness import (
    PARTITION_COUNT,
    Child,
    Figure,
    broker,
    coordinator,
    drop_namespace,
    make_namespace,
    settings_line,
    show_figures,
    wait_for,
    warm,
    working_coordinator,
)

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig

VALUE = b"v" * 100
IN_FLIGHT = 5_000


def write_open(servers: str, namespace: str, count: int) -> tuple[str, int, int]:
    """`count` half records without an op; (key, partition, offset) of one of them, to be committed later."""
    producer = half_producer(servers)
    born, one = int(time.time() * 1000), {}

    def report_of(key: str) -> Any:
        def report(error: Any, record: Any) -> None:
            if error is None:
                one.update(key=key, partition=record.partition(), offset=record.offset())

        return report

    for number in range(count):
        txn_id = uuid7(at_ms=born, random_bits=int.from_bytes(os.urandom(10), "little"))
        key = f"{txn_id}/{number:08x}"
        header = f"1|{key}|bench|{namespace}.orders|0/1|{born}|".encode()
        while True:
            try:
                producer.produce(
                    f"{namespace}.half",
                    VALUE,
                    b"k",
                    crc32(txn_id.encode()) % PARTITION_COUNT,
                    report_of(key) if number == 0 else None,
                    None,
                    0,
                    [("txl", header)],
                )
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1000:
            producer.poll(0)
    producer.flush(60)
    return one["key"], one["partition"], one["offset"]


def commit_and_wait(servers: str, namespace: str, key: str, partition: int, offset: int) -> None:
    """Write one op and wait until its message is visible."""
    producer = half_producer(servers)
    producer.produce(f"{namespace}.op", f"1|C|{key}|bench|{offset}|0|producer||".encode(), None, partition)
    producer.flush(10)
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    reader.assign([TopicPartition(f"{namespace}.orders", p, 0) for p in range(TARGET_PARTITION_COUNT)])
    give_up_at = time.monotonic() + 120
    while time.monotonic() < give_up_at:
        record = reader.poll(0.05)
        if record is not None and record.error() is None:
            reader.close()
            return
    raise TimeoutError("the committed message did not become visible")


def doubt_low_waters(servers: str, namespace: str) -> list[int]:
    """The low-water mark of half, per partition."""
    config = ClientConfig(bootstrap_servers=servers, namespace=namespace)
    halves = [(config.topics.half, p) for p in range(PARTITION_COUNT)]
    with KafkaAdmin(config) as admin:
        found = admin.stored_offsets(config.topics.coordinator_group, halves)
    return [stored.offset if stored is not None else 0 for stored in found.values()]


def restart(kafka: Any, namespace: str, open_count: int, *, where: str) -> tuple[float, float]:
    """(seconds from start to the first forward, bytes of memory per open transaction)."""
    servers = kafka.bootstrap_servers
    os.environ["TXLAYER_UNSETTLED_BYTES_MAX"] = str(1 << 40)  # of both phases: it is no limit here
    make_namespace(servers, namespace)
    key, partition, offset = write_open(servers, namespace, open_count)
    doubt_after = "1s" if where == "doubt" else "1d"
    with ExitStack() as stack:
        first = working_coordinator(stack, servers, namespace, "--doubt-after", doubt_after)
        if where == "doubt":
            wait_for(
                lambda: sum(doubt_low_waters(servers, namespace)) >= open_count, within_s=600, what="not all moved"
            )
        first.end()
        os.environ["TXLAYER_CONTENT_BYTES_MAX"] = "1"  # so that what is measured is the transactions themselves
        started = time.monotonic()
        second = coordinator(stack, servers, namespace, "--doubt-after", doubt_after)
        commit_and_wait(servers, namespace, key, partition, offset)
        took_s = time.monotonic() - started
        memory = (second.memory_bytes() - idle_memory(kafka)) / open_count
        del os.environ["TXLAYER_CONTENT_BYTES_MAX"]
    print(
        f"restart with {open_count:,} open in {where}: first forward after {took_s:.1f} s, {memory:.0f} B each",
        flush=True,
    )
    return took_s, memory


def idle_memory(kafka: Any) -> int:
    """Resident memory of a coordinator without open transactions."""
    servers, namespace = kafka.bootstrap_servers, f"idle{time.monotonic_ns()}"
    make_namespace(servers, namespace)
    with ExitStack() as stack:
        child = working_coordinator(stack, servers, namespace)
        return child.memory_bytes()


def throughput(kafka: Any, namespace: str, count: int, *, open_count: int, is_beside_them: bool) -> float:
    """Committed transactions per second, beside `open_count` others or with those in a namespace of nobody."""
    servers, elsewhere = kafka.bootstrap_servers, f"{namespace}.elsewhere"
    with ExitStack() as stack:
        stack.callback(drop_namespace, servers, namespace)
        for name in (namespace, elsewhere):
            make_namespace(servers, name)
        write_open(servers, namespace if is_beside_them else elsewhere, open_count)
        working_coordinator(stack, servers, namespace, "--doubt-after", "1d")
        time.sleep(open_count / 50_000)  # the open ones are read first
        consumer = Child("consumer", ["bench/bare.py", "consumer", servers, namespace, str(count)])
        stack.callback(consumer.end)
        consumer.line()
        producer = Child("producer", ["bench/clients.py", "submit", servers, namespace, str(count), str(IN_FLIGHT)])
        stack.callback(producer.end)
        made = producer.result(600)
        rate = count / (consumer.result(600)["ended"] - made["started"])
    shown_count = open_count if is_beside_them else 0
    print(f"throughput with {shown_count:,} open: {rate:,.0f}/s", flush=True)
    return rate


def throughput_ratios(kafka: Any, arguments: argparse.Namespace) -> list[float]:
    """Of each pair: throughput beside open ones, of that without."""

    def measure(name: str, *, is_beside_them: bool) -> float:
        return throughput(kafka, name, arguments.count, open_count=arguments.open, is_beside_them=is_beside_them)

    ratios = []
    if arguments.rounds:
        measure("first", is_beside_them=False)
    for number in range(arguments.rounds):
        sides = (False, True) if number % 2 == 0 else (True, False)
        rates = {side: measure(f"pair{number}{side}".lower(), is_beside_them=side) for side in sides}
        ratios.append(rates[True] / rates[False])
    return ratios


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=1_000_000, help="open transactions")
    parser.add_argument("--count", type=int, default=300_000, help="transactions per throughput phase")
    parser.add_argument("--where", nargs="+", default=["half", "doubt"], choices=["half", "doubt"])
    parser.add_argument("--rounds", type=int, default=4, help="pairs of throughput phases; the median ratio counts")
    arguments = parser.parse_args()
    print(settings_line())
    figures = []
    with broker() as kafka:
        warm(kafka)
        for where in arguments.where:
            took_s, memory = restart(kafka, f"re{where}", arguments.open, where=where)
            figures.append(Figure(f"first forward after a restart, open in {where}", took_s, 15, "s", is_at_most=True))
            figures.append(Figure(f"memory per open transaction, in {where}", memory, 500, "B", is_at_most=True))
        ratios = throughput_ratios(kafka, arguments)
        if ratios:
            print("pairs:", ", ".join(f"{ratio:.2f}" for ratio in ratios), flush=True)
            median = statistics.median(ratios)
            figures.append(Figure("throughput with open ones, of that with none", median, 0.9))
    return show_figures(figures)


if __name__ == "__main__":
    raise SystemExit(main())
