"""Bronze and ledger → the tables `bronze`, `ledger` and `events` as Parquet, Delta or Iceberg, only new rows: flat rows for
people, by day, and views on them. docs/howto/spark-tables.md has every column of the three.

A note under `<data>/tables` says what was written; after a kill, the next job writes the same run again and replaces its rows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import reduce
from typing import Any
from zlib import crc32

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txlayer.core.codec import KEY_HEADER
from txlayer.core.dead_letters import ReplayKind
from txlayer.core.messages import CheckKind
from txlayer.errors import UsageError
from txlayer_spark import lines
from txlayer_spark.catalog import (
    COMPLETE,
    FOLDERS_MIN,
    SMALL_BYTES,
    WRITING,
    BatchFolder,
    Catalog,
    Folder,
    Turn,
    worth_folding,
)
from txlayer_spark.parse import HEADERS, TopicKind, parse
from txlayer_spark.sessions import done_again, our_files
from txlayer_spark.shelf import Shelf

_TEXT, _NUMBER, _PLACE = StringType(), LongType(), IntegerType()
_RUN = "the run of `txlayer-spark tables` that wrote the row; of Parquet, the last of those that `compact` folded"

EVENTS: Mapping[str, tuple[DataType, str]] = {
    "at": (TimestampType(), "when Kafka stored the record"),
    "event": (_TEXT, "what happened; see below"),
    "topic": (_TEXT, "where the record is"),
    "partition": (_PLACE, "its partition"),
    "offset": (_NUMBER, "its offset"),
    "line": (_PLACE, "its line, of a record in op; else 0"),
    "txn_id": (_TEXT, "the transaction"),
    "nonce": (_TEXT, "the attempt of that id, where the record says it"),
    "producer_group": (_TEXT, "the group that prepared or decided"),
    "real_topic": (_TEXT, "the topic that the message is for, or was on"),
    "index": (_NUMBER, "the number of the message in its transaction, from 0"),
    "count": (_NUMBER, "how many messages the transaction has"),
    "source": (_TEXT, "who decided: producer, check, operator, policy"),
    "number": (_NUMBER, "the number of the check-back, of the consumer's attempts, or of the lease's generation"),
    "state": (_TEXT, "the state on doubt, or the result of a request"),
    "reason": (_TEXT, "the reason that was given"),
    "consumer_group": (_TEXT, "the group that consumed"),
    "origin_partition": (_NUMBER, "the partition in half, or of the message that was given up, or of the lease"),
    "origin_offset": (_NUMBER, "the offset there"),
    "holder": (_TEXT, "who holds the lease"),
    "token": (_NUMBER, "its fencing token"),
    "error_type": (_TEXT, "the class of the handler's error"),
    "day": (DateType(), "the day of the record in UTC, by which the table is divided"),
    "run": (_NUMBER, _RUN),
}
"""Columns of `events`: their types and meaning. None of them holds what a user sent."""

BRONZE: Mapping[str, tuple[DataType, str]] = {  # columns of `bronze`
    "topic": (_TEXT, "the topic"),
    "partition": (_PLACE, "its partition"),
    "offset": (_NUMBER, "the offset"),
    "timestamp": (TimestampType(), "the record's time"),
    "kind": (_TEXT, "half, op, doubt, check, locks, dlq, replay; or forwarded, for real topics"),
    "key": (BinaryType(), "the record's key; null where bronze keeps hashes"),
    "value": (BinaryType(), "its value, likewise"),
    "headers": (HEADERS, "its headers, txlayer's own among them; none of a check-back"),
    "day": (DateType(), "the day of the record in UTC, by which the table is divided"),
    "run": (_NUMBER, _RUN),
}


def bronze_rows(records: DataFrame, run: int) -> DataFrame:
    return _with(BRONZE, records.withColumn("run", F.lit(run)))


def event_rows(records: DataFrame, run: int) -> DataFrame:
    """Records of bronze → `EVENTS`: one row for each record, and for each line of op, that says something."""
    parts = [
        _with(EVENTS, _event(records.where(F.col("kind") == kind.value), kind).withColumn("run", F.lit(run)))
        for kind in TopicKind
    ]
    return reduce(DataFrame.unionByName, parts)


def ledger_rows(ledger: DataFrame, run: int) -> DataFrame:
    """Rows of `read_ledger` with `day`: that of the first time that is known of a transaction."""
    times = ("stored_at", "born_at", "decided_at", "forwarded_at", "first_checked_at")
    day = lines.day_of(F.coalesce(*times, F.timestamp_seconds(F.lit(0))))
    return ledger.withColumns({"day": day, "run": F.lit(run).cast("bigint")})


def _with(columns: Mapping[str, tuple[DataType, str]], rows: DataFrame) -> DataFrame:
    there = set(rows.columns)
    return rows.select(*((F.col(n) if n in there else F.lit(None)).cast(t).alias(n) for n, (t, _) in columns.items()))


_CHECK_EVENTS = {
    CheckKind.QUESTION: "asked",
    CheckKind.LIMIT: "limit",
    CheckKind.PARKED: "parked",
    CheckKind.REFUSED: "refused",
}


def _event(records: DataFrame, kind: TopicKind) -> DataFrame:
    """Records of topics of one kind → columns of `EVENTS`, by the names that they have there."""
    rows = parse(records, kind, beside=("day",))
    is_good = F.isnull("error")
    renamed: Mapping[str, Column] = {}
    match kind:
        case TopicKind.HALF:
            event: Column = F.lit("stored")
        case TopicKind.OP:
            event = F.when(F.col("is_abandon"), "abandon").otherwise(F.lower("resolution"))
            renamed = {
                "number": F.col("check_number"),
                "origin_partition": F.col("partition"),
                "origin_offset": F.col("last_offset"),
            }
        case TopicKind.CHECK:
            event = _word(F.col("kind"), _CHECK_EVENTS)
            renamed = {
                "reason": F.col("text"),
                "origin_partition": F.col("half_partition"),
                "origin_offset": F.col("last_offset"),
            }
        case TopicKind.DOUBT:
            is_summary = F.col("record") == "summary"
            event = F.when(is_summary & F.col("is_tombstone"), "doubt_ended").when(is_summary, "in_doubt")
            event = event.when((F.col("record") == "kept_aside") & ~F.col("is_tombstone"), "kept_aside")
            # A content says what half says.
            is_good = is_good & F.isnotnull(event)
            summary = F.col("summary")
            renamed = {
                "producer_group": summary["producer_group"],
                "state": summary["state"],
                "reason": F.coalesce(summary["reason"], F.col("kept_aside.reason")),
                "count": summary["count"],
                "number": summary["checked_count"],
                "origin_partition": F.coalesce(F.col("kept_aside.origin_partition"), F.col("partition")),
                "origin_offset": F.coalesce(F.col("kept_aside.origin_offset"), summary["last_offset"]),
            }
        case TopicKind.FORWARDED:
            event = F.lit("forwarded")
            is_good = is_good & F.isnotnull("txn_id")
            renamed = {
                "real_topic": F.col("topic"),
                "origin_partition": F.col("half_partition"),
                "origin_offset": F.col("half_offset"),
            }
        case TopicKind.LOCKS:
            event = F.lower("kind")
            renamed = {"number": F.col("generation"), "origin_partition": F.col("real_partition")}
        case TopicKind.DLQ:
            event = F.lit("dead_letter")
            renamed = {"number": F.col("attempt_count"), "real_topic": F.col("origin_topic")}
        case TopicKind.REPLAY:
            event = F.when(F.col("kind") == ReplayKind.RESULT.name, "replayed").otherwise(
                F.concat(F.lit("request_"), F.lower("kind"))
            )
            renamed = {"state": F.col("outcome"), "reason": F.col("text"), "origin_offset": F.col("dead_letter_offset")}
    rows = rows.withColumn("_event", F.when(F.isnotnull("error"), "malformed").otherwise(event)).where(
        is_good | F.isnotnull("error")
    )
    return rows.withColumns({**renamed, "at": F.col("timestamp"), "event": F.col("_event")})


def _word(letter: Column, words: Mapping[CheckKind, str]) -> Column:
    found = F.lit(None)
    for kind, word in words.items():
        found = F.when(letter == kind.value, word).otherwise(found)
    return found


VIEWS: Mapping[str, str] = {  # views on the three tables, in SQL that Spark, DuckDB and Trino know
    "transactions": "SELECT * FROM ledger",
    # Of a topic that was made anew, two records are at one offset. The runs may differ: each table is folded by itself.
    "messages": """
        SELECT e.txn_id, e.topic, e.partition, e.offset, e.at, e.`index`, e.count, b.key, b.value, e.day
        FROM events e JOIN bronze b ON b.topic = e.topic AND b.partition = e.partition AND b.offset = e.offset
             AND b.timestamp = e.at
        WHERE e.event = 'forwarded' AND b.kind = 'forwarded'""",
    "checks": """
        SELECT at, event, txn_id, nonce, producer_group, number, reason, origin_partition AS half_partition, day
        FROM events WHERE event IN ('asked', 'refused', 'limit')""",
    "resolutions": """
        SELECT at, event AS resolution, txn_id, nonce, producer_group, source, number AS check_number, reason, partition,
               offset, line, day
        FROM events WHERE event IN ('commit', 'rollback', 'unknown', 'abandon')""",
    "attempts": """
        SELECT txn_id, nonce, min(producer_group) AS producer_group, min(at) AS first_at, max(at) AS last_at,
               count(*) AS messages_stored, max(count) AS message_count, min(day) AS day
        FROM events WHERE event = 'stored' GROUP BY txn_id, nonce""",
    "dead_letters": """
        SELECT at, consumer_group, real_topic, txn_id, number AS attempt_count, reason, error_type, topic, partition, offset, day
        FROM events WHERE event = 'dead_letter'""",
    "leases": """
        SELECT at, event, consumer_group, real_topic, origin_partition AS real_partition, number AS generation, holder, token,
               reason, day
        FROM events WHERE event IN ('claim', 'renewal', 'release')""",
}


def views_over(tables: Sequence[str], *, prefix: str = "") -> Mapping[str, str]:
    """{view: SQL} where tables and views have a prefix (`lake.audit.`)."""
    named = re.compile(rf"(FROM|JOIN) ({'|'.join(tables)})\b")
    return {f"{prefix}{name}": " ".join(named.sub(rf"\1 {prefix}\2", sql).split()) for name, sql in VIEWS.items()}


# --- writing them -----------------------------------------------------------------------------------------------------

NAMES = ("bronze", "ledger", "events")
_PARTS = {"bronze": ("day", "run"), "events": ("day", "run"), "ledger": ("day",)}
"""What Parquet's folders are divided by: a run, or a day of the ledger, takes the place of what is there of it."""

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_NEW = "_new"  # where Parquet is written before it takes the place of what is there: Spark reads no such folder
_CLEARED = "cleared.json"
"""A note: the old files are removed, or moved elsewhere. Files that are there now are new ones."""
_FOLDED = "_folded"
"""Where runs of a day are folded into one before that takes their place: `_folded/day=2026-01-31/7-30/run=30`."""
_NOTES_KEPT = 2  # of runs: the newest, and the one before it for a job that reads now
_FILE_BYTES = 128 * 1024 * 1024  # what compaction makes of many small files
_SCHEMAS = {
    name: StructType([StructField(column, kind) for column, (kind, _) in columns.items()])
    for name, columns in (("bronze", BRONZE), ("events", EVENTS))
}


