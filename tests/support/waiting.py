"""The one way in which tests wait: for a condition, with an end. Time itself passes only where time is the subject."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from txlayer.testing import running
from txlayer.testing.running import POLL_S

__all__ = ["HANG_S", "POLL_S", "TimedOutError", "hang", "pause", "wait_until"]

T = TypeVar("T")

HANG_S = 600.0
"""Longer than any test waits for one that hangs; a process that nobody ends still ends."""


class TimedOutError(AssertionError):
    """A condition did not come true in time; nothing that was seen is wrong."""


def wait_until(condition: Callable[[], T], *, within: float, what: str, growing: Callable[[], int] | None = None) -> T:
    """Users' own `wait_until`, whose end is told from a failure of the condition itself.

    Raises:
        TimedOutError: the condition did not come true.
    """
    try:
        return running.wait_until(condition, within=within, what=what, growing=growing)
    except AssertionError as exc:
        trace = exc.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None and trace.tb_frame.f_code is running.wait_until.__code__:
            raise TimedOutError(str(exc)) from None
        raise


def pause(seconds: float) -> None:
    """Let time pass where it is the fault itself: an outage of so long, a slow client, the random moment of a kill.

    Never to wait for something: that has a condition.
    """
    time.sleep(seconds)


def hang() -> None:
    """Do not come back, as far as whoever called this is concerned."""
    time.sleep(HANG_S)
    raise AssertionError(f"nobody ended this within {HANG_S:g} s")
