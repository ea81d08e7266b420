"""What readers meet that nobody planned: no topic, no record, records of a later version, huge ones, a log that was shortened."""

from pathlib import Path
from random import Random

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.support.broker import create_topic, unique_name
from tests.support.logs import Headers
from tests.support.planted import Field, Message
from tests.support.spark_reading import rows, written
from tests.support.topic_records import Record, write_records
from txlayer.core.leases import LockKind, LockRecord, encode_lock
from txlayer.errors import TopicMismatchError, UsageError
from txlayer_spark import committed_stream, read_topic
from txlayer_spark.catalog import Catalog, effective
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, update_ledger
from txlayer_spark.schemas import SCHEMAS, TopicKind
from txlayer_spark.sessions import failures_as_ours
from txlayer_spark.shelf import Shelf

pytestmark = pytest.mark.kafka

TEN_MB = 10 * 1024 * 1024
LATER = b"3|whatever a later version says"


def verdicts(spark: SparkSession, field: Field, root: Path) -> dict[str, str]:
    """Bronze and ledger of a field an hour later."""
    bronze = BronzeSettings(root=str(root / "bronze"), namespace=field.namespace, bootstrap_servers=field.servers)
    read_new(spark, bronze, now_ms=lambda: 4_000_000_000_000)
    update_ledger(spark, LedgerSettings(bronze=str(root / "bronze"), root=str(root / "ledger")))
    shelf = Shelf(spark, str(root / "ledger"))
    return {row.txn_id: row.verdict for row in shelf.rows(shelf.last()).collect()}


@pytest.mark.nightly
def test_records_of_ten_megabytes_are_read_kept_and_judged_like_any_other(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers, record_bytes_max=2 * TEN_MB)
    dice = Random(1)
    large = [Message(field.orders, value=dice.randbytes(TEN_MB)) for _ in range(3)]
    good, other = field.whole(*large), field.prepare(Message(field.orders, value=dice.randbytes(TEN_MB)))
    field.commit(other)
    field.forward(field.moved(other, value=large[0].value))

    assert {good.txn_id: "ok", other.txn_id: "corrupt"} == verdicts(spark, field, tmp_path)

    catalog = Catalog(spark, str(tmp_path / "bronze"))
    kept = catalog.records(effective(catalog.complete())).where("length(value) > 1000")
    assert {"half": 4, "forwarded": 4} == {row.kind: row["count"] for row in kept.groupBy("kind").count().collect()}
    read = read_topic(spark, field.orders, bootstrap_servers=field.servers).orderBy("offset")
    assert [large[0].value] == [bytes(row.value) for row in read.limit(1).collect()]


def test_topics_without_a_record_are_no_row_and_no_error(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    field = Field(broker.bootstrap_servers)

    assert {} == verdicts(spark, field, tmp_path)

    for kind in TopicKind:
        topic = field.orders if kind is TopicKind.FORWARDED else unique_name("empty") + f".{kind.value}"
        if kind is not TopicKind.FORWARDED:
            create_topic(field.servers, topic)
        frame = read_topic(spark, topic, bootstrap_servers=field.servers)
        assert (SCHEMAS[kind].names, []) == (frame.columns, frame.collect())


def test_a_topic_that_is_not_there_is_an_error_that_says_so(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(TopicMismatchError, match="missing"), failures_as_ours():
        read_topic(spark, "never-made.half", bootstrap_servers=broker.bootstrap_servers).collect()


@pytest.mark.parametrize("kind", TopicKind)
def test_records_of_a_later_version_are_rows_that_say_so(kind: TopicKind, spark: SparkSession, broker: Broker) -> None:
    key, _ = encode_lock(LockRecord(LockKind.CLAIM, "g/orders/0", 1, "host"))
    headers: dict[TopicKind, Headers] = {
        TopicKind.HALF: [("txl", LATER)],
        TopicKind.DLQ: [("txl-dlq", LATER)],
        TopicKind.FORWARDED: [("txl-id", b"t-1"), ("txl-origin", LATER)],
    }
    keys = {TopicKind.DOUBT: b"a/00000001", TopicKind.LOCKS: key}
    suffix = "" if kind is TopicKind.FORWARDED else f".{kind.value}"
    topic = written(broker, suffix, lambda name: [Record(name, LATER, keys.get(kind), headers.get(kind))])

    (row,) = rows(spark, broker, topic)

    said = "out of form" if kind in (TopicKind.FORWARDED, TopicKind.DOUBT) else "unknown version 3"
    assert (0, True) == (row.offset, said in row.error), row.error


def test_a_stream_that_retention_has_overtaken_fails_instead_of_passing_over_the_gap(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = create_topic(broker.bootstrap_servers, unique_name("overtaken"))

    def run() -> None:
        stream = committed_stream(spark, topic, bootstrap_servers=broker.bootstrap_servers)
        query = (
            stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(300)

    write_records(broker.bootstrap_servers, [Record(topic, b"1")])
    run()
    write_records(broker.bootstrap_servers, [Record(topic, b"2"), Record(topic, b"3")])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    start = TopicPartition(topic, 0, 2)
    admin.delete_records([start])[TopicPartition(topic, 0)].result(30)

    for _ in range(2):
        with pytest.raises(UsageError, match="retention has overtaken"), failures_as_ours():
            run()

    assert 1 == spark.read.parquet(str(tmp_path / "rows")).count()
