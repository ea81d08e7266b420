"""Offsets with their metadata, over both logs; stored ones that the topics do not have, and a partition without a leader at a take-over."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest

from tests.contract.clients import TIMEOUT_S, assigned, join, open_writer, put, stable, store, store_committed, stored
from tests.contract.conftest import IN_MEMORY
from tests.contract.test_unwritten_dead_letters import NoLeader
from tests.support.broker import unique_name
from tests.support.consumers import MakeStage
from tests.support.core_records import plain_record
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from tests.support.whole_stage import Shop
from txlayer.adapters.ports import Assignment, StoredOffset, TransactionalWriter
from txlayer.adapters.readers import records_of
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.targets import Targets
from txlayer.core.ledger.batch import Batch
from txlayer.core.ledger.transaction import Transaction
from txlayer.errors import (
    BrokerUnavailableError,
    ConfigError,
    LifecycleError,
    MemberFencedError,
    RetriableError,
    TxLayerError,
)
from txlayer.runtime.environment import Environment


class Member:
    """A member of a coordinator's group that it has for itself, and its writer."""

    def __init__(self, lab: Lab) -> None:
        namespace = unique_name("ns")
        self.group, self.topic = f"{namespace}.coordinator", lab.topic(partitions=2)
        self.connections = lab.coordinator(namespace)
        self.writer = open_writer(self.connections)
        self.reader, self.share = join(self.connections, self.topic)
        self._others = ExitStack()

    def store(self, offset: int, *, metadata: str = "", writer: TransactionalWriter | None = None) -> None:
        """An offset in the open Kafka transaction."""
        store(writer or self.writer, {(self.topic, 0): offset}, self.share.member, metadata=metadata)

    def stored(self) -> int | None:
        """Whether it is stable or not."""
        return stored(self.connections, self.group, (self.topic, 0))

    def stable(self, partition: int = 0) -> StoredOffset | None:
        return stable(self.connections, self.group, (self.topic, partition))

    def wait_until_stored(self, offset: int) -> None:
        wait_until(lambda: self.stored() == offset, within=20, what=f"{offset} stored")

    def fence(self) -> None:
        """Another writer of this name begins."""
        open_writer(self.connections, self.writer.transactional_id)

    def share_with_another(self) -> list[Assignment]:
        """A second one joins: its own new share, and the other's."""
        second = self.connections.make_group_reader()
        self._others.callback(second.close)
        second.start([self.topic])
        return assigned(self.reader, second)

    def close(self) -> None:
        self._others.close()
        self.reader.close()


@pytest.fixture
def member(lab: Lab) -> Iterator[Member]:
    with closing(Member(lab)) as made:
        yield made


def test_offsets_are_stored_with_the_commit_and_their_metadata(member: Member) -> None:
    member.writer.begin()
    member.store(43, metadata="1|words")
    assert member.stored() is None

    member.writer.commit(timeout_s=TIMEOUT_S)

    assert StoredOffset(43, "1|words") == member.stable()
    assert member.stable(partition=1) is None


def test_offsets_are_gone_with_the_abort(member: Member) -> None:
    store_committed(member.writer, {(member.topic, 0): 10}, member.share.member)
    member.writer.begin()
    member.store(42)

    member.fence()

    assert StoredOffset(10, "") == member.stable()


@pytest.mark.fault("coordinator: is frozen for longer than its session, then goes on")
def test_a_stale_generation_is_refused_and_stores_nothing(member: Member) -> None:
    shares = member.share_with_another()
    assert member.share.generation < shares[0].generation

    member.writer.begin()
    with pytest.raises(MemberFencedError):
        member.store(44)
    with pytest.raises(TxLayerError):
        member.writer.commit(timeout_s=TIMEOUT_S)

    member.fence()
    assert member.stored() is None


