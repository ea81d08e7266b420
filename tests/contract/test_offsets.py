"""Offsets with their metadata, over both logs; stored ones that the topics do not have, and a partition without a leader at a take-over."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from tests.contract.clients import TIMEOUT_S, assigned, join, open_writer, put, stable, store, store_committed, stored
from tests.contract.test_unwritten_dead_letters import NoLeader
from tests.support.broker import unique_name
from tests.support.consumers import Stage
from tests.support.core_records import plain_record
from tests.support.lab import Lab
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import wait_until
from tests.support.whole_stage import Shop
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import Assignment, GroupReader, StoredOffset, TransactionalWriter
from txlayer.adapters.readers import records_of
from txlayer.config import ConsumerConfig, CoordinatorConfig
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


@pytest.fixture
def namespace() -> str:
    return unique_name("ns")


@pytest.fixture
def group(namespace: str) -> str:
    return f"{namespace}.coordinator"


@pytest.fixture
def connections(lab: Lab, namespace: str) -> CoordinatorConnections:
    return lab.coordinator(namespace)


@pytest.fixture
def topic(lab: Lab) -> str:
    return lab.topic(partitions=2)


@pytest.fixture
def writer(connections: CoordinatorConnections) -> TransactionalWriter:
    return open_writer(connections)


@pytest.fixture
def joined(connections: CoordinatorConnections, topic: str) -> Iterator[tuple[GroupReader, Assignment]]:
    """A member of a group that it has for itself."""
    reader, share = join(connections, topic)
    yield reader, share
    reader.close()


def wait_until_stored(connections: CoordinatorConnections, group: str, topic: str, offset: int) -> None:
    wait_until(lambda: stored(connections, group, (topic, 0)) == offset, within=20, what=f"{offset} stored")


def test_offsets_are_stored_with_the_commit_and_their_metadata(
    connections: CoordinatorConnections,
    writer: TransactionalWriter,
    joined: tuple[GroupReader, Assignment],
    group: str,
    topic: str,
) -> None:
    writer.begin()
    store(writer, {(topic, 0): 43}, joined[1].member, metadata="1|words")
    assert stored(connections, group, (topic, 0)) is None

    writer.commit(timeout_s=TIMEOUT_S)

    assert StoredOffset(43, "1|words") == stable(connections, group, (topic, 0))
    assert stable(connections, group, (topic, 1)) is None


def test_offsets_are_gone_with_the_abort(
    connections: CoordinatorConnections,
    writer: TransactionalWriter,
    joined: tuple[GroupReader, Assignment],
    group: str,
    topic: str,
) -> None:
    store_committed(writer, {(topic, 0): 10}, joined[1].member)
    writer.begin()
    store(writer, {(topic, 0): 42}, joined[1].member)

    open_writer(connections, writer.transactional_id)

    assert StoredOffset(10, "") == stable(connections, group, (topic, 0))


@pytest.mark.fault("coordinator: is frozen for longer than its session, then goes on")
def test_a_stale_generation_is_refused_and_stores_nothing(
    connections: CoordinatorConnections,
    writer: TransactionalWriter,
    joined: tuple[GroupReader, Assignment],
    group: str,
    topic: str,
) -> None:
    first, share = joined
    second = connections.make_group_reader()
    second.start([topic])
    shares = assigned(first, second)
    assert share.generation < shares[0].generation

    writer.begin()
    with pytest.raises(MemberFencedError):
        store(writer, {(topic, 0): 44}, share.member)
    with pytest.raises(TxLayerError):
        writer.commit(timeout_s=TIMEOUT_S)

    open_writer(connections, writer.transactional_id)
    assert stored(connections, group, (topic, 0)) is None
    second.close()


@pytest.mark.fault("coordinator: the broker fences its writer while it is idle")
def test_a_publisher_that_was_fenced_because_the_group_went_on_writes_nothing(
    lab: Lab, connections: CoordinatorConnections, joined: tuple[GroupReader, Assignment], group: str, topic: str
) -> None:
    """It was frozen, so that its writers look as if they had been idle: the group tells, before a record is written."""
    clock = [0.0]
    config = CoordinatorConfig(session_timeout=timedelta(seconds=6))
    book = Targets(config, connections)
    book.learn([topic])
    publisher = Publisher(
        config,
        name=unique_name("writer"),
        make_writer=connections.make_writer,
        targets=book,
        environment=Environment(clock=lambda: clock[0]),
    )
    publisher.start()
    first, share = joined
    offsets = {(topic, 0): StoredOffset(1, "")}
    publisher.publish([], offsets, share.member)
    second = connections.make_group_reader()
    second.start([topic])
    assigned(first, second)
    for letter in "ab":
        open_writer(connections, f"{publisher.name}.{letter}")
    clock[0] += 60

    record = plain_record(value=b"zombie")
    txn = Transaction("txn-1/00000000", "g", topic, 1, 0, "0", (0, 0), record)
    batch = Batch(forwards=[txn])
    with pytest.raises(MemberFencedError):
        publisher.publish([(0, batch)], {(topic, 0): StoredOffset(2, "")}, share.member)
    publisher.close()

    assert [] == [r.value for r in lab.read(topic, isolation="read_uncommitted")]
    assert 1 == stored(connections, group, (topic, 0))
    second.close()


def test_a_member_that_left_is_refused(
    connections: CoordinatorConnections, writer: TransactionalWriter, topic: str
) -> None:
    reader, share = join(connections, topic)
    reader.close()

    writer.begin()
    with pytest.raises(MemberFencedError):
        store(writer, {(topic, 0): 44}, share.member)


def test_a_member_may_store_any_partition_of_its_group(
    connections: CoordinatorConnections,
    writer: TransactionalWriter,
    joined: tuple[GroupReader, Assignment],
    group: str,
    topic: str,
) -> None:
    # No broker checks who owns a partition: that is what the assignment's own checks are for.
    first, _ = joined
    second = connections.make_group_reader()
    second.start([topic])
    shares = assigned(first, second)
    other = next(s for s in shares if (topic, 0) not in s.partitions)

    store_committed(writer, {(topic, 0): 5}, other.member)

    wait_until_stored(connections, group, topic, 5)
    second.close()


@pytest.mark.usefixtures("joined")
def test_metadata_without_a_member_is_accepted_although_the_group_has_members(
    lab: Lab, connections: CoordinatorConnections, writer: TransactionalWriter, group: str, topic: str
) -> None:
    # The known hole: nothing fences who never joined, so `parse_member` refuses such metadata.
    store_committed(writer, {(topic, 0): 45}, lab.nobody(group))

    wait_until_stored(connections, group, topic, 45)


@pytest.mark.slow
def test_a_pending_offset_keeps_the_stable_answer_away_and_nothing_else(
    connections: CoordinatorConnections,
    writer: TransactionalWriter,
    joined: tuple[GroupReader, Assignment],
    group: str,
    topic: str,
) -> None:
    store_committed(writer, {(topic, 0): 6, (topic, 1): 6}, joined[1].member)
    wait_until_stored(connections, group, topic, 6)
    writer.begin()
    store(writer, {(topic, 0): 7}, joined[1].member)

    with pytest.raises(BrokerUnavailableError):
        connections.stored_offsets(group, [(topic, 0)], is_stable=True)

    assert 6 == stored(connections, group, (topic, 0))
    other = connections.stored_offsets(group, [(topic, 1)], is_stable=True)[topic, 1]
    assert StoredOffset(6, "") == other
    writer.commit(timeout_s=TIMEOUT_S)
    assert StoredOffset(7, "") == stable(connections, group, (topic, 0))


def test_of_two_writers_the_newest_append_counts_whoever_ends_first(
    connections: CoordinatorConnections,
    writer: TransactionalWriter,
    joined: tuple[GroupReader, Assignment],
    group: str,
    topic: str,
) -> None:
    other = open_writer(connections)
    writer.begin()
    store(writer, {(topic, 0): 10}, joined[1].member)
    other.begin()
    store(other, {(topic, 0): 20}, joined[1].member)

    other.commit(timeout_s=TIMEOUT_S)
    writer.commit(timeout_s=TIMEOUT_S)

    assert StoredOffset(20, "") == stable(connections, group, (topic, 0))


def test_metadata_that_is_too_long_is_refused(
    writer: TransactionalWriter, joined: tuple[GroupReader, Assignment], topic: str
) -> None:
    writer.begin()

    with pytest.raises(TxLayerError, match="OFFSET_METADATA_TOO_LARGE"):
        store(writer, {(topic, 0): 1}, joined[1].member, metadata="x" * 4_097)


def test_offsets_and_records_of_one_kafka_transaction_end_together(
    lab: Lab,
    connections: CoordinatorConnections,
    writer: TransactionalWriter,
    joined: tuple[GroupReader, Assignment],
    group: str,
    topic: str,
) -> None:
    target = lab.topic()
    writer.begin()
    put(writer, target, b"v")
    store(writer, {(topic, 0): 1}, joined[1].member)
    open_writer(connections, writer.transactional_id)

    assert [] == lab.read(target)
    assert stored(connections, group, (topic, 0)) is None


def test_an_administrator_stores_offsets_only_while_nobody_is_a_member(
    lab: Lab, connections: CoordinatorConnections, group: str, topic: str
) -> None:
    admin = lab.admin()
    admin.store_offsets(group, {(topic, 0): StoredOffset(3, "by hand")})
    reader, _ = join(connections, topic)

    assert admin.group(group).is_active
    with pytest.raises(LifecycleError):
        admin.store_offsets(group, {(topic, 0): StoredOffset(4, "")})

    reader.close()
    wait_until(lambda: not admin.group(group).is_active, within=20, what="nobody is a member")
    assert {(topic, 0): StoredOffset(3, "by hand")} == admin.stored_offsets(group, [(topic, 0)])


def test_a_group_that_never_was_stored_nothing_and_has_no_member(lab: Lab, topic: str) -> None:
    admin, group = lab.admin(), unique_name("never")

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


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(MemoryLab(), partitions=2)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_of_requests", [False, True], ids=["topic", "replay-topic"])
def test_a_partition_without_a_leader_keeps_no_other_partition_from_being_taken_over(
    stage: Stage, *, is_of_requests: bool
) -> None:
    with stage.consumer() as consumer:
        stage.write(b"1", key=b"a", partition=0)
        stage.write(b"1", key=b"b", partition=1)
        stage.journal.wait_for(2)
    config = ConsumerConfig(bootstrap_servers=stage.lab.servers, namespace=stage.namespace)
    cluster = NoLeader(stage.lab.connect_consumer(config))
    cluster.place = (stage.requests if is_of_requests else stage.topic, 0)
    stage.write(b"2", key=b"b", partition=1)
    with stage.consumer(connect=lambda _: cluster) as consumer:
        try:
            wait_until(lambda: len(stage.journal.values(b"b")) == 2, within=15, what="the other partition")
        finally:
            cluster.place = None
    assert consumer
