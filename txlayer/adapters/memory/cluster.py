"""The state of a cluster, the requests that it answers, and what time does to it.

Transactions time out, sessions end, markers land and logs are cleaned when a request arrives. The world supplies the time
and sees to it that requests do not overlap.

Every request may raise `RefusedError`, with the code that Kafka answers, and `NoAnswerError` while the brokers are down.
Then nothing was changed.

Consumer groups are those of the classic protocol. The rounds of JoinGroup and SyncGroup are one step here: when every member
has joined, the group has its next generation and each member its share. A member that does not join again in time is left out.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from txlayer.adapters.errors import Code
from txlayer.adapters.memory.log import MemoryRecord, Partition, ProducerMark, TopicSettings
from txlayer.adapters.memory.world import NoAnswerError, RefusedError, World, never
from txlayer.adapters.ports import StoredOffset, TopicPartition

NEVER = float("inf")


class MemberMetadata(NamedTuple):
    """A member's fence: of one generation of one group. Without a member and with -1 it fences nothing (Kafka's hole)."""

    group: str
    member_id: str = ""
    generation: int = -1


@dataclass(slots=True, eq=False)
class Member:
    """One member as the group coordinator knows it."""

    member_id: str
    client: str
    session_ms: int
    rebalance_ms: int
    is_beating: Callable[[], bool]
    """Asked when the session would end: a client's heartbeats come from a thread of its own."""
    topics: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    has_joined: bool = False
    seen_ms: int = 0
    join_by_ms: float = NEVER


