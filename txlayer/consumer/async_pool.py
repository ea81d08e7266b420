"""Coroutine handlers as tasks of the user's event loop. Never what follows from how a handler ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from txlayer.consumer.calls import Caller, Chunk, Failed, Job, Outcome
from txlayer.consumer.context import context_of
from txlayer.consumer.pools import Outcomes
from txlayer.core.handling import Ack

LOOK_S = 0.25
"""How often the deadlines of running tasks are looked at."""


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
    ) -> None:
        self._caller = caller
        self._loop = loop
        self._task_count_max = self.busy_count = task_count_max
        self._attempt_timeout_s = attempt_timeout_s
        self._outcomes = Outcomes()
        self._begun_count = 0
        self._inbox: deque[Chunk] = deque()
        self._tasks: dict[int, tuple[asyncio.Task[None], float]] = {}  # by the identity of the job
        self._done: dict[Chunk, tuple[list[Job], list[Failed]]] = {}
        self._is_watching = False
        self._ended = threading.Event()
        self.wait = self._outcomes.wait

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Nothing: the loop runs already."""

    def free_count(self) -> int:
        """Jobs that would run at once."""
        return self._task_count_max - self._begun_count

    def submit(self, chunk: Chunk) -> None:
        """Begin all jobs of a chunk."""
        self._begun_count += len(chunk.jobs)
        self._inbox.append(chunk)
        self._loop.call_soon_threadsafe(self._begin)

    def take(self) -> list[Outcome]:
        """What ended since the last call."""
        outcomes = self._outcomes.take()
        for outcome in outcomes:
            self._begun_count -= len(outcome.done) + len(outcome.failed) + len(outcome.not_run)
        return outcomes

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
                self._outcomes.put(Outcome(chunk, (), not_run=chunk.jobs))
            else:
                chunk.begun_at = now
                deadline = min(now + self._attempt_timeout_s, lease.valid_until)
                function = self._caller.bare_function(lease.topic)
                for job in chunk.jobs:
                    task = create_task(self._run(chunk, job, deadline, function))
                    tasks[id(job)] = task, deadline
        if tasks and not self._is_watching:
            self._is_watching = True
            self._loop.call_later(LOOK_S, self._watch)

    async def _run(
        self, chunk: Chunk, job: Job, deadline: float, function: Callable[..., Any] | None
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
        for task, deadline in list(self._tasks.values()):
            if deadline <= now:
                task.cancel("the attempt's deadline is over")
        self._is_watching = bool(self._tasks)
        if self._is_watching:
            self._loop.call_later(LOOK_S, self._watch)

    def _cancel_all(self) -> None:
        tasks = [task for task, _ in self._tasks.values()]
        if not tasks:
            self._ended.set()
            return
        for task in tasks:
            task.cancel("the consumer is closed")
        tasks[-1].add_done_callback(lambda _: self._ended.set())
