"""Handlers of a simulated consumer: they succeed, fail, take long, end the process. Never: what follows from that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from tests.simulation.consumers.draw import HANG_TIMEOUT_S
from tests.simulation.consumers.plan import PlannedMessage
from tests.simulation.processes import Process
from tests.simulation.world import SimulatedWorld
from tests.support.consumer_history import BreakerTimes, Effect, HandlerCall
from txlayer.adapters.memory import ClientCrashedError
from txlayer.consumer import context as context_module
from txlayer.consumer import pull
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
from txlayer.consumer.pull import Desk, PulledMessage
from txlayer.core.dead_letters import DeadLetter
from txlayer.core.retry import Ack, HandlerResult, Later, NotBegun, Reject, Retry
from txlayer.errors import LifecycleError

if TYPE_CHECKING:
    from tests.simulation.consumers.society import ConsumerSociety, Crew

LATER = timedelta(milliseconds=200)
POSTPONED_COUNT = 2
HANG_S = 1_000_000.0
"""Longer than any world."""
SLOW_SHARE = 0.05
"""Of a program's takes that come late."""
TAKE_MARGIN_S = 0.4
"""So much less than half of its time may be left of a message that is taken."""


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
        is_idle: Callable[[object], bool],
    ) -> None:
        self._is_idle = is_idle
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
                if isinstance(failed.result, NotBegun):
                    continue
                for call in self._society.calls_of(rest.chunk, failed.job):
                    call.taken_ms = self._society.now_ms
        return ended

    def _take_apart(self) -> list[JobOutcome]:
        now, found = self._world.monotonic(), []
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            for chunk, is_long in self._begun.items():
                self._begun[chunk] = chunk.begun_at > 0
                if is_long and not chunk.told:
                    found.append(take_apart(chunk, LOOK_S))
        return [part for part in found if part is not None]

    def _give_up(self) -> list[JobOutcome]:
        now = self._world.monotonic()
        late, self._late = self._late, []
        for outcome in late:
            self._hung.came_back(outcome, now)
        found = []
        workers = {chunk: worker for worker, chunk in self.chunks.items()}
        for chunk in list(self._begun):
            if self._is_idle(workers.get(chunk)):
                continue
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

    def __init__(self, society: ConsumerSociety, crew: Crew, process: Process, pool: SimulatedPool) -> None:
        self._society = society
        self._crew = crew
        self._handed: dict[Any, tuple[Chunk, float]] = {}
        """By the record: what a program may take, and since when."""
        self._process = process
        self._pool = pool

    def handle(self, message: ReceivedMessage, context: Context) -> HandlerResult:
        """One message."""
        return self.handle_batch([message], context)

    def hear(self, letter: DeadLetter, message: ReceivedMessage, context: Context) -> HandlerResult:
        """A dead letter of the other group."""
        return self.handle_batch([message], context, heard=letter)

    def handle_batch(
        self, messages: Sequence[ReceivedMessage], context: Context, *, heard: DeadLetter | None = None
    ) -> HandlerResult:
        """Messages of one key."""
        if self._process.is_dead:
            raise ClientCrashedError(self._process.name)
        calls = self._begin(messages, context, self._pool.chunks[getcurrent()], heard=heard)
        word = self._work(calls, messages)
        for call in calls:
            call.ended_ms = self._society.now_ms
            call.result = word or "handled"
            if not word:
                self._write(call)
        result = self._result(calls[0], word)
        if result is None:
            raise HandlerError("as planned")
        return result

    # --- a program that takes its messages itself ---------------------------------------------------------------------

    def handing_over(self, desk: Desk) -> Callable[[ReceivedMessage, Context], Any]:
        """The handler that hands over to it."""

        def hand_over(message: ReceivedMessage, context: Context) -> Any:
            if self._process.is_dead:
                raise ClientCrashedError(self._process.name)
            self._handed[message._record] = self._pool.chunks[getcurrent()], self._society.now_ms
            return desk.hand_over(message, context)

        return hand_over

    def take_messages(self, desk: Desk, *, has_ended: Callable[[], bool]) -> None:
        """One loop of it, until its consumer has ended."""
        world, dice = self._society.world, self._society.world.random
        timeout_s = self._society.plan.settings.attempt_timeout_s
        while not has_ended():
            if timeout_s < HANG_TIMEOUT_S and dice.random() < SLOW_SHARE and not self._society.is_healing:
                world.happened["program is slow to take"] += 1
                world.pause(timeout_s * 0.7)
            pulled = desk.take(0.5, has_ended=has_ended)
            if pulled is not None:
                self._answer(pulled)

    def _answer(self, pulled: PulledMessage) -> None:
        chunk, ready_ms = self._handed[pulled._record]
        society, context, timeout_s = self._society, pulled.context, self._society.plan.settings.attempt_timeout_s
        if context._deadline - society.world.monotonic() < timeout_s / 2 - TAKE_MARGIN_S:
            society.world.failures.append(f"{self._process.name}: {pulled} was handed out too late")
        [call] = self._begin([pulled], context, chunk)
        call.ready_ms = ready_ms
        pulled.answer.add_done_callback(partial(self._over, call, context))
        word = self._work([call], [pulled])
        if not word:
            self._write(call)
        result = self._result(call, word)
        is_late = context.remaining_s <= 0 or context.lease_lost.is_set()
        for is_again in (False, True):
            try:
                if isinstance(result, Ack):
                    pulled.ack()
                elif isinstance(result, Retry | None):
                    pulled.retry(LATER if result and result.delay else None)
                elif isinstance(result, Later):
                    pulled.later(LATER)
                else:
                    pulled.reject(result.reason)
            except LifecycleError:
                society.world.happened["answer refused"] += not is_again
            else:
                call.ended_ms, call.given_up_ms, call.result = society.now_ms, None, word or "handled"
                if is_again or is_late:
                    society.world.failures.append(f"{self._process.name}: {pulled} took a late answer, or a second one")
            call.ended_ms = call.ended_ms or society.now_ms

    def _over(self, call: HandlerCall, context: Context, answer: Future[Any]) -> None:
        """The consumer has an answer: that of the program, which notes it, or its own."""
        if self._process.is_dead or call.given_up_ms is not None:
            return
        call.given_up_ms = self._society.now_ms
        lease = context._lease
        if lease.lost.is_set() or (not answer.cancelled() and isinstance(answer.result(), NotBegun)):
            call.result = "given back"
        elif lease.valid_until - self._society.world.monotonic() <= pull.MARGIN_S:
            call.ready_ms = float("-inf")  # its time was that of its lease

    # --- what a message does ------------------------------------------------------------------------------------------

    def _work(self, calls: Sequence[HandlerCall], messages: Sequence[ReceivedMessage]) -> str:
        """Take as long as is planned, and end the process if that is; how the attempt ends, "": well."""
        world = self._society.world
        planned = [self._society.planned(message) for message in messages]
        work_s = sum(plan.work_s for plan in planned)
        if calls[0].letter_offset is not None and self._society.is_healing:
            work_s = 0.0  # a replay ends well there, and within its deadline
        if work_s:
            world.pause(work_s)
        for call, plan in zip(calls, planned, strict=True):
            if plan.hangs and call.attempt == 1 and call.letter_offset is None:
                world.happened["handler hangs"] += 1
                settings = self._society.plan.settings
                world.pause(settings.attempt_timeout_s * 1.5 if settings.taker_count else HANG_S)
        for call, plan in zip(calls, planned, strict=True):
            if plan.is_deadly and call.attempt == 1 and call.letter_offset is None:
                self._society.die_once(call.topic, call.partition, call.offset)
        word = ""
        for call, plan in zip(calls, planned, strict=True):
            word = word or self._word(call, plan)
        if word == "later" and self._is_postponing(calls[0]):
            word = "postponed"
        return "raise" if self._society.is_away(messages[0].topic) else word

    def _begin(
        self, messages: Sequence[ReceivedMessage], context: Context, chunk: Chunk, *, heard: DeadLetter | None = None
    ) -> list[HandlerCall]:
        society = self._society
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
                heard=heard,
            )
            if isinstance(record, DeadLetterRecord):
                call.letter_offset = record._record.offset()
                call.request_offset = items[id(record)].offset
            calls.append(call)
        self._crew.calls += calls
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
        said = [c for c in self._crew.calls if c.result == "postponed"]
        is_so = sum((c.tenure, c.topic, c.partition, c.offset) == place for c in said) < POSTPONED_COUNT
        self._society.world.happened["handler postpones"] += is_so
        return is_so

    def _result(self, call: HandlerCall, word: str) -> HandlerResult:
        """What is answered; None: an exception."""
        if word == "postponed":
            # With a breaker messages may wait a shorter time in all; a partition that waits for them would meet its own limit.
            is_of_partition = call.offset % 4 == 1 and call.breaker is None
            return Later(LATER, is_of_partition=is_of_partition)
        if word == "raise":
            return None
        if word == "retry":
            return Retry()
        if word == "later":
            return Retry(LATER)
        return Reject("as planned") if word == "reject" else Ack()

    def _write(self, call: HandlerCall) -> None:
        if call.token is None:
            return
        row = (call.topic, call.partition, call.key)
        is_accepted = self._society.table.write(row, call.token)
        self._crew.effects.append(
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


class _Condition:
    """A condition among greenlets, which need no lock."""

    def __init__(self, world: SimulatedWorld, _lock: object) -> None:
        self._world = world
        self._count = 0

    def notify(self) -> None:
        self._count += 1
        self._world.after(0.0, self._world.look_around)

    def wait(self, timeout_s: float) -> bool:
        count = self._count
        return self._world.wait(lambda: self._count != count, timeout_s=timeout_s)


@contextmanager
def waiting_in(world: SimulatedWorld) -> Iterator[None]:
    """Messages are handed over, and their deadlines pass, in the world's time."""

    class Waited(Future[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.add_done_callback(lambda _: world.after(0.0, world.look_around))

        def result(self, timeout: float | None = None) -> Any:
            if not self.done():
                world.wait(self.done, timeout_s=timeout or 0.0)
            return super().result(0)

    clock = SimpleNamespace(monotonic=world.monotonic)
    threads = SimpleNamespace(current_thread=getcurrent, RLock=nullcontext, Condition=partial(_Condition, world))
    there: Any = (
        (pull, "time", clock),
        (context_module, "time", clock),
        (pull, "threading", threads),
        (pull, "Future", Waited),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in there]
    for module, name, ours in there:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for module, name, theirs in before:
            setattr(module, name, theirs)


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
