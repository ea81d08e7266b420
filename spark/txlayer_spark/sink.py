"""A batch → half records and op records: which message belongs to which transaction. DataFrame → DataFrame, native only.

Never: reading Kafka, deciding (jobs/sink.py).
"""

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from txlayer.core import codec
from txlayer.core.codec import HEADER_BYTES, PARTITION_MAX, VERSION
from txlayer.core.messages import RESERVED_HEADER_PREFIX, TXN_ID_LENGTH_MAX, HalfOptions, UnresolvedAction
from txlayer.errors import ForbiddenTopicError, ReservedHeaderError, UsageError
from txlayer_spark.lines import empty_array
from txlayer_spark.parse import HEADERS, system_topics

COLUMNS = ("topic", "key", "value", "headers", "partition")
"""What a batch may hold: the real topic, the message, and a partition of the real topic; `value` must be there."""

FILLED = 0.9
"""How full the parts of a split batch are on the average: keys are spread by hash, and hardly a part overflows."""

TOPICS_MAX = 1_000
"""Real topics of one batch: the driver knows them all by name; more are a column that holds no topics."""

PARTS_MAX = 10_000  # parts of a split batch: the driver holds a line of each

FORWARDED_BYTES = 100 + TXN_ID_LENGTH_MAX  # upper end of `txl-id` and `txl-origin`

# If an attempt is left undecided, another one publishes its epoch. So no coordinator's policy may commit the first one.
_LEFT_OVER = codec.encode_options(HalfOptions(unresolved=UnresolvedAction.ROLLBACK))

_TEXT = (StringType, BinaryType)
_NEVER_FORWARDED = r"\A__|\.(dlq|replay)\z"
_TOPIC = r"\A(?!\.{1,2}\z)[A-Za-z0-9._-]{1,249}\z"


