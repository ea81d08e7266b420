"""The time of one partition by its broker's clock.

The wall clock of the coordinator decides nothing. It is only a bound: an append time far beyond it is one broker's clock
against this machine's, and it takes no effect before that time has come.
"""

from collections.abc import Callable

from txlayer.core.checks import CLOCK_ERROR_MS

WINDOW_S = 30.0
"""The coordinator uses values that it saw at most two windows ago. If this machine's clock runs too fast, the error is what it
gains in a minute, not what it gained since it started."""


def latest_ms(wall_clock: Callable[[], float]) -> int:
    """Append times beyond this one do not count now."""
    return int(wall_clock() * 1000) + CLOCK_ERROR_MS


class LogTime:
    """Milliseconds of the broker's clock, from append times and the monotonic clock; 0 until a record was seen. It never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at: float | None = None
        # How far append times were ahead of the monotonic clock: the maximum of this window and of the one before. Records of a
        # backlog give too low a value, so the maximum is closest to the truth.
        self._ahead_ms = 0.0
        self._ahead_before_ms = 0.0
        self._last_ms = 0

    def see(self, appended_ms: int) -> None:
        """Note that a record was appended at `appended_ms`."""
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
        self._last_ms = self.peek_ms()
        return self._last_ms

    def peek_ms(self) -> int:
        """The time now, for reading only: it does not change the state, and no decision may depend on it."""
        if self._began_at is None:
            return self._last_ms
        ahead_ms = max(self._ahead_ms, self._ahead_before_ms)
        return max(self._last_ms, int(self._clock() * 1000 + ahead_ms))
