"""Others that consume a topic, as children of bench/consumers.py; nothing here imports txlayer.

    python bench/peers/consuming.py bare SERVERS TOPIC COUNT
    python bench/peers/consuming.py single SERVERS TOPIC COUNT
    python bench/peers/consuming.py partition-threads SERVERS TOPIC COUNT
    python bench/peers/consuming.py pyrallel SERVERS TOPIC COUNT

`bare` is a loop over `consume`; `single` one that computes for each record; `partition-threads` is the orderly model of
RocketMQ: a thread per partition, one record after the other; `pyrallel` is Pyrallel-Consumer's asynchronous mode, ordered by
key. Each prints one JSON line: how many records it handled in how many seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import uuid
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

HANDLER_S = 0.010
"""What an asynchronous handler waits for, as for a database."""
READ_COUNT = 10_000
IN_FLIGHT = 1_000


def compute() -> int:
    """About 2 ms of work for the interpreter."""
    total = 0
    for number in range(30_000):
        total ^= number * number
    return total


def stay_on_one_core() -> None:
    """Before any thread starts: threads inherit it. The broker has the others."""
    os.sched_setaffinity(0, {0})


def assigned(servers: str, topic: str, partitions: list[int]) -> Consumer:
    """A plain consumer at the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"peer-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            # As txlayer's; with the default, a second, it would wait for most of the time.
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    return consumer


def partitions_of(servers: str, topic: str) -> list[int]:
    """All of a topic's."""
    known = Consumer({"bootstrap.servers": servers, "group.id": "peer"})
    try:
        return sorted(known.list_topics(topic, timeout=20).topics[topic].partitions)
    finally:
        known.close()


def run_bare(servers: str, topic: str, count: int, *, computes: bool = False) -> dict[str, float]:
    """Read, look at each record's key and value, and do nothing."""
    if not computes:
        stay_on_one_core()
    consumer = assigned(servers, topic, partitions_of(servers, topic))
    seen, first = 0, 0.0
    while seen < count:
        for record in consumer.consume(READ_COUNT, 0.05):
            if record.error() is None:
                first = first or time.monotonic()
                record.key(), record.value()
                seen += 1
                if computes:
                    compute()
                if seen == count:
                    break
    took_s = time.monotonic() - first
    consumer.close()
    return {"count": seen, "took_s": took_s}


def run_partition_threads(servers: str, topic: str, count: int) -> dict[str, float]:
    """A thread per partition, each with a client of its own; offsets are stored in the background."""
    partitions = partitions_of(servers, topic)
    begun: list[float] = []

    def work(partition: int) -> None:
        consumer = assigned(servers, topic, [partition])
        left = count // len(partitions)
        while left:
            for record in consumer.consume(min(left, 100), 0.5):
                begun.append(time.monotonic())
                time.sleep(HANDLER_S)
                left -= 1
                consumer.commit(record, asynchronous=True)
        consumer.close()

    threads = [threading.Thread(target=work, args=(p,)) for p in partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"count": len(begun), "took_s": max(begun) + HANDLER_S - min(begun)}


async def run_pyrallel(servers: str, topic: str, count: int) -> dict[str, float]:
    """Pyrallel-Consumer as its README sets it up, with the same limit in flight and no lower one anywhere."""
    from pyrallel_consumer.config import ExecutionConfig, KafkaConfig, ParallelConsumerConfig
    from pyrallel_consumer.consumer import PyrallelConsumer
    from pyrallel_consumer.dto import ExecutionMode, OrderingMode

    logging.getLogger("pyrallel_consumer").setLevel(logging.ERROR)  # it tells of each pause
    ended = asyncio.Event()
    seen, first, last = 0, 0.0, 0.0

    async def handle(_item: Any) -> None:
        nonlocal seen, first, last
        first = first or time.monotonic()
        await asyncio.sleep(HANDLER_S)
        seen += 1
        if seen == count:
            last = time.monotonic()
            ended.set()

    config = KafkaConfig(
        BOOTSTRAP_SERVERS=[servers],
        CONSUMER_GROUP=f"peer-{uuid.uuid4()}",
        dlq_enabled=False,
        parallel_consumer=ParallelConsumerConfig(
            ordering_mode=OrderingMode.KEY_HASH,
            execution=ExecutionConfig(mode=ExecutionMode.ASYNC, max_in_flight=IN_FLIGHT),
        ),
    )
    consumer = PyrallelConsumer(config, handle, topic)
    await consumer.start()
    await ended.wait()
    result = {"count": count, "took_s": last - first}
    await consumer.stop()
    return result


def main() -> None:
    """Run one of them."""
    kind, servers, topic, count = sys.argv[1:]
    if kind == "pyrallel":
        result = asyncio.run(run_pyrallel(servers, topic, int(count)))
    elif kind == "partition-threads":
        result = run_partition_threads(servers, topic, int(count))
    else:
        result = run_bare(servers, topic, int(count), computes=kind == "single")
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
