"""The consumer that runs under chaos: the real one, which also writes a history of its handlers' calls as they happen.

Its program is one line, `consumer = watched("given.json")`, so that `txlayer consumer run` can run it. Times are this
machine's, in milliseconds, as the brokers' are; each process has a file of its own, of JSON lines.
"""

import base64
import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

from tests.support.fenced_table import FencedTable
from txlayer import BreakerPolicy, Context, Later, OrderedConsumer, Reject, Retry, RetryPolicy
from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.lock_log import LockEntry
from txlayer.config import milliseconds
from txlayer.consumer.context import ReceivedMessage
from txlayer.consumer.engine import Engine
from txlayer.consumer.ingest import DeadLetterRecord
from txlayer.consumer.lease_keeper import LeaseChanges, LeaseKeeper, LockRegistry
from txlayer.consumer.pools import Caller, Chunk, JobOutcome, Pool, ThreadPool, items_of, without_reported
from txlayer.core.retry import AfterExhausted, HandlerResult
from txlayer.runtime.environment import draw_name

AWAY_EVERY_S, AWAY_S = 15, 3
"""So often, and for so long, what handlers need is away, in all processes at once; until the run is healed."""
AWAY_FIRST_S = 6
"""From the first call of a process on it is away, too, until the breaker has opened, at most so long: by the clock alone, a short run
in which other faults stop the messages has no breaker that opens."""
HEALED = "healed"
"""The file that says so."""
PER_MILLE = 1_000
DELAY = timedelta(milliseconds=300)


def fate_of(value: bytes) -> tuple[str, int, float]:
    """(how the handler of a message fails, in how many attempts, how long it takes): from its bytes alone."""
    number = zlib.crc32(value)
    share = number % PER_MILLE
    seconds = (0.0, 0.0, 0.0, 0.005, 0.02, 0.3)[number // PER_MILLE % 6]
    if share < 6:
        return "raise", 1 << 30, seconds
    if share < 9:
        return "reject", 1 << 30, seconds
    if share < 30:
        return "raise", 1 + number % 2, seconds
    if share < 36:
        return "later", 1, seconds
    if share < 38:
        return "postponed", 0, seconds
    return "", 0, seconds if share < 900 else seconds * 4


class Journal:
    """JSON lines, each written whole and at once: what a killed process has begun stands there."""

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **line: Any) -> None:
        """Any thread."""
        os.write(self._fd, (json.dumps(line) + "\n").encode())


def now_ms() -> float:
    """This machine's clock, finer than the brokers have it."""
    return time.time() * 1000


class _Here(threading.local):
    """What the worker's thread is at."""

    began_ms = 0.0
    chunk: Chunk | None = None


class WatchedRegistry(LockRegistry):
    """Tells what it has read of the lock log, once the engine knows what follows from it."""

    def tell_to(self, journal: Journal) -> None:
        """Before it starts."""
        self._journal = journal
        self._read: list[LockEntry] = []

    def turn(self) -> LeaseChanges:
        """As ever; the changes of the last one have reached every handler."""
        if self._read:
            places = [(entry.partition, entry.offset) for entry in self._read]
            self._journal.write(what="learned", at_ms=now_ms(), places=places)
            self._read = []
        return super().turn()

    def _fold(self, entry: LockEntry) -> None:
        self._read.append(entry)
        super()._fold(entry)


class WatchedPool(ThreadPool):
    """Tells when the engine learned of a failure: what it knows of its breakers then decides what an attempt costs."""

    def tell_to(self, journal: Journal, numbers: dict[int, int]) -> None:
        """Before it starts; `numbers` are those of the calls, by the record."""
        self._journal, self._numbers = journal, numbers
        self.turn_ms = now_ms()

    def take(self) -> list[JobOutcome]:
        """As ever."""
        outcomes = super().take()
        self.turn_ms = now_ms()
        for outcome in filter(None, map(without_reported, outcomes)):
            for item in (item for failed in outcome.failed for item in items_of(failed.job)):
                self._journal.write(what="taken", n=self._numbers[id(item.record)], at_ms=self.turn_ms)
        return outcomes


