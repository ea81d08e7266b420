"""The user's database against what was published: ids that one side has and the other has not. DataFrame → DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from txlayer_spark.parse import parse
from txlayer_spark.schemas import TopicKind


def published(records: DataFrame, *, topic: str, expression: str) -> DataFrame:
    """Bronze → `id` and where it is visible, one row per forwarded message of a topic.

    `expression` is SQL over `txn_id`, `key` and `value` (both as text), for example `get_json_object(value, '$.order')`.
    """
    rows = parse(records.where(F.col("topic") == topic), TopicKind.FORWARDED)
    texts = {name: F.col(name).cast("string") for name in ("key", "value")}
    return (
        rows.where(F.isnotnull("txn_id"))
        .withColumns(texts)
        .select(F.expr(expression).cast("string").alias("id"), "partition", "offset")
    )


def differences(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """`published` and a database's `id` → `finding`, `id`, `partition`, `offset`; each id once.

    `missing`: the database has it and nothing was published; `unknown`: published, and the database does not know it. A null
    id is `unknown`: nobody can tell what was published there.
    """
    once = ours.groupBy("id").agg(
        F.min_by(F.struct("partition", "offset"), "offset").alias("place")
    )
    wanted = theirs.select(F.col("id").cast("string")).where(F.isnotnull("id")).distinct()
    joined = once.withColumn("_ours", F.lit(True)).join(
        wanted.withColumn("_theirs", F.lit(True)), "id", "full"
    )
    finding = F.when(F.isnull("_ours"), "missing").when(F.isnull("_theirs"), "unknown")
    return joined.select(finding.alias("finding"), "id", "place.partition", "place.offset").where(
        F.isnotnull("finding")
    )
