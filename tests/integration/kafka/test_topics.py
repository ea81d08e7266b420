"""`txlayer topics` and the administrator's view on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets NewPartitions
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from tests.conftest import Broker
from tests.support.broker import create_topic, unique_name
from tests.support.secured import SecuredServers, credentials, secured_broker
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import GroupState, KafkaAdmin
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.ports import free_ports
from txlayer.adapters.kafka.namespace import Namespace, OffsetReset
from txlayer.adapters.ports import StoredOffset, TopicLimits, TopicPartition
from txlayer.adapters.topic_files import read_topic_files
from txlayer.cli.border import guard
from txlayer.cli.topics import app
from txlayer.config import ClientConfig, SystemTopics
from txlayer.core.topicspec import AlterSetting, CreateTopic, Difference
from txlayer.errors import (
    BrokerUnavailableError,
    LifecycleError,
    NotAuthorisedError,
    TopicMismatchError,
    UsageError,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
def config(broker: Broker) -> ClientConfig:
    """A namespace of the test's own."""
    return ClientConfig(bootstrap_servers=broker.bootstrap_servers, namespace=unique_name("topics"))


@pytest.fixture
def admin(config: ClientConfig) -> Iterator[KafkaAdmin]:
    """The administrator's view."""
    with KafkaAdmin(config) as opened:
        yield opened


@pytest.fixture
def namespace(admin: KafkaAdmin, config: ClientConfig) -> Namespace:
    """The namespace on the cluster, not created yet."""
    return Namespace(admin, topics=config.topics, files=read_topic_files())


def all_partitions(topics: SystemTopics, count: int) -> list[TopicPartition]:
    """The partitions that coordinators read."""
    return [(topic, p) for topic in (topics.half, topics.op) for p in range(count)]


