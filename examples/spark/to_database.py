"""Messages into a database, each exactly once by its transaction id, whatever is killed and read again.

    spark-submit --jars "$(txlayer-spark jars)" examples/spark/to_database.py -b 127.0.0.1:9092 --topic orders \
        --database postgresql+psycopg://… --checkpoint FOLDER

Spark calls `foreachBatch` at least once for a batch. A table of (transaction id, index) in the same database, written in the
same local transaction as the effect, makes it once. Executors write, not the driver; they need SQLAlchemy and the driver of
the database. The statements are those of PostgreSQL and SQLite.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import Connection, create_engine, text

from txlayer_spark import committed_stream, session

TABLES = (
    "CREATE TABLE IF NOT EXISTS applied (txn_id VARCHAR(128), place INTEGER, PRIMARY KEY (txn_id, place))",
    "CREATE TABLE IF NOT EXISTS spent (customer VARCHAR(100) PRIMARY KEY, orders INTEGER, cents BIGINT)",
)
MARK = "INSERT INTO applied (txn_id, place) VALUES (:txn_id, :place) ON CONFLICT DO NOTHING"
ADD = (
    "INSERT INTO spent (customer, orders, cents) VALUES (:customer, 1, :cents) ON CONFLICT (customer) "
    "DO UPDATE SET orders = spent.orders + 1, cents = spent.cents + excluded.cents"
)


def apply(connection: Connection, row: Row) -> None:
    """The effect of one message, unless it is there already; both in the caller's local transaction."""
    mark = connection.execute(text(MARK), {"txn_id": row.txn_id, "place": row["index"]})
    if mark.rowcount:
        order = json.loads(row.value)
        connection.execute(text(ADD), {"customer": order["customer"], "cents": order["cents"]})


def write_batches(database: str) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`."""

    def write_partition(rows: Iterator[Row]) -> None:
        engine = create_engine(database)
        with engine.begin() as connection:
            for row in rows:
                apply(connection, row)
        engine.dispose()

    def write(batch: DataFrame, _number: int) -> None:
        # In one order everywhere: partitions that wait for each other's rows do not lock each other out.
        ours = batch.where("txn_id IS NOT NULL").repartition("txn_id")
        ours.sortWithinPartitions("txn_id", "index").foreachPartition(write_partition)

    return write


def create_tables(database: str) -> None:
    """Once, before the first batch."""
    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in TABLES:
            connection.execute(text(statement))
    engine.dispose()


def start(messages: DataFrame, *, database: str, checkpoint: str, is_once: bool = False) -> StreamingQuery:
    """Write messages as they come; `is_once`: end with what is there now."""
    create_tables(database)
    stream = messages.select("txn_id", "index", messages["value"].cast("string").alias("value"))
    writer = stream.writeStream.foreachBatch(write_batches(database)).option("checkpointLocation", checkpoint)
    if is_once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="1 second").start()


def main() -> None:
    """Run until it is stopped."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("-b", "--bootstrap-servers", required=True)
    options.add_argument("--topic", default="orders")
    options.add_argument("--database", required=True, help="SQLAlchemy's address of it")
    options.add_argument("--checkpoint", required=True, help="folder, or any address that Spark knows")
    options.add_argument("--once", action="store_true", help="end with what is there now")
    given = options.parse_args()
    spark = session(name="to-database")
    messages = committed_stream(spark, given.topic, bootstrap_servers=given.bootstrap_servers)
    query = start(messages, database=given.database, checkpoint=given.checkpoint, is_once=given.once)
    query.awaitTermination()


if __name__ == "__main__":
    main()
