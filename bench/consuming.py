"""txlayer's consumers under load, as children of bench/consumers.py.

    python bench/consuming.py tasks SERVERS TOPIC COUNT
    python bench/consuming.py empty SERVERS TOPIC COUNT [FAILING_KEY]
    python bench/consuming.py processes SERVERS TOPIC COUNT WORKERS
    python bench/consuming.py fair SERVERS TOPIC COUNT
    python bench/consuming.py stuck SERVERS TOPIC COUNT GROUP

Each handles COUNT messages, of keys that do not fail, and prints one JSON line. `stuck` goes on until it is ended, and
says when it was assigned its partitions, and what it handled.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import threading
import time
from itertools import count as counting
from typing import Any

from peers.consuming import HANDLER_S, IN_FLIGHT, compute, stay_on_one_core

from txlayer import AsyncOrderedConsumer, OrderedConsumer, RetryPolicy
from txlayer.cli.services import GC_THRESHOLD

FOR_EVER = RetryPolicy(attempt_count_max=1_000_000)
"""The back-off is the default one."""
LOOK_S = 0.1
STUCK = b"stuck"
MARK = b"mark"
"""Keys of what never succeeds, and of what tells that a consumer is ready."""
BACKLOGGED = b"backlogged"


class Span:
    """From the first message to the last."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._numbers = counting(1)
        self._first = self._last = 0.0
        self.ended = threading.Event()

    def begin(self) -> None:
        """The first message that counts, or one before it that does not."""
        self._first = self._first or time.monotonic()

    def add(self) -> bool:
        """One more message; True for the last one."""
        number = next(self._numbers)
        self.begin()
        if number == self._count:
            self._last = time.monotonic()
            self.ended.set()
            return True
        return False

    def result(self) -> dict[str, float]:
        """Its length."""
        return {"count": self._count, "took_s": self._last - self._first}


def new_group() -> str:
    """One that has its topics: the benchmark makes them."""
    return os.environ["BENCH_GROUP"]


async def run_tasks(servers: str, topic: str, count: int) -> dict[str, float]:
    """Coroutines that wait."""
    span, ended = Span(count), asyncio.Event()
    consumer = AsyncOrderedConsumer(
        bootstrap_servers=servers, group=new_group(), topics=[topic], start_at="earliest", in_flight_max=IN_FLIGHT
    )

    @consumer.handler
    async def handle(_message: Any, _context: Any) -> None:
        await asyncio.sleep(HANDLER_S)
        if span.add():
            ended.set()

    async with consumer:
        await ended.wait()
    return span.result()


def run_empty(servers: str, topic: str, count: int, failing: str = "") -> dict[str, float]:
    """Handlers that do nothing, on one core; those of one key may fail, which does not count."""
    stay_on_one_core()
    bad = failing.encode()
    consumer = OrderedConsumer(
        bootstrap_servers=servers, group=new_group(), topics=[topic], start_at="earliest", retry=FOR_EVER
    )

    def handle(_message: Any, _context: Any) -> None:
        pass

    def handle_or_fail(message: Any, _context: Any) -> None:
        if message.key == bad:
            raise ValueError(failing)

    consumer.handler(handle_or_fail if failing else handle)
    with consumer:
        (begin, begin_at), (end, end_at) = _working(consumer, topic, 1, count)
        failed_count = consumer.stats().topics[topic].failed
    return {"count": end - begin, "took_s": end_at - begin_at, "failed": failed_count}


def run_fair(servers: str, topic: str, count: int) -> dict[str, float]:
    """Handlers that wait for 5 ms, until COUNT messages of others than the one key with a backlog are handled."""
    span = Span(count)
    consumer = OrderedConsumer(
        bootstrap_servers=servers, group=new_group(), topics=[topic], start_at="earliest", record_count_max=1_000_000
    )

    @consumer.handler
    def handle(message: Any, _context: Any) -> None:
        span.begin()
        time.sleep(HANDLER_S / 2)
        if message.key != BACKLOGGED:
            span.add()

    with consumer:
        span.ended.wait()
    return span.result()


def compute_for(_message: Any, _context: Any) -> None:
    """For processes: it stands at the top of a module."""
    compute()


def run_processes(servers: str, topic: str, count: int, workers: str) -> dict[str, float]:
    """Handlers that compute. They count nothing: what they do in their processes nobody sees here."""
    consumer = OrderedConsumer(
        bootstrap_servers=servers,
        group=new_group(),
        topics=[topic],
        start_at="earliest",
        workers="processes",
        worker_count=int(workers),
    )
    consumer.handler(compute_for)
    with consumer:
        # Starting an interpreter is not what is measured: the clock begins when all have worked.
        (begin, begin_at), (end, end_at) = _working(consumer, topic, 200, count)
    return {"count": end - begin, "took_s": end_at - begin_at}


def _working(
    consumer: OrderedConsumer, topic: str, first: int, count: int
) -> tuple[tuple[int, float], tuple[int, float]]:
    """(messages handled, when) of the first look at which it had handled so many, and of the last before it had all."""
    looks: list[tuple[int, float]] = []
    while not looks or looks[-1][0] < count:
        topics = consumer.stats().topics
        handled = topics[topic].handled if topic in topics else 0
        if handled >= first:
            looks.append((handled, time.monotonic()))
        # A look takes CPU from who is looked at: a hundred of them in a second were a tenth of the figure.
        time.sleep(LOOK_S)
    return looks[0], looks[-2] if len(looks) > 2 else looks[-1]


def run_stuck(servers: str, topic: str, count: int, group: str) -> dict[str, float]:
    """One key never succeeds; everything else is handled, and the last one of all says that it is ready."""
    handled: list[bytes | None] = []
    assigned_at: list[float] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "queues.assigned":
                assigned_at.append(time.monotonic())

    log = logging.getLogger("txlayer.consumer")
    log.setLevel(logging.INFO)
    log.addHandler(Watch())
    consumer = OrderedConsumer(
        bootstrap_servers=servers,
        group=group,
        topics=[topic],
        start_at="earliest",
        retry=FOR_EVER,
        record_count_max=2 * count,
    )

    @consumer.handler
    def handle(message: Any, _context: Any) -> None:
        if message.key == STUCK:
            raise ValueError(STUCK)
        handled.append(message.key)
        if message.key == MARK:
            ready_s = time.monotonic() - assigned_at[-1]
            again = sum(key != MARK for key in handled)
            print(json.dumps({"ready_s": ready_s, "handled": again}), flush=True)

    consumer.run()
    return {}


def main() -> None:
    """Run one kind of consumer."""
    kind, servers, topic, count, *more = sys.argv[1:]
    gc.set_threshold(GC_THRESHOLD)  # as `txlayer consumer run` does
    if kind == "tasks":
        result = asyncio.run(run_tasks(servers, topic, int(count)))
    else:
        run = {"empty": run_empty, "fair": run_fair, "processes": run_processes, "stuck": run_stuck}[kind]
        result = run(servers, topic, int(count), *more)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
