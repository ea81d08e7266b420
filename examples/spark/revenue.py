"""Revenue per day and customer, from orders as they become visible; an order may come two days late.

    spark-submit --jars "$(txlayer-spark jars)" examples/spark/revenue.py -b 127.0.0.1:9092 --topic orders --into FOLDER

An order is JSON: {"customer": "7", "cents": 1999, "at": "2026-01-31T12:00:00Z"}. A day is written once, as Parquet, when no
order of it is waited for any more. What comes later still is counted (`numRowsDroppedByWatermark`) and left to a batch job.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from txlayer_spark import committed_stream, session

ORDER = "customer STRING, cents BIGINT, at TIMESTAMP"
LATE = "2 days"


def revenue(messages: DataFrame, *, late: str = LATE) -> DataFrame:
    """Committed messages → day, customer, orders, cents; what is no order is passed over."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    orders = messages.select(order.alias("order")).select("order.*").where("at IS NOT NULL")
    return (
        orders.withWatermark("at", late)
        .groupBy(F.window("at", "1 day"), "customer")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
        .select(F.to_date("window.start").alias("day"), "customer", "orders", "cents")
    )


def start(messages: DataFrame, *, into: str, is_once: bool = False) -> StreamingQuery:
    """Write days as they end; `is_once`: end with what is there now."""
    writer = revenue(messages).writeStream.outputMode("append").option("checkpointLocation", f"{into}/checkpoint")
    if is_once:
        return writer.trigger(availableNow=True).start(f"{into}/days")
    return writer.trigger(processingTime="10 seconds").start(f"{into}/days")


def main() -> None:
    """Run until it is stopped."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("-b", "--bootstrap-servers", required=True)
    options.add_argument("--topic", default="orders")
    options.add_argument("--into", required=True, help="folder, or any address that Spark knows")
    options.add_argument("--once", action="store_true", help="end with what is there now")
    given = options.parse_args()
    spark = session(name="revenue")
    messages = committed_stream(spark, given.topic, bootstrap_servers=given.bootstrap_servers)
    start(messages, into=given.into, is_once=given.once).awaitTermination()


if __name__ == "__main__":
    main()
