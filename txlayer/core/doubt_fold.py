"""The doubt topic, read from its low-water mark: which transactions stand on it. Never their content, only where it is."""

from __future__ import annotations

from txlayer.core import codec
from txlayer.core.asleep import may_sleep, place_of, transaction_of, with_place
from txlayer.core.messages import DoubtSummary
from txlayer.core.transaction import Transaction, from_summary

_FIRST_CONTENT = b"/0"
"""How the key of a transaction's first content ends."""


class DoubtFold:
    """One partition of the doubt topic. Records come in offset order; the newest under a key wins."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.sleepers: dict[str, bytes] = {}
        """Those that need no object yet (asleep.py); a key stands here or among the transactions."""
        self.unreadable: dict[str, int] = {}
        """Key → where its content stands, for those whose newest summary nobody here can read: a later release may."""
        self._content_at: dict[
            bytes, int
        ] = {}  # key → offset of content 0, until its summary comes

    def fold(self, offset: int, raw_key: bytes | None, value: bytes | None) -> None:
        """One record; a null value is a tombstone."""
        if raw_key is not None and value is not None and raw_key.endswith(_FIRST_CONTENT):
            # Half of a million records that a restart reads; whose key is out of form nobody will ask for.
            self._content_at[raw_key[: -len(_FIRST_CONTENT)]] = offset
            return
        parsed = codec.parse_doubt_key(raw_key)
        if raw_key is None or parsed is None or parsed[1] is not None:
            return  # a record kept aside, for which nobody waits, or the content of another message
        key = parsed[0]
        if value is None:
            self.transactions.pop(key, None)
            self.sleepers.pop(key, None)
            self.unreadable.pop(key, None)
            self._content_at.pop(raw_key, None)
        else:
            content_at = self._content_at.pop(raw_key, None)
            stands_at = self._stood_at(key, offset) if content_at is None else content_at
            self._fold_summary(key, value, stands_at)

    def in_offset_order(self) -> list[Transaction]:
        """What stands on doubt now and does not sleep."""
        return sorted(self.transactions.values(), key=lambda t: t.extra().doubt_offset)

    def everybody(self) -> dict[str, Transaction]:
        """What stands on doubt now, the sleepers as transactions too."""
        woken = {key: transaction_of(key, sleeper) for key, sleeper in self.sleepers.items()}
        return {**self.transactions, **woken}

    def _fold_summary(self, key: str, value: bytes, doubt_offset: int) -> None:
        if self.unreadable:
            doubt_offset = min(doubt_offset, self.unreadable.pop(key, doubt_offset))
        if may_sleep(value):
            self.sleepers[key] = with_place(value, doubt_offset)
            if self.transactions:
                self.transactions.pop(key, None)
            return
        summary = codec.decode_summary(key, value)
        try:
            if isinstance(summary, DoubtSummary):
                self.transactions[key] = from_summary(summary, doubt_offset=doubt_offset)
                self.sleepers.pop(key, None)
                return
        except ValueError:
            pass  # a state or reason that a later version knows
        self.unreadable[key] = doubt_offset  # what was known of it before stands

    def _stood_at(self, key: str, offset: int) -> int:
        if (sleeper := self.sleepers.get(key)) is not None:
            return place_of(sleeper)
        before = self.transactions.get(key)
        return offset if before is None else before.extra().doubt_offset
