"""What the decoders of all kinds of topics share: the place of a record, and what becomes of a broken one. Never a form."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from txlayer.core.codec import NEXT_VERSION, VERSION

PLACE = ("topic", "partition", "offset", "timestamp")
"""The columns that every row begins with."""


def judged(
    decoded: DataFrame,
    is_good: Column,
    what: str,
    *,
    columns: Sequence[str],
    is_versioned: bool = True,
) -> DataFrame:
    """`error` says why `_line` is none of ours; then `columns` are null, so that nobody trusts half of one."""
    line = F.col("_line")
    version = F.split_part(line, F.lit("|"), F.lit(1))
    error = (
        F.when(F.coalesce(is_good, F.lit(False)), F.lit(None).cast("string"))
        .when(line.isNull(), F.lit(f"{what}: missing, or not ASCII"))
        .when(
            ~version.isin(VERSION, NEXT_VERSION) & F.lit(is_versioned),
            F.concat(F.lit(f"{what}: unknown version "), F.left(version, F.lit(20))),
        )
        .otherwise(F.lit(f"{what}: out of form"))
    )
    told = decoded.withColumn("error", error)
    return told.withColumns({name: F.when(F.isnull("error"), F.col(name)) for name in columns})


def all_of(conditions: Sequence[Column]) -> Column:
    """All conditions hold."""
    result = F.lit(True)
    for condition in conditions:
        result = result & condition
    return result


def own_columns(schema: StructType, *, beside: Sequence[str] = ()) -> list[str]:
    """The columns of ours in a row: not its place, not its error, not those that a broken record has too."""
    return [f.name for f in schema if f.name not in {*PLACE, "error", *beside}]
