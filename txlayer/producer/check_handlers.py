"""Call check handlers and interpret their answers. An exception or a time-out gives UNKNOWN, not COMMIT or ROLLBACK.

A call that does not end in time is abandoned: its later result is dropped. The responder's thread begins calls; their
outcomes go to `done`, from any thread.
"""

import asyncio
import inspect
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from txlayer.adapters.ports import Barrier
from txlayer.adapters.telemetry import Log
from txlayer.core.messages import UNKNOWN, Resolution, Source
from txlayer.errors import UsageError
from txlayer.runtime.environment import is_coroutine_function

logger = Log("txlayer.responder")

BATCH_COUNT_MAX = 1_000  # check-backs in one call of the barrier: as many as it settles in one database transaction
AHEAD_COUNT_MAX = 1_000  # calls that may wait for a worker; further check-backs wait where a newer one can replace them
BATCHES_AHEAD_MAX = 2
"""Calls of the barrier in flight; check-backs that arrive meanwhile are collected for the next one."""
CAUSE_LENGTH_MAX = 40  # longest cause in an op line
TIMED_OUT = "TimeoutError"  # the cause of an answer that did not arrive in time


class CheckRequest(NamedTuple):
    """A check-back: how did this transaction's local transaction end?"""

    txn_id: str
    nonce: str  # of the attempt: id and nonce together identify the transaction
    group: str
    born_at_ms: int  # the producer's clock when the transaction began
    number: int  # of the check-back, from 1 on
    topics: tuple[str, ...]  # the real topics of its messages
    traceparent: str = ""  # of the check-back, if the coordinator traces
    # What the transaction asked for with `check_with`: of its first message, and the user's id of the transaction.
    key: bytes | None = None
    tags: str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()  # only the chosen ones
    query_id: str | None = None
    content: bytes | None = None  # the value
    left_out: tuple[str, ...] = ()  # the parts that are too large for a question


CheckHandler = Callable[[CheckRequest], Resolution]
"""COMMIT if the local transaction is durable, ROLLBACK if it can no longer commit, otherwise UNKNOWN."""

AsyncCheckHandler = Callable[[CheckRequest], Resolution | Awaitable[Resolution]]
"""The same for asyncio; a coroutine function runs on the producer's loop."""


@dataclass(frozen=True, slots=True)
class Handling:
    """How check-backs are passed to an application."""

    answer: Callable[[Sequence[CheckRequest]], Any]  # one answer for each, in order; with `is_async` awaited
    source: Source
    request_count_max: int  # of one call
    call_count_max: int  # concurrent calls
    ahead_count_max: int  # calls that run or wait for a worker
    is_async: bool = False
    executor: Executor | None = None  # the user's, in place of threads of our own


class AnswerVerdict(NamedTuple):
    """The meaning of one answer."""

    resolution: Resolution
    cause: str = ""  # the reason for UNKNOWN


def handling_of(
    check: Callable[[CheckRequest], Any] | None,
    barrier: Barrier | None,
    *,
    worker_count: int,
    is_async: bool,
    executor: Executor | None = None,
) -> Handling | None:
    """How a producer with this handler or barrier answers check-backs; None if it has neither.

    Raises:
        UsageError: both are given, or this kind of producer cannot call the handler, or not on the executor.
    """
    is_on_loop = is_async and (check is None or is_coroutine_function(check))
    if executor is not None and (is_on_loop or (check is None and barrier is None)):
        raise UsageError("check_executor= runs a check handler that is a plain function, or the calls of a SqlBarrier")
    if check is None and barrier is None:
        return None
    if check is None:
        assert barrier is not None
        answer = barrier.resolve_many
        return Handling(
            partial(_ask_barrier, answer),
            Source.BARRIER,
            BATCH_COUNT_MAX,
            # One at a time: two calls would only wait for each other's rows.
            call_count_max=1,
            ahead_count_max=BATCHES_AHEAD_MAX,
            is_async=is_async,
            executor=executor,
        )
    if barrier is not None:
        raise UsageError(
            "check= and barrier=: with a barrier the handler is generated, and another could contradict it"
        )
    if not callable(check):
        raise UsageError(f"a check handler is called with a CheckRequest; {type(check).__name__} is not callable")
    is_coroutine = is_coroutine_function(check)
    if is_coroutine and not is_async:
        raise UsageError(
            "a coroutine function needs an event loop: use AsyncTransactionalProducer, or a plain function"
        )
    return Handling(
        partial(_ask_loop if is_coroutine else _ask, check),
        Source.CHECK,
        1,
        call_count_max=worker_count,
        ahead_count_max=AHEAD_COUNT_MAX,
        is_async=is_coroutine,
        executor=executor,
    )


