"""The requests that a cluster answers. Never: a thread, a wait, a clock or dice of its own.

Requests must not overlap; the world sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from txlayer.adapters.error_codes import Code
from txlayer.adapters.memory.cluster import Cluster
from txlayer.adapters.memory.groups import Member, MemberMetadata
from txlayer.adapters.memory.log import MemoryRecord, Partition, ProducerMark
from txlayer.adapters.memory.refusal import RefusedError
from txlayer.adapters.memory.transactions import TIMEOUT_MS_MAX, KafkaTransaction, Place
from txlayer.adapters.ports import StoredOffset, TopicPartition

OFFSET_METADATA_BYTES_MAX = 4_096
"""Kafka's `offset.metadata.max.bytes`."""


_PASSED_OVER = (Code.NOT_LEADER_FOR_PARTITION, Code.UNKNOWN_TOPIC_OR_PART)
"""A reader's client keeps these to itself and asks again."""


class Fetched(NamedTuple):
    """What one partition had: records, or a refusal."""

    partition: TopicPartition
    records: Sequence[MemoryRecord]
    next_position: int
    is_at_end: bool  # as this isolation sees it
    refusal: Code | None = None

    @staticmethod
    def refused(place: TopicPartition, position: int, code: Code) -> Fetched:
        """Nothing, and why."""
        return Fetched(place, (), position, is_at_end=False, refusal=code)


