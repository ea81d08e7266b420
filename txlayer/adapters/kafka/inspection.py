"""Gathers the facts that `txlayer doctor` judges (`operate/doctor.py`)."""

import fnmatch
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AclOperation, OffsetSpec, ResourceType  # type: ignore[attr-defined]  # its stub forgets to export them

from txlayer.adapters.errors import NOT_AUTHORISED_CODES
from txlayer.adapters.kafka.admin import MISSING_CODES, KafkaAdmin
from txlayer.adapters.kafka.client import PlainReader
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.ports import (
    NO_CLOCK,
    BrokerFacts,
    ClockFacts,
    ClusterFacts,
    GroupState,
    PartitionFacts,
    Record,
    Right,
    TopicFacts,
    TopicPartition,
)
from txlayer.adapters.readers import Range, records_of
from txlayer.config import CoordinatorConfig, SystemTopics
from txlayer.core import codec
from txlayer.core.topics import Change
from txlayer.errors import NotAuthorisedError


def _names(operations: Collection[AclOperation] | None) -> frozenset[str]:
    return frozenset(operation.name for operation in operations or ())


INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
RECENT_COUNT = 200  # half records per partition, the newest, from which the real topics are known
STORED_EVERY_MS = 65_000  # coordinators store their positions at least once a minute
_PATIENCE_S = 10.0