class Group:
    """One consumer group."""

    def __init__(self, counts: Callable[[Iterable[str]], Mapping[str, int]]) -> None:
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.is_rebalancing = False
        self.stored: dict[TopicPartition, tuple[int, StoredOffset]] = {}
        """(number of the append, what was stored): the newest append wins, from any writer."""
        self.pending: dict[int, dict[TopicPartition, tuple[int, StoredOffset]]] = {}
        """The same by producer id, until the marker of its Kafka transaction lands."""
        self._counts = counts

    @property
    def state(self) -> str:
        """As Kafka's administrators see it."""
        if not self.members:
            return "empty" if self.generation or self.stored or self.pending else "dead"
        return "preparing_rebalancing" if self.is_rebalancing else "stable"

    # --- members ------------------------------------------------------------------------------------------------------

    def join(self, member: Member, topics: Sequence[str], now_ms: int) -> None:
        """A member joins, or joins again; its share comes when all others have."""
        is_new = member.member_id not in self.members
        # A member that is there already keeps its share: a join may come twice.
        member = self.members.setdefault(member.member_id, member)
        member.topics = tuple(sorted(topics))
        member.seen_ms = now_ms
        if is_new and not self.is_rebalancing:
            self._begin_rebalance(now_ms)
        member.has_joined = True
        member.join_by_ms = NEVER
        self._complete()

    def leave(self, member_id: str, now_ms: int) -> None:
        if self.members.pop(member_id, None) is not None:
            self._lost_one(now_ms)

    def heartbeat(self, member_id: str, generation: int, now_ms: int) -> None:
        member = self.member(member_id)
        member.seen_ms = now_ms
        if self.is_rebalancing and not member.has_joined:
            raise RefusedError(Code.REBALANCE_IN_PROGRESS)
        if generation != self.generation:
            raise RefusedError(Code.ILLEGAL_GENERATION)

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID)
        return member

    def has_news(self, member_id: str, generation: int) -> bool:
        """True when this member's next heartbeat, or its wait for a share, would be answered with something new."""
        member = self.members.get(member_id)
        if member is None:
            return True
        if self.is_rebalancing:
            return not member.has_joined
        return generation != self.generation

    def check_fence(self, fence: MemberMetadata) -> None:
        """What a store of offsets within a Kafka transaction is checked for: neither ownership nor the group's state."""
        if fence.generation < 0 and not fence.member_id:
            return  # the known hole
        if fence.member_id not in self.members:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID)
        if fence.generation != self.generation:
            raise RefusedError(Code.ILLEGAL_GENERATION)

    def expire(self, now_ms: int) -> float:
        """Leave out whose session or time to join has ended; when to look again."""
        due = NEVER
        for member in list(self.members.values()):
            ends_ms = member.seen_ms + member.session_ms
            if ends_ms <= now_ms and member.is_beating():
                member.seen_ms = now_ms
                ends_ms = now_ms + member.session_ms
            if ends_ms <= now_ms or member.join_by_ms <= now_ms:
                del self.members[member.member_id]
                self._lost_one(now_ms)
            else:
                due = min(due, ends_ms, member.join_by_ms)
        return min(due, *(m.join_by_ms for m in self.members.values())) if self.members else due

    def look_again(self, now_ms: int) -> None:
        """Topics came or went: the members share anew."""
        if self.members and not self.is_rebalancing:
            self._begin_rebalance(now_ms)

    def _lost_one(self, now_ms: int) -> None:
        if not self.members:
            self.is_rebalancing = False
            self.generation += 1
        elif not self.is_rebalancing:
            self._begin_rebalance(now_ms)
        else:
            self._complete()

    def _begin_rebalance(self, now_ms: int) -> None:
        self.is_rebalancing = True
        for member in self.members.values():
            member.has_joined = False
            member.join_by_ms = now_ms + member.rebalance_ms

    def _complete(self) -> None:
        if not self.is_rebalancing or not all(m.has_joined for m in self.members.values()):
            return
        self.is_rebalancing = False
        self.generation += 1
        topics = {topic for member in self.members.values() for topic in member.topics}
        shares = assign_ranges({m.member_id: m.topics for m in self.members.values()}, self._counts(topics))
        for member in self.members.values():
            member.assigned = shares[member.member_id]

    # --- offsets ------------------------------------------------------------------------------------------------------

    def land_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """A Kafka transaction ended here: its offsets count, unless something newer was appended since, or are gone."""
        for tp, (number, offset) in self.pending.pop(producer_id, {}).items():
            current = self.stored.get(tp)
            if is_commit and (current is None or current[0] < number):
                self.stored[tp] = (number, offset)

    def is_pending(self, tp: TopicPartition) -> bool:
        """True while a Kafka transaction that is not ended stored an offset for it."""
        return any(tp in offsets for offsets in self.pending.values())


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """{member: partitions}: topic by topic, each member in the order of ids gets one run; the first get the rest.

    Source: Apache Kafka, org.apache.kafka.clients.consumer.RangeAssignor.
    """
    shares: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic in sorted(counts):
        members = sorted(m for m, topics in subscriptions.items() if topic in topics)
        each, rest = divmod(counts[topic], len(members)) if members else (0, 0)
        start = 0
        for number, member in enumerate(members):
            length = each + (number < rest)
            shares[member] += [(topic, p) for p in range(start, start + length)]
            start += length
    return {member: tuple(share) for member, share in shares.items()}


EPOCH_MAX = 32_766  # then the id gets a new producer id

TIMEOUT_MS_MAX = 900_000  # the broker's `transaction.max.timeout.ms`

Participant = TopicPartition | str  # where a marker goes: to a partition, or to a group


class TransactionState(Enum):
    """What the transaction coordinator knows of an id."""

    EMPTY = "empty"  #: none was begun since the init
    ONGOING = "ongoing"  #: something was added
    ENDING = "ending"  #: decided, and not every marker is written
    ENDED = "ended"  #: every marker is written


EMPTY, ONGOING, ENDING, ENDED = TransactionState