@pytest.mark.fault("coordinator: the broker fences its writer while it is idle")
def test_a_publisher_that_was_fenced_because_the_group_went_on_writes_nothing(lab: Lab, member: Member) -> None:
    """It was frozen, so that its writers look as if they had been idle: the group tells, before a record is written."""
    clock, topic = [0.0], member.topic
    config = CoordinatorConfig(session_timeout=timedelta(seconds=6))
    book = Targets(config, member.connections)
    book.learn([topic])
    publisher = Publisher(
        config,
        name=unique_name("writer"),
        make_writer=member.connections.make_writer,
        targets=book,
        environment=Environment(clock=lambda: clock[0]),
    )
    publisher.start()
    publisher.publish([], {(topic, 0): StoredOffset(1, "")}, member.share.member)
    member.share_with_another()
    for letter in "ab":
        open_writer(member.connections, f"{publisher.name}.{letter}")
    clock[0] += 60

    record = plain_record(value=b"zombie")
    txn = Transaction("txn-1/00000000", "g", topic, 1, 0, "0", (0, 0), record)
    batch = Batch(forwards=[txn])
    with pytest.raises(MemberFencedError):
        publisher.publish([(0, batch)], {(topic, 0): StoredOffset(2, "")}, member.share.member)
    publisher.close()

    assert [] == [r.value for r in lab.read(topic, isolation="read_uncommitted")]
    assert 1 == member.stored()


def test_a_member_that_left_is_refused(member: Member) -> None:
    member.reader.close()

    member.writer.begin()
    with pytest.raises(MemberFencedError):
        member.store(44)


def test_a_member_may_store_any_partition_of_its_group(member: Member) -> None:
    # No broker checks who owns a partition: that is what the assignment's own checks are for.
    other = next(s for s in member.share_with_another() if (member.topic, 0) not in s.partitions)

    store_committed(member.writer, {(member.topic, 0): 5}, other.member)

    member.wait_until_stored(5)


def test_metadata_without_a_member_is_accepted_although_the_group_has_members(lab: Lab, member: Member) -> None:
    # The known hole: nothing fences who never joined, so `parse_member` refuses such metadata.
    store_committed(member.writer, {(member.topic, 0): 45}, lab.nobody(member.group))

    member.wait_until_stored(45)


@pytest.mark.slow
def test_a_pending_offset_keeps_the_stable_answer_away_and_nothing_else(member: Member) -> None:
    topic, connections = member.topic, member.connections
    store_committed(member.writer, {(topic, 0): 6, (topic, 1): 6}, member.share.member)
    member.wait_until_stored(6)
    member.writer.begin()
    member.store(7)

    with pytest.raises(BrokerUnavailableError):
        connections.stored_offsets(member.group, [(topic, 0)], is_stable=True)

    assert 6 == member.stored()
    other = connections.stored_offsets(member.group, [(topic, 1)], is_stable=True)[topic, 1]
    assert StoredOffset(6, "") == other
    member.writer.commit(timeout_s=TIMEOUT_S)
    assert StoredOffset(7, "") == member.stable()


def test_of_two_writers_the_newest_append_counts_whoever_ends_first(member: Member) -> None:
    other = open_writer(member.connections)
    member.writer.begin()
    member.store(10)
    other.begin()
    member.store(20, writer=other)

    other.commit(timeout_s=TIMEOUT_S)
    member.writer.commit(timeout_s=TIMEOUT_S)

    assert StoredOffset(20, "") == member.stable()


def test_metadata_that_is_too_long_is_refused(member: Member) -> None:
    member.writer.begin()

    with pytest.raises(TxLayerError, match="OFFSET_METADATA_TOO_LARGE"):
        member.store(1, metadata="x" * 4_097)


def test_offsets_and_records_of_one_kafka_transaction_end_together(lab: Lab, member: Member) -> None:
    target = lab.topic()
    member.writer.begin()
    put(member.writer, target, b"v")
    member.store(1)
    member.fence()

    assert [] == lab.read(target)
    assert member.stored() is None


