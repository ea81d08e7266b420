"""Coroutine handlers as tasks of the user's event loop. Never what follows from how a handler ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from txlayer.consumer.calls import Caller, Chunk, Failed, Job, Outcome, timed_out
from txlayer.consumer.context import Lease, context_of
from txlayer.consumer.pools import Hung, Outcomes
from txlayer.core.handling import Ack

LOOK_S = 0.25
"""How often the deadlines of running tasks are looked at."""
CANCEL_S = 1.0
"""How long a cancelled task may take to end before it is given up: it may have something to clean up."""


class AsyncPool:
    """A `Pool` of tasks. The engine's thread calls it, the loop's thread runs the handlers."""

    chunk_s = 0.0
    has_runs = False  # they run side by side

    def __init__(
        self,
        caller: Caller,
        *,
        loop: asyncio.AbstractEventLoop,
        task_count_max: int,
        attempt_timeout_s: float,
        hung_max: int,
    ) -> None:
        self._caller = caller
        self._loop = loop
        self._task_count_max = self.busy_count = task_count_max
        self._attempt_timeout_s = attempt_timeout_s
        self._outcomes = Outcomes()
        self._begun_count = 0
        self._inbox: deque[Chunk] = deque()
        self._tasks: dict[
            int, tuple[asyncio.Task[None], float, Lease]
        ] = {}  # by the identity of the job
        self._done: dict[Chunk, tuple[list[Job], list[Failed]]] = {}
        self._hung = Hung(count_max=hung_max)
        self._open: dict[Chunk, dict[int, Job]] = {}
        """Jobs without an end: whoever takes one out, its task or the engine's thread, says how it ended."""
        self._look_at = 0.0
        self._is_watching = False
        self._ended = threading.Event()
        self.wait = self._outcomes.wait

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Nothing: the loop runs already."""

    @property
    def hung_count(self) -> int:
        """Handlers that were given up and have not come back."""
        return self._hung.count

    def free_count(self) -> int:
        """Jobs that would run at once."""
        return self._task_count_max - self._begun_count

    def submit(self, chunk: Chunk) -> None:
        """Begin all jobs of a chunk."""
        self._begun_count += len(chunk.jobs)
        self._open[chunk] = {id(job): job for job in chunk.jobs}
        self._inbox.append(chunk)
        self._loop.call_soon_threadsafe(self._begin)

    def take(self) -> list[Outcome]:
        """What ended since the last call, and what hangs."""
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

    def _look(self, chunk: Chunk, now: float) -> Outcome | None:
        """Give up what of a chunk hangs: cancelled, and not ended; also where the whole loop hangs."""
        left = self._open[chunk]
        if not left:
            del self._open[chunk]
            return None
        if not chunk.begun_at or now - chunk.begun_at < self._attempt_timeout_s + CANCEL_S:
            return None
        started_ms = int((time.time() - (now - chunk.begun_at)) * 1000)
        why = f"no end within {self._attempt_timeout_s:g} s (attempt_timeout), and {CANCEL_S:g} s after its cancellation: its task was given up"  # fmt: skip
        failed = []
        for name, job in list(left.items()):
            if self._hung.has_room and left.pop(name, None) is not None:
                failed.append(timed_out(job, why=why, started_ms=started_ms))
                self._hung.add(chunk, job, now)
        return Outcome(chunk, (), failed, seconds=now - chunk.begun_at) if failed else None

    def close(self, timeout_s: float) -> None:
        """Cancel what still runs, and wait for it for at most so long."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._cancel_all)
        self._ended.wait(timeout_s)

    # --- the loop's thread --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        create_task, tasks, inbox = self._loop.create_task, self._tasks, self._inbox
        now = time.monotonic()
        while inbox:
            chunk = inbox.popleft()
            lease = chunk.lease
            if now >= lease.valid_until or lease.lost.is_set():
                self._open[chunk].clear()
                self._outcomes.put(Outcome(chunk, (), not_run=chunk.jobs))
            else:
                chunk.begun_at = now
                deadline = now + self._attempt_timeout_s
                function, left = self._caller.bare_function(lease.topic), self._open[chunk]
                for job in chunk.jobs:
                    task = create_task(self._run(chunk, job, deadline, function, left))
                    tasks[id(job)] = task, deadline, lease
        if tasks and not self._is_watching:
            self._is_watching = True
            self._loop.call_later(LOOK_S, self._watch)

    async def _run(
        self,
        chunk: Chunk,
        job: Job,
        deadline: float,
        function: Callable[..., Any] | None,
        left: dict[int, Job],
    ) -> None:
        caller = self._caller
        # One coroutine less around each handler that has nothing else around it.
        if function is None or isinstance(job, list):
            failed = await caller.run_async(chunk, job, deadline)
        else:
            began = time.monotonic()
            try:
                context = context_of(job.record, job.attempt_count + 1, deadline, chunk.lease)
                result = await function(context.message, context)
            except BaseException as exc:  # noqa: BLE001 - the user's code; whatever it raised is told
                failed = caller.failure(job, exc, began)
            else:
                is_done = result is None or type(result) is Ack
                failed = None if is_done else caller.refusal(job, result, began)
        if left.pop(id(job), None) is None:
            if self._tasks.get(id(job), (None,))[0] is asyncio.current_task():
                del self._tasks[id(job)]  # else its next attempt runs
            ended = Outcome(chunk, (job,)) if failed is None else Outcome(chunk, (), (failed,))
            self._outcomes.put_late(ended)
            return
        self._tasks.pop(id(job), None)
        if not self._done:
            self._loop.call_soon(self._tell)
        done = self._done.get(chunk)
        if done is None:
            done = self._done[chunk] = ([], [])
        if failed is None:
            done[0].append(job)
        else:
            done[1].append(failed)

    def _tell(self) -> None:
        told, self._done = self._done, {}
        now = time.monotonic()
        for chunk, (done, failed) in told.items():
            self._outcomes.put(Outcome(chunk, done, failed, seconds=now - chunk.begun_at))

    def _watch(self) -> None:
        now = time.monotonic()
        for task, deadline, lease in list(self._tasks.values()):
            if now >= deadline or now >= lease.valid_until:
                task.cancel("the attempt's deadline is over")
        self._is_watching = bool(self._tasks)
        if self._is_watching:
            self._loop.call_later(LOOK_S, self._watch)

    def _cancel_all(self) -> None:
        tasks = [task for task, *_ in self._tasks.values()]
        if not tasks:
            self._ended.set()
            return
        for task in tasks:
            task.cancel("the consumer is closed")
        tasks[-1].add_done_callback(lambda _: self._ended.set())