class Broker:
    """Whoever a client speaks to: leaders, coordinators of groups and of Kafka transactions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer_count = 1_000
        self._append_count = 0

    # --- records ------------------------------------------------------------------------------------------------------

    def produce(
        self,
        place: TopicPartition,
        records: Sequence[MemoryRecord],
        mark: ProducerMark | None = None,
        transactional_id: str | None = None,
    ) -> int:
        """Append a batch; the offset of its first record.

        Raises:
            RefusedError: nothing of it was appended.
        """
        now_ms = self._cluster.begin()
        partition = self._cluster.partition(place)
        if (
            transactional_id is not None
            and mark is not None
            and not partition.is_open(mark.producer_id)
        ):
            # As long as the partition knows it as open nobody asks the coordinator.
            self._transaction(transactional_id).check_part(mark.producer_id, mark.epoch, place)
        return partition.append(records, now_ms=now_ms, mark=mark)

    def fetch(
        self, positions: Iterable[tuple[TopicPartition, int]], *, count_max: int, is_committed: bool
    ) -> list[Fetched]:
        """Records of several partitions, at most `count_max` together."""
        self._cluster.begin()
        answers = []
        for place, position in positions:
            try:
                partition = self._cluster.partition(place)
                records, next_position = partition.read(
                    position, count_max=count_max, is_committed=is_committed
                )
            except RefusedError as exc:
                if exc.code not in _PASSED_OVER:
                    answers.append(Fetched.refused(place, position, exc.code))
                continue
            is_at_end = next_position >= partition.end(is_committed=is_committed)
            answers.append(Fetched(place, records, next_position, is_at_end))
            count_max -= len(records)
            if count_max <= 0:
                break
        return answers

    def offsets(
        self, places: Collection[TopicPartition], find: Callable[[Partition], int]
    ) -> dict[TopicPartition, int]:
        """What `find` says of each of them.

        Raises:
            RefusedError: one of them is not there.
        """
        self._cluster.begin()
        return {place: find(self._cluster.partition(place)) for place in places}

    # --- Kafka transactions -------------------------------------------------------------------------------------------

    def init_producer_id(self, transactional_id: str | None, timeout_ms: int) -> tuple[int, int]:
        """(producer id, epoch) of a new holder; what an older one left open is given up first.

        Raises:
            RefusedError: CONCURRENT_TRANSACTIONS: it is being given up, ask again.
        """
        now_ms = self._cluster.begin()
        self._producer_count += 1
        if transactional_id is None:
            return self._producer_count, 0
        if timeout_ms > TIMEOUT_MS_MAX:
            raise RefusedError(Code.INVALID_TRANSACTION_TIMEOUT)
        transaction = self._cluster.transactions.get(transactional_id)
        if transaction is None:
            transaction = KafkaTransaction(transactional_id, self._producer_count, timeout_ms)
            self._cluster.transactions[transactional_id] = transaction
        elif transaction.reopen(timeout_ms, self._producer_count):
            transaction.give_up()
            self._cluster.send_markers(transaction, now_ms)
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        return transaction.producer_id, transaction.epoch

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        places: Collection[TopicPartition],
    ) -> None:
        """The Kafka transaction is going to write there.

        Raises:
            RefusedError: nothing was added.
        """
        now_ms = self._cluster.begin()
        for place in places:
            if place[0] in self._cluster.denied:
                raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
            if place not in self._cluster.partitions:
                raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
        self._add(transactional_id, producer_id, epoch, places, now_ms)

    def add_offsets(self, transactional_id: str, producer_id: int, epoch: int, group: str) -> None:
        """The Kafka transaction is going to store offsets of a group.

        Raises:
            RefusedError: nothing was added.
        """
        self._add(transactional_id, producer_id, epoch, [group], self._cluster.begin())

    def commit_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        fence: MemberMetadata,
        offsets: Mapping[TopicPartition, StoredOffset],
    ) -> None:
        """TxnOffsetCommit: offsets that count when the Kafka transaction commits.

        Raises:
            RefusedError: none was stored.
        """
        self._cluster.begin()
        self._transaction(transactional_id).check_part(producer_id, epoch, fence.group)
        group = self._cluster.group(fence.group)
        group.check_fence(fence)
        self._check_offsets(offsets)
        pending = group.pending.setdefault(producer_id, {})
        for place, offset in offsets.items():
            self._append_count += 1
            pending[place] = (self._append_count, offset)

    def end_transaction(
        self, transactional_id: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> None:
        """EndTxn: decide the open Kafka transaction; its markers are written later.

        Raises:
            RefusedError: it was not ended by this request.
        """
        now_ms = self._cluster.begin()
        transaction = self._transaction(transactional_id)
        if transaction.end(producer_id, epoch, is_commit=is_commit):
            self._cluster.send_markers(transaction, now_ms)

    def _add(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        places: Iterable[Place],
        now_ms: int,
    ) -> None:
        transaction = self._transaction(transactional_id)
        transaction.add(producer_id, epoch, places, now_ms)
        self._cluster.due_at(transaction.due_ms)

    def _transaction(self, transactional_id: str) -> KafkaTransaction:
        transaction = self._cluster.transactions.get(transactional_id)
        if transaction is None:
            raise RefusedError(Code.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    # --- groups -------------------------------------------------------------------------------------------------------

    def join(self, name: str, member: Member, topics: Sequence[str]) -> None:
        """JoinGroup; the share comes when every member has joined."""
        now_ms = self._cluster.begin()
        group = self._cluster.group(name)
        group.join(member, topics, now_ms)
        self._cluster.due_at(group.expire(now_ms))

    def sync(self, name: str, member_id: str) -> tuple[int, tuple[TopicPartition, ...]] | None:
        """(generation, partitions) of a member; None: not every member has joined yet.

        Raises:
            RefusedError: it is no member, or must join again.
        """
        now_ms = self._cluster.begin()
        group = self._cluster.group(name)
        member = group.member(member_id)
        member.seen_ms = now_ms
        if not group.is_rebalancing:
            return group.generation, member.assigned
        if not member.has_joined:
            raise RefusedError(Code.REBALANCE_IN_PROGRESS)
        return None

    def heartbeat(self, name: str, member_id: str, generation: int) -> None:
        """A member shows that it lives.

        Raises:
            RefusedError: it lost its place, or must join again.
        """
        self._cluster.group(name).heartbeat(member_id, generation, self._cluster.begin())

    def leave(self, name: str, member_id: str) -> None:
        """A member goes."""
        now_ms = self._cluster.begin()
        group = self._cluster.group(name)
        group.leave(member_id, now_ms)
        self._cluster.due_at(group.expire(now_ms))

    def stored_offsets(
        self, name: str, places: Collection[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored.

        Raises:
            RefusedError: UNSTABLE_OFFSET_COMMIT: `is_stable`, and an offset waits for the end of its Kafka transaction.
        """
        self._cluster.begin()
        group = self._cluster.group(name)
        if is_stable and any(group.is_pending(place) for place in places):
            raise RefusedError(Code.UNSTABLE_OFFSET_COMMIT)
        return {
            place: group.stored[place][1] if place in group.stored else None for place in places
        }

    def store_as_member(
        self, fence: MemberMetadata, offsets: Mapping[TopicPartition, StoredOffset]
    ) -> None:
        """OffsetCommit of a member: of its own group, whoever owns the partitions.

        Raises:
            RefusedError: the group went on without the member, or a store cannot be. Nothing was stored.
        """
        self._cluster.begin()
        group = self._cluster.group(fence.group)
        group.check_fence(fence)
        self._check_offsets(offsets)
        for place, offset in offsets.items():
            self._append_count += 1
            group.stored[place] = (self._append_count, offset)

    def _check_offsets(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        for place, offset in offsets.items():
            if place not in self._cluster.partitions:
                raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
            if len(offset.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
                raise RefusedError(Code.OFFSET_METADATA_TOO_LARGE)

    def store_offsets(self, name: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets by an administrator's word.

        Raises:
            RefusedError: the group has members, or a partition is not there. Nothing was stored.
        """
        self._cluster.begin()
        group = self._cluster.group(name)
        if group.members:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID)
        if not offsets.keys() <= self._cluster.partitions.keys():
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
        for place, offset in offsets.items():
            self._append_count += 1
            group.stored[place] = (self._append_count, offset)
