"""Contents of scheduled messages that are due soon: kept when they move to doubt, or read from there in one sweep in the order of the log.

Without them, each batch would read what it forwards where it lies. Where messages are committed in another order than they are due,
that is a sweep over much of doubt for a few of them. Where they are due in the order of the log, one right behind the other, each batch
reads on where the one before it ended, so that nothing is read ahead. Nothing depends on what is here: a batch fetches what is missing.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.readers import RUN_GAP_MAX, RangeReader
from txlayer.adapters.telemetry import Log
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.contents import Needed, fetch_contents, is_cut
from txlayer.core.ledger.batch import Batch
from txlayer.core.ledger.ledger import RELEASE_LINES_MAX, RELEASE_OFFSETS_MAX, DueContent, Ledger
from txlayer.core.ledger.transaction import Content, Transaction
from txlayer.errors import RetriableError

logger = Log("txlayer.coordinator")

AHEAD_MS = 120_000
"""What is due within this time is read ahead. The next sweep begins when half of the time that is covered has passed."""
AHEAD_SHARE = 4  # one part in so many of `content_bytes_max` is for it
AHEAD_COUNT_MAX = 50_000  # transactions of a worker whose contents are read ahead
LARGE_SHARE = 16
"""A transaction that needs more than one part in so many of its partition's share is not read ahead: it would displace others."""
NEAR_OFFSETS, APART_SHARE = 20, 8
"""If fewer than one in so many lie further behind the one that is due before them, or before it, they count as due in the order of the log.
With more, batches would read much that others need later, and all partitions would wait for it."""
SLICE_OFFSETS, SLICE_COUNT, SLICE_BYTES = 10_000, 2_000, 4 * 1024 * 1024
"""Offsets, transactions and bytes that one turn reads at most; the others wait meanwhile."""
PATIENCE_S = 1.0  # How long one turn waits for a broker. Then the sweep is given up.
RETRY_S = 5.0  # the shortest time from one sweep of a partition to the next
RELEASING_MS = 10_000
"""So long after its time a content is kept for a transaction that is being released, or waits for others of its key."""


class _Kept(NamedTuple):
    """The contents of one transaction."""

    time_ms: int
    size: int
    contents: list[Content]


@dataclass(slots=True)
class _Ahead:
    """Of one partition."""

    kept: dict[str, _Kept] = field(default_factory=dict)
    byte_count: int = 0
    again_at: float = float("-inf")  # when the next sweep begins
    swept_at: float = float("-inf")  # when the last one began

    def put(self, key: str, kept: _Kept) -> None:
        self.drop(key)
        self.kept[key] = kept
        self.byte_count += kept.size

    def drop(self, key: str) -> _Kept | None:
        kept = self.kept.pop(key, None)
        if kept is not None:
            self.byte_count -= kept.size
        return kept


