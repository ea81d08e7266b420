"""The one way in which tests wait: for a condition, with an end. Time itself passes only where time is the subject."""

import time
from collections.abc import Callable
from typing import TypeVar

from txlayer.testing.stage import POLL_S

__all__ = ["HANG_S", "POLL_S", "TimedOutError", "hang", "pause", "wait_until"]

T = TypeVar("T")

HANG_S = 600.0
"""Longer than any test waits for one that hangs; a process that nobody ends still ends."""


class TimedOutError(AssertionError):
    """A condition did not come true in time; nothing that was seen is wrong."""


def wait_until(condition: Callable[[], T], *, within: float, what: str, growing: Callable[[], int] | None = None) -> T:
    """The first true value of `condition()`, as users' own `wait_until`.

    With `growing` the time begins anew whenever that number is greater than ever before: slow work on a busy machine is
    waited for, work that makes no progress is not. The number must have an end.

    Raises:
        TimedOutError: the condition did not come true.
    """
    deadline = time.monotonic() + within
    most: int | None = None
    while not (seen := condition()):
        now, grown = time.monotonic(), growing() if growing else None
        if grown is not None and (most is None or grown > most):
            most, deadline = grown, now + within
        if now > deadline:
            progress = "" if most is None else f" since it got to {most}"
            raise TimedOutError(f"{what}: not within {within:g} s{progress}, last seen: {seen!r}")
        time.sleep(POLL_S)
    return seen


def pause(seconds: float) -> None:
    """Let time pass where it is the fault itself: an outage of so long, a slow client, the random moment of a kill.

    Never to wait for something: that has a condition.
    """
    time.sleep(seconds)


def hang() -> None:
    """Do not come back, as far as whoever called this is concerned."""
    time.sleep(HANG_S)
    raise AssertionError(f"nobody ended this within {HANG_S:g} s")
