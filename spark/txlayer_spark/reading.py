"""Topics → typed rows, up to now (`read_topic`, `read_committed`) or as a stream (`stream_topic`, `committed_stream`).

`whole_transactions` gives micro-batches in which no transaction is torn: it holds rows back until the rest of their transaction comes.

::

    <folder>/slot=0, slot=1, slot=2     rows held after an epoch, by `epoch % 3`; a row without a transaction names the epoch and its batch

Held rows are written before the function is called. So a batch that is done again has the same rows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from txlayer.errors import UsageError
from txlayer_spark import lines
from txlayer_spark.bodies import BodyCodec, with_body
from txlayer_spark.parse import POSITION, TopicKind, kind_of, parse
from txlayer_spark.sessions import failures_as_ours, our_files, source_options


def read_topic(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str,
    kind: TopicKind | None = None,
    kafka_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """What a topic holds now: committed records only, in typed columns (`parse.SCHEMAS`).

    Args:
        spark: A session with the Kafka connector.
        topic: Any topic of a namespace, a dead-letter or replay topic, or a real topic.
        bootstrap_servers: Brokers to ask first.
        kind: What the topic holds, if its name does not say it.
        kafka_options: Settings of Kafka's Java client, without the prefix `kafka.`.
        options: Options of Spark's Kafka source (`startingOffsets`, `endingOffsets`, …).

    A malformed record is a row whose `error` says why; the job goes on. A record of a real topic that
    another client wrote has neither transaction nor error.
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
    the user, `txn_id`, `index` and `count` within its transaction, `transaction` (which identifies the transaction even if its
    id was used twice), `born` (the producer's clock when it prepared). With `codec`, also `body` and `body_error`.

    A micro-batch may end between two messages of a transaction. Wrap your function of `foreachBatch` with
    `whole_transactions` to get whole ones.

    A record that txlayer did not forward has neither `txn_id` nor `error`; one whose txlayer headers are broken has an
    `error`. If retention deletes records before the query reads them, the query fails and says which offsets are missing.

    Args:
        spark: A session with the Kafka connector.
        topics: A real topic, or several.
        pattern: Instead of names, a Java regular expression that matches whole names of real topics (`orders-.*`). Topics that
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
        *POSITION,
        *("key", "value", "headers", "txn_id", "index", "count"),
        F.when(F.isnotnull("txn_id"), F.concat_ws("@", "txn_id", place)).alias("transaction"),
        lines.time_of(F.col("born_ms")).alias("born"),
        "error",
    )
    return rows if codec is None else with_body(rows, codec)


# --- whole transactions ---

_SLOTS = 3  # the one that is written, the one before it, and one for a batch that still reads
_EPOCH, _BATCH, _SINCE = "_epoch", "_batch", "_since_ms"
_NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
HELD_MAX = 1_000_000

Handle = Callable[[DataFrame, int], None]


