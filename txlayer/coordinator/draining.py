"""What a namespace still has to do before its topics may change. It reads and writes nothing else. Never: waiting.

Drained means: nothing stands open, and behind the stored positions lies no record, neither of half nor of op. Then no
coordinator will ever read a record of before again, and the number of partitions, which says where a transaction lives,
may change.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from txlayer.adapters.ports import CoordinatorConnections, TopicPartition
from txlayer.adapters.ranges import read_ranges
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.overview import Overview
from txlayer.coordinator.recovery import STABLE_PATIENCE_S
from txlayer.coordinator.stored import decode_stored
from txlayer.core.messages import txn_id_of

NAMED_MAX = 3
"""Transactions named per group and state: enough to look at with `txlayer tx show`."""


class OpenOnes(NamedTuple):
    """Unsettled transactions of one producer group in one state."""

    producer_group: str
    state: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    oldest_ms: int  # age of the oldest
    txn_ids: tuple[str, ...]  # some of them, the oldest first


class Drain(NamedTuple):
    """How far a namespace is drained."""

    open: tuple[OpenOnes, ...]
    half_unread: int  # half records that a restarted coordinator would read (again)
    op_unread: int  # likewise op records
    half_ends: tuple[int, ...]  # per partition: who sees them grow sees that producers go on

    @property
    def is_drained(self) -> bool:
        """True when nothing of before will be read again."""
        return not (self.open or self.half_unread or self.op_unread)


def look(
    config: CoordinatorConfig, connections: CoordinatorConnections, *, partition_count: int
) -> Drain:
    """How far it is drained now.

    Raises:
        ConfigError: no offsets are stored.
        TopicMismatchError: the namespace's topics are not there, or have unlike partition counts.
        BrokerUnavailableError, NotAuthorisedError: they cannot be read.
    """
    half, op, ends = unread(config, connections, partition_count=partition_count)
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for standing in Overview(config, connections).standing():
        txn = standing.txn
        born = (txn.appended_ms, txn_id_of(txn.key))
        groups.setdefault((txn.group, standing.state), []).append(born)
    now_ms = int(time.time() * 1000)
    found = [
        OpenOnes(group, state, len(ages), max(now_ms - min(ages)[0], 0),
                 tuple(txn_id for _, txn_id in sorted(ages)[:NAMED_MAX]))
        for (group, state), ages in sorted(groups.items())
    ]  # fmt: skip
    return Drain(tuple(found), half, op, ends)


def unread(
    config: CoordinatorConfig, connections: CoordinatorConnections, *, partition_count: int
) -> tuple[int, int, tuple[int, ...]]:
    """(half records, op records) behind what is stored, in the first `partition_count` partitions, and half's ends.

    Counted by reading, because the markers of Kafka transactions take offsets too.
    """
    topics = config.topics
    places = [(t, p) for t in (topics.half, topics.op) for p in range(partition_count)]
    ends = connections.end_offsets(places)
    stored = connections.stored_offsets(topics.coordinator_group, places, is_stable=False)
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for p in range(partition_count):
        at = decode_stored(stored[topics.half, p], stored[topics.op, p], partition=p).positions
        ranges[topics.half, p] = (at.low_water, ends[topics.half, p])
        ranges[topics.op, p] = (at.op_offset, ends[topics.op, p])
    counts: Counter[str] = Counter()
    reader = connections.make_reader("read_committed")
    try:
        read_ranges(reader, ranges, lambda r: counts.update([r.topic()]), patience_s=STABLE_PATIENCE_S)  # fmt: skip
    finally:
        reader.close()
    half_ends = tuple(ends[topics.half, p] for p in range(partition_count))
    return counts[topics.half], counts[topics.op], half_ends
