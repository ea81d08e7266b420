"""The doubt topic, read from its low-water mark: which transactions stand on it. Never their content, only where it is."""

from __future__ import annotations

from txlayer.core import codec
from txlayer.core.asleep import may_sleep, place_of, transaction_of, with_place
from txlayer.core.messages import DoubtSummary
from txlayer.core.transaction import Transaction, from_summary


class DoubtFold:
    """One partition of the doubt topic. Records come in offset order; the newest under a key wins."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.sleepers: dict[str, bytes] = {}
        """Those that need no object yet (asleep.py); a key stands here or among the transactions."""
        self.unreadable_count = 0
        self._content_at: dict[str, int] = {}  # key → offset of content 0, until its summary comes

    def fold(self, offset: int, raw_key: bytes | None, value: bytes | None) -> None:
        """One record; a null value is a tombstone."""
        parsed = codec.parse_doubt_key(raw_key)
        if parsed is None:
            return  # a record kept aside: nobody waits for it
        key, index = parsed
        if index is not None:
            if index == 0 and value is not None:
                self._content_at[key] = offset
        elif value is None:
            self.transactions.pop(key, None)
            self.sleepers.pop(key, None)
            self._content_at.pop(key, None)
        else:
            self._fold_summary(offset, key, value)

    def in_offset_order(self) -> list[Transaction]:
        """What stands on doubt now and does not sleep."""
        return sorted(self.transactions.values(), key=lambda t: t.extra().doubt_offset)

    def everybody(self) -> dict[str, Transaction]:
        """What stands on doubt now, the sleepers as transactions too."""
        woken = {key: transaction_of(key, sleeper) for key, sleeper in self.sleepers.items()}
        return {**self.transactions, **woken}

    def _fold_summary(self, offset: int, key: str, value: bytes) -> None:
        doubt_offset = self._content_at.pop(key, None)
        if doubt_offset is None:
            doubt_offset = self._stood_at(key, offset)
        if may_sleep(value):
            self.sleepers[key] = with_place(value, doubt_offset)
            self.transactions.pop(key, None)
            return
        summary = codec.decode_summary(key, value)
        if not isinstance(summary, DoubtSummary):
            self.unreadable_count += 1
            return
        try:
            self.transactions[key] = from_summary(summary, doubt_offset=doubt_offset)
        except ValueError:  # a state or reason that a later version knows
            self.unreadable_count += 1
        else:
            self.sleepers.pop(key, None)

    def _stood_at(self, key: str, offset: int) -> int:
        if (sleeper := self.sleepers.get(key)) is not None:
            return place_of(sleeper)
        before = self.transactions.get(key)
        return offset if before is None else before.extra().doubt_offset