@dataclass(slots=True, eq=False)
class KafkaTransaction:
    """One transactional id, as its coordinator keeps it.

    The old protocol, which librdkafka speaks: the epoch grows at an init and at a time-out, not with every Kafka
    transaction. So a request that arrives late is taken for the present one's, as on a real broker (KAFKA-17754).
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    epoch: int = 0
    state: TransactionState = EMPTY
    is_commit: bool = False
    started_ms: int = 0
    participants: dict[Participant, None] = field(default_factory=dict)
    unmarked: set[Participant] = field(default_factory=set)

    # --- requests -----------------------------------------------------------------------------------------------------

    def reopen(self, timeout_ms: int, new_producer_id: int) -> bool:
        """InitProducerId: a newer holder. True when something is open and must be given up first (`give_up`)."""
        if self.state is ENDING:
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        if self.state is ONGOING:
            return True
        self.timeout_ms = timeout_ms
        self.state = EMPTY
        if self.epoch >= EPOCH_MAX:
            self.producer_id, self.epoch = new_producer_id, 0
        else:
            self.epoch += 1
        return False

    def add(self, producer_id: int, epoch: int, participants: Iterable[Participant], now_ms: int) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn: what the Kafka transaction is going to write to."""
        self.check(producer_id, epoch)
        if self.state is ENDING:
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        if self.state is not ONGOING:
            self.state = ONGOING
            self.started_ms = now_ms
            self.participants = {}
        self.participants.update(dict.fromkeys(participants))

    def check_part(self, producer_id: int, epoch: int, participant: Participant) -> None:
        """What a write is verified for (KIP-890, part 1)."""
        self.check(producer_id, epoch)
        if self.state is not ONGOING or participant not in self.participants:
            raise RefusedError(Code.INVALID_TXN_STATE)

    def end(self, producer_id: int, epoch: int, *, is_commit: bool) -> bool:
        """EndTxn; True when markers are to be written, False when it ended so before."""
        self.check(producer_id, epoch)
        if self.state is ONGOING:
            self._decide(is_commit=is_commit)
            return True
        if self.state is EMPTY or self.is_commit is not is_commit:
            raise RefusedError(Code.INVALID_TXN_STATE)
        if self.state is ENDING:
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        return False

    def check(self, producer_id: int, epoch: int) -> None:
        if producer_id != self.producer_id:
            raise RefusedError(Code.INVALID_PRODUCER_ID_MAPPING)
        if epoch != self.epoch:
            raise RefusedError(Code.INVALID_PRODUCER_EPOCH)

    # --- the coordinator's own doing ----------------------------------------------------------------------------------

    @property
    def due_ms(self) -> float:
        return self.started_ms + self.timeout_ms if self.state is ONGOING else NEVER

    def give_up(self) -> None:
        """Fence the holder and abort: a newer one is there, or the time is over."""
        self.epoch += 1
        self._decide(is_commit=False)

    def marked(self, participant: Participant) -> None:
        self.unmarked.discard(participant)
        if not self.unmarked:
            self.state = ENDED

    def _decide(self, *, is_commit: bool) -> None:
        self.is_commit = is_commit
        self.unmarked = set(self.participants)
        self.state = ENDING if self.unmarked else ENDED


CLEANING_MS = 15_000
"""How often logs are cleaned: Kafka's `log.cleaner.backoff.ms` (retention is looked at every 5 minutes there)."""

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

OFFSET_METADATA_BYTES_MAX = 4_096  # Kafka's `offset.metadata.max.bytes`

_PASSED_OVER = (Code.NOT_LEADER_FOR_PARTITION, Code.UNKNOWN_TOPIC_OR_PART)
"""A reader's client keeps these to itself and asks again."""


class Fetched(NamedTuple):
    """What one partition had: records, or a refusal."""

    partition: TopicPartition
    next_position: int
    records: Sequence[MemoryRecord] = ()
    is_at_end: bool = False  # as this isolation sees it
    high_watermark: int = -1  # behind the last record, committed or not
    refusal: Code | None = None


class Topic:
    """One topic."""

    def __init__(self, told: Mapping[str, str], replication_factor: int, topic_id: str) -> None:
        self.told = dict(told)
        self.topic_id = topic_id
        self.settings = TopicSettings.of(told)
        self.replication_factor = replication_factor
        self.partitions: list[Partition] = []


