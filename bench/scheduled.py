"""Scheduled messages: very many that are due in one second, and what these delay; 1,000 a second; others beside those that wait; a restart.

python bench/scheduled.py [--only peak steady beside restart] [--count 100000] [--pairs 3] [--waiting 1000000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from random import Random
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from harness import (
    Child,
    Figure,
    broker,
    coordinator,
    make_namespace,
    settings_line,
    show_figures,
    wait_for,
    warm,
    working_coordinator,
)
from recovery import doubt_low_waters, idle_memory

from txlayer import Message, TransactionalProducer
from txlayer.adapters.kafka.local import LocalBroker

OTHERS_PER_S = 50
SUBMIT_COUNT = 200_000
AT_REST_S = 0.05
"""CPU in a second with which a coordinator is at rest."""
PART_COUNT = 100_000
"""Futures of `submit` in memory at once."""
FAR = timedelta(days=1)
VALUE = b"v" * 200


def reader(servers: str, topic: str) -> Consumer:
    """It reads what becomes visible in a topic from now on."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "isolation.level": "read_committed"})
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    ends = [(p, consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1]) for p in partitions]
    consumer.assign([TopicPartition(topic, p, offset) for p, offset in ends])
    return consumer


def read(consumer: Consumer, count: int) -> list[float]:
    """When each of so many records was read, in seconds since 1970."""
    seen: list[float] = []
    give_up_at = time.monotonic() + 300
    while len(seen) < count and time.monotonic() < give_up_at:
        found = sum(record.error() is None for record in consumer.consume(5_000, 0.5))
        seen += [time.time()] * found
    return seen


def schedule(servers: str, namespace: str, messages: Iterable[Message]) -> float:
    """Commit these messages; transactions per second."""
    config: dict[str, Any] = {"bootstrap_servers": servers, "namespace": namespace, "group": "scheduling"}
    count, left = 0, iter(messages)
    with TransactionalProducer(**config) as producer:
        began = time.monotonic()
        while part := [producer.submit(message, block=True) for message in islice(left, PART_COUNT)]:
            count += len(part)
            for future in part:
                future.result()
        return count / (time.monotonic() - began)


def messages_for(namespace: str, count: int, at: datetime) -> Iterator[Message]:
    """So many messages for one time, each with a key of its own."""
    return (Message(f"{namespace}.scheduled", f"k{n}", VALUE, deliver_at=at) for n in range(count))


def schedule_for_long(servers: str, namespace: str, count: int) -> None:
    """Commit so many messages for tomorrow, and wait until all are on doubt."""
    schedule(servers, namespace, messages_for(namespace, count, datetime.now(UTC) + FAR))
    wait_until_moved(servers, namespace, count)


def wait_until_moved(servers: str, namespace: str, count: int) -> None:
    """Wait until so many are on doubt."""
    wait_for(
        lambda: sum(doubt_low_waters(servers, namespace)) >= count,
        within_s=300,
        what="the scheduled ones are not all on doubt",
    )


def wait_until_at_rest(forwarder: Child) -> None:
    """Wait until it does no more with what was scheduled: it settles op lines for seconds after the last one is on doubt."""

    def is_at_rest() -> bool:
        before_s = forwarder.cpu_s()
        time.sleep(1)
        return forwarder.cpu_s() - before_s < AT_REST_S

    wait_for(is_at_rest, within_s=60, what="the coordinator does not come to rest")


class Others:
    """Transactions at a steady rate, and how long each took to be visible."""

    def __init__(self, servers: str, namespace: str) -> None:
        self.took: list[tuple[float, float]] = []  # (sent at, seconds)
        self._should_stop = threading.Event()
        self._run = (servers, namespace)
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._should_stop.set()
        self._thread.join()

    def worst(self, begin: float, end: float) -> tuple[float, float]:
        """(median, longest) in milliseconds of those sent in this time."""
        took = [1_000 * each for at, each in self.took if begin <= at < end]
        return statistics.median(took), max(took)

    def _work(self) -> None:
        servers, namespace = self._run
        topic = f"{namespace}.orders"
        config: dict[str, Any] = {"bootstrap_servers": servers, "namespace": namespace, "group": "others"}
        with TransactionalProducer(**config) as producer, closing(reader(servers, topic)) as consumer:
            producer.publish(Message(topic, "first", b"0"))
            due = time.time()
            while not self._should_stop.is_set():
                if time.time() >= due:
                    due = max(due + 1 / OTHERS_PER_S, time.time() - 1)
                    producer.submit(Message(topic, f"k{due}", f"{time.time()}"))
                for record in consumer.consume(100, 0.01):
                    sent_at = float(record.value() or 0)
                    if sent_at:
                        self.took.append((sent_at, time.time() - sent_at))


