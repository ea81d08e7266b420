"""P6 over many transactions: who became visible after a later one of its ordering key. Pure; a bounded fold.

In the order of one partition of a real topic, and for one ordering key: of transactions with `order="commit"` each was
decided after those before it; and before one with `order="prepare"` no later one was stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from txlayer.core.judging import OrderMark


@dataclass(slots=True)
class OrderFold:
    """Takes marks ordered by key, topic, partition and offset; remembers one key on one partition at a time."""

    _lane: tuple[str, str, int] = ("", "", -1)
    _decided: tuple[int, int] = (-1, -1)
    _stored: int = -1

    def is_late(self, mark: OrderMark) -> str:
        """Why this message came too late; "" when it did not."""
        lane = (mark.key_hash, mark.place.topic, mark.place.partition)
        if lane != self._lane:
            self._lane, self._decided, self._stored = lane, (-1, -1), -1
        why = ""
        if mark.half_offset < self._stored:
            why = f"behind the one stored at half offset {self._stored}, which is a later one of its key"
        if mark.decided_at is None:
            self._stored = max(self._stored, mark.half_offset)
        else:
            if mark.decided_at < self._decided:
                offset, line = self._decided
                why = f"behind the one decided at op {offset}, line {line}, which is a later one of its key"
            self._decided = max(self._decided, mark.decided_at)
        return why