def told_cause(source: Source, cause: str) -> str:
    """The cause in the op line of an UNKNOWN: who was asked and the type of the error, without its text."""
    who = "handler" if source is Source.CHECK else source.value
    return f"{who}: {re.sub(r'[^A-Za-z0-9_. ]', '_', cause)[:CAUSE_LENGTH_MAX]}"


def _verdict(said: object) -> AnswerVerdict:
    if isinstance(said, Resolution):
        return AnswerVerdict(said, "UNKNOWN" if said is UNKNOWN else "")
    if inspect.iscoroutine(said):
        said.close()  # it is not awaited, which Python would report later
    return AnswerVerdict(UNKNOWN, f"returned {type(said).__name__}")


def _ask(handler: Callable[[CheckRequest], Any], requests: Sequence[CheckRequest]) -> list[Any]:
    return [handler(request) for request in requests]


async def _ask_loop(handler: Callable[[CheckRequest], Awaitable[Any]], requests: Sequence[CheckRequest]) -> list[Any]:
    return [await handler(request) for request in requests]


def _ask_barrier(
    resolve_many: Callable[..., Any], requests: Sequence[CheckRequest]
) -> Any:  # a list, or what is awaited for one
    return resolve_many(requests, group=requests[0].group)


LOST_COUNT_MAX = 64  # threads that may hang in a handler and be replaced; at the limit, calls wait for one that returns
STUCK_AFTER_S = 30.0
"""A user's executor that has no worker for so long after a call was stale is busy with something else, or hangs. One that
refused a call is tried again after so long: the machine may have had no thread for it."""

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Call:
    """One call of the handler, for one or more check-backs."""

    requests: Sequence[CheckRequest]
    stale_at: float  # a worker drops the call after this time: the check-backs are asked again
    started_at: float | None = None
    is_done: bool = False
    is_given_up: bool = False
    task: asyncio.Task[None] | None = None


class CallOutcome(NamedTuple):
    """The result of a call."""

    call: Call
    said: object = None
    error: BaseException | None = None
    is_stale: bool = False  # the call was not made

    def verdicts(self) -> list[AnswerVerdict]:
        """One for each check-back; after an error, or without one valid resolution for each, all are UNKNOWN."""
        said, count = self.said, len(self.call.requests)
        if self.error is not None:
            return [AnswerVerdict(UNKNOWN, type(self.error).__name__)] * count
        if not isinstance(said, list | tuple) or len(said) != count:
            return [AnswerVerdict(UNKNOWN, f"returned {type(said).__name__}")] * count
        return [_verdict(one) for one in said]


Answer = Callable[[Sequence[CheckRequest]], Any]
Done = Callable[[CallOutcome], None]  # takes an outcome from any thread; it does not raise