def due_at_once(servers: str, count: int) -> dict[str, float]:
    """All of so many in one second."""
    namespace = "peak"
    make_namespace(servers, namespace, targets=("orders", "scheduled"))
    with ExitStack() as stack:
        working_coordinator(stack, servers, namespace)
        others = Others(servers, namespace)
        stack.callback(others.stop)
        at = datetime.now(UTC) + timedelta(seconds=count / 1_500)
        rate = schedule(servers, namespace, messages_for(namespace, count, at))
        due = at.timestamp()
        print(f"scheduled {count:,} at {rate:,.0f}/s, {due - time.time():.0f} s before their time", flush=True)
        consumer = stack.enter_context(closing(reader(servers, f"{namespace}.scheduled")))
        seen = read(consumer, count)
        time.sleep(3)
        before, during = others.worst(due - 10, due - 1), others.worst(due, seen[-1])
    found = {
        "first late ms": 1_000 * (seen[0] - due),
        "last late s": seen[-1] - due,
        "rate /s": count / (seen[-1] - due),
        "others before p50 ms": before[0],
        "others before max ms": before[1],
        "others during p50 ms": during[0],
        "others during max ms": during[1],
    }
    print("  ".join(f"{name} {value:,.1f}" for name, value in found.items()), flush=True)
    return found


def due_steadily(servers: str, count: int, *, is_new_process: bool) -> list[Figure]:
    """So many that are due at 1,000 a second, and were committed in another order: how late each is visible.

    With `is_new_process` a coordinator releases them that started after their commit: it has none of their content in memory.
    """
    namespace = f"steady{is_new_process:d}"
    make_namespace(servers, namespace, targets=("orders", "scheduled"))
    begin = time.time() + 5 + count / 3_000 + 10 * is_new_process
    times = [begin + number / 1_000 for number in range(count)]
    Random(1).shuffle(times)
    topic = f"{namespace}.scheduled"
    messages = (
        Message(topic, f"k{n}", f"{at}", deliver_at=datetime.fromtimestamp(at, UTC)) for n, at in enumerate(times)
    )
    late: list[float] = []
    with ExitStack() as stack:
        child = working_coordinator(stack, servers, namespace)
        consumer = stack.enter_context(closing(reader(servers, topic)))
        schedule(servers, namespace, messages)
        if is_new_process:
            wait_until_moved(servers, namespace, count)
            child.end()
            child = coordinator(stack, servers, namespace)
        print(f"scheduled {count:,}, {begin - time.time():.0f} s before the first time", flush=True)
        cpu_s = child.cpu_s()
        give_up_at = max(times) + 60
        while len(late) < count and time.time() < give_up_at:
            records = [record for record in consumer.consume(1_000, 0.02) if record.error() is None]
            late += [time.time() - float(record.value() or 0) for record in records]
        cpu_s = child.cpu_s() - cpu_s
    p50_ms, p99_ms, most_ms = (1_000 * sorted(late)[int(share * (len(late) - 1))] for share in (0.5, 0.99, 1))
    print(
        f"{len(late):,} at 1,000/s{', after a restart' * is_new_process}: late by p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms, at most {most_ms:.0f} ms; "
        f"{1e6 * cpu_s / count:.0f} us of CPU each",
        flush=True,
    )
    name = f"1,000 due a second{', after a restart' * is_new_process}"
    return [
        Figure(f"{name}: late, p50", p50_ms, 300, "ms", is_at_most=True),
        Figure(f"{name}: late, at most", most_ms, 1_000, "ms", is_at_most=True),
    ]


