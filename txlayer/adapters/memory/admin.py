"""The administrator's view of a cluster in memory."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
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
        self._cluster = link.cluster
        self._timeout_s = timeout_ms / 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""

    # --- topics -------------------------------------------------------------------------------------------------------

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        found = {name: self._look_at(name, "describe configs") for name in names}
        return {
            name: TopicState(len(topic.partitions), topic.replication_factor, in_effect(topic.told))
            for name, topic in found.items()
            if topic is not None
        }

    def topic_names(self) -> frozenset[str]:
        return self._ask("Metadata", lambda: frozenset(self._cluster.topics), "topics", "list")

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
            unavailable=frozenset(n for n, partition in enumerate(found.partitions) if not partition.is_led),
            is_append_time=found.settings.is_append_time,
            closed_at_ms=closed_at_ms(found.told),
        )

    def create(self, topics: Sequence[CreateTopic]) -> list[str]:
        return [wanted.topic for wanted in topics if self._create(wanted)]

    def alter_settings(self, changes: Sequence[AlterSetting]) -> None:
        by_topic: dict[str, dict[str, str]] = {}
        for change in changes:
            by_topic.setdefault(change.topic, {})[change.setting] = change.wanted
        for name, settings in by_topic.items():
            alter = partial(self._cluster.alter_topic, name, settings)
            self._ask("IncrementalAlterConfigs", alter, name, "alter configs")

    # --- groups and offsets -------------------------------------------------------------------------------------------

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        def look() -> frozenset[str]:
            self._cluster.begin()
            return frozenset(name for name in groups if self._cluster.group(name).members)

        return self._ask("ListGroups", look, "consumer groups", "list groups")

    def group(self, group: str) -> GroupState:
        def describe() -> GroupState:
            self._cluster.begin()
            found = self._cluster.group(group)
            members = tuple(
                GroupMember(m.member_id, m.client, "memory", tuple(sorted(m.assigned))) for m in found.members.values()
            )
            return GroupState(found.state, members)

        return self._ask("DescribeGroups", describe, group, "describe group")

    def stored_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool = False
    ) -> dict[TopicPartition, StoredOffset | None]:
        if not partitions:
            return {}
        world = self._link.world
        started = world.monotonic()
        ask = partial(self._cluster.stored_offsets, group, partitions, is_stable=is_stable)
        while True:
            try:
                return self._ask("OffsetFetch", ask, group, "read stored offsets", {Code.UNSTABLE_OFFSET_COMMIT})
            except RefusedError as exc:
                waited_s = world.monotonic() - started
                if waited_s >= self._timeout_s:
                    why = f"the stored offsets of {group} did not come: some are pending"
                    raise self._unavailable(why, waited_s) from exc
            world.wait(lambda: self._is_stable(group, partitions), timeout_s=self._timeout_s - waited_s)

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        if not offsets:
            return
        store = partial(self._cluster.store_offsets, group, dict(offsets))
        is_active = {Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS}
        try:
            self._ask("OffsetCommit", store, group, "store offsets", is_active)
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
        return self._ask("Metadata", lambda: self._cluster.look_at(name), name, operation)

    def _create(self, wanted: CreateTopic) -> bool:
        create = partial(
            self._cluster.create_topic,
            wanted.topic,
            partition_count=wanted.partition_count,
            replication_factor=wanted.replication_factor or 1,
            settings=wanted.settings,
        )
        try:
            self._ask("CreateTopics", create, wanted.topic, "create", {Code.TOPIC_ALREADY_EXISTS})
        except RefusedError:
            return False
        return True

    def _offsets(
        self, partitions: Collection[TopicPartition], find: Callable[[Partition], int]
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        ask = partial(self._cluster.offsets, partitions, find)
        return self._ask("ListOffsets", ask, next(iter(partitions))[0], "list offsets")

    def _is_stable(self, group: str, partitions: Collection[TopicPartition]) -> bool:
        self._cluster.catch_up()
        return not any(map(self._cluster.group(group).is_pending, partitions))

    def _ask(
        self, request: str, act: Callable[[], T], resource: str, operation: str, foreseen: Collection[Code] = ()
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
