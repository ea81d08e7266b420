"""The topics of a namespace or of a consumer group, and the rights of a principal, compared with what they must be; more partitions.

And the offsets: where the coordinators are and what they hold, and where a group goes on.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from txlayer.adapters import namespace as namespaces
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import (
    Administration,
    GroupMember,
    StoredOffset,
    TopicPartition,
    no_such_topic,
    partition_count_of,
)
from txlayer.adapters.readers import Range
from txlayer.config import SystemTopics
from txlayer.core import acls
from txlayer.core.acls import Acl, CreateAcl, RoleSpec
from txlayer.core.dead_letters import dead_letter_topic, namesakes
from txlayer.core.messages import DLQ_SUFFIX, check_group, check_topic, txn_id_of
from txlayer.core.progress import Progress, StoredProgress, decode
from txlayer.core.topics import CLOSED_SETTING, OPEN_VALUE, AlterSetting, Change, TopicSpec, closed_at_ms, plan
from txlayer.errors import ConfigError, LifecycleError, RetriableError, TopicMismatchError, UsageError
from txlayer.operate import Json
from txlayer.operate.rows import UNREADABLE
from txlayer.operate.unsettled import Overview, committed_records, read_stored

StartPosition = Literal["earliest", "latest"] | int
"""Where to begin: at the first or the next record, or at the first record of a time in milliseconds since 1970."""


class GroupReset(NamedTuple):
    """What a group has stored for its partitions, and what it would have."""

    before: dict[TopicPartition, StoredOffset | None]
    after: dict[TopicPartition, StoredOffset]


def check_consumed(topics: SystemTopics, group: str, names: Sequence[str]) -> None:
    """UsageError: one of the topics, or the group, is txlayer's own. Topics of dead letters pass, because groups may consume them."""
    if topics.is_own_group(group):
        raise UsageError(
            f"{group} is a group of txlayer's own; for that of the coordinators there is `txlayer coordinator reset`"
        )
    for name in names:
        if topics.is_system(name) and not name.endswith(DLQ_SUFFIX):
            raise UsageError(f"{check_topic(name)} is a topic that txlayer or Kafka keeps for itself")


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
    LifecycleError: a member runs; TopicMismatchError: there is no such topic; UsageError: none can have this name.
    """
    for topic in topics:
        check_topic(topic)
    found = admin.group(group)
    if found.is_active:
        members = "coordinators" if of_coordinators else "consumers"
        raise LifecycleError(f"{group} has running {members}; stop them first", state=found.state)
    after = _positions(admin, topics, to, create="txlayer topics apply" if of_coordinators else None)
    # What a frozen consumer is still storing, such as a pause, would not count behind newer offsets.
    before = dict(admin.stored_offsets(group, list(after), is_stable=not of_coordinators))
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
    return Progress(offset).snapshot(StoredProgress(token=token, is_paused=known.is_paused)).metadata


def _positions(
    admin: Administration, topics: Sequence[str], position: StartPosition, *, create: str | None
) -> dict[TopicPartition, int]:
    tps = [(topic, p) for topic in topics for p in range(partition_count_of(admin, topic, create=create))]
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


@dataclass(frozen=True, slots=True)
class GroupTopics:
    """Dead-letter and replay topics of a group, for topics that it consumes; nothing here deletes or shrinks."""

    admin: Administration
    _: KW_ONLY
    group: str
    topics: Sequence[str]

    def plan(self, *, replication_factor: int | None = None) -> list[Change]:
        """What is missing or different; each topic has as many partitions as the one that it belongs to.

        Raises:
            TopicMismatchError: a topic that the group is to consume does not exist.
            UsageError: another group's topics of another topic have the same names: each would read the other's letters.
        """
        self._refuse_namesakes()
        topics, files = tuple(dict.fromkeys(self.topics)), namespaces.read_topic_files()
        specs = [TopicSpec.parse(files[role]) for role in namespaces.GROUP_ROLES]
        sources = self.admin.describe_topics(topics)
        for topic in topics:
            if topic not in sources:
                why = "create it first: its dead letters stand in as many partitions"
                raise TopicMismatchError(why, topic=topic, expected="a topic", found="none")
        desired = [
            spec.desired(
                names={"group": self.group, "topic": topic},
                partition_count=sources[topic].partition_count,
                replication_factor=replication_factor,
            )
            for topic in topics
            for spec in specs
        ]
        actual = {**sources, **self.admin.describe_topics([topic.name for topic in desired])}
        return plan(desired, actual)

    def apply(self, *, replication_factor: int | None = None) -> namespaces.Applied:
        """Create what is missing, alter what may be altered; safe to repeat, also after a crash. What `plan` raises comes first."""
        return namespaces.apply_changes(self.admin, partial(self.plan, replication_factor=replication_factor))

    def _refuse_namesakes(self) -> None:
        others = [(topic, *other) for topic in self.topics for other in namesakes(self.group, topic)]
        there = self.admin.describe_topics({other for _, _, other in others})
        for topic, group, other in others:
            if other not in there:
                continue
            tps = [(other, p) for p in range(there[other].partition_count)]
            if any(self.admin.stored_offsets(group, tps).values()):
                raise UsageError(
                    f"{dead_letter_topic(self.group, topic)} is the name for the dead letters of group {group} and topic "
                    f"{other}, too, and that group reads that topic: choose another name for one of the groups"
                )


def compare_topics(
    admin: Administration,
    namespace: SystemTopics,
    *,
    partitions: int | None,
    replication_factor: int | None,
    group: str | None,
    topics: Sequence[str],
    applies: bool,
) -> tuple[Sequence[Change], Sequence[Change]]:
    """(changes that were made, changes that are left) of a namespace's topics, or with `group` of its for `topics`."""
    if (group is None) != (not topics):
        raise UsageError("--group and --topic go together: each topic has dead letters for each group")
    sizes: dict[str, Any] = {"replication_factor": replication_factor}
    owner: namespaces.Namespace | GroupTopics
    if group is None:
        owner, sizes["partition_count"] = namespaces.Namespace(admin, topics=namespace), partitions
    else:
        check_group(group)
        for topic in topics:
            check_topic(topic)
        if partitions is not None:
            raise UsageError("--partitions: a group's topics have as many as the topic that they belong to")
        owner = GroupTopics(admin, group=group, topics=topics)
    return owner.apply(**sizes) if applies else ([], owner.plan(**sizes))


