"""Bronze and a table of the user's → ids that one of them lacks."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer_spark.against import differences, published
from txlayer_spark.catalog import Catalog
from txlayer_spark.schemas import TopicKind


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstSettings:
    """What is compared with what."""

    bronze: str
    topic: str
    published_id: str = "txn_id"
    """SQL over `txn_id`, `key` and `value`: the business id of a message."""
    source: str
    """A folder or file of Parquet, or a JDBC address."""
    table: str = ""
    """The table behind a JDBC address."""
    column: str = "id"
    """The column that holds the business id."""


def compare(spark: SparkSession, settings: AgainstSettings) -> DataFrame:
    """What differs: `finding` (missing or unknown), `id`, `partition`, `offset`.

    The database should be read later than bronze, and its newest rows left out: what was written since is `missing`.
    """
    catalog = Catalog(spark, settings.bronze)
    records = catalog.records(catalog.cut(catalog.state()), kinds=[TopicKind.FORWARDED])
    ours = published(records, topic=settings.topic, expression=settings.published_id)
    if settings.source.startswith("jdbc:"):
        theirs = (
            spark.read.format("jdbc").options(url=settings.source, dbtable=settings.table).load()
        )
    else:
        theirs = spark.read.parquet(settings.source)
    return differences(ours, theirs.select(F.col(settings.column).alias("id")))
