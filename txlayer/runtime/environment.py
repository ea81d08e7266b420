"""What a service has of the process around it: clocks, pauses, dice, names, background calls.

Coordinators and consumers ask the time, wait, draw and start background calls only through an `Environment`, so that a
simulated world can run the same code.
"""

from __future__ import annotations

import ctypes
import gc
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SIDE_BY_SIDE_MAX = 8
"""Maximum number of threads for parallel calls."""


class Running(Protocol[T_co]):
    """A call in the background."""

    def result(self) -> T_co:
        """Wait for its end. Returns its value, or raises its exception."""

    def exception(self) -> BaseException | None:
        """Wait for its end. Returns its exception."""


class Background(Protocol):
    """Runs calls in the background, beside the coordinator's thread."""

    def start(self, call: Callable[[], T], *, name: str) -> Running[T]:
        """Start a call. The process does not wait for it when it exits."""

    def run_parallel(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Run calls in parallel and return when all have ended. Raises the first exception."""


class Threads:
    """An `Background` of real threads."""

    def start(self, call: Callable[[], T], *, name: str) -> Running[T]:
        """Run the call in a thread of its own."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as exc:  # noqa: BLE001 - border of a thread: `result` raises it
                future.set_exception(exc)

        threading.Thread(target=run, name=name, daemon=True).start()
        return future

    def run_parallel(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Run the calls in at most `SIDE_BY_SIDE_MAX` threads."""
        with ThreadPoolExecutor(max_workers=min(len(calls), SIDE_BY_SIDE_MAX)) as executor:
            for running in [executor.submit(call) for call in calls]:
                running.result()


def draw_name() -> str:
    """Return a unique name."""
    return uuid.uuid4().hex


def keep_for_long() -> None:
    """Exclude a million long-lived open transactions from garbage collection, and return memory that recovery used to the system."""
    gc.collect()
    gc.freeze()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if give_back is not None:
        give_back(0)


@dataclass(frozen=True, slots=True)
class Environment:
    """The real environment by default."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
    draw_name: Callable[[], str] = draw_name
    keep_for_long: Callable[[], None] = keep_for_long
    background: Background = Threads()  # noqa: RUF009 - it has no state


REAL = Environment()
