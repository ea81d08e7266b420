"""Bronze and a user's table → ids that one of them lacks."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer.errors import UsageError
from txlayer_spark.catalog import Catalog
from txlayer_spark.parse import TopicKind, Values, parse


def published(records: DataFrame, *, topic: str, expression: str, hidden: Sequence[str] = ()) -> DataFrame:
    """Bronze → `id` and where it is visible, one row per forwarded message of a topic.

    `expression` is SQL over `txn_id`, `key` and `value` (both as text), for example `get_json_object(value, '$.order')`; `hidden`
    are columns that the records do not hold.
    """
    rows = parse(records.where(F.col("topic") == topic), TopicKind.FORWARDED)
    texts = {name: F.col(name).cast("string") for name in ("key", "value")}
    return (
        rows.where(F.isnotnull("txn_id"))
        .withColumns(texts)
        .drop(*hidden)
        .select(F.expr(expression).cast("string").alias("id"), "partition", "offset")
    )


def differences(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """`published` and a database's `id` → `finding`, `id`, `partition`, `offset`; each id once.

    `missing`: the database has it and nothing was published; `unknown`: published, and the database does not know it. A null
    id is `unknown`: what was published there is not known.
    """
    once = ours.groupBy("id").agg(F.min_by(F.struct("partition", "offset"), "offset").alias("position"))
    wanted = theirs.select(F.col("id").cast("string")).where(F.isnotnull("id")).distinct()
    joined = once.withColumn("_ours", F.lit(True)).join(wanted.withColumn("_theirs", F.lit(True)), "id", "full")
    finding = F.when(F.isnull("_ours"), "missing").when(F.isnull("_theirs"), "unknown")
    return joined.select(finding.alias("finding"), "id", "position.partition", "position.offset").where(
        F.isnotnull("finding")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstSettings:
    """What is compared with what."""

    bronze: str
    topic: str
    published_id: str = "txn_id"  # SQL over `txn_id`, `key` and `value`: the business id of a message
    source: str  # a folder or file of Parquet, or a JDBC address
    table: str = ""  # the table behind a JDBC address
    column: str = "id"  # the column that holds the business id


def compare(spark: SparkSession, settings: AgainstSettings) -> DataFrame:
    """What differs: `finding` (missing or unknown), `id`, `partition`, `offset`.

    Read the database later than bronze, and leave out its newest rows: rows written after bronze's last run are `missing`.

    Raises:
        UsageError: the id is computed from a key or a value, and bronze holds hashes.
    """
    catalog = Catalog(spark, settings.bronze)
    records = catalog.records(catalog.cut(catalog.state()), kinds=[TopicKind.FORWARDED])
    hidden = () if catalog.values is Values.FULL else ("key", "value", "headers")
    try:
        ours = published(records, topic=settings.topic, expression=settings.published_id, hidden=hidden)
    except AnalysisException as exc:
        if not hidden:
            raise
        raise UsageError(
            f"{catalog.folder.path} holds hashes of keys and values: an id can be made of txn_id alone, not of {settings.published_id}"
        ) from exc
    if settings.source.startswith("jdbc:"):
        theirs = spark.read.format("jdbc").options(url=settings.source, dbtable=settings.table).load()
    else:
        theirs = spark.read.parquet(settings.source)
    return differences(ours, theirs.select(F.col(settings.column).alias("id")))
