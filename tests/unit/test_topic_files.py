"""The files of topics/, and what a role must be allowed: what they may say, and that ours say what the promises rest on."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from txlayer import OrderedConsumer
from txlayer.adapters.namespace import GROUP_ROLES, NAMESPACE_ROLES, read_acl_files, read_topic_files
from txlayer.config import SystemTopics
from txlayer.core.acls import Acl, AclPattern, AclResource, CreateAcl, Operation, OtherAcl, RoleSpec, plan
from txlayer.core.dead_letters import writer_name
from txlayer.core.topics import SETTING_RULES, FollowsSetting, PartitionSource, Setting, TopicSpec
from txlayer.errors import ConfigError, UsageError

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


def test_every_setting_of_the_topic_files_has_a_rule() -> None:
    used = {s.name for content in read_topic_files().values() for s in TopicSpec.parse(content).settings}

    assert used <= set(SETTING_RULES)


FILES = read_acl_files()
WHO = "User:orders"


def wanted(role: str, *, topics: tuple[str, ...] = ("orders",), group: str = "g") -> list[CreateAcl]:
    return RoleSpec.parse(role, FILES[role]).wanted(namespace="ns", group=group, topics=topics, principal=WHO, host="*")


def topic(name: str, operation: Operation, **more: object) -> Acl:
    given: dict[str, object] = {"principal": WHO, "pattern": AclPattern.LITERAL, **more}
    return Acl(AclResource.TOPIC, name, operation=operation, **given)  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize("role", FILES)
def test_every_right_of_every_role_has_a_reason_of_its_own(role: str) -> None:
    spec = RoleSpec.parse(role, FILES[role])

    assert {"does", "entry"} == set(FILES[role])
    assert len(spec.entries) == len({entry.why for entry in spec.entries})
    assert all(len(entry.why) > 7 for entry in spec.entries)
    assert all(entry.placeholders <= {"namespace", "group", "topic"} for entry in spec.entries)
    assert not any(Operation.OTHER is entry.operation or AclResource.OTHER is entry.resource for entry in spec.entries)


@pytest.mark.threat("write `<ns>.doubt`", "write a real topic")
def test_nobody_but_the_coordinator_may_write_real_topics_or_doubt() -> None:
    writers = {
        role
        for role in FILES
        for acl in (right.acl for right in wanted(role))
        if acl.operation is Operation.WRITE and acl.name in ("orders", "ns.doubt", "ns.check")
    }

    assert {"coordinator"} == writers


def test_a_group_that_hears_of_dead_letters_reads_them_and_writes_only_its_own() -> None:
    letters = "loyalty.orders.dlq"
    rights = [right.acl for right in wanted("consumer", topics=(letters,), group="shop-undo")]

    assert [Operation.READ] == [acl.operation for acl in rights if acl.name == letters]
    written = {"ns.locks", f"shop-undo.{letters}.dlq", f"shop-undo.{letters}.replay", "shop-undo:"}
    assert written == {acl.name for acl in rights if acl.operation is Operation.WRITE}


@pytest.mark.threat("use a transactional id below `<ns>/`")
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (("consumer", "ns", "x"), ("coordinator", "x", "ns")),
        (("consumer", "loyalty", "x"), ("consumer", "loyalty.eu", "x")),
        (("consumer", "a", "x"), ("coordinator", "x", "a.b")),
        (("coordinator", "x", "a"), ("consumer", "a.b", "x")),
        (("coordinator", "x", "a"), ("coordinator", "x", "a.b")),
    ],
)
def test_no_right_on_transactional_ids_covers_anothers(
    mine: tuple[str, str, str], theirs: tuple[str, str, str]
) -> None:
    rights = [acl for acl in ids_of(*mine) if acl.resource is AclResource.TRANSACTIONAL_ID]
    writers = {
        "consumer": writer_name(theirs[1], "f00"),
        "coordinator": SystemTopics(theirs[2]).transactional_id("f00"),
    }

    assert rights
    assert not any(a.covers(AclResource.TRANSACTIONAL_ID, writers[theirs[0]]) for a in rights)
    assert any(a.covers(AclResource.TRANSACTIONAL_ID, writers[theirs[0]]) for a in ids_of(*theirs))


def ids_of(role: str, group: str, namespace: str) -> list[Acl]:
    """The rights of a role."""
    rights = RoleSpec.parse(role, FILES[role]).wanted(
        namespace=namespace, group=group, topics=("orders",), principal=WHO, host="*"
    )
    return [right.acl for right in rights]


@pytest.mark.threat("use a transactional id below `<ns>/`")
@pytest.mark.parametrize("group", ["ns.coordinator", "other.coordinator", "ns.check.orders"])
def test_a_consumer_is_given_no_group_of_txlayers_own(group: str) -> None:
    with pytest.raises(UsageError, match="join the coordinators"):
        wanted("consumer", group=group)
    assert wanted("producer", group=group)


@pytest.mark.parametrize("group", ["ns.coordinator", "ns.check.orders"])
def test_a_consumer_joins_no_group_of_txlayers_own(group: str) -> None:
    with pytest.raises(ConfigError, match="join the coordinators"):
        OrderedConsumer(bootstrap_servers="127.0.0.1:1", namespace="ns", group=group, topics=["orders"])


def test_what_is_there_is_not_created_again_and_what_is_more_is_shown() -> None:
    rights = wanted("producer")
    there = {right.acl for right in rights[1:]}
    more = topic("ns.half", Operation.READ)
    anybody = topic("*", Operation.ALL, principal="User:*")
    denied = topic("ns.", Operation.WRITE, pattern=AclPattern.PREFIXED, is_denied=True)
    others = {topic("elsewhere", Operation.READ), topic("ns.half", Operation.READ, principal="User:b")}

    changes = plan(rights, {*there, more, anybody, denied, *others}, namespace="ns")

    assert rights[:1] == changes[:1]
    assert {more, anybody, denied} == {c.acl for c in changes[1:] if isinstance(c, OtherAcl)}
    assert [] == plan(rights, {r.acl for r in rights}, namespace="ns")


def test_a_group_and_topic_whose_dead_letters_have_the_same_name_are_shown() -> None:
    mine, theirs = (
        RoleSpec.parse("consumer", FILES["consumer"]).wanted(
            namespace="ns", group=group, topics=(name,), principal=principal, host="*"
        )
        for group, name, principal in (("a", "b.c", WHO), ("a.b", "c", "User:theirs"))
    )
    there = {right.acl for right in (*mine, *theirs)}

    found = plan(mine, there, namespace="ns")

    assert {"a.b.c.dlq", "a.b.c.replay"} == {c.acl.name for c in found}
    assert {"User:theirs"} == {c.acl.principal for c in found}
    assert all("same name" in c.why for c in found)
    replicas = [right for right in there if right.principal == WHO]
    instance = {Acl(a.resource, a.name, a.pattern, a.operation, "User:b") for a in replicas}
    assert [] == plan(mine, {*replicas, *instance}, namespace="ns")


def test_a_right_on_another_system_topic_is_more_than_a_producer_needs() -> None:
    rights = wanted("producer")
    more = topic("ns.doubt", Operation.READ)

    (found,) = plan(rights, {more, *(r.acl for r in rights)}, namespace="ns")

    assert OtherAcl(more, "the role does not need it") == found


def test_a_pattern_of_topics_becomes_a_prefix() -> None:
    names = {
        (r.acl.name, r.acl.pattern)
        for r in wanted("coordinator", topics=("shop.*", "orders", "*"))
        if r.acl.operation is Operation.DESCRIBE_CONFIGS
    }

    literal, prefixed = AclPattern.LITERAL, AclPattern.PREFIXED
    assert {("shop.", prefixed), ("orders", literal), ("*", literal)} == names


@pytest.mark.parametrize(("role", "topics"), [("coordinator", ("sh*p",)), ("consumer", ("shop.*",)), ("producer", ())])
def test_what_no_right_can_say_is_refused(role: str, topics: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        wanted(role, topics=topics)
