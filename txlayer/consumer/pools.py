"""Where handlers run: the port of all pools, and the one of threads. Never what follows from how a handler ended.

A handler that has not come back by its deadline is hung. Its attempt has failed, and another worker takes the place of its
own: a process is killed; a thread or a task cannot be ended, so it is given up and counted until it comes back.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from txlayer.consumer.calls import Chunk, Job, Outcome, give_up, items_of, place_of

logger = logging.getLogger("txlayer.consumer")

START_PAUSE_S = 1.0
"""Pause after a thread or a process could not be started, before another one is."""
LOOK_S = 0.05
"""How often it is looked for handlers that hang."""
THREAD_CHUNK_S = 0.001
"""Work of one chunk for a thread: handing over costs some 20 µs, and who waits behind a chunk waits for so long."""
THREAD_JOB_COUNT = 10
"""Jobs of 0.1 ms are that many a chunk. What is quicker waits for nobody, so the interpreter's lock lets one thread at a time
run it, and jobs for the others make nothing quicker."""


class Pool(Protocol):
    """Runs chunks beside the engine's thread, which alone calls this."""

    chunk_s: float
    """How much work a chunk should be; 0: jobs of a chunk run side by side, so its size does not matter."""
    has_runs: bool
    """True: a chunk may hold several messages of one key, for they are handled one after the other and all answered for."""
    busy_count: int
    """Jobs that keep every worker busy: with more of them nothing begins sooner."""

    @property
    def hung_count(self) -> int:
        """Handlers that were given up and have not come back."""
        ...

    def start(self) -> None:
        """Get ready."""
        ...

    def free_count(self) -> int:
        """Chunks that would find a worker now; jobs, where those of a chunk run side by side."""
        ...

    def submit(self, chunk: Chunk) -> None:
        """Begin a chunk."""
        ...

    def take(self) -> list[Outcome]:
        """What ended since the last call, in the order in which it ended."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when something ended, at the latest after `timeout_s`."""
        ...

    def close(self, timeout_s: float) -> None:
        """End; wait for at most so long for what runs. It may go on beyond that, and is told to nobody."""
        ...


class Outcomes:
    """Where workers put what ended and the engine's thread takes it."""

    def __init__(self) -> None:
        self._ended: deque[Outcome] = deque()
        self._late: deque[Outcome] = deque()
        self._news = threading.Event()

    def put(self, outcome: Outcome) -> None:
        """Tell of a chunk; any thread may."""
        self._ended.append(outcome)
        self._news.set()

    def take(self) -> list[Outcome]:
        """Everything that was told since the last call."""
        self._news.clear()
        ended = self._ended
        return [ended.popleft() for _ in range(len(ended))]

    def put_late(self, outcome: Outcome) -> None:
        """Tell that a handler that was given up has come back; any thread may."""
        self._late.append(outcome)
        self._news.set()

    def take_late(self) -> list[Outcome]:
        """Everything that came back since the last call."""
        return [self._late.popleft() for _ in range(len(self._late))]

    def wait(self, timeout_s: float) -> None:
        """Return when something was told."""
        if not self._ended:
            self._news.wait(timeout_s)


class Hung:
    """Handlers that were given up: counted, bounded, and reported. Used by the engine's thread.

    Args:
        count_max: with so many of them none is given up any more: each keeps a thread or a task, and what it holds.
    """

    def __init__(self, *, count_max: int) -> None:
        self._count_max = count_max
        # By both identities: a message that is tried again is the same job, in another chunk.
        self._given_up: dict[tuple[int, int], tuple[Chunk, float]] = {}

    @property
    def count(self) -> int:
        """How many have not come back."""
        return len(self._given_up)

    @property
    def has_room(self) -> bool:
        """True when another one may be given up."""
        return self.count < self._count_max

    def add(self, chunk: Chunk, job: Job, now: float) -> None:
        """The handler of this job of a chunk was given up."""
        self._given_up[id(chunk), id(job)] = chunk, now
        if not self.has_room:
            logger.critical("handlers.hung", extra={"hung_count": self.count})

    def came_back(self, late: Outcome, now: float) -> None:
        """The handler of one of these jobs has come back; what it says counts for nothing."""
        ended = [(job, "handled") for job in late.done]
        for job, result in ended + [(f.job, f.error_type) for f in late.failed]:
            _, at = self._given_up.pop((id(late.chunk), id(job)), (None, None))
            if at is not None:
                where = place_of(items_of(job)[0].record)
                extra = where | {"late_s": round(now - at, 3), "result": result}
                logger.warning("handler.ended_late", extra=extra)


