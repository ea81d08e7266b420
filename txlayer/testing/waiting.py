"""Waiting in tests: for a condition, with a deadline that reports the last state seen. Never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.02

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    *,
    within: float,
    what: str,
    growing: Callable[[], int] | None = None,
) -> T:
    """The first true value of `condition()`; fails after `within` seconds with the last value seen.

    With `growing` the time begins anew whenever that number is greater than ever before: slow work on a busy machine is
    waited for, work that stands still is not. The number must have an end.

    An exception of `condition` is not caught: a state that is expected for a while belongs into its value.
    """
    deadline = time.monotonic() + within
    most: int | None = None
    while True:
        seen = condition()
        if seen:
            return seen
        now, grown = time.monotonic(), growing() if growing else None
        if grown is not None and (most is None or grown > most):
            most, deadline = grown, now + within
        if now > deadline:
            progress = "" if most is None else f" since it got to {most}"
            raise AssertionError(f"{what}: not within {within:g} s{progress}, last seen: {seen!r}")
        time.sleep(POLL_S)


def comes_true(condition: Callable[[], bool], *, within: float, poll_s: float = POLL_S) -> bool:
    """Whether `condition()` was true within so many seconds; it is asked once at least."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True