class Format(Enum):
    """How tables are kept."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """Where from and where to."""

    data: str  # the folder of bronze and ledger
    format: Format = Format.PARQUET
    into: str  # a folder; of Delta and Iceberg also a schema of a catalog, such as `lake.audit`


class Table:
    """One table, of one format."""

    def __init__(self, spark: SparkSession, settings: TableSettings, name: str) -> None:
        self._spark, self._format, self._table = spark, settings.format, name
        is_folder = "/" in settings.into or self._format is Format.PARQUET  # a schema has no slash
        self.path = f"{settings.into.rstrip('/')}/{name}" if is_folder else ""
        if self._format is Format.DELTA and self.path and not _ABSOLUTE.match(self.path):
            # As the name of a table, Delta takes no path that is relative.
            self.path = Folder(spark, self.path).absolute_path
        # Only this catalog knows folders, and the session's own may be another one.
        self.name = f"spark_catalog.{self._format.value}.`{self.path}`" if self.path else f"{settings.into}.{name}"
        if self.path and self._format is Format.ICEBERG:
            # Iceberg needs a catalog: one of files, for this folder.
            catalog = f"txlayer_{crc32(settings.into.encode()):08x}"
            spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
            spark.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
            spark.conf.set(f"spark.sql.catalog.{catalog}.warehouse", settings.into)
            self.name = f"{catalog}.tables.{name}"

    def exists(self) -> bool:
        match self._format:
            case Format.PARQUET:
                return any(name.startswith("day=") for name in Folder(self._spark, self.path).names())
            case Format.DELTA if self.path:
                # The folder alone is there before the first rows are: a job may have been killed while it wrote these.
                return any(name[0].isdigit() for name in Folder(self._spark, self.path).names("_delta_log"))
        return self._spark.catalog.tableExists(self.name)

    def read(self) -> DataFrame:
        if self._format is not Format.PARQUET:
            return self._spark.table(self.name)
        read = our_files(self._spark)
        # A run that is the name of a folder would be of a type that Spark takes from the names.
        read = read.schema(_SCHEMAS[self._table]) if self._table in _SCHEMAS else read.option("mergeSchema", "true")
        return read.parquet(self.path)

    def finish(self) -> None:
        """Finish the replacement that a killed run began; delete what it wrote only in part."""
        if self._format is not Format.PARQUET:
            return
        folder = Folder(self._spark, self.path)
        if folder.has(_NEW, COMPLETE):
            places: list[tuple[str, ...]] = [(name,) for name in folder.names(_NEW) if name.startswith("day=")]
            if _PARTS[self._table] != ("day",):
                places = [(*day, run) for day in places for run in folder.names(_NEW, *day)]
            for place in places:
                cleared = (_NEW, f"_{'-'.join(place)}-{_CLEARED}")
                if not folder.has(*cleared):
                    folder.remove(*place)
                    folder.write_json({}, *cleared)
                folder.rename((_NEW, *place), place)
        folder.remove(_NEW)
        for day in folder.names(_FOLDED):
            for span in folder.names(_FOLDED, day) if day.startswith("day=") else []:
                _put_folded(folder, day, span)
        folder.remove(_FOLDED)

    def put(self, rows: DataFrame, replaced: Column, *, days: Sequence[date] = ()) -> None:
        """Write rows in place of those that `replaced` matches; `days`: the days whose rows are replaced, if a row may leave its day."""
        if self._format is Format.PARQUET:
            folder = Folder(self._spark, self.path)
            rows.write.mode("overwrite").options(**WRITING).partitionBy(*_PARTS[self._table]).parquet(folder.at(_NEW))
            left = {f"day={day}" for day in days} - set(folder.names(_NEW))
            self.finish()
            for name in left:
                folder.remove(name)
        elif self.exists():
            there = set(self.read().columns)
            for column in rows.schema:
                # A table of an earlier release lacks some.
                if column.name not in there:
                    self._spark.sql(
                        f"ALTER TABLE {self.name} ADD COLUMNS (`{column.name}` {column.dataType.simpleString()})"
                    )
            rows.writeTo(self.name).overwrite(replaced)
        else:
            self._create(rows)

    def _create(self, rows: DataFrame) -> None:
        if self.path and self._format is Format.DELTA:
            rows.write.format("delta").partitionBy("day").save(self.path)
            return
        schema = self.name.rpartition(".")[0]
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {schema}")
        rows.writeTo(self.name).using(self._format.value).partitionedBy(F.col("day")).create()

    def compact(self, *, up_to: int, runs_min: int) -> int:
        """Fold many small files into few; how many folders of a run (of Delta and Iceberg, files) were folded.

        What is large, and what later runs than `up_to` wrote, stays as it is. Fewer than `runs_min` of a day do, too; Delta
        folds any two.
        """
        match self._format:
            case Format.PARQUET:
                folder = Folder(self._spark, self.path)
                is_by_run = _PARTS[self._table] != ("day",)
                days = [name for name in folder.names() if name.startswith("day=")] if is_by_run else []
                return sum(self._fold_runs(folder, day, up_to, runs_min) for day in days)
            case Format.DELTA:
                self._spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(SMALL_BYTES))
                found: Any = self._spark.sql(f"OPTIMIZE {self.name}").head()
                return int(found.metrics.numFilesRemoved)
        catalog, _, table = self.name.partition(".")
        options = f"map('min-input-files', '{runs_min}', 'min-file-size-bytes', '{SMALL_BYTES}')"
        # A file of two runs could not be replaced for one of them.
        given = f"table => '{table}', where => 'run <= {up_to}', options => {options}"
        found = self._spark.sql(f"CALL {catalog}.system.rewrite_data_files({given})").head()
        return int(found.rewritten_data_files_count)

    def _fold_runs(self, folder: Folder, day: str, up_to: int, runs_min: int) -> int:
        runs = sorted(int(name.removeprefix("run=")) for name in folder.names(day))
        runs = [run for run in runs if run <= up_to]
        if len(runs) < runs_min:
            return 0
        sizes = {run: folder.size(day, f"run={run}") for run in runs}
        runs = worth_folding(sizes)
        if len(runs) < runs_min:
            return 0
        read = our_files(self._spark).schema(_SCHEMAS[self._table]).option("basePath", self.path)
        rows = read.parquet(*(folder.at(day, f"run={run}") for run in runs)).drop("day", "run")
        few = rows.coalesce(1 + sum(sizes[run] for run in runs) // _FILE_BYTES)
        to = folder.at(_FOLDED, day, f"{runs[0]}-{runs[-1]}", f"run={runs[-1]}")
        few.write.mode("overwrite").options(**WRITING).parquet(to)
        self.finish()
        return len(runs)

    def expire(self, before: str) -> None:
        if self._format is not Format.PARQUET:
            self._spark.sql(f"DELETE FROM {self.name} WHERE day < DATE'{before}'")  # noqa: S608 - both are our own
            return
        folder = Folder(self._spark, self.path)
        for day in folder.names():
            if day.startswith("day=") and day.removeprefix("day=") < before:
                folder.remove(day)

    def blank(self, key: str, columns: Sequence[str]) -> int:
        """Make columns null in the rows with that key, also of what doubt holds; how many rows."""
        sought = f"X'{key.encode().hex()}'"
        held = f"exists(headers, each -> each.key = '{KEY_HEADER}' AND each.value = {sought})"
        is_meant_sql = f"key = {sought} OR (kind = '{TopicKind.DOUBT.value}' AND {held})"
        is_meant = F.coalesce(F.expr(is_meant_sql), F.lit(False))
        rows = self.read()
        found: list[Any] = rows.where(is_meant).groupBy("day", "run").agg(F.count("*").alias("n")).collect()
        if found and self._format is Format.PARQUET:
            places = [(F.col("day") == F.lit(row.day)) & (F.col("run") == row.run) for row in found]
            touched = rows.where(reduce(Column.__or__, places))
            blanked = {name: F.when(~is_meant, F.col(name)) for name in columns}
            self.put(touched.withColumns(blanked), is_meant)
        elif found:
            nulls = ", ".join(f"{name} = NULL" for name in columns)
            self._spark.sql(f"UPDATE {self.name} SET {nulls} WHERE {is_meant_sql}")  # noqa: S608 - a hexadecimal number
        return sum(row.n for row in found)


def _put_folded(folder: Folder, day: str, span: str) -> None:
    """Replace a day as a whole by the one with folded runs; the other runs of the day move into it."""
    first, last = map(int, span.split("-"))
    new, before, cleared = (_FOLDED, day, span), (_FOLDED, f"_{day}"), (_FOLDED, f"_{day}-{_CLEARED}")
    # Nothing is removed here: if two jobs do this at the same time, one ends.
    if not folder.has(*cleared):
        if not folder.has(*new, f"run={last}", COMPLETE):
            return
        if folder.has(day):
            folder.rename((day,), before)
        for run in folder.names(*before):
            if not first <= int(run.removeprefix("run=")) <= last:
                folder.rename((*before, run), (*new, run))
        folder.write_json({}, *cleared)
    if folder.has(*new):
        folder.rename(new, (day,))


@done_again
def update_tables(spark: SparkSession, settings: TableSettings) -> int:
    """Write the new rows of bronze and the ledger into the tables; returns the run's number.

    If it is killed, call it again: each row is written once.

    Raises:
        UsageError: there is no complete bronze or no ledger yet, or another run began meanwhile.
    """
    catalog, shelf = Catalog(spark, f"{settings.data}/bronze"), Shelf(spark, f"{settings.data}/ledger")
    folder = _notes(spark, settings)
    turn = Turn(folder, "the tables")
    turn.begin()
    tables = {name: Table(spark, settings, name) for name in NAMES}
    names = folder.notes("runs")
    bronze_id = catalog.bronze_id
    last: dict[str, Any] = {"number": 0, "batches": {}, "ledger": 0, "bronze": bronze_id}
    if names:
        last = folder.read_json("runs", names[-1])
    if last.get("bronze", bronze_id) != bronze_id or (not names and any(t.exists() for t in tables.values())):
        raise UsageError(
            f"{settings.into} holds tables of another bronze than {catalog.folder.path}, or was written under another name of "
            "that place: say that name, or name another place. Nothing was changed"
        )
    if not names:
        # Before anything is written: the tables of a first run that is killed are its own.
        folder.note(last, "runs", kept=_NOTES_KEPT)
    for table in tables.values():
        table.finish()
    number = int(last["number"]) + 1
    folders = catalog.cut(catalog.state())
    records = _new(catalog, folders, last["batches"])
    run = shelf.last()
    ledger = shelf.rows(run)
    is_run = F.col("run") == number
    if records is not None:
        tables["bronze"].put(bronze_rows(records, number), is_run)
        tables["events"].put(event_rows(records, number), is_run)
    written = int(last["ledger"]) if last.get("ledger_id", "") == run.ledger_id else 0
    is_order_judged = run.has_ahead or last.get("ahead", True)
    _put_ledger(tables["ledger"], ledger, written, number, is_order_judged=is_order_judged)
    turn.go_on()
    batches = {str(f.reader): max(o.last for o in folders if o.reader == f.reader) for f in folders}
    done = {"number": number, "batches": batches, "ledger": run.number, "ledger_id": run.ledger_id}
    done |= {"ahead": run.has_ahead, "bronze": bronze_id}
    folder.note(done, "runs", kept=_NOTES_KEPT)
    return number


def _notes(spark: SparkSession, settings: TableSettings) -> Folder:
    into = settings.into.rstrip("/")
    return Folder(spark, f"{settings.data}/tables/{settings.format.value}-{crc32(into.encode()):08x}")


def _new(catalog: Catalog, folders: Sequence[BatchFolder], written: dict[str, int]) -> DataFrame | None:
    """The records of batches that were not written yet; None without any."""
    newer = [f for f in folders if f.last > written.get(str(f.reader), -1)]
    return catalog.records(newer, behind=written) if newer else None


def _put_ledger(table: Table, rows: DataFrame, written: int, run: int, *, is_order_judged: bool) -> None:
    """Write the days with a row that is new, changed, or may have ended. If an order is judged, a settled row may change, too."""
    judged = ledger_rows(rows.withColumnRenamed("run", "_judged"), run)
    if table.exists():
        new = judged.where((F.col("_judged") > written) | (F.col("is_settled") == 0))
        before = table.read()
        touched = before.where(~F.col("is_settled")).select("day").union(new.select("day"))
        touched = touched.union(before.join(new.select("txn_id"), "txn_id", "left_semi").select("day"))
        if is_order_judged:
            known = before.select("txn_id", "nonce", F.col("verdict").alias("_before"))
            changed = judged.join(known, ["txn_id", "nonce"]).where(F.col("verdict") != F.col("_before"))
            touched = touched.union(changed.select("day"))
        days = [row.day for row in touched.distinct().collect()]
        if not days:
            return
        is_touched = F.col("day").isin(*days)
        judged = judged.where(is_touched)
    else:
        days, is_touched = [], F.lit(True)
    judged = judged.withColumn("is_settled", F.col("is_settled") == 1).drop("_judged")
    table.put(judged, is_touched, days=days)


def compact_tables(spark: SparkSession, settings: TableSettings, *, runs_min: int = FOLDERS_MIN) -> int:
    """Fold the tables' rows of many runs into few files; returns how many folders of a run (of Delta and Iceberg, files) were folded.

    The cost depends on the new rows: large folders stay as they are. If it is killed, call it or another command again: each row
    is there once.
    """
    folder = _notes(spark, settings)
    names = folder.notes("runs")
    if not names:
        return 0
    turn = Turn(folder, "the tables")
    turn.begin()
    # What a killed run wrote is written again by a run of the same number.
    last, count = int(folder.read_json("runs", names[-1])["number"]), 0
    for name in NAMES:
        table = Table(spark, settings, name)
        turn.go_on()
        table.finish()
        if table.exists():
            count += table.compact(up_to=last, runs_min=runs_min)
    return count


def expire_tables(spark: SparkSession, settings: TableSettings, *, keep_ms: int) -> str:
    """Delete the days that are completely more than `keep_ms` before bronze's cut; returns the first day that is kept.

    Not by this machine's clock: if that is ahead, days would be gone that bronze keeps, and no run writes them again.
    """
    first = Catalog(spark, f"{settings.data}/bronze").state().first_day(keep_ms=keep_ms)
    for name in NAMES:
        table = Table(spark, settings, name)
        table.finish()
        if first and table.exists():
            table.expire(first)
    return first


def erase_key(spark: SparkSession, settings: TableSettings, key: str) -> int:
    """Make key, value and headers null in the rows of `bronze` with that key; returns how many rows."""
    table = Table(spark, settings, "bronze")
    table.finish()
    return table.blank(key, ("key", "value", "headers")) if table.exists() else 0


def open_tables(spark: SparkSession, into: str, *, format: str = Format.PARQUET.value) -> None:  # noqa: A002 - as Spark calls it
    """Register the tables in a folder, and the views on them, for `spark.sql`: `bronze`, `ledger`, `events`, `transactions`, …

    Raises:
        UsageError: there is no table yet, or this session can read none.
    """
    settings = TableSettings(data="", format=Format(format), into=into)
    for name in NAMES:
        try:
            rows = Table(spark, settings, name).read()
            _ = rows.schema  # over Spark Connect only this asks the server
        except AnalysisException as exc:
            why = str(exc).partition("\n")[0]
            raise UsageError(f"no tables in {into} that can be read: run txlayer-spark tables first. {why}") from exc
        rows.createOrReplaceTempView(name)
    for name, sql in views_over(NAMES).items():
        spark.sql(sql).createOrReplaceTempView(name)
