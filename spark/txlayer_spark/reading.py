"""Topics → typed rows, up to now (`read_topic`, `read_committed`) or as a stream (`stream_topic`, `committed_stream`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from txlayer.errors import UsageError
from txlayer_spark import lines
from txlayer_spark.bodies import BodyCodec, with_body
from txlayer_spark.parse import parse
from txlayer_spark.schemas import TopicKind, kind_of
from txlayer_spark.sessions import failures_as_ours, source_options


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
    raw = _loaded(spark.read, [topic], bootstrap_servers, kafka_options, options)
    return parse(raw, kind or kind_of(topic))


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
    options = {"startingOffsets": "earliest", **(options or {})}
    raw = _loaded(spark.readStream, [topic], bootstrap_servers, kafka_options, options)
    return parse(raw, kind or kind_of(topic))


def _loaded(
    reader: Any,
    topics: Sequence[str] | str,
    bootstrap_servers: str,
    kafka_options: Mapping[str, str] | None,
    options: Mapping[str, str] | None,
) -> DataFrame:
    """Records as Spark's source gives them; UsageError: Spark has no Kafka connector, and how to give it one."""
    ours = source_options(bootstrap_servers=bootstrap_servers, topics=topics, kafka_options=kafka_options)
    with failures_as_ours():
        raw: DataFrame = reader.format("kafka").options(**{**(options or {}), **ours}).load()
        # Over Spark Connect only this asks the server.
        _ = raw.schema
    return raw


def read_committed(
    spark: SparkSession,
    topics: str | Sequence[str] = (),
    *,
    pattern: str | None = None,
    bootstrap_servers: str,
    codec: BodyCodec | None = None,
    kafka_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The messages that real topics hold now, with the columns of `committed_stream` and `is_whole`.

    `is_whole` says whether all messages of the row's transaction are among those read. It is False if one is on a topic
    that you did not name, is not visible yet (`deliver_at`), or became visible while this read began. It is null for a record
    that txlayer did not forward.
    """
    rows = _committed(spark.read, topics, pattern, bootstrap_servers, codec, kafka_options, options)
    # A row of somebody else is alone: all of them together would be one task.
    of_transaction = Window.partitionBy(F.coalesce("transaction", F.concat_ws("@", "topic", "partition", "offset")))
    seen = F.size(F.collect_set("index").over(of_transaction))
    return rows.withColumn("is_whole", F.when(F.isnotnull("transaction"), seen == F.col("count")))


def committed_stream(
    spark: SparkSession,
    topics: str | Sequence[str] = (),
    *,
    pattern: str | None = None,
    bootstrap_servers: str,
    codec: BodyCodec | None = None,
    kafka_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The messages of real topics as they become visible, from the first one on, once each under one checkpoint.

    One row per message: `topic`, `partition`, `offset`, `timestamp` (when it was forwarded), `key`, `value` and `headers` of
    the user, `txn_id`, `index` and `count` within its transaction, `transaction` (which names its transaction, also where an
    id was used twice), `born` (the producer's clock when it prepared). With `codec`, also `body` and `body_error`.

    A micro-batch may end between two messages of a transaction. Hand your function of `foreachBatch` to `whole_transactions`,
    and it never sees a part of one.

    A record that was not forwarded by txlayer has neither `txn_id` nor `error`; one whose headers of ours are broken has an
    `error`. When Kafka's retention has overtaken the reader the query fails, and says which offsets are missing.

    Args:
        spark: A session with the Kafka connector.
        topics: A real topic, or several.
        pattern: In place of names, the form of the whole names of real topics, as Java writes it (`orders-.*`). Topics that
            are created later are read, too; dead letters and replays (`….dlq`, `….replay`) are not.
        bootstrap_servers: Brokers to ask first.
        codec: What values hold: `JsonBody`, `AvroBody` or `ProtobufBody`.
        kafka_options: Settings of Kafka's Java client, without the prefix `kafka.`.
        options: Options of Spark's Kafka source (`startingOffsets`, `maxOffsetsPerTrigger`, …).
    """
    options = {"startingOffsets": "earliest", **(options or {})}
    return _committed(spark.readStream, topics, pattern, bootstrap_servers, codec, kafka_options, options)


def _committed(
    reader: Any,
    topics: str | Sequence[str],
    pattern: str | None,
    bootstrap_servers: str,
    codec: BodyCodec | None,
    kafka_options: Mapping[str, str] | None,
    options: Mapping[str, str] | None,
) -> DataFrame:
    named = [topics] if isinstance(topics, str) else list(topics)
    if bool(named) == (pattern is not None):
        raise UsageError("name topics, or one pattern")
    # Spark takes a topic of which a part fits, too; dead letters have the headers of the messages that they were.
    form = rf"^(?!.*\.(?:dlq|replay)$)(?:{pattern})$"
    raw = _loaded(reader, named if pattern is None else form, bootstrap_servers, kafka_options, options)
    place = F.concat_ws(":", "half_partition", "born_ms")
    rows = parse(raw, TopicKind.FORWARDED).select(
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
        F.when(F.isnotnull("txn_id"), F.concat_ws("@", "txn_id", place)).alias("transaction"),
        lines.time_of(F.col("born_ms")).alias("born"),
        "error",
    )
    return rows if codec is None else with_body(rows, codec)
