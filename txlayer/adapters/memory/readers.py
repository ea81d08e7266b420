"""What asks a cluster in memory: a reader that assigns itself, a group member, a member that stores offsets, and an administrator."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Self, TypeVar

from txlayer.adapters.connect import ANSWER_TIMEOUT_MS
from txlayer.adapters.errors import NOT_AUTHORISED_CODES, PASSING_CODES, UNAVAILABLE_CODES, Code, translate_error
from txlayer.adapters.memory.cluster import RETRY_BACKOFF_S, Fetched, Link, Member, MemberMetadata, Topic
from txlayer.adapters.memory.log import MemoryRecord, Partition, in_effect
from txlayer.adapters.memory.world import ClientError, NoAnswerError, RefusedError
from txlayer.adapters.ports import (
    Assignment,
    GroupMember,
    GroupState,
    OnRevoke,
    StoredOffset,
    TopicLimits,
    TopicPartition,
)
from txlayer.adapters.readers import LOST_TO_COORDINATOR, TranslatedMember
from txlayer.core.topics import AlterSetting, CreateTopic, TopicState, closed_at_ms
from txlayer.errors import BrokerUnavailableError, LifecycleError, TxLayerError

_TOLD_CODES = NOT_AUTHORISED_CODES | {Code.OFFSET_OUT_OF_RANGE}
"""Answers that become an error among the records; the client keeps the others to itself and asks again."""


class Reading:
    """One client's positions. One thread uses it."""

    __slots__ = ("_ended_at", "_is_committed", "_known_ends", "_link", "_paused", "_positions", "_refused", "tells_end")

    def __init__(self, link: Link, *, is_committed: bool, tells_end: bool) -> None:
        self._link = link
        self._is_committed = is_committed
        self.tells_end = tells_end
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._ended_at: dict[TopicPartition, int] = {}
        self._refused: set[TopicPartition] = set()
        self._known_ends: dict[TopicPartition, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these, and nothing else, from here; none of them is paused."""
        self._positions = dict(positions)
        self._paused.clear()
        self._ended_at.clear()
        self._refused.clear()
        self._known_ends.clear()

    def known_end(self, partition: TopicPartition) -> int | None:
        return self._known_ends.get(partition)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def read_to(self, partition: TopicPartition) -> int:
        """The position in a partition of which nothing is left to read; -1: something is."""
        position, log = (self._positions.get(partition, -1), self._link.cluster.partitions.get(partition))
        if partition in self._paused or log is None:
            return -1
        return position if log.end(is_committed=self._is_committed) == position else -1

    def is_ready(self) -> bool:
        cluster = self._link.cluster
        cluster.catch_up()
        if not cluster.is_up:
            return False
        partitions, is_committed = cluster.partitions, self._is_committed
        for tp, position in self._positions.items():
            if tp in self._paused or tp in self._refused:
                continue
            partition = partitions.get(tp)
            if partition is None:
                continue  # the client waits for the topic
            if tp[0] in cluster.denied:
                return True
            if partition.is_led and (
                partition.end(is_committed=is_committed) != position
                or (self.tells_end and self._ended_at.get(tp) != position)
            ):
                return True
        return False

    def fetch(self, count_max: int) -> list[MemoryRecord]:
        """Records and errors; an empty list when no answer came."""
        link = self._link
        wanted = [
            (tp, position)
            for tp, position in self._positions.items()
            if tp not in self._paused and tp not in self._refused
        ]
        if not wanted:
            return []
        # A broker serves the partitions of a request in turn.
        first = link.world.random.randrange(len(wanted))
        wanted = wanted[first:] + wanted[:first]
        try:
            answers = link.ask(
                "Fetch", lambda: link.cluster.fetch(wanted, count_max=count_max, is_committed=self._is_committed)
            )
        except NoAnswerError:
            link.pause(link.jittered(RETRY_BACKOFF_S))
            return []
        except RefusedError as exc:
            if exc.code not in _TOLD_CODES:
                link.pause(link.jittered(RETRY_BACKOFF_S))
                return []
            tp, position = wanted[0]
            answers = [Fetched(tp, position, refusal=exc.code)]
        return [record for answer in answers for record in self._taken(answer)]

    def _taken(self, answer: Fetched) -> Iterable[MemoryRecord]:
        tp = answer.partition
        if answer.refusal is not None:
            self._refused.add(tp)
            out_of_range = answer.refusal is Code.OFFSET_OUT_OF_RANGE
            code = Code.LOCAL_AUTO_OFFSET_RESET if out_of_range else answer.refusal
            return [_telling(tp, answer.next_position, code)]
        self._positions[tp] = answer.next_position
        self._known_ends[tp] = answer.high_watermark
        if self.tells_end and answer.is_at_end and self._ended_at.get(tp) != answer.next_position:
            self._ended_at[tp] = answer.next_position
            end = _telling(tp, answer.next_position, Code.LOCAL_PARTITION_EOF)
            return [*answer.records, end]
        return answer.records


def _telling(tp: TopicPartition, offset: int, code: Code) -> MemoryRecord:
    return MemoryRecord(*tp, None, None, None, log_offset=offset, error=ClientError(code))


POLL_INTERVAL_MAX_MS = 60_000
"""The group client's `max.poll.interval.ms`: a member that does not read for so long leaves the group, with or without heartbeats."""

STEPS_MAX = 8  # requests to the group within one read: bounds a read while everything changes


class MemoryLogReader:
    """Reads partitions that it names itself and reports the end of each. One thread uses it."""

    def __init__(self, link: Link, *, isolation: str = "read_committed", **_fetching: object) -> None:
        self._link = link
        self._is_committed = isolation == "read_committed"
        self._reading = Reading(link, is_committed=self._is_committed, tells_end=True)
        self.assign = self._reading.assign

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        if not self._link.world.wait(self._reading.is_ready, timeout_s=timeout_s):
            return ()
        return self._reading.fetch(record_count_max)

    def pause(self, partition: TopicPartition) -> None:
        self._reading.pause([partition])

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        admin = MemoryAdmin(self._link, timeout_ms=int(timeout_s * 1000))
        return admin.watermarks(partition, is_committed=self._is_committed)

    def close(self) -> None:
        self._reading.assign({})


class Membership(Enum):
    """What a client knows of its membership."""

    IDLE = "idle"  #: not started, or closed
    OUT = "out"  #: it must join
    JOINING = "joining"  #: it joined, and others have not yet
    IN = "in"  #: it has its share


class MemoryGroupReader(TranslatedMember):
    """A member of a group. One thread uses it; its heartbeats count as sent while its client runs."""

    def __init__(
        self,
        link: Link,
        *,
        group: str,
        session_timeout_ms: int,
        busy_ms: int = 0,
        lost_to: str | None = LOST_TO_COORDINATOR,
        **_fetching: object,
    ) -> None:
        super().__init__(group=group, bootstrap_servers=link.bootstrap_servers, lost_to=lost_to)
        self._link = link
        self._session_ms = session_timeout_ms
        self._poll_s_max = max(POLL_INTERVAL_MAX_MS, session_timeout_ms, busy_ms) / 1000
        self._reading = reading = Reading(link, is_committed=True, tells_end=False)
        self.pause, self.resume = reading.pause, reading.resume
        self.read_to, self.known_end = reading.read_to, reading.known_end
        self._topics: tuple[str, ...] = ()
        self._state = Membership.IDLE
        self._member_id = ""
        self._generation = -1
        self._ask_again_at = 0.0
        self._read_at = 0.0

    # --- the port -----------------------------------------------------------------------------------------------------

    def start(self, topics: Sequence[str]) -> None:
        self._topics = tuple(topics)
        self._state = Membership.OUT
        self._read_at = self._link.world.monotonic()

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        self._reached.clear()
        self._reading.assign(positions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        self._check_poll_interval()
        if not self._wait(timeout_s):
            return ()
        self._serve_group()
        if self._state is not Membership.IN or not self._reading.is_ready():
            return ()
        records = self._reading.fetch(record_count_max)
        return [record for record in records if not self._is_error(record)]

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        return MemoryAdmin(self._link, timeout_ms=int(timeout_s * 1000)).watermarks(partition, is_committed=True)

    def close(self) -> None:
        member_id, cluster = self._member_id, self._link.cluster
        is_member = self._state in (Membership.JOINING, Membership.IN)
        self._state = Membership.IDLE
        self._reading.assign({})
        if is_member:
            try:
                self._link.ask("LeaveGroup", lambda: cluster.leave(self._group, member_id))
            except (NoAnswerError, RefusedError):
                return  # the session ends by itself

    # --- the group ----------------------------------------------------------------------------------------------------

    def _check_poll_interval(self) -> None:
        now = self._link.world.monotonic()
        is_late = now - self._read_at >= self._poll_s_max
        self._read_at = now
        if is_late and self._state in (Membership.JOINING, Membership.IN):
            self._on_refusal(Code.UNKNOWN_MEMBER_ID)  # the client itself left the group
            raise self.read_error(ClientError(Code.LOCAL_MAX_POLL_EXCEEDED))

    def _wait(self, timeout_s: float) -> bool:
        world = self._link.world
        deadline = world.monotonic() + timeout_s
        while True:
            now = world.monotonic()
            rest_s = self._ask_again_at - now if self._ask_again_at > now else float("inf")
            if world.wait(self._has_something, timeout_s=max(min(deadline - now, rest_s), 0.0)):
                return True
            if world.monotonic() >= deadline:
                return False

    def _has_something(self) -> bool:
        if self._state is Membership.IDLE:
            return False
        cluster = self._link.cluster
        cluster.catch_up()
        if self._state is Membership.OUT:
            return cluster.is_up and self._link.world.monotonic() >= self._ask_again_at
        return self._has_news() or (self._state is Membership.IN and self._reading.is_ready())

    def _has_news(self) -> bool:
        cluster = self._link.cluster
        if not cluster.is_up or self._link.world.monotonic() < self._ask_again_at:
            return False
        group = cluster.group(self._group)
        if self._state is Membership.JOINING:
            return not group.is_rebalancing or group.has_news(self._member_id, self._generation)
        return group.has_news(self._member_id, self._generation)

    def _serve_group(self) -> None:
        for _ in range(STEPS_MAX):
            try:
                if self._state is Membership.OUT:
                    self._join()
                elif not self._has_news():
                    return
                elif self._state is Membership.JOINING:
                    self._sync()
                else:
                    member_id, generation = self._member_id, self._generation
                    heartbeat = partial(self._link.cluster.heartbeat, self._group, member_id, generation)
                    self._link.ask("Heartbeat", heartbeat)
            except NoAnswerError:
                self._rest()
                return
            except RefusedError as exc:
                self._on_refusal(exc.code)
                if exc.code in PASSING_CODES:
                    return

    def _join(self) -> None:
        link, topics = self._link, self._topics
        if not self._member_id:
            # Drawn by the client: a join whose answer is lost leaves no orphaned member behind.
            self._member_id = f"rdkafka-{link.world.random.getrandbits(64):016x}"
        member = Member(
            self._member_id,
            link.client,
            session_ms=self._session_ms,
            rebalance_ms=int(self._poll_s_max * 1000),
            is_beating=partial(self._is_beating, self._member_id),
        )
        link.ask("JoinGroup", lambda: link.cluster.join(self._group, member, topics))
        self._state = Membership.JOINING

    def _sync(self) -> None:
        link, member_id = self._link, self._member_id
        share = link.ask("SyncGroup", lambda: link.cluster.sync(self._group, member_id))
        if share is None:
            return
        self._generation, partitions = share
        self._state = Membership.IN
        self._assignment = Assignment(
            tuple(sorted(partitions)), MemberMetadata(self._group, member_id, self._generation), self._generation
        )

    def _on_refusal(self, code: Code) -> None:
        if code in PASSING_CODES:
            self._rest()
            return
        if code in NOT_AUTHORISED_CODES:
            raise self.read_error(ClientError(code))
        if self._state is Membership.IN:
            self._before_revocation(is_lost=code is not Code.REBALANCE_IN_PROGRESS)
            self._assignment = None
            self._is_revoked = True
            self._reading.assign({})
        if code is Code.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        self._state = Membership.OUT

    def _before_revocation(self, *, is_lost: bool) -> None:
        """For members that must finish something first."""

    def _rest(self) -> None:
        self._ask_again_at = self._link.world.monotonic() + self._link.jittered(RETRY_BACKOFF_S)

    def _is_beating(self, member_id: str) -> bool:
        world = self._link.world
        return (
            self._state is not Membership.IDLE
            and self._member_id == member_id
            and world.is_running(self._link.client)
            and world.monotonic() - self._read_at < self._poll_s_max
        )


Offsets = Mapping[TopicPartition, StoredOffset]


class MemoryStoringGroupReader(MemoryGroupReader):
    """A member that stores offsets. One thread uses it. A store that was begun is sent with the next read, and again while no answer comes."""

    def __init__(self, link: Link, *, group: str, **membership: Any) -> None:
        super().__init__(link, group=group, lost_to=None, **membership)
        self._reading.tells_end = True
        self._begun: dict[TopicPartition, StoredOffset] | None = None
        self._end: TxLayerError | bool = False

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        self._hook = on_revoke
        super().start(topics)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[object]:
        self._send_begun()
        records = super().read(record_count_max=record_count_max, timeout_s=timeout_s)
        self._raise_failure()
        return records

    def begin_store(self, offsets: Offsets) -> None:
        if self._begun is not None or self._end is not False:
            raise LifecycleError("a store of offsets is under way", state="storing")
        self._begun = dict(offsets)

    def take_stored(self) -> bool:
        end, self._end = self._end, False
        if isinstance(end, TxLayerError):
            raise end
        return end

    def store_offsets(self, offsets: Offsets, *, timeout_s: float) -> None:
        """Store these and wait for the acknowledgement; what was begun is older, and given up."""
        self._begun, self._end = None, False
        link = self._link
        deadline = link.world.monotonic() + timeout_s
        while True:
            try:
                self._ask_to_store(offsets)
            except NoAnswerError as exc:
                if link.world.monotonic() >= deadline:
                    raise BrokerUnavailableError(
                        "offsets were not stored in time",
                        bootstrap_servers=link.bootstrap_servers,
                        waited_ms=int(timeout_s * 1000),
                    ) from exc
                link.pause(link.jittered(RETRY_BACKOFF_S))
            else:
                return

    def close(self) -> None:
        if self._state is Membership.IN:
            self._before_revocation(is_lost=False)
        super().close()

    def _before_revocation(self, *, is_lost: bool) -> None:
        self._call_hook(is_lost=is_lost)
        # What a lost session left under way is fenced by its generation.
        self._begun, self._end = None, False

    def _send_begun(self) -> None:
        offsets = self._begun
        if offsets is None:
            return
        try:
            self._ask_to_store(offsets)
        except NoAnswerError:
            return
        except TxLayerError as exc:
            self._begun, self._end = None, exc
        else:
            self._begun, self._end = None, True

    def _ask_to_store(self, offsets: Offsets) -> None:
        link = self._link
        fence = MemberMetadata(self._group, self._member_id, self._generation)
        try:
            link.ask("OffsetCommit", lambda: link.cluster.store_as_member(fence, offsets))
        except RefusedError as exc:
            gone = next((topic for topic, number in offsets if (topic, number) not in link.cluster.partitions), "")
            raise self.store_error(ClientError(exc.code), topic=gone) from exc


# --- the administrator's view ----------------------------------------------------------------------------------------


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
            topic_id=found.topic_id,
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