class Workers(ABC):
    """What pools of threads share. The threads are made when they are first needed."""

    def __init__(self, *, worker_count: int, name: str) -> None:
        self._worker_count = worker_count
        self._name = name
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        self._outcomes = Outcomes()
        self._threads: list[threading.Thread] = []
        self._begun_count = 0
        self._start_at = 0.0
        self.wait = self._outcomes.wait

    def start(self) -> None:  # noqa: B027 - all there is to do
        """Nothing: threads begin with their first chunk."""

    @property
    def hung_count(self) -> int:
        """Handlers that were given up and have not come back."""
        return 0

    def free_count(self) -> int:
        """Chunks that would find a worker now."""
        return self._worker_count - self._begun_count

    def submit(self, chunk: Chunk) -> None:
        """Begin a chunk."""
        self._begun_count += 1
        self._chunks.put(chunk)
        self._add_thread()

    def take(self) -> list[Outcome]:
        """What ended since the last call."""
        outcomes = self._outcomes.take()
        self._begun_count -= len(outcomes)
        if not self._chunks.empty():
            self._add_thread()  # the machine may have refused the one that these wait for
        return outcomes

    def _add_thread(self) -> None:
        if not self._begun_count > len(self._threads) < self._worker_count:
            return
        now = time.monotonic()
        if now < self._start_at:
            return
        thread = threading.Thread(
            target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The machine may have no room for another one just now: the others do what they can, and it is tried again.
            logger.exception("thread.not_started")
            self._start_at = now + START_PAUSE_S
        else:
            self._threads.append(thread)

    def close(self, timeout_s: float) -> None:
        """End; threads that are still in a handler then are left behind (they do not hold the process up)."""
        give_up_at = time.monotonic() + timeout_s
        for _ in self._threads:
            self._chunks.put(None)
        for thread in self._threads:
            thread.join(max(give_up_at - time.monotonic(), 0))
        self._threads = []

    @abstractmethod
    def _work(self) -> None:
        """What a thread does: chunks of `_chunks` until a None, their outcomes to `_outcomes`."""


class ThreadPool(Workers):
    """A `Pool` of threads. One whose handler hangs is given up, and another one takes its place.

    Args:
        run: what a worker does with a chunk: `Caller.run`.
        attempt_timeout_s: a handler that takes longer is hung.
        hung_max: handlers that may be given up at a time.
    """

    chunk_s = THREAD_CHUNK_S
    has_runs = True

    def __init__(
        self,
        run: Callable[[Chunk], Outcome],
        *,
        worker_count: int,
        attempt_timeout_s: float,
        hung_max: int,
    ) -> None:
        super().__init__(worker_count=worker_count, name="txlayer-handler")
        self.busy_count = worker_count * THREAD_JOB_COUNT
        self._run = run
        self._attempt_timeout_s = attempt_timeout_s
        self._hung = Hung(count_max=hung_max)
        self._begun: dict[Chunk, None] = {}
        self._at: dict[Chunk, threading.Thread] = {}
        self._look_at = 0.0

    @property
    def hung_count(self) -> int:
        """Handlers that were given up and have not come back."""
        return self._hung.count

    def submit(self, chunk: Chunk) -> None:
        """Begin a chunk."""
        self._begun[chunk] = None
        super().submit(chunk)

    def take(self) -> list[Outcome]:
        """What ended since the last call, and what hangs."""
        outcomes = super().take()
        for outcome in outcomes:
            del self._begun[outcome.chunk]
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            outcomes += self._give_up(now)
        return outcomes

    def _give_up(self, now: float) -> list[Outcome]:
        for late in self._outcomes.take_late():
            self._hung.came_back(late, now)
        found = []
        for chunk in list(self._begun):
            outcome = self._hung.has_room and give_up(
                chunk, timeout_s=self._attempt_timeout_s, now=now, wall_now=time.time(),
                why=f"no answer within {self._attempt_timeout_s:g} s (attempt_timeout): its thread was given up",
            )  # fmt: skip
            if outcome:
                self._hung.add(chunk, outcome.failed[-1].job, now)
                self._threads.remove(self._at.pop(chunk))
                self._begun_count -= 1
                del self._begun[chunk]
                found.append(outcome)
        return found

    def _work(self) -> None:
        run, outcomes, at = self._run, self._outcomes, self._at
        thread = threading.current_thread()
        while (chunk := self._chunks.get()) is not None:
            at[chunk] = thread
            outcome = run(chunk)
            if not chunk.end():
                outcomes.put_late(outcome)
                return  # another one has its place
            del at[chunk]
            outcomes.put(outcome)
