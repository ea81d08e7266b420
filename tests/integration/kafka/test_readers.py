"""Readers of the Kafka adapter on a real broker: what a pause leaves behind."""

from collections.abc import Iterator

import pytest

from tests.conftest import Broker
from tests.support.broker import create_topic, unique_name
from tests.support.records import write
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.client import PlainReader
from txlayer.adapters.kafka.group import KafkaGroupReader
from txlayer.config import ClientConfig

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(broker: Broker) -> str:
    """One partition with three records."""
    name = create_topic(broker.bootstrap_servers, unique_name("read"))
    write(broker.bootstrap_servers, name, b"0", b"1", b"2")
    return name


@pytest.fixture
def config(broker: Broker) -> ClientConfig:
    return ClientConfig(bootstrap_servers=broker.bootstrap_servers)


@pytest.fixture
def member(config: ClientConfig) -> Iterator[KafkaGroupReader]:
    reader = KafkaGroupReader(config, group=unique_name("group"), session_timeout_ms=6_000)
    yield reader
    reader.close()


def values(reader: PlainReader | KafkaGroupReader, *, count: int) -> list[bytes]:
    """The next records."""
    found: list[bytes] = []

    def is_read() -> bool:
        records = reader.read(record_count_max=100, timeout_s=0.1)
        found.extend(r.value() for r in records if r.error() is None)
        return len(found) >= count

    wait_until(is_read, within=15, what=f"{count} records")
    return found


def test_a_reader_that_is_assigned_again_reads_what_it_had_paused(config: ClientConfig, topic: str) -> None:
    reader = PlainReader(config)
    try:
        reader.assign({(topic, 0): 0})
        assert [b"0", b"1", b"2"] == values(reader, count=3)
        reader.pause((topic, 0))

        reader.assign({(topic, 0): 1})

        assert [b"1", b"2"] == values(reader, count=2)
    finally:
        reader.close()


def test_a_member_that_starts_over_reads_what_it_had_paused(member: KafkaGroupReader, topic: str) -> None:
    member.start([topic])

    def assigned() -> bool:
        member.read(record_count_max=1, timeout_s=0.1)
        return member.take_assignment() is not None

    wait_until(assigned, within=30, what="the group's assignment")
    member.resume_at({(topic, 0): 0})
    assert [b"0", b"1", b"2"] == values(member, count=3)
    member.pause([(topic, 0)])

    member.resume_at({})
    member.resume_at({(topic, 0): 1})

    assert [b"1", b"2"] == values(member, count=2)
