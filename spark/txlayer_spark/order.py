"""Which transactions became visible out of their ordering key's order (promise P6). DataFrame → DataFrame.

Per ordering key and partition of a real topic, in the order of that partition: of transactions in the order `commit` each
was decided after those before it; and before one in the order `prepare` no later one was stored. One that was ever parked
or abandoned holds nobody up and waits for nobody, so it is not judged.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from txlayer_spark.events import PLACE_BITS, Kind
from txlayer_spark.ledger import decision, is_prepare_order

_LANE = ("key", "topic_bit", "real_partition")
_PROGRESS = ("decided", "stored", "seen_ms")
STATE_COLUMNS = (*_LANE, *_PROGRESS)
"""How far each key came on each partition: what a later run compares with."""
COMPARED = (
    f"txn_id string, {' bigint, '.join(STATE_COLUMNS)} bigint, is_late boolean, is_state boolean"
)
"""The columns of what was compared, for a reader of its files."""


def nothing(spark: SparkSession) -> DataFrame:
    """The state before the first message."""
    absent = F.lit(None).cast("bigint")
    return spark.range(0).select(*(absent.alias(name) for name in STATE_COLUMNS))


def is_keyed(*, aside: str = "") -> Column:
    """Whether the order of a row is judged; of a stored one (not `rows.unfolded`) with the place `aside` of what few have."""
    return (
        F.isnotnull("h_key") & (F.col("v_n") > 0) & F.isnotnull("o_commit") & F.isnull(f"{aside}d_parked_ms")
        & F.isnull(f"{aside}o_abandon_ms")
    )  # fmt: skip


def counts(is_keyed: Column, is_several: Column) -> tuple[Column, Column]:
    """How many rows there are to be compared (`keyed`), and of these how many whose messages only the records tell (`several`)."""
    return (
        F.count_if(is_keyed).alias("keyed"),
        F.count_if(is_keyed & is_several).alias("several"),
    )


def visible(happened: DataFrame, rows: DataFrame) -> DataFrame:
    """What became visible of those transactions → a row per message with its lane, its place there, and its transaction's order."""
    ordered = rows.select("txn_id", *_order())
    forwarded = happened.where(F.col("kind") == int(Kind.FORWARDED))
    return forwarded.select("txn_id", *_message("b", "c", "pos", "at_ms")).join(ordered, "txn_id")


def visible_alone(rows: DataFrame) -> DataFrame:
    """The same of transactions with one visible message, which say all of it: no record has to be read again."""
    message = _message("v_topics", "v_place", "v_first", "v_first_ms")
    return rows.select("txn_id", *message, *_order())


def _order() -> tuple[Column, ...]:
    return (
        F.col("h_key").alias("key"),
        F.when(~is_prepare_order(), decision()).alias("decided_now"),
        is_prepare_order().alias("is_prepare"),
    )


def _message(bit: str, place: str, stored: str, at_ms: str) -> tuple[Column, ...]:
    return (
        F.col(bit).alias("topic_bit"),
        F.shiftright(place, PLACE_BITS).alias("real_partition"),
        F.col(place).bitwiseAND((1 << PLACE_BITS) - 1).alias("real_offset"),
        F.col(stored).alias("stored_now"),
        F.col(at_ms).alias("at_ms"),
    )


def compared(messages: DataFrame, state: DataFrame, *, kept_from_ms: int) -> DataFrame:
    """Messages (`visible`) and how far earlier runs came → the messages that came too late (`is_late`), and how far each key
    has come on each partition now (`is_state`), but for those that did not move after `kept_from_ms`.
    """
    stored = F.when(F.col("is_prepare"), F.col("stored_now")).alias("stored")
    place = F.col("real_offset")
    # The sign is the bit that further topics share: offsets of different topics say nothing of each other.
    now = messages.where(F.col("topic_bit") > 0).select(
        "txn_id",
        *_LANE,
        place,
        "decided_now",
        "stored_now",
        F.col("decided_now").alias("decided"),
        stored,
        F.col("at_ms").alias("seen_ms"),
    )
    absent = F.lit(None)
    # Before the first message of all: one window, and one sort, for what is compared and what is kept.
    earlier = state.select(
        absent.cast("string").alias("txn_id"),
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
        *_LANE,
        *(F.greatest(name, f"_{name}").alias(name) for name in _PROGRESS),
        F.coalesce(late, F.lit(False)).alias("is_late"),
        F.isnull("_next").alias("is_state"),
    )
    is_state = F.col("is_state") & (F.col("seen_ms") >= kept_from_ms)
    return rows.withColumn("is_state", is_state).where(F.col("is_late") | F.col("is_state"))
