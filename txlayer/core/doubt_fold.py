"""The doubt topic, read from its low-water mark: which transactions stand on it. Never their content, only where it is."""

from __future__ import annotations

from collections.abc import Callable

from txlayer.core import codec
from txlayer.core.asleep import bytes_of, may_sleep, place_of, transaction_of, with_place
from txlayer.core.messages import DoubtSummary, Headers
from txlayer.core.transaction import RECORD_BYTES, Transaction, from_summary

LINES_MAX = 1 << 24
"""More lines than an op record can have."""

_FIRST_CONTENT = b"/0"
"""How the key of a transaction's first content ends."""


def _none() -> Headers | None:
    return None


class DoubtFold:
    """One partition of the doubt topic. Records come in offset order; the newest under a key wins."""

    def __init__(self, *, op_offset: int = 0) -> None:
        self._op_offset = op_offset
        self.lines_aside: dict[int, bytearray] = {}
        """Op offset, from the given one on → by line, 1 for one that was kept aside, also when a person has ended that record."""
        self.transactions: dict[str, Transaction] = {}
        self.sleepers: dict[str, bytes] = {}
        """Those that need no object yet (asleep.py); a key stands here or among the transactions."""
        self.rolled_back: set[str] = set()
        """Those that stood there on a line's word alone and were rolled back: a half record that comes later begins nothing."""
        self.unreadable: dict[str, int] = {}
        """Key → where its content stands, for those whose newest summary nobody here can read: a later release may."""
        # Key → (offset of content 0, bytes of the contents), until its summary comes.
        self._content_at: dict[bytes, tuple[int, int]] = {}

    def fold(
        self,
        offset: int,
        raw_key: bytes | None,
        value: bytes | None,
        headers: Callable[[], Headers | None] = _none,
    ) -> None:
        """One record; a null value is a tombstone. A content's `headers` are asked for, because they cost memory too."""
        if raw_key is not None and value is not None and raw_key.endswith(_FIRST_CONTENT):
            # Half of a million records that a restart reads; whose key is out of form nobody will ask for.
            self._content_at[raw_key[: -len(_FIRST_CONTENT)]] = (offset, _size(value, headers))
            return
        parsed = codec.parse_doubt_key(raw_key)
        if raw_key is None or parsed is None:
            self._fold_aside(raw_key)
            return
        key = parsed[0]
        if parsed[1] is not None:  # the content of a further message
            if value is not None and (first := self._content_at.get(key.encode())) is not None:
                self._content_at[key.encode()] = (first[0], first[1] + _size(value, headers))
            return
        if value is None:
            ended = self.transactions.pop(key, None)
            if ended is not None and not ended.seen:
                self.rolled_back.add(key)
            self.sleepers.pop(key, None)
            self.unreadable.pop(key, None)
            self._content_at.pop(raw_key, None)
        else:
            content_at = self._content_at.pop(raw_key, None)
            stands_at, size = self._stood_at(key, offset) if content_at is None else content_at
            self._fold_summary(key, value, stands_at, size)

    def _fold_aside(self, raw_key: bytes | None) -> None:
        origin, line = codec.parse_kept_aside_key(raw_key) or (None, None)
        if origin is None or line is None or origin.offset < self._op_offset or line >= LINES_MAX:
            return
        marks = self.lines_aside.setdefault(origin.offset, bytearray())
        if line >= len(marks):
            marks.extend(bytes(line + 1 - len(marks)))
        marks[line] = 1

    def in_offset_order(self) -> list[Transaction]:
        """What stands on doubt now and does not sleep."""
        return sorted(self.transactions.values(), key=lambda t: t.extra().doubt_offset)

    def everybody(self) -> dict[str, Transaction]:
        """What stands on doubt now, the sleepers as transactions too."""
        woken = {key: transaction_of(key, sleeper) for key, sleeper in self.sleepers.items()}
        return {**self.transactions, **woken}

    def _fold_summary(self, key: str, value: bytes, doubt_offset: int, size: int) -> None:
        if self.unreadable:
            doubt_offset = min(doubt_offset, self.unreadable.pop(key, doubt_offset))
        if may_sleep(value):
            self.sleepers[key] = with_place(value, doubt_offset, size)
            if self.transactions:
                self.transactions.pop(key, None)
            return
        summary = codec.decode_summary(key, value)
        try:
            if isinstance(summary, DoubtSummary):
                self.transactions[key] = from_summary(summary, doubt_offset=doubt_offset, size=size)
                self.sleepers.pop(key, None)
                return
        except ValueError:
            pass  # a state or reason that a later version knows
        self.unreadable[key] = doubt_offset  # what was known of it before stands

    def _stood_at(self, key: str, offset: int) -> tuple[int, int]:
        if (sleeper := self.sleepers.get(key)) is not None:
            return place_of(sleeper), bytes_of(sleeper)
        before = self.transactions.get(key)
        return (offset, 0) if before is None else (before.extra().doubt_offset, before.size)


def _size(value: bytes, headers: Callable[[], Headers | None]) -> int:
    return RECORD_BYTES + codec.content_bytes(value, headers())
