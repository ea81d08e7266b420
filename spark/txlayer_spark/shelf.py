"""Where the ledger keeps what: runs, their rows, what they carry on. Never: a column.

::

    <root>/v1/runs/000000000003.json                          the run is complete; the newest one counts
    <root>/v1/rows/run=3/is_settled=1/…, is_settled=0/…   settled rows of every run count, others of the newest alone
    <root>/v1/carried/run=3/, order/run=3/                    cores that are not settled; how far each ordering key came
    <root>/v1/core/run=4/, …                                  what a run puts down on its way (`WORK`)
    <root>/v1/revised/run=3/                                  ids whose settled rows of earlier runs no longer count

What a killed run left has the number of the next one, which writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructType

from txlayer.errors import UsageError
from txlayer_spark.folders import Folder
from txlayer_spark.schemas import SCHEMA_VERSION

WORK = ("core", "few", "exact", "messages", "late")
"""What a run puts down on its way; ended with it."""
_PASSING = {
    "compression": "snappy",
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
}
"""Read a few times as a whole and ended soon: what packs it better costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Run:
    """One complete run of the ledger."""

    number: int = 0
    cut_ms: int = 0
    batches: Mapping[str, int] = field(default_factory=dict)
    """{reader: the last batch of bronze that is in the ledger}."""
    first_offsets: Mapping[str, int] = field(default_factory=dict)
    """{half partition: first offset that was there}."""
    has_carried: bool = False
    has_order: bool = False
    revised: tuple[int, ...] = ()
    """Runs that revised rows of earlier ones."""
    columns: Mapping[str, Any] | None = None
    """Those of its rows; None in a ledger of a release that did not note them."""


class Shelf:
    """The ledger under one root."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Nothing is read or written yet."""
        self._spark = spark
        self.folder = Folder(spark, f"{root.rstrip('/')}/v{SCHEMA_VERSION}")

    def last(self) -> Run:
        """The newest complete run; number 0 when there is none."""
        names = [n for n in self.folder.names("runs") if n.endswith(".json") and n[0] != "_"]
        if not names:
            return Run()
        found: dict[str, Any] = self.folder.read_json("runs", names[-1])
        return Run(**{**found, "revised": tuple(found["revised"])})

    def store(self, run: Run) -> None:
        """Make a run count, and end what only the one before the last carried."""
        self.folder.write_json(asdict(run), "runs", f"{run.number:012d}.json")
        for kind in ("carried", "order"):
            self.folder.remove(kind, f"run={run.number - 2}")
        for kind in WORK:
            self.folder.remove(kind)

    def path(self, kind: str, run: int) -> str:
        """Where a run writes something."""
        return self.folder.at(kind, f"run={run}")

    def put(self, rows: DataFrame, kind: str, run: int) -> DataFrame:
        """The rows out of a file that they are written to: what follows is planned from there, not from the beginning."""
        rows.write.mode("overwrite").options(**_PASSING).parquet(self.path(kind, run))
        return self._spark.read.parquet(self.path(kind, run))

    def has_open(self, run: int) -> bool:
        """Whether a run wrote rows that are not settled."""
        return self.folder.has("rows", f"run={run}", "is_settled=0")

    def put_rows(
        self, rows: DataFrame, run: int, *, options: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Write the rows of the ledger, with `is_settled`, as these options of Parquet say; their columns.

        They count when the run is stored.
        """
        writer = rows.write.mode("overwrite").options(**options).partitionBy("is_settled")
        writer.parquet(self.path("rows", run))
        columns: dict[str, Any] = rows.schema.jsonValue()
        return columns

    def carried(self, run: Run) -> DataFrame | None:
        """The cores that a run carried on; None without any."""
        return (
            self._spark.read.parquet(self.path("carried", run.number)) if run.has_carried else None
        )

    def order(self, run: Run) -> DataFrame | None:
        """How far each ordering key had come; None before the first one."""
        return self._spark.read.parquet(self.path("order", run.number)) if run.has_order else None

    def rows(self, run: Run) -> DataFrame:
        """The ledger as of a run: one row per transaction.

        Raises:
            UsageError: there is no ledger yet.
        """
        if not run.number:
            raise UsageError(f"no ledger in {self.folder.path}: run txlayer-spark ledger first")
        rows = self._reader(run).parquet(self.folder.at("rows"))
        rows = rows.where(
            (F.col("run") == run.number)
            | ((F.col("is_settled") == 1) & (F.col("run") < run.number))
        )
        if not run.revised:
            return rows
        revised = self._spark.read.option("basePath", self.folder.at("revised")).parquet(
            *(self.path("revised", number) for number in run.revised)
        )
        newest = revised.groupBy("txn_id").agg(F.max("run").alias("_revised"))
        joined = rows.join(F.broadcast(newest), "txn_id", "left")
        return joined.where(F.isnull("_revised") | (F.col("run") >= F.col("_revised"))).drop(
            "_revised"
        )

    def _reader(self, run: Run) -> DataFrameReader:
        if run.columns is None:
            return self._spark.read
        # Of a ledger without a transaction there is no file that could tell its columns.
        columns = StructType.fromJson(dict(run.columns))
        return self._spark.read.schema(columns.add("run", IntegerType()))
