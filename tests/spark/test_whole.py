"""Reads of several topics: which transaction a row is of, and no transaction is torn between two batches."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.support.broker import create_topic
from tests.support.logs import read_log
from tests.support.planted import Field, Message, Transaction
from tests.support.spark_reading import run_to_its_end
from tests.support.topic_records import Record
from txlayer.errors import UsageError
from txlayer_spark import committed_stream, read_committed, whole_transactions

pytestmark = pytest.mark.kafka

TRANSACTIONS = 4
HOUR_MS = 3_600_000


def plant(field: Field) -> tuple[str, list[Transaction]]:
    """A third topic; transactions of a message on each of three; one with a message that never comes; a stranger's record."""
    loyalty = create_topic(field.servers, f"{field.namespace}-loyalty", partitions=2)
    topics = (field.orders, field.stock, loyalty)
    planted = [field.prepare(*(Message(topic) for topic in topics)) for _ in range(TRANSACTIONS)]
    # All first messages, then all second ones, …: what several coordinators at once and slow markers make of them.
    for index in range(len(topics)):
        for number, txn in enumerate(planted):
            field.forward(txn, index, partition=number % 2)
    lacking = field.prepare(Message(field.orders), Message(field.stock))
    field.forward(lacking, 0)
    field.whole()
    field.write(Record(field.orders, b"of a stranger", b"k", [], 0))
    # A consumer gave one up: it was a message once.
    letters = create_topic(field.servers, f"{field.namespace}-loyalty.{field.orders}.dlq")
    headers = read_log(field.servers, [field.orders])[field.orders][0].headers
    field.write(Record(letters, b"value", b"k", headers, 0))
    return loyalty, [*planted, lacking]


