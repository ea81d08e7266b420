"""Micro-batches in which no transaction is torn: rows whose other parts have not come yet are held back.

::

    <folder>/slot=0, slot=1, slot=2     what is held behind an epoch, by `epoch % 3`; a row without a transaction names the epoch and its batch

What an epoch holds is written before the function is called. So a batch that is done again has the same rows.
"""

import time
from collections.abc import Callable
from datetime import timedelta

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer.errors import UsageError

_SLOTS = 3  # the one that is written, the one before it, and one for a batch that still reads
_EPOCH, _BATCH, _SINCE = "_epoch", "_batch", "_since_ms"
_NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
HELD_MAX = 1_000_000

Handle = Callable[[DataFrame, int], None]


def whole_transactions(
    handle: Handle,
    *,
    folder: str,
    hold: timedelta = timedelta(minutes=10),
    held_max: int = HELD_MAX,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Handle:
    """For `foreachBatch` of a `committed_stream`: `handle` gets all messages of a transaction in one batch.

    Messages whose transaction has others that were not read yet are held back, and are part of the batch in which the last
    one comes. `txl-origin` says how many there are. Each message is in one batch, and a batch that is done again holds the
    same rows.

    The column `is_whole` is True for these. It is False for messages that were held for longer than `hold`: a message of
    their transaction is on a topic that you do not read, or has a later time (`deliver_at`). It is null for a record that
    txlayer did not forward.

    Args:
        handle: Called with a batch and its number, like a function of `foreachBatch`.
        folder: Where held rows are kept, for this query alone: beside its checkpoint.
        hold: How long messages wait for the rest of their transaction.
        held_max: How many messages may wait; with more the query ends, and nothing is lost.
        now_ms: This machine's clock.
    """
    hold_ms = hold // timedelta(milliseconds=1)

    def handle_whole(batch: DataFrame, epoch: int) -> None:
        spark, at_ms = batch.sparkSession, now_ms()
        rows = batch.withColumn(_SINCE, F.lit(None).cast("bigint"))
        if epoch:
            before = _held(spark, folder, epoch - 1)
            if before is None:
                raise UsageError(
                    f"{folder} does not hold what epoch {epoch - 1} of this query held back: name the folder that it had, or "
                    "begin with a new checkpoint and a new folder"
                )
            rows = before.unionByName(rows, allowMissingColumns=True)
        rows = rows.persist()
        torn = _torn(rows, at_ms).persist()
        try:
            # A new query that was given the folder of an earlier one has other rows in its first batch.
            number: int = rows.agg(F.bit_xor(F.xxhash64("topic", "partition", "offset"))).first()[0] or 0  # type: ignore[index]  # an aggregate has a row
            held = _held(spark, folder, epoch, batch=number)
            if held is None:
                waiting = torn.where(F.col("_first_ms") > at_ms - hold_ms)
                count = waiting.agg(F.sum("_rows")).first()[0] or 0  # type: ignore[index]  # an aggregate has a row
                if count > held_max:
                    raise UsageError(
                        f"{count} messages wait for others of their transactions, and held_max is {held_max}: read the topics "
                        "of these transactions, too, or make hold shorter. The batch was not handled"
                    )
                _hold(rows, waiting, _slot(folder, epoch), epoch, number)
                held = _held(spark, folder, epoch)
            assert held is not None, "it was written a moment ago"
            given = rows.drop(_SINCE).join(held.select("transaction").distinct(), "transaction", "left_anti")
            given = given.join(torn.select("transaction", F.lit(True).alias("_is_torn")), "transaction", "left")
            is_whole = F.when(F.isnotnull("transaction"), F.isnull("_is_torn"))
            handle(given.withColumn("is_whole", is_whole).select(*batch.columns, "is_whole"), epoch)
        finally:
            torn.unpersist()
            rows.unpersist()

    return handle_whole


def _torn(rows: DataFrame, at_ms: int) -> DataFrame:
    """Transactions of which a message is missing, since when they have been held, and how many rows they have."""
    parts = rows.where((F.col("count") > 1) & F.isnotnull("transaction")).groupBy("transaction")
    counted = parts.agg(
        F.count_distinct("index").alias("_seen"),
        F.max("count").alias("_all"),
        F.coalesce(F.min(_SINCE), F.lit(at_ms)).alias("_first_ms"),
        F.count("*").alias("_rows"),
    )
    return counted.where(F.col("_seen") < F.col("_all")).select("transaction", "_first_ms", "_rows")


def _hold(rows: DataFrame, waiting: DataFrame, path: str, epoch: int, batch: int) -> None:
    """Write the rows of these transactions, and which epoch holds them, into one file: it is there as a whole or not at all."""
    held = rows.drop(_SINCE).join(waiting.select("transaction", F.col("_first_ms").alias(_SINCE)), "transaction")
    says = rows.sparkSession.range(1).select(
        *(F.lit(n).cast("bigint").alias(name) for name, n in ((_EPOCH, epoch), (_BATCH, batch)))
    )
    held.unionByName(says, allowMissingColumns=True).coalesce(1).write.mode("overwrite").parquet(path)


def _held(spark: SparkSession, folder: str, epoch: int, *, batch: int | None = None) -> DataFrame | None:
    """What an epoch, with that batch, held back; None where that is not known."""
    says = F.isnull("transaction") & (F.col(_EPOCH) == epoch)
    try:
        found = spark.read.parquet(_slot(folder, epoch))
        if found.where(says if batch is None else says & (F.col(_BATCH) == batch)).isEmpty():
            return None
    except AnalysisException as exc:
        if exc.getCondition() not in _NOTHING_THERE:
            raise
        return None
    return found.where(F.isnotnull("transaction")).drop(_EPOCH, _BATCH)


def _slot(folder: str, epoch: int) -> str:
    return f"{folder.rstrip('/')}/slot={epoch % _SLOTS}"
