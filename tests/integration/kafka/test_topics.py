"""`txlayer topics` on a real broker: what it creates, alters, reports and leaves."""

import json

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]  # its stub forgets NewPartitions

from tests.support.broker import create_topic, unique_name
from tests.support.commands import run_command
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.namespace import Namespace
from txlayer.cli.topics import app
from txlayer.config import ClientConfig

pytestmark = pytest.mark.kafka


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
    return run_command(app, *arguments, capsys=capsys)


# --- the command ------------------------------------------------------------------------------------------------------


def test_check_ends_with_1_until_apply_was_run(config: ClientConfig, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("-b", config.bootstrap_servers, "-n", config.namespace, "--partitions", "1")

    codes = [run(capsys, command, *where)[0] for command in ("check", "apply", "check")]

    assert [1, 0, 0] == codes


def test_check_shows_the_differences_as_json_and_as_a_table(
    config: ClientConfig, namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace.apply(partition_count=1)
    alter(config, config.topics.op, retention_ms="1000")
    where = ("-b", config.bootstrap_servers, "-n", config.namespace)

    code, out, err = run(capsys, "check", *where, "--json")
    table = run(capsys, "check", *where)

    assert (1, "") == (code, err)
    shown = json.loads(out)
    assert config.namespace == shown["namespace"]
    assert [("AlterSetting", config.topics.op, "1000", "604800000")] == [
        (c["change"], c["topic"], c["found"], c["wanted"]) for c in shown["changes"]
    ]
    assert (1, "") == (table[0], table[2])
    assert "604800000" in table[1]


# --- a consumer group's -----------------------------------------------------------------------------------------------


def test_the_topics_of_a_consumer_group_are_planned_made_and_checked(
    config: ClientConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = create_topic(config.bootstrap_servers, unique_name("orders"), partitions=3)
    group = unique_name("loyalty")
    where = ("-b", config.bootstrap_servers, "--group", group, "--topic", topic)

    before = run(capsys, "check", *where)
    applied = run(capsys, "apply", *where, "--json")
    after = run(capsys, "check", *where)

    assert 1 == before[0]
    assert f"group {group}" in before[1]
    assert 0 == applied[0]
    assert {"group": group} == {k: v for k, v in json.loads(applied[1]).items() if k != "changes"}
    assert {(f"{group}.{topic}.dlq", 3), (f"{group}.{topic}.replay", 3)} == {
        (c["topic"], c["partition_count"]) for c in json.loads(applied[1])["changes"]
    }
    assert (0, f"{group}: every topic is as it must be\n", "") == after
