"""Unusual input of readers: no topic, no record, huge ones, a log that was shortened."""

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.support.planted import Field, Message
from tests.support.spark_audit import Audit
from tests.support.topic_records import Record
from txlayer.errors import TopicMismatchError, UsageError
from txlayer_spark import committed_stream, read_topic
from txlayer_spark.catalog import Catalog, effective
from txlayer_spark.parse import SCHEMAS, TopicKind
from txlayer_spark.sessions import failures_as_ours

pytestmark = pytest.mark.kafka

TEN_MB = 10 * 1024 * 1024


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

    assert {good.txn_id: "ok", other.txn_id: "corrupt"} == Audit(spark, field, tmp_path).verdicts()

    catalog = Catalog(spark, str(tmp_path / "bronze"))
    kept = catalog.records(effective(catalog.complete())).where("length(value) > 1000")
    assert {"half": 4, "forwarded": 4} == {row.kind: row["count"] for row in kept.groupBy("kind").count().collect()}
    read = read_topic(spark, field.orders, bootstrap_servers=field.servers).orderBy("offset")
    assert [large[0].value] == [bytes(row.value) for row in read.limit(1).collect()]


def test_topics_without_a_record_are_no_row_and_no_error(spark: SparkSession, field: Field, audit: Audit) -> None:
    assert {} == audit.verdicts()

    topics = {kind: f"empty.{kind.value}" for kind in TopicKind} | {TopicKind.FORWARDED: field.orders}
    frames = {kind: read_topic(spark, topic, bootstrap_servers=field.servers) for kind, topic in topics.items()}
    assert {kind: SCHEMAS[kind].names for kind in TopicKind} == {kind: each.columns for kind, each in frames.items()}
    assert [] == frames[TopicKind.FORWARDED].collect()


def test_a_topic_that_is_not_there_is_an_error_that_says_so(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(TopicMismatchError, match="missing"), failures_as_ours():
        read_topic(spark, "never-made.half", bootstrap_servers=broker.bootstrap_servers).collect()


def test_a_stream_that_retention_has_overtaken_fails_instead_of_passing_over_the_gap(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:

    def run() -> None:
        stream = committed_stream(spark, field.orders, bootstrap_servers=field.servers)
        query = (
            stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(300)

    field.write(Record(field.orders, b"1"))
    run()
    field.write(Record(field.orders, b"2"), Record(field.orders, b"3"))
    field.take((field.orders, 0, 2))

    for _ in range(2):
        with pytest.raises(UsageError, match="retention has overtaken"), failures_as_ours():
            run()

    assert 1 == spark.read.parquet(str(tmp_path / "rows")).count()
