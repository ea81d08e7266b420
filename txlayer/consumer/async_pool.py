"""Coroutine handlers as tasks of the user's event loop. Never what follows from how a handler ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

from txlayer.consumer.calls import Caller, Chunk, Failed, Job, Outcome
from txlayer.consumer.pools import Outcomes

LOOK_S = 0.25
"""How often the deadlines of running tasks are looked at."""


class AsyncPool:
    """A `Pool` of tasks. The engine's thread calls it, the loop's thread runs the handlers."""

    chunk_s = 0.0

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
        self._task_count_max = task_count_max
        self._attempt_timeout_s = attempt_timeout_s
        self._outcomes = Outcomes()
        self._begun_count = 0
        self._inbox: deque[Chunk] = deque()
        self._tasks: dict[asyncio.Task[None], float] = {}
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
                for job in chunk.jobs:
                    tasks[create_task(self._run(chunk, job, deadline))] = deadline
        if tasks and not self._is_watching:
            self._is_watching = True
            self._loop.call_later(LOOK_S, self._watch)

    async def _run(self, chunk: Chunk, job: Job, deadline: float) -> None:
        failed = await self._caller.run_async(chunk, job, deadline)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.pop(task, None)
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
        for task, deadline in list(self._tasks.items()):
            if deadline <= now:
                task.cancel("the attempt's deadline is over")
        self._is_watching = bool(self._tasks)
        if self._is_watching:
            self._loop.call_later(LOOK_S, self._watch)

    def _cancel_all(self) -> None:
        tasks = list(self._tasks)
        if not tasks:
            self._ended.set()
            return
        for task in tasks:
            task.cancel("the consumer is closed")
        tasks[-1].add_done_callback(lambda _: self._ended.set())
