"""Members that store their own offsets: with and without waiting, while the group takes partitions back, at the end."""

from collections.abc import Iterator

import pytest

from tests.contract.clients import PATIENCE_S, TIMEOUT_S, assigned
from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.ports import StoredOffset, StoringGroupReader, TopicPartition
from txlayer.errors import ConfigError, LifecycleError


@pytest.fixture
def group() -> str:
    return unique_name("group")


@pytest.fixture
def connections(lab: Lab) -> ConsumerConnections:
    return lab.consumer()


@pytest.fixture
def topic(lab: Lab) -> str:
    name = lab.topic(partitions=2)
    lab.write(name, b"0", b"1", b"2")
    return name


@pytest.fixture
def readers(connections: ConsumerConnections, group: str) -> Iterator[list[StoringGroupReader]]:
    """Two readers, not started."""
    made = [connections.make_group_reader(group) for _ in range(2)]
    yield made
    for reader in made:
        reader.close()


def stored(connections: ConsumerConnections, group: str, place: TopicPartition) -> StoredOffset | None:
    """What the group stored."""
    return connections.stored_offsets(group, [place], is_stable=True)[place]


def wait_for_store(reader: StoringGroupReader) -> None:
    """Serve the member until its store was acknowledged."""

    def is_stored() -> bool:
        reader.read(record_count_max=1, timeout_s=0.02)
        return reader.take_stored()

    wait_until(is_stored, within=PATIENCE_S, what="the acknowledgement")


def test_a_store_without_waiting_is_told_once_when_it_is_acknowledged(
    readers: list[StoringGroupReader], connections: ConsumerConnections, topic: str, group: str
) -> None:
    reader = readers[0]
    reader.start([topic])
    assigned(reader)

    reader.begin_store({(topic, 0): StoredOffset(2, "1|text"), (topic, 1): StoredOffset(0, "")})
    wait_for_store(reader)

    assert StoredOffset(2, "1|text") == stored(connections, group, (topic, 0))
    assert StoredOffset(0, "") == stored(connections, group, (topic, 1))
    assert not reader.take_stored()


def test_a_second_store_is_refused_until_the_first_was_told(readers: list[StoringGroupReader], topic: str) -> None:
    reader = readers[0]
    reader.start([topic])
    assigned(reader)
    reader.begin_store({(topic, 0): StoredOffset(1, "")})

    with pytest.raises(LifecycleError):
        reader.begin_store({(topic, 0): StoredOffset(2, "")})

    wait_for_store(reader)
    reader.begin_store({(topic, 0): StoredOffset(2, "")})
    wait_for_store(reader)


def test_a_store_that_waits_is_newer_than_the_one_begun_before(
    readers: list[StoringGroupReader], connections: ConsumerConnections, topic: str, group: str
) -> None:
    reader = readers[0]
    reader.start([topic])
    assigned(reader)

    reader.begin_store({(topic, 0): StoredOffset(1, "")})
    reader.store_offsets({(topic, 0): StoredOffset(3, "")}, timeout_s=TIMEOUT_S)
    reader.read(record_count_max=1, timeout_s=0.1)

    assert StoredOffset(3, "") == stored(connections, group, (topic, 0))
    assert not reader.take_stored()


def test_offsets_are_stored_while_the_group_takes_partitions_back(
    readers: list[StoringGroupReader], connections: ConsumerConnections, topic: str, group: str
) -> None:
    told: list[bool] = []

    def on_revoke(is_lost: bool) -> None:
        told.append(is_lost)
        readers[0].store_offsets({(topic, 0): StoredOffset(2, "drained")}, timeout_s=TIMEOUT_S)

    readers[0].start([topic], on_revoke=on_revoke)
    assigned(readers[0])
    readers[0].resume_at({(topic, 0): 0, (topic, 1): 0})

    readers[1].start([topic])
    assigned(*readers)

    assert [False] == told
    assert StoredOffset(2, "drained") == stored(connections, group, (topic, 0))


def test_who_leaves_is_told_before_and_may_store(
    readers: list[StoringGroupReader], connections: ConsumerConnections, topic: str, group: str
) -> None:
    reader = readers[0]
    told: list[bool] = []

    def on_revoke(is_lost: bool) -> None:
        told.append(is_lost)
        reader.store_offsets({(topic, 0): StoredOffset(1, "")}, timeout_s=TIMEOUT_S)

    reader.start([topic], on_revoke=on_revoke)
    assigned(reader)
    reader.resume_at({(topic, 0): 0})
    reader.close()

    assert [False] == told
    assert StoredOffset(1, "") == stored(connections, group, (topic, 0))


def test_what_the_hook_raises_is_raised_by_a_read_and_not_lost_in_the_client(
    readers: list[StoringGroupReader], topic: str
) -> None:
    def on_revoke(_: bool) -> None:
        raise ValueError("a defect")

    readers[0].start([topic], on_revoke=on_revoke)
    assigned(readers[0])
    readers[1].start([topic])
    raised: list[ValueError] = []

    def is_raised() -> bool:
        try:
            readers[0].read(record_count_max=1, timeout_s=0.05)
        except ValueError as exc:
            raised.append(exc)
        readers[1].read(record_count_max=1, timeout_s=0.05)
        return bool(raised)

    wait_until(is_raised, within=PATIENCE_S, what="the hook's exception")
    assert 1 == len(raised)
    assigned(*readers)


def test_metadata_that_the_brokers_do_not_take_are_a_wrong_setting(
    readers: list[StoringGroupReader], connections: ConsumerConnections, topic: str, group: str
) -> None:
    reader = readers[0]
    reader.start([topic])
    assigned(reader)

    with pytest.raises(ConfigError) as caught:
        reader.store_offsets({(topic, 0): StoredOffset(1, "x" * 4_097)}, timeout_s=TIMEOUT_S)

    assert "metadata_bytes_max" == caught.value.name
    assert stored(connections, group, (topic, 0)) is None


def test_a_log_writer_reports_where_its_records_stand(connections: ConsumerConnections, topic: str) -> None:
    offsets: list[int] = []
    writer = connections.make_log_writer(batch_bytes_max=100_000)

    writer.produce(topic, b"3", b"k", 0, lambda _, record: offsets.append(record.offset()))
    writer.close(TIMEOUT_S)

    assert [3] == offsets
    assert {(topic, 0): 4} == connections.end_offsets([(topic, 0)])


def test_a_consumer_finds_where_a_time_begins(lab: Lab, connections: ConsumerConnections) -> None:
    topic = lab.topic(settings={"message.timestamp.type": "LogAppendTime"})
    lab.write(topic, b"0")

    assert {(topic, 0): 0} == connections.offsets_at([(topic, 0)], at_ms=1)
    assert {(topic, 0): 1} == connections.offsets_at([(topic, 0)], at_ms=2_000_000_000_000)
