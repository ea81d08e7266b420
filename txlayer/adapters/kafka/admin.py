"""Asking a Kafka cluster about topics, groups and offsets, and changing them. Never: deleting, or judging what is found."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets NewTopic
    AclOperation,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from txlayer.adapters.administration import GroupMember, GroupState
from txlayer.adapters.error_codes import MOVED_COORDINATOR_CODES
from txlayer.adapters.kafka.admin_connection import ANSWER_TIMEOUT_MS, LOOK_S, AdminConnection
from txlayer.adapters.kafka.group_offsets import GroupOffsets
from txlayer.adapters.ports import StoredOffset, TopicLimits, TopicPartition
from txlayer.config import ClientConfig
from txlayer.core.topicspec import AlterSetting, CreateTopic, TopicState
from txlayer.errors import BrokerUnavailableError, LifecycleError, RetriableError

_STATES_WITH_MEMBERS = {
    ConsumerGroupState.STABLE,
    ConsumerGroupState.PREPARING_REBALANCING,
    ConsumerGroupState.COMPLETING_REBALANCING,
}
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


class KafkaAdmin:
    """The administrator's view of one cluster, for one thread at a time; it connects at the first question.

    Every question raises, beside what it names itself:
        BrokerUnavailableError: no answer within `timeout_ms`; a change may have happened, ask for the state.
        NotAuthorisedError: credentials or rights were refused; nothing was changed.
    """

    def __init__(self, config: ClientConfig, *, timeout_ms: int = ANSWER_TIMEOUT_MS) -> None:
        self._connection = AdminConnection(config, timeout_ms=timeout_ms)
        self._group_offsets = GroupOffsets(config, timeout_ms=timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the clients back; the next question would make new ones."""
        self._connection.close()
        self._group_offsets.close()

    # --- topics -------------------------------------------------------------------------------------------------------

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """{name: state} of those of `names` that exist, with every setting in effect."""
        found = {name: d for name, d in self._descriptions(names).items() if d is not None}
        if not found:
            return {}
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in found}
        futures = self._connection.client().describe_configs(
            list(resources.values()), **self._connection.limits()
        )
        states = {}
        for name, description in found.items():
            entries = self._connection.wait(
                futures[resources[name]], resource=name, operation="describe configs"
            )
            states[name] = TopicState(
                partition_count=len(description.partitions),
                replication_factor=min(len(p.replicas) for p in description.partitions),
                settings={key: entry.value or "" for key, entry in entries.items()},
            )
        return states

    def topic_names(self) -> frozenset[str]:
        """The names of all topics that these credentials may describe."""
        timeout_s = self._connection.limits()["request_timeout"]
        try:
            return frozenset(self._connection.client().list_topics(timeout=timeout_s).topics)
        except KafkaException as exc:
            raise self._connection.translated(exc, resource="topics", operation="list") from exc

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, None when there is no such topic."""
        description = self._descriptions([topic])[topic]
        return None if description is None else len(description.partitions)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What a writer must know of a topic, None when there is no such topic.

        Its `message_bytes_max` and `is_append_time` are None where the settings may not be read.
        """
        description = self._descriptions([topic])[topic]
        if description is None:
            return None
        limits = TopicLimits(
            partition_count=len(description.partitions),
            message_bytes_max=None,
            is_reachable=_has_leaders(description),
            is_writable=_may_write(description),
        )
        settings = self._settings_of(topic)
        if settings is None:
            return limits
        in_sync_min = int(settings["min.insync.replicas"].value)
        return limits._replace(
            is_reachable=limits.is_reachable and _has_enough_in_sync(description, in_sync_min),
            message_bytes_max=int(settings["max.message.bytes"].value),
            is_append_time=settings["message.timestamp.type"].value == "LogAppendTime",
        )

    def create(self, topics: Sequence[CreateTopic]) -> list[str]:
        """Create topics and wait until each has its leaders; the names of those that this call created.

        One that came into being meanwhile is left as it is and not among them.

        Raises:
            UsageError: the cluster refuses a topic's form (more replicas than brokers, …); nothing was created.
        """
        wanted = [
            NewTopic(
                t.topic,
                num_partitions=t.partition_count,
                replication_factor=t.replication_factor or -1,
                config=dict(t.settings),
            )
            for t in topics
        ]
        # Asked first, so that a refusal leaves no half of a namespace behind.
        self._create(wanted, validate_only=True)
        created = self._create(wanted, validate_only=False)
        self._wait_for_leaders(created)
        return created

    def alter_settings(self, changes: Sequence[AlterSetting]) -> None:
        """Set these settings and no other, and wait until they are in effect.

        Raises:
            UsageError: the cluster refuses a value; what was asked for other topics may have happened.
        """
        by_topic: dict[str, list[ConfigEntry]] = {}
        for change in changes:
            entry = ConfigEntry(
                change.setting, change.wanted, incremental_operation=AlterConfigOpType.SET
            )
            by_topic.setdefault(change.topic, []).append(entry)
        if not by_topic:
            return
        resources = [
            ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            for topic, entries in by_topic.items()
        ]
        for resource, future in (
            self._connection.client()
            .incremental_alter_configs(resources, **self._connection.limits())
            .items()
        ):
            self._connection.wait(future, resource=resource.name, operation="alter configs")
        self._wait_until_seen(changes)

    # --- groups and offsets -------------------------------------------------------------------------------------------

    def group(self, group: str) -> GroupState:
        """Who is a member of a consumer group and reads what."""
        future = self._connection.client().describe_consumer_groups(
            [group], **self._connection.limits()
        )[group]
        try:
            answer = self._connection.wait(
                future,
                resource=group,
                operation="describe group",
                foreseen={KafkaError.GROUP_ID_NOT_FOUND},
            )
        except KafkaException:
            return GroupState("dead", ())
        members = tuple(
            GroupMember(
                m.member_id,
                m.client_id,
                m.host.removeprefix("/"),
                _partitions(m.assignment.topic_partitions),
            )
            for m in answer.members
        )
        return GroupState(answer.state.name.lower(), members)

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        """Those of `groups` that have a member now."""
        # One question for all of them, and not to each group's own coordinator: it may just be moving.
        future = self._connection.client().list_consumer_groups(
            states=_STATES_WITH_MEMBERS, **self._connection.limits()
        )
        answer = self._connection.wait(future, resource="consumer groups", operation="list groups")
        found = frozenset(groups) & {listing.group_id for listing in answer.valid}
        if answer.errors or found < frozenset(groups):
            # Nobody may be there, or the client does not notice where they are now.
            self._connection.doubt(answer.errors)
        return found

    def stored_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool = False
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What `group` stored for each of `partitions`, None where nothing is.

        Without `is_stable` the answer does not wait for offsets of a Kafka transaction that is still open.
        """
        if not partitions:
            return {}
        return self._group_offsets.read(group, partitions, is_stable=is_stable)

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets for a group that nobody is a member of; it need not exist.

        Raises:
            LifecycleError: the group has active members; nothing was stored.
        """
        deadline = self._connection.deadline()
        while offsets:
            request = ConsumerGroupTopicPartitions(
                group,
                [
                    ClientPartition(t, p, stored.offset, stored.metadata)
                    for (t, p), stored in offsets.items()
                ],
            )
            future = self._connection.client().alter_consumer_group_offsets(
                [request], **self._connection.limits()
            )[group]
            answer = self._connection.wait(future, resource=group, operation="store offsets")
            failed = [p for p in answer.topic_partitions if p.error is not None]
            if not failed:
                return
            error = failed[0].error
            if error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS):
                raise LifecycleError(
                    f"the group {group} has active members; stop them first", state="active"
                )
            # A topic that was just created is not known to every broker at once, a group's coordinator may be moving.
            is_passing = error.code() in _MISSING | MOVED_COORDINATOR_CODES
            if not is_passing or time.monotonic() > deadline:
                raise self._connection.translated(
                    error, resource=failed[0].topic, operation="store offsets"
                )
            time.sleep(LOOK_S)

    def start_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        return _known(self._list_offsets(partitions, OffsetSpec.earliest()))  # type: ignore[no-untyped-call]  # the client's stub says no type

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: as a `read_committed` reader sees it, else the high watermark."""
        found = self._list_offsets(partitions, OffsetSpec.latest(), is_committed=is_committed)  # type: ignore[no-untyped-call]  # the same
        return _known(found)

    def offsets_at(
        self, partitions: Collection[TopicPartition], *, at_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset whose record is of `at_ms` or later, else the next offset, per partition."""
        found = self._list_offsets(partitions, OffsetSpec.for_timestamp(at_ms))
        after = [p for p, offset in found.items() if offset < 0]
        return {**found, **self.end_offsets(after)}

    # --- what several questions share ---------------------------------------------------------------------------------

    def _create(self, wanted: list[NewTopic], *, validate_only: bool) -> list[str]:
        if not wanted:
            return []
        created = []
        futures = self._connection.client().create_topics(
            wanted, validate_only=validate_only, **self._connection.limits()
        )
        for name, future in futures.items():
            try:
                self._connection.wait(
                    future,
                    resource=name,
                    operation="create",
                    foreseen={KafkaError.TOPIC_ALREADY_EXISTS},
                )
            except KafkaException:
                continue
            created.append(name)
        return created

    def _descriptions(self, names: Collection[str]) -> dict[str, Any]:
        if not names:
            return {}
        found: dict[str, Any] = {}
        futures = self._connection.client().describe_topics(
            TopicCollection(list(names)),
            include_authorized_operations=True,
            **self._connection.limits(),
        )
        for name, future in futures.items():
            try:
                found[name] = self._connection.wait(
                    future, resource=name, operation="describe", foreseen=_MISSING
                )
            except KafkaException:
                found[name] = None
        return found

    def _settings_of(self, topic: str) -> dict[str, Any] | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._connection.client().describe_configs(
            [resource], **self._connection.limits()
        )[resource]
        try:
            entries: dict[str, Any] = self._connection.wait(
                future,
                resource=topic,
                operation="describe configs",
                foreseen={KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART},
            )
        except KafkaException:
            return None
        return entries

    def _wait_for_leaders(self, names: Collection[str]) -> None:
        deadline = self._connection.deadline()
        while not all(
            d is not None and _has_leaders(d) for d in self._descriptions(names).values()
        ):
            if time.monotonic() > deadline:
                raise RetriableError(f"created, but without a leader yet: {', '.join(names)}")
            time.sleep(LOOK_S)

    def _wait_until_seen(self, changes: Sequence[AlterSetting]) -> None:
        # Brokers follow the log of the controller: for some milliseconds a broker still shows the old value.
        deadline = self._connection.deadline()
        while not all(
            self.describe_topics([c.topic])[c.topic].settings.get(c.setting) == c.wanted
            for c in changes
        ):
            if time.monotonic() > deadline:
                raise RetriableError(
                    f"altered, but not yet in effect: {', '.join(sorted({c.topic for c in changes}))}"
                )
            time.sleep(LOOK_S)

    def _list_offsets(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        *,
        is_committed: bool = True,
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        deadline = self._connection.deadline()
        while True:
            try:
                return self._offsets_once(partitions, spec, is_committed=is_committed)
            except BrokerUnavailableError:
                raise  # it was waited for
            except RetriableError:
                # A partition is new or its leader just moved, and not every broker knows it yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)

    def _offsets_once(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec, *, is_committed: bool
    ) -> dict[TopicPartition, int]:
        isolation = (
            IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        )
        request = {ClientPartition(*p): spec for p in partitions}
        futures = self._connection.connected_client().list_offsets(
            request, isolation_level=isolation, **self._connection.limits()
        )
        return {
            (p.topic, p.partition): self._connection.wait(
                future, resource=p.topic, operation="list offsets"
            ).offset
            for p, future in futures.items()
        }


def _known(offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets themselves.

    Raises:
        RetriableError: one is none: a partition whose leader just moved was left out of the answer. Taken for an end it
            would say that there is nothing to read.
    """
    for (topic, partition), offset in offsets.items():
        if offset < 0:
            raise RetriableError(f"{topic}-{partition}: the broker said no offset")
    return offsets


def _has_leaders(description: Any) -> bool:
    return all(p.leader is not None and p.leader.id >= 0 for p in description.partitions)


def _has_enough_in_sync(description: Any, in_sync_min: int) -> bool:
    # With fewer replicas than the topic's `min.insync.replicas` a broker asks for all of them.
    return all(len(p.isr) >= min(in_sync_min, len(p.replicas)) for p in description.partitions)


def _may_write(description: Any) -> bool:
    """False only where the broker says so: some say nothing about rights."""
    operations = description.authorized_operations
    return not operations or AclOperation.WRITE in operations


def _partitions(assigned: Sequence[ClientPartition]) -> tuple[TopicPartition, ...]:
    return tuple(sorted((p.topic, p.partition) for p in assigned))
