"""The administrator's view of a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self, TypeVar

from txlayer.adapters.connect import ANSWER_TIMEOUT_MS
from txlayer.adapters.errors import UNAVAILABLE_CODES, Code, translate_error
from txlayer.adapters.memory.cluster import RETRY_BACKOFF_S, Link, Topic
from txlayer.adapters.memory.log import Partition, in_effect
from txlayer.adapters.memory.world import ClientError, NoAnswerError, RefusedError
from txlayer.adapters.ports import GroupMember, GroupState, StoredOffset, TopicLimits, TopicPartition
from txlayer.core.topics import AlterSetting, CreateTopic, TopicState, closed_at_ms
from txlayer.errors import BrokerUnavailableError, LifecycleError

T = TypeVar("T")


class MemoryAdmin:
    """The `Administration` of a cluster in memory, for one thread at a time."""

    def __init__(self, link: Link, *, timeout_ms: int = ANSWER_TIMEOUT_MS) -> None:
        self._link = link
        self._timeout_s = timeout_ms / 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""

    # --- topics -------------------------------------------------------------------------------------------------------

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        found = {}
        for name in names:
            topic = self._look_at(name, "describe configs")
            if topic is not None:
                found[name] = TopicState(len(topic.partitions), topic.replication_factor, in_effect(topic.told))
        return found

    def topic_names(self) -> frozenset[str]:
        cluster = self._link.cluster
        return self._ask("Metadata", lambda: frozenset(cluster.topics), resource="topics", operation="list")

    def partition_count(self, topic: str) -> int | None:
        found = self._look_at(topic, "describe")
        return None if found is None else len(found.partitions)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        found = self._look_at(topic, "describe")
        if found is None:
            return None
        return TopicLimits(
            partition_count=len(found.partitions),
            message_bytes_max=found.settings.message_bytes_max,
            is_reachable=all(partition.is_led for partition in found.partitions),
            is_append_time=found.settings.is_append_time,
            closed_at_ms=closed_at_ms(found.told),
        )

    def create(self, topics: Sequence[CreateTopic]) -> list[str]:
        return [wanted.topic for wanted in topics if self._create(wanted)]

    def alter_settings(self, changes: Sequence[AlterSetting]) -> None:
        cluster = self._link.cluster
        by_topic: dict[str, dict[str, str]] = {}
        for change in changes:
            by_topic.setdefault(change.topic, {})[change.setting] = change.wanted
        for name, settings in by_topic.items():
            self._ask(
                "IncrementalAlterConfigs",
                lambda name=name, settings=settings: cluster.alter_topic(name, settings),  # type: ignore[misc]  # mypy infers no lambda with defaults
                resource=name,
                operation="alter configs",
            )

    # --- groups and offsets -------------------------------------------------------------------------------------------

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        cluster = self._link.cluster

        def look() -> frozenset[str]:
            cluster.begin()
            return frozenset(name for name in groups if cluster.group(name).members)

        return self._ask("ListGroups", look, resource="consumer groups", operation="list groups")

    def group(self, group: str) -> GroupState:
        cluster = self._link.cluster

        def describe() -> GroupState:
            cluster.begin()
            found = cluster.group(group)
            members = tuple(
                GroupMember(m.member_id, m.client, "memory", tuple(sorted(m.assigned))) for m in found.members.values()
            )
            return GroupState(found.state, members)

        return self._ask("DescribeGroups", describe, resource=group, operation="describe group")

    def stored_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool = False
    ) -> dict[TopicPartition, StoredOffset | None]:
        if not partitions:
            return {}
        link = self._link
        started = link.world.monotonic()
        while True:
            try:
                return self._ask(
                    "OffsetFetch",
                    lambda: link.cluster.stored_offsets(group, partitions, is_stable=is_stable),
                    resource=group,
                    operation="read stored offsets",
                    foreseen={Code.UNSTABLE_OFFSET_COMMIT},
                )
            except RefusedError as exc:
                waited_s = link.world.monotonic() - started
                if waited_s >= self._timeout_s:
                    why = f"the stored offsets of {group} did not come: some are pending"
                    raise self._unavailable(why, waited_s) from exc
            link.world.wait(lambda: self._is_stable(group, partitions), timeout_s=self._timeout_s - waited_s)

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        cluster, wanted = self._link.cluster, dict(offsets)
        if not wanted:
            return
        try:
            self._ask(
                "OffsetCommit",
                lambda: cluster.store_offsets(group, wanted),
                resource=group,
                operation="store offsets",
                foreseen={Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS},
            )
        except RefusedError as exc:
            raise LifecycleError(f"the group {group} has active members; stop them first", state="active") from exc

    def start_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, lambda p: p.first_offset)

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        return self._offsets(partitions, lambda p: p.end(is_committed=is_committed))

    def offsets_at(self, partitions: Collection[TopicPartition], *, at_ms: int) -> dict[TopicPartition, int]:
        found = self._offsets(partitions, lambda p: p.offset_at(at_ms, is_committed=True))
        after = [tp for tp, offset in found.items() if offset < 0]
        return {**found, **self.end_offsets(after)}

    def watermarks(self, partition: TopicPartition, *, is_committed: bool) -> tuple[int, int]:
        first = self._offsets([partition], lambda p: p.first_offset)[partition]
        return first, self.end_offsets([partition], is_committed=is_committed)[partition]

    # --- what several questions share ---------------------------------------------------------------------------------

    def _look_at(self, name: str, operation: str) -> Topic | None:
        cluster = self._link.cluster
        return self._ask("Metadata", lambda: cluster.look_at(name), resource=name, operation=operation)

    def _create(self, wanted: CreateTopic) -> bool:
        cluster = self._link.cluster

        def create() -> None:
            cluster.create_topic(
                wanted.topic,
                partition_count=wanted.partition_count,
                replication_factor=wanted.replication_factor or 1,
                settings=wanted.settings,
            )

        try:
            self._ask(
                "CreateTopics", create, resource=wanted.topic, operation="create", foreseen={Code.TOPIC_ALREADY_EXISTS}
            )
        except RefusedError:
            return False
        return True

    def _offsets(
        self, partitions: Collection[TopicPartition], find: Callable[[Partition], int]
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        cluster = self._link.cluster
        return self._ask(
            "ListOffsets",
            lambda: cluster.offsets(partitions, find),
            resource=next(iter(partitions))[0],
            operation="list offsets",
        )

    def _is_stable(self, group: str, partitions: Collection[TopicPartition]) -> bool:
        self._link.cluster.catch_up()
        found = self._link.cluster.group(group)
        return not any(found.is_pending(tp) for tp in partitions)

    def _ask(
        self, request: str, act: Callable[[], T], *, resource: str, operation: str, foreseen: Collection[Code] = ()
    ) -> T:
        link, started = self._link, self._link.world.monotonic()
        while True:
            try:
                return link.ask(request, act)
            except NoAnswerError as exc:
                trouble: Exception = exc
            except RefusedError as exc:
                if exc.code in foreseen:
                    raise
                if exc.code not in UNAVAILABLE_CODES:
                    raise translate_error(
                        ClientError(exc.code),
                        bootstrap_servers=link.bootstrap_servers,
                        topic=resource,
                        resource=resource,
                        operation=operation,
                    ) from exc
                trouble = exc
            waited_s = link.world.monotonic() - started
            if waited_s >= self._timeout_s:
                raise self._unavailable(f"no broker answered: {trouble}", waited_s) from trouble
            link.pause(min(link.jittered(RETRY_BACKOFF_S), self._timeout_s - waited_s))

    def _unavailable(self, why: str, waited_s: float) -> BrokerUnavailableError:
        servers = self._link.bootstrap_servers
        return BrokerUnavailableError(why, bootstrap_servers=servers, waited_ms=int(waited_s * 1000))
