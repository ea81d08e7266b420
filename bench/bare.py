"""The bare loops: the same reads and writes of the same bytes as txlayer, with plain clients and no product logic.

    python bench/bare.py producer SERVERS NAMESPACE COUNT IN_FLIGHT [RATE]
    python bench/bare.py coordinator SERVERS NAMESPACE COUNT
    python bench/bare.py consumer SERVERS NAMESPACE COUNT
    python bench/bare.py latencies SERVERS NAMESPACE COUNT

Each prints one JSON line at its end. Ids are made in the loop and op lines are packed per partition and poll, as in
txlayer; the coordinator matches half and op in one dict, because what it writes depends on it.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from txlayer.core.topics import PARTITION_COUNT

TARGET_PARTITION_COUNT = 8  # as harness.py makes them
KEYS = [f"customer-{n}".encode() for n in range(1_000)]
VALUE = os.urandom(512) * 2  # 1 KB that compresses to about half, as orders do
TAIL = VALUE[8:]


def stamped_value() -> bytes:
    """1 KB whose first 8 bytes say when it was made."""
    return struct.pack("<d", time.time()) + TAIL


def uuid7(*, at_ms: int, random_bits: int) -> str:
    """A UUID of version 7 as 36 characters: 48 bits of `at_ms`, 74 bits of `random_bits` (the rest is ignored).

    Source: RFC 9562, section 5.7.
    """
    time_bits = at_ms & 0xFFFF_FFFF_FFFF
    return (
        f"{time_bits >> 16:08x}-{time_bits & 0xFFFF:04x}-7{random_bits & 0xFFF:03x}-"
        f"{0x8000 | (random_bits >> 12) & 0x3FFF:04x}-{(random_bits >> 26) & 0xFFFF_FFFF_FFFF:012x}"
    )


class Pace:
    """Says how many of a steady rate are due by now; 0 means as fast as it goes."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._began = time.perf_counter()

    def due(self, sent: int) -> bool:
        """True when one more may go."""
        return not self._rate or sent < (time.perf_counter() - self._began) * self._rate


def half_producer(servers: str) -> Producer:
    """The settings of txlayer's own."""
    return Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "retry.backoff.ms": 100,
            "queue.buffering.max.messages": 1_000_000,
        }
    )


def run_producer(  # one hot loop, kept in one piece
    servers: str, namespace: str, count: int, in_flight_max: int, rate: int = 0
) -> dict[str, Any]:
    """Half records, and for each acknowledgement a line of the op record of its partition."""
    producer = half_producer(servers)
    producer.list_topics(timeout=10)
    half, op, target = f"{namespace}.half", f"{namespace}.op", f"{namespace}.orders"
    lines: list[list[str]] = [[] for _ in range(PARTITION_COUNT)]
    in_flight = 0
    pool = memoryview(b"")
    started = time.time()

    def make_report(key: str, partition: int, born: int) -> Any:
        def report(error: Any, record: Any) -> None:
            if error is not None:
                raise SystemExit(str(error))
            lines[partition].append(f"1|C|{key}|bench|{record.offset()}|{born}|producer||")

        return report

    def op_report(error: Any, record: Any) -> None:
        nonlocal in_flight
        if error is not None:
            raise SystemExit(str(error))
        in_flight -= record.value().count(b"\n") + 1

    sent = 0
    pace = Pace(rate)
    while sent < count or in_flight:
        while sent < count and in_flight < in_flight_max and pace.due(sent):
            if len(pool) < 14:
                pool = memoryview(os.urandom(14 * 1024))
            born = int(time.time() * 1000)
            bits = int.from_bytes(pool[:14], "little")
            pool = pool[14:]
            txn_id = uuid7(at_ms=born, random_bits=bits)
            key = f"{txn_id}/{bits >> 80:08x}"
            partition = born // 8 % PARTITION_COUNT  # as txlayer's own ids fall
            header = f"1|{key}|bench|{target}|0/1|{born}|".encode()
            producer.produce(
                half,
                stamped_value() if rate else VALUE,
                KEYS[sent % 1_000],
                partition,
                make_report(key, partition, born),
                None,
                0,
                [("txl", header)],
            )
            sent += 1
            in_flight += 1
            if not sent % 200:
                break
        producer.poll(0.001 if rate else 0 if in_flight < in_flight_max and sent < count else 0.01)
        for partition, ready in enumerate(lines):
            if ready:
                producer.produce(op, "\n".join(ready).encode(), None, partition, op_report)
                lines[partition] = []
    return {"started": started, "took_s": time.time() - started}


