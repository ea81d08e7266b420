"""Many small folders of bronze and of the ledger → few large ones, and an end of what is too old or must be erased.

Every record that is kept stays in bronze once at every moment, and every row in the ledger.
"""

from datetime import UTC, datetime
from itertools import groupby

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer_spark.catalog import WRITING, BatchFolder, Catalog, Turn, effective, worth_folding
from txlayer_spark.events import hashed, held_on_doubt
from txlayer_spark.schemas import TopicKind
from txlayer_spark.sessions import done_again
from txlayer_spark.shelf import Shelf

FOLDERS_MIN = 20  # fewer are left as they are: a folder of each run costs a reader nothing


def compact(spark: SparkSession, root: str, *, folders_min: int = FOLDERS_MIN) -> list[BatchFolder]:
    """Fold each reader's folders into one when there are `folders_min` or more; the folders that were written.

    A first folder that is larger than all later ones together stays as it is: so the cost is that of what is new, and a record
    is written anew a few times in all.

    The folded ones are removed by the next run: a job that reads them now goes on. May be killed and called again;
    one at a time.
    """
    catalog = Catalog(spark, root)
    begun, state = catalog.folders(), catalog.state()
    counting = catalog.cut(state)
    # What is behind the cut is left as it is: a reader of the cut would else miss what was folded into it.
    ended = {r.follows for r in state.readers}
    for folder in set(begun) - set(counting):
        is_covered = any(other.covers(folder) for other in counting)
        if is_covered or folder.reader in ended:
            catalog.remove(folder)
    written = []
    for _, each in groupby(counting, key=lambda folder: folder.reader):
        folders = list(each)
        if len(folders) >= folders_min:
            folders = worth_folding({folder: catalog.size_of(folder) for folder in folders})
        if len(folders) < folders_min:
            continue
        whole = catalog.begin(BatchFolder(folders[0].reader, folders[0].first, folders[-1].last))
        _write(catalog, whole, catalog.records(folders))
        written.append(whole)
    return written


def _write(catalog: Catalog, folder: BatchFolder, rows: DataFrame) -> None:
    # One file for each kind and day; files of more than a few GB would be split by size, not by hand.
    spread = rows.drop("folder").repartition("kind", "day")
    writer = spread.write.mode("append").options(**WRITING).partitionBy("kind", "day")
    writer.parquet(catalog.path_of(folder))


def erase(spark: SparkSession, root: str, key: str) -> int:
    """Put hashes in place of the content of all messages with that key; how many records.

    The verdicts stay. If it is killed, call it again. A run of bronze that goes on elsewhere ends. What was erased is gone from
    the files when this ends.
    """
    catalog, count = Catalog(spark, root), 0
    turn = Turn(catalog.folder, "bronze")
    turn.begin()
    # What a killed job left holds content, too; of a batch that is not noted, it is written again.
    catalog.remove_incomplete()
    complete = catalog.complete()
    counting = effective(complete)
    for folder in set(complete) - set(counting):
        catalog.remove(folder)
    held_key, _ = held_on_doubt()
    is_meant = F.coalesce(
        F.when(F.col("kind") == TopicKind.DOUBT.value, held_key).otherwise(F.col("key")) == F.lit(key.encode()),
        F.lit(False),
    )
    for folder in counting:
        rows = catalog.records([folder])
        found = rows.where(is_meant).count()
        if not found:
            continue
        erased = hashed(rows.where(is_meant)).withColumn(
            "key", F.when(F.col("kind") == TopicKind.DOUBT.value, F.col("key"))
        )
        later = catalog.begin(folder)
        _write(catalog, later, rows.where(~is_meant).unionByName(erased))
        turn.go_on()
        catalog.remove(folder)
        count += found
    return count


@done_again
def compact_ledger(spark: SparkSession, root: str, *, keep_ms: int | None = None, runs_min: int = FOLDERS_MIN) -> int:
    """Fold the settled rows of all runs but the last when `runs_min` or more are new; the run up to which they are folded.

    A large fold before stays as it is while less is new. With `keep_ms` all are folded at once, but for rows of transactions of which nothing was seen for so long before the last
    run. May be killed and called again; one at a time. A run of the ledger, or a report, may go on beside it.
    """
    shelf = Shelf(spark, root)
    last = shelf.last()
    if not last.number:
        return 0
    if keep_ms is None:
        return shelf.fold(runs_min=runs_min)
    return shelf.fold(kept_from_ms=last.cut_ms - keep_ms)


def expire(spark: SparkSession, root: str, *, keep_ms: int) -> int:
    """End the days of bronze that lie as a whole more than `keep_ms` before its cut; how many folders of a day were ended.

    If it is killed, call it again; a ledger that runs before that says what it said.
    """
    catalog = Catalog(spark, root)
    state = catalog.state()
    if state.cut_ms is None:
        return 0
    first = datetime.fromtimestamp((state.cut_ms - keep_ms) / 1000, UTC).date().isoformat()
    return catalog.end_days(catalog.up_to_cut(state), before=first)
