"""Join what one transaction wrote to two topics: each order with the stock that it took.

    spark-submit --jars "$(txlayer-spark jars)" examples/spark/pairs.py -b 127.0.0.1:9092 --topics orders stock --into FOLDER

One stream reads both topics. A micro-batch may end between the two messages, so `whole_transactions` holds the first one
back until the other one comes: the join of one batch is the whole join. Each batch is a folder of its own, and a batch that is
done again takes its own place.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from txlayer_spark import committed_stream, session, whole_transactions


def pairs(messages: DataFrame, left: str, right: str) -> DataFrame:
    """Whole transactions → txn_id, left_key, left_value, right_key, right_value."""

    def side(topic: str, name: str) -> DataFrame:
        columns = (F.col(column).cast("string").alias(f"{name}_{column}") for column in ("key", "value"))
        return messages.where("is_whole").where(F.col("topic") == topic).select("transaction", "txn_id", *columns)

    return side(left, "left").join(side(right, "right").drop("txn_id"), "transaction").drop("transaction")


def start(messages: DataFrame, left: str, right: str, *, into: str, is_once: bool = False) -> StreamingQuery:
    """Write pairs as they become visible; `is_once`: end with what is there now."""

    def write(batch: DataFrame, epoch: int) -> None:
        pairs(batch, left, right).write.mode("overwrite").parquet(f"{into}/pairs/epoch={epoch}")

    whole = whole_transactions(write, folder=f"{into}/held")
    writer = messages.writeStream.foreachBatch(whole).option("checkpointLocation", f"{into}/checkpoint")
    if is_once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="10 seconds").start()


def main() -> None:
    """Run until it is stopped."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("-b", "--bootstrap-servers", required=True)
    options.add_argument("--topics", nargs=2, default=["orders", "stock"])
    options.add_argument("--into", required=True, help="folder, or any address that Spark knows")
    options.add_argument("--once", action="store_true", help="end with what is there now")
    given = options.parse_args()
    messages = committed_stream(session(name="pairs"), given.topics, bootstrap_servers=given.bootstrap_servers)
    start(messages, *given.topics, into=given.into, is_once=given.once).awaitTermination()


if __name__ == "__main__":
    main()
