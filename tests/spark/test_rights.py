"""What the role `spark` may read, and a topic that it may not see for a while."""

import tomllib
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets some
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from tests.support.planted import Field, Message
from tests.support.secured import USERS, SecuredServers
from tests.support.spark_audit import HOUR_MS, Audit
from tests.support.waiting import wait_until
from txlayer_spark.catalog import Catalog
from txlayer_spark.jobs.bronze import read_new

pytestmark = pytest.mark.kafka
OPTIONS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="guest" '
    f'password="{USERS["guest"]}";',
}
ROLE = Path(__file__).parents[2] / "topics" / "acl" / "spark.toml"


def _binding(name: str, operation: AclOperation, kind: str = "topic") -> AclBinding:
    return AclBinding(
        ResourceType[kind.upper()],
        name,
        ResourcePatternType.LITERAL,
        "User:guest",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


def visible(secured: SecuredServers) -> set[str]:
    """The topics that the role's user sees."""
    user = AdminClient(
        {
            "bootstrap.servers": secured.secured_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "guest",
            "sasl.password": USERS["guest"],
            "log_level": 0,
        }
    )
    return set(user.list_topics(timeout=10).topics)


def grant(secured: SecuredServers, field: Field, *topics: str) -> None:
    """What the role says."""
    entries = tomllib.loads(ROLE.read_text("utf-8"))["entry"]
    wanted = [
        _binding(name, AclOperation[entry["operation"].upper()], kind)
        for entry in entries
        for kind in {"topic", "group"} & entry.keys()
        for name in (topics if entry[kind] == "{topic}" else [entry[kind].replace("{namespace}", field.namespace)])
    ]
    admin = AdminClient({"bootstrap.servers": secured.open_servers, "log_level": 0})
    for future in admin.create_acls(wanted).values():
        future.result(30)
    names = {binding.name for binding in wanted if binding.restype is ResourceType.TOPIC}
    wait_until(lambda: names <= visible(secured), within=30, what=f"{names} are seen")


def revoke(secured: SecuredServers, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": secured.open_servers, "log_level": 0})
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:guest",
        "*",
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in admin.delete_acls([wanted]).values():
        future.result(30)
    wait_until(lambda: topic not in visible(secured), within=30, what=f"{topic} is hidden")


def audit_of(spark: SparkSession, secured: SecuredServers, field: Field, root: Path) -> Audit:
    """By the user that has the role."""
    return Audit(spark, field, root, bootstrap_servers=secured.secured_servers, kafka_options=OPTIONS)


def test_the_role_spark_suffices_for_an_audit(spark: SparkSession, secured: SecuredServers, tmp_path: Path) -> None:
    """Of an audit, bronze alone asks brokers."""
    field = Field(secured.open_servers)
    txn = field.whole()
    grant(secured, field, field.orders)

    state = read_new(spark, audit_of(spark, secured, field, tmp_path).bronze, now_ms=lambda: txn.born_ms + HOUR_MS)

    assert {field.orders} == state.judged_topics
    catalog = Catalog(spark, str(tmp_path / "bronze"))
    rows = catalog.records(catalog.complete()).select("kind").collect()
    assert ["forwarded", "half", "op"] == sorted(row.kind for row in rows)


def grant_locks(secured: SecuredServers, field: Field) -> None:
    admin = AdminClient({"bootstrap.servers": secured.open_servers, "log_level": 0})
    binding = _binding(field.topic("locks"), AclOperation.READ)
    for future in admin.create_acls([binding]).values():
        future.result(30)


@pytest.mark.nightly
def test_what_is_on_a_topic_that_bronze_may_not_see_is_not_lost(
    spark: SparkSession, secured: SecuredServers, tmp_path: Path
) -> None:
    """A new real topic, and nobody thought of the role."""
    field = Field(secured.open_servers)
    good, unseen = field.whole(), field.whole(Message(field.stock))
    grant_locks(secured, field)
    grant(secured, field, field.orders)

    found = audit_of(spark, secured, field, tmp_path).verdicts()

    assert {good.txn_id: "ok", unseen.txn_id: "out_of_window"} == found
    grant(secured, field, field.stock)
    assert {good.txn_id: "ok", unseen.txn_id: "ok"} == audit_of(spark, secured, field, tmp_path).verdicts()


@pytest.mark.nightly
def test_a_right_that_is_taken_and_given_back_doubles_nothing(
    spark: SparkSession, secured: SecuredServers, tmp_path: Path
) -> None:
    field = Field(secured.open_servers)
    both = [field.whole(), field.whole(Message(field.stock))]
    grant_locks(secured, field)
    grant(secured, field, field.orders, field.stock)
    expected = {txn.txn_id: "ok" for txn in both}
    assert expected == audit_of(spark, secured, field, tmp_path).verdicts()

    revoke(secured, field.stock)
    field.whole()
    audit_of(spark, secured, field, tmp_path).verdicts()
    grant(secured, field, field.stock)
    found = audit_of(spark, secured, field, tmp_path).verdicts()

    assert expected == {txn_id: verdict for txn_id, verdict in found.items() if txn_id in expected}
