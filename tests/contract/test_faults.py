"""Answers that are lost and requests that come late: what the client hides, and what it cannot.

The way to the cluster is harmed by a proxy, or by the fault plan of the cluster in memory.
"""

from datetime import timedelta

import pytest

from tests.contract.clients import (
    TIMEOUT_S,
    assigned,
    join,
    open_writer,
    put,
    seen,
    stable,
    store,
    store_committed,
    wait_for,
    write_committed,
)
from tests.support.lab import FaultyLab
from tests.support.waiting import wait_until
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import StoredOffset
from txlayer.errors import FencedError, MemberFencedError


@pytest.fixture
def connections(faulty_lab: FaultyLab, namespace: str) -> CoordinatorConnections:
    return faulty_lab.distant(namespace)


@pytest.mark.fault("network: connections are cut")
@pytest.mark.parametrize("request_kind", ["EndTxn", "Produce", "AddPartitionsToTxn"])
def test_a_lost_answer_is_asked_for_again_without_a_word_and_nothing_is_doubled(
    faulty_lab: FaultyLab, connections: CoordinatorConnections, request_kind: str
) -> None:
    topic = faulty_lab.topic()
    writer = open_writer(connections)
    faulty_lab.lose_answer(request_kind)

    write_committed(writer, topic, b"v")

    assert 1 == faulty_lab.lost_count(request_kind)
    wait_for(faulty_lab, topic, [b"v"])
    assert [(0, b"v")] == seen(faulty_lab, topic, isolation="read_uncommitted")
    write_committed(writer, topic, b"next")
    wait_for(faulty_lab, topic, [b"v", b"next"])


def test_a_lost_answer_to_stored_offsets_is_asked_for_again(
    faulty_lab: FaultyLab, connections: CoordinatorConnections, namespace: str
) -> None:
    topic = faulty_lab.topic()
    writer = open_writer(connections)
    nobody = faulty_lab.nobody(f"{namespace}.coordinator")
    faulty_lab.lose_answer("TxnOffsetCommit")

    store_committed(writer, {(topic, 0): 5}, nobody)

    assert 1 == faulty_lab.lost_count("TxnOffsetCommit")
    found = stable(connections, f"{namespace}.coordinator", (topic, 0))
    assert StoredOffset(5, "") == found


@pytest.mark.fault("broker: is frozen for seconds, and requests are sent again late")
def test_a_late_end_commits_a_part_of_the_writers_next_kafka_transaction(
    faulty_lab: FaultyLab, connections: CoordinatorConnections
) -> None:
    # The hazard that the publisher's guard is for (KAFKA-17754).
    topic = faulty_lab.topic()
    writer = open_writer(connections)
    faulty_lab.echo("EndTxn")
    write_committed(writer, topic, b"first")
    writer.begin()
    put(writer, topic, b"not committed")

    faulty_lab.wait_for_echo()

    wait_for(faulty_lab, topic, [b"first", b"not committed"])


def test_a_late_end_does_nothing_to_a_writer_that_was_replaced(
    faulty_lab: FaultyLab, connections: CoordinatorConnections
) -> None:
    topic = faulty_lab.topic()
    writer = open_writer(connections)
    faulty_lab.echo("EndTxn")
    write_committed(writer, topic, b"first")
    successor = open_writer(connections, writer.transactional_id)
    successor.begin()
    put(successor, topic, b"second")

    faulty_lab.wait_for_echo()

    assert [b"first"] == [v for _, v in seen(faulty_lab, topic)]
    successor.commit(timeout_s=TIMEOUT_S)
    wait_for(faulty_lab, topic, [b"first", b"second"])


def test_a_late_store_of_offsets_lands_in_the_writers_next_kafka_transaction(
    faulty_lab: FaultyLab, connections: CoordinatorConnections, namespace: str
) -> None:
    topic = faulty_lab.topic()
    group = f"{namespace}.coordinator"
    nobody = faulty_lab.nobody(group)
    writer = open_writer(connections)
    faulty_lab.echo("TxnOffsetCommit")
    store_committed(writer, {(topic, 0): 32}, nobody)
    writer.begin()
    store(writer, {(topic, 0): 33}, nobody)

    faulty_lab.wait_for_echo()

    writer.commit(timeout_s=TIMEOUT_S)
    assert StoredOffset(32, "") == stable(connections, group, (topic, 0))


@pytest.mark.fault("network: connections are cut")
def test_a_member_that_is_cut_off_loses_its_session_and_its_share(faulty_lab: FaultyLab, namespace: str) -> None:
    topic = faulty_lab.topic(partitions=2)
    session = timedelta(seconds=2)
    lost_side = faulty_lab.distant(namespace, session_timeout=session)
    lost, share = join(lost_side, topic)
    near = faulty_lab.coordinator(namespace, session_timeout=session)
    heir = near.make_group_reader()
    heir.start([topic])
    share = assigned(lost, heir)[0]

    faulty_lab.cut_off()
    faulty_lab.let_pass(session * 2)

    (whole,) = assigned(heir)
    assert [(topic, 0), (topic, 1)] == list(whole.partitions)
    writer = open_writer(near)
    writer.begin()
    with pytest.raises(MemberFencedError):
        store(writer, {(topic, 0): 1}, share.member)

    faulty_lab.reconnect()

    def is_told() -> bool:
        heir.read(record_count_max=1, timeout_s=0.02)
        lost.read(record_count_max=1, timeout_s=0.02)
        return lost.take_revocation()

    wait_until(is_told, within=30, what="the lost member is told")
    heir.close()
    lost.close()


def test_a_writer_that_was_fenced_while_it_was_cut_off_finds_out(
    faulty_lab: FaultyLab, connections: CoordinatorConnections, namespace: str
) -> None:
    topic = faulty_lab.topic()
    zombie = open_writer(connections)
    zombie.begin()
    put(zombie, topic, b"zombie")
    faulty_lab.cut_off()
    newer = open_writer(faulty_lab.coordinator(namespace), zombie.transactional_id)
    write_committed(newer, topic, b"newer")
    faulty_lab.reconnect()

    with pytest.raises(FencedError):
        zombie.commit(timeout_s=TIMEOUT_S)

    wait_for(faulty_lab, topic, [b"newer"])