class WatchedConsumer(OrderedConsumer):
    """An `OrderedConsumer` whose calls are written down."""

    def __init__(self, given: dict[str, Any], *, folder: Path) -> None:
        super().__init__(
            bootstrap_servers=given["servers"],
            namespace=given["namespace"],
            group=given["group"],
            topics=given["topics"],
            start_at="earliest",
            retry=RetryPolicy(
                attempt_count_max=given["attempt_count_max"],
                backoff_first_ms=200,
                backoff_max_ms=500,
                after_exhausted=AfterExhausted(given["after_exhausted"]),
            ),
            session_timeout=timedelta(seconds=given["session_s"]),
            lease_renewal=timedelta(seconds=given["lease_expiry_s"] / 3),
            lease_expiry=timedelta(seconds=given["lease_expiry_s"]),
            kafka_transaction_timeout=timedelta(seconds=given["kafka_transaction_s"]),
            store_timeout=timedelta(seconds=given["store_timeout_s"]),
            revoke_timeout=timedelta(seconds=2),
            close_timeout=timedelta(seconds=10),
            worker_count=8,
            breaker=BreakerPolicy(
                attempt_count_min=5, window=timedelta(seconds=2), probe_interval=timedelta(seconds=0.2)
            ),
        )
        self._healed = folder / HEALED
        self._call_numbers: dict[int, int] = {}
        self._name = str(os.getpid())
        self._journal = Journal(folder / f"calls-{self._name}.jsonl")
        self._table = FencedTable(folder / "fenced.db")
        self._here = _Here()
        self._numbers = count()
        self._postponed: set[tuple[str, int, int]] = set()
        self._has_opened = False  # one of its breakers, once
        self._first_away_until = 0.0  # by the monotonic clock; 0: nothing was called yet
        self._tenures: dict[int, tuple[Any, int]] = {}  # kept, so that no id is another's
        self.handler(self._handle)

    # --- where it looks on --------------------------------------------------------------------------------------------

    def _make_leases(self, connections: ConsumerConnections) -> LeaseKeeper:
        config = self._config
        holder = f"{self._name}/{draw_name()[:12]}"
        self._journal.write(what="holder", holder=holder)
        registry = WatchedRegistry(
            connections,
            group=self._group,
            holder=holder,
            topics=config.topics,
            lease_renewal_ms=milliseconds(config.lease_renewal),
            lease_expiry_ms=milliseconds(config.lease_expiry),
        )
        registry.tell_to(self._journal)
        return registry

    def _make_pool(self, caller: Caller) -> Pool:
        # A handler begins when the clock is read that its lease is held against: the process may be frozen after that.
        caller._clock = self._clock

        def run(chunk: Chunk) -> JobOutcome:
            self._here.chunk = chunk
            return caller.run(chunk)

        self._pool = WatchedPool(
            run,
            worker_count=self._config.worker_count,
            attempt_timeout_s=caller.attempt_timeout_s,
            hung_max=self._config.hung_handlers_max,
            is_idle=self._is_idle,
        )
        self._pool.tell_to(self._journal, self._call_numbers)
        return self._pool

    def _run_engine(self, engine: Engine, is_waited_for: bool) -> None:
        for topic in self._topics:
            for breaker in engine._dispatcher.breakers.of_topic(topic):
                self._watch(breaker)
        super()._run_engine(engine, is_waited_for)

    def _watch(self, breaker: Any) -> None:
        """Tell when it opens and closes."""

        def told(call: Callable[..., None]) -> Callable[..., None]:
            def run(**given: Any) -> None:
                was_closed = breaker.is_closed
                call(**given)
                if was_closed is not breaker.is_closed:
                    self._has_opened = True
                    self._journal.write(what="breaker", at_ms=self._pool.turn_ms, heard_ms=now_ms(), is_open=was_closed)

            return run

        breaker.ended, breaker.probed = told(breaker.ended), told(breaker.probed)

    def _clock(self) -> float:
        self._here.began_ms = now_ms()
        return time.monotonic()

    # --- the handler --------------------------------------------------------------------------------------------------

    def _handle(self, message: ReceivedMessage, context: Context) -> HandlerResult:
        number = next(self._numbers)
        is_replay = self._tell_begin(number, message, context)
        word = "raise"
        try:
            word = self._word(message, context, is_replay=is_replay)
        finally:
            self._journal.write(what="ended", n=number, at_ms=now_ms(), result=word or "handled")
        if word == "raise":
            raise RuntimeError("as its bytes say")
        if word == "later":
            return Retry(delay_ms=300)
        if word == "postponed":
            return context.suspend(DELAY) if message.offset % 8 == 0 else Later(DELAY)
        return Reject("as its bytes say") if word == "reject" else None

    def _word(self, message: ReceivedMessage, context: Context, *, is_replay: bool) -> str:
        """How it fails; "": it does not, and its effect is in the table."""
        word, attempt_count, seconds = fate_of(message.raw_value or b"")
        if seconds:
            context.lease_lost.wait(seconds)
        if self._is_away():
            return "raise"
        if not is_replay and context.attempt <= attempt_count:
            return word
        place = message.topic, message.partition, message.offset
        if word == "postponed" and not is_replay and place not in self._postponed:
            self._postponed.add(place)  # once in a process
            return word
        if context.token is not None:
            row = (message.topic, message.partition, message.key)
            self._table.write(row, context.token, process=self._name, offset=message.offset, is_replay=is_replay)
        return ""

    def _is_away(self) -> bool:
        """True while what handlers need is away."""
        self._first_away_until = self._first_away_until or time.monotonic() + AWAY_FIRST_S
        is_first = not self._has_opened and time.monotonic() < self._first_away_until
        return (is_first or time.time() % AWAY_EVERY_S < AWAY_S) and not self._healed.exists()

    def _tell_begin(self, number: int, message: ReceivedMessage, context: Context) -> bool:
        chunk, record = self._here.chunk, cast("Any", message._record)
        assert chunk is not None
        owner = chunk.owner
        tenure = self._tenures.setdefault(id(owner), (owner, len(self._tenures)))[1]
        line: dict[str, Any] = {
            "what": "began",
            "n": number,
            "at_ms": self._here.began_ms,
            "writer": owner.queue.writer,
            "tenure": tenure,
            "place": [message.topic, message.partition, message.offset],
            "key": None if message.key is None else base64.b64encode(message.key).decode(),
            "attempt": context.attempt,
            "token": context.token,
        }
        self._call_numbers[id(record)] = number
        is_replay = isinstance(record, DeadLetterRecord)
        if is_replay:
            items = (item for job in chunk.open_jobs() for item in items_of(job))
            line["request"] = next(item.offset for item in items if item.record is record)
            line["letter"] = record._record.offset()
        self._journal.write(**line)
        return is_replay


def watched(file: str) -> WatchedConsumer:
    """The consumer that a file describes; what it does is told beside it."""
    given = json.loads(Path(file).read_text(encoding="utf-8"))
    return WatchedConsumer(given, folder=Path(file).absolute().parent)
