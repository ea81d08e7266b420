"""`txlayer doctor` on real brokers: each finding planted on purpose in a bad cluster, none of them in a good one."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets some
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import create_topic, unique_name
from tests.support.commands import run_command, run_txlayer
from tests.support.crafted import Crafted
from tests.support.processes import CoordinatorProcess
from tests.support.secured import SecuredServers, credential_options
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.inspection import inspect
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.cli.main import build_app
from txlayer.config import CoordinatorConfig
from txlayer.core.messages import Resolution
from txlayer.operate.doctor import examine

pytestmark = pytest.mark.kafka

BAD_SETTINGS = {
    "transaction.max.timeout.ms": "60000",  # below it the local broker's own first try is refused
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
    "transaction.partition.verification.enable": "false",
    "transactional.id.expiration.ms": "60000",
    "auto.create.topics.enable": "true",
    "offsets.retention.minutes": "60",
    "offset.metadata.max.bytes": "2048",
    "group.min.session.timeout.ms": "10000",
}


class Doctor:
    """The command on one namespace."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, servers: str, namespace: str, *more: str) -> tuple[int, dict[str, Any]]:
        code, out, err = run_command(
            build_app(), "doctor", "-b", servers, "-n", namespace, "--json", *more, capsys=self._capsys
        )
        assert "" == err
        return code, json.loads(out)


def found(said: dict[str, Any], *levels: str) -> set[tuple[str, str]]:
    """{(check, level)} of the findings at these levels."""
    rows = ((f["check"], f["level"]) for f in said["findings"])
    return {row for row in rows if row[1] in levels}


def reasons(said: dict[str, Any], check: str, level: str) -> str:
    """What is said of one check, all together."""
    return "\n".join(f["reason"] for f in said["findings"] if (f["check"], f["level"]) == (check, level))


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


@pytest.fixture(scope="module")
def bad_broker(local_config: LocalConfig, broker: Broker) -> Iterator[str]:
    assert broker  # it has fetched what a broker needs
    with LocalBroker(config=local_config, properties=BAD_SETTINGS) as started:
        yield started.bootstrap_servers


@pytest.fixture(scope="module")
def ill(bad_broker: str) -> Arena:
    """A namespace on it in which everything is wrong that can be made wrong on one broker."""
    arena = make_arena(bad_broker, partition_count=2, target_partitions=(1,))
    admin = AdminClient({"bootstrap.servers": bad_broker, "log_level": 0})
    small = create_topic(bad_broker, unique_name("small"), config={"max.message.bytes": "1000"})
    crafted = Crafted(bad_broker, arena.topics, partition_count=2)
    crafted.half("open/00000001", small)  # in the other partition than the next one
    placed = crafted.half("gone/00000002", "never-created")
    crafted.op(placed, Resolution.COMMIT)
    with KafkaAdmin(CoordinatorConfig(bootstrap_servers=bad_broker)) as ours:
        changes = [
            (arena.topics.half, "retention.ms", "3600000"),
            (arena.topics.half, "min.insync.replicas", "1"),
            (arena.topics.op, "unclean.leader.election.enable", "true"),
        ]
        for topic, name, value in changes:
            alter(ours, topic, name, value)
    gone = arena.topics.check
    admin.delete_topics([gone])[gone].result(timeout=30)
    delete_records(admin, arena, placed.partition)
    return arena


def alter(admin: KafkaAdmin, topic: str, setting: str, value: str) -> None:
    from txlayer.core.topics import AlterSetting

    admin.alter_settings([AlterSetting(topic, setting, None, value, "the test")])


def delete_records(admin: AdminClient, arena: Arena, partition: int) -> None:
    """Retention, at once: half's records of one partition are gone, and the coordinators have not read them."""
    place = TopicPartition(arena.topics.half, partition, -1)
    for future in admin.delete_records([place]).values():
        future.result(timeout=30)


# --- a bad cluster ----------------------------------------------------------------------------------------------------


EXPECTED = {
    ("broker.transaction-timeout", "error"): "no coordinator can begin",
    ("broker.transaction-timeout", "warning"): "loses its producers",
    ("broker.verification", "error"): "P2",
    ("broker.session-timeout", "error"): "no coordinator can join",
    ("broker.offsets", "warning"): "offset.metadata.max.bytes=2048",
    ("broker.auto-creation", "warning"): "mistypes",
    ("topics.settings", "error"): "missing",
    ("topics.replication", "warning"): "what a lost disk held is gone",
    ("topics.in-sync", "error"): "unclean leaders",
    ("topics.retention", "error"): "kept for 1 h",
    ("targets.missing", "error"): "held",
    ("targets.message-bytes", "warning"): "max.message.bytes=1000",
    ("coordinator.group", "error"): "no coordinator runs",
    ("coordinator.lag", "error"): "1 op records are not applied",
    ("coordinator.log-start", "error"): "retention took what was not read",
}