def run(rows: DataFrame, handle: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """What is there now, in small batches."""
    writer = rows.writeStream.foreachBatch(handle).option("checkpointLocation", str(checkpoint))
    run_to_its_end(lambda: writer.trigger(availableNow=True).start())


@pytest.mark.fault(
    "Spark: a batch ends between two messages of a transaction, or is done again after its function failed"
)
def test_a_transaction_over_three_topics_is_in_one_batch_wherever_the_batches_end(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    _, planted = plant(field)
    *good, lacking = planted
    whole = {txn.txn_id for txn in good}
    plain: dict[int, list[Row]] = {}
    given: dict[int, list[Row]] = {}
    later_ms = 0
    fails_at = {1}

    def keep(batch: DataFrame, epoch: int) -> None:
        given[epoch] = batch.select("topic", "partition", "offset", "txn_id", "is_whole").collect()
        if epoch in fails_at:
            fails_at.clear()
            raise ValueError("the function fails")

    kept = whole_transactions(
        keep, folder=str(tmp_path / "held"), now_ms=lambda: time.time_ns() // 1_000_000 + later_ms
    )

    def handle(batch: DataFrame, epoch: int) -> None:
        plain[epoch] = batch.select("txn_id").collect()
        kept(batch, epoch)

    rows = committed_stream(
        spark, pattern=f"{field.namespace}-.*", bootstrap_servers=field.servers, options={"maxOffsetsPerTrigger": "6"}
    )
    with pytest.raises(StreamingQueryException, match="the function fails"):
        run(rows, handle, tmp_path / "checkpoint")
    failed = given[1]
    run(rows, handle, tmp_path / "checkpoint")

    def batches_of(found: dict[int, list[Row]], txn_id: str) -> set[int]:
        return {epoch for epoch, batch in found.items() for row in batch if row.txn_id == txn_id}

    assert any(len(batches_of(plain, txn_id)) > 1 for txn_id in whole), "no batch ended within a transaction"
    assert sorted(failed) == sorted(given[1])
    seen = [row for batch in given.values() for row in batch]
    assert {1} == {len(batches_of(given, txn_id)) for txn_id in whole}
    assert dict.fromkeys(whole, 3) == Counter(row.txn_id for row in seen if row.txn_id in whole)
    assert {True} == {row.is_whole for row in seen if row.txn_id}
    assert 3 * TRANSACTIONS + 1 + 1 == len({tuple(row)[:3] for row in seen}) == len(seen)
    assert [None] == [row.is_whole for row in seen if row.txn_id is None]
    assert set() == batches_of(given, lacking.txn_id)

    # After `hold` what lacks a message is given, and says so; its rest, too.
    later_ms, before = HOUR_MS, set(given)
    field.whole()
    run(rows, handle, tmp_path / "checkpoint")
    late = [row for epoch, batch in given.items() if epoch not in before for row in batch]
    assert [(lacking.txn_id, False)] == [(row.txn_id, row.is_whole) for row in late if not row.is_whole]
    assert 2 == len(late)

    with pytest.raises(UsageError, match="does not hold what epoch 6"):
        whole_transactions(keep, folder=str(tmp_path / "elsewhere"))(spark.range(0), 7)


def test_more_that_waits_than_is_allowed_ends_the_query_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    columns = "topic STRING, partition INT, offset BIGINT, transaction STRING, index BIGINT, count BIGINT"
    batch = spark.createDataFrame([("orders", 0, n, f"t-{n}", 0, 2) for n in range(3)], columns)
    handled: list[int] = []

    def handle(batch: DataFrame, _epoch: int) -> None:
        handled.append(batch.count())

    folder = str(tmp_path)
    with pytest.raises(UsageError, match="3 messages wait for others"):
        whole_transactions(handle, folder=folder, held_max=2)(batch, 0)
    assert [] == handled

    whole_transactions(handle, folder=folder)(batch, 0)
    others = spark.createDataFrame([("stock", 0, n, f"t-{n}", 1, 2) for n in range(3)], columns)
    whole_transactions(handle, folder=folder)(others, 1)
    assert [0, 6] == handled

    # Another query that was given this folder begins anew.
    whole_transactions(handle, folder=folder, hold=timedelta(0))(others, 0)
    assert 3 == handled[-1]


@pytest.mark.fault(
    "Spark: a batch ends between two messages of a transaction, or is done again after its function failed"
)
def test_what_waits_is_held_as_a_whole_or_not_at_all_whatever_size_of_files_a_session_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Killed while files come to their place, of which the last one says what they hold; then it is done again."""
    columns = "topic STRING, partition INT, offset BIGINT, transaction STRING, index BIGINT, count BIGINT"
    batch = spark.createDataFrame([("orders", 0, n, "t", n, 4) for n in range(3)], columns)
    last = spark.createDataFrame([("orders", 0, 3, "t", 3, 4)], columns)
    handled: list[tuple[int, int, bool]] = []

    def handle(batch: DataFrame, epoch: int) -> None:
        handled.extend((epoch, row["index"], row["is_whole"]) for row in batch.select("index", "is_whole").collect())

    kept = whole_transactions(handle, folder=str(tmp_path))
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "1")
    try:
        kept(batch, 0)
        (tmp_path / "slot=0" / "_SUCCESS").unlink()
        for path in sorted((tmp_path / "slot=0").glob("*.parquet"))[:-1]:
            path.unlink()
        kept(batch, 0)
        kept(last, 1)
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")

    assert [(1, index, True) for index in range(4)] == sorted(handled)


def test_a_read_says_of_each_row_whether_all_of_its_transaction_was_read(spark: SparkSession, field: Field) -> None:
    loyalty, (*good, lacking) = plant(field)

    def read(*topics: str) -> dict[str | None, set[bool | None]]:
        found: dict[str | None, set[bool | None]] = {}
        for row in read_committed(spark, topics, bootstrap_servers=field.servers).collect():
            found.setdefault(row.txn_id, set()).add(row.is_whole)
            assert row.txn_id is None or row.transaction.startswith(f"{row.txn_id}@")
        return found

    of_all, of_two = read(field.orders, field.stock, loyalty), read(field.orders, field.stock)
    assert {True} == set().union(*(of_all[txn.txn_id] for txn in good))
    assert {False} == set().union(*(of_two[txn.txn_id] for txn in good)) == of_all[lacking.txn_id]
    assert {None} == of_all[None]
    with pytest.raises(UsageError, match="name topics, or one pattern"):
        read_committed(spark, bootstrap_servers=field.servers)