class Measure(NamedTuple):
    """A batch in numbers."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed
    bytes: int
    topics: Mapping[str, int]  # {real topic: the highest partition that a message names, else -1}


def messages(batch: DataFrame, *, topic: str | None) -> DataFrame:
    """Rows of a user → real_topic, key, value, headers, target_partition, and `_row`, the order of the frame."""
    unknown = sorted(set(batch.columns) - set(COLUMNS))
    if unknown:
        raise UsageError(f"no column of a message: {', '.join(unknown)}; known are {', '.join(COLUMNS)}")
    if "value" not in batch.columns:
        raise UsageError("a batch needs the column `value`")
    if ("topic" in batch.columns) == (topic is not None):
        raise UsageError("name the real topic either in the column `topic` or as `topic=`")
    for name in ("topic", "key", "value"):
        if name in batch.columns and not isinstance(batch.schema[name].dataType, _TEXT):
            raise UsageError(f"column `{name}` must be bytes or text: make it so, for instance by to_json")
    given = {name: F.col(name) for name in batch.columns}
    if "headers" in given:
        given["headers"] = _headers(batch)
    return batch.select(
        (given["topic"].cast("string") if topic is None else F.lit(topic)).alias("real_topic"),
        given.get("key", F.lit(None)).cast("binary").alias("key"),
        given["value"].cast("binary").alias("value"),
        given.get("headers", F.lit(None).cast(HEADERS)).alias("headers"),
        given.get("partition", F.lit(None)).cast("bigint").alias("target_partition"),
        F.monotonically_increasing_id().alias("_row"),
    )


def _headers(batch: DataFrame) -> Column:
    """The column of headers; their fields are taken by name, whatever order they have."""
    kind = batch.schema["headers"].dataType
    of_each = kind.elementType if isinstance(kind, ArrayType) else None
    names = sorted(of_each.names) if isinstance(of_each, StructType) else []
    if names != ["key", "value"]:
        raise UsageError(
            f"column `headers` is {kind.simpleString()}; it must be an array of structs with the fields key and value"
        )
    return F.transform(
        "headers",
        lambda each: F.struct(each["key"].cast("string").alias("key"), each["value"].cast("binary").alias("value")),
    )


def measure(rows: DataFrame, *, namespace: str, topic: str | None) -> Measure:
    """Count, bytes and real topics of `messages`; `topic` as there.

    Raises:
        ForbiddenTopicError: a real topic that no topic can be called, or that coordinators refuse for good: a topic of the
            namespace, one of Kafka's own, dead letters, replays.
        ReservedHeaderError: a header of ours.
        UsageError: a header without a name, a partition that no topic can have, or more than `TOPICS_MAX` topics.
    """
    topic_name = F.col("real_topic")
    reserved = F.filter("headers", lambda each: each["key"].startswith(RESERVED_HEADER_PREFIX))
    # The rule of `SystemTopics.is_system`, by which coordinators and producers refuse.
    is_forbidden = (
        topic_name.isin(list(system_topics(namespace)))
        | topic_name.rlike(_NEVER_FORWARDED)
        | ~F.coalesce(topic_name.rlike(_TOPIC), F.lit(False))
    )
    found = rows.agg(
        F.count("*").alias("count"),
        F.sum(_size()).alias("bytes"),
        F.first(F.when(is_forbidden, F.coalesce("real_topic", F.lit("null"))), True).alias("forbidden"),
        F.first(F.try_element_at(reserved, F.lit(1))["key"], True).alias("reserved"),
        F.count_if(~F.col("target_partition").between(0, PARTITION_MAX)).alias("nowhere"),
        F.count_if(F.exists("headers", lambda each: each["key"].isNull())).alias("nameless"),
        F.coalesce(F.max("target_partition"), F.lit(-1)).alias("highest"),
    ).collect()[0]
    if found.forbidden is not None:
        raise ForbiddenTopicError("nothing was written", topic=found.forbidden, reason="no real topic")
    if found.reserved is not None:
        raise ReservedHeaderError("nothing was written", header=found.reserved)
    if found.nameless:
        raise UsageError(f"{found.nameless} messages have a header without a name. Nothing was written")
    if found.nowhere:
        raise UsageError(f"{found.nowhere} messages for a partition that no topic has")
    topics = _topics(rows) if topic is None else {topic: found.highest}
    return Measure(found["count"], found.bytes or 0, topics)


def too_large(rows: DataFrame, most: Mapping[str, int]) -> tuple[str, int] | None:
    """A topic and the size of a message that is larger than it takes, as it would be forwarded; None without one."""
    limits = [
        F.struct(F.lit(topic).alias("real_topic"), F.lit(room - FORWARDED_BYTES).alias("_room"))
        for topic, room in most.items()
    ]
    if not limits:
        return None
    rooms = rows.sparkSession.range(1).select(F.inline(F.array(*limits)))
    sized = rows.select("real_topic", _size().alias("bytes"))
    sized = sized.join(F.broadcast(rooms), "real_topic").where(F.col("bytes") > F.col("_room"))
    found = sized.select("real_topic", "bytes").head()
    return None if found is None else (found.real_topic, found.bytes)


def _topics(rows: DataFrame) -> dict[str, int]:
    highest = F.coalesce(F.max("target_partition"), F.lit(-1)).alias("highest")
    found = rows.groupBy("real_topic").agg(highest).limit(TOPICS_MAX + 1).collect()
    if len(found) > TOPICS_MAX:
        raise UsageError(
            f"more than {TOPICS_MAX} real topics in one batch, for example {found[0].real_topic}: "
            "is `topic` the right column? Nothing was written"
        )
    return {row.real_topic: row.highest for row in found}


def part_count(size: Measure, *, messages_max: int, bytes_max: int) -> int:
    """Into how many parts a batch is split; a function of the batch alone, so that a repeat has the same."""
    by_count, by_bytes = size.count / (FILLED * messages_max), size.bytes / (FILLED * bytes_max)
    parts = max(ceil(by_count), ceil(by_bytes))
    if parts > PARTS_MAX:
        raise UsageError(
            f"{size.count} messages with {size.bytes} bytes would be {parts} parts; {PARTS_MAX} at most. Make batches "
            "smaller (maxOffsetsPerTrigger), or parts larger. Nothing was written"
        )
    return parts


def whole(rows: DataFrame, txn_id: str) -> DataFrame:
    return rows.withColumn("_txn", F.lit(txn_id))


def split(rows: DataFrame, txn_id: str, *, parts: int, messages_max: int) -> DataFrame:
    """The messages as transactions of at most `messages_max`: `_txn`, which depends on what the batch holds alone.

    Messages of one key are of one part, unless one part cannot hold them.
    """
    content = F.xxhash64("real_topic", "key", "value", "headers", "target_partition")
    part = F.pmod(F.coalesce(F.when(F.isnotnull("key"), F.xxhash64("key")), content), F.lit(parts))
    # Rows that are alike in everything may change places.
    order = Window.partitionBy("_part").orderBy(content, "real_topic", "key", "value", "headers", "target_partition")
    number = F.floor((F.row_number().over(order) - 1) / messages_max)
    return rows.withColumn("_part", part).withColumn(
        "_txn", F.concat(F.lit(f"{txn_id}.{parts}-"), F.col("_part"), F.lit("-"), number)
    )


def ids_of(placed: DataFrame, *, bytes_max: int) -> list[str]:
    """The transactions of a split batch; as few as it has parts."""
    found = placed.groupBy("_txn").agg(F.sum(_size()).alias("bytes")).collect()
    large = [row for row in found if row.bytes > bytes_max]
    if large:
        raise UsageError(
            f"{large[0].bytes} bytes in part {large[0]['_txn']}; transaction_bytes_max is {bytes_max}: split the batch "
            "finer by a smaller transaction_messages_max. Nothing was written"
        )
    return sorted(row["_txn"] for row in found)


def half_records(placed: DataFrame, *, producer_group: str, born_ms: int, partition_count: int) -> DataFrame:
    """Messages with `_txn` → key, value, headers, partition of half records.

    Those of a transaction are in one partition of the frame in the order of their index: one task writes them. Each copy of
    that task (a retry, a speculative one, one whose executor was given up) draws a nonce of its own: what it writes is an
    attempt of its own, so that no transaction ever holds messages of two copies.
    """
    mine = Window.partitionBy("_txn")
    ordered = placed.withColumn("_index", F.row_number().over(mine.orderBy("_row")) - 1).withColumn(
        "_count", F.count("*").over(mine)
    )
    # Behind the windows, so in the task that writes; what is before them, all its copies would read from one shuffle.
    drawn = F.substring(F.reflect(F.lit("java.util.UUID"), F.lit("randomUUID")), 1, 8)
    ordered = ordered.withColumn("_drawn", drawn).withColumn("_nonce", F.first("_drawn").over(mine))
    partition = F.col("target_partition")
    options = F.concat_ws(",", F.when(partition.isNotNull(), F.concat(F.lit("n"), partition)), F.lit(_LEFT_OVER))
    line = F.concat_ws(
        "|",
        F.lit(VERSION),
        F.concat_ws("/", "_txn", "_nonce"),
        F.lit(producer_group),
        "real_topic",
        F.concat("_index", F.lit("/"), "_count"),
        F.lit(str(born_ms)),
        options,
    )
    ours = F.array(F.struct(F.lit(codec.HALF_HEADER).alias("key"), line.cast("binary").alias("value")))
    return ordered.sortWithinPartitions("_txn", "_index").select(
        "key",
        "value",
        F.concat(_given_headers(), ours.cast(HEADERS)).alias("headers"),
        home(F.col("_txn"), partition_count=partition_count).alias("partition"),
    )


def op_records(spark: SparkSession, said: dict[str, list[str]], *, partition_count: int) -> DataFrame:
    """{transaction id: op lines} → value and partition, one record for each id."""
    schema = StructType([StructField("_txn", StringType()), StructField("value", BinaryType())])
    rows = [(txn_id, bytearray(codec.encode_ops(lines))) for txn_id, lines in said.items()]
    frame = spark.createDataFrame(rows, schema)
    return frame.select("value", home(F.col("_txn"), partition_count=partition_count).alias("partition"))


def home(txn_id: Column, *, partition_count: int) -> Column:
    """The partition of half and op: what `core.partitions.half_partition` says without an ordering key."""
    return F.pmod(F.crc32(txn_id.cast("binary")), F.lit(partition_count)).cast("int")


def _given_headers() -> Column:
    """The user's headers; an empty array if there are none."""
    return F.coalesce("headers", empty_array(HEADERS))


def _length(raw: Column) -> Column:
    return F.coalesce(F.octet_length(raw), F.lit(0))


def _size() -> Column:
    """Bytes of a message as a producer counts them (`producer/encoding.py`): key, value, and headers with their lengths."""
    in_headers = F.aggregate(
        _given_headers(),
        F.lit(0).cast("bigint"),
        lambda sum_, each: sum_ + F.octet_length(each["key"]) + _length(each["value"]) + HEADER_BYTES,
    )
    return _length(F.col("key")) + _length(F.col("value")) + in_headers
