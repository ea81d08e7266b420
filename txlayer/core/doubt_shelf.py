"""What one partition has on the doubt topic: its low-water mark, what must be written again, what waits for a topic.

Never here: what may happen to a transaction (transitions.py says it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from txlayer.core.target import UNKNOWN_TARGET, Target
from txlayer.core.transaction import Transaction
from txlayer.core.transitions import SETTLED, TxnState

REWRITE_LAG_MIN = 200_000
"""Doubt records that may be read in vain at a restart before the oldest living ones are written again."""


class DoubtShelf:
    """The transactions that stand on doubt, by the offset of their content."""

    def __init__(self) -> None:
        self.next_offset = 0  # where the next doubt record of this partition will stand, at least
        self.held: dict[str, Transaction] = {}
        # Side by side rather than as pairs: there may be a million of them.
        self._offsets: deque[int] = deque()
        self._transactions: deque[Transaction] = deque()
        self.count = 0  # transactions that stand on doubt

    def put(self, txn: Transaction, doubt_offset: int) -> None:
        """`txn` stands at `doubt_offset` now (for the first time, or written again)."""
        more = txn.extra()
        if not txn.is_in_doubt:
            self.count += 1
        more.doubt_offset = doubt_offset
        self._offsets.append(doubt_offset)
        self._transactions.append(txn)
        self.next_offset = max(self.next_offset, doubt_offset + 1)

    def put_restored(self, txn: Transaction) -> None:
        """A transaction found on doubt at a restart, in offset order."""
        self.count += 1
        self._offsets.append(txn.extra().doubt_offset)
        self._transactions.append(txn)
        if txn.state is TxnState.HELD:
            self.held[txn.key] = txn

    def ended(self) -> None:
        """One of them is over."""
        self.count -= 1

    @property
    def low(self) -> int:
        """Oldest doubt offset that a restart must read."""
        offsets, transactions = self._offsets, self._transactions
        while offsets and not _stands_at(offsets[0], transactions[0]):
            offsets.popleft()
            transactions.popleft()
        return offsets[0] if offsets else self.next_offset

    def to_write_again(self, count_max: int) -> list[Transaction]:
        """The oldest ones, when they keep far more records readable than there are living ones."""
        if self.next_offset - self.low < max(REWRITE_LAG_MIN, 8 * self.count):
            return []
        found: list[Transaction] = []
        for offset, txn in zip(self._offsets, self._transactions, strict=True):
            if len(found) == count_max:
                break
            if _stands_at(offset, txn):
                found.append(txn)
        return found

    def held_for(self, topics: Iterable[str]) -> list[Transaction]:
        """Held transactions that wait for one of `topics`, in the order of their decisions."""
        wanted = set(topics)
        return _by_decision(t for t in self.held.values() if not wanted.isdisjoint(t.topics))

    def held_in_vain(self, targets: Mapping[str, Target]) -> list[Transaction]:
        """Held transactions none of whose topics refuses for now, in the order of their decisions."""
        refusing = {
            topic
            for topic in {topic for txn in self.held.values() for topic in txn.topics}
            if (target := targets.get(topic, UNKNOWN_TARGET)).refusal is not None
            and not target.is_for_good
        }
        return _by_decision(t for t in self.held.values() if refusing.isdisjoint(t.topics))

    def held_too_long(self, *, now_ms: int, age_max_ms: int) -> list[Transaction]:
        """Held transactions older than `age_max_ms`."""
        return [t for t in self.held.values() if now_ms - t.extra().moved_ms >= age_max_ms]


def _by_decision(transactions: Iterable[Transaction]) -> list[Transaction]:
    return sorted(transactions, key=lambda t: t.extra().decided_at or (0, 0))


def _stands_at(offset: int, txn: Transaction) -> bool:
    return txn.state not in SETTLED and txn.more is not None and txn.more.doubt_offset == offset
