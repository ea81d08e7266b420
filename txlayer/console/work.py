"""Work that is not done in the event loop: questions to the cluster, with a deadline, and long jobs beside the pages."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from txlayer.errors import BrokerUnavailableError, RetriableError, TxLayerError

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("txlayer.console")

THREAD_COUNT = 8
WAITING_MAX = 32
"""Questions that are asked or wait for a thread; a further one is refused."""
DEADLINE_S = 15.0
"""How long a page waits for an answer. The question goes on: its thread is free when the client gives up."""


class Desk:
    """Asks for pages, each question in a thread of a few."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="txlayer-page")
        self._count = 0

    async def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What the function returns or raises.

        Raises:
            RetriableError: too many questions wait.
            BrokerUnavailableError: no answer within the deadline.
        """
        if self._count >= WAITING_MAX:
            raise RetriableError("many pages wait for the cluster; try again in a moment")
        self._count += 1
        future = self._threads.submit(partial(function, *arguments, **named))
        future.add_done_callback(self._is_done)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), DEADLINE_S)
        except TimeoutError:
            raise BrokerUnavailableError(
                "the cluster did not answer in time", waited_ms=int(DEADLINE_S * 1000)
            ) from None

    def close(self) -> None:
        """Take no more questions."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_done(self, _future: object) -> None:
        self._count -= 1  # one bytecode of one of eight threads; a page sees the new number a moment later


@dataclass(frozen=True, slots=True)
class Job:
    """A long piece of work, as it is now."""

    name: str
    started_ms: int
    subject: str = ""
    step: str = ""
    done: int = 0
    total: int = 0
    ended_ms: int | None = None
    result: Any = None
    problem: str = ""

    @property
    def is_running(self) -> bool:
        """True until it has ended."""
        return self.ended_ms is None


class Jobs:
    """The newest job of each name. One of a name runs at a time; nobody waits for it."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def newest(self, name: str) -> Job | None:
        """The job of this name that began last."""
        return self._jobs.get(name)

    def start(
        self,
        name: str,
        work: Callable[[Callable[[str, int, int], None]], Any],
        *,
        now_ms: Callable[[], int],
        subject: str = "",
    ) -> bool:
        """Begin it in a thread; `work` gets what notes its step, and how much of how much is done. False: it runs already."""
        with self._lock:
            before = self._jobs.get(name)
            if before is not None and before.is_running:
                return False
            self._jobs[name] = Job(name, now_ms(), subject)
        threading.Thread(target=self._run, args=(name, work, now_ms), name=f"txlayer-{name}", daemon=True).start()
        return True

    def _run(self, name: str, work: Callable[..., Any], now_ms: Callable[[], int]) -> None:
        begun = self._jobs[name]

        def note(step: str, done: int, total: int) -> None:
            self._jobs[name] = replace(begun, step=step, done=done, total=total)

        result, problem = None, ""
        try:
            result = work(note)
        except TxLayerError as exc:
            problem = str(exc)
        except Exception as exc:
            # Border of a thread: the page says that it failed, the log why.
            logger.exception("job.failed", extra={"job": name})
            problem = f"a defect of txlayer: {type(exc).__name__}; its log has the details"
        self._jobs[name] = replace(begun, ended_ms=now_ms(), result=result, problem=problem)
