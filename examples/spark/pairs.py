"""Join what one transaction wrote to two topics: each order with the stock that it took.

    spark-submit --jars "$(txlayer-spark jars)" examples/spark/pairs.py -b 127.0.0.1:9092 --topics orders stock --into FOLDER

Both messages become visible in one Kafka transaction, so nobody ever sees the one without the other. Spark reads the two
topics one after the other, though, and keeps a message until its partner comes; by the watermark it forgets those whose
partner is not of these topics.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from txlayer_spark import committed_stream
from txlayer_spark.sessions import build_session

APART = "INTERVAL 5 MINUTES"
"""Forwarded together, their times are nearly the same; the rest is for clocks of brokers."""
KEPT = "10 minutes"


def pairs(left: DataFrame, right: DataFrame) -> DataFrame:
    """Two streams of committed messages → txn_id, left_key, left_value, right_key, right_value."""
    one = left.withWatermark("timestamp", KEPT).alias("one")
    other = right.withWatermark("timestamp", KEPT).alias("other")
    is_near = F.expr(f"other.timestamp BETWEEN one.timestamp - {APART} AND one.timestamp + {APART}")
    together = one.join(other, (F.col("one.txn_id") == F.col("other.txn_id")) & is_near)
    return together.select(
        "one.txn_id",
        *(
            F.col(f"{side}.{name}").cast("string").alias(f"{alias}_{name}")
            for side, alias in (("one", "left"), ("other", "right"))
            for name in ("key", "value")
        ),
    )


def start(left: DataFrame, right: DataFrame, *, into: str, is_once: bool = False) -> StreamingQuery:
    """Write pairs as they are found; `is_once`: end with what is there now."""
    writer = pairs(left, right).writeStream.outputMode("append").option("checkpointLocation", f"{into}/checkpoint")
    if is_once:
        return writer.trigger(availableNow=True).start(f"{into}/pairs")
    return writer.trigger(processingTime="10 seconds").start(f"{into}/pairs")


def main() -> None:
    """Run until it is stopped."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("-b", "--bootstrap-servers", required=True)
    options.add_argument("--topics", nargs=2, default=["orders", "stock"])
    options.add_argument("--into", required=True, help="folder, or any address that Spark knows")
    options.add_argument("--once", action="store_true", help="end with what is there now")
    given = options.parse_args()
    spark = build_session(name="pairs", master=None)
    left, right = (committed_stream(spark, topic, bootstrap_servers=given.bootstrap_servers) for topic in given.topics)
    start(left, right, into=given.into, is_once=given.once).awaitTermination()


if __name__ == "__main__":
    main()
