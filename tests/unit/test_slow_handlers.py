"""A message whose handler takes long, or does not come back, keeps no other message in memory that was given to a worker with it."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

from tests.support.waiting import wait_until
from txlayer.consumer.aio import AsyncPool
from txlayer.consumer.context import Context, Lease, ReceivedMessage
from txlayer.consumer.dispatch import Dispatcher
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import OwnedPartition
from txlayer.consumer.pools import Caller, Pool, ThreadPool
from txlayer.consumer.process_pool import ProcessPool
from txlayer.core.key_queue import ItemSource, PartitionQueue, QueueSettings, Start
from txlayer.core.retry import RetryPolicy

COUNT, SLOW_AT = 200, 100
Kind = Literal["threads", "tasks", "processes"]


class LargeRecord:
    """A record of which a test sees whether it is still in memory."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __len__(self) -> int:
        return 0

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k%d" % self._offset

    def value(self) -> bytes:
        return b""

    def headers(self) -> list[Any]:
        return []

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


class Handling:
    """A queue whose messages are handled at once, except one, whose handler waits when it is called first."""

    def __init__(self) -> None:
        self.is_slow = True
        self.may_end = threading.Event()
        records = [LargeRecord(n) for n in range(COUNT)]
        self.records = [weakref.ref(record) for record in records]
        policy = RetryPolicy(backoff_first_ms=0, backoff_max_ms=0)
        self.queue: PartitionQueue[Any] = PartitionQueue(
            topic=Start(0), replays=Start(0), settings=QueueSettings(policy=policy), now_ms=0
        )
        keys = [record.key() for record in records]
        self.queue.add(records, offsets=range(COUNT), keys=keys, sizes=[1] * COUNT, now_ms=0)

    def handle(self, message: ReceivedMessage, _context: Context) -> None:
        if message.offset == SLOW_AT and self.is_slow:
            self.is_slow = False
            self.may_end.wait()

    async def handle_as_task(self, message: ReceivedMessage, _context: Context) -> None:
        if message.offset == SLOW_AT:
            await asyncio.to_thread(self.may_end.wait)

    def end(self, lease: Lease) -> None:
        self.may_end.set()
        lease.lost.set()

    def in_memory(self) -> list[int]:
        gc.collect()
        return [record.offset() for ref in self.records if (record := ref()) is not None]


def handle_there(message: ReceivedMessage, context: Context) -> None:
    """In another process."""
    if message.offset == SLOW_AT:
        context.lease_lost.wait(60)


@contextmanager
def loop_of_its_own() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.slow
@pytest.mark.fault("consumer: a handler takes long beside quick ones")
@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    ("kind", "attempt_timeout_s", "left"),
    [("threads", 60.0, 1), ("threads", 0.3, 0), ("tasks", 60.0, 1), ("processes", 60.0, 1)],
)
def test_a_slow_message_keeps_none_of_those_that_were_given_with_it(
    kind: Kind, attempt_timeout_s: float, left: int
) -> None:
    handling, handlers = Handling(), HandlerSet(is_async=kind == "tasks")
    functions: dict[Kind, Any] = {
        "threads": handling.handle,
        "tasks": handling.handle_as_task,
        "processes": handle_there,
    }
    handlers.add(functions[kind], topics=(), tags="*", retry=None)
    routes = handlers.routes(["orders"])
    caller = Caller(routes, attempt_timeout_s=attempt_timeout_s)
    times: dict[str, Any] = {"attempt_timeout_s": attempt_timeout_s, "hung_max": 4, "is_idle": lambda _: False}
    with loop_of_its_own() as loop:
        pool: Pool
        if kind == "tasks":
            pool = AsyncPool(caller, loop=loop, task_count_max=COUNT, **times)
        elif kind == "threads":
            pool = ThreadPool(caller.run, worker_count=2, **times)
        else:
            pool = ProcessPool(caller, worker_count=2)
        owned = OwnedPartition(
            Lease("g", "orders", 0),
            handling.queue,
            route=routes["orders"],
            tally=TopicCounts(),
            chunk_s=pool.chunk_s,
            next_offsets={},
        )
        owned.chunk_size.count = COUNT
        dispatcher = Dispatcher(pool, in_flight_max=COUNT, clock=time.monotonic, now_ms=lambda: 0, draw=lambda: 0.0)

        def count_after_a_turn() -> int:
            dispatcher.begin([owned])
            pool.wait(0.01)
            dispatcher.take()
            handling.queue.stored(ItemSource.TOPIC, handling.queue.snapshot(ItemSource.TOPIC).version)
            return handling.queue.count

        wait_until(lambda: count_after_a_turn() == left, within=30, what="all others are handled")

        assert [SLOW_AT] == handling.in_memory()
        handling.end(owned.lease)
        wait_until(lambda: count_after_a_turn() + pool.hung_count == 0, within=30, what="all are")
        pool.close(1.0)
