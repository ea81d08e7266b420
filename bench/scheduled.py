"""Scheduled messages: very many that are due in one second, what these delay, and the rate of others beside those that wait.

python bench/scheduled.py [--count 100000] [--pairs 3]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from harness import Child, Figure, broker, make_namespace, settings_line, show_figures, wait_for, working_coordinator
from recovery import doubt_low_waters

from txlayer import Message, TransactionalProducer

OTHERS_PER_S = 50
SUBMIT_COUNT = 60_000
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


def schedule(servers: str, namespace: str, count: int, at: datetime) -> float:
    """Commit so many messages for one time; transactions per second."""
    config: dict[str, Any] = {"bootstrap_servers": servers, "namespace": namespace, "group": "scheduling"}
    with TransactionalProducer(**config) as producer:
        began = time.monotonic()
        topic = f"{namespace}.scheduled"
        futures = [producer.submit(Message(topic, f"k{n}", VALUE, deliver_at=at), block=True) for n in range(count)]
        for future in futures:
            future.result()
        return count / (time.monotonic() - began)


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
        rate = schedule(servers, namespace, count, at)
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


def beside(servers: str, count: int, pairs: int) -> float:
    """The rate of others beside so many that wait, of the rate without them; the median of the pairs."""
    ratios = []
    for number in range(pairs):
        rates = {}
        for name in ("none", "waiting")[:: 1 - 2 * (number % 2)]:
            namespace = f"{name}{number}"
            make_namespace(servers, namespace, targets=("orders", "scheduled"))
            with ExitStack() as stack:
                working_coordinator(stack, servers, namespace)
                if name == "waiting":
                    schedule(servers, namespace, count, datetime.now(UTC) + FAR)
                    wait_for(
                        lambda namespace=namespace: sum(doubt_low_waters(servers, namespace)) >= count,
                        within_s=300,
                        what="the scheduled ones are not all on doubt",
                    )
                consumer = stack.enter_context(closing(reader(servers, f"{namespace}.orders")))
                arguments = [servers, namespace, str(SUBMIT_COUNT), "5000"]
                producer = Child("producer", ["bench/clients.py", "submit", *arguments])
                stack.callback(producer.end)
                seen = read(consumer, SUBMIT_COUNT)
                rates[name] = SUBMIT_COUNT / (seen[-1] - producer.result(60)["started"])
        ratios.append(rates["waiting"] / rates["none"])
        print(f"{rates['none']:,.0f}/s without, {rates['waiting']:,.0f}/s beside {count:,}", flush=True)
    return statistics.median(ratios)


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="scheduled messages")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    print(settings_line())
    with broker() as kafka:
        servers = kafka.bootstrap_servers
        peak = due_at_once(servers, arguments.count)
        ratio = beside(servers, arguments.count, arguments.pairs) if arguments.pairs else 1.0
    delay_ms = peak["others during max ms"] - peak["others before p50 ms"]
    return show_figures(
        [
            Figure(
                f"{arguments.count:,} due at once: all visible after", peak["last late s"], 20, "s", is_at_most=True
            ),
            Figure("others then: longest delay", delay_ms, 1_000, "ms", is_at_most=True),
            Figure("rate of others beside those that wait", ratio, 0.9, ""),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
