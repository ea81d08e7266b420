"""txlayer's producers under load, as children of the benchmarks.

    python bench/clients.py submit SERVERS NAMESPACE COUNT IN_FLIGHT [RATE [VALUE_BYTES]]
    python bench/clients.py threads SERVERS NAMESPACE COUNT THREADS
    python bench/clients.py asyncio SERVERS NAMESPACE COUNT TASKS
    python bench/clients.py numbered SERVERS NAMESPACE COUNT SECONDS VALUE_BYTES IN_FLIGHT UNDECIDED_EVERY GROUPS
    python bench/clients.py groups SERVERS NAMESPACE COUNT SECONDS VALUE_BYTES IN_FLIGHT UNDECIDED_EVERY GROUPS

With `-unordered` behind the kind, messages of one key keep no order. Each prints one JSON line at its end: when it began
and how long it took until every op was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import Any
from zlib import crc32

from bare import KEYS, VALUE, Pace, half_producer, stamped_value, uuid7
from peers.threads import in_threads

from txlayer import COMMIT, ROLLBACK, UNKNOWN, AsyncTransactionalProducer, Message, Resolution, TransactionalProducer
from txlayer.producer.identity import OF_MESSAGES, OrderingKey

FILLER = random.Random(1).randbytes(512) * 2  # as compressible as VALUE, and the same in each process


def run_submit(
    servers: str,
    namespace: str,
    count: int,
    in_flight_max: int,
    rate: int = 0,
    value_bytes: int = len(VALUE),
    *,
    ordering_key: OrderingKey = OF_MESSAGES,
) -> dict[str, Any]:
    """Pipelined: one thread keeps thousands in flight. Messages of one key keep their order, unless told otherwise."""
    topic = f"{namespace}.orders"
    with TransactionalProducer(
        bootstrap_servers=servers, namespace=namespace, group="bench", in_flight_max=in_flight_max
    ) as producer:
        started = time.time()
        submit = producer.submit
        pace = Pace(rate)
        plain = VALUE[:value_bytes]
        for sent in range(count):
            while not pace.due(sent):
                time.sleep(0.0005)
            value = stamped_value() if rate else plain
            message = Message(topic, key=KEYS[sent % 1_000], value=value)
            future = submit([message], None, ordering_key=ordering_key)
        future.result(60)
        producer.close()
    return {"started": started, "took_s": time.time() - started}


def run_threads(
    servers: str, namespace: str, count: int, thread_count: int, *, ordering_key: OrderingKey = OF_MESSAGES
) -> dict[str, Any]:
    """Blocking transactions from many threads: prepare, an empty local transaction, commit."""
    topic = f"{namespace}.orders"
    with TransactionalProducer(bootstrap_servers=servers, namespace=namespace, group="bench") as producer:

        def work(_thread: int) -> None:
            for number in range(count // thread_count):
                with producer.transaction(ordering_key=ordering_key) as tx:
                    tx.send(topic, key=KEYS[number % 1_000], value=VALUE)
                    tx.prepare()

        made = in_threads(work, range(thread_count))
        producer.close()
    return {**made, "took_s": time.time() - made["started"]}


async def run_tasks(
    servers: str, namespace: str, count: int, task_count: int, *, ordering_key: OrderingKey = OF_MESSAGES
) -> dict[str, Any]:
    """The same from asyncio tasks."""
    topic = f"{namespace}.orders"
    async with AsyncTransactionalProducer(bootstrap_servers=servers, namespace=namespace, group="bench") as producer:

        async def work() -> None:
            for number in range(count // task_count):
                async with producer.transaction(ordering_key=ordering_key) as tx:
                    tx.send(topic, key=KEYS[number % 1_000], value=VALUE)
                    await tx.prepare()

        started = time.time()
        await asyncio.gather(*(work() for _ in range(task_count)))
        await producer.close()
    return {"started": started, "took_s": time.time() - started}


def numbered_value(number: int, byte_count: int) -> bytes:
    """A value of so many bytes that begins and ends with its number."""
    ends = struct.pack("<Q", number)
    filler = byte_count - 2 * len(ends)
    return ends + FILLER * (filler // len(FILLER)) + FILLER[: filler % len(FILLER)] + ends


def run_numbered(
    servers: str,
    namespace: str,
    count: int,
    seconds: int,
    value_bytes: int,
    in_flight_max: int,
    undecided_every: int,
    _group_count: int = 1,
) -> dict[str, Any]:
    """Pipelined numbered messages, until `count` are sent or `seconds` are over.

    Of each `undecided_every` numbers the first is left to a check-back, which commits it, and the second is rolled back. It begins when its
    input has a line, and answers check-backs until its input ends or it is killed.
    """
    topic = f"{namespace}.orders"
    rolled_back: set[str] = set()

    def roll_back(txn: Any) -> Resolution:
        rolled_back.add(txn.txn_id)
        return ROLLBACK

    outcomes = {0: lambda _: UNKNOWN, 1: roll_back}
    with TransactionalProducer(
        bootstrap_servers=servers,
        namespace=namespace,
        group="bench",
        in_flight_max=in_flight_max,
        check=lambda asked: ROLLBACK if asked.txn_id in rolled_back else COMMIT,
    ) as producer:
        return send_numbered(
            lambda number: producer.submit(
                Message(topic, key=KEYS[number % 1_000], value=numbered_value(number, value_bytes)),
                outcomes.get(number % undecided_every),
            ),
            count,
            seconds,
        )


def send_numbered(
    send: Callable[[int], object], count: int, seconds: int, *, flush: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Once the input has a line, send numbers from 0 on until `count` are sent or `seconds` are over; print how many. Ends with its input."""
    print("ready", flush=True)
    sys.stdin.readline()
    sent, give_up_at = 0, time.monotonic() + seconds
    while sent < count and time.monotonic() < give_up_at:
        send(sent)
        sent += 1
    flush()
    print(json.dumps({"sent": sent}), flush=True)
    sys.stdin.read()
    return {"sent": sent}