class Cluster:
    """All brokers, seen as one: leader of every partition, coordinator of groups and of Kafka transactions."""

    def __init__(self, world: World, *, marker_delay_ms: Callable[[], float]) -> None:
        self.topics: dict[str, Topic] = {}
        self.made_count = 0  # topics that were ever created
        self.partitions: dict[TopicPartition, Partition] = {}
        self.groups: dict[str, Group] = {}
        self.transactions: dict[str, KafkaTransaction] = {}
        self.denied: set[str] = set()  # topics that no client may read, write or describe
        self.is_up = True
        self._world = world
        self._marker_delay_ms = marker_delay_ms
        self.markers: list[tuple[float, KafkaTransaction, Participant]] = []
        """Those that are under way, each with the time of its landing."""
        self._producer_count = 1_000
        self._append_count = 0
        self.due_ms: float = NEVER  # when time alone changes something next: a world that moves its clock stops there
        self._clean_at_ms = world.now_ms() + CLEANING_MS
        self.due_at(self._clean_at_ms)

    # --- time ---------------------------------------------------------------------------------------------------------

    def catch_up(self) -> int:
        """Do what time has brought; the time."""
        now_ms = self._world.now_ms()
        if now_ms >= self.due_ms and self.is_up:
            self._catch_up(now_ms)
        return now_ms

    def clean(self) -> None:
        now_ms = self._world.now_ms()
        for partition in self.partitions.values():
            partition.clean(now_ms)

    def land_markers(self, *, count: int | None = None) -> int:
        landing = self.markers[:count]
        del self.markers[: len(landing)]
        for _, transaction, participant in landing:
            self._write_marker(transaction, participant)
        return len(landing)

    def shut_down(self) -> None:
        self.is_up = False

    def restart(self) -> None:
        """The brokers are back; sessions begin anew, as after every move of a group's coordinator."""
        now_ms = self._world.now_ms()
        for group in self.groups.values():
            for member in group.members.values():
                member.seen_ms = now_ms
        self.is_up = True

    def begin(self) -> int:
        if not self.is_up:
            raise NoAnswerError("no broker is up")
        return self.catch_up()

    def _catch_up(self, now_ms: int) -> None:
        due: float = self._clean_at_ms
        if now_ms >= due:
            self._clean_at_ms = now_ms + CLEANING_MS
            self.clean()
        for transaction in self.transactions.values():
            if transaction.due_ms <= now_ms:
                transaction.give_up()
                self.send_markers(transaction, now_ms)
        landing = [marker for marker in self.markers if marker[0] <= now_ms]
        if landing:
            self.markers = [marker for marker in self.markers if marker[0] > now_ms]
            for _, transaction, participant in landing:
                self._write_marker(transaction, participant)
        self.due_ms = min(
            self._clean_at_ms,
            *(t.due_ms for t in self.transactions.values()),
            *(marker[0] for marker in self.markers),
            *(group.expire(now_ms) for group in self.groups.values()),
            NEVER,
        )

    def due_at(self, at_ms: float) -> None:
        self.due_ms = min(self.due_ms, at_ms)

    # --- topics -------------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, *, partition_count: int, replication_factor: int, settings: Mapping[str, str]
    ) -> None:
        self.begin()
        if name in self.topics:
            raise RefusedError(Code.TOPIC_ALREADY_EXISTS)
        if TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
            raise RefusedError(Code.TOPIC_EXCEPTION)
        if partition_count < 1:
            raise RefusedError(Code.INVALID_PARTITIONS)
        if replication_factor != 1:
            raise RefusedError(Code.INVALID_REPLICATION_FACTOR)
        self.made_count += 1
        topic = Topic(settings, replication_factor, str(self.made_count))
        self.topics[name] = topic
        for number in range(partition_count):
            partition = Partition(topic.settings)
            topic.partitions.append(partition)
            self.partitions[name, number] = partition
        self._rebalance_readers_of(name)

    def delete_topic(self, name: str) -> None:
        self.begin()
        topic = self.topic(name)
        del self.topics[name]
        for number in range(len(topic.partitions)):
            del self.partitions[name, number]
        for group in self.groups.values():
            for tp in [tp for tp in group.stored if tp[0] == name]:
                del group.stored[tp]
        self._rebalance_readers_of(name)

    def alter_topic(self, name: str, settings: Mapping[str, str]) -> None:
        self.begin()
        topic = self.topic(name)
        told = {**topic.told, **settings}
        topic.settings = TopicSettings.of(told)
        topic.told = told
        for partition in topic.partitions:
            partition.settings = topic.settings

    def topic(self, name: str) -> Topic:
        if name in self.denied:
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
        topic = self.topics.get(name)
        if topic is None:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
        return topic

    def look_at(self, name: str) -> Topic | None:
        self.begin()
        if name in self.denied:
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
        return self.topics.get(name)

    def _rebalance_readers_of(self, name: str) -> None:
        now_ms = self._world.now_ms()
        for group in self.groups.values():
            if any(name in member.topics for member in group.members.values()):
                group.look_again(now_ms)
                self.due_at(group.expire(now_ms))

    def partition(self, tp: TopicPartition) -> Partition:
        partition = self.partitions.get(tp)
        if tp[0] in self.denied:
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
        if partition is None:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
        if not partition.is_led:
            raise RefusedError(Code.NOT_LEADER_FOR_PARTITION)
        return partition

    # --- Kafka transactions and groups --------------------------------------------------------------------------------

    def send_markers(self, transaction: KafkaTransaction, now_ms: int) -> None:
        """Write the markers of a Kafka transaction that is decided, now or after their delays."""
        for participant in transaction.participants:
            delay_ms = self._marker_delay_ms()
            if delay_ms <= 0:
                self._write_marker(transaction, participant)
            else:
                self.markers.append((now_ms + delay_ms, transaction, participant))
                self.due_at(now_ms + delay_ms)

    def _write_marker(self, transaction: KafkaTransaction, participant: Participant) -> None:
        if isinstance(participant, str):
            self.group(participant).land_marker(transaction.producer_id, is_commit=transaction.is_commit)
        elif participant in self.partitions:  # its topic may have been deleted
            self.partitions[participant].end_transaction(
                transaction.producer_id, transaction.epoch, is_commit=transaction.is_commit
            )
        transaction.marked(participant)

    def group(self, name: str) -> Group:
        """A group; one that never was is empty."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(self._partition_counts)
        return group

    def _partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        return {name: len(self.topics[name].partitions) for name in names if name in self.topics}

    # --- records ------------------------------------------------------------------------------------------------------

    def produce(
        self,
        tp: TopicPartition,
        records: Sequence[MemoryRecord],
        mark: ProducerMark | None = None,
        transactional_id: str | None = None,
    ) -> int:
        now_ms = self.begin()
        partition = self.partition(tp)
        if transactional_id is not None and mark is not None and not partition.is_open(mark.producer_id):
            # As long as the partition knows it as open the coordinator is not asked.
            self._transaction(transactional_id).check_part(mark.producer_id, mark.epoch, tp)
        return partition.append(records, now_ms=now_ms, mark=mark)

    def fetch(
        self, positions: Iterable[tuple[TopicPartition, int]], *, count_max: int, is_committed: bool
    ) -> list[Fetched]:
        self.begin()
        answers = []
        for tp, position in positions:
            try:
                partition = self.partition(tp)
                records, next_position = partition.read(position, count_max=count_max, is_committed=is_committed)
            except RefusedError as exc:
                if exc.code not in _PASSED_OVER:
                    answers.append(Fetched(tp, position, refusal=exc.code))
                continue
            is_at_end = next_position >= partition.end(is_committed=is_committed)
            answers.append(Fetched(tp, next_position, records, is_at_end, partition.end(is_committed=False)))
            count_max -= len(records)
            if count_max <= 0:
                break
        return answers

    def offsets(self, tps: Collection[TopicPartition], find: Callable[[Partition], int]) -> dict[TopicPartition, int]:
        self.begin()
        return {tp: find(self.partition(tp)) for tp in tps}

    # --- Kafka transactions -------------------------------------------------------------------------------------------

    def init_producer_id(self, transactional_id: str | None, timeout_ms: int) -> tuple[int, int]:
        """(producer id, epoch) of a new holder; what an older one left open is given up first."""
        now_ms = self.begin()
        self._producer_count += 1
        if transactional_id is None:
            return self._producer_count, 0
        if timeout_ms > TIMEOUT_MS_MAX:
            raise RefusedError(Code.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = KafkaTransaction(transactional_id, self._producer_count, timeout_ms)
            self.transactions[transactional_id] = transaction
        elif transaction.reopen(timeout_ms, self._producer_count):
            transaction.give_up()
            self.send_markers(transaction, now_ms)
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        return transaction.producer_id, transaction.epoch

    def add_participants(
        self, transactional_id: str, producer_id: int, epoch: int, participants: Collection[Participant]
    ) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn: what the open Kafka transaction is going to write to."""
        now_ms = self.begin()
        for tp in participants:
            if isinstance(tp, str):
                continue  # a group
            if tp[0] in self.denied:
                raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
            if tp not in self.partitions:
                raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
        transaction = self._transaction(transactional_id)
        transaction.add(producer_id, epoch, participants, now_ms)
        self.due_at(transaction.due_ms)

    def commit_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        fence: MemberMetadata,
        offsets: Mapping[TopicPartition, StoredOffset],
    ) -> None:
        """TxnOffsetCommit: offsets that count when the Kafka transaction commits."""
        self.begin()
        self._transaction(transactional_id).check_part(producer_id, epoch, fence.group)
        group = self.group(fence.group)
        group.check_fence(fence)
        self._check_offsets(offsets)
        self._append(offsets, group.pending.setdefault(producer_id, {}))

    def end_transaction(self, transactional_id: str, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        """EndTxn: decide the open Kafka transaction; its markers are written later."""
        now_ms = self.begin()
        transaction = self._transaction(transactional_id)
        if transaction.end(producer_id, epoch, is_commit=is_commit):
            self.send_markers(transaction, now_ms)

    def _transaction(self, transactional_id: str) -> KafkaTransaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise RefusedError(Code.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    # --- groups -------------------------------------------------------------------------------------------------------

    def join(self, name: str, member: Member, topics: Sequence[str]) -> None:
        """JoinGroup; the share comes when every member has joined."""
        now_ms = self.begin()
        group = self.group(name)
        group.join(member, topics, now_ms)
        self.due_at(group.expire(now_ms))

    def sync(self, name: str, member_id: str) -> tuple[int, tuple[TopicPartition, ...]] | None:
        """(generation, partitions) of a member; None: not every member has joined yet."""
        now_ms = self.begin()
        group = self.group(name)
        member = group.member(member_id)
        member.seen_ms = now_ms
        if not group.is_rebalancing:
            return group.generation, member.assigned
        if not member.has_joined:
            raise RefusedError(Code.REBALANCE_IN_PROGRESS)
        return None

    def heartbeat(self, name: str, member_id: str, generation: int) -> None:
        self.group(name).heartbeat(member_id, generation, self.begin())

    def leave(self, name: str, member_id: str) -> None:
        now_ms = self.begin()
        group = self.group(name)
        group.leave(member_id, now_ms)
        self.due_at(group.expire(now_ms))

    def stored_offsets(
        self, name: str, tps: Collection[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        self.begin()
        group = self.group(name)
        if is_stable and any(group.is_pending(tp) for tp in tps):
            raise RefusedError(Code.UNSTABLE_OFFSET_COMMIT)
        return {tp: group.stored[tp][1] if tp in group.stored else None for tp in tps}

    def store_as_member(self, fence: MemberMetadata, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """OffsetCommit of a member: of its own group, for any partition."""
        self.begin()
        group = self.group(fence.group)
        group.check_fence(fence)
        self._check_offsets(offsets)
        self._append(offsets, group.stored)

    def _append(
        self, offsets: Mapping[TopicPartition, StoredOffset], log: dict[TopicPartition, tuple[int, StoredOffset]]
    ) -> None:
        for tp, offset in offsets.items():
            self._append_count += 1
            log[tp] = (self._append_count, offset)

    def _check_offsets(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        for tp, offset in offsets.items():
            if tp not in self.partitions:
                raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
            if len(offset.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
                raise RefusedError(Code.OFFSET_METADATA_TOO_LARGE)

    def store_offsets(self, name: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        self.begin()
        group = self.group(name)
        if group.members:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID)
        if not offsets.keys() <= self.partitions.keys():
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
        self._append(offsets, group.stored)


T = TypeVar("T")

RETRY_BACKOFF_S = 0.1  # `retry.backoff.ms` of every client of ours


@dataclass(slots=True, eq=False)
class Link:
    """How one client process reaches the cluster."""

    world: World
    cluster: Cluster
    client: str
    bootstrap_servers: str

    def ask(self, request: str, act: Callable[[], T]) -> T:
        return self.world.exchange(self.client, request, act)

    def jittered(self, seconds: float) -> float:
        """As clients do: 20 % around it."""
        return seconds * (0.8 + 0.4 * self.world.random.random())

    def pause(self, seconds: float) -> None:
        """Let others run for so long."""
        self.world.wait(never, timeout_s=seconds)
