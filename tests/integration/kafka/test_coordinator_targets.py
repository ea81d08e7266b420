"""What a coordinator does when a real topic refuses: hold what belongs to the topic, park what belongs to the record."""

import random
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support.arena import Arena
from tests.support.broker import create_topic, unique_name
from tests.support.raw import RawWriter, delete_topic
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.core import codec
from txlayer.core.messages import HalfOptions, Resolution
from txlayer.core.topics import AlterSetting
from txlayer.testing.stage import RunningCoordinator

pytestmark = pytest.mark.kafka

COMMIT = Resolution.COMMIT
NOISE = random.Random(7).randbytes(20_000)
ALLOWED = ("real-*", "late-*", "small-*", "gone-*")


@pytest.fixture(scope="module")
def coordinator(arena: Arena) -> Iterator[RunningCoordinator]:
    """It runs while all tests of the file do."""
    session = timedelta(seconds=10)  # longer than the pauses of a busy machine
    with arena.coordinator(target_topics=ALLOWED, session_timeout=session) as running:
        yield running


def set_message_bytes_max(servers: str, topic: str, byte_count: int) -> None:
    """Change a topic's own limit, and wait until it is in effect: brokers follow the controller by some milliseconds."""
    change = AlterSetting(topic, "max.message.bytes", None, str(byte_count), why="the test")
    with KafkaAdmin(ClientConfig(bootstrap_servers=servers)) as admin:
        admin.alter_settings([change])


@pytest.mark.fault("data: the target topic does not exist")
@pytest.mark.promise("P1")
def test_an_unknown_topic_holds_its_transaction_until_it_exists(arena: Arena, raw: RawWriter) -> None:
    topic = unique_name("late")
    held = raw.prepare((topic, b"key", b"value"))
    other = raw.prepare((arena.targets[0], b"key", b"other"), key=raw.key_in(held.partition))

    raw.commit(held)
    raw.commit(other)
    arena.wait_until_visible(other.txn_id)
    summary = arena.wait_for_doubt(held.key, state="held")
    create_topic(arena.servers, topic)

    assert "topic-missing" == summary.reason
    (record,) = arena.wait_until_visible(held.txn_id, topics=[topic])
    assert b"value" == record.value
    wait_until(lambda: held.key not in arena.doubt().summaries, within=30, what="off doubt")


@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
@pytest.mark.promise("P1")
def test_a_topic_deleted_between_prepare_and_commit_holds_until_it_is_back(arena: Arena, raw: RawWriter) -> None:
    topic = create_topic(arena.servers, unique_name("gone"), partitions=2)
    known = raw.prepare((topic, b"key", b"before"))
    raw.commit(known)
    arena.wait_until_visible(known.txn_id, topics=[topic])
    lost = raw.prepare((topic, b"key", b"after"), (arena.targets[0], b"key", b"after"))
    other = raw.prepare((arena.targets[0], b"key", b"other"), key=raw.key_in(lost.partition))

    delete_topic(arena.servers, topic)
    raw.commit(lost)
    raw.commit(other)
    arena.wait_until_visible(other.txn_id)
    summary = arena.wait_for_doubt(lost.key, state="held")
    before = arena.visible(lost.txn_id)
    create_topic(arena.servers, topic, partitions=2)

    assert "topic-missing" == summary.reason
    assert [] == before
    assert 1 == len(arena.wait_until_visible(lost.txn_id, topics=[topic], within=60))
    assert 1 == len(arena.visible(lost.txn_id))


@pytest.mark.threat("write `<ns>.half`")
def test_a_forbidden_target_parks_its_transaction(arena: Arena, raw: RawWriter) -> None:
    names = ["private", "__consumer_offsets", "real-orders.dlq", "real-orders.replay", arena.topics.half]
    every = [raw.prepare((arena.targets[0], b"key", b"good"), (name, b"key", b"bad")) for name in names]

    for mine in every:
        raw.commit(mine)

    summaries = [arena.wait_for_doubt(mine.key, state="parked-committed") for mine in every]
    assert {"forbidden-topic"} == {summary.reason for summary in summaries}
    assert [] == [record for mine in every for record in arena.visible(mine.txn_id)]


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
def test_a_message_larger_than_its_topic_allows_is_parked_untried_and_forwarded_by_a_commit_when_that_is_mended(
    arena: Arena, raw: RawWriter, coordinator: RunningCoordinator
) -> None:
    topic = create_topic(arena.servers, unique_name("small"), config={"max.message.bytes": "10000"})
    large = raw.prepare((topic, b"key", NOISE))
    rebuilt = coordinator.coordinator.counts.rebuild_count

    raw.commit(large)

    summary = arena.wait_for_doubt(large.key, state="parked-committed")
    assert "too-large" == summary.reason
    assert rebuilt == coordinator.coordinator.counts.rebuild_count

    set_message_bytes_max(arena.servers, topic, 100_000)

    def forwarded() -> bool:
        # What is known of a topic that accepts is looked at again when something goes wrong, or at a restart.
        raw.commit(large)
        return bool(arena.visible(large.txn_id, topics=[topic]))

    wait_until(forwarded, within=90, what="forwarded")


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P1", "P11")
def test_a_record_that_the_broker_alone_refuses_is_found_and_parked_and_the_rest_goes_on(
    arena: Arena, raw: RawWriter
) -> None:
    topic = create_topic(arena.servers, unique_name("small"))
    first = raw.prepare((topic, b"key", b"learnt"))
    raw.commit(first)
    arena.wait_until_visible(first.txn_id, topics=[topic])
    partition = first.partition
    good = [raw.prepare((topic, b"key", b"good"), key=raw.key_in(partition)) for _ in range(20)]
    large = raw.prepare((topic, b"key", NOISE), key=raw.key_in(partition))
    good += [raw.prepare((topic, b"key", b"good"), key=raw.key_in(partition)) for _ in range(20)]

    set_message_bytes_max(arena.servers, topic, 10_000)
    lines = [good_one.line(COMMIT) for good_one in good]
    lines.insert(20, large.line(COMMIT))
    raw.op(partition, codec.encode_ops(lines))

    summary = arena.wait_for_doubt(large.key, state="parked-committed", within=60)
    for prepared in good:
        assert 1 == len(arena.wait_until_visible(prepared.txn_id, topics=[topic], within=60))
    assert summary.reason in ("too-large", "refused")
    assert [] == arena.visible(large.txn_id, topics=[topic])


def test_a_partition_that_the_topic_does_not_have_parks_its_transaction(arena: Arena, raw: RawWriter) -> None:
    mine = raw.prepare((arena.targets[0], b"key", b"value"), options=HalfOptions(partition=99))
    other = raw.prepare((arena.targets[0], b"key", b"other"), key=raw.key_in(mine.partition))

    raw.commit(mine)
    raw.commit(other)

    arena.wait_until_visible(other.txn_id)
    summary = arena.wait_for_doubt(mine.key, state="parked-committed", within=60)
    assert "refused" == summary.reason
