"""Topics and their settings: what is there, what is refused, which time a record has, what cleaning leaves."""

import random
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.contract.clients import TIMEOUT_S, open_writer, seen, write_committed
from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.ports import StoredOffset, TopicLimits
from txlayer.config import SystemTopics
from txlayer.core.partitions import murmur2
from txlayer.core.topics import AlterSetting, CreateTopic, Difference, StoreFirstOffsets
from txlayer.errors import (
    BrokerUnavailableError,
    ForbiddenTopicError,
    RefusedRecordError,
    TopicMismatchError,
    TxLayerError,
    UsageError,
)
from txlayer.operate.topics import GroupTopics


def creation(topic: str, *, partitions: int = 1, **settings: str) -> CreateTopic:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return CreateTopic(topic, partitions, 1, named, why="a test")


def is_another(found: TopicLimits | None, topic_id: str) -> bool:
    return found is not None and found.topic_id not in ("", topic_id)


def test_a_topics_limits_are_told_and_a_missing_one_is_none(lab: Lab) -> None:
    topic = lab.topic(partitions=3, settings={"max.message.bytes": "2000"})
    stamped = lab.topic(settings={"message.timestamp.type": "LogAppendTime"})
    connections = lab.coordinator(unique_name("ns"))

    expected = TopicLimits(3, 2000, is_append_time=False)
    limits = connections.topic_limits(topic)
    assert limits is not None
    assert expected == limits._replace(topic_id="")
    topic_id = limits.topic_id
    lab.delete_topic(topic)
    lab.create(topic, partitions=3)
    wait_until(
        lambda: is_another(connections.topic_limits(topic), topic_id), within=20, what="another topic, by its id"
    )
    limits = connections.topic_limits(stamped)
    assert limits is not None
    assert limits.is_append_time
    assert connections.topic_limits(unique_name("missing")) is None


def test_a_topic_is_created_once_and_stays_as_it_is(lab: Lab) -> None:
    admin, name = lab.admin(), unique_name("topic")

    assert [name] == admin.create([creation(name, partitions=2)])
    assert [] == admin.create([creation(name, partitions=5)])

    assert 2 == admin.partition_count(name)
    assert admin.partition_count(unique_name("missing")) is None


@pytest.mark.parametrize(
    "wanted",
    [
        creation("no-such-setting", no_such_setting="1"),
        creation("no-such-value", cleanup_policy="shred"),
        creation("no-partition", partitions=0),
        CreateTopic("too-many-replicas", 1, 7, {}, why="a test"),
    ],
    ids=lambda wanted: wanted.topic,
)
def test_a_topic_of_an_impossible_form_is_refused(lab: Lab, wanted: CreateTopic) -> None:
    with pytest.raises(UsageError):
        lab.admin().create([wanted])

    assert lab.admin().partition_count(wanted.topic) is None


def test_a_setting_is_altered_and_shown_in_effect(lab: Lab) -> None:
    topic = lab.topic(settings={"max.message.bytes": "2000"})
    admin = lab.admin()

    admin.alter_settings([AlterSetting(topic, "retention.ms", None, "60000", why="a test")])

    (state,) = admin.describe_topics([topic, unique_name("missing")]).values()
    assert (1, 1) == (state.partition_count, state.replication_factor)
    shown = {name: state.settings[name] for name in ("max.message.bytes", "retention.ms", "cleanup.policy")}
    assert {"max.message.bytes": "2000", "retention.ms": "60000", "cleanup.policy": "delete"} == shown


def test_a_namespace_is_applied_once(lab: Lab) -> None:
    topics = SystemTopics(unique_name("ns"))
    admin = lab.admin()
    namespace = Namespace(admin, topics=topics)

    applied = namespace.apply(partition_count=2, replication_factor=1)

    assert topics.all == {c.topic for c in applied.done if isinstance(c, CreateTopic)}
    assert [] == applied.left
    assert [] == namespace.plan()
    places = [(topic, p) for topic in (topics.half, topics.op) for p in range(2)]
    stored = admin.stored_offsets(topics.coordinator_group, places)
    assert dict.fromkeys(places, (0, "")) == stored


