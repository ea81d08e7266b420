"""What a namespace's coordinators have done, as the cluster tells: no coordinator is asked."""

from __future__ import annotations

from typing import NamedTuple

from txlayer.adapters.ports import Administration, GroupMember
from txlayer.config import SystemTopics
from txlayer.errors import TopicMismatchError
from txlayer.operate import Json


class PartitionStatus(NamedTuple):
    """One partition of half and op; None where nothing is stored."""

    partition: int
    low_water: int | None
    half_end: int
    op_next: int | None
    op_end: int
    doubt_low: int | None
    doubt_end: int
    writer: str

    @property
    def op_lag(self) -> int:
        """Op offsets that are not applied yet (markers count)."""
        return self.op_end - (self.op_next or 0)

    @property
    def half_span(self) -> int:
        """Half offsets that a restart reads again."""
        return self.half_end - (self.low_water or 0)


class CoordinatorStatus(NamedTuple):
    """The group and its partitions."""

    group: str
    state: str
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionStatus, ...]


def partition_counts(admin: Administration, topics: SystemTopics) -> dict[str, int]:
    """Partitions of half, op and doubt.

    Raises:
        TopicMismatchError: a topic is missing.
    """
    counts = {}
    for topic in (topics.half, topics.op, topics.doubt):
        count = admin.partition_count(topic)
        if count is None:
            raise TopicMismatchError(
                "a topic of the namespace is missing; `txlayer topics apply` makes it",
                topic=topic,
                expected="there",
                found="missing",
            )
        counts[topic] = count
    return counts


def read_status(admin: Administration, topics: SystemTopics) -> CoordinatorStatus:
    """The coordinators' group, its members, what they stored and how far the topics go.

    Raises:
        TopicMismatchError: the namespace has no topics.
        BrokerUnavailableError, NotAuthorisedError: the cluster did not answer.
    """
    counts = partition_counts(admin, topics)
    shared = range(min(counts.values()))
    wanted = [(topic, p) for topic in counts for p in shared]
    ends = admin.end_offsets(wanted)
    stored = admin.stored_offsets(
        topics.coordinator_group, [w for w in wanted if w[0] != topics.doubt]
    )
    group = admin.group(topics.coordinator_group)
    partitions = []
    for p in shared:
        half, op = stored[topics.half, p], stored[topics.op, p]
        fields = op.metadata.split("|") if op is not None and op.metadata else []
        partitions.append(
            PartitionStatus(
                p,
                half.offset if half is not None else None,
                ends[topics.half, p],
                op.offset if op is not None else None,
                ends[topics.op, p],
                int(fields[5]) if len(fields) > 5 and fields[5].isdigit() else None,
                ends[topics.doubt, p],
                fields[1] if len(fields) > 1 else "",
            )
        )
    return CoordinatorStatus(
        topics.coordinator_group, group.state, group.members, tuple(partitions)
    )


def status_json(found: CoordinatorStatus) -> Json:
    """What `txlayer coordinator status --json` prints."""
    return found._asdict() | {
        "op_lag": sum(p.op_lag for p in found.partitions),
        "members": [m._asdict() for m in found.members],
        "partitions": [
            p._asdict() | {"op_lag": p.op_lag, "half_span": p.half_span} for p in found.partitions
        ],
    }
