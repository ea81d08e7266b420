"""One holder of a transactional id: an init fences every earlier one and ends what it left open."""

import pytest

from tests.contract.clients import TIMEOUT_S, join, open_writer, put, seen, store, stored, wait_for, write_committed
from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import TransactionalWriter
from txlayer.errors import FencedError, ForbiddenTopicError, ProducerFencedError, TxLayerError


@pytest.fixture
def zombie(connections: CoordinatorConnections) -> TransactionalWriter:
    return open_writer(connections)


@pytest.mark.fault("coordinator: is frozen for longer than its session, then goes on")
def test_a_fenced_writers_commit_is_refused_and_its_records_stay_hidden(
    lab: Lab, connections: CoordinatorConnections, zombie: TransactionalWriter, topic: str
) -> None:
    zombie.begin()
    put(zombie, topic, b"zombie")
    newer = open_writer(connections, zombie.transactional_id)

    with pytest.raises(ProducerFencedError) as raised:
        zombie.commit(timeout_s=TIMEOUT_S)

    assert zombie.transactional_id == raised.value.transactional_id
    write_committed(newer, topic, b"newer")
    wait_for(lab, topic, [b"newer"])


@pytest.mark.fault("coordinator: two coordinators use one transactional id")
def test_a_fenced_writers_next_record_is_refused(
    lab: Lab, connections: CoordinatorConnections, zombie: TransactionalWriter, topic: str
) -> None:
    zombie.begin()
    put(zombie, topic, b"before")
    newer = open_writer(connections, zombie.transactional_id)

    zombie.produce(topic, b"after", None, 0)
    with pytest.raises(ProducerFencedError):
        zombie.commit(timeout_s=TIMEOUT_S)

    write_committed(newer, topic, b"newer")
    wait_for(lab, topic, [b"newer"])
    assert b"after" not in [v for _, v in seen(lab, topic, isolation="read_uncommitted")]


@pytest.mark.fault("coordinator: two coordinators use one transactional id")
def test_an_idle_writer_that_was_fenced_finds_out_in_its_next_kafka_transaction(
    connections: CoordinatorConnections, zombie: TransactionalWriter, topic: str
) -> None:
    newer = open_writer(connections, zombie.transactional_id)

    with pytest.raises(FencedError):
        write_committed(zombie, topic, b"zombie")

    newer.close()


def test_after_a_fence_every_further_call_is_refused_alike(
    connections: CoordinatorConnections, zombie: TransactionalWriter, topic: str
) -> None:
    zombie.begin()
    put(zombie, topic, b"zombie")
    newer = open_writer(connections, zombie.transactional_id)
    with pytest.raises(ProducerFencedError):
        zombie.commit(timeout_s=TIMEOUT_S)

    with pytest.raises(ProducerFencedError):
        zombie.commit(timeout_s=TIMEOUT_S)
    with pytest.raises(ProducerFencedError):
        zombie.flush(timeout_s=TIMEOUT_S)
    with pytest.raises(Exception, match=r".") as raised:
        zombie.produce(topic, b"more", None, 0)
    assert isinstance(zombie.failure(raised.value), ProducerFencedError)
    newer.close()


def test_an_init_ends_what_is_open_and_makes_its_offsets_stable(
    lab: Lab, connections: CoordinatorConnections, zombie: TransactionalWriter, namespace: str, topic: str
) -> None:
    group = f"{namespace}.coordinator"
    member, share = join(connections, topic)
    zombie.begin()
    put(zombie, topic, b"zombie")
    lab.write(topic, b"plain")
    store(zombie, {(topic, 0): 7}, share.member)

    newer = open_writer(connections, zombie.transactional_id)

    assert [(1, b"plain")] == seen(lab, topic)
    assert {(topic, 0): None} == connections.stored_offsets(group, [(topic, 0)], is_stable=True)
    assert stored(connections, group, (topic, 0)) is None
    newer.close()
    member.close()


def test_a_kafka_transaction_that_was_left_by_close_ends_with_the_next_init(
    lab: Lab, connections: CoordinatorConnections, zombie: TransactionalWriter, topic: str
) -> None:
    zombie.begin()
    put(zombie, topic, b"left")
    zombie.close()

    newer = open_writer(connections, zombie.transactional_id)
    lab.write(topic, b"plain")

    assert [b"plain"] == [v for _, v in seen(lab, topic)]
    newer.close()


def test_a_kafka_transaction_begins_only_after_an_init(connections: CoordinatorConnections) -> None:
    writer = connections.make_writer(unique_name("id"), batch_bytes_max=10_000)

    with pytest.raises(TxLayerError):
        writer.begin()
    writer.close()


def test_a_record_for_a_topic_that_is_not_there_ruins_its_kafka_transaction(
    lab: Lab, zombie: TransactionalWriter, topic: str
) -> None:
    reports = []
    zombie.begin()
    put(zombie, topic, b"with it")
    try:
        zombie.produce(unique_name("missing"), b"v", None, 0, lambda error, _: reports.append(error))
    except Exception as exc:  # noqa: BLE001 - whatever the client raises, the port must know it
        error = zombie.failure(exc)
    else:
        wait_until(lambda: zombie.flush(timeout_s=1) == 0, within=20, what="a report")
        error = zombie.refusal(reports[0], topic="missing", txn_key="key")  # type: ignore[assignment]  # the port says Exception

    assert isinstance(error, ForbiddenTopicError)
    with pytest.raises(ForbiddenTopicError):
        zombie.commit(timeout_s=TIMEOUT_S)
    assert [] == seen(lab, topic)
