"""The time as the log tells it: the newest append time seen, plus the monotonic time since. Never a wall clock."""

from __future__ import annotations

from collections.abc import Callable


class LogTime:
    """Milliseconds of the broker's clock; 0 until a record was seen."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._newest_ms = 0
        self._seen_at = 0.0

    def see(self, appended_ms: int) -> None:
        """A record was appended at `appended_ms`."""
        if appended_ms > self.now_ms():
            self._newest_ms, self._seen_at = appended_ms, self._clock()

    def now_ms(self) -> int:
        """The time now."""
        return (
            self._newest_ms + int((self._clock() - self._seen_at) * 1000) if self._newest_ms else 0
        )
