"""What tells a second copy of a half record from a new transaction: the keys that were settled last, and how far copies may be.

A client may write one batch twice (librdkafka #4953), the second time up to its delivery timeout later. A copy of a settled
transaction's half record is recognised by its key: from memory while the ledger runs; after a restart from the half records
that begin transactions between `copies_from` and the low-water mark.
"""

from bisect import bisect_right
from collections.abc import Iterable

from txlayer.core.ledger.batch import NO_LIMIT
from txlayer.core.ledger.transitions import TxnState

DISTANCE_MAX = 20_000
"""Half offsets. A second copy that lies further behind the first copy may be taken for a new record. At the highest measured
rate, 1,500 transactions a second and partition, this is 13 s; a client that must find a new leader retries every second."""
DISTANCE_BYTES_MAX = 16 * 1024 * 1024
"""The same limit in bytes of half records. A restart reads this much more of each partition."""

_STEPS = 4

RECENT_COUNT_MAX = 50_000
"""Settled transactions per table and partition, in two tables. They tell a conflicting op line from one that has no half record."""
RECENT_SUM_MAX = 200_000
"""The same of all partitions of a process, which share it evenly: a transaction takes 180 B. A table may hold half of the distance in any
case: a smaller one would be looked through too often for what is within the distance."""


class HalfMarks:
    """Half offsets and the number of bytes before each; a few marks per distance."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = [(0, 0)]

    def begin(self, offset: int) -> None:
        """Start at `offset`; nothing before it is known."""
        self._marks = [(offset, 0)]

    def passed(self, offset: int, byte_count: int) -> None:
        """Half was read up to `offset`; `byte_count` is the number of bytes since `begin`."""
        last_offset, last_bytes = self._marks[-1]
        if offset - last_offset >= DISTANCE_MAX // _STEPS or byte_count - last_bytes >= DISTANCE_BYTES_MAX // _STEPS:
            self._marks.append((offset, byte_count))

    def copies_from(self, low_water: int) -> int:
        """Half offset from which a restart must read keys to recognise second copies behind `low_water` within the distance."""
        marks = self._marks
        at_low = bisect_right(marks, (low_water, NO_LIMIT)) - 1
        if at_low < 0:
            return low_water
        bytes_before = marks[at_low][1]
        first = at_low
        while first > 0 and not (
            low_water - marks[first][0] >= DISTANCE_MAX or bytes_before - marks[first][1] >= DISTANCE_BYTES_MAX
        ):
            first -= 1
        del marks[:first]
        return marks[0][0]


class RecentlySettled:
    """The transactions of one partition that were settled last: how each ended, and where in half it begins.

    There may be a hundred thousand, so one number per key holds both facts: of a committed one the half offset where it begins,
    of a rolled-back one -1 minus that offset. None: how it ended is not known, and it may be on doubt.

    Attributes:
        newer: by key. The ledger's hot paths read both tables, and write committed ones into this one.
        older: those before them.
    """

    __slots__ = ("_count_max", "_older_end", "_replay_end", "newer", "older")

    def __init__(self) -> None:
        self._count_max = RECENT_COUNT_MAX
        self.newer: dict[str, int | None] = {}
        self.older: dict[str, int | None] = {}
        self._older_end = 0  # how far half was read when the last of `older` was settled
        self._replay_end = 0

    def share_memory(self, *, partition_count: int) -> None:
        """Remember as many as one of so many partitions of a process may."""
        self._count_max = min(RECENT_COUNT_MAX, max(DISTANCE_MAX // 2, RECENT_SUM_MAX // partition_count))

    def begin_replay(self, half_next: int) -> None:
        """Half was read up to here before a restart: keys from before it are dropped by distance, as others are."""
        self._replay_end = self._older_end = half_next

    def add(self, key: str, state: TxnState, *, first_offset: int) -> None:
        """A transaction is settled; it begins at this half offset."""
        self.newer[key] = first_offset if state is TxnState.COMMITTED else -1 - first_offset

    def add_unknown(self, keys: Iterable[str]) -> None:
        """These transactions began before a restart, and are settled or on doubt."""
        self.older.update(dict.fromkeys(keys))

    def __contains__(self, key: str) -> bool:
        """True if a transaction of this key was settled, even if its final state is not remembered."""
        return key in self.newer or key in self.older

    def state_of(self, key: str) -> TxnState | None:
        """The final state of a settled transaction, as far as it is remembered."""
        fact = self.newer.get(key, self.older.get(key))
        if fact is None:
            return None
        return TxnState.COMMITTED if fact >= 0 else TxnState.ROLLED_BACK

    def forget_old_ones(self, *, half_next: int) -> None:
        """With too many, drop those that were settled earlier, but none within the distance of second copies."""
        if len(self.newer) <= self._count_max:
            return
        near = half_next - DISTANCE_MAX
        kept = {}
        if self._older_end > near:
            kept = {key: fact for key, fact in self.older.items() if self._first_offset(fact) >= near}
        self.older, self.newer = kept | self.newer, {}
        self._older_end = half_next

    def _first_offset(self, fact: int | None) -> int:
        if fact is None:
            return self._replay_end
        return fact if fact >= 0 else -1 - fact