def run_coordinator(servers: str, namespace: str, count: int) -> dict[str, Any]:  # one hot loop, kept in one piece
    """Read half and op, match, forward with the same headers, store offsets, commit; two producers taking turns."""
    half, target = f"{namespace}.half", f"{namespace}.orders"
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{namespace}.bare",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "range",
            "fetch.wait.max.ms": 10,
            "fetch.message.max.bytes": 4 * 1024 * 1024,
            "session.timeout.ms": 6000,
        }
    )
    state: dict[str, Any] = {}
    consumer.subscribe([half, f"{namespace}.op"], on_assign=lambda c, _: state.update(m=c.consumer_group_metadata()))
    producers = []
    for letter in "ab":
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": f"{namespace}.bare.{letter}",
                "transaction.timeout.ms": 10_000,
                "socket.timeout.ms": 10_000,
                "message.timeout.ms": 9_000,
                "linger.ms": 0,
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        producer.list_topics(timeout=10)
        producer.init_transactions(10)
        producers.append(producer)
    print("ready", flush=True)
    messages: dict[str, Any] = {}
    ahead: dict[str, str] = {}
    turn = forwarded = transactions = 0
    while forwarded < count:
        first = consumer.poll(0.1)
        if first is None:
            continue
        decided: list[tuple[Any, str, str]] = []
        offsets: dict[tuple[str, int], int] = {}
        for record in [first, *consumer.consume(9_999, 0)]:
            if record.error():
                continue
            topic = record.topic()
            offsets[topic, record.partition()] = record.offset() + 1
            if topic == half:
                _, key, _, _, _, born, _ = record.headers()[-1][1].decode().split("|")
                if key in ahead:
                    del ahead[key]
                    decided.append((record, key, born))
                else:
                    messages[key] = (record, key, born)
            else:
                for line in record.value().decode().split("\n"):
                    key = line.split("|", 3)[2]
                    found = messages.pop(key, None)
                    if found is None:
                        ahead[key] = line
                    else:
                        decided.append(found)
        producer = producers[turn]
        turn = 1 - turn
        producer.begin_transaction()
        for record, key, born in decided:
            headers = [("txl-id", key[:-9]), ("txl-origin", f"{record.partition()}:{record.offset()}|0/1|{born}")]
            producer.produce(target, record.value(), record.key(), -1, None, None, 0, headers)
        producer.flush(10)
        stored = [TopicPartition(t, p, o) for (t, p), o in offsets.items()]
        producer.send_offsets_to_transaction(stored, state["m"], 10)
        producer.commit_transaction(10)
        forwarded += len(decided)
        transactions += 1
    consumer.close()
    return {"kafka_transactions": transactions}


def run_consumer(servers: str, namespace: str, count: int) -> dict[str, Any]:
    """A read_committed reader that counts; used for both sides."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{namespace}.reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            "fetch.message.max.bytes": 4 * 1024 * 1024,
        }
    )
    consumer.assign([TopicPartition(f"{namespace}.orders", p, 0) for p in range(TARGET_PARTITION_COUNT)])
    print("ready", flush=True)
    seen = 0
    byte_count = 0
    while seen < count:
        first = consumer.poll(0.5)
        if first is None:
            continue
        for record in [first, *consumer.consume(9_999, 0)]:
            if record.error() is None:
                seen += 1
                byte_count += len(record)
    return {"ended": time.time(), "seen": seen, "bytes": byte_count}


def run_latencies(servers: str, namespace: str, count: int) -> dict[str, Any]:
    """The same reader; how long after its making each message was seen, in milliseconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{namespace}.reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition(f"{namespace}.orders", p, 0) for p in range(TARGET_PARTITION_COUNT)])
    print("ready", flush=True)
    taken: list[float] = []
    while len(taken) < count:
        record = consumer.poll(1.0)
        if record is not None and record.error() is None:
            taken.append((time.time() - struct.unpack("<d", record.value()[:8])[0]) * 1000)
    taken = sorted(taken[count // 10 :])  # the first tenth warms up
    return {f"p{q}": taken[min(int(len(taken) * q / 100), len(taken) - 1)] for q in (50, 90, 99)} | {"max": taken[-1]}


def main() -> None:
    """Run one role."""
    role, servers, namespace, *numbers = sys.argv[1:]
    run = {
        "producer": run_producer,
        "coordinator": run_coordinator,
        "consumer": run_consumer,
        "latencies": run_latencies,
    }[role]
    print(json.dumps(run(servers, namespace, *map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