class ReadAhead:
    """The contents that a coordinator has before their time, bounded for each partition. One thread uses it."""

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._connections, self._clock = config, connections, clock
        self.partitions: dict[int, _Ahead] = {}
        self._reader: RangeReader | None = None
        self._swept = 0  # the partition of this sweep
        self._left: deque[DueContent] = deque()  # what it reads, in the order of the log

    @property
    def byte_count(self) -> int:
        """Bytes in memory, as a ledger counts content."""
        return sum(ahead.byte_count for ahead in self.partitions.values())

    def begin(self, partitions: Iterable[int]) -> None:
        self.close()
        self.partitions = {p: _Ahead() for p in partitions}

    def close(self) -> None:
        self.partitions = {}
        self._left.clear()
        self._close_reader()

    def take(self, partition: int, key: str) -> list[Content] | None:
        """All contents of a transaction, in order, which are no longer kept here. None: they must be fetched."""
        ahead = self.partitions.get(partition)
        kept = None if ahead is None else ahead.drop(key)
        return None if kept is None else kept.contents

    def has(self, partition: int, key: str) -> bool:
        """True if `take` returns the contents of the transaction."""
        return key in self.partitions[partition].kept

    def published(self, partition: int, batch: Batch, *, now_ms: int) -> None:
        """A batch is in the log: forget what it ended, and keep what it moved to doubt and is due soon. Call it before `Ledger.published`."""
        ahead = self.partitions[partition]
        for txn in batch.ends:
            ahead.drop(txn.key)
        for move in batch.to_doubt.values():
            txn, time_ms = move.txn, _time_of(move.txn)
            if time_ms is None or time_ms > now_ms + AHEAD_MS:
                continue
            if isinstance(txn.content, list):
                self._keep(ahead, txn.key, _Kept(time_ms, txn.size, txn.content))
            elif txn.key not in ahead.kept:  # it was given another time, or was on doubt before its commit
                ahead.again_at = min(ahead.again_at, ahead.swept_at + RETRY_S)

    def read_on(self, ledgers: Mapping[int, tuple[Ledger, int]]) -> None:
        """Begin a sweep of the partition whose turn it is, or read one slice. `ledgers` contains (ledger, its time in ms, 0 if it is not known), by partition.

        A broker that does not answer for `PATIENCE_S` ends the sweep.

        Raises:
            NotAuthorisedError: doubt may not be read (any more).
        """
        if not self._left:
            with_time = [p for p, (_, now_ms) in ledgers.items() if now_ms]
            partition = min(with_time, key=lambda p: self.partitions[p].again_at, default=None)
            if partition is not None and self._clock() >= self.partitions[partition].again_at:
                ledger, now_ms = ledgers[partition]
                self._begin_sweep(partition, ledger, now_ms=now_ms)
            return
        try:
            self._read_slice(ledgers[self._swept][0])
        except RetriableError as exc:
            logger.warning("contents.not_read_ahead", extra={"partition": self._swept, "reason": str(exc)})
            self._left.clear()
        if not self._left:
            self._close_reader()

    @property
    def _bytes_max(self) -> int:
        return self._config.content_bytes_max // (AHEAD_SHARE * max(1, len(self.partitions)))

    @property
    def _count_max(self) -> int:
        return max(1, AHEAD_COUNT_MAX // max(1, len(self.partitions)))

    def _keep(self, ahead: _Ahead, key: str, kept: _Kept) -> None:
        """Keep contents if there is room, and doubt or half had all of them whole."""
        has_room = ahead.byte_count + kept.size <= self._bytes_max and len(ahead.kept) < self._count_max
        if has_room and not self._is_large(kept.size) and not any(is_cut(content.record) for content in kept.contents):
            ahead.put(key, kept)

    def _is_large(self, size: int) -> bool:
        return size > self._bytes_max // LARGE_SHARE

    def _begin_sweep(self, partition: int, ledger: Ledger, *, now_ms: int) -> None:
        """Choose what is due next, as much as there is room for, and forget what is due later or not at all."""
        ahead, count_max, bytes_left = self.partitions[partition], self._count_max, self._bytes_max
        until_ms = now_ms + AHEAD_MS
        found = ledger.due_until(until_ms, count_max=count_max + 1)
        due = [each for each in found if not self._is_large(each.size)]
        for number, each in enumerate(due):
            bytes_left -= each.size
            if bytes_left < 0 or number >= count_max:
                until_ms = each.time_ms
                break
        ahead.kept = {
            key: kept
            for key, kept in ahead.kept.items()
            if now_ms - RELEASING_MS <= kept.time_ms <= until_ms
            and (kept.time_ms <= now_ms or ledger.is_awaited(kept.time_ms, key))
        }
        ahead.byte_count = sum(kept.size for kept in ahead.kept.values())
        bytes_left = self._bytes_max - ahead.byte_count
        wanted: dict[str, DueContent] = {}
        for each in [] if _are_in_order(due, partition_count=len(self.partitions)) else due:
            is_full = each.size > bytes_left or len(ahead.kept) + len(wanted) >= count_max
            if each.time_ms > until_ms or is_full:
                break
            if each.key not in ahead.kept and each.key not in wanted:
                wanted[each.key] = each
                bytes_left -= each.size
        ahead.swept_at = self._clock()
        ahead.again_at = ahead.swept_at + max((until_ms - now_ms) / 2_000, RETRY_S)
        self._swept, self._left = partition, deque(sorted(wanted.values(), key=lambda each: each.doubt_offset))

    def _read_slice(self, ledger: Ledger) -> None:
        partition = self._swept
        ahead, wanted = self.partitions[partition], list[Needed]()
        end, byte_count = self._left[0].doubt_offset + SLICE_OFFSETS, 0
        while (
            self._left and self._left[0].doubt_offset < end and byte_count < SLICE_BYTES and len(wanted) < SLICE_COUNT
        ):
            due = self._left.popleft()
            txn = ledger.look_at(due.key)
            if txn is not None and txn.is_in_doubt and _time_of(txn) is not None and due.key not in ahead.kept:
                wanted.append((partition, txn, txn.seen))
                byte_count += due.size
        if self._reader is None:
            client = self._connections.make_reader("read_committed")
            self._reader = RangeReader(client, patience_s=PATIENCE_S, clock=self._clock)
        topics = self._config.topics
        found = fetch_contents(
            self._reader, wanted, half_topic=topics.half, doubt_topic=topics.doubt, forwarded=(), are_all_needed=False
        )
        for _, txn, _ in wanted:
            contents = found[partition, txn.key]
            if len(contents) == txn.seen:
                self._keep(ahead, txn.key, _Kept(_time_of(txn) or 0, txn.size, contents))

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _are_in_order(due: Sequence[DueContent], *, partition_count: int) -> bool:
    """True if batches read these on by themselves: they are due in the order in which they lie on doubt, near each other.

    What one turn may release of all partitions takes no more than `RELEASE_OFFSETS_MAX`.
    """
    distances = [later.doubt_offset - earlier.doubt_offset for earlier, later in pairwise(due)]
    apart_count = sum(not 0 <= distance <= NEAR_OFFSETS for distance in distances)
    # A batch reads no more than this where it skips something.
    read_to = [0, *accumulate(min(abs(distance), RUN_GAP_MAX) for distance in distances)]
    turn_count = max(1, RELEASE_LINES_MAX // partition_count)
    turns = zip(read_to, read_to[turn_count:] or read_to[-1:], strict=False)
    most_count = max(end - start for start, end in turns)
    return apart_count * APART_SHARE < len(due) and most_count <= RELEASE_OFFSETS_MAX // partition_count


def _time_of(txn: Transaction) -> int | None:
    """The next time of a transaction's messages. None: it has none, or they do not wait for it."""
    return txn.due.left[0] if txn.may_be_released and txn.due is not None else None
