"""`AsyncOrderedConsumer`: coroutine handlers, run as tasks of the user's event loop."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Literal, Self, Unpack

from txlayer.consumer.consumer import ConsumerOptions, ConsumerService, order_of
from txlayer.consumer.context import context_of
from txlayer.consumer.handlers import AsyncBatchHandlerFunction
from txlayer.consumer.pools import Caller, Chunk, Failed, HungHandlers, Job, JobOutcome, JobOutcomes, Pool, timed_out
from txlayer.consumer.pull import PulledMessage
from txlayer.core.retry import Ack, HandlerResult, NotBegun
from txlayer.errors import LifecycleError

LOOK_S = 0.25  # how often the deadlines of running tasks are checked
CANCEL_S = 1.0  # how long a cancelled task may take to clean up before it is given up


Call = tuple[asyncio.Task[Any] | None, float, Chunk]
"""A call of a handler that has not ended: its task, its deadline, and its chunk."""


class AsyncPool:
    """A `Pool` of tasks. The engine's thread calls it; the loop's thread runs the handlers.

    `is_idle` says of which tasks no attempt is under way: their time is not over, however long the loop was blocked. `answer_of`
    says what a program answered whose loop is blocked since; it counts once the chunk is cut, without the task's own end.
    """

    chunk_s = 0.0
    has_runs = False  # the jobs of a chunk run side by side

    def __init__(
        self,
        caller: Caller,
        *,
        loop: asyncio.AbstractEventLoop,
        task_count_max: int,
        attempt_timeout_s: float,
        hung_max: int,
        is_idle: Callable[[object], bool],
        answer_of: Callable[[object], HandlerResult | NotBegun] = lambda _task: None,
    ) -> None:
        self._caller = caller
        self._answer_of = answer_of
        self._is_idle = is_idle
        self._loop = loop
        self._task_count_max = self.busy_count = task_count_max
        self._attempt_timeout_s = attempt_timeout_s
        self._outcomes = JobOutcomes()
        self._begun_count = 0
        self._inbox: deque[Chunk] = deque()
        self._current_task = partial(asyncio.current_task, loop)
        self._entered: dict[int, Call] = {}  # by the identity of the job
        self._cancelled: dict[asyncio.Task[Any] | None, bool] = {}  # True: its deadline was over; False: its lease was
        self._done: dict[Chunk, tuple[list[Job], list[Failed], list[Job]]] = {}
        self._hung = HungHandlers(count_max=hung_max)
        self._open: dict[Chunk, dict[int, Job]] = {}
        """Jobs that have not ended; the thread or task that removes one reports how it ended."""
        self._look_at = 0.0
        self._is_watching = False
        self._ended = threading.Event()
        self.wait = self._outcomes.wait

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Do nothing: the loop is already running."""

    @property
    def hung_count(self) -> int:
        return self._hung.count

    def free_count(self) -> int:
        return self._task_count_max - self._begun_count

    def submit(self, chunk: Chunk) -> None:
        self._begun_count += len(chunk.jobs)
        self._open[chunk] = {id(job): job for job in chunk.jobs}
        self._inbox.append(chunk)
        self._loop.call_soon_threadsafe(self._begin)

    def take(self) -> list[JobOutcome]:
        """Outcomes since the last call, including those of handlers that hang."""
        outcomes = self._outcomes.take()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            for late in self._outcomes.take_late():
                self._hung.came_back(late, now)
            outcomes += [found for chunk in list(self._open) if (found := self._look(chunk, now))]
        for outcome in outcomes:
            self._begun_count -= len(outcome.done) + len(outcome.failed) + len(outcome.not_run)
        return outcomes

    def _look(self, chunk: Chunk, now: float) -> JobOutcome | None:
        """Give up the handlers of a chunk that were cancelled and did not end; it also works when the whole loop hangs."""
        left = self._open[chunk]
        if not left:
            del self._open[chunk]
            return None
        if chunk.is_cut and (answered := self._look_for_answers(chunk, left, now)):
            return answered
        if not chunk.begun_at or now - chunk.begun_at < self._attempt_timeout_s + CANCEL_S:
            return None
        started_ms = int((time.time() - (now - chunk.begun_at)) * 1000)
        why = f"no end within {self._attempt_timeout_s:g} s (attempt_timeout), and {CANCEL_S:g} s after its cancellation: its task was given up"
        failed = []
        for name, job in list(left.items()):
            call = self._entered.get(name)
            if call is None or call[2] is not chunk or self._is_idle(call[0]):
                continue  # another handler stops the loop: this one was not called, and has had no attempt
            if self._hung.has_room and left.pop(name, None) is not None:
                count = chunk.given.get(name, 0)
                failed.append(timed_out(job, why=why, started_ms=started_ms, count=count))
                self._hung.add(chunk, job, now)
        return JobOutcome(chunk, (), failed, seconds=now - chunk.begun_at) if failed else None

    def _look_for_answers(self, chunk: Chunk, left: dict[int, Job], now: float) -> JobOutcome | None:
        """What the program answered, while its loop does not run."""
        done, failed = list[Job](), list[Failed]()
        for name, job in list(left.items()):
            call = self._entered.get(name)
            if call is None or call[2] is not chunk or (answer := self._answer_of(call[0])) is None:
                continue
            if left.pop(name, None) is not None:
                if type(answer) is Ack:
                    done.append(job)
                else:
                    failed.append(self._caller.refusal(chunk, job, answer, chunk.begun_at))
        return JobOutcome(chunk, done, failed, seconds=now - chunk.begun_at) if done or failed else None

    def close(self, timeout_s: float) -> None:
        """Cancel the running handlers and wait up to `timeout_s` for them."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._cancel_all)
        self._ended.wait(timeout_s)

    # --- the loop's thread --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        create_task, inbox = self._loop.create_task, self._inbox
        now = time.monotonic()
        while inbox:
            chunk = inbox.popleft()
            chunk.begun_at = now
            deadline = now + self._attempt_timeout_s
            function, left = self._caller.bare_function(chunk.lease.topic), self._open[chunk]
            chunk.left, jobs = left, chunk.jobs
            chunk.jobs, chunk.turns = [], deque()  # a slow one keeps the chunk, and would keep all of them
            for job in jobs:
                create_task(self._run(chunk, job, deadline, function, left))
        if not self._is_watching:
            self._is_watching = True
            self._loop.call_later(LOOK_S, self._watch)

    async def _run(
        self, chunk: Chunk, job: Job, deadline: float, function: Callable[..., Any] | None, left: dict[int, Job]
    ) -> None:
        caller, lease, began = self._caller, chunk.lease, time.monotonic()
        # Looked at here: since the task was made, another handler may have stopped the loop.
        if chunk.is_cut or began >= deadline or began >= lease.valid_until or lease.lost.is_set():
            del left[id(job)]
            self._ends_of(chunk)[2].append(job)
            return
        task = self._current_task()
        self._entered[id(job)] = (task, deadline, chunk)
        # Without interceptors and the like, skip one coroutine per message.
        if function is None or isinstance(job, list):
            failed = await caller.run_async(chunk, job, deadline)
        else:
            try:
                context = context_of(job.record, job.attempt_count + 1, deadline, lease)
                result = await function(context.message, context)
            except BaseException as exc:  # noqa: BLE001 - the user's code; its error is reported
                failed = caller.failure(chunk, job, exc, began)
            else:
                is_done = result is None or type(result) is Ack
                failed = None if is_done else caller.refusal(chunk, job, result, began)
        is_late = self._cancelled.pop(task, None)
        if left.pop(id(job), None) is None:
            call = self._entered.get(id(job))
            if call is not None and call[2] is chunk:
                del self._entered[id(job)]  # otherwise it belongs to the next attempt
            self._outcomes.put_late(JobOutcome(chunk, (job,)) if failed is None else JobOutcome(chunk, (), (failed,)))
            del failed  # as below
            return
        del self._entered[id(job)]
        if is_late is not None:
            failed = self._interrupted(chunk, job, began, is_late=is_late)
        if failed is None:
            self._ends_of(chunk)[0].append(job)
        else:
            self._ends_of(chunk)[1].append(failed)
            del failed  # else its error would live until the collector of garbage looks: it knows this frame

    def _interrupted(self, chunk: Chunk, job: Job, began: float, *, is_late: bool) -> Failed:
        """How an attempt ended whose task was cancelled, and that ended in time then: whatever its handler said, it was interrupted.

        If only its lease was over, no attempt counts: its renewal may have been on its way.
        """
        if is_late:
            why = f"no end within {self._attempt_timeout_s:g} s (attempt_timeout): its task was cancelled"
            started_ms = int((time.time() - (time.monotonic() - began)) * 1000)
            return timed_out(job, why=why, started_ms=started_ms, count=chunk.given.get(id(job), 0))
        return self._caller.refusal(chunk, job, NotBegun(), began)

    def _ends_of(self, chunk: Chunk) -> tuple[list[Job], list[Failed], list[Job]]:
        """What is told of a chunk in this round of the loop: handled, failed, not run."""
        if not self._done:
            self._loop.call_soon(self._report_ends)
        ends = self._done.get(chunk)
        if ends is None:
            ends = self._done[chunk] = ([], [], [])
        return ends

    def _report_ends(self) -> None:
        ends, self._done = self._done, {}
        now = time.monotonic()
        for chunk, (done, failed, not_run) in ends.items():
            self._outcomes.put(JobOutcome(chunk, done, failed, not_run, seconds=now - chunk.begun_at))

    def _watch(self) -> None:
        now = time.monotonic()
        for task, deadline, chunk in list(self._entered.values()):
            # Once: another cancellation would interrupt its clean-up.
            is_late = now >= deadline
            is_over = is_late or now >= chunk.lease.valid_until
            if task and is_over and not task.cancelling() and not self._is_idle(task):
                task.cancel("the attempt's deadline is over" if is_late else "the lease is over")
                self._cancelled[task] = is_late
        self._is_watching = bool(self._entered or self._open)
        if self._is_watching:
            self._loop.call_later(LOOK_S, self._watch)

    def _cancel_all(self) -> None:
        tasks = [task for task, *_ in self._entered.values() if task]
        asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: self._ended.set())
        for task in tasks:
            task.cancel("the consumer is closed")


class AsyncOrderedConsumer(ConsumerService[Awaitable[HandlerResult], AsyncBatchHandlerFunction]):
    """`OrderedConsumer` for coroutine handlers: up to `in_flight_max` of them run as tasks of the running event loop.

    A handler that passes its deadline is cancelled, and its attempt has failed even if it ignores the cancellation.
    Arguments and guarantees are those of `OrderedConsumer`, without `workers`.
    """

    is_async: ClassVar[bool] = True

    def __init__(
        self,
        *,
        parallel_by: Literal["key", "partition"] = "key",
        null_keys: Literal["ordered", "free"] = "ordered",
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(order=order_of(parallel_by), null_keys=null_keys, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    async def run(self) -> None:
        """Handle messages until `stop`, `close` or cancellation; ends and raises as `OrderedConsumer.run`."""
        self._begin(is_waited_for=True)
        assert self._end is not None
        try:
            await self._end.wait()
        finally:
            await self._until_ended()
        self._raise_failure()

    async def start(self) -> None:
        """As `OrderedConsumer.start`. Without handlers, `poll` and `async for` take its messages."""
        self._begin(is_waited_for=False)

    async def poll(self, timeout: timedelta | None = None) -> PulledMessage | None:  # noqa: ASYNC109 - as the threads'
        """As `OrderedConsumer.poll`."""
        timeout_s = None if timeout is None else timeout.total_seconds()
        found = await self._opened_desk().take_async(timeout_s, has_ended=self._ended.is_set)
        if found is None and self._ended.is_set():
            self._raise_failure()
        return found

    async def __aiter__(self) -> AsyncIterator[PulledMessage]:
        """The messages, by `poll`, until the consumer ends."""
        while (message := await self.poll()) is not None:
            yield message

    async def join(self) -> None:
        """As `OrderedConsumer.join`, without a time-out."""
        if self._end is None:
            raise LifecycleError("it was not started", state="new")
        await self._end.wait()
        self._raise_failure()

    async def close(self) -> None:
        """As `OrderedConsumer.close`; handlers still running after `close_timeout` are cancelled."""
        self._stop_and_close_desk()
        if self._end is not None:
            await self._until_ended()
            self._raise_unreported_failure()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(self, *, is_waited_for: bool) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._launch(is_waited_for=is_waited_for)

    async def _until_ended(self) -> None:
        """Wait until the last handler has ended, even if the caller is cancelled repeatedly: the loop must keep running."""
        assert self._end is not None
        self._stopping.set()
        cancelled: asyncio.CancelledError | None = None
        while not self._end.is_set():
            try:
                await self._end.wait()
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled

    def _make_pool(self, caller: Caller) -> Pool:
        if self._loop is None:
            raise LifecycleError("it is started on an event loop", state="new")
        return AsyncPool(
            caller,
            loop=self._loop,
            task_count_max=self._config.in_flight_max,
            attempt_timeout_s=self._config.attempt_timeout.total_seconds(),
            hung_max=self._config.hung_handlers_max,
            is_idle=self._is_idle,
            answer_of=self._answer_of,
        )

    def _notify_end(self) -> None:
        if self._loop is not None and self._end is not None:
            # The loop may be closed if its program ended without waiting.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end.set)
