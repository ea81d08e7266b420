"""Pauses of what cannot be done now: a dead letter to write or to read, a queue to take over.

A try blocks the engine's thread until its time-out. So the places that failed are tried one by one, with growing pauses,
and all of them together have one pause: however many they are, handlers begin in most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from txlayer.adapters.ports import TopicPartition

HOLD_FIRST_MS = 100
"""Shortest pause after a failed try."""
HOLD_MAX_MS = 60_000
"""Longest pause between two tries of one place, and of all that failed: other keys wait for a seventh of the time."""


class _Hold(NamedTuple):
    """The pause of one place."""

    until_ms: int
    wait_ms: int


class Holds:
    """The places at which a try failed. Not thread-safe."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._held: dict[TopicPartition, _Hold] = {}  # the one whose try is the longest ago first
        self._any_from_ms = 0  # nothing is tried before
        self._held_from_ms = 0  # nothing that failed is tried before

    def __contains__(self, place: TopicPartition) -> bool:
        return place in self._held

    def until_ms(self, place: TopicPartition) -> int:
        """When this place may be tried."""
        held = self._held.get(place)
        return self._any_from_ms if held is None else max(held.until_ms, self._held_from_ms)

    def may_try(self, place: TopicPartition) -> bool:
        """True if this place may be tried now."""
        return self.until_ms(place) <= self._now_ms()

    def first(self, places: Collection[TopicPartition]) -> TopicPartition | None:
        """Of these, the held place that may be tried now and whose last try is the longest ago."""
        found = (place for place in self._held if place in places and self.may_try(place))
        return next(found, None)

    def failed(
        self, place: TopicPartition, *, took_ms: int, is_again: bool = True, wait_max_ms: int | None = None
    ) -> None:
        """A try failed: pause as long as it took, and, if the same was tried before, twice as long as then.

        `wait_max_ms`: a shorter limit, if nothing waits for the tries.
        """
        now_ms = self._now_ms()
        before = self._held.pop(place, None)
        wait_ms = max(took_ms, HOLD_FIRST_MS)
        if before is not None and is_again:
            wait_ms = max(wait_ms, min(2 * before.wait_ms, HOLD_MAX_MS))
        if wait_max_ms is not None:
            wait_ms = min(wait_ms, wait_max_ms)
        self._held[place] = _Hold(now_ms + wait_ms, wait_ms)
        self._any_from_ms = now_ms + took_ms
        self._held_from_ms = now_ms + wait_ms

    def passed(self, place: TopicPartition) -> None:
        """A try succeeded. If this place was held, the others may be well again, too: each may be tried now."""
        if self._held.pop(place, None) is not None:
            now_ms = self._now_ms()
            self._held_from_ms = now_ms
            self._held = {p: _Hold(now_ms, held.wait_ms) for p, held in self._held.items()}

    def keep(self, places: Iterable[TopicPartition]) -> None:
        """Forget all others."""
        kept = set(places)
        self._held = {place: held for place, held in self._held.items() if place in kept}
