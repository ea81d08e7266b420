"""What is done with a misplaced record: one in another partition than its own, or an op line that names no half record.

* Such a half record, and such a line, are quarantined on doubt and have no effect (`Ledger._quarantine_misplaced_line`).
* A line that names an offset beyond half's end may be early: it and those behind it wait for `misplaced_after`
  (`Shard.give_up_misplaced_lines`).
* A transaction that only such a line names is parked, so that a person can look for its messages.
"""

from __future__ import annotations

import zlib

from txlayer.core.messages import HalfHeader, OpMessage, ParkReason, Undecodable
from txlayer.core.partitions import partition_of_key_hash
from txlayer.core.transaction import OpPosition, Transaction
from txlayer.core.transitions import TxnState

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
    txn.extra().reason = ParkReason.MISPLACED
    return txn
