"""Pauses of what cannot be done now: a dead letter to write or to read, a queue to take over.

A try blocks the engine's thread until its time-out. So the partitions that failed are tried one by one, with growing pauses,
and all of them together have one pause: however many they are, handlers begin in most of the time.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from txlayer.adapters.ports import TopicPartition

PAUSE_FIRST_MS = 100
"""Shortest pause after a failed try."""
PAUSE_MAX_MS = 60_000
"""Longest pause between two tries of one partition, and of all that failed: other keys wait for a seventh of the time."""


class _Pause(NamedTuple):
    """The pause of one partition."""

    until_ms: int
    wait_ms: int


class FailedTries:
    """The partitions for which a try failed. Not thread-safe."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._pauses: dict[TopicPartition, _Pause] = {}  # the one whose try is the longest ago first
        self._any_from_ms = 0  # nothing is tried before
        self._failed_from_ms = 0  # nothing that failed is tried before

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._pauses

    def until_ms(self, tp: TopicPartition) -> int:
        """When this partition may be tried."""
        pause = self._pauses.get(tp)
        return self._any_from_ms if pause is None else max(pause.until_ms, self._failed_from_ms)

    def may_try(self, tp: TopicPartition) -> bool:
        """True if this partition may be tried now."""
        return self.until_ms(tp) <= self._now_ms()

    def first(self, tps: Collection[TopicPartition]) -> TopicPartition | None:
        """Of these, the one that failed, may be tried now, and was tried the longest ago."""
        found = (tp for tp in self._pauses if tp in tps and self.may_try(tp))
        return next(found, None)

    def failed(
        self, tp: TopicPartition, *, took_ms: int, is_again: bool = True, wait_max_ms: int | None = None
    ) -> None:
        """A try failed: pause as long as it took, and, if the same was tried before, twice as long as then.

        `wait_max_ms`: a shorter limit, if nothing waits for the tries.
        """
        now_ms = self._now_ms()
        before = self._pauses.pop(tp, None)
        wait_ms = max(took_ms, PAUSE_FIRST_MS)
        if before is not None and is_again:
            wait_ms = max(wait_ms, min(2 * before.wait_ms, PAUSE_MAX_MS))
        if wait_max_ms is not None:
            wait_ms = min(wait_ms, wait_max_ms)
        self._pauses[tp] = _Pause(now_ms + wait_ms, wait_ms)
        self._any_from_ms = now_ms + took_ms
        self._failed_from_ms = now_ms + wait_ms

    def passed(self, tp: TopicPartition) -> None:
        """A try succeeded. If it failed before here, the others may be well again, too: each may be tried now."""
        if self._pauses.pop(tp, None) is not None:
            now_ms = self._now_ms()
            self._failed_from_ms = now_ms
            self._pauses = {p: _Pause(now_ms, pause.wait_ms) for p, pause in self._pauses.items()}

    def keep(self, tps: Iterable[TopicPartition]) -> None:
        """Forget all others."""
        kept = set(tps)
        self._pauses = {tp: pause for tp, pause in self._pauses.items() if tp in kept}
