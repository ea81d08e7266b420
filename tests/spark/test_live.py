"""Streams of committed messages in jobs of one's own: the examples, run on real topics."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from examples.spark import pairs, revenue, to_database
from tests.support.broker import create_topic, unique_name
from tests.support.logs import read_log
from tests.support.planted import Field, Message
from tests.support.spark_reading import run_to_its_end
from tests.support.topic_records import Record, write_records
from tests.support.waiting import wait_until
from txlayer_spark import committed_stream

pytestmark = pytest.mark.kafka

LATEST = b"0:5|0/1|9223372036854775807"
"""The largest time that is in form."""


@pytest.fixture
def by_value() -> Iterator[None]:
    """What a program gives to executors is pickled whole, so that they need not have the program; a module is not."""
    cloudpickle.register_pickle_by_value(to_database)  # type: ignore[no-untyped-call]  # pyspark's copy has no types
    yield
    cloudpickle.unregister_pickle_by_value(to_database)  # type: ignore[no-untyped-call]  # the same


def order(customer: str, cents: int, at: str = "2026-01-01T12:00:00Z") -> bytes:
    """An order as the examples expect it."""
    return json.dumps({"customer": customer, "cents": cents, "at": at}).encode()


def stream_of(spark: SparkSession, field: Field, topic: str, **options: str) -> DataFrame:
    """Its committed messages."""
    return committed_stream(spark, topic, bootstrap_servers=field.servers, options=options)


def test_days_are_written_once_with_what_came_late_and_without_what_came_too_late(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    ordered = [
        [("ann", 100, "2026-01-01T10:00:00Z"), ("bob", 7, "2026-01-01T11:00:00Z"), ("ann", 5, "2026-01-02T23:59:59Z")],
        [("ann", 20, "2026-01-01T09:00:00Z"), ("bob", 1, "2026-01-06T00:00:00Z")],  # late, and a day that ends others
        [("ann", 9_000, "2026-01-01T08:00:00Z"), ("bob", 1, "2026-01-09T00:00:00Z")],  # too late
    ]
    into = str(tmp_path)
    dropped = 0
    for batch in ordered:
        field.whole(*(Message(field.orders, value=order(*each)) for each in batch))
        messages = stream_of(spark, field, field.orders)
        query = revenue.start(messages, into=into, is_once=True)
        assert query.awaitTermination(300)
        dropped += sum(
            state.numRowsDroppedByWatermark for progress in query.recentProgress for state in progress.stateOperators
        )

    rows = spark.read.parquet(f"{into}/days").collect()

    first, second, sixth = date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 6)
    expected = [(first, "ann", 2, 120), (first, "bob", 1, 7), (second, "ann", 1, 5), (sixth, "bob", 1, 1)]
    assert expected == sorted(tuple(row) for row in rows)
    assert 1 == dropped


def test_messages_of_two_topics_are_joined_by_their_transaction(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    both = field.whole(Message(field.orders, b"o1", b"order 1"), Message(field.stock, b"s1", b"stock 1"))
    field.whole(Message(field.orders, b"o2", b"an order alone"))
    field.whole(Message(field.stock, b"s2", b"a stock alone"))
    write_records(field.servers, [Record(field.stock, b"somebody else's")])

    # Batches so small that a transaction is read in two of them.
    messages = committed_stream(
        spark, [field.orders, field.stock], bootstrap_servers=field.servers, options={"maxOffsetsPerTrigger": "1"}
    )
    query = pairs.start(messages, field.orders, field.stock, into=str(tmp_path), is_once=True)
    assert query.awaitTermination(300)

    rows = spark.read.parquet(f"{tmp_path}/pairs").collect()
    assert [(both.txn_id, "o1", "order 1", "s1", "stock 1")] == [tuple(row)[:5] for row in rows]


@pytest.mark.usefixtures("by_value")
def test_a_batch_that_is_given_to_a_database_twice_counts_once(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    file, checkpoint = tmp_path / "shop.db", tmp_path / "checkpoint"
    database = f"sqlite:///{file}"

    def run() -> None:
        messages = stream_of(spark, field, field.orders, maxOffsetsPerTrigger="3")
        run_to_its_end(lambda: to_database.start(messages, database=database, checkpoint=str(checkpoint), is_once=True))

    for cents in (1, 10):
        field.whole(*(Message(field.orders, value=order(who, cents)) for who in ("ann", "ann", "bob")))
    run()
    # Killed before it noted what it had done: the batches come again, and a new message with them.
    shutil.rmtree(checkpoint / "commits")
    (checkpoint / "commits").mkdir()
    field.whole(Message(field.orders, value=order("ann", 100)))
    run()

    with closing(sqlite3.connect(file)) as connection:
        spent = connection.execute("SELECT customer, orders, cents FROM spent ORDER BY 1").fetchall()
        applied = connection.execute("SELECT count(*) FROM applied").fetchone()
    assert [("ann", 5, 122), ("bob", 2, 11)] == spent
    assert (7,) == applied


def test_a_row_is_the_users_message_with_its_place_in_the_transaction(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    txn = field.whole(Message(field.orders, headers=[("a", b"1")]), Message(field.orders, None, None))
    write_records(
        field.servers,
        [
            Record(field.orders, b"plain"),
            Record(field.orders, b"odd", None, [("txl-id", b"x y")]),
            Record(field.orders, b"late", None, [("txl-id", b"t"), ("txl-origin", LATEST)]),
        ],
    )
    stream = stream_of(spark, field, field.orders)
    query = (
        stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    assert query.awaitTermination(300)

    first, second, plain, odd, late = sorted(
        spark.read.parquet(str(tmp_path / "rows")).collect(), key=lambda row: row.offset
    )

    born = datetime.fromtimestamp(txn.born_ms / 1000, UTC).replace(tzinfo=None)
    assert (txn.txn_id, 0, 2, None) == (first.txn_id, first["index"], first["count"], first.error)
    assert (b"k", b"value", [("a", b"1")]) == (
        bytes(first.key),
        bytes(first.value),
        [(h.key, bytes(h.value)) for h in first.headers],
    )
    assert born == first.born.astimezone(UTC).replace(tzinfo=None)
    assert (None, None, 1) == (second.key, second.value, second["index"])
    assert (b"plain", None, None) == (bytes(plain.value), plain.txn_id, plain.error)
    assert (b"odd", None) == (bytes(odd.value), odd.txn_id)
    assert odd.error is not None
    # The largest time that is in form is no end of a stream.
    assert ("t", None, 9999) == (late.txn_id, late.error, late.born.year)


@pytest.mark.slow
@pytest.mark.skipif(
    "realTime" not in signature(DataStreamWriter.trigger).parameters, reason="PySpark has it from 4.2 on"
)
def test_in_real_time_each_committed_message_comes_before_its_batch_ends_and_no_aborted_one(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    source, to = (create_topic(field.servers, unique_name(name)) for name in ("source", "to"))
    producer = Producer({"bootstrap.servers": field.servers, "transactional.id": source, "log_level": 0})
    producer.init_transactions(30)

    def send(value: bytes, *, is_aborted: bool = False) -> None:
        producer.begin_transaction()
        producer.produce(source, value, headers=[("txl-id", b"t"), ("txl-origin", b"0:5|0/1|5")])
        producer.flush(30)
        (producer.abort_transaction if is_aborted else producer.commit_transaction)(30)

    def start(length: str) -> StreamingQuery:
        writer = stream_of(spark, field, source).select("value").writeStream.format("kafka").outputMode("update")
        writer = writer.option("kafka.bootstrap.servers", field.servers).option("topic", to)
        of_release: Any = writer.option("checkpointLocation", str(tmp_path))  # the hints of PySpark name no `realTime`
        query: StreamingQuery = of_release.trigger(realTime=length).start()
        return query

    def shown() -> list[bytes | None]:
        return [record.value for record in read_log(field.servers, [to])[to]]

    query = start("5 seconds")
    try:
        send(b"1")
        send(b"2", is_aborted=True)
        send(b"3")
        wait_until(lambda: len(query.recentProgress) >= 2, within=90, what="two batches ended")
    finally:
        query.stop()
    assert [b"1", b"3"] == shown()
    send(b"4")
    send(b"5", is_aborted=True)
    query = start("10 minutes")
    try:
        wait_until(lambda: len(shown()) == 3, within=90, what="a message whose batch does not end")
        assert query.isActive
    finally:
        query.stop()
    assert [b"1", b"3", b"4"] == shown()