def interrupted(lab: Lab) -> tuple[Namespace, SystemTopics]:
    """A namespace of two partitions whose `apply` ended between its topics and their first offsets."""
    topics = SystemTopics(unique_name("ns"))
    namespace = Namespace(lab.admin(), topics=topics)
    planned = namespace.plan(partition_count=2, replication_factor=1)
    lab.admin().create([c for c in planned if isinstance(c, CreateTopic)])
    return namespace, topics


def test_an_interrupted_apply_is_completed_by_the_next(lab: Lab) -> None:
    namespace, topics = interrupted(lab)
    lab.write(topics.half, b"before any coordinator", partition=1)
    lab.admin().store_offsets(topics.coordinator_group, {(topics.half, 0): StoredOffset(0, "")})

    applied = namespace.apply()

    assert [] == applied.left
    assert {(topics.half, (1,)), (topics.op, (0, 1))} == {
        (c.topic, c.partitions) for c in applied.done if isinstance(c, StoreFirstOffsets)
    }
    places = [(topic, p) for topic in (topics.half, topics.op) for p in range(2)]
    stored = lab.admin().stored_offsets(topics.coordinator_group, places)
    assert dict.fromkeys(places, (0, "")) == stored
    assert ([], []) == namespace.apply()


@pytest.mark.parametrize("trace", ["op", "doubt", "stored", "retention"])
def test_apply_stores_no_first_offsets_where_a_coordinator_may_have_worked(lab: Lab, trace: str) -> None:
    namespace, topics = interrupted(lab)
    admin, group = lab.admin(), topics.coordinator_group
    if trace == "stored":
        admin.store_offsets(group, {(topics.half, 1): StoredOffset(0, "1|somebody")})
    elif trace == "retention":
        lab.write(topics.half, b"0", b"1")
        lab.delete_records(topics.half, before=1)
    else:
        lab.write(f"{topics.namespace}.{trace}", b"v", key=b"k")
    places = [(topics.half, 0), (topics.op, 0), (topics.op, 1)]

    applied = namespace.apply()

    assert [] == applied.done
    left = [c for c in applied.left if isinstance(c, Difference)]
    assert {topics.half: False, topics.op: False} == {c.topic: c.is_widening_interrupted for c in left}
    assert dict.fromkeys(places) == admin.stored_offsets(group, places)


@pytest.mark.promise("P2")
@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
@pytest.mark.parametrize("lost", ["half", "op"])
def test_apply_lets_no_coordinator_begin_in_a_topic_made_anew_beside_an_old_one(lab: Lab, lost: str) -> None:
    """Without the decisions of before, what was forwarded would seem undecided, and a commit would forward it again."""
    topics, admin = SystemTopics(unique_name("ns")), lab.admin()
    namespace, gone = Namespace(admin, topics=topics), f"{topics.namespace}.{lost}"
    namespace.apply(partition_count=1, replication_factor=1)
    places = [(topics.half, 0), (topics.op, 0)]
    admin.store_offsets(topics.coordinator_group, dict.fromkeys(places, StoredOffset(0, "1|somebody")))
    lab.delete_topic(gone)
    wait_until(
        lambda: admin.stored_offsets(topics.coordinator_group, [(gone, 0)])[gone, 0] is None,
        within=20,
        what="no offset for what is gone",
    )

    applied = namespace.apply(replication_factor=1)

    assert [gone] == [c.topic for c in applied.done if isinstance(c, CreateTopic)]
    assert [gone] == [c.topic for c in applied.left if isinstance(c, Difference)]
    assert admin.stored_offsets(topics.coordinator_group, [(gone, 0)])[gone, 0] is None


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_record_has_its_producers_time_or_the_brokers(lab: Lab, kind: str) -> None:
    # Kept for good: the broker looks for what is too old now and then, and one of these is of 2023.
    topic = lab.topic(settings={"message.timestamp.type": kind, "retention.ms": "-1"})
    connections = lab.coordinator(unique_name("ns"))
    before_ms = int(time.time() * 1000)
    writer = open_writer(connections)
    writer.begin()
    writer.produce(topic, b"v", None, 0, None, None, 1_700_000_000_000)
    writer.commit(timeout_s=TIMEOUT_S)
    reader = connections.make_reader("read_committed")
    reader.assign({(topic, 0): 0})

    def record_read() -> Any:
        # The end of the partition is reported first where the marker is written after the commit returned.
        found = reader.read(record_count_max=1, timeout_s=0.1)
        return found[0] if found and found[0].error() is None else None

    number, at_ms = wait_until(record_read, within=20, what="the record").timestamp()
    if kind == "CreateTime":
        assert (1, 1_700_000_000_000) == (number, at_ms)
    else:
        assert 2 == number
        assert before_ms <= at_ms <= before_ms + 60_000
    reader.close()


