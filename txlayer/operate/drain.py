"""Giving half, op and doubt more partitions, when nothing of before is needed any more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from txlayer.adapters.namespace import START_OF_LOG
from txlayer.adapters.ports import Administration, CoordinatorConnections, TopicPartition
from txlayer.adapters.readers import Range
from txlayer.config import CoordinatorConfig, SystemTopics
from txlayer.core.messages import txn_id_of
from txlayer.errors import LifecycleError, UsageError
from txlayer.operate.overview import Overview, read_committed, read_stored
from txlayer.operate.status import partition_counts

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
        OpenOnes(
            group,
            state,
            len(ages),
            max(now_ms - min(ages)[0], 0),
            tuple(txn_id for _, txn_id in sorted(ages)[:NAMED_MAX]),
        )
        for (group, state), ages in sorted(groups.items())
    ]
    return Drain(tuple(found), half, op, ends)


def unread(
    config: CoordinatorConfig, connections: CoordinatorConnections, *, partition_count: int
) -> tuple[int, int, tuple[int, ...]]:
    """(half records, op records) behind what is stored, in the first `partition_count` partitions, and half's ends.

    Counted by reading, because the markers of Kafka transactions take offsets too.
    """
    topics, partitions = config.topics, range(partition_count)
    ends = connections.end_offsets([(t, p) for t in (topics.half, topics.op) for p in partitions])
    ranges: dict[TopicPartition, Range] = {}
    for p, stored in read_stored(connections, topics, partitions).items():
        ranges[topics.half, p] = (stored.positions.low_water, ends[topics.half, p])
        ranges[topics.op, p] = (stored.positions.op_offset, ends[topics.op, p])
    counts: Counter[str] = Counter()
    read_committed(connections, ranges, lambda record: counts.update([record.topic()]))
    half_ends = tuple(ends[topics.half, p] for p in partitions)
    return counts[topics.half], counts[topics.op], half_ends


class Widening(NamedTuple):
    """What more partitions would take."""

    before: dict[str, int]
    """Partitions of half, op and doubt."""
    wanted: dict[str, int]
    """Those that get more, in the order in which they get them."""
    left: Drain | None
    """What is not drained yet; None: nothing, and the topics may be widened."""


def plan_widening(
    admin: Administration,
    config: CoordinatorConfig,
    connections: CoordinatorConnections,
    *,
    partition_count: int,
) -> Widening:
    """Whether half, op and doubt can get so many partitions now; nothing is changed.

    Raises:
        UsageError: a topic has more.
        LifecycleError: a coordinator runs.
        TopicMismatchError: a topic is missing.
    """
    topics = config.topics
    counts = partition_counts(admin, topics)
    if max(counts.values()) > partition_count:
        raise UsageError(f"{counts}: a topic never gets fewer partitions than it has")
    members = admin.group(topics.coordinator_group)
    if members.is_active:
        raise LifecycleError(
            f"{len(members.members)} coordinators are members of {topics.coordinator_group}; stop them first",
            state=members.state,
        )
    left = _left(config, connections, counts, _known_count(admin, topics, counts))
    # Half last: by its count producers and coordinators go, and until then they see that the counts differ.
    order = (topics.doubt, topics.op, topics.half)
    wanted = {t: partition_count for t in order if counts[t] < partition_count}
    return Widening(counts, wanted, left)


def look_at(
    admin: Administration, config: CoordinatorConfig, connections: CoordinatorConnections
) -> Drain:
    """What is not drained yet.

    Raises:
        TopicMismatchError: a topic is missing.
        BrokerUnavailableError, NotAuthorisedError: the topics cannot be read.
    """
    count = partition_counts(admin, config.topics)[config.topics.half]
    return look(config, connections, partition_count=count)


def _left(
    config: CoordinatorConfig,
    connections: CoordinatorConnections,
    counts: Mapping[str, int],
    known: int,
) -> Drain | None:
    """What is not drained; None: nothing."""
    if set(counts.values()) == {known}:
        found = look(config, connections, partition_count=known)
        return None if found.is_drained else found
    # An earlier widening was interrupted behind its own look: since then nobody could begin anything.
    half, op, ends = unread(config, connections, partition_count=known)
    return Drain((), half, op, ends) if half or op else None


def _known_count(admin: Administration, topics: SystemTopics, counts: Mapping[str, int]) -> int:
    """Partitions that coordinators worked on: an earlier widening may have ended before it stored where they begin."""
    shared = range(min(counts.values()))
    places = [(t, p) for t in (topics.half, topics.op) for p in shared]
    stored = admin.stored_offsets(topics.coordinator_group, places)
    known = [p for p in shared if stored[topics.half, p] and stored[topics.op, p]]
    # Without the first one nothing was ever stored, or it was lost: whoever reads the positions says so.
    return max(len(known), 1)


def store_first_offsets(admin: Administration, topics: SystemTopics, partitions: int) -> None:
    """Where the coordinators begin in new partitions: at the first record, if somebody wrote one already."""
    places = [(t, p) for t in (topics.half, topics.op) for p in range(partitions)]
    stored = admin.stored_offsets(topics.coordinator_group, places)
    missing = {place: START_OF_LOG for place in places if stored[place] is None}
    admin.store_offsets(topics.coordinator_group, missing)
