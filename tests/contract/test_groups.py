"""Consumer groups: who gets what, who gives it back, where reading goes on."""

from collections.abc import Iterator

import pytest

from tests.contract.clients import TIMEOUT_S, assigned, join, open_writer, put, values
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import Assignment, GroupReader, TopicPartition
from txlayer.errors import ConfigError

PARTITION_COUNT = 5


@pytest.fixture
def topics(lab: Lab) -> list[str]:
    return [lab.topic(partitions=PARTITION_COUNT) for _ in range(2)]


@pytest.fixture
def members(connections: CoordinatorConnections) -> Iterator[list[GroupReader]]:
    """Three readers, not started."""
    made = [connections.make_group_reader() for _ in range(3)]
    yield made
    for reader in made:
        reader.close()


def numbers(share: Assignment, topic: str) -> list[int]:
    """The partitions of one topic."""
    return [p for name, p in share.partitions if name == topic]


@pytest.mark.fault("coordinator: many coordinators join and leave all the time")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_members_share_two_topics_alike_in_runs(members: list[GroupReader], topics: list[str], count: int) -> None:
    for reader in members[:count]:
        reader.start(topics)
    shares = assigned(*members[:count])

    for share in shares:
        assert numbers(share, topics[0]) == numbers(share, topics[1])
        assert sorted(share.partitions) == list(share.partitions)
    runs = sorted(numbers(share, topics[0]) for share in shares)
    expected = {1: [[0, 1, 2, 3, 4]], 2: [[0, 1, 2], [3, 4]], 3: [[0, 1], [2, 3], [4]]}
    assert expected[count] == runs


def test_who_joins_takes_from_the_others_and_the_generation_grows(
    members: list[GroupReader], topics: list[str]
) -> None:
    first, second, _ = members
    first.start(topics)
    (alone,) = assigned(first)
    assert not first.take_revocation()

    second.start(topics)
    seen = {"revoked": False}

    def is_shared() -> bool:
        for reader in (first, second):
            reader.read(record_count_max=1, timeout_s=0.02)
        seen["revoked"] |= first.take_revocation()
        share = first.take_assignment()
        if share is not None:
            seen["generation"] = share.generation > alone.generation
            seen["smaller"] = len(share.partitions) < len(alone.partitions)
        return len(seen) > 1

    wait_until(is_shared, within=30, what="a second share")
    assert {"revoked": True, "generation": True, "smaller": True} == seen


def test_a_revocation_is_told_once_and_before_the_next_share(members: list[GroupReader], topics: list[str]) -> None:
    first, second, _ = members
    first.start(topics)
    assigned(first)
    second.start(topics)

    def is_revoked() -> bool:
        second.read(record_count_max=1, timeout_s=0.02)
        first.read(record_count_max=1, timeout_s=0.02)
        return first.take_revocation()

    wait_until(is_revoked, within=30, what="the revocation")
    assert not first.take_revocation()
    assert PARTITION_COUNT * 2 > len(assigned(first, second)[0].partitions)


def test_members_know_each_others_shares_only_through_the_administrator(
    lab: Lab, members: list[GroupReader], topics: list[str], namespace: str
) -> None:
    for reader in members[:2]:
        reader.start(topics)
    shares = assigned(*members[:2])

    state = lab.admin().group(f"{namespace}.coordinator")

    assert "stable" == state.state
    assert sorted(s.partitions for s in shares) == sorted(m.partitions for m in state.members)


def test_an_assignment_reads_nothing_until_it_is_said_from_where(lab: Lab, connections: CoordinatorConnections) -> None:
    topic = lab.topic()
    lab.write(topic, b"0", b"1", b"2")
    reader, _ = join(connections, topic)
    assert () == tuple(reader.read(record_count_max=10, timeout_s=0.3))

    reader.resume_at({(topic, 0): 1})

    assert [b"1", b"2"] == values(reader, count=2)
    reader.close()


def test_a_pause_lasts_until_resume_or_the_next_resume_at(lab: Lab, connections: CoordinatorConnections) -> None:
    topic = lab.topic()
    place: TopicPartition = (topic, 0)
    lab.write(topic, b"0")
    reader, _ = join(connections, topic)
    reader.resume_at({place: 0})
    assert [b"0"] == values(reader, count=1)

    reader.pause([place])
    lab.write(topic, b"1")
    assert () == tuple(reader.read(record_count_max=10, timeout_s=0.3))
    reader.resume([place])
    assert [b"1"] == values(reader, count=1)

    reader.pause([place])
    reader.resume_at({})
    reader.resume_at({place: 0})
    assert [b"0", b"1"] == values(reader, count=2)
    reader.close()


def test_a_stored_offset_that_is_not_in_the_log_any_more_is_a_loud_stop(
    lab: Lab, connections: CoordinatorConnections
) -> None:
    topic = lab.topic()
    lab.write(topic, b"0", b"1", b"2")
    lab.delete_records(topic, before=2)
    reader, _ = join(connections, topic)
    reader.resume_at({(topic, 0): 0})

    def read() -> None:
        reader.read(record_count_max=10, timeout_s=0.1)

    def is_stopped() -> bool:
        try:
            read()
        except ConfigError as exc:
            stops.append(exc)
        return bool(stops)

    stops: list[ConfigError] = []
    wait_until(is_stopped, within=20, what="the stop")
    assert "stored offset" == stops[0].name
    reader.close()


def test_a_members_watermarks_are_those_of_committed_records(lab: Lab, connections: CoordinatorConnections) -> None:
    topic = lab.topic()
    lab.write(topic, b"0", b"1")
    reader, _ = join(connections, topic)

    assert (0, 2) == reader.watermarks((topic, 0), timeout_s=10)
    reader.close()


def test_a_member_reads_only_what_was_committed_and_knows_the_end_that_its_last_fetch_reported(
    lab: Lab, connections: CoordinatorConnections
) -> None:
    """Also what an open Kafka transaction hides lies before it."""
    topic = lab.topic()
    lab.write(topic, b"plain")
    writer = open_writer(connections)
    writer.begin()
    put(writer, topic, b"open")
    reader, _ = join(connections, topic)
    assert reader.known_end((topic, 0)) is None

    reader.resume_at({(topic, 0): 0})
    assert [b"plain"] == values(reader, count=1)
    assert () == tuple(reader.read(record_count_max=10, timeout_s=0.3))

    assert 2 == reader.known_end((topic, 0))
    writer.commit(timeout_s=TIMEOUT_S)
    assert [b"open"] == values(reader, count=1)
    reader.close()
    writer.close()


def test_a_member_comes_to_the_end_before_an_open_kafka_transaction_while_another_partition_brings_records(
    lab: Lab, connections: CoordinatorConnections
) -> None:
    topic = lab.topic(partitions=2)
    lab.write(topic, b"plain")
    writer = open_writer(connections)
    writer.begin()
    put(writer, topic, b"open")
    reader, _ = join(connections, topic)
    reader.resume_at({(topic, 0): 0, (topic, 1): 0})
    found: list[bytes | None] = []

    def has_come_to_the_end() -> bool:
        lab.write(topic, b"beside", partition=1)
        found.extend(record.value() for record in reader.read(record_count_max=10, timeout_s=1.0))
        return reader.read_to((topic, 0)) == 1

    wait_until(has_come_to_the_end, within=TIMEOUT_S, what="the end of partition 0")

    assert 2 == reader.known_end((topic, 0))
    assert {b"plain", b"beside"} == set(found)
    reader.close()
    writer.close()
