"""The time of one partition as its records tell it: the broker's append times, of which implausible ones do not count."""

from txlayer.core.checks import CLOCK_ERROR_MS, NEVER_MS


class AppendTimes:
    """Append times of one partition's half and op records. Hot paths call `saw` and `of_half` only for a new time.

    Attributes:
        newest_ms: the newest append time that counts.
        half_ms: the same of half alone.
        latest_ms: limit of append times.
        now_ms: the latest time at which the ledger looked what is due.
    """

    __slots__ = ("_beyond_ms", "_untimely_count", "half_ms", "latest_ms", "newest_ms", "now_ms")

    def __init__(self) -> None:
        self.newest_ms = self.half_ms = self.now_ms = 0
        self.latest_ms = NEVER_MS
        self._untimely_count = self._beyond_ms = 0  # records whose time did not count; the newest

    def believe_until(self, latest_ms: int) -> None:
        """Set the upper limit of trusted append times.

        Only one broker reports later ones; they take no effect before that time comes.
        """
        self.latest_ms = latest_ms
        if self.newest_ms < self._beyond_ms <= latest_ms:
            self.newest_ms = self._beyond_ms

    def saw(self, appended_ms: int) -> None:
        """Note an append time; one that is not newer changes nothing."""
        if appended_ms <= self.newest_ms:
            return
        if appended_ms <= self.latest_ms:
            self.newest_ms = appended_ms
        else:
            self._untimely_count += 1
            self._beyond_ms = appended_ms

    def of_half(self, appended_ms: int) -> int:
        """The append time; if the leader's clock is far behind, the newest time before it: no record arrives hours old."""
        if self.half_ms < appended_ms <= self.latest_ms:
            self.half_ms = appended_ms
        elif appended_ms < self.half_ms - CLOCK_ERROR_MS:
            self._untimely_count += 1
            return self.half_ms
        return appended_ms

    def take_untimely_count(self) -> int:
        """Number of records since the last call whose append time did not count."""
        count, self._untimely_count = self._untimely_count, 0
        return count

    def at_least(self, appended_ms: int) -> int:
        """The newest time that counts, and at least this append time, whichever clocks are trusted."""
        return max(self.newest_ms, self.now_ms, appended_ms)
