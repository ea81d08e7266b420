"""What the coordinators last said about a group's open transactions. Never: counting them."""

from __future__ import annotations

from typing import NamedTuple

from txlayer.core.messages import CheckRecord
from txlayer.errors import OpenTransactionLimitError

LIMIT_KEPT_S = 30.0
"""A coordinator repeats `on` every 10 s; one that is gone must not stop a group for ever."""

ON = "on"


class OpenLimit(NamedTuple):
    """The group has too many open transactions."""

    partitions: tuple[int, ...]  # half partitions that have reached the limit
    open_count: int  # in the fullest of them

    def error(self, group: str) -> OpenTransactionLimitError:
        """What entering a transaction raises."""
        return OpenTransactionLimitError(
            "the group has too many open transactions: settle some, or wait. Nothing was sent",
            producer_group=group,
            partitions=self.partitions,
            open_count=self.open_count,
        )


class HeardLimits:
    """By half partition. One thread uses it."""

    def __init__(self) -> None:
        self._on: dict[int, tuple[int, float]] = {}

    def hear(self, record: CheckRecord, now: float) -> None:
        """A limit was switched on, repeated, or switched off."""
        if record.text == ON:
            self._on[record.partition] = (record.number, now + LIMIT_KEPT_S)
        else:
            self._on.pop(record.partition, None)

    def current(self, now: float) -> OpenLimit | None:
        """The limit that holds now."""
        if not self._on:
            return None
        for partition in [p for p, (_, until) in self._on.items() if until <= now]:
            del self._on[partition]
        if not self._on:
            return None
        return OpenLimit(tuple(sorted(self._on)), max(count for count, _ in self._on.values()))