class ThreadCallRunner:
    """Calls on daemon threads, created when needed; a thread that hangs in the handler is replaced."""

    def __init__(self, answer: Answer, *, call_count_max: int, done: Done, name: str, clock: Clock) -> None:
        self._answer = answer
        self._call_count_max = call_count_max
        self._done = done
        self._name = name
        self._clock = clock
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._begun_count = 0
        self._lost_count = 0

    @property
    def is_able(self) -> bool:
        """False if every thread hangs and no further one is allowed: other instances should then answer the check-backs."""
        with self._lock:
            return len(self._threads) > self._lost_count or self._lost_count <= LOST_COUNT_MAX

    def begin(self, call: Call) -> None:
        """Make the call as soon as a thread is free; it is stale at once if there is none, and the machine starts none."""
        with self._lock:
            self._begun_count += 1
            self._queue.put(call)
            unserved = self._add_thread()
        self._drop(unserved)

    def give_up(self, call: Call) -> bool:
        """Stop waiting for the call, and replace its thread."""
        with self._lock:
            if call.is_done:
                return False
            call.is_given_up = True
            self._begun_count -= 1
            self._lost_count += 1
            unserved = self._add_thread()
        self._drop(unserved)
        return True

    def close(self, timeout_s: float) -> None:
        """End the threads as they return; wait up to `timeout_s`."""
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._queue.put(None)
        end_at = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(end_at - time.monotonic(), 0.0))

    def _drop(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._done(CallOutcome(call, is_stale=True))

    def _add_thread(self) -> list[Call]:
        """Start a thread if one is missing. Returns the calls that wait, if there is no thread and the machine starts none."""
        serving_count = len(self._threads) - self._lost_count
        wanted_count = min(self._begun_count, self._call_count_max)
        if serving_count < wanted_count and self._lost_count <= LOST_COUNT_MAX:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The machine may have no room for another one just now: it is tried again with the next call.
                logger.exception("thread.not_started")
            else:
                self._threads.append(thread)
        unserved: list[Call] = []
        # Behind the limit of hanging threads, calls wait for one that returns.
        if len(self._threads) == self._lost_count <= LOST_COUNT_MAX:
            while not self._queue.empty():
                call = self._queue.get()
                if call is not None:
                    unserved.append(call)
        self._begun_count -= len(unserved)
        return unserved

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            outcome = made(call, self._answer, self._clock)
            unserved: list[Call] = []
            with self._lock:
                call.is_done = True
                is_late = call.is_given_up
                if is_late:
                    self._lost_count -= 1
                    self._threads.remove(threading.current_thread())
                    unserved = self._add_thread()  # calls may wait for this one, behind the limit
                else:
                    self._begun_count -= 1
            self._done(outcome)
            self._drop(unserved)
            if is_late:
                return  # another thread has replaced this one


class ExecutorCallRunner:
    """Calls on an executor of the user's. It says how many run at once, and its owner ends it."""

    def __init__(self, answer: Answer, *, executor: Executor, done: Done, clock: Clock) -> None:
        self._answer = answer
        self._executor = executor
        self._done = done
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[Call, None] = {}  # no worker has begun them; the oldest first
        self._lost_count = 0
        self._refused_at: float | None = None

    @property
    def is_able(self) -> bool:
        """False if the executor refuses calls, as one that is shut down, many of its calls hang, or no worker is free for long.

        Other instances should then answer the check-backs.
        """
        with self._lock:
            oldest = next(iter(self._waiting), None)
        now = self._clock()
        if self._refused_at is not None and now > self._refused_at + STUCK_AFTER_S:
            self._refused_at = None if self._takes_a_call() else now
        is_stuck = oldest is not None and now > oldest.stale_at + STUCK_AFTER_S
        return self._refused_at is None and not is_stuck and self._lost_count <= LOST_COUNT_MAX

    def begin(self, call: Call) -> None:
        """Make the call when the executor has a worker for it."""
        with self._lock:
            self._waiting[call] = None
        try:
            self._executor.submit(self._run, call).add_done_callback(partial(self._look_whether_it_ran, call))
        except Exception:
            # The user's code: shut down, full, or without a thread just now. Hundreds of calls may wait for it: only the first refusal is logged.
            if self._refused_at is None:
                logger.exception("executor.refused")
            self._not_made(CallOutcome(call, is_stale=True), is_refused=True)

    def give_up(self, call: Call) -> bool:
        """Stop waiting for the call; its worker stays with it."""
        with self._lock:
            if call.is_done:
                return False
            call.is_given_up = True
            self._lost_count += 1
        return True

    def close(self, timeout_s: float) -> None:
        """Nothing: the executor is its owner's."""

    def _run(self, call: Call) -> None:
        with self._lock:
            self._waiting.pop(call, None)
        outcome = made(call, self._answer, self._clock)
        with self._lock:
            call.is_done = True
            self._lost_count -= call.is_given_up
        self._done(outcome)

    def _look_whether_it_ran(self, call: Call, task: Future[None]) -> None:
        if task.cancelled():
            self._not_made(CallOutcome(call, is_stale=True), is_refused=True)
        elif (error := task.exception()) is not None:  # a pool of processes cannot take the call
            self._not_made(CallOutcome(call, error=error))

    def _not_made(self, outcome: CallOutcome, *, is_refused: bool = False) -> None:
        with self._lock:
            self._waiting.pop(outcome.call, None)
            if is_refused:
                self._refused_at = self._clock()
        self._done(outcome)

    def _takes_a_call(self) -> bool:
        try:
            self._executor.submit(int)
        except Exception:  # noqa: BLE001 - border: the user's code, as in `begin`
            return False
        return True


def made(call: Call, answer: Answer, clock: Clock) -> CallOutcome:
    """Make the call in this thread, unless it waited for too long."""
    now = clock()
    if now > call.stale_at:
        return CallOutcome(call, is_stale=True)
    call.started_at = now
    try:
        return CallOutcome(call, answer(call.requests))
    except BaseException as exc:  # noqa: BLE001 - border: the user's code; the answer is UNKNOWN, with its kind
        return CallOutcome(call, error=exc)


class LoopCallRunner:
    """Calls as tasks of the producer's loop; a call that is given up is cancelled."""

    def __init__(
        self, answer: Answer, *, call_count_max: int, done: Done, loop: asyncio.AbstractEventLoop, clock: Clock
    ) -> None:
        self._answer = answer
        self._call_count_max = call_count_max
        self._done = done
        self._loop = loop
        self._clock = clock
        # The following fields belong to the loop's thread.
        self._queue: deque[Call] = deque()
        self._running: set[Call] = set()

    @property
    def is_able(self) -> bool:
        """False once the loop is closed."""
        return not self._loop.is_closed()

    def begin(self, call: Call) -> None:
        """Make the call as soon as fewer than `call_count_max` run; a closed loop makes none."""
        if not self._soon(self._put, call):
            self._done(CallOutcome(call, is_stale=True))

    def give_up(self, call: Call) -> bool:
        """Stop waiting for the call, and cancel its task."""
        call.is_given_up = True
        self._soon(self._cancel, call)
        return True

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 - the protocol's: a loop that ends takes its tasks along
        """Start no more calls, and cancel the running ones."""
        self._soon(self._cancel_all)

    def _soon(self, call: Callable[..., object], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return False  # the loop is closed
        return True

    # --- the loop's thread --------------------------------------------------------------------------------------------

    def _put(self, call: Call) -> None:
        self._queue.append(call)
        self._start_next()

    def _start_next(self) -> None:
        while self._queue and len(self._running) < self._call_count_max:
            call = self._queue.popleft()
            if self._clock() > call.stale_at:
                self._done(CallOutcome(call, is_stale=True))
                continue
            self._running.add(call)
            call.started_at = self._clock()
            call.task = self._loop.create_task(self._run(call))

    async def _run(self, call: Call) -> None:
        try:
            outcome = CallOutcome(call, await self._answer(call.requests))
        except BaseException as exc:  # noqa: BLE001 - border: the user's code, also cancelled; the answer is UNKNOWN
            outcome = CallOutcome(call, error=exc)
        self._done(outcome)
        self._leave(call)

    def _leave(self, call: Call) -> None:
        if call in self._running:
            self._running.discard(call)
            self._start_next()

    def _cancel(self, call: Call) -> None:
        if call.task is not None:
            call.task.cancel()
        self._leave(call)  # even if it ignores the cancellation

    def _cancel_all(self) -> None:
        self._queue.clear()
        for call in list(self._running):
            if call.task is not None:
                call.task.cancel()


CallRunner = ThreadCallRunner | ExecutorCallRunner | LoopCallRunner  # makes a limited number of concurrent calls
