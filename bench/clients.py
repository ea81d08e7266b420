"""txlayer's producers under load, as children of the benchmarks.

    python bench/clients.py submit SERVERS NAMESPACE COUNT IN_FLIGHT [RATE [VALUE_BYTES]]
    python bench/clients.py threads SERVERS NAMESPACE COUNT THREADS
    python bench/clients.py asyncio SERVERS NAMESPACE COUNT TASKS
    python bench/clients.py numbered SERVERS NAMESPACE COUNT SECONDS FIRST GROUPS VALUE_BYTES IN_FLIGHT UNDECIDED_EVERY

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
from contextlib import ExitStack
from typing import Any

from bare import KEYS, VALUE, Pace, stamped_value
from peers.threads import in_threads

from txlayer import COMMIT, ROLLBACK, UNKNOWN, AsyncTransactionalProducer, Message, TransactionalProducer
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


def run_numbered(  # one hot loop, kept in one piece
    servers: str,
    namespace: str,
    count: int,
    seconds: int,
    first: int,
    group_count: int,
    value_bytes: int,
    in_flight_max: int,
    undecided_every: int,
) -> dict[str, Any]:
    """Pipelined, from producer groups in turns, until `count` are sent or `seconds` are over; numbers begin at `first`.

    Of each `undecided_every` numbers the first is left to a check-back, which commits it, and the second is rolled back. It begins when its
    input has a line, and answers check-backs until its input ends or it is killed.
    """
    topic = f"{namespace}.orders"
    outcomes = {0: lambda _: UNKNOWN, 1: lambda _: ROLLBACK}
    with ExitStack() as stack:
        producers = [
            stack.enter_context(
                TransactionalProducer(
                    bootstrap_servers=servers,
                    namespace=namespace,
                    group=f"bench-{first}-{group}",
                    in_flight_max=in_flight_max,
                    check=lambda _: COMMIT,
                )
            )
            for group in range(group_count)
        ]
        print("ready", flush=True)
        sys.stdin.readline()
        sent, give_up_at = 0, time.monotonic() + seconds
        while sent < count and time.monotonic() < give_up_at:
            number = first + sent
            message = Message(topic, key=KEYS[sent % 1_000], value=numbered_value(number, value_bytes))
            producers[sent % group_count].submit(message, outcomes.get(number % undecided_every))
            sent += 1
        print(json.dumps({"sent": sent}), flush=True)
        sys.stdin.read()
    return {"sent": sent}


def main() -> None:
    """Run one kind of client."""
    kind, servers, namespace, *numbers = sys.argv[1:]
    kind, _, suffix = kind.partition("-")
    ordering_key: OrderingKey = None if suffix == "unordered" else OF_MESSAGES
    if kind == "asyncio":
        result = asyncio.run(run_tasks(servers, namespace, *map(int, numbers), ordering_key=ordering_key))
    else:
        named = {} if kind == "numbered" else {"ordering_key": ordering_key}
        run: Any = {"submit": run_submit, "threads": run_threads, "numbered": run_numbered}[kind]
        result = run(servers, namespace, *map(int, numbers), **named)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
