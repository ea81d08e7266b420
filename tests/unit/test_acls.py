"""What a role must be allowed, as data, and what follows from it for a cluster."""

import pytest

from txlayer import OrderedConsumer
from txlayer.adapters.namespace import read_acl_files
from txlayer.config import SystemTopics
from txlayer.core.acls import Acl, AclPattern, AclResource, CreateAcl, Operation, OtherAcl, RoleSpec, WantedAcl, plan
from txlayer.core.dead_letters import writer_name
from txlayer.errors import ConfigError, UsageError

FILES = read_acl_files()
WHO = "User:orders"


def wanted(role: str, *, topics: tuple[str, ...] = ("orders",), group: str = "g") -> list[WantedAcl]:
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

    assert [CreateAcl(rights[0].acl, rights[0].why)] == changes[:1]
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
