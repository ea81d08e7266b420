"""P6 over many transactions: who became visible after a later one of its ordering key. Pure; a bounded fold.

In the order of one partition of a real topic, and for one ordering key: of transactions with `order="commit"` each was
decided after those before it; and before one with `order="prepare"` no later one was stored, and no earlier one was undecided.
"""

from __future__ import annotations

from dataclasses import dataclass

from txlayer.core.judging import FOREVER, UNDECIDED, UNKNOWN, OrderMark
from txlayer.core.verdicts import Verdict


@dataclass(slots=True)
class OrderFold:
    """Takes marks ordered by key, topic, partition and offset; remembers one key on one partition at a time."""

    _key: str = ""
    _lane: tuple[str, int] = ("", -1)
    _decided: tuple[int, int] = (-1, -1)
    _stored: int = -1
    _undecided: int = FOREVER
    _unknown: int = FOREVER

    def is_late(self, mark: OrderMark) -> str:
        """Why this message came too late, or too early; "" when it did not."""
        self._enter(mark)
        if mark.role in (UNDECIDED, UNKNOWN):  # they stand before the visible ones of their key
            self._note(mark)
            return ""
        why = ""
        if mark.is_prepare and mark.is_in_half_order and self._undecided < mark.half_offset:
            why = f"the one stored at half offset {self._undecided}, an earlier one of its key, is undecided"
        if mark.decided_at is not None:
            if mark.decided_at < self._decided:
                offset, line = self._decided
                why = f"behind the one decided at op {offset}, line {line}, which is a later one of its key"
            self._decided = max(self._decided, mark.decided_at)
        if mark.is_in_half_order:
            if mark.half_offset < self._stored:
                why = f"behind the one stored at half offset {self._stored}, which is a later one of its key"
            if mark.is_prepare:
                self._stored = max(self._stored, mark.half_offset)
        return why

    def verdict_of_missing(self, mark: OrderMark, verdict: Verdict) -> Verdict:
        """Of a committed one in the order of half that is nowhere: it may wait for those before it."""
        self._enter(mark)
        if self._undecided < mark.half_offset:
            return Verdict.OPEN
        is_unknown = mark.is_in_half_order and self._unknown < mark.half_offset
        return Verdict.OUT_OF_WINDOW if is_unknown else verdict

    def _note(self, mark: OrderMark) -> None:
        if mark.role == UNDECIDED:
            self._undecided = min(self._undecided, mark.half_offset)
        else:
            self._unknown = min(self._unknown, mark.half_offset)

    def _enter(self, mark: OrderMark) -> None:
        if mark.key_hash != self._key:
            self._key, self._undecided, self._unknown = mark.key_hash, FOREVER, FOREVER
            self._lane = ("", -1)
        lane = (mark.place.topic, mark.place.partition)
        if lane != self._lane:
            self._lane, self._decided, self._stored = lane, (-1, -1), -1
