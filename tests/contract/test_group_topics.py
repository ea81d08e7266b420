"""The topics of a consumer group: dead letters and replays with the partitions of the topic that they belong to."""

import pytest

from tests.support.broker import unique_name
from tests.support.lab import Lab
from txlayer.adapters.ports import StoredOffset
from txlayer.core.topics import AlterSetting, CreateTopic, Difference
from txlayer.errors import TopicMismatchError, UsageError
from txlayer.operate.topics import GroupTopics


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

    found = lab.admin().describe_topics([f"{group}.{topic}.dlq"])[f"{group}.{topic}.dlq"]
    assert "6000000" == found.settings["max.message.bytes"]


def test_a_setting_that_is_too_low_is_raised(lab: Lab) -> None:
    group, topic = unique_name("group"), lab.topic()
    name = f"{group}.{topic}.replay"
    lab.admin().create([CreateTopic(name, 1, 1, {"retention.ms": "1000"}, why="somebody did")])

    applied = topics_of(lab, group, topic).apply()

    (altered,) = [c for c in applied.done if isinstance(c, AlterSetting)]
    assert (name, "retention.ms", "1000") == (altered.topic, altered.setting, altered.found)
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
