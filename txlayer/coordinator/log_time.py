"""The time as one partition tells it: append times lately seen, carried on by the monotonic clock.

The wall clock of the coordinator decides nothing. It is a bound: an append time far beyond it is one broker's word against
that of this machine, and nothing follows from either before that time has come.
"""

from __future__ import annotations

from collections.abc import Callable

from txlayer.core.cluster_facts import CLOCK_ERROR_MS

WINDOW_S = 30.0
"""What was seen one or two windows ago at most counts: a machine whose own clock runs too fast is wrong by what it gains
in a minute, not by what it gained since it started."""


def latest_ms(wall_clock: Callable[[], float]) -> int:
    """Append times beyond this one do not count now."""
    return int(wall_clock() * 1000) + CLOCK_ERROR_MS


class LogTime:
    """Milliseconds of the broker's clock; 0 until a record was seen. It never goes back: it stands still instead."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at: float | None = None
        # By how much append times were ahead of our clock: the largest of this window and of the one before it. Records
        # of a backlog say too little, so the largest is the nearest to the truth.
        self._ahead_ms = 0.0
        self._ahead_before_ms = 0.0
        self._told_ms = 0

    def see(self, appended_ms: int) -> None:
        """A record was appended at `appended_ms`."""
        at = self._clock()
        ahead_ms = appended_ms - at * 1000
        if self._began_at is None:
            self._began_at = at
            self._ahead_ms = self._ahead_before_ms = ahead_ms
        elif at - self._began_at >= WINDOW_S:
            self._began_at = at
            self._ahead_before_ms, self._ahead_ms = self._ahead_ms, ahead_ms
        else:
            self._ahead_ms = max(self._ahead_ms, ahead_ms)

    def now_ms(self) -> int:
        """The time now."""
        self._told_ms = self.peek_ms()
        return self._told_ms

    def peek_ms(self) -> int:
        """The same for whoever only looks: nothing is decided by it, so it changes nothing."""
        if self._began_at is None:
            return self._told_ms
        ahead_ms = max(self._ahead_ms, self._ahead_before_ms)
        return max(self._told_ms, int(self._clock() * 1000 + ahead_ms))
