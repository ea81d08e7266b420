"""What the ledger of one partition remembers beside its tables: the transactions in half, by offset; op records that wait; the time,
as records tell it; and the keys that were settled last, which tell a second copy of a half record from a new transaction.

A client may write one batch twice (librdkafka #4953), the second time up to its delivery timeout later. A copy of a settled
transaction's half record is recognised by its key: from memory while the ledger runs; after a restart from the half records
that begin transactions between `copies_from` and the low-water mark.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable, Iterator
from itertools import chain, takewhile
from typing import Any

from txlayer.core import codec
from txlayer.core.checks import CLOCK_ERROR_MS, NEVER_MS, CheckSchedule
from txlayer.core.ledger.batch import NO_LIMIT
from txlayer.core.ledger.transaction import RECORD_BYTES, OpPosition, Transaction
from txlayer.core.ledger.transitions import SETTLED, TxnState
from txlayer.core.messages import Undecodable

SETTLED_IN_HALF_MAX = 1024
"""Settled transactions that stay in memory behind an open one, in addition to as many as are open."""


class UnsettledInHalf:
    """Transactions in half, by offset. Settled ones, and those that moved to doubt, are removed lazily.

    Attributes:
        immune: those whose immunity may last. Hot paths append to it.
        past_immunity: those before them. Their immunity is over, and open ones are in the schedule of check-backs.
    """

    __slots__ = ("_bare_until", "_schedule", "immune", "past_immunity")

    def __init__(self, schedule: CheckSchedule) -> None:
        self._schedule = schedule
        self.immune, self.past_immunity = deque[Transaction](), deque[Transaction]()
        self._bare_until = -1  # half offset; content in half up to here was dropped

    def __iter__(self) -> Iterator[Transaction]:
        """All that were not removed yet, oldest first."""
        return chain(self.past_immunity, self.immune)

    def end_immunity(self, now_ms: int, *, newest_ms: int) -> None:
        """Schedule transactions whose immunity is over. Those with an immunity of their own are already scheduled."""
        immune_after_ms = now_ms - self._schedule.policies.shortest_immunity_ms
        immune = self.immune
        # A transaction with an append time in the future must not hold up those behind it; its time comes later.
        latest_ms = max(now_ms, newest_ms)
        while immune and not immune_after_ms < immune[0].appended_ms <= latest_ms:
            txn = immune.popleft()
            self._schedule_open(txn)
            if not is_elsewhere(txn):
                self.past_immunity.append(txn)

    def _schedule_open(self, txn: Transaction) -> None:
        """Schedule an open transaction that leaves `immune`, because of its age or because it moved to doubt."""
        # By an operator: it is scheduled already.
        was_asked = txn.extras is not None and txn.extras.checked_count > 0
        if txn.state is TxnState.OPEN and txn.options.immunity_ms is None and not was_asked:
            self._schedule.add(txn)

    def unsettled(self, *, count: int) -> Iterator[Transaction]:
        """The unsettled transactions in half, oldest first. `count` is their number."""
        past, immune = self.past_immunity, self.immune
        while past and is_elsewhere(past[0]):
            past.popleft()
        while immune and is_elsewhere(immune[0]):
            # Nearly all are settled: this saves the call.
            if (txn := immune.popleft()).state not in SETTLED:
                self._schedule_open(txn)
        if len(past) + len(immune) > 2 * count + SETTLED_IN_HALF_MAX:
            # One old open transaction must not keep all later settled ones in memory.
            self.past_immunity = past = deque(t for t in past if not is_elsewhere(t))
            for txn in filter(is_elsewhere, immune):
                self._schedule_open(txn)
            self.immune = immune = deque(t for t in immune if not is_elsewhere(t))
        return (t for t in chain(past, immune) if not is_elsewhere(t))

    def drop_content(self, byte_count: int, *, needed: Container[str]) -> int:
        """Drop the oldest content until `byte_count` bytes are free, but of no key in `needed`. Returns the number of bytes."""
        # From the newest back: to scan all that were dropped before would cost more with every call.
        newest_first = chain(reversed(self.immune), reversed(self.past_immunity))
        left = list(takewhile(self._may_hold_content, newest_first))
        dropped_bytes = 0
        while left and dropped_bytes < byte_count:
            txn = left.pop()
            self._bare_until = txn.first_offset
            if txn.content is None or is_elsewhere(txn) or txn.key in needed:
                continue
            dropped_bytes += txn.size
            txn.content = None
        return dropped_bytes

    def _may_hold_content(self, txn: Transaction) -> bool:
        return txn.first_offset > self._bare_until


def is_elsewhere(txn: Transaction) -> bool:
    """True if half need not be read again for it."""
    return txn.state in SETTLED or txn.is_in_doubt


class UnappliedOps:
    """Op records that were read and whose lines are not all applied, in the order of their offsets: they wait for half, or for room.

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


class AppendTimes:
    """The broker's append times of half and op records; implausible ones do not count. Hot paths call `saw` and `of_half` only for a new time.

    Attributes:
        newest_ms: the newest append time that counts.
        half_ms: the same of half alone.
        latest_ms: limit of append times.
        now_ms: the latest time at which the ledger looked what is due.
    """

    __slots__ = ("_beyond_ms", "_untimely_count", "half_ms", "latest_ms", "newest_ms", "now_ms")

    def __init__(self) -> None:
        self.newest_ms = self.half_ms = self.now_ms = 0
        self.latest_ms = NEVER_MS
        self._untimely_count = self._beyond_ms = 0  # records whose time did not count; the newest

    def believe_until(self, latest_ms: int) -> None:
        """Set the upper limit of trusted append times; what one broker alone reports later has no effect before that time comes."""
        self.latest_ms = latest_ms
        if self.newest_ms < self._beyond_ms <= latest_ms:
            self.newest_ms = self._beyond_ms

    def saw(self, appended_ms: int) -> None:
        """Note an append time; one that is not newer changes nothing."""
        if appended_ms <= self.newest_ms:
            return
        if appended_ms <= self.latest_ms:
            self.newest_ms = appended_ms
        else:
            self._untimely_count += 1
            self._beyond_ms = appended_ms

    def of_half(self, appended_ms: int) -> int:
        """The append time; if the leader's clock is far behind, the newest time before it: no record arrives hours old."""
        if self.half_ms < appended_ms <= self.latest_ms:
            self.half_ms = appended_ms
        elif appended_ms < self.half_ms - CLOCK_ERROR_MS:
            self._untimely_count += 1
            return self.half_ms
        return appended_ms

    def take_untimely_count(self) -> int:
        """Number of records since the last call whose append time did not count."""
        count, self._untimely_count = self._untimely_count, 0
        return count

    def at_least(self, appended_ms: int) -> int:
        """The newest time that counts, and at least this append time, whichever clocks are trusted."""
        return max(self.newest_ms, self.now_ms, appended_ms)


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