def beside(servers: str, count: int, pairs: int) -> float:
    """The rate of others beside so many that wait, of the rate without them; the median of the pairs."""
    ratios: list[float] = []
    for number in range(pairs):
        rates: dict[str, float] = {}
        cpu_us: dict[str, float] = {}
        for name in ("none", "waiting")[:: 1 - 2 * (number % 2)]:
            namespace = f"{name}{number}"
            make_namespace(servers, namespace, targets=("orders", "scheduled"))
            with ExitStack() as stack:
                forwarder = working_coordinator(stack, servers, namespace)
                if name == "waiting":
                    schedule_for_long(servers, namespace, count)
                    wait_until_at_rest(forwarder)
                before_s = forwarder.cpu_s()
                consumer = stack.enter_context(closing(reader(servers, f"{namespace}.orders")))
                arguments = [servers, namespace, str(SUBMIT_COUNT), "5000"]
                producer = Child("producer", ["bench/clients.py", "submit", *arguments])
                stack.callback(producer.end)
                seen = read(consumer, SUBMIT_COUNT)
                rates[name] = SUBMIT_COUNT / (seen[-1] - producer.result(60)["started"])
                cpu_us[name] = (forwarder.cpu_s() - before_s) / SUBMIT_COUNT * 1e6
        ratios.append(rates["waiting"] / rates["none"])
        told = [f"{rates[name]:,.0f}/s and {cpu_us[name]:.1f} µs of the coordinator" for name in ("none", "waiting")]
        print(f"{told[0]} a transaction without, {told[1]} beside {count:,}", flush=True)
    return statistics.median(ratios)


def restart(kafka: LocalBroker, count: int) -> list[Figure]:
    """A coordinator starts beside so many that wait: seconds until a new message is visible, and memory."""
    servers, namespace = kafka.bootstrap_servers, "restart"
    os.environ["TXLAYER_UNSETTLED_BYTES_MAX"] = str(1 << 40)  # it is no limit here
    make_namespace(servers, namespace, targets=("orders", "scheduled"))
    with ExitStack() as stack:
        first = working_coordinator(stack, servers, namespace)
        schedule_for_long(servers, namespace, count)
        first.end()
        consumer = stack.enter_context(closing(reader(servers, f"{namespace}.orders")))
        config: dict[str, Any] = {"bootstrap_servers": servers, "namespace": namespace, "group": "others"}
        producer = stack.enter_context(TransactionalProducer(**config))
        started = time.monotonic()
        second = coordinator(stack, servers, namespace)
        producer.publish(Message(f"{namespace}.orders", "first", VALUE))
        read(consumer, 1)
        took_s, cpu_s = time.monotonic() - started, second.cpu_s()
        memory = (second.memory_bytes() - idle_memory(kafka)) / count
    print(f"restart beside {count:,}: first forward after {took_s:.1f} s, {cpu_s:.1f} s of CPU, {memory:.0f} B each")
    return [
        Figure(f"restart beside {count:,} that wait", took_s, 15, "s", is_at_most=True),
        Figure("the same, memory of each", memory, 250, "B", is_at_most=True),
    ]


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subjects = ("peak", "steady", "beside", "restart")
    parser.add_argument("--only", choices=subjects, nargs="+", default=subjects)
    parser.add_argument("--count", type=int, default=100_000, help="scheduled messages")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="scheduled messages at the restart")
    arguments = parser.parse_args()
    print(settings_line())
    figures: list[Figure] = []
    with broker() as kafka:
        servers, count = kafka.bootstrap_servers, arguments.count
        if "peak" in arguments.only:
            peak = due_at_once(servers, count)
            delay_ms = peak["others during max ms"] - peak["others before p50 ms"]
            figures += [
                Figure(f"{count:,} due at once: all visible after", peak["last late s"], 20, "s", is_at_most=True),
                Figure("others then: longest delay", delay_ms, 1_000, "ms", is_at_most=True),
            ]
        if "steady" in arguments.only:
            for is_new_process in (False, True):
                figures += due_steadily(servers, count // 2, is_new_process=is_new_process)
        if "beside" in arguments.only:
            warm(kafka)
            ratio = beside(servers, count, arguments.pairs)
            figures.append(Figure("rate of others beside those that wait", ratio, 0.9, ""))
        if "restart" in arguments.only:
            figures += restart(kafka, arguments.waiting)
    return show_figures(figures)


if __name__ == "__main__":
    raise SystemExit(main())
