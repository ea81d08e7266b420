"""What the coordinators have done, and where they or a consumer group go on, by the offsets that are stored."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from txlayer.adapters.ports import Administration, GroupMember, StoredOffset, TopicPartition, partition_count_of
from txlayer.config import SystemTopics
from txlayer.core.progress import Progress, StoredProgress, decode
from txlayer.errors import LifecycleError
from txlayer.operate import Json

StartPosition = Literal["earliest", "latest"] | int
"""Where to begin: at the first or the next record, or at the first record of a time in milliseconds since 1970."""


class GroupReset(NamedTuple):
    """What a group has stored for its partitions, and what it would have."""

    before: dict[TopicPartition, StoredOffset | None]
    after: dict[TopicPartition, StoredOffset]


def plan_reset(
    admin: Administration,
    group: str,
    topics: Sequence[str],
    *,
    to: StartPosition,
    of_coordinators: bool = False,
    token_above: int | None = None,
) -> GroupReset:
    """Let a group go on elsewhere; `admin.store_offsets` of `after` carries it out.

    Of consumers a pause stays, and fencing tokens go on from the highest one stored, or from `token_above` where that is higher.

    Raises:
        LifecycleError: a member of the group runs.
        TopicMismatchError: there is no such topic.
    """
    found = admin.group(group)
    if found.is_active:
        members = "coordinators" if of_coordinators else "consumers"
        raise LifecycleError(f"{group} has running {members}; stop them first", state=found.state)
    after = _positions(admin, topics, to)
    before = dict(admin.stored_offsets(group, list(after)))
    stored = {
        tp: StoredOffset(offset, "" if of_coordinators else _metadata(offset, before[tp], token_above))
        for tp, offset in after.items()
    }
    return GroupReset(before, stored)


def _metadata(offset: int, before: StoredOffset | None, token_above: int | None) -> str:
    """What is stored with a new offset: an operator's pause, and the highest token so far, or that one."""
    found = None if before is None else decode(before.offset, before.metadata)
    known = found if isinstance(found, StoredProgress) else StoredProgress()
    token = max((t for t in (known.token, token_above) if t is not None), default=None)
    if token is None and not known.is_paused:
        return ""
    return Progress(offset).snapshot(token=token, is_paused=known.is_paused).metadata


def _positions(admin: Administration, topics: Sequence[str], position: StartPosition) -> dict[TopicPartition, int]:
    tps = [(topic, p) for topic in topics for p in range(partition_count_of(admin, topic))]
    if position == "earliest":
        return admin.start_offsets(tps)
    if position == "latest":
        return admin.end_offsets(tps)
    return admin.offsets_at(tps, at_ms=position)


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
    closed_at_ms: int | None = None  # since when the namespace accepts no new transactions


def partition_counts(admin: Administration, topics: SystemTopics) -> dict[str, int]:
    return {topic: partition_count_of(admin, topic) for topic in (topics.half, topics.op, topics.doubt)}


def read_status(admin: Administration, topics: SystemTopics) -> CoordinatorStatus:
    counts = partition_counts(admin, topics)
    shared = range(min(counts.values()))
    wanted = [(topic, p) for topic in counts for p in shared]
    ends = admin.end_offsets(wanted)
    stored = admin.stored_offsets(topics.coordinator_group, [w for w in wanted if w[0] != topics.doubt])
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
    limits = admin.topic_limits(topics.half)
    closed_at_ms = None if limits is None else limits.closed_at_ms
    return CoordinatorStatus(topics.coordinator_group, group.state, group.members, tuple(partitions), closed_at_ms)


def status_json(found: CoordinatorStatus) -> Json:
    return found._asdict() | {
        "op_lag": sum(p.op_lag for p in found.partitions),
        "members": [m._asdict() for m in found.members],
        "partitions": [p._asdict() | {"op_lag": p.op_lag, "half_span": p.half_span} for p in found.partitions],
    }
