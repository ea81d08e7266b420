"""Which transactions became visible out of their ordering key's order (promise P6). DataFrame → DataFrame.

Per ordering key and partition of a real topic, in the order of that partition: of transactions in the order `commit` each
was decided after those before it; and before one in the order `prepare` no later one was stored. One that was ever parked
or abandoned holds nobody up and waits for nobody, so it is not judged.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from txlayer_spark.events import PLACE_BITS, Kind
from txlayer_spark.ledger import decision, is_prepare_order

_LANE = ("key", "topic_bit", "real_partition")
STATE_COLUMNS = (*_LANE, "decided", "stored", "seen_ms")
"""How far each key came on each partition: what a later run compares with."""


def nothing(spark: SparkSession) -> DataFrame:
    """The state before the first message."""
    absent = F.lit(None).cast("bigint")
    return spark.range(0).select(*(absent.alias(name) for name in STATE_COLUMNS))


def keyed(cores: DataFrame) -> DataFrame:
    """The cores whose order is judged."""
    return cores.where(
        F.isnotnull("h_key") & (F.col("v_n") > 0) & F.isnotnull("o_commit") & F.isnull("d_parked_ms")
        & F.isnull("o_abandon_ms")
    )  # fmt: skip


def visible(happened: DataFrame, cores: DataFrame) -> DataFrame:
    """What became visible of those cores → a row per message with its lane, its place there, and its transaction's order."""
    ordered = cores.select(
        "txn_id",
        F.col("h_key").alias("key"),
        F.when(~is_prepare_order(), decision()).alias("decided_now"),
        is_prepare_order().alias("is_prepare"),
    )
    forwarded = happened.where(F.col("kind") == int(Kind.FORWARDED)).select(
        "txn_id",
        F.col("b").alias("topic_bit"),
        F.shiftright("c", PLACE_BITS).alias("real_partition"),
        F.col("c").bitwiseAND((1 << PLACE_BITS) - 1).alias("real_offset"),
        F.col("pos").alias("stored_now"),
        "at_ms",
    )
    return forwarded.join(ordered, "txn_id")


def out_of_order(messages: DataFrame, state: DataFrame) -> DataFrame:
    """Messages (`visible`) and how far earlier runs came → txn_id of those that came too late, each once."""
    before = (
        Window.partitionBy(*_LANE).orderBy("real_offset").rowsBetween(Window.unboundedPreceding, -1)
    )
    earlier = state.select(
        *_LANE, F.col("decided").alias("_decided"), F.col("stored").alias("_stored")
    )
    compared = messages.join(earlier, list(_LANE), "left").withColumns(
        {
            "_decided": F.greatest(F.max("decided_now").over(before), F.col("_decided")),
            "_stored": F.greatest(
                F.max(F.when(F.col("is_prepare"), F.col("stored_now"))).over(before),
                F.col("_stored"),
            ),
        }
    )
    late = (F.col("decided_now") < F.col("_decided")) | (F.col("stored_now") < F.col("_stored"))
    return compared.where(late).select("txn_id").distinct()


def progress(messages: DataFrame, state: DataFrame) -> DataFrame:
    """How far each key came on each partition now, `STATE_COLUMNS`."""
    reached = messages.groupBy(*_LANE).agg(
        F.max("decided_now").alias("decided"),
        F.max(F.when(F.col("is_prepare"), F.col("stored_now"))).alias("stored"),
        F.max("at_ms").alias("seen_ms"),
    )
    return (
        reached.unionByName(state.select(*STATE_COLUMNS))
        .groupBy(*_LANE)
        .agg(*(F.max(name).alias(name) for name in ("decided", "stored", "seen_ms")))
    )
