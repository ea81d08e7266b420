"""A topic with its dead letters and requests, messages in it, and consumers that keep a journal of what they handled."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.consumer import ConcurrentConsumer, OrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.core.retry import RetryPolicy

PATIENCE_S = 30.0
PROCESSES_PATIENCE_S = 180.0
"""Where handlers run in processes: a busy machine needs seconds for each that is started, and some tests kill many."""
QUICK = RetryPolicy(attempt_count_max=4, backoff_first_ms=10, backoff_max_ms=50)


class Seen(NamedTuple):
    """One call of a handler."""

    key: bytes | None
    value: bytes | None
    attempt: int
    partition: int
    token: int | None


class Journal:
    """What handlers were called with, over all consumers of a test; `at_most` is the most that ran at once of one key."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.at_most: dict[bytes | None, int] = defaultdict(int)
        self.together = 0
        self._running: dict[bytes | None, int] = defaultdict(int)
        self._lock = threading.Lock()

    def enter(self, message: ReceivedMessage, context: Context) -> None:
        with self._lock:
            self.seen.append(Seen(message.key, message.value, context.attempt, message.partition, context.token))
            self._running[message.key] += 1
            self.at_most[message.key] = max(self.at_most[message.key], self._running[message.key])
            self.together = max(self.together, sum(self._running.values()))

    def leave(self, message: ReceivedMessage) -> None:
        with self._lock:
            self._running[message.key] -= 1

    def values(self, key: bytes | None) -> list[bytes | None]:
        """The values of one key in the order of their handling."""
        return [seen.value for seen in self.seen if seen.key == key]

    def wait_for(self, count: int) -> None:
        """Until so many calls were made."""
        wait_until(lambda: len(self.seen) >= count, within=PATIENCE_S, what=f"{count} calls, not {len(self.seen)}")


class Stage:
    """One topic of a lab, its group and its consumers."""

    def __init__(self, lab: Lab, *, partitions: int = 1) -> None:
        self.lab = lab
        self.group = unique_name("group")
        self.topic = lab.topic(partitions=partitions)
        self.partitions = partitions
        self.patience_s = PATIENCE_S
        self.letters = dead_letter_topic(self.group, self.topic)
        self.requests = replay_topic(self.group, self.topic)
        for name in (self.letters, self.requests):
            lab.create(name, partitions=partitions)
        self.namespace = unique_name("ns")
        lab.create(f"{self.namespace}.locks", settings={"message.timestamp.type": "LogAppendTime"})
        self.journal = Journal()
        self._connections = lab.consumer()
        self._opened: list[OrderedConsumer | ConcurrentConsumer] = []

    def write(self, *values: bytes, key: bytes | None = b"k", partition: int = 0) -> None:
        self.lab.write(self.topic, *values, key=key, partition=partition)

    def plain(self, kind: type[Any] = OrderedConsumer, **settings: Any) -> Any:
        """A consumer of the topic from its beginning, of any kind, without a handler; not started."""
        if settings.get("workers") == "processes":
            self.patience_s = PROCESSES_PATIENCE_S
        given = {
            "start_at": "earliest",
            "retry": QUICK,
            "namespace": self.namespace,
            "connect": self.lab.connect_consumer,
            "bootstrap_servers": self.lab.servers,
            **settings,
        }
        return kind(group=self.group, topics=[self.topic], **given)

    def consumer(
        self,
        act: Callable[[ReceivedMessage, Context], Any] = lambda *_: None,
        *,
        kind: type[OrderedConsumer | ConcurrentConsumer] = OrderedConsumer,
        **settings: Any,
    ) -> Any:
        """A consumer that keeps the journal and then does `act`; not started."""
        consumer: OrderedConsumer | ConcurrentConsumer = self.plain(
            kind, **{"store_interval": timedelta(milliseconds=20), **settings}
        )
        journal = self.journal

        @consumer.handler
        def handle(message: ReceivedMessage, context: Context) -> Any:
            journal.enter(message, context)
            try:
                return act(message, context)
            finally:
                journal.leave(message)

        self._opened.append(consumer)
        return consumer

    def run_tasks(
        self,
        act: Callable[[AsyncOrderedConsumer, ReceivedMessage, Context], Any],
        *,
        until: Callable[[AsyncOrderedConsumer], object] | None = None,
        **settings: Any,
    ) -> AsyncOrderedConsumer:
        """Run a consumer whose handler is this coroutine function until `until` returns, in a thread; else until the handler stops it."""

        async def run() -> AsyncOrderedConsumer:
            consumer: AsyncOrderedConsumer = self.plain(AsyncOrderedConsumer, **settings)

            @consumer.handler
            async def handle(message: ReceivedMessage, context: Context) -> Any:
                return await act(consumer, message, context)

            if until is None:
                await consumer.run()
            else:
                async with consumer:
                    await asyncio.to_thread(until, consumer)
            return consumer

        return asyncio.run(asyncio.wait_for(run(), PATIENCE_S))

    def stored(self, partition: int = 0) -> int:
        """What the group stored for a partition of the topic."""
        place = (self.topic, partition)
        found = self._connections.stored_offsets(self.group, [place], is_stable=True)[place]
        return -1 if found is None else found.offset

    def wait_stored(self, offset: int, *, partition: int = 0, within: float | None = None) -> None:
        """Until the group stored this offset."""
        within, what = within or self.patience_s, f"offset {offset} stored for {partition}"
        wait_until(lambda: self.stored(partition) == offset, within=within, what=what)

    def letter_values(self) -> list[bytes | None]:
        """The dead letters' values, in order."""
        return [record.value for record in self.lab.read(self.letters)]

    def wait_for_letters(self, values: Iterable[bytes], *, within: float | None = None) -> None:
        """Until these are the dead letters."""
        wanted, within = list(values), within or self.patience_s
        wait_until(lambda: self.letter_values() == wanted, within=within, what=f"dead letters {wanted}")

    def close(self) -> None:
        """End what is still running."""
        for consumer in self._opened:
            consumer.stop()
        for consumer in self._opened:
            consumer.close()


MakeStage = Callable[..., Stage]


def numbers(count: int) -> list[bytes]:
    """So many values."""
    return [b"%d" % n for n in range(count)]


class Gate:
    """Where handlers wait until the test lets them go on."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.is_open = threading.Event()

    def __call__(self, _message: ReceivedMessage, _context: Context) -> None:
        self.entered.release()
        assert self.is_open.wait(PATIENCE_S)

    def wait_for_one(self) -> None:
        """Until a handler is in it."""
        assert self.entered.acquire(timeout=PATIENCE_S)