def whole_transactions(
    handle: Handle,
    *,
    folder: str,
    hold: timedelta = timedelta(minutes=10),
    held_max: int = HELD_MAX,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Handle:
    """For `foreachBatch` of a `committed_stream`: `handle` gets all messages of a transaction in one batch.

    Messages of an incomplete transaction are held back, and are part of the batch in which the last
    one comes. `txl-origin` says how many there are. Each message is in one batch, and a batch that is done again holds the
    same rows.

    The column `is_whole` is True for these. It is False for messages that were held for longer than `hold`: another message
    of their transaction is on a topic that you do not read, or is scheduled (`deliver_at`). It is null for a record that
    txlayer did not forward.

    Args:
        handle: Called with a batch and its number, like a function of `foreachBatch`.
        folder: Where this query alone keeps held rows, for example beside its checkpoint.
        hold: How long messages wait for the rest of their transaction.
        held_max: How many messages may wait; with more, the query fails, and nothing is lost.
        now_ms: This machine's clock.
    """
    hold_ms = hold // timedelta(milliseconds=1)

    def handle_whole(batch: DataFrame, epoch: int) -> None:
        spark, at_ms = batch.sparkSession, now_ms()
        rows = batch.withColumn(_SINCE, F.lit(None).cast("bigint"))
        if epoch:
            before = _held(spark, folder, epoch - 1)
            if before is None:
                raise UsageError(
                    f"{folder} does not hold what epoch {epoch - 1} of this query held back: name the folder that it had, or "
                    "begin with a new checkpoint and a new folder"
                )
            rows = before.unionByName(rows, allowMissingColumns=True)
        rows = rows.persist()
        torn = _torn(rows, at_ms).persist()
        try:
            # A new query that was given the folder of an earlier one has other rows in its first batch.
            number: int = rows.agg(F.bit_xor(F.xxhash64("topic", "partition", "offset"))).first()[0] or 0  # type: ignore[index]  # an aggregate has a row
            held = _held(spark, folder, epoch, batch=number)
            if held is None:
                waiting = torn.where(F.col("_first_ms") > at_ms - hold_ms)
                count = waiting.agg(F.sum("_rows")).first()[0] or 0  # type: ignore[index]  # an aggregate has a row
                if count > held_max:
                    raise UsageError(
                        f"{count} messages wait for others of their transactions, and held_max is {held_max}: read the topics "
                        "of these transactions, too, or make hold shorter. The batch was not handled"
                    )
                _hold(rows, waiting, _slot(folder, epoch), epoch, number)
                held = _held(spark, folder, epoch)
            assert held is not None, "it was written a moment ago"
            given = rows.drop(_SINCE).join(held.select("transaction").distinct(), "transaction", "left_anti")
            given = given.join(torn.select("transaction", F.lit(True).alias("_is_torn")), "transaction", "left")
            is_whole = F.when(F.isnotnull("transaction"), F.isnull("_is_torn"))
            handle(given.withColumn("is_whole", is_whole).select(*batch.columns, "is_whole"), epoch)
        finally:
            torn.unpersist()
            rows.unpersist()

    return handle_whole


def _torn(rows: DataFrame, at_ms: int) -> DataFrame:
    """Transactions of which a message is missing, since when they have been held, and how many rows they have."""
    parts = rows.where((F.col("count") > 1) & F.isnotnull("transaction")).groupBy("transaction")
    counted = parts.agg(
        F.count_distinct("index").alias("_seen"),
        F.max("count").alias("_all"),
        F.coalesce(F.min(_SINCE), F.lit(at_ms)).alias("_first_ms"),
        F.count("*").alias("_rows"),
    )
    return counted.where(F.col("_seen") < F.col("_all")).select("transaction", "_first_ms", "_rows")


def _hold(rows: DataFrame, waiting: DataFrame, path: str, epoch: int, batch: int) -> None:
    """Write the rows of these transactions, and which epoch holds them, into one file: it is there as a whole or not at all."""
    held = rows.drop(_SINCE).join(waiting.select("transaction", F.col("_first_ms").alias(_SINCE)), "transaction")
    says = rows.sparkSession.range(1).select(
        *(F.lit(n).cast("bigint").alias(name) for name, n in ((_EPOCH, epoch), (_BATCH, batch)))
    )
    writer = held.unionByName(says, allowMissingColumns=True).coalesce(1).write.mode("overwrite")
    # A session may divide what a task writes into files of so many rows.
    writer.option("maxRecordsPerFile", 0).parquet(path)


def _held(spark: SparkSession, folder: str, epoch: int, *, batch: int | None = None) -> DataFrame | None:
    """What an epoch, with that batch, held back; None where that is not known."""
    says = F.isnull("transaction") & (F.col(_EPOCH) == epoch)
    try:
        found = our_files(spark).parquet(_slot(folder, epoch))
        if found.where(says if batch is None else says & (F.col(_BATCH) == batch)).isEmpty():
            return None
    except AnalysisException as exc:
        if exc.getCondition() not in _NOTHING_THERE:
            raise
        return None
    return found.where(F.isnotnull("transaction")).drop(_EPOCH, _BATCH)


def _slot(folder: str, epoch: int) -> str:
    return f"{folder.rstrip('/')}/slot={epoch % _SLOTS}"