def run_groups(
    servers: str,
    namespace: str,
    count: int,
    seconds: int,
    value_bytes: int,
    in_flight_max: int,
    undecided_every: int,
    group_count: int,
) -> dict[str, Any]:
    """The same of many producer groups in turns, as one plain client writes it: an op record for each transaction, and no check handler."""
    client = half_producer(servers)
    half, op, topic = f"{namespace}.half", f"{namespace}.op", f"{namespace}.orders"
    partition_count = len(client.list_topics(half, timeout=10).topics[half].partitions)

    def send(number: int) -> None:
        born, group = int(time.time() * 1_000), f"group-{number % group_count}"
        txn_id = uuid7(at_ms=born, random_bits=random.getrandbits(74))
        key, partition = f"{txn_id}/{number:08x}", crc32(txn_id.encode()) % partition_count

        def report(error: Any, record: Any) -> None:
            if error is not None:
                raise SystemExit(str(error))
            if number % undecided_every:
                line = f"1|{'R' if number % undecided_every == 1 else 'C'}|{key}|{group}|{record.offset()}|{born}|producer||"
                client.produce(op, line.encode(), None, partition)

        headers = [("txl", f"1|{key}|{group}|{topic}|0/1|{born}|".encode())]
        client.produce(half, numbered_value(number, value_bytes), None, partition, report, None, 0, headers)
        client.poll(0)
        while len(client) > in_flight_max:
            client.poll(0.01)

    def flush() -> None:
        while client.flush(1):
            pass

    return send_numbered(send, count, seconds, flush=flush)


def main() -> None:
    """Run one kind of client."""
    kind, servers, namespace, *numbers = sys.argv[1:]
    kind, _, suffix = kind.partition("-")
    ordering_key: OrderingKey = None if suffix == "unordered" else OF_MESSAGES
    if kind == "asyncio":
        result = asyncio.run(run_tasks(servers, namespace, *map(int, numbers), ordering_key=ordering_key))
    else:
        named = {"ordering_key": ordering_key} if kind in ("submit", "threads") else {}
        kinds = {"submit": run_submit, "threads": run_threads, "numbered": run_numbered, "groups": run_groups}
        run: Any = kinds[kind]
        result = run(servers, namespace, *map(int, numbers), **named)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
