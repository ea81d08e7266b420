"""Which of the transactions that are not settled are meant, and how many there are of each kind."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from txlayer.coordinator.overview import Overview, Standing
from txlayer.core.messages import ParkReason
from txlayer.core.transitions import TxnState

PARKED = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})
"""What `--parked` means, and what many at once are when no state is named."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a transaction must be like; the default lets every one through."""

    group: str | None = None
    topic: str | None = None
    states: frozenset[str] = frozenset()
    reasons: frozenset[ParkReason] = frozenset()
    older_ms: int | None = None
    younger_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """True when it lets every transaction through."""
        return self == Filter()

    def lets_through(self, found: Standing, *, now_ms: int) -> bool:
        """True for a transaction that is meant; ages count from the append time of its first half message."""
        txn, age_ms = found.txn, now_ms - found.txn.appended_ms
        reason = None if txn.more is None else txn.more.reason
        return (
            (self.group is None or txn.group == self.group)
            and (self.topic is None or self.topic in txn.topics)
            and (not self.states or found.state in self.states)
            and (not self.reasons or reason in self.reasons)
            and (self.older_ms is None or age_ms >= self.older_ms)
            and (self.younger_ms is None or age_ms < self.younger_ms)
        )


def oldest(found: Iterable[Standing], limit: int | None) -> list[Standing]:
    """The oldest of them, the oldest first; of a million no more than `limit` are kept in memory."""
    if limit is None:
        return sorted(found, key=_by_age)
    return heapq.nsmallest(limit, found, key=_by_age)


def _by_age(found: Standing) -> tuple[int, int, int]:
    return found.txn.appended_ms, found.partition, found.txn.first_offset


class Counts(NamedTuple):
    """What is not settled in a namespace, counted."""

    states: dict[tuple[str, str], int]
    """By producer group and state."""
    oldest_ms: dict[tuple[str, str], int]
    """When the oldest of each was stored."""
    doubt: Counter[int]
    """Transactions on doubt, by partition."""
    kept_aside: Counter[int]
    """Records kept aside, by partition."""


def count(overview: Overview) -> Counts:
    """Count what is not settled, and what was kept aside.

    Raises: as `Overview.standing`.
    """
    counts: Counter[tuple[str, str]] = Counter()
    oldest_ms: dict[tuple[str, str], int] = {}
    doubt: Counter[int] = Counter()
    kept_aside = Counter(found.place.partition for found in overview.kept_aside())
    for partition, state, txn in overview.standing():
        kind = (txn.group, state)
        counts[kind] += 1
        oldest_ms[kind] = min(txn.appended_ms, oldest_ms.get(kind, txn.appended_ms))
        doubt[partition] += txn.is_in_doubt
    return Counts(dict(counts), oldest_ms, doubt, kept_aside)