def wanted_rights(
    namespace: str, roles: Sequence[str], principal: str, *, group: str | None, topics: Sequence[str], host: str
) -> list[CreateAcl]:
    """The rights that the roles of one principal need in one namespace, as topics/*.toml say."""
    files = namespaces.read_acl_files()
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name) or principal == acls.ANYBODY:
        raise ConfigError("not one principal", name="--principal", value=principal, expected="User:NAME")
    for option, value in (("--principal", principal), ("--host", host), *(("--topic", each) for each in topics)):
        if not value.isprintable():
            raise ConfigError(
                "the client cannot be given this value", name=option, value=value, expected="printable text"
            )
    if group is not None:
        check_group(group)
    wanted: dict[Acl, CreateAcl] = {}
    for role in dict.fromkeys(roles):
        if role not in files:
            raise ConfigError("no such role", name="--role", value=role, expected=f"one of {', '.join(files)}")
        entries = RoleSpec.parse(role, files[role]).wanted(
            namespace=namespace, group=group, topics=tuple(topics), principal=principal, host=host
        )
        for entry in entries:
            wanted.setdefault(entry.acl, entry)
    return [*wanted.values()]


NAMED_MAX = 3  # transactions named per group and state: enough to look at with `txlayer tx show`


class Drain(NamedTuple):
    """How far a namespace is drained."""

    open: tuple[Json, ...]
    """By producer group and state: `count`, `oldest_ms` (the age of the oldest), and some `txn_ids`, the oldest first."""
    half_unread: int  # half records that a restarted coordinator would read (again)
    op_unread: int  # likewise op records
    half_ends: tuple[int, ...]  # per partition: if they grow, producers go on
    closed_at_ms: int | None = None  # since when producers begin no transactions

    @property
    def is_drained(self) -> bool:
        """True when nothing of before will be read again."""
        return not (self.open or self.half_unread or self.op_unread)


def look(connections: CoordinatorConnections, *, partition_count: int) -> Drain:
    unread_counts = unread(connections, partition_count=partition_count)
    groups: defaultdict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    overview = Overview(connections)
    for each in overview.unsettled():
        groups[each.txn.group, each.state].append((each.txn.appended_ms, txn_id_of(each.txn.key)))
    now_ms = int(time.time() * 1000)
    for key in overview.unreadable:  # of whom, and since when, a later release can say
        groups["", UNREADABLE].append((now_ms, txn_id_of(key)))
    found = tuple(
        {
            "producer_group": group,
            "state": state,
            "count": len(ages),
            "oldest_ms": max(now_ms - min(ages)[0], 0),
            "txn_ids": [txn_id for _, txn_id in sorted(ages)[:NAMED_MAX]],
        }
        for (group, state), ages in sorted(groups.items())
    )
    limits = connections.topic_limits(connections.config.topics.half)
    return Drain(found, *unread_counts, None if limits is None else limits.closed_at_ms)


