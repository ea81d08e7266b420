"""Which transactions became visible out of their ordering key's order (promise P6). DataFrame → DataFrame.

Per ordering key and partition of a real topic, in the order of that partition: of transactions in the order `commit` each
was decided after those before it; and before one in the order `prepare` no later one was stored. One that was ever parked
or abandoned holds nobody up and waits for nobody, so it is not judged.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from txlayer_spark.events import PLACE_BITS, Kind
from txlayer_spark.ledger import decision, doubt_state, is_prepare_order

_LANE = ("key", "topic", "real_partition")
_PROGRESS = ("decided", "stored", "seen_ms")
STATE_COLUMNS = (*_LANE, *_PROGRESS)
"""How far each key came on each partition: what a later run compares with."""
COMPARED = f"txn_id string, nonce bigint, {' bigint, '.join(STATE_COLUMNS)} bigint, is_late boolean, is_state boolean"
"""The columns of what was compared, for a reader of its files."""


def nothing(spark: SparkSession) -> DataFrame:
    """The state before the first message."""
    absent = F.lit(None).cast("bigint")
    return spark.range(0).select(*(absent.alias(name) for name in STATE_COLUMNS))


def is_keyed(*, aside: str = "") -> Column:
    """Whether the order of a row is judged; of a stored one (not `rows.unfolded`) with the place `aside` of what few have."""
    return (
        F.isnotnull("h_key") & (F.col("verdict") != "out_of_window") & (F.col("v_n") > 0) & F.isnotnull("o_commit") & F.isnull(f"{aside}d_parked_ms")
        & F.isnull(f"{aside}o_abandon_ms")
    )  # fmt: skip


def counts(is_keyed: Column, is_several: Column) -> tuple[Column, Column]:
    """How many rows there are to be compared (`keyed`), and of these how many whose messages only the records tell (`several`)."""
    return (
        F.count_if(is_keyed).alias("keyed"),
        F.count_if(is_keyed & is_several).alias("several"),
    )


def is_several() -> Column:
    """Whether a row does not tell where its message is: of several, or on a topic that shares its bit with others."""
    return (F.col("v_n") > 1) | (F.col("v_topics") < 0)


def reversed_ids(happened: DataFrame, rows: DataFrame) -> DataFrame:
    """The ids of those transactions of whose messages a later one stands before an earlier one of its key."""
    forwarded = happened.where(F.col("kind") == int(Kind.FORWARDED))
    messages = forwarded.select("txn_id", "partition", "pos", "b", "c", "idx", "d")
    messages = _of_rows(messages, rows.select(*_whose(), "h_key"))
    is_ordered = F.isnotnull("h_key") | F.isnotnull("d")
    key = F.when(F.isnull("h_key"), F.col("d"))
    partition = F.shiftright("c", PLACE_BITS)
    messages = messages.where(is_ordered).select(
        "txn_id", "nonce", "b", "c", "idx", key.alias("lane"), partition.alias("real_partition")
    )
    lane = Window.partitionBy("txn_id", "nonce", "b", "real_partition", "lane").orderBy("c")
    before = lane.rowsBetween(Window.unboundedPreceding, -1)
    found = messages.withColumn("_before", F.max("idx").over(before))
    return found.where(F.col("idx") < F.col("_before")).select("txn_id", "nonce").distinct()


def waiting(rows: DataFrame) -> DataFrame:
    """The attempts among rows that wait rightly: committed, and before them in half an undecided one of their key goes first.

    Who waits behind one that is on doubt stands there itself.
    """
    columns = (F.col("h_key"), F.col("half_partition"))
    waits = rows.where((F.col("verdict") == "lost") & is_prepare_order() & F.isnull("d_last"))
    waits = waits.select("txn_id", F.col("nonce_max").alias("nonce"), *columns, "h_first")
    first = F.isnull(decision()) & F.isnotnull("h_key")
    ahead = rows.where(first & ~F.coalesce(doubt_state(), F.lit("")).isin("parked"))
    ahead = ahead.groupBy(*columns).agg(
        F.min("h_first").alias("_first"), F.max(F.isnotnull("d_last")).alias("_on_doubt")
    )
    found = waits.join(ahead, ["h_key", "half_partition"])
    is_waiting = (F.col("_first") < F.col("h_first")) & ~F.col("_on_doubt")
    return found.where(is_waiting).select("txn_id", "nonce").distinct()


def _whose() -> tuple[Column, ...]:
    """Which attempt a row is of, and where its half records stand."""
    nonce, partition = F.col("nonce_max").alias("nonce"), F.col("half_partition").alias("partition")
    return F.col("txn_id"), nonce, partition, F.col("h_first"), F.col("h_last")


def _of_rows(messages: DataFrame, rows: DataFrame) -> DataFrame:
    """Messages with the row of the attempt that their half record is of: an id may have several."""
    joined = messages.join(rows, ["txn_id", "partition"])
    return joined.where((F.col("pos") >= F.col("h_first")) & (F.col("pos") <= F.col("h_last")))


def visible(happened: DataFrame, rows: DataFrame) -> DataFrame:
    """What became visible of those transactions → a row per message with its lane, its place there, and its transaction's order."""
    forwarded = happened.where(F.col("kind") == int(Kind.FORWARDED))
    messages = forwarded.select(
        "txn_id", "partition", "pos", "at_ms", *_message(F.col("b"), "c", "pos")
    )
    ordered = _of_rows(messages, rows.select(*_whose(), *_order()))
    return ordered.drop("partition", "pos", "h_first", "h_last")


