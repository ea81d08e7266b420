"""The files of topics/: what one may say, and that ours say what the promises rest on."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from txlayer.adapters.namespace import GROUP_ROLES, NAMESPACE_ROLES, read_topic_files
from txlayer.config import SystemTopics
from txlayer.core.topics import SETTING_RULES, FollowsSetting, PartitionSource, Setting, TopicSpec
from txlayer.errors import ConfigError

FILE = """
name = "{namespace}.half"
holds = "half messages"
[partitions]
count = "namespace"
why = "keys never move"
[settings."retention.ms"]
value = "1000"
why = "long enough"
"""


def topic_file(**overrides: Any) -> dict[str, Any]:
    """The content of a topic file."""
    return {**tomllib.loads(FILE), **overrides}


def test_a_topic_file_is_read_whole() -> None:
    spec = TopicSpec.parse(topic_file())

    assert (
        TopicSpec(
            "{namespace}.half",
            PartitionSource.NAMESPACE,
            "keys never move",
            (Setting("retention.ms", "1000", "long enough"),),
        )
        == spec
    )


def test_a_setting_may_follow_another_topics_and_may_need_replicas() -> None:
    followed = {"topic": "{namespace}.half", "times": 2}
    spec = TopicSpec.parse(
        topic_file(settings={"max.message.bytes": {"value": "9", "why": "w", "replication_min": 3, "above": followed}})
    )

    topic = spec.desired(names={"namespace": "shop"}, partition_count=4)

    assert (Setting("max.message.bytes", "9", "w", 3, FollowsSetting("shop.half", 2)),) == topic.settings
    assert ("shop.half", 4, True) == (topic.name, topic.partition_count, topic.is_count_shared)


def test_a_number_of_partitions_stands_for_itself() -> None:
    spec = TopicSpec.parse(topic_file(partitions={"count": 4, "why": "w"}))

    topic = spec.desired(names={"namespace": "shop"}, partition_count=16)

    assert (4, False) == (topic.partition_count, topic.is_count_shared)


@pytest.mark.parametrize("role", [*NAMESPACE_ROLES, *GROUP_ROLES])
def test_a_topic_file_gives_a_reason_for_each_number_and_nothing_without_a_meaning(role: str) -> None:
    content = read_topic_files()[role]
    settings: dict[str, dict[str, Any]] = content["settings"]  # type: ignore[assignment]  # it is a table

    assert {"name", "holds", "partitions", "settings"} == set(content)
    assert {"count", "why"} == set(content["partitions"])  # type: ignore[call-overload]  # the same
    assert all({"value", "why"} <= set(s) <= {"value", "why", "replication_min", "above"} for s in settings.values())
    assert all(len(s["why"]) > 7 and isinstance(s["value"], str) for s in settings.values())


def test_the_wheels_copy_counts_before_a_folder_beside_it(tmp_path: Path) -> None:
    for folder in ("_topics", "topics"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "half.toml").write_text(f'name = "{folder}"', encoding="utf-8")

    files = read_topic_files((tmp_path / "_topics", tmp_path / "topics"))

    assert {"half": {"name": "_topics"}} == files


def test_an_installation_without_topic_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install txlayer again"):
        read_topic_files((tmp_path / "nothing",))


def test_a_topic_file_that_is_no_toml_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "half.toml").write_text("name = ", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"half\.toml"):
        read_topic_files((tmp_path,))


def test_the_topic_files_are_those_of_the_design() -> None:
    files = read_topic_files()
    specs = {role: TopicSpec.parse(content) for role, content in files.items()}

    assert {*NAMESPACE_ROLES, *GROUP_ROLES} == set(specs)
    names = {specs[role].desired(names={"namespace": "shop"}, partition_count=8).name for role in NAMESPACE_ROLES}
    assert SystemTopics("shop").all == names
    for role in ("half", "op", "doubt"):
        assert PartitionSource.NAMESPACE is specs[role].partitions
    dlq = specs["dlq"].desired(names={"group": "loyalty", "topic": "orders"}, partition_count=3)
    assert ("loyalty.orders.dlq", 3, False) == (dlq.name, dlq.partition_count, dlq.is_count_shared)


@pytest.mark.parametrize(
    ("role", "name", "value"),
    [
        ("half", "retention.ms", "604800000"),
        ("half", "message.timestamp.type", "LogAppendTime"),
        ("op", "retention.ms", "604800000"),
        ("op", "message.timestamp.type", "LogAppendTime"),
        ("doubt", "cleanup.policy", "compact"),
        ("doubt", "min.compaction.lag.ms", "86400000"),
        ("doubt", "message.timestamp.type", "LogAppendTime"),
        ("check", "retention.ms", "86400000"),
        ("locks", "retention.ms", "86400000"),
        ("locks", "message.timestamp.type", "LogAppendTime"),
        ("dlq", "retention.ms", "2592000000"),
        ("replay", "retention.ms", "3888000000"),
    ],
)
def test_a_topic_has_the_setting_that_a_promise_rests_on(role: str, name: str, value: str) -> None:
    spec = TopicSpec.parse(read_topic_files()[role])

    assert {name: value}.items() <= {s.name: s.value for s in spec.settings}.items()


def test_the_result_of_a_replay_outlives_its_dead_letter() -> None:
    # A segment goes when its newest record is old enough; Kafka begins a new one after 7 days at the latest.
    week_ms = 7 * 86_400_000
    kept = {
        role: next(int(s.value) for s in TopicSpec.parse(read_topic_files()[role]).settings if s.name == "retention.ms")
        for role in ("dlq", "replay")
    }

    assert kept["replay"] > kept["dlq"] + week_ms


def test_every_setting_of_the_topic_files_has_a_rule() -> None:
    used = {s.name for content in read_topic_files().values() for s in TopicSpec.parse(content).settings}

    assert used <= set(SETTING_RULES)