def test_an_administrator_stores_offsets_only_while_nobody_is_a_member(lab: Lab) -> None:
    admin, topic, namespace = lab.admin(), lab.topic(partitions=2), unique_name("ns")
    group = f"{namespace}.coordinator"
    admin.store_offsets(group, {(topic, 0): StoredOffset(3, "by hand")})
    reader, _ = join(lab.coordinator(namespace), topic)

    assert admin.group(group).is_active
    with pytest.raises(LifecycleError):
        admin.store_offsets(group, {(topic, 0): StoredOffset(4, "")})

    reader.close()
    wait_until(lambda: not admin.group(group).is_active, within=20, what="nobody is a member")
    assert {(topic, 0): StoredOffset(3, "by hand")} == admin.stored_offsets(group, [(topic, 0)])


def test_a_group_that_never_was_stored_nothing_and_has_no_member(lab: Lab) -> None:
    admin, topic, group = lab.admin(), lab.topic(), unique_name("never")

    assert {(topic, 0): None} == admin.stored_offsets(group, [(topic, 0)])
    assert ("dead", ()) == admin.group(group)


@pytest.mark.parametrize(
    ("low_water", "half_next", "op_next", "doubt_low", "names"),
    [(3, 500, 0, 0, "half-0"), (0, 0, 300, 0, "op-0"), (0, 0, 0, 70, "doubt-0")],
    ids=["half", "op", "doubt"],
)
def test_positions_behind_the_end_of_a_topic_are_told_with_the_way_out(
    lab: Lab, low_water: int, half_next: int, op_next: int, doubt_low: int, names: str
) -> None:
    shop = Shop(lab, partition_count=1)
    metadata = f"1|txlayer.gone|{half_next}|0|{max(op_next - 5, 0)}:0|{doubt_low}"
    lab.admin().store_offsets(
        shop.topics.coordinator_group,
        {
            (shop.topics.half, 0): StoredOffset(low_water, f"1|txlayer.gone|{low_water}"),
            (shop.topics.op, 0): StoredOffset(op_next, metadata),
        },
    )
    running = shop.coordinator()
    wait_until(lambda: not running.is_alive, within=40, what="the coordinator ends")

    with pytest.raises(ConfigError, match="coordinator reset --to") as raised:
        running.stop()

    assert f"{shop.topics.namespace}.{names} ends at 0" in str(raised.value)


def test_what_was_removed_while_it_was_read_is_told_as_that(lab: Lab) -> None:
    topic = lab.topic()
    lab.write(topic, b"0", b"1", b"2")
    lab.delete_records(topic, before=2)
    connections = lab.coordinator(unique_name("ns"))

    with closing(connections.make_reader("read_committed")) as reader, pytest.raises(RetriableError, match="removed"):
        list(records_of(reader, {(topic, 0): (0, 3)}, patience_s=TIMEOUT_S))


@pytest.mark.slow
@IN_MEMORY
@pytest.mark.parametrize("is_of_requests", [False, True], ids=["topic", "replay-topic"])
def test_a_partition_without_a_leader_keeps_no_other_partition_from_being_taken_over(
    make_stage: MakeStage, *, is_of_requests: bool
) -> None:
    stage = make_stage(partitions=2)
    with stage.consumer():
        stage.write(b"1", key=b"a", partition=0)
        stage.write(b"1", key=b"b", partition=1)
        stage.journal.wait_for(2)
    cluster = NoLeader(stage.lab.consumer(namespace=stage.namespace))
    cluster.place = (stage.requests if is_of_requests else stage.topic, 0)
    stage.write(b"2", key=b"b", partition=1)
    with stage.consumer(connect=lambda _: cluster):
        try:
            wait_until(lambda: len(stage.journal.values(b"b")) == 2, within=15, what="the other partition")
        finally:
            cluster.place = None
