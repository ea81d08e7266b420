"""In which turn those that may start are picked. Never who may (key_queues.py)."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Generic

from txlayer.core.items import Item, R


class Lanes(Generic[R]):
    """First come, first served, in two lanes: records that start, and retries and replays, which take turns.

    Two, so that retries can go on while nothing new may start, and so that thousands of failing keys do not make the
    others wait longer than twice their turn.
    """

    def __init__(self) -> None:
        self.ready: deque[Item[R]] = deque()
        """The lane of those that start."""
        self.again: deque[Item[R]] = deque()
        """The lane of retries and replays."""
        self._timers: list[tuple[int, int, Item[R]]] = []
        self._timer_count = 0  # of two with one time the first goes first; items have no order
        self._is_turn_of_again = True

    def __len__(self) -> int:
        return len(self.ready) + len(self.again)

    @property
    def waiting_count(self) -> int:
        """How many wait for their time."""
        return len(self._timers)

    @property
    def next_at_ms(self) -> int | None:
        """When the next one's time comes."""
        return self._timers[0][0] if self._timers else None

    def wait(self, item: Item[R], *, not_before_ms: int) -> None:
        """It may go again at that time."""
        self._timer_count += 1
        heapq.heappush(self._timers, (not_before_ms, self._timer_count, item))

    def wake(self, now_ms: int) -> None:
        """Whose time has come gets in lane."""
        timers = self._timers
        while timers and timers[0][0] <= now_ms:
            self.again.append(heapq.heappop(timers)[2])

    def take(self, count_max: int) -> list[Item[R]]:
        """The next ones."""
        ready, again = self.ready, self.again
        if not again:
            pick = ready.popleft
            return [pick() for _ in range(min(count_max, len(ready)))]
        taken: list[Item[R]] = []
        while len(taken) < count_max and (ready or again):
            # Kept between calls: who takes one at a time must meet both lanes, too.
            self._is_turn_of_again = not self._is_turn_of_again
            lane = again if again and (self._is_turn_of_again or not ready) else ready
            taken.append(lane.popleft())
        return taken

    def take_again(self, count_max: int) -> list[Item[R]]:
        """The next ones of retries and replays."""
        pick = self.again.popleft
        return [pick() for _ in range(min(count_max, len(self.again)))]

    def take_at(self, offset: int) -> list[Item[R]]:
        """The one at that offset, if it is ready."""
        for place, item in enumerate(self.ready):
            if item.offset == offset:
                del self.ready[place]
                return [item]
        return []

    def clear(self) -> None:
        """Nobody goes any more."""
        self.ready.clear()
        self.again.clear()
        self._timers.clear()
