"""Where handlers run: the port of all pools, and the one of threads. Never what follows from how a handler ended."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from txlayer.consumer.calls import Chunk, Outcome

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

    def wait(self, timeout_s: float) -> None:
        """Return when something was told."""
        if not self._ended:
            self._news.wait(timeout_s)


class Workers(ABC):
    """What pools of threads share. The threads are made when they are first needed."""

    def __init__(self, *, worker_count: int, name: str) -> None:
        self._worker_count = worker_count
        self._name = name
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        self._outcomes = Outcomes()
        self._threads: list[threading.Thread] = []
        self._begun_count = 0
        self.wait = self._outcomes.wait

    def start(self) -> None:  # noqa: B027 - all there is to do
        """Nothing: threads begin with their first chunk."""

    def free_count(self) -> int:
        """Chunks that would find a worker now."""
        return self._worker_count - self._begun_count

    def submit(self, chunk: Chunk) -> None:
        """Begin a chunk."""
        self._begun_count += 1
        if self._begun_count > len(self._threads) < self._worker_count:
            thread = threading.Thread(
                target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._chunks.put(chunk)

    def take(self) -> list[Outcome]:
        """What ended since the last call."""
        outcomes = self._outcomes.take()
        self._begun_count -= len(outcomes)
        return outcomes

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
    """A `Pool` of threads."""

    chunk_s = THREAD_CHUNK_S
    has_runs = True

    def __init__(self, run: Callable[[Chunk], Outcome], *, worker_count: int) -> None:
        super().__init__(worker_count=worker_count, name="txlayer-handler")
        self.busy_count = worker_count * THREAD_JOB_COUNT
        self._run = run

    def _work(self) -> None:
        run, put = self._run, self._outcomes.put
        while (chunk := self._chunks.get()) is not None:
            put(run(chunk))