def alter(config: ClientConfig, topic: str, **settings: str) -> None:
    """Somebody else changes a topic's settings."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = AdminClient({"bootstrap.servers": config.bootstrap_servers, "log_level": 0})
    client.incremental_alter_configs([resource])[resource].result(timeout=10)
    with KafkaAdmin(config) as admin:
        wait_until(
            lambda: (
                {n.replace("_", "."): v for n, v in settings.items()}.items()
                <= admin.describe_topics([topic])[topic].settings.items()
            ),
            within=10,
            what=f"{topic} has its new settings",
        )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `txlayer topics …`."""

    def command() -> None:
        app(list(arguments), standalone_mode=True)

    try:
        code = guard(command)
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def produce(servers: str, topic: str, *, partition: int, timestamps: list[int]) -> None:
    """Records of these times, in this order."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for at_ms in timestamps:
        producer.produce(topic, value=b"x", partition=partition, timestamp=at_ms)
    assert 0 == producer.flush(10)


# --- plan, apply, check -----------------------------------------------------------------------------------------------


def test_apply_creates_every_topic_and_a_second_one_changes_nothing(
    namespace: Namespace, admin: KafkaAdmin, config: ClientConfig
) -> None:
    assert 5 == len([c for c in namespace.plan() if isinstance(c, CreateTopic)])

    first = namespace.apply()
    second = namespace.apply()

    assert [] == first.left
    assert config.topics.all == {c.topic for c in first.done if isinstance(c, CreateTopic)}
    assert ([], []) == (second.done, second.left)
    assert [] == namespace.plan()
    states = admin.describe_topics(config.topics.all)
    assert [8, 8, 8, 4, 4] == [
        states[f"{config.namespace}.{role}"].partition_count
        for role in ("half", "op", "doubt", "check", "locks")
    ]
    assert "LogAppendTime" == states[config.topics.half].settings["message.timestamp.type"]
    assert "compact" == states[config.topics.doubt].settings["cleanup.policy"]
    half_bytes_max, doubt_bytes_max = (
        int(states[topic].settings["max.message.bytes"])
        for topic in (config.topics.half, config.topics.doubt)
    )
    assert doubt_bytes_max >= 2 * half_bytes_max


def test_apply_stores_the_first_offsets_of_the_topics_that_it_creates(
    namespace: Namespace, admin: KafkaAdmin, config: ClientConfig
) -> None:
    namespace.apply(partition_count=3)

    partitions = all_partitions(config.topics, 3)
    stored = admin.stored_offsets(config.topics.coordinator_group, partitions)
    assert dict.fromkeys(partitions, StoredOffset(0, "")) == stored


def test_apply_leaves_an_offset_that_is_stored_already(
    namespace: Namespace, admin: KafkaAdmin, config: ClientConfig
) -> None:
    group, topics = config.topics.coordinator_group, config.topics
    create_topic(config.bootstrap_servers, topics.half, partitions=2)
    admin.store_offsets(group, {(topics.half, 0): StoredOffset(7, "1|mine")})

    applied = namespace.apply()

    stored = admin.stored_offsets(group, all_partitions(topics, 2))
    assert {
        (topics.half, 0): StoredOffset(7, "1|mine"),
        (topics.half, 1): None,
        (topics.op, 0): StoredOffset(0, ""),
        (topics.op, 1): StoredOffset(0, ""),
    } == stored
    # Half was there before: whether nothing was read of its partition 1 is not ours to say.
    assert [(topics.half, "1 of 2")] == [
        (c.topic, c.found) for c in applied.left if isinstance(c, Difference)
    ]


def test_a_setting_that_somebody_lowered_is_raised_and_one_that_was_raised_stays(
    namespace: Namespace, admin: KafkaAdmin, config: ClientConfig
) -> None:
    namespace.apply(partition_count=1)
    alter(config, config.topics.half, retention_ms="1000", max_message_bytes="5000000")
    alter(config, config.topics.op, retention_ms="-1")

    planned = namespace.plan()
    applied = namespace.apply()

    expected = {
        (config.topics.half, "retention.ms", "1000", "604800000"),
        (config.topics.doubt, "max.message.bytes", "2097176", "10000000"),
    }
    assert expected == {
        (c.topic, c.setting, c.found, c.wanted) for c in planned if isinstance(c, AlterSetting)
    }
    assert (planned, []) == (applied.done, applied.left)
    states = admin.describe_topics(config.topics.all)
    assert "604800000" == states[config.topics.half].settings["retention.ms"]
    assert "5000000" == states[config.topics.half].settings["max.message.bytes"]
    assert "-1" == states[config.topics.op].settings["retention.ms"]


def test_half_and_op_with_unequal_partitions_are_reported_and_left(
    namespace: Namespace, admin: KafkaAdmin, config: ClientConfig
) -> None:
    namespace.apply(partition_count=2)
    client = AdminClient({"bootstrap.servers": config.bootstrap_servers, "log_level": 0})
    client.create_partitions([NewPartitions(config.topics.op, 3)])[config.topics.op].result(10)
    wait_until(
        lambda: admin.partition_count(config.topics.op) == 3, within=10, what="op has 3 partitions"
    )

    applied = namespace.apply()

    found = [
        (c.topic, c.what, c.found, c.wanted) for c in applied.left if isinstance(c, Difference)
    ]
    assert (config.topics.op, "partitions", "3", "2") in found
    assert [] == applied.done
    assert (2, 3) == (
        admin.partition_count(config.topics.half),
        admin.partition_count(config.topics.op),
    )


def test_more_replicas_than_brokers_are_refused_and_nothing_is_created(
    namespace: Namespace, admin: KafkaAdmin, config: ClientConfig
) -> None:
    with pytest.raises(UsageError, match="INVALID_REPLICATION_FACTOR"):
        namespace.apply(replication_factor=100)

    assert {} == admin.describe_topics(config.topics.all)


def test_a_topic_that_came_into_being_meanwhile_is_not_ours(
    admin: KafkaAdmin, config: ClientConfig
) -> None:
    create_topic(config.bootstrap_servers, config.topics.half)

    created = admin.create(
        [
            CreateTopic(config.topics.half, 1, None, {}, "there already"),
            CreateTopic(config.topics.op, 1, None, {}, "new"),
        ]
    )

    assert [config.topics.op] == created


# --- the command ------------------------------------------------------------------------------------------------------


def test_check_ends_with_1_until_apply_was_run(
    config: ClientConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("-b", config.bootstrap_servers, "-n", config.namespace, "--partitions", "1")

    codes = [
        run(capsys, command, *where)[0] for command in ("plan", "check", "apply", "check", "plan")
    ]

    assert [0, 1, 0, 0, 0] == codes


def test_plan_shows_the_differences_as_json_and_as_a_table(
    config: ClientConfig, namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace.apply(partition_count=1)
    alter(config, config.topics.op, retention_ms="1000")
    where = ("-b", config.bootstrap_servers, "-n", config.namespace)

    code, out, err = run(capsys, "plan", *where, "--json")
    table = run(capsys, "plan", *where)

    assert (0, "") == (code, err)
    shown = json.loads(out)
    assert config.namespace == shown["namespace"]
    assert [("AlterSetting", config.topics.op, "1000", "604800000")] == [
        (c["change"], c["topic"], c["found"], c["wanted"]) for c in shown["changes"]
    ]
    assert (0, "") == (table[0], table[2])
    assert "604800000" in table[1]


def test_another_number_of_partitions_is_a_finding_that_apply_leaves(
    config: ClientConfig, namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace.apply(partition_count=1)
    where = ("-b", config.bootstrap_servers, "-n", config.namespace, "--partitions", "2", "--json")

    for command in ("plan", "apply", "check"):
        code, out, _ = run(capsys, command, *where)
        assert 1 == code
        assert {"Difference"} == {c["change"] for c in json.loads(out)["changes"]}


def test_a_wrong_option_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == run(capsys, "plan", "--partitions", "0")[0]
    assert 2 == run(capsys, "plan", "-X", "acks=0")[0]
    code, out, err = run(capsys, "plan", "-b", "example.invalid:9092")
    assert (2, "") == (code, out)
    assert err.startswith("error: plain text to another machine")


def test_a_broker_that_is_down_is_told_with_address_and_time() -> None:
    [port] = free_ports(1)
    down = ClientConfig(bootstrap_servers=f"127.0.0.1:{port}")

    with pytest.raises(BrokerUnavailableError, match="Connection refused") as told:
        KafkaAdmin(down, timeout_ms=500).describe_topics(["any"])

    assert down.bootstrap_servers == told.value.bootstrap_servers
    assert told.value.waited_ms is not None
    assert 400 <= told.value.waited_ms <= 2_000


# --- groups and offsets -----------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_has_no_limits(admin: KafkaAdmin) -> None:
    missing = unique_name("missing")

    assert admin.topic_limits(missing) is None
    assert admin.partition_count(missing) is None
    assert {} == admin.describe_topics([missing])


def test_a_topic_tells_its_limits(admin: KafkaAdmin, config: ClientConfig) -> None:
    topic = create_topic(
        config.bootstrap_servers,
        unique_name("limits"),
        partitions=2,
        config={"max.message.bytes": "2000"},
    )

    assert TopicLimits(2, 2000, is_reachable=True) == admin.topic_limits(topic)


def test_offsets_are_stored_for_a_group_that_never_was(
    admin: KafkaAdmin, config: ClientConfig
) -> None:
    topic = create_topic(config.bootstrap_servers, unique_name("offsets"), partitions=2)
    group = unique_name("group")
    partitions = [(topic, 0), (topic, 1)]

    assert GroupState("dead", ()) == admin.group(group)
    assert dict.fromkeys(partitions) == admin.stored_offsets(group, partitions)
    admin.store_offsets(group, {(topic, 1): StoredOffset(5, "1|metadata")})

    expected = {(topic, 0): None, (topic, 1): StoredOffset(5, "1|metadata")}
    assert expected == admin.stored_offsets(group, partitions)
    assert expected == admin.stored_offsets(group, partitions, is_stable=True)
    assert not admin.group(group).is_active


def test_offsets_of_a_group_with_members_are_not_touched(
    namespace: Namespace, admin: KafkaAdmin, config: ClientConfig
) -> None:
    namespace.apply(partition_count=1)
    topics = config.topics
    consumer = Consumer(
        {
            "bootstrap.servers": config.bootstrap_servers,
            "group.id": topics.coordinator_group,
            "partition.assignment.strategy": "range",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    with closing(consumer):
        consumer.subscribe([topics.half, topics.op])

        def is_member() -> bool:
            consumer.poll(0.05)
            return bool(consumer.assignment())

        wait_until(is_member, within=20, what="the consumer is a member")

        state = admin.group(topics.coordinator_group)
        assert state.is_active
        assert [((topics.half, 0), (topics.op, 0))] == [m.partitions for m in state.members]
        with pytest.raises(LifecycleError, match="stop them first"):
            namespace.reset_offsets(to="latest")
        with pytest.raises(LifecycleError, match="active members"):
            admin.store_offsets(topics.coordinator_group, {(topics.half, 0): StoredOffset(9, "")})

    stored = admin.stored_offsets(topics.coordinator_group, [(topics.half, 0)])
    assert {(topics.half, 0): StoredOffset(0, "")} == stored
    assert not admin.group(topics.coordinator_group).is_active


@pytest.mark.parametrize(
    ("to", "expected"), [("earliest", 0), ("latest", 3), (2_000, 1), (2_500, 2), (9_000, 3)]
)
def test_coordinators_can_be_told_where_to_begin(
    namespace: Namespace, admin: KafkaAdmin, config: ClientConfig, to: Any, expected: int
) -> None:
    topics = config.topics
    for topic in (topics.half, topics.op):
        create_topic(config.bootstrap_servers, topic)
        produce(config.bootstrap_servers, topic, partition=0, timestamps=[1_000, 2_000, 3_000])
    admin.store_offsets(topics.coordinator_group, {(topics.half, 0): StoredOffset(2, "1|old")})

    tried = namespace.reset_offsets(to=to, is_dry_run=True)
    untouched = admin.stored_offsets(topics.coordinator_group, all_partitions(topics, 1))
    done = namespace.reset_offsets(to=to)

    assert {(topics.half, 0): StoredOffset(2, "1|old"), (topics.op, 0): None} == untouched
    assert {
        (topics.half, 0): OffsetReset(StoredOffset(2, "1|old"), StoredOffset(expected, "")),
        (topics.op, 0): OffsetReset(None, StoredOffset(expected, "")),
    } == tried
    assert tried == done
    stored = admin.stored_offsets(topics.coordinator_group, all_partitions(topics, 1))
    assert {p: reset.after for p, reset in done.items()} == stored


def test_a_namespace_without_topics_has_no_offsets_to_reset(namespace: Namespace) -> None:
    with pytest.raises(TopicMismatchError, match="topics apply"):
        namespace.reset_offsets(to="earliest")


# --- credentials and rights -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(broker: Broker, local_config: LocalConfig) -> Iterator[SecuredServers]:
    """A broker with users; `broker` is asked for because it says whether a broker can run here at all."""
    servers = secured_broker(local_config)
    with servers.broker:
        yield servers


def test_wrong_credentials_are_told_at_once_and_end_with_5(
    secured: SecuredServers, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"{name}={value}" for name, value in credentials(password="wrong").items()]
    options = [part for setting in settings for part in ("-X", setting)]

    code, out, err = run(capsys, "check", "-b", secured.secured_servers, *options)

    assert (5, "") == (code, out)
    assert err.startswith("error: the broker refused the credentials")
    assert 1 == err.count("\n")
    assert "wrong" not in err


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

    with (
        KafkaAdmin(config) as admin,
        pytest.raises(NotAuthorisedError, match="TOPIC_AUTHORIZATION"),
    ):
        admin.topic_limits("any")
