"""What one partition has on the doubt topic: its low-water mark, what must be written again, what waits for a topic.

Never here: what may happen to a transaction (transitions.py says it).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from operator import gt, itemgetter

from txlayer.core.asleep import place_of
from txlayer.core.target import UNKNOWN_TARGET, Target
from txlayer.core.transaction import Transaction
from txlayer.core.transitions import SETTLED, TxnState

REWRITE_LAG_MIN = 200_000
"""Doubt records that may be read in vain at a restart before the oldest living ones are written again."""


class DoubtShelf:
    """The transactions that stand on doubt, by the offset of their content."""

    def __init__(self) -> None:
        self.next_offset = 0  # where the next doubt record of this partition will stand, at least
        self.kept_readable_from: int | None = None
        """Doubt offset from which there are transactions that only a later release can read; it must find them."""
        self.held: dict[str, Transaction] = {}
        # Side by side rather than as pairs: there may be a million of them.
        self._offsets: deque[int] = deque()
        self._transactions: deque[Transaction] = deque()
        self.count = 0  # transactions that stand on doubt, the sleepers among them
        # Those that slept after a restart: by their keys, woken or not, and the first of them that may still stand.
        self._slept_offsets: array[int] = array("q")
        self._slept_keys: list[str] = []
        self._first_slept = 0
        self._sleepers: Mapping[str, bytes] = {}
        self._woken: Mapping[str, Transaction] = {}

    def wrote(self, record_count: int) -> None:
        """So many records more stand on doubt: whole transactions, summaries, ends, what is kept aside."""
        self.next_offset += record_count

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

    def put_asleep(
        self, sleepers: Mapping[str, bytes], *, woken: Mapping[str, Transaction]
    ) -> None:
        """Those that a restart found asleep; whoever wakes is found in `woken`, as long as he is not settled."""
        offsets, keys = array("q", map(place_of, sleepers.values())), list(sleepers)
        if any(map(gt, offsets, islice(offsets, 1, None))):
            # Seldom: a restart reads them in the order in which they went to doubt.
            in_order = sorted(range(len(keys)), key=offsets.__getitem__)
            offsets = array("q", [offsets[place] for place in in_order])
            keys = [keys[place] for place in in_order]
        self._slept_offsets, self._slept_keys = offsets, keys
        self._sleepers, self._woken = sleepers, woken
        self.count += len(keys)

    def ended(self) -> None:
        """One of them is over."""
        self.count -= 1

    @property
    def low(self) -> int:
        """Oldest doubt offset that a restart must read."""
        low = self._own_low()
        return low if self.kept_readable_from is None else min(low, self.kept_readable_from)

    def _own_low(self) -> int:
        offsets, transactions = self._offsets, self._transactions
        while offsets and not _stands_at(offsets[0], transactions[0]):
            offsets.popleft()
            transactions.popleft()
        low = offsets[0] if offsets else self.next_offset
        while self._first_slept < len(self._slept_keys):
            offset = self._slept_offsets[self._first_slept]
            if self._still_stands(offset, self._slept_keys[self._first_slept]):
                return min(low, offset)
            self._first_slept += 1
        return low

    def to_write_again(self, count_max: int) -> list[str]:
        """Keys of the oldest ones, when they keep far more records readable than there are living ones."""
        if self.next_offset - self._own_low() < max(REWRITE_LAG_MIN, 8 * self.count):
            return []
        living = (
            (offset, txn.key)
            for offset, txn in zip(self._offsets, self._transactions, strict=True)
            if _stands_at(offset, txn)
        )
        oldest = islice(merge(living, self._slept(), key=itemgetter(0)), count_max)
        return [key for _, key in oldest]

    def _slept(self) -> Iterator[tuple[int, str]]:
        for place in range(self._first_slept, len(self._slept_keys)):
            offset, key = self._slept_offsets[place], self._slept_keys[place]
            if self._still_stands(offset, key):
                yield offset, key

    def _still_stands(self, offset: int, key: str) -> bool:
        if key in self._sleepers:
            return True
        txn = self._woken.get(key)
        return txn is not None and _stands_at(offset, txn)

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