def test_offsets_are_found_by_time(lab: Lab) -> None:
    topic = lab.topic(partitions=2, settings={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000) - 60_000
    lab.write(topic, b"0", b"1")
    after_ms = int(time.time() * 1000) + 60_000
    places = [(topic, 0), (topic, 1)]

    assert {(topic, 0): 0, (topic, 1): 0} == lab.admin().offsets_at(places, at_ms=before_ms)
    assert {(topic, 0): 2, (topic, 1): 0} == lab.admin().offsets_at(places, at_ms=after_ms)
    for long_ago_ms in (-1, -2, -(10**15)):  # the first two are words of Kafka's for the ends
        assert {(topic, 0): 0, (topic, 1): 0} == lab.admin().offsets_at(places, at_ms=long_ago_ms)


def test_a_record_that_is_too_large_is_refused_and_ruins_its_kafka_transaction(lab: Lab) -> None:
    topic = lab.topic(settings={"max.message.bytes": "1000"})
    writer = open_writer(lab.coordinator(unique_name("ns")))
    reports = []
    noise = random.Random(1).randbytes(4_000)  # nothing to compress
    writer.begin()
    writer.produce(topic, noise, b"k", 0, lambda error, _: reports.append(error))
    wait_until(lambda: writer.flush(timeout_s=1) == 0, within=20, what="the report")

    error = writer.refusal(reports[0], topic=topic, txn_key="id/nonce")
    assert isinstance(error, RefusedRecordError)
    assert (topic, "id/nonce", "MSG_SIZE_TOO_LARGE") == (error.topic, error.txn_key, error.reason)
    with pytest.raises(RefusedRecordError):
        writer.commit(timeout_s=TIMEOUT_S)
    assert [] == seen(lab, topic)


def test_a_record_from_the_far_future_is_refused(lab: Lab) -> None:
    topic = lab.topic()
    writer = open_writer(lab.coordinator(unique_name("ns")))
    future_ms = int(time.time() * 1000) + 2 * 3_600_000
    writer.begin()
    writer.produce(topic, b"v", None, 0, None, None, future_ms)

    with pytest.raises(RefusedRecordError, match="INVALID_TIMESTAMP"):
        writer.commit(timeout_s=TIMEOUT_S)


def test_a_compacted_topic_refuses_a_record_without_a_key(lab: Lab) -> None:
    topic = lab.topic(settings={"cleanup.policy": "compact"})
    writer = open_writer(lab.coordinator(unique_name("ns")))
    writer.begin()
    writer.produce(topic, b"v", None, 0)

    with pytest.raises(RefusedRecordError, match="INVALID_RECORD"):
        writer.commit(timeout_s=TIMEOUT_S)


def test_a_keyed_record_goes_where_javas_partitioner_puts_it(lab: Lab) -> None:
    topic = lab.topic(partitions=7)
    writer = open_writer(lab.coordinator(unique_name("ns")))
    keys = [f"key-{n}".encode() for n in range(20)]
    writer.begin()
    for key in keys:
        writer.produce(topic, b"v", key, -1)
    writer.commit(timeout_s=TIMEOUT_S)

    wait_until(lambda: len(lab.read(topic)) == 20, within=20, what="all records")
    assert {k: murmur2(k) % 7 for k in keys} == {r.key: r.partition for r in lab.read(topic)}


def test_questions_about_a_topic_that_is_not_there_are_refused(lab: Lab) -> None:
    connections = lab.coordinator(unique_name("ns"))
    place = (unique_name("missing"), 0)

    with pytest.raises(TxLayerError):
        connections.end_offsets([place])
    with pytest.raises(TxLayerError):
        connections.start_offsets([place])


def test_a_deleted_topic_is_gone_with_the_offsets_stored_for_it(lab: Lab) -> None:
    topic, other = lab.topic(), lab.topic()
    lab.write(topic, b"v")
    admin, group = lab.admin(), unique_name("group")
    admin.store_offsets(group, {(p, 0): StoredOffset(1, "") for p in (topic, other)})

    lab.delete_topic(topic)

    assert admin.partition_count(topic) is None
    stored = wait_until(
        lambda: [s for s in [admin.stored_offsets(group, [(topic, 0), (other, 0)])] if s[topic, 0] is None],
        within=20,
        what="no offset for what is gone",
    )[0]
    assert stored[other, 0] is not None


@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
def test_a_topic_that_is_deleted_under_its_writer_ruins_its_kafka_transaction(lab: Lab) -> None:
    topic = lab.topic()
    timeout = timedelta(seconds=2)
    writer = open_writer(lab.coordinator(unique_name("ns"), kafka_transaction_timeout=timeout))
    write_committed(writer, topic, b"v")
    lab.delete_topic(topic)
    writer.begin()
    writer.produce(topic, b"more", None, 0)

    # The client believes that the topic has no leader for a while; real Kafka's sometimes hears in time that it is gone.
    with pytest.raises((BrokerUnavailableError, ForbiddenTopicError)):
        writer.commit(timeout_s=TIMEOUT_S)
    with pytest.raises(TxLayerError):
        writer.begin()


def test_deleted_records_move_the_start_and_are_never_read_again(lab: Lab) -> None:
    topic = lab.topic()
    lab.write(topic, b"0", b"1", b"2")

    lab.delete_records(topic, before=2)

    connections = lab.coordinator(unique_name("ns"))
    assert {(topic, 0): 2} == connections.start_offsets([(topic, 0)])
    assert {(topic, 0): 3} == connections.end_offsets([(topic, 0)])
    reader = connections.make_reader("read_committed")
    reader.assign({(topic, 0): 0})
    told = wait_until(lambda: reader.read(record_count_max=10, timeout_s=0.1), within=20, what="the refusal")
    assert "_AUTO_OFFSET_RESET" == told[0].error().name()
    reader.close()


@pytest.mark.slow
def test_compaction_keeps_the_newest_record_of_each_key_and_every_offset(lab: Lab) -> None:
    settings = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    topic = lab.topic(settings=settings)
    for value in (b"a0", b"a1"):
        lab.write(topic, value, key=b"a")
    lab.write(topic, b"b2", key=b"b")
    lab.write(topic, b"a3", key=b"a")

    def kept() -> list[tuple[int, bytes | None]]:
        # What is still written to is not compacted: a newer record lets it be.
        lab.write(topic, b"newer", key=b"c")
        lab.clean()
        found = [(r.offset, r.value) for r in lab.read(topic) if r.key != b"c"]
        return found if len(found) < 4 else []

    assert [(2, b"b2"), (3, b"a3")] == wait_until(kept, within=90, what="compaction")


def test_a_record_just_below_kafkas_own_limit_is_accepted(lab: Lab) -> None:
    topic = lab.topic()
    large = random.Random(2).randbytes(990_000)

    assert [0] == lab.write(topic, large)
    writer = open_writer(lab.coordinator(unique_name("ns")))
    write_committed(writer, topic, large)

    wait_until(lambda: len(lab.read(topic)) == 2, within=20, what="both records")
    assert [large, large] == [r.value for r in lab.read(topic)]


def topics_of(lab: Lab, group: str, *topics: str) -> GroupTopics:
    return GroupTopics(lab.admin(), group=group, topics=topics)


def test_each_topic_gets_dead_letters_and_replays_with_its_own_number_of_partitions(lab: Lab) -> None:
    group, three, one = unique_name("group"), lab.topic(partitions=3), lab.topic()
    topics = topics_of(lab, group, three, one, three)

    applied = topics.apply()

    created = {c.topic: c.partition_count for c in applied.done if isinstance(c, CreateTopic)}
    assert {
        f"{group}.{three}.dlq": 3,
        f"{group}.{three}.replay": 3,
        f"{group}.{one}.dlq": 1,
        f"{group}.{one}.replay": 1,
    } == created
    assert created == {name: lab.admin().partition_count(name) for name in created}
    assert ([], []) == (applied.left, topics.plan())
    assert ([], []) == topics.apply()


def test_dead_letters_take_messages_as_large_as_their_topic_and_more(lab: Lab) -> None:
    group, topic = unique_name("group"), lab.topic(settings={"max.message.bytes": "3000000"})

    topics_of(lab, group, topic).apply()

    names = [f"{group}.{topic}.dlq", f"{group}.{topic}.replay"]
    found = lab.admin().describe_topics(names)
    assert ["6000000", "9000000"] == [found[name].settings["max.message.bytes"] for name in names]


@pytest.mark.fault("clock: a consumer's clock is hours ahead, or weeks behind")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("ahead", [timedelta(hours=2), timedelta(days=-60)])
def test_dead_letters_and_requests_have_the_brokers_time_whatever_the_clock_of_their_writer(
    lab: Lab, ahead: timedelta
) -> None:
    group, topic = unique_name("group"), lab.topic()
    names = [f"{group}.{topic}.dlq", f"{group}.{topic}.replay"]
    topics_of(lab, group, topic).apply()
    connections = lab.coordinator(unique_name("ns"))
    writer, now_ms = open_writer(connections), int(time.time() * 1000)
    writer.begin()
    for name in names:
        writer.produce(name, b"v", b"k", 0, None, None, now_ms + ahead // timedelta(milliseconds=1))
    writer.commit(timeout_s=TIMEOUT_S)

    for name in names:
        (record,) = wait_until(partial(lab.read, name), within=20, what="the record")
        assert now_ms - 1_000 <= record.timestamp_ms <= now_ms + 60_000


def test_a_setting_that_is_too_low_is_raised(lab: Lab) -> None:
    group, topic = unique_name("group"), lab.topic()
    name = f"{group}.{topic}.replay"
    lab.admin().create([CreateTopic(name, 1, 1, {"retention.ms": "1000"}, why="somebody did")])

    applied = topics_of(lab, group, topic).apply()

    altered = {c.setting: (c.topic, c.found) for c in applied.done if isinstance(c, AlterSetting)}
    assert (name, "1000") == altered["retention.ms"]
    assert {"retention.ms", "max.message.bytes", "message.timestamp.type"} == altered.keys()
    assert [] == applied.left


def test_another_number_of_partitions_is_left_to_a_person(lab: Lab) -> None:
    group, topic = unique_name("group"), lab.topic(partitions=2)
    name = f"{group}.{topic}.dlq"
    lab.admin().create([CreateTopic(name, 1, 1, {}, why="somebody did")])

    applied = topics_of(lab, group, topic).apply()

    (left,) = applied.left
    assert isinstance(left, Difference)
    assert (name, "partitions", "1", "2") == (left.topic, left.what, left.found, left.wanted)


def test_a_topic_that_does_not_exist_has_no_dead_letters(lab: Lab) -> None:
    group, there, missing = unique_name("group"), lab.topic(), unique_name("missing")

    with pytest.raises(TopicMismatchError, match="create it first"):
        topics_of(lab, group, there, missing).apply()

    assert {} == lab.admin().describe_topics([f"{group}.{there}.dlq"])


def test_a_group_whose_dead_letters_would_stand_in_another_groups_topic_is_refused(lab: Lab) -> None:
    first, word, last = unique_name("group"), unique_name("word"), lab.topic()
    other_topic = f"{word}.{last}"
    lab.create(other_topic)
    topics_of(lab, f"{first}.{word}", last).apply()
    assert [] == topics_of(lab, first, other_topic).plan()  # nobody reads that topic yet

    lab.admin().store_offsets(f"{first}.{word}", {(last, 0): StoredOffset(0, "")})

    with pytest.raises(UsageError, match="choose another name"):
        topics_of(lab, first, other_topic).plan()
    assert [] == topics_of(lab, f"{first}.{word}", last).plan()
