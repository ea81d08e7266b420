"""Topics as data: what a topic file may say, and what is planned from it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.adapters.namespace import NAMESPACE_ROLES, read_topic_files
from txlayer.core.topics import (
    PARTITION_COUNT,
    AlterSetting,
    Change,
    CreateTopic,
    DesiredTopic,
    Difference,
    FollowsSetting,
    Setting,
    TopicSpec,
    TopicState,
    plan,
)


def setting(name: str, value: str, **overrides: Any) -> Setting:
    """A setting with a reason."""
    return Setting(**{"name": name, "value": value, "why": "because", **overrides})


def desired(name: str = "ns.half", **overrides: Any) -> DesiredTopic:
    """A topic as it must be."""
    return DesiredTopic(
        **{
            "name": name,
            "partition_count": 8,
            "is_count_shared": True,
            "partitions_why": "keys never move",
            "replication_factor": None,
            "settings": (),
            **overrides,
        }
    )


def state(**overrides: Any) -> TopicState:
    """A topic as it is."""
    return TopicState(**{"partition_count": 8, "replication_factor": 1, "settings": {}, **overrides})


def after(
    changes: list[Change], actual: dict[str, TopicState], *, replication_factor: int = 1
) -> dict[str, TopicState]:
    """The cluster once the changes are made; what it does by itself is nothing."""
    cluster = dict(actual)
    for change in changes:
        if isinstance(change, CreateTopic):
            replicas = change.replication_factor or replication_factor
            cluster[change.topic] = TopicState(change.partition_count, replicas, dict(change.settings))
        elif isinstance(change, AlterSetting):
            old = cluster[change.topic]
            cluster[change.topic] = replace(old, settings={**old.settings, change.setting: change.wanted})
    return cluster


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_a_missing_topic_is_created_with_all_its_settings() -> None:
    topic = desired(settings=(setting("retention.ms", "7"), setting("min.insync.replicas", "2", replication_min=3)))

    assert [CreateTopic("ns.half", 8, None, {"retention.ms": "7"}, "keys never move")] == plan([topic], {})
    three = replace(topic, replication_factor=3)
    assert [CreateTopic("ns.half", 8, 3, {"retention.ms": "7", "min.insync.replicas": "2"}, "keys never move")] == plan(
        [three], {}
    )


@pytest.mark.parametrize(
    ("name", "found", "wanted", "is_altered"),
    [
        ("retention.ms", "6", "7", True),
        ("retention.ms", "8", "7", False),
        ("retention.ms", "-1", "7", False),
        ("retention.bytes", "1000000", "-1", True),
        ("retention.bytes", "-1", "-1", False),
        ("max.message.bytes", "6", "7", True),
        ("max.message.bytes", "8", "7", False),
        ("min.insync.replicas", "1", "2", True),
        ("min.insync.replicas", "3", "2", False),
        ("message.timestamp.type", "CreateTime", "LogAppendTime", True),
        ("unclean.leader.election.enable", "true", "false", True),
        ("retention.ms", "a week", "7", True),
    ],
)
def test_a_setting_is_raised_and_never_lowered(name: str, found: str, wanted: str, *, is_altered: bool) -> None:
    changes = plan([desired(settings=(setting(name, wanted),))], {"ns.half": state(settings={name: found})})

    assert ([AlterSetting("ns.half", name, found, wanted, "because")] if is_altered else []) == changes


@pytest.mark.parametrize(
    ("found", "wanted", "differs"),
    [
        ("compact", "delete", True),
        ("delete", "compact", True),
        ("compact,delete", "compact", True),
        ("compact, delete", "delete,compact", False),
    ],
)
def test_what_could_delete_records_is_left_to_a_person(found: str, wanted: str, *, differs: bool) -> None:
    topic = desired(settings=(setting("cleanup.policy", wanted),))

    changes = plan([topic], {"ns.half": state(settings={"cleanup.policy": found})})

    assert ([Difference("ns.half", "cleanup.policy", found, wanted, "because")] if differs else []) == changes


@pytest.mark.parametrize("found", [4, 16])
def test_a_number_of_partitions_is_fixed_for_life(found: int) -> None:
    changes = plan([desired()], {"ns.half": state(partition_count=found)})

    assert [Difference("ns.half", "partitions", str(found), "8", "keys never move")] == changes


def test_the_topic_that_an_interrupted_widening_did_not_reach_is_named_with_the_command_that_ends_it() -> None:
    """A topic never gets fewer, so those that have more are as they must be."""
    names = ["ns.half", "ns.op", "ns.doubt"]
    actual = dict(zip(names, [state(), state(), state(partition_count=16)], strict=True))

    changes = plan([desired(name) for name in names], actual)

    found = [(c.topic, c.found, c.wanted, c.is_widening_interrupted) for c in changes if isinstance(c, Difference)]
    assert [("ns.half", "8", "16", True), ("ns.op", "8", "16", True)] == found
    assert all("`txlayer topics widen --partitions 16` ends" in c.why for c in changes if isinstance(c, Difference))


@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
def test_half_and_op_with_unequal_partitions_are_a_finding() -> None:
    changes = plan([desired("ns.half"), desired("ns.op")], {"ns.half": state(), "ns.op": state(partition_count=6)})

    assert 1 == len(changes)
    assert isinstance(changes[0], Difference)
    assert ("ns.op", "6", "8") == (changes[0].topic, changes[0].found, changes[0].wanted)
    assert "no coordinator starts" in changes[0].why


def test_a_missing_topic_of_an_old_namespace_gets_the_old_count() -> None:
    changes = plan([desired("ns.half"), desired("ns.op")], {"ns.half": state(partition_count=16)})

    assert [16] == [change.partition_count for change in changes if isinstance(change, CreateTopic)]
    assert ["ns.half"] == [change.topic for change in changes if isinstance(change, Difference)]


def test_fewer_replicas_than_asked_for_are_a_finding_and_more_are_not() -> None:
    topic = desired(replication_factor=3)

    assert [] == plan([topic], {"ns.half": state(replication_factor=5)})
    found = plan([topic], {"ns.half": state(replication_factor=1)})
    assert [("replication factor", "1", "3")] == [
        (change.what, change.found, change.wanted) for change in found if isinstance(change, Difference)
    ]


def test_a_replicated_topic_gets_its_minimum_in_sync_whoever_chose_the_replicas() -> None:
    topic = desired(settings=(setting("min.insync.replicas", "2", replication_min=3),))
    settings = {"min.insync.replicas": "1"}

    assert [] == plan([topic], {"ns.half": state(replication_factor=2, settings=settings)})
    changes = plan([topic], {"ns.half": state(replication_factor=3, settings=settings)})
    assert [AlterSetting("ns.half", "min.insync.replicas", "1", "2", "because")] == changes


@pytest.mark.parametrize(
    ("half_bytes", "doubt_bytes", "wanted"),
    [("1048588", "2097176", None), ("1048588", "2097152", "2097176"), ("5000000", "2097176", "10000000")],
)
def test_doubt_takes_more_bytes_than_half_whatever_half_takes(
    half_bytes: str, doubt_bytes: str, wanted: str | None
) -> None:
    limit = setting("max.message.bytes", "2097176", above=FollowsSetting("ns.half", 2))
    topics = [desired("ns.half"), desired("ns.doubt", settings=(limit,))]

    changes = plan(
        topics,
        {
            "ns.half": state(settings={"max.message.bytes": half_bytes}),
            "ns.doubt": state(settings={"max.message.bytes": doubt_bytes}),
        },
    )

    assert ([wanted] if wanted else []) == [c.wanted for c in changes if isinstance(c, AlterSetting)]


# --- for every cluster ------------------------------------------------------------------------------------------------

NUMBERS = st.integers(-1, 5_000_000).map(str)
FOUND = st.fixed_dictionaries(
    {},
    optional={
        "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete"]),
        "max.message.bytes": NUMBERS,
        "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
        "min.compaction.lag.ms": NUMBERS,
        "min.insync.replicas": st.integers(1, 3).map(str),
        "retention.bytes": NUMBERS,
        "retention.ms": NUMBERS,
        "unclean.leader.election.enable": st.sampled_from(["true", "false"]),
    },
)
STATES = st.builds(TopicState, st.integers(1, 12), st.integers(1, 4), FOUND)
TOPICS = [f"shop.{role}" for role in NAMESPACE_ROLES]
CLUSTERS = st.dictionaries(st.sampled_from(TOPICS), STATES)


def namespace(partition_count: int, replication_factor: int | None) -> list[DesiredTopic]:
    """The namespace `shop` as the topic files say it."""
    files = read_topic_files()
    return [
        TopicSpec.parse(files[role]).desired(
            names={"namespace": "shop"}, partition_count=partition_count, replication_factor=replication_factor
        )
        for role in NAMESPACE_ROLES
    ]


DESIRED = {(count, factor): namespace(count, factor) for count in (4, PARTITION_COUNT) for factor in (None, 1, 3)}


@given(CLUSTERS, st.sampled_from(sorted(DESIRED, key=str)))
def test_a_plan_never_deletes_and_never_shrinks(actual: dict[str, TopicState], asked: tuple[int, int | None]) -> None:
    cluster = after(plan(DESIRED[asked], actual), actual, replication_factor=3)

    assert set(TOPICS) == set(cluster)
    for name, before in actual.items():
        now = cluster[name]
        assert (before.partition_count, before.replication_factor) == (now.partition_count, now.replication_factor)
        assert before.settings.get("cleanup.policy") == now.settings.get("cleanup.policy")
        for setting_name in ("retention.ms", "retention.bytes"):
            if setting_name in before.settings:
                old, new = (int(s.settings[setting_name]) for s in (before, now))
                assert new == -1 or 0 <= old <= new


@given(CLUSTERS, st.sampled_from(sorted(DESIRED, key=str)))
def test_a_plan_applied_twice_leaves_only_what_a_person_must_do(
    actual: dict[str, TopicState], asked: tuple[int, int | None]
) -> None:
    cluster = actual
    for _ in range(2):
        cluster = after(plan(DESIRED[asked], cluster), cluster, replication_factor=3)

    assert [] == [change for change in plan(DESIRED[asked], cluster) if not isinstance(change, Difference)]
