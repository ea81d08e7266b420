"""The one place where tests wait: a condition with a deadline that reports the last state seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.02

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, within: float, what: str) -> T:
    """The first true value of `condition()`; fails after `within` seconds with the last value seen.

    An exception of `condition` is not caught: a state that is expected for a while belongs into its value.
    """
    deadline = time.monotonic() + within
    while True:
        seen = condition()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within:g} s, last seen: {seen!r}")
        time.sleep(POLL_S)