def inspect(
    config: CoordinatorConfig,
    *,
    topics: Collection[str] = (),
    replication_factor: int | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> ClusterFacts:
    """Gather the facts.

    `topics` are real topics to look at; those of recent half messages and of `target_topics` are looked at anyway.
    """
    with _Inspection(config, topics, wall_clock) as inspection:
        return inspection.facts(replication_factor)


class _Inspection(KafkaAdmin):
    """One look at one cluster."""

    def __init__(self, config: CoordinatorConfig, real: Collection[str], wall_clock: Callable[[], float]) -> None:
        super().__init__(config)
        self._settings = config
        self._asked = real
        self._wall_clock = wall_clock
        self._untold: dict[str, str] = {}
        self._rights: list[Right] = []

    def facts(self, replication_factor: int | None) -> ClusterFacts:
        topics = self._settings.topics
        cluster = self.wait(self.client().describe_cluster(**self.limits()), resource="cluster", operation="describe")
        brokers = tuple(self._broker(node) for node in cluster.nodes)
        own = self._described(sorted(topics.all))
        group = self._group(topics)
        partitions = self._partitions(own, group)
        real, missing = self._real(own)
        clock = self._clock(own, group)
        self._note_rights(own, real)
        return ClusterFacts(
            namespace=topics.namespace,
            half=topics.half,
            op=topics.op,
            now_ms=int(self._wall_clock() * 1000),
            brokers=brokers,
            topics=tuple(own.values()),
            internal_topics=tuple(self._described(INTERNAL_TOPICS).values()),
            real_topics=tuple(real.values()),
            missing_real_topics=missing,
            changes=tuple(self._changes(replication_factor)),
            partitions=partitions,
            group=group,
            clock=clock,
            rights=tuple(self._rights),
            untold=self._untold,
        )

    # --- brokers and topics -------------------------------------------------------------------------------------------

    def _broker(self, node: Any) -> BrokerFacts:
        about = f"broker {node.id}"
        try:
            return BrokerFacts(node.id, self.settings(ResourceType.BROKER, str(node.id), about=about) or {})
        except NotAuthorisedError as exc:
            self._untold[f"settings of {about}"] = str(exc)
            return BrokerFacts(node.id, {})

    def _described(self, names: Collection[str]) -> dict[str, TopicFacts]:
        """Those that exist; what these credentials may not describe is noted."""
        found: dict[str, TopicFacts] = {}
        for name, answer in self._descriptions(names, foreseen=NOT_AUTHORISED_CODES).items():
            if isinstance(answer, KafkaError):
                self._untold[name] = "describing it is refused to these credentials"
            if answer is None or isinstance(answer, KafkaError):
                continue
            found[name] = self._topic_facts(answer)
            if not found[name].settings:
                self._untold[f"settings of {name}"] = "refused to these credentials"
        return found

    def _topic_facts(self, answer: Any) -> TopicFacts:
        refusals = MISSING_CODES | NOT_AUTHORISED_CODES
        settings = self.settings(ResourceType.TOPIC, answer.name, foreseen=refusals) or {}
        return TopicFacts(
            name=answer.name,
            replicas=tuple(tuple(node.id for node in p.replicas) for p in answer.partitions),
            in_sync=tuple(tuple(node.id for node in p.isr) for p in answer.partitions),
            leaders=tuple(None if p.leader is None or p.leader.id < 0 else p.leader.id for p in answer.partitions),
            settings=settings,
            operations=_names(answer.authorized_operations),
        )

    def _changes(self, replication_factor: int | None) -> list[Change]:
        namespace = Namespace(self, topics=self._settings.topics)
        try:
            return namespace.plan(replication_factor=replication_factor)
        except NotAuthorisedError as exc:
            self._untold["topics against topics/"] = str(exc)
            return []

    def _real(self, own: dict[str, TopicFacts]) -> tuple[dict[str, TopicFacts], tuple[str, ...]]:
        """(those that are there, names of those that are not)."""
        topics = self._settings.topics
        there = self.topic_names()
        patterns = self._settings.target_topics
        matching = {name for name in there if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
        named = self._recently_named(own) | set(self._asked)
        found = self._described(sorted(name for name in matching | named if not topics.is_system(name)))
        # What these credentials may not describe looks as if it were not there.
        return found, tuple(sorted(named - there - self._untold.keys()))

    def _recently_named(self, own: dict[str, TopicFacts]) -> set[str]:
        half = self._settings.topics.half
        if not self._may_read_half(own):
            return set()
        partitions = [(half, p) for p in range(len(own[half].leaders))]
        starts, ends = self.start_offsets(partitions), self.end_offsets(partitions)
        ranges = {p: (max(starts[p], ends[p] - RECENT_COUNT), ends[p]) for p in partitions}
        heads = (codec.half_of(record.headers()) for record in self._read(ranges))
        named = {head.topic for head in heads if head is not None}
        return {name for name in named if not self._settings.topics.is_system(name)}

    # --- coordinators -------------------------------------------------------------------------------------------------

    def _group(self, topics: SystemTopics) -> GroupState | None:
        try:
            return self.group(topics.coordinator_group)
        except NotAuthorisedError as exc:
            self._untold[f"group {topics.coordinator_group}"] = str(exc)
            return None

    def _partitions(self, own: dict[str, TopicFacts], group: GroupState | None) -> tuple[PartitionFacts, ...]:
        topics = self._settings.topics
        if topics.half not in own or topics.op not in own:
            return ()
        count = min(len(own[name].leaders) for name in (topics.half, topics.op))
        halves, ops = ([(name, p) for p in range(count)] for name in (topics.half, topics.op))
        try:
            starts = self.start_offsets([*halves, *ops])
            ends = self.end_offsets([*halves, *ops])
            stored = self.stored_offsets(topics.coordinator_group, [*halves, *ops])
        except NotAuthorisedError as exc:
            self._untold["positions of the coordinators"] = str(exc)
            return ()
        low = {p: None if (at := stored[p]) is None else at.offset for p in halves}
        there = {p: (at, at + 1) for p, at in low.items() if at is not None and starts[p] <= at < ends[p]}
        records: Iterable[Record] = self._read(there) if self._may_read_half(own) else ()
        stored_at = {(record.topic(), record.partition()): record.timestamp()[1] for record in records}
        owners = {
            p: member.client_id or member.member_id
            for member in (group.members if group is not None else ())
            for name, p in member.partitions
            if name == topics.half
        }
        return tuple(
            PartitionFacts(
                partition=p,
                half_start=starts[half],
                half_end=ends[half],
                op_start=starts[op],
                op_end=ends[op],
                low_water=low[half],
                op_next=None if (at := stored[op]) is None else at.offset,
                low_water_ms=stored_at.get(half),
                owner=owners.get(p, ""),
            )
            for p, (half, op) in enumerate(zip(halves, ops, strict=True))
        )

    def _may_read_half(self, own: dict[str, TopicFacts]) -> bool:
        half = self._settings.topics.half
        if half not in own:
            return False
        if "READ" not in own[half].operations:
            self._untold[f"records of {half}"] = "reading is refused to these credentials"
            return False
        return True

    def _read(self, ranges: dict[TopicPartition, Range]) -> Iterator[Record]:
        with closing(PlainReader(self._settings)) as reader:
            yield from records_of(reader, ranges, patience_s=_PATIENCE_S)

    # --- clock and rights ---------------------------------------------------------------------------------------------

    def _clock(self, own: dict[str, TopicFacts], group: GroupState | None) -> ClockFacts:
        logs = [
            tp for d in own.values() if d.settings.get("message.timestamp.type") == "LogAppendTime" for tp in _led(d)
        ]
        try:
            # Stored offsets carry the broker's own clock, and coordinators store them once a minute.
            offsets = self._described(["__consumer_offsets"]).values()
            newest_ms = self._newest_ms([*logs, *(tp for described in offsets for tp in _led(described))])
        except NotAuthorisedError as exc:
            self._untold["the broker's clock"] = str(exc)
            return NO_CLOCK
        if newest_ms is None:
            return NO_CLOCK
        least = int(newest_ms - self._wall_clock() * 1000)
        is_running = group is not None and bool(group.members)
        return ClockFacts(least, least + STORED_EVERY_MS if is_running else None)

    def _newest_ms(self, partitions: Sequence[TopicPartition]) -> int | None:
        """The newest timestamp of all records in `partitions`; None: there is none."""
        if not partitions:
            return None
        wanted = {ClientPartition(*p): OffsetSpec.max_timestamp() for p in partitions}  # type: ignore[no-untyped-call]  # the client's stub says no type
        futures = self.connected_client().list_offsets(wanted, **self.limits())
        found = [self.wait(f, resource=p.topic, operation="list offsets").timestamp for p, f in futures.items()]
        return max((int(at_ms) for at_ms in found if at_ms > 0), default=None)

    def _note_rights(self, own: dict[str, TopicFacts], real: dict[str, TopicFacts]) -> None:
        topics = self._settings.topics
        needs = [
            ("coordinator", "Read", (topics.half, topics.op, topics.doubt)),
            ("coordinator", "Write", (topics.doubt, topics.check, topics.op)),
            ("coordinator", "Write", tuple(real)),
            ("producer", "Write", (topics.half, topics.op)),
            ("producer", "Read", (topics.check,)),
        ]
        for role, operation, names in needs:
            for name in names:
                described = own.get(name) or real.get(name)
                if described is not None:
                    is_allowed = operation.upper() in described.operations
                    self._rights.append(Right(role, operation, "topic", name, is_allowed))
        group = topics.coordinator_group
        is_allowed = "READ" in self._group_operations(group)
        self._rights.append(Right("coordinator", "Read", "group", group, is_allowed))

    def _group_operations(self, group: str) -> frozenset[str]:
        """What these credentials may do with a consumer group; empty when even asking is refused."""
        asked = self.client().describe_consumer_groups([group], include_authorized_operations=True, **self.limits())
        foreseen = NOT_AUTHORISED_CODES | {KafkaError.GROUP_ID_NOT_FOUND}
        answer = self.wait(asked[group], resource=group, operation="describe group", foreseen=foreseen)
        if isinstance(answer, KafkaError):
            # A group that never was has no operations, and is not refused either.
            is_missing = answer.code() == KafkaError.GROUP_ID_NOT_FOUND
            return frozenset({"READ", "DESCRIBE"}) if is_missing else frozenset()
        return _names(answer.authorized_operations)


def _led(described: TopicFacts) -> list[TopicPartition]:
    return [(described.name, p) for p, leader in enumerate(described.leaders) if leader is not None]
