"""The op records of one partition that were read and whose lines are not all applied, in the order of their offsets."""

from __future__ import annotations

from collections import deque
from typing import Any

from txlayer.core import codec
from txlayer.core.messages import Undecodable
from txlayer.core.transaction import RECORD_BYTES, OpPosition


class UnappliedOps:
    """Op records that wait for half, or for room in a batch.

    Attributes:
        records: offset, append time, lines and size of each. The ledger's hot path reads and removes them.
        line_count: of their lines; one without lines counts as one.
        byte_count: of their sizes.
    """

    __slots__ = ("_unreadable", "byte_count", "line_count", "records")

    def __init__(self) -> None:
        self.records: deque[tuple[int, int, list[str], int]] = deque()
        self.line_count = self.byte_count = 0
        self._unreadable: dict[int, tuple[Undecodable, Any]] = {}  # those without lines, by offset

    def add(self, offset: int, appended_ms: int, value: bytes | None, record: Any) -> None:
        """Add the next one."""
        lines = codec.split_ops(value)
        if isinstance(lines, Undecodable):
            self._unreadable[offset] = (lines, record)
            lines = []
        size = RECORD_BYTES if value is None else RECORD_BYTES + len(value)
        self.records.append((offset, appended_ms, lines, size))
        self.line_count += len(lines) or 1
        self.byte_count += size

    def take_unreadable(self, offset: int) -> tuple[Undecodable, Any]:
        """Why the record at this offset has no lines, and the record."""
        return self._unreadable.pop(offset)

    @property
    def oldest_ms(self) -> int | None:
        """Append time of the first one; None: there is none."""
        return self.records[0][1] if self.records else None

    def read_to(self, applied_to: OpPosition) -> int:
        """Offset behind the last record that was read."""
        return self.records[-1][0] + 1 if self.records else applied_to[0]

    def clear(self) -> None:
        """Forget them: they are read again."""
        self.records.clear()
        self.line_count = self.byte_count = 0
