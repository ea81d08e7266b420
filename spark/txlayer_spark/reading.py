"""Topics → typed rows, from the first record to now (`read_topic`) or as a stream (`stream_topic`)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer_spark import lines
from txlayer_spark.parse import parse
from txlayer_spark.schemas import TopicKind, kind_of
from txlayer_spark.session import source_options


def read_topic(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str,
    kind: TopicKind | None = None,
    kafka_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """What a topic holds now, committed records alone, in typed columns; the columns stand in `schemas`.

    Args:
        spark: A session with the Kafka connector.
        topic: Any topic of a namespace, a dead-letter or replay topic, or a real topic.
        bootstrap_servers: Brokers to ask first.
        kind: What the topic holds, when its name does not say it.
        kafka_options: Settings of Kafka's Java client, without the prefix `kafka.`.
        options: Options of Spark's Kafka source (`startingOffsets`, `endingOffsets`, …).

    A record that is not of our form is a row whose `error` says why; the job goes on. A record of a real topic that
    somebody else wrote has neither transaction nor error.
    """
    reader = spark.read.format("kafka").options(**dict(options or {}))
    return parse(
        reader.options(
            **source_options(bootstrap_servers=bootstrap_servers, topics=[topic], kafka_options=kafka_options)
        ).load(),
        kind or kind_of(topic),
    )


def stream_topic(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str,
    kind: TopicKind | None = None,
    kafka_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The same as a stream that begins with the first record, unless `options` say otherwise (`startingOffsets`)."""
    reader = spark.readStream.format("kafka").option("startingOffsets", "earliest").options(**dict(options or {}))
    return parse(
        reader.options(
            **source_options(bootstrap_servers=bootstrap_servers, topics=[topic], kafka_options=kafka_options)
        ).load(),
        kind or kind_of(topic),
    )


def committed_stream(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str,
    kafka_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The messages of a real topic as they become visible, from the first one on, once each under one checkpoint.

    One row per message: `topic`, `partition`, `offset`, `timestamp` (when it was forwarded), `key`, `value` and `headers` of
    the user, `txn_id`, `index` and `count` within its transaction, `born` (the producer's clock when it prepared). Messages
    of other topics of the same transaction have the same `txn_id`, and become visible at the same moment.

    A record that was not forwarded by txlayer has neither `txn_id` nor `error`; one whose headers of ours are broken has an
    `error`. When Kafka's retention has overtaken the reader the query fails, and says which offsets are missing.

    Args:
        spark: A session with the Kafka connector.
        topic: A real topic.
        bootstrap_servers: Brokers to ask first.
        kafka_options: Settings of Kafka's Java client, without the prefix `kafka.`.
        options: Options of Spark's Kafka source (`startingOffsets`, `maxOffsetsPerTrigger`, …).
    """
    rows = stream_topic(
        spark,
        topic,
        bootstrap_servers=bootstrap_servers,
        kind=TopicKind.FORWARDED,
        kafka_options=kafka_options,
        options=options,
    )
    return rows.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        "txn_id",
        "index",
        "count",
        lines.time_of(F.col("born_ms")).alias("born"),
        "error",
    )
