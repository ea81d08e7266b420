"""Handlers of a simulated consumer: they succeed, fail, take long, end the process. Never: what follows from that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from tests.simulation.consumers.plan import PlannedMessage
from tests.simulation.processes import Process
from tests.support.consumer_history import BreakerTimes, Effect, HandlerCall
from txlayer.adapters.memory import ClientCrashedError
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.ingest import DeadLetterRecord
from txlayer.consumer.pools import (
    LOOK_S,
    THREAD_CHUNK_S,
    THREAD_JOB_COUNT,
    Chunk,
    HungHandlers,
    JobOutcome,
    give_up,
    items_of,
    take_apart,
    without_reported,
)
from txlayer.core.retry import Ack, HandlerResult, Later, Reject, Retry

if TYPE_CHECKING:
    from tests.simulation.consumers.society import ConsumerSociety

LATER_MS = 200
POSTPONED_COUNT = 2
HANG_S = 1_000_000.0
"""Longer than any world."""


class HandlerError(Exception):
    """What a handler raises."""


class SimulatedPool:
    """A `Pool` whose workers are greenlets of the consumer's process; who waits in a handler lets others run."""

    chunk_s = THREAD_CHUNK_S
    has_runs = True

    def __init__(
        self,
        society: ConsumerSociety,
        process: Process,
        *,
        worker_count: int,
        attempt_timeout_s: float,
        hung: HungHandlers,
    ) -> None:
        self._society = society
        self._world = society.world
        self._attempt_timeout_s = attempt_timeout_s
        self._hung = hung
        self._begun: dict[Chunk, bool] = {}  # True: the last look found it begun
        self._look_at = 0.0
        self._late: list[JobOutcome] = []
        self._process = process
        self._worker_count = worker_count
        self.busy_count = worker_count * THREAD_JOB_COUNT
        self._run: Callable[[Chunk], JobOutcome] | None = None
        self._begun_count = 0
        self._running_count = 0
        self._ended: list[JobOutcome] = []
        self.chunks: dict[Any, Chunk] = {}
        """By the greenlet that works on it."""

        self.breakers: dict[tuple[str, bool], BreakerTimes] = {}
        """By topic, and whether the message is for the handler with its own."""

    @property
    def hung_count(self) -> int:
        """Handlers that were given up and have not come back."""
        return self._hung.count

    def serve(self, run: Callable[[Chunk], JobOutcome]) -> None:
        """What a worker does with a chunk."""
        self._run = run

    def start(self) -> None:
        """Nothing."""

    def free_count(self) -> int:
        """Chunks that would find a worker now."""
        return self._worker_count - self._begun_count

    def submit(self, chunk: Chunk) -> None:
        """Begin a chunk; it takes a moment until a worker sees it."""
        self._begun_count += 1
        self._running_count += 1
        self._begun[chunk] = False
        self._world.begin_in_background(
            self._process, partial(self._work, chunk), after_s=self._world.random.random() * 0.0005
        )

    def take(self) -> list[JobOutcome]:
        """What ended since the last call."""
        ended, self._ended = self._ended, []
        for outcome in ended:
            del self._begun[outcome.chunk]
        ended += self._give_up()
        self._begun_count -= len(ended)
        ended += self._take_apart()
        for rest in filter(None, map(without_reported, ended)):
            for failed in rest.failed:
                for call in self._society.calls_of(rest.chunk, failed.job):
                    call.taken_ms = self._society.now_ms
        return ended

    def _take_apart(self) -> list[JobOutcome]:
        now, found = self._world.monotonic(), []
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            for chunk, is_long in self._begun.items():
                self._begun[chunk] = chunk.begun_at > 0
                if is_long and chunk.part is None:
                    found.append(take_apart(chunk, LOOK_S))
        return [part for part in found if part is not None]

    def _give_up(self) -> list[JobOutcome]:
        now = self._world.monotonic()
        late, self._late = self._late, []
        for outcome in late:
            self._hung.came_back(outcome, now)
        found = []
        for chunk in list(self._begun):
            given_up = self._hung.has_room and give_up(
                chunk, timeout_s=self._attempt_timeout_s, now=now, wall_now=self._world.wall_clock(), why="it hangs"
            )
            if given_up:
                del self._begun[chunk]
                self._hung.add(chunk, given_up.failed[-1].job, now)
                self._society.gave_up(chunk, given_up.failed[-1].job)
                found.append(given_up)
        return found

    def wait(self, timeout_s: float) -> None:
        """Return when something ended."""
        self._world.wait(lambda: bool(self._ended), timeout_s=timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for so long; what runs then goes on, and is told to nobody."""
        self._world.wait(lambda: not self._running_count, timeout_s=timeout_s)

    def _work(self, chunk: Chunk) -> None:
        assert self._run is not None
        self.chunks[getcurrent()] = chunk
        try:
            outcome = self._run(chunk)
        finally:
            self._running_count -= 1
            del self.chunks[getcurrent()]
        (self._ended if chunk.end() else self._late).append(outcome)
        self._world.after(0.0, self._world.look_around)


class Handling:
    """The handler of one consumer process."""

    def __init__(self, society: ConsumerSociety, process: Process, pool: SimulatedPool) -> None:
        self._society = society
        self._process = process
        self._pool = pool

    def handle(self, message: ReceivedMessage, context: Context) -> HandlerResult:
        """One message."""
        return self.handle_batch([message], context)

    def handle_batch(self, messages: Sequence[ReceivedMessage], context: Context) -> HandlerResult:
        """Messages of one key."""
        world = self._society.world
        if self._process.is_dead:
            raise ClientCrashedError(self._process.name)
        calls = self._begin(messages, context)
        planned = [self._society.planned(message) for message in messages]
        work_s = sum(plan.work_s for plan in planned)
        if calls[0].letter_offset is not None and self._society.is_healing:
            work_s = 0.0  # a replay ends well there, and within its deadline
        if work_s:
            world.pause(work_s)
        for call, plan in zip(calls, planned, strict=True):
            if plan.hangs and call.attempt == 1 and call.letter_offset is None:
                world.happened["handler hangs"] += 1
                world.pause(HANG_S)
        for call, plan in zip(calls, planned, strict=True):
            if plan.is_deadly and call.attempt == 1 and call.letter_offset is None:
                self._society.die_once(call.topic, call.partition, call.offset)
        word = ""
        for call, plan in zip(calls, planned, strict=True):
            word = word or self._word(call, plan)
        if word == "later" and self._is_postponing(calls[0]):
            word = "postponed"
        if self._society.is_away(messages[0].topic):
            word = "raise"
        for call in calls:
            call.ended_ms = self._society.now_ms
            call.result = word or "handled"
            if not word:
                self._write(call)
        # With a breaker messages may wait a shorter time in all; a partition that waits for them would meet its own limit.
        is_of_partition = calls[0].offset % 4 == 1 and calls[0].breaker is None
        return self._say(word, is_of_partition=is_of_partition)

    def _begin(self, messages: Sequence[ReceivedMessage], context: Context) -> list[HandlerCall]:
        society = self._society
        chunk = self._pool.chunks[getcurrent()]
        items = {id(item.record): item for job in chunk.jobs for item in items_of(job)}
        batch = society.next_number()
        calls = []
        for message in messages:
            record = message._record
            call = HandlerCall(
                self._process.name,
                chunk.owner.queue.writer,
                society.tenure(chunk.owner),
                message.topic,
                message.partition,
                message.offset,
                message.key,
                context.attempt,
                context.token,
                society.now_ms,
                batch,
                breaker=self._pool.breakers.get((message.topic, message.tags is not None)),
            )
            if isinstance(record, DeadLetterRecord):
                call.letter_offset = record._record.offset()
                call.request_offset = items[id(record)].offset
            calls.append(call)
        society.calls += calls
        first = calls[0]
        society.world.note(
            self._process.name,
            "handles",
            f"{first.topic}-{first.partition}@{[c.offset for c in calls]} {first.key!r} attempt {first.attempt} "
            f"token {first.token} letter {first.letter_offset}",
        )
        return calls

    def _word(self, call: HandlerCall, plan: PlannedMessage) -> str:
        """How it fails; "": it does not."""
        if call.letter_offset is not None:
            return plan.word if self._society.is_replay_failing(call, plan) else ""
        return plan.word if call.attempt <= plan.failing_count else ""

    def _is_postponing(self, call: HandlerCall) -> bool:
        """Every third message that asks for a delay says twice in a tenure that no attempt shall be counted."""
        if call.letter_offset is not None or call.offset % 3 != 2:
            return False
        place = call.tenure, call.topic, call.partition, call.offset
        said = [c for c in self._society.calls if c.result == "postponed"]
        is_so = sum((c.tenure, c.topic, c.partition, c.offset) == place for c in said) < POSTPONED_COUNT
        self._society.world.happened["handler postpones"] += is_so
        return is_so

    def _say(self, word: str, *, is_of_partition: bool) -> HandlerResult:
        if word == "postponed":
            return Later(delay_ms=LATER_MS, is_of_partition=is_of_partition)
        if word == "raise":
            raise HandlerError("as planned")
        if word == "retry":
            return Retry()
        if word == "later":
            return Retry(delay_ms=LATER_MS)
        return Reject("as planned") if word == "reject" else Ack()

    def _write(self, call: HandlerCall) -> None:
        if call.token is None:
            return
        row = (call.topic, call.partition, call.key)
        is_accepted = self._society.table.write(row, call.token)
        self._society.effects.append(
            Effect(
                self._society.now_ms,
                call.process,
                row,
                call.offset,
                call.token,
                is_accepted,
                call.letter_offset is not None,
            )
        )


class FencedTable:
    """A user's table whose writes compare their fencing token with the row's."""

    def __init__(self) -> None:
        self._fences: dict[tuple[str, int, bytes | None], int] = {}

    def write(self, row: tuple[str, int, bytes | None], token: int) -> bool:
        """`UPDATE … WHERE fence <= :token`; False when the row was written under a newer lease."""
        if self._fences.get(row, -1) > token:
            return False
        self._fences[row] = token
        return True
