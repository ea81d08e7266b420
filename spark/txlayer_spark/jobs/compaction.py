"""Many small folders of bronze → few large ones; every record stays in bronze once at every moment."""

from __future__ import annotations

from itertools import groupby

from pyspark.sql import SparkSession

from txlayer_spark.catalog import BatchFolder, Catalog, effective

FOLDERS_MIN = 20
"""Fewer are left as they are: a folder of each run costs a reader nothing."""


def compact(spark: SparkSession, root: str, *, folders_min: int = FOLDERS_MIN) -> list[BatchFolder]:
    """Fold each reader's folders into one when there are `folders_min` or more; the folders that were written.

    The folded ones are removed by the next run: a job that reads them now goes on. May be killed and called again;
    one at a time.
    """
    catalog = Catalog(spark, root)
    complete = catalog.complete()
    counting = effective(complete)
    for covered in set(complete) - set(counting):
        catalog.remove(covered)
    written = []
    for _, each in groupby(counting, key=lambda folder: folder.reader):
        folders = list(each)
        if len(folders) < folders_min:
            continue
        whole = BatchFolder(folders[0].reader, folders[0].first, folders[-1].last)
        rows = catalog.records(folders).drop("folder")
        # One file for each kind and day; files of more than a few GB would be split by size, not by hand.
        rows = rows.repartition("kind", "day")
        rows.write.mode("overwrite").partitionBy("kind", "day").parquet(catalog.path_of(whole))
        written.append(whole)
    return written