def test_everything_that_was_planted_is_found(ill: Arena, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXLAYER_KAFKA_TRANSACTION_TIMEOUT", "61s")

    code, said = doctor(ill.servers, ill.namespace, "--topic", "never-created")

    assert 1 == code
    assert set(EXPECTED) <= found(said, "error", "warning")
    assert {} == {
        check: reasons(said, *check) for check, words in EXPECTED.items() if words not in reasons(said, *check)
    }
    assert all(f["mend"] for f in said["findings"] if f["level"] in ("error", "warning"))


def test_nothing_was_changed_by_looking(ill: Arena, doctor: Doctor) -> None:
    with KafkaAdmin(CoordinatorConfig(bootstrap_servers=ill.servers)) as admin:
        before = (admin.topic_names(), admin.describe_topics(ill.topics.all))
        doctor(ill.servers, ill.namespace)
        after = (admin.topic_names() - {"__transaction_state"}, admin.describe_topics(ill.topics.all))

    assert (before[0] - {"__transaction_state"}, before[1]) == after


def test_a_person_reads_the_worst_first(
    ill: Arena, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")

    code, out, _ = run_txlayer("doctor", "-b", ill.servers, "-n", ill.namespace, capsys=capsys)

    assert 1 == code
    assert out.index("error") < out.index("warning")
    assert f"txlayer topics apply --namespace {ill.namespace}" in out
    assert "--all shows what is in order" in out


def test_a_wrong_clock_is_found_by_what_the_broker_wrote(ill: Arena) -> None:
    config = CoordinatorConfig(bootstrap_servers=ill.servers, namespace=ill.namespace)
    slow = inspect(config, wall_clock=lambda: time.time() - 3600)

    shown = [f for f in examine(slow, config) if f.check == "clock.difference"]
    assert ["error"] == [f.level.value for f in shown]
    assert "ahead of this machine's by at least" in shown[0].reason


def test_an_old_transaction_that_holds_half_back_is_found(
    broker: Broker, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = make_arena(broker.bootstrap_servers, partition_count=2, target_partitions=(1,))
    crafted = Crafted(arena.servers, arena.topics, partition_count=2)
    crafted.half("old/00000001", arena.targets[0])
    monkeypatch.setenv("TXLAYER_DOUBT_AFTER", "1ms")

    _, said = doctor(arena.servers, arena.namespace)

    assert "held back for" in reasons(said, "half.low-water", "warning")


def test_a_namespace_without_stored_offsets_is_found(broker: Broker, doctor: Doctor) -> None:
    arena = make_arena(broker.bootstrap_servers, partition_count=2, target_partitions=(1,))
    group = arena.topics.coordinator_group
    admin = AdminClient({"bootstrap.servers": arena.servers, "log_level": 0})
    admin.delete_consumer_groups([group])[group].result(timeout=30)

    code, said = doctor(arena.servers, arena.namespace)

    assert 1 == code
    assert f"offsets stored for {group}" in reasons(said, "topics.settings", "error")


# --- a good one -------------------------------------------------------------------------------------------------------


def test_a_cluster_in_order_has_no_error_and_warns_of_its_one_broker(
    broker: Broker, doctor: Doctor, tmp_path: Path
) -> None:
    arena = make_arena(broker.bootstrap_servers, partition_count=2, target_partitions=(1,))
    with CoordinatorProcess(
        arena.servers, arena.namespace, log_file=tmp_path / "log", settings={"session_timeout": "6s"}
    ) as one:
        one.wait_for("partitions.taken_over")

        code, said = doctor(arena.servers, arena.namespace, "--topic", arena.targets[0])
        strict, _ = doctor(arena.servers, arena.namespace, "--strict")

    assert (0, set()) == (code, found(said, "error"))
    assert {("topics.replication", "warning"), ("coordinator.group", "warning")} == found(said, "warning")
    assert 1 == strict
    assert "Kafka 3.9 or later" in reasons(said, "broker.version", "ok")
    assert "they differ by" in reasons(said, "clock.difference", "ok")


# --- rights -----------------------------------------------------------------------------------------------------------


def allow(servers: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    wanted = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:guest", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for future in admin.create_acls(wanted).values():
        future.result(timeout=30)


def test_what_these_credentials_lack_is_named_with_the_acl_that_mends_it(
    secured: SecuredServers, doctor: Doctor, tmp_path: Path
) -> None:
    arena = make_arena(secured.open_servers, partition_count=2, target_partitions=(1,))
    topics, describe = arena.topics, (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    for name in topics.all:
        allow(secured.open_servers, ResourceType.TOPIC, name, *describe)
    allow(secured.open_servers, ResourceType.TOPIC, topics.half, AclOperation.READ)
    settings = credential_options(tmp_path / "password")

    code, said = doctor(secured.secured_servers, arena.namespace, *settings)

    refused = {
        (f["about"], f["reason"].split()[0])
        for f in said["findings"]
        if (f["check"], f["level"]) == ("acl.coordinator", "error")
    }
    assert 1 == code
    assert {
        (f"topic {topics.op}", "Read"),
        (f"topic {topics.doubt}", "Read"),
        (f"topic {topics.doubt}", "Write"),
        (f"topic {topics.op}", "Write"),
        (f"topic {topics.check}", "Write"),
        (f"group {topics.coordinator_group}", "Read"),
    } <= refused
    assert (f"topic {topics.half}", "Read") not in refused
    mends = [f["mend"] for f in said["findings"] if f["check"] == "acl.coordinator"]
    assert any(f"--operation Read --topic {topics.op}" in mend for mend in mends)
    untold = {f["about"] for f in said["findings"] if f["check"] == "untold"}
    assert {"settings of broker 1"} <= untold
