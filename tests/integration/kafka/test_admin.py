"""The administrator's view of a real broker: limits, groups, offsets, and what it says when it is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import create_topic, unique_name
from tests.support.commands import run_command
from tests.support.secured import SecuredServers, credential_options, credentials
from tests.support.topic_records import Record, write_records
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.cli.topics import app
from txlayer.config import ClientConfig, SystemTopics
from txlayer.core.topics import AlterSetting, CreateTopic
from txlayer.errors import BrokerUnavailableError, NotAuthorisedError, TopicMismatchError, UsageError
from txlayer.operate.topics import GroupReset, plan_reset

pytestmark = pytest.mark.kafka


def all_partitions(topics: SystemTopics, count: int) -> list[TopicPartition]:
    """The partitions that coordinators read."""
    return [(topic, p) for topic in (topics.half, topics.op) for p in range(count)]


def reset(admin: KafkaAdmin, topics: SystemTopics, to: Any) -> GroupReset:
    """What coordinators would have stored."""
    read = (topics.half, topics.op)
    return plan_reset(admin, topics.coordinator_group, read, to=to, of_coordinators=True)


# --- groups and offsets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "expected"), [("earliest", 0), ("latest", 3), (2_000, 1), (2_500, 2), (9_000, 3)])
def test_coordinators_can_be_told_where_to_begin(
    admin: KafkaAdmin, config: ClientConfig, to: Any, expected: int
) -> None:
    topics = config.topics
    for topic in (topics.half, topics.op):
        # Kept for good: the broker looks for what is too old now and then, and these are of 1970.
        create_topic(config.bootstrap_servers, topic, config={"retention.ms": "-1"})
        write_records(
            config.bootstrap_servers, [Record(topic, b"x", timestamp_ms=at_ms) for at_ms in (1_000, 2_000, 3_000)]
        )
    admin.store_offsets(topics.coordinator_group, {(topics.half, 0): StoredOffset(2, "1|old")})

    plan = reset(admin, topics, to)

    stored = admin.stored_offsets(topics.coordinator_group, all_partitions(topics, 1))
    assert {(topics.half, 0): StoredOffset(2, "1|old"), (topics.op, 0): None} == stored
    assert plan.before == stored
    assert dict.fromkeys(stored, StoredOffset(expected, "")) == plan.after
    admin.store_offsets(topics.coordinator_group, plan.after)
    stored = admin.stored_offsets(topics.coordinator_group, all_partitions(topics, 1))
    assert stored == plan.after


def test_a_namespace_without_topics_has_no_offsets_to_reset(admin: KafkaAdmin, config: ClientConfig) -> None:
    with pytest.raises(TopicMismatchError, match="topics apply"):
        reset(admin, config.topics, "earliest")


@pytest.mark.fault("network: the name or the advertised address of a broker is wrong")
def test_a_broker_that_is_down_is_told_with_address_and_time() -> None:
    [port] = free_ports(1)
    down = ClientConfig(bootstrap_servers=f"127.0.0.1:{port}")

    with pytest.raises(BrokerUnavailableError, match="Connection refused") as told:
        KafkaAdmin(down, timeout_ms=500).describe_topics(["any"])

    assert down.bootstrap_servers == told.value.bootstrap_servers
    assert told.value.waited_ms is not None
    assert 400 <= told.value.waited_ms <= 10_000


# --- credentials and rights -------------------------------------------------------------------------------------------


@pytest.mark.fault("rights: a wrong password, or missing rights")
def test_wrong_credentials_are_told_at_once_and_end_with_5(
    secured: SecuredServers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = credential_options(tmp_path / "password", password="wrong")

    code, out, err = run_command(app, "check", "-b", secured.secured_servers, *options, capsys=capsys)

    assert (5, "") == (code, out)
    assert err.startswith("error: the broker refused the credentials")
    assert 1 == err.count("\n")
    assert "wrong" not in err


@pytest.mark.fault("rights: a wrong password, or missing rights")
def test_missing_rights_are_told_by_resource_and_operation(secured: SecuredServers) -> None:
    topic = create_topic(secured.open_servers, unique_name("secret"))
    config = ClientConfig(bootstrap_servers=secured.secured_servers, client_settings=credentials())

    with KafkaAdmin(config) as admin:
        refusals: list[tuple[Any, Any]] = []
        for ask in (
            lambda: admin.describe_topics([topic]),
            lambda: admin.create([CreateTopic("new", 1, None, {}, "")]),
            lambda: admin.alter_settings([AlterSetting(topic, "retention.ms", "1", "2", "")]),
            lambda: admin.group("orders"),
            lambda: admin.stored_offsets("orders", [(topic, 0)]),
            lambda: admin.store_offsets("orders", {(topic, 0): StoredOffset(0, "")}),
        ):
            with pytest.raises(NotAuthorisedError) as refused:
                ask()
            refusals.append((refused.value.resource, refused.value.operation))

    assert [
        (topic, "describe"),
        ("new", "create"),
        (topic, "alter configs"),
        ("orders", "describe group"),
        ("orders", "read stored offsets"),
        ("orders", "store offsets"),
    ] == refusals


def test_a_user_of_the_right_password_is_let_in(secured: SecuredServers) -> None:
    config = ClientConfig(bootstrap_servers=secured.secured_servers, client_settings=credentials())

    with KafkaAdmin(config) as admin, pytest.raises(NotAuthorisedError, match="TOPIC_AUTHORIZATION"):
        admin.topic_limits("any")


def test_a_topic_that_another_person_has_just_widened_is_wide_enough(config: ClientConfig, admin: KafkaAdmin) -> None:
    topic = create_topic(config.bootstrap_servers, unique_name("orders"), partitions=1)
    admin.widen({topic: 3})

    admin.widen({topic: 3})

    assert 3 == admin.partition_count(topic)
    with pytest.raises(UsageError, match="3 partition"):
        admin.widen({topic: 2})
