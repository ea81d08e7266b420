"""Events and ledger of `txlayer-spark tables` → what happened by day, and how well each producer group decides."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
tables = spark.conf.get("audit.tables")


@dp.temporary_view
def events() -> DataFrame:
    """One row for each thing that happened."""
    return spark.read.parquet(f"{tables}/events")


@dp.temporary_view
def ledger() -> DataFrame:
    """One row for each transaction."""
    return spark.read.option("mergeSchema", "true").parquet(f"{tables}/ledger")


@dp.materialized_view
def by_day() -> DataFrame:
    """How often each thing happened."""
    return spark.table("events").groupBy("day", "event").agg(F.count("*").alias("count"))


@dp.materialized_view
def by_group() -> DataFrame:
    """Transactions, those that the group left to others, and how long the slowest of a hundred took."""
    return (
        spark.table("ledger")
        .groupBy("producer_group")
        .agg(
            F.count("*").alias("transactions"),
            F.count_if(F.col("decided_by") != "producer").alias("decided_by_others"),
            F.percentile_approx("total_ms", 0.99).alias("p99_ms"),
        )
    )