def unread(
    connections: CoordinatorConnections, *, partition_count: int, stored_count: int | None = None
) -> tuple[int, int, tuple[int, ...]]:
    """(half records, op records) behind what is stored, in the first `partition_count` partitions, and half's ends.

    Of partitions from `stored_count` on nothing is stored, and every record counts. Counted by reading, because the markers of
    Kafka transactions take offsets too. Of what an open Kafka transaction hides, by whomever, every offset counts.
    """
    topics, partitions = connections.config.topics, range(partition_count)
    tps = [(t, p) for t in (topics.half, topics.op) for p in partitions]
    ends = connections.end_offsets(tps)
    hidden = connections.end_offsets(tps, is_committed=False)
    ranges: dict[TopicPartition, Range] = {}
    for p, stored in read_stored(connections, partitions[:stored_count]).items():
        ranges[topics.half, p] = (stored.positions.low_water, ends[topics.half, p])
        ranges[topics.op, p] = (stored.positions.op_offset, ends[topics.op, p])
    starts = connections.start_offsets([tp for tp in tps if tp not in ranges])
    ranges |= {tp: (start, ends[tp]) for tp, start in starts.items()}
    counts = Counter(record.topic() for record in committed_records(connections, ranges))
    for (topic, p), end in hidden.items():
        counts[topic] += max(end - ends[topic, p], 0)
    half_ends = tuple(ends[topics.half, p] for p in partitions)
    return counts[topics.half], counts[topics.op], half_ends


class Acceptance(NamedTuple):
    """Whether a namespace accepts new transactions."""

    closed_at_ms: int | None  # since when it does not
    is_changed: bool = False

    @property
    def is_on(self) -> bool:
        return self.closed_at_ms is None


def accept(admin: Administration, topics: SystemTopics, *, wanted: bool | None, now_ms: int) -> Acceptance:
    """Let producers begin transactions, or not; with `wanted` None only look. What has begun goes on. Safe to repeat."""
    found = admin.describe_topics([topics.half]).get(topics.half)
    if found is None:
        raise no_such_topic(topics.half)
    before = Acceptance(closed_at_ms(found.settings))
    if wanted is None or wanted is before.is_on:
        return before
    value = OPEN_VALUE if wanted else str(now_ms)
    old = found.settings.get(CLOSED_SETTING)
    admin.alter_settings([AlterSetting(topics.half, CLOSED_SETTING, old, value, "whether producers may begin")])
    return Acceptance(None if wanted else now_ms, is_changed=True)


class Widening(NamedTuple):
    """What more partitions would take."""

    before: dict[str, int]  # partitions of half, op and doubt
    wanted: dict[str, int]  # those that get more, in the order in which they get them
    left: Drain | None  # what is not drained yet; None: nothing, and the topics may be widened
    late_count: int = 0  # half records that came since a widening was interrupted: some are in the wrong partition


def plan_widening(admin: Administration, connections: CoordinatorConnections, *, partition_count: int) -> Widening:
    """Whether half, op and doubt can get so many partitions now; nothing is changed.

    UsageError: a topic has more; LifecycleError: a coordinator runs; TopicMismatchError: a topic is missing; RetriableError: another
    person widens them at this moment.
    """
    topics = connections.config.topics
    counts = partition_counts(admin, topics)
    if max(counts.values()) > partition_count:
        most = max(counts, key=counts.__getitem__)
        raise UsageError(
            f"{most} has {counts[most]} partitions: a topic never gets fewer, so {partition_count} cannot be"
        )
    members = admin.group(topics.coordinator_group)
    if members.is_active:
        why = f"{len(members.members)} coordinators are members of {topics.coordinator_group}; stop them first"
        raise LifecycleError(why, state=members.state)
    # Partitions that coordinators worked on: an earlier widening may have ended before it stored where they begin. Without
    # the first one nothing was ever stored, or it was lost: the reader of the positions says so.
    shared = range(min(counts.values()))
    stored = admin.stored_offsets(topics.coordinator_group, [(t, p) for t in (topics.half, topics.op) for p in shared])
    known = max(sum(bool(stored[topics.half, p] and stored[topics.op, p]) for p in shared), 1)
    if set(counts.values()) == {known}:
        try:
            left = look(connections, partition_count=known)
        except TopicMismatchError as exc:  # the counts were equal a moment ago
            raise RetriableError("another person widens these topics at this moment; try again") from exc
    else:  # an earlier widening was interrupted behind its own look: since then no coordinator could start
        left = Drain((), *unread(connections, partition_count=len(shared), stored_count=known))
    # Half last: by its count producers and coordinators go, and until then they see that the counts differ.
    order = (topics.doubt, topics.op, topics.half)
    wanted = {t: partition_count for t in order if counts[t] < partition_count}
    # Where the counts differ or only offsets are missing, no coordinator can start, and nothing is drained, before it is done.
    is_begun = len(set(counts.values())) > 1
    is_left = bool(wanted) and not is_begun and not left.is_drained
    return Widening(counts, wanted, left if is_left else None, left.half_unread if is_begun else 0)


def store_first_offsets(admin: Administration, topics: SystemTopics, partitions: int) -> None:
    """Where the coordinators begin in new partitions: at the first record, if there is one already."""
    tps = [(t, p) for t in (topics.half, topics.op) for p in range(partitions)]
    stored = admin.stored_offsets(topics.coordinator_group, tps)
    missing = {tp: namespaces.START_OF_LOG for tp in tps if stored[tp] is None}
    admin.store_offsets(topics.coordinator_group, missing)
