"""What is done with a misplaced record: one in another partition than its own, or an op line that names no half record.

* Such a half record, and such a line, are quarantined on doubt and have no effect (`Ledger._fold_half_with_care`,
  `Ledger._quarantine_misplaced_line`).
* A line that names an offset beyond half's end may be early: it and those behind it wait for `misplaced_after`
  (`LinesAheadOfHalf`).
* A transaction that only such a line names is parked, so that a person can look for its messages.
"""

import zlib
from collections import deque
from collections.abc import Callable

from txlayer.core.ledger.transaction import OpPosition, Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import HalfHeader, OpMessage, ParkReason, Undecodable
from txlayer.core.partitions import partition_of_key_hash

NAMES_NO_HALF = Undecodable("names a half record that does not exist", ParkReason.MISPLACED)


def own_partition(key: str, key_hash: str | None, *, partition_count: int) -> int:
    """The partition of the records of a transaction, by its key ("id/nonce") or by the hash of its ordering key."""
    if key_hash is not None:
        return partition_of_key_hash(key_hash, partition_count=partition_count)
    return zlib.crc32(key.partition("/")[0].encode()) % partition_count


def why_misplaced(header: HalfHeader, *, partition: int, partition_count: int) -> Undecodable | None:
    """Why a half record in this partition does not belong there; None: it does."""
    own = own_partition(header.key, header.options.key_hash, partition_count=partition_count)
    return None if own == partition else Undecodable(f"belongs into partition {own}", ParkReason.MISPLACED)


def parked_by_line(op: OpMessage, position: OpPosition, *, appended_ms: int) -> Transaction:
    """A parked transaction of which nothing is known but a misplaced line."""
    txn = Transaction(op.key, op.producer_group, "", -1, appended_ms, str(op.born_ms), position, [])
    txn.count = txn.seen = 0
    txn.state = TxnState.PARKED
    txn.ensure_extras().reason = ParkReason.MISPLACED
    return txn


class LinesAheadOfHalf:
    """Op lines of one partition that name offsets without a record: since when they wait, and when their waiting is over.

    The end of half is the high watermark when the patience is over: a record behind an open Kafka transaction exists, but is not
    read yet. Half may grow all the time, so lines are given up when half is read to that end, not to a later one. If it is paused,
    those are given up that name an offset from there on.
    Each line waits from the time at which it was read: lines behind others that wait have no additional wait.
    """

    __slots__ = ("_over", "_waits")

    def __init__(self) -> None:
        self._waits: deque[tuple[int, float]] = deque()  # op records before this offset are read, and since when
        # Op records before this offset have waited long enough, if half holds nothing for them up to the end that it had then.
        self._over: tuple[int, int] | None = None

    def clear(self) -> None:
        self._waits.clear()
        self._over = None

    def read_to(self, op_offset: int, now: float) -> None:
        """Op records before this offset are read, and some wait."""
        if not self._waits or op_offset > self._waits[-1][0]:
            self._waits.append((op_offset, now))

    def given_up_before(
        self, *, op_next: int, named: int, half_next: int, half_end: Callable[[], int], now: float, patience_s: float
    ) -> tuple[int, int] | None:
        """The op offset before which lines that wait are misplaced, if they name an offset from the other one on; None: there are none.

        The first line that waits names `named`. `half_end` asks the broker.
        """
        if self._over is None:
            before = 0
            while self._waits and now - self._waits[0][1] >= patience_s:
                before, _ = self._waits.popleft()
            if before <= op_next:
                return None
            self._over = before, half_end()
        over, end = self._over, self._over[1]
        # An offset before the end has been read: it holds a transaction marker, or a record that was given up.
        if half_next < end and named < end:
            return None
        self._over = None
        return over
