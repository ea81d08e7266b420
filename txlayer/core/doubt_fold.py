"""The doubt topic, read from its low-water mark: which transactions stand on it. Never their content, only where it is."""

from __future__ import annotations

from txlayer.core import codec
from txlayer.core.messages import DoubtSummary
from txlayer.core.transaction import Transaction, from_summary


class DoubtFold:
    """One partition of the doubt topic. Records come in offset order; the newest under a key wins."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
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
            self._content_at.pop(key, None)
        else:
            self._fold_summary(offset, key, value)

    def _fold_summary(self, offset: int, key: str, value: bytes) -> None:
        summary = codec.decode_summary(key, value)
        before = self.transactions.get(key)
        stood_at = before.extra().doubt_offset if before is not None else offset
        doubt_offset = self._content_at.pop(key, stood_at)
        if not isinstance(summary, DoubtSummary):
            self.unreadable_count += 1
            return
        try:
            self.transactions[key] = from_summary(summary, doubt_offset=doubt_offset)
        except ValueError:  # a state or reason that a later version knows
            self.unreadable_count += 1

    def in_offset_order(self) -> list[Transaction]:
        """What stands on doubt now."""
        return sorted(self.transactions.values(), key=lambda t: t.extra().doubt_offset)
