"""What a coordinator has of the process around it: clocks, pauses, dice, threads. Never a rule, never Kafka.

Everything in this package that would ask the time, wait, draw or run something aside does it through these, so that a
simulated world can run the very same coordinator.
"""

from __future__ import annotations

import ctypes
import gc
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
"""Threads that run calls side by side."""


class Running(Protocol[T_co]):
    """A call that runs aside."""

    def result(self) -> T_co:
        """Wait for its end; its value, or its exception raised."""
        ...

    def exception(self) -> BaseException | None:
        """Wait for its end; its exception."""
        ...


class Aside(Protocol):
    """Runs calls beside the one thread of a coordinator."""

    def start(self, call: Callable[[], T], *, name: str) -> Running[T]:
        """Begin a call; the process does not wait for it when it ends."""
        ...

    def run_parallel(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Run calls side by side and return when all have ended; the first exception is raised."""
        ...


class Threads:
    """An `Aside` of real threads."""

    def start(self, call: Callable[[], T], *, name: str) -> Running[T]:
        """A thread of its own."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as exc:  # noqa: BLE001 - border of a thread: whoever asks for the result gets it
                future.set_exception(exc)

        threading.Thread(target=run, name=name, daemon=True).start()
        return future

    def run_parallel(self, calls: Sequence[Callable[[], Any]]) -> None:
        """At most `SIDE_BY_SIDE_MAX` threads."""
        with ThreadPoolExecutor(max_workers=min(len(calls), SIDE_BY_SIDE_MAX)) as executor:
            for running in [executor.submit(call) for call in calls]:
                running.result()


def draw_name() -> str:
    """A name that nobody had before."""
    return uuid.uuid4().hex


def keep_for_long() -> None:
    """A million open transactions are long-lived: the collector need not look at them again, and what reading them took is free."""
    gc.collect()
    gc.freeze()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if give_back is not None:
        give_back(0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The real ones, unless told otherwise."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    draw_name: Callable[[], str] = draw_name
    keep_for_long: Callable[[], None] = keep_for_long
    aside: Aside = Threads()  # noqa: RUF009 - it has no state


REAL = Surroundings()