def visible_alone(rows: DataFrame) -> DataFrame:
    """The same of transactions with one visible message, which say all of it: no record has to be read again."""
    # The one bit that is set has as many lower ones as its number says.
    number = F.bit_count(F.col("v_topics") - 1).cast("bigint")
    message = _message(number, "v_place", "v_first")
    at_ms = F.col("v_first_ms").alias("at_ms")
    return rows.select("txn_id", F.col("nonce_max").alias("nonce"), *message, at_ms, *_order())


def _order() -> tuple[Column, ...]:
    return (
        F.col("h_key").alias("key"),
        F.when(~is_prepare_order(), decision()).alias("decided_now"),
        is_prepare_order().alias("is_prepare"),
        F.col("o_commit_ms").alias("committed_ms"),
    )


def _message(topic: Column, place: str, stored: str) -> tuple[Column, ...]:
    return (
        topic.alias("topic"),
        F.shiftright(place, PLACE_BITS).alias("real_partition"),
        F.col(place).bitwiseAND((1 << PLACE_BITS) - 1).alias("real_offset"),
        F.col(stored).alias("stored_now"),
    )


def compared(messages: DataFrame, state: DataFrame, *, kept_from_ms: int) -> DataFrame:
    """Messages (`visible`) and how far earlier runs came → the messages that came too late (`is_late`), and how far each key
    has come on each partition now (`is_state`), but for those that did not move after `kept_from_ms`.
    """
    stored = F.when(F.col("is_prepare"), F.col("stored_now")).alias("stored")
    place = F.col("real_offset")
    now = messages.select(
        "txn_id",
        "nonce",
        *_LANE,
        place,
        "decided_now",
        "stored_now",
        F.col("decided_now").alias("decided"),
        stored,
        # The time of what is visible may be the user's, of any year.
        F.greatest("at_ms", "committed_ms").alias("seen_ms"),
    )
    absent = F.lit(None)
    # Before the first message of all: one window, and one sort, for what is compared and what is kept.
    earlier = state.select(
        absent.cast("string").alias("txn_id"),
        absent.cast("bigint").alias("nonce"),
        *_LANE,
        F.lit(-1).cast("bigint").alias("real_offset"),
        absent.cast("bigint").alias("decided_now"),
        absent.cast("bigint").alias("stored_now"),
        "decided",
        "stored",
        "seen_ms",
    )
    lane = Window.partitionBy(*_LANE).orderBy("real_offset")
    before = lane.rowsBetween(Window.unboundedPreceding, -1)
    reached = {f"_{name}": F.max(name).over(before) for name in _PROGRESS}
    rows = now.unionByName(earlier).withColumns(
        {**reached, "_next": F.lead("real_offset").over(lane)}
    )
    late = (F.col("decided_now") < F.col("_decided")) | (F.col("stored_now") < F.col("_stored"))
    rows = rows.select(
        "txn_id",
        "nonce",
        *_LANE,
        *(F.greatest(name, f"_{name}").alias(name) for name in _PROGRESS),
        F.coalesce(late, F.lit(False)).alias("is_late"),
        F.isnull("_next").alias("is_state"),
    )
    is_state = F.col("is_state") & (F.col("seen_ms") >= kept_from_ms)
    return rows.withColumn("is_state", is_state).where(F.col("is_late") | F.col("is_state"))
