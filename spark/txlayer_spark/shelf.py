"""Where the ledger keeps its rows and runs, and how rows are stored and shown.

::

    <root>/v8/runs/000000000003.json                      the run is complete; the newest one counts
    <root>/v8/rows/run=3/is_settled=1/…, is_settled=0/…   settled rows of every run count, others of the newest alone
    <root>/v8/rows/run=3/is_settled=2/…                   no rows: cores that the run folded again from every record
    <root>/v8/folded/run=2/, run=3-6/                     settled rows of the runs up to 2, and of 3 to 6, in few files; the widest count
    <root>/v8/revisions/run=3-6/                          what `revised` held of the runs 3 to 6: it may be of rows that were folded before
    <root>/v8/order/run=3/                                how far each ordering key came
    <root>/v8/few/run=4/, …                               what a run puts down on its way (`WORK`)
    <root>/v8/rows/run=3/is_settled=3/…                   no rows: cores of op lines and checks whose half records may come yet
    <root>/v8/orphans/run=3/                              ids that the run settled without a half record
    <root>/v8/ahead/run=3/                                what others of its ordering key may wait for
    <root>/v8/revised/run=3/                              attempts that the run folded from every record: their other rows no longer count
    <root>/v8/begun/000000000003.json                     the run that began last
    <root>/v8/late/run=3/                                 attempts that became visible out of order, as this run found (`LATE`)

No two runs have the same number. What a killed run wrote does not count, nor what a run writes after a later one began.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructType

from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.codec import PARTITION_MAX
from txlayer.core.messages import OrderMode, Resolution
from txlayer.errors import UsageError
from txlayer_spark import ledger, lines
from txlayer_spark.catalog import COMPLETE, WRITING, Folder, Turn, known, worth_folding
from txlayer_spark.events import (
    LINE_BITS,
    OFFSET_BITS,
    PARTITION_BITS,
    REASON_BITS,
    REASONS,
    SOURCE_BITS,
    SOURCES,
    Names,
)
from txlayer_spark.sessions import our_files
from txlayer_spark.verdicts import with_late


class State(IntEnum):
    """`is_settled` of a stored row."""

    OPEN = 0  #: the next run judges it again
    SETTLED = 1  #: only a further record of the transaction changes it
    ASKED = (
        2  #: no row, but a core that cannot tell what became of its transaction: every record of it was folded again
    )
    ALONE = 3  #: no row, but a core of what came without a half record, which may come yet


_MERGED: Mapping[str, tuple[str, ...]] = {  # what several records of a transaction say: the first of them that is there
    "producer": ("h_group", "d_group"),
    "topics": ("h_topics", "v_topics"),
    "count": ("h_count", "d_count", "v_count"),
    "half_partition": ("h_partition", "d_partition", "v_partition", "o_partition"),
}
_OF_HALF = ("nonce_max", "born_ms", "h_last", "h_last_ms", "h_key", "h_options")
_PLAIN = (*_OF_HALF, "o_commit", "o_commit_ms", "v_n", "v_place", "v_last_ms")
_MORE: Mapping[str, str | None] = {
    "h_first": "h_last",
    "h_first_ms": "h_last_ms",
    "v_first": "h_last",
    "v_first_ms": "v_last_ms",
    "v_topics": "topics",
    "v_distinct": "v_n",
    **dict.fromkeys(("o_rollback", "o_rollback_ms", "o_abandon", "o_abandon_ms", "o_unknown")),
    **dict.fromkeys(("c_asked", "c_first_ms", "c_last_ms", "c_refused", "d_last", "d_parked_ms", "unsure")),
}
"""{column of `more`: the other column that it equals in nearly every transaction (None: it is null there)}. `more` is null
if all of them are so: one message, decided by one commit, visible, never asked about."""


def to_stored(judged: DataFrame, *, keeps_core: bool, is_unknown: Column | None = None) -> DataFrame:
    """Cores with the columns of `with_distinct`, `verdict` and `is_settled` → rows as they are stored.

    With `keeps_core`, unsettled rows also hold their core, which the next run carries on. Rows without a core are
    exact, folded from every record. `is_unknown`: whether op may lack lines of one of these.
    """
    merged = judged.withColumns({name: F.coalesce(*columns) for name, columns in _MERGED.items()})
    # 1: what is missing may have been visible and be gone; 2: op may lack lines of it.
    is_unsure = (F.col("lost_n") == 0) & (F.col("gone_n") + F.col("hidden_gone_n") > 0)
    unsure = F.when(F.lit(False) if is_unknown is None else is_unknown, 2).when(is_unsure, 1)
    merged = merged.withColumn("unsure", unsure.cast("bigint"))
    # An attempt without its first half record comes before all that are there. The place of an unplaced one is not known.
    is_before = (F.shiftright("h_begin", OFFSET_BITS) > 0) | F.col("is_unplaced")
    begin = F.when(is_before, -1).otherwise(F.col("h_first"))
    merged = merged.withColumn("core", F.struct(*ledger.core()))
    merged = merged.withColumns({"h_first": begin, "h_options": ledger.stored_options()})
    is_usual = reduce(Column.__and__, (_is_usual(name, usual) for name, usual in _MORE.items()))
    is_kept = F.col("is_settled") != int(State.SETTLED) if keeps_core else F.lit(False)
    return merged.select(
        "txn_id",
        "verdict",
        *_MERGED,
        *_PLAIN,
        F.when(~is_usual, F.struct(*_MORE)).alias("more"),
        F.when(is_kept, F.col("core")).alias("core"),
        F.lit(None if keeps_core else True).cast("boolean").alias("is_exact"),
        "is_settled",
    )


def _is_usual(name: str, usual: str | None) -> Column:
    return F.isnull(name) if usual is None else F.col(name).eqNullSafe(F.col(usual))


def unfolded(stored: DataFrame) -> DataFrame:
    """Rows as they are stored, with what is in `more` as columns like the others."""
    said = {
        name: F.when(F.isnotnull("more"), F.col(f"more.{name}")).otherwise(
            F.lit(None) if usual is None else F.col(usual)
        )
        for name, usual in _MORE.items()
    }
    return stored.withColumns(said).drop("more", "core")


def cores(stored: DataFrame) -> DataFrame:
    return stored.where(F.isnotnull("core")).select("txn_id", "core.*")


def to_ledger(stored: DataFrame, names: Names, *beside: str) -> DataFrame:  # one select is the row's contract
    """Rows as they are stored → rows for people: names instead of numbers, times, lengths between them, and columns `beside`."""
    position = ledger.decision()
    source = F.get(F.array(F.lit(""), *map(F.lit, SOURCES)), position.bitwiseAND((1 << SOURCE_BITS) - 1).cast("int"))
    reason = F.get(F.array(*map(F.lit, REASONS)), F.col("d_last").bitwiseAND((1 << REASON_BITS) - 1).cast("int"))
    decided_ms = F.least("o_commit_ms", "o_rollback_ms", "o_abandon_ms")
    # A scheduled one waits for its time; and what is older than the decision is a time that the user gave a message.
    is_in_time = ~ledger.has_times() & (F.col("v_first_ms") >= decided_ms - CLOCK_ERROR_MS)
    packed = F.col("v_place")
    key = [
        F.lpad(F.lower(F.hex(part)), 8, "0")
        for part in (F.shiftrightunsigned("h_key", 32), F.col("h_key").bitwiseAND(0xFFFFFFFF))
    ]
    resolution = F.when(ledger.is_committed(), Resolution.COMMIT.name).when(
        ledger.is_rolled_back(), Resolution.ROLLBACK.name
    )
    order = F.when(ledger.is_prepare_order(), OrderMode.PREPARE.value).otherwise(OrderMode.COMMIT.value)
    return unfolded(stored).select(
        "txn_id",
        lines.nonce_text(F.col("nonce_max")).alias("nonce"),
        "verdict",
        names.text(F.col("producer"), names.groups).alias("producer_group"),
        names.texts(F.coalesce("topics", F.lit(0))).alias("topics"),
        # A half record may name any count.
        F.least("count", F.lit(PARTITION_MAX)).cast("int").alias("message_count"),
        F.col("half_partition").cast("int").alias("half_partition"),
        F.when(F.col("h_first") >= 0, F.col("h_first")).alias("first_offset"),
        F.col("h_last").alias("last_offset"),
        F.when(F.isnotnull("h_key"), F.concat(*key)).alias("key_hash"),
        F.when(F.isnotnull("h_key"), order).alias("order"),
        _time("born_ms").alias("born_at"),
        _time("h_last_ms").alias("stored_at"),
        resolution.alias("resolution"),
        _time(decided_ms).alias("decided_at"),
        source.alias("decided_by"),
        F.shiftright(position, LINE_BITS + SOURCE_BITS).alias("decided_offset"),
        F.shiftright(position, SOURCE_BITS).bitwiseAND((1 << LINE_BITS) - 1).cast("int").alias("decided_line"),
        _time("v_first_ms").alias("forwarded_at"),
        F.coalesce("v_n", F.lit(0)).cast("int").alias("visible_count"),
        F.coalesce("v_distinct", F.lit(0)).cast("int").alias("visible_messages"),
        names.texts(F.coalesce("v_topics", F.lit(0))).alias("visible_topics"),
        F.shiftright(packed, OFFSET_BITS).bitwiseAND((1 << PARTITION_BITS) - 1).cast("int").alias("visible_partition"),
        packed.bitwiseAND((1 << OFFSET_BITS) - 1).alias("visible_offset"),
        F.coalesce("c_asked", F.lit(0)).cast("int").alias("checked_count"),
        _time("c_first_ms").alias("first_checked_at"),
        _time("c_last_ms").alias("last_checked_at"),
        F.coalesce("o_unknown", F.lit(0)).cast("int").alias("unknown_count"),
        F.coalesce("c_refused", F.lit(0)).cast("int").alias("refused_count"),
        ledger.doubt_state().alias("doubt_state"),
        F.when(reason != "", reason).alias("doubt_reason"),
        _time("d_parked_ms").alias("parked_at"),
        lines.sure((source == "operator") | F.isnotnull("o_abandon_ms")).alias("is_settled_by_hand"),
        (decided_ms - F.col("h_last_ms")).alias("decide_ms"),
        F.when(is_in_time, F.col("v_last_ms") - decided_ms).alias("forward_ms"),
        F.when(is_in_time, F.col("v_last_ms") - F.col("h_first_ms")).alias("total_ms"),
        (F.col("c_first_ms") - F.col("h_last_ms")).alias("first_check_ms"),
        "is_settled",
        "run",
        *beside,
    )


def _time(ms: Column | str) -> Column:
    return lines.time_of(F.col(ms) if isinstance(ms, str) else ms)


LEDGER_VERSION = 8  # part of every path of the ledger; one of an earlier version is not read: all of it is in bronze
RUNS_KEPT = 20  # notes of runs that are kept: the newest counts, and a job that reads now may have another one
FOLDED_FILES = 16  # files that settled rows are folded into
EVERY = -2  # in place of the nonce where all rows of an id are revised
WORK = ("new", "copies", "few", "all", "steps", "exact")  # what a run puts down on its way; ended with it
_IDS = ("orphans", "revised", "late")  # kinds of ids that a run names by the numbers of the runs that wrote them
LATE = "txn_id string, nonce bigint, is_turned boolean, run string"
"""What is noted of an attempt out of order; `is_turned`: its own messages are in reverse."""
_PASSING = {"compression": "snappy", "parquet.enable.dictionary": "false", "parquet.column.statistics.enabled": "false"}
"""These files are read a few times as a whole and deleted soon: better compression costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Run:
    """One complete run of the ledger."""

    number: int = 0
    cut_ms: int = 0
    batches: Mapping[str, int] = field(default_factory=dict)  # {reader: the last batch of bronze that is in the ledger}
    gap_times: Mapping[str, int] = field(default_factory=dict)
    """{a gap as `topic:partition:start`: append time of the first record behind it}."""
    groups: tuple[str, ...] = ()  # producer groups by the number that rows have for them
    topics: tuple[str, ...] = ()  # real topics, likewise
    has_carried: bool = False
    has_order: bool = False
    orphans: tuple[int, ...] = ()
    """Runs that settled transactions without a half record: when one comes, every record of the transaction is folded again."""
    revised: tuple[int, ...] = ()  # runs that revised rows of earlier ones
    late: tuple[int, ...] = ()  # runs that found attempts which became visible out of order
    columns: Mapping[str, Any] = field(default_factory=dict)  # those of its stored rows
    unread: tuple[str, ...] = ()
    """Real topics that half records name and that were not read: when they are, their transactions are judged again."""
    bronze_id: str = ""  # of the bronze that it was made from; "" where that, or the run, is of an earlier release
    ledger_id: str = ""  # a new one for each ledger that is begun: the numbers of its runs begin with 1 again
    skipped: tuple[int, ...] = ()
    """Numbers of runs that began before this one and do not count, as far as the runs around them are not folded."""
    has_ahead: bool = False
    """Others may wait for some of its rows, or went before them: these have an ordering key, and are undecided or not known."""


class Span(NamedTuple):
    """The runs `first` to `last`, whose settled rows were folded as one."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"run={self.last}" if self.first == 1 else f"run={self.first}-{self.last}"


def _span(name: str) -> Span:
    *first, last = name.removeprefix("run=").split("-")
    return Span(int(first[0]) if first else 1, int(last))


class Shelf:
    """The ledger under one root."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = Folder(spark, root)
        self.folder = Folder(spark, self._root.at(f"v{LEDGER_VERSION}"))
        self._turn = Turn(self.folder, "the ledger")

    def last(self) -> Run:
        """The newest complete run; number 0 when there is none."""
        names = self.folder.notes("runs")
        if not names:
            return Run()
        found: dict[str, Any] = self.folder.read_json("runs", names[-1])
        several = ("groups", "topics", "orphans", "revised", "late", "unread", "skipped")
        return Run(**{**known(Run, found), **{name: tuple(found.get(name, ())) for name in several}})

    def _numbers(self) -> list[int]:
        """Those of the complete runs that are noted."""
        return [int(name.partition(".")[0]) for name in self.folder.notes("runs")]

    def begin(self) -> int:
        """Begin a run; returns its number. A run that is under way elsewhere ends before its next write, and does not count."""
        return self._turn.begin(above=self.last().number)

    def skipped(self, last: Run, number: int) -> tuple[int, ...]:
        """The numbers of runs before that one that do not count, the last complete one being `last`."""
        spans = self.spans(last)
        kept = (each for each in last.skipped if not spans or each > spans[-1].last)
        return (*kept, *range(last.number + 1, number))

    def store(self, run: Run) -> None:
        """Make a run count, and delete what only the run before the last one needs."""
        self._turn.go_on()
        last, before = self.last(), self._numbers()[-2:-1]
        self.folder.note(asdict(run), "runs", kept=RUNS_KEPT)
        for kind in ("order", "ahead"):
            self._end_runs(kind, up_to=run.number - 1, but={last.number})
        for number in before:
            for state in (State.OPEN, State.ASKED, State.ALONE):
                self.folder.remove("rows", f"run={number}", f"is_settled={state:d}")
        for number in range(last.number + 1, run.number):
            self.folder.remove("rows", f"run={number}")
        for kind in WORK:
            self.folder.remove(kind)
        for kind in _IDS:
            # A job that is reading now may use the run before.
            self._end_runs(kind, up_to=run.number - 1, but={*getattr(run, kind), *getattr(last, kind)})

    def _end_runs(self, kind: str, *, up_to: int, but: Collection[int] = ()) -> None:
        """Delete what the runs up to `up_to` wrote of a kind, except those in `but`."""
        for name in self.folder.names(kind):
            number = int(name.removeprefix("run="))
            if number <= up_to and number not in but:
                self.folder.remove(kind, name)

    def path(self, kind: str, run: int) -> str:
        return self.folder.at(kind, f"run={run}")

    def put_ids(self, found: DataFrame | None, kind: str, run: int, before: tuple[int, ...]) -> tuple[int, ...]:
        """Write ids beside those of earlier runs; returns the runs that hold all of them, which become one when there are many.

        When they become one, ids whose rows were deleted are left out.
        """
        if found is None:
            return before
        is_many = len(before) >= RUNS_KEPT
        if is_many:
            rows = self.counting_as_of(self.last()).select("txn_id").distinct()
            found = found.unionByName(self.ids(kind, before).drop("run").join(rows, "txn_id", "left_semi"))
        if self.put(found.distinct(), kind, run).isEmpty():
            return before
        return (run,) if is_many else (*before, run)

    def put(self, rows: DataFrame, kind: str, run: int) -> DataFrame:
        """Write the rows to a file and return them read from it: Spark then plans what follows from there, not from the beginning."""
        self._turn.go_on()
        rows.write.mode("overwrite").options(**_PASSING).parquet(self.path(kind, run))
        # Without its columns Spark would look for them in the files, by a job.
        return our_files(self._spark).schema(rows.schema).parquet(self.path(kind, run))

    def has(self, run: int, state: State) -> bool:
        """Whether a run wrote rows with that `is_settled`."""
        return self.folder.has("rows", f"run={run}", f"is_settled={state:d}")

    def put_rows(
        self, rows: DataFrame, run: int, *, options: Mapping[str, str], adds: bool = False
    ) -> Mapping[str, Any]:
        """Write stored rows as these options of Parquet say, in place of those that are there or beside them; their columns.

        They count when the run is stored.
        """
        self._turn.go_on()
        writer = rows.write.mode("append" if adds else "overwrite").options(**WRITING, **options)
        writer.partitionBy("is_settled").parquet(self.path("rows", run))
        columns: dict[str, Any] = rows.schema.jsonValue()
        return columns

    def stored(self, run: int, columns: Mapping[str, Any], *states: State) -> DataFrame:
        """The stored rows of one run, of those `is_settled`."""
        # Columns are named: a run without a transaction has no file to take them from.
        read = our_files(self._spark).schema(StructType.fromJson(dict(columns)))
        return read.parquet(self.path("rows", run)).where(F.col("is_settled").isin(*map(int, states)))

    def carried(self, run: Run) -> DataFrame | None:
        """The cores that a run carried on; None without any."""
        if not run.has_carried:
            return None
        rows = self.counting(run.number, run.columns, run.revised, State.OPEN, State.ALONE)
        if not self.has(run.number, State.ASKED):
            return cores(rows)
        # What was folded from every record is folded so again, unless it is settled: the core that it had before is carried on.
        exact = rows.where(F.isnull("core")).select("txn_id").distinct()
        asked = cores(self.stored(run.number, run.columns, State.ASKED))
        found = self.stored(run.number, run.columns, State.OPEN, State.SETTLED)
        alone = asked.where(ledger.may_come(run.cut_ms)).join(found, "txn_id", "left_anti")
        asked = asked.join(exact, "txn_id", "left_semi")
        return cores(rows).unionByName(asked).unionByName(alone)

    def order(self, run: Run) -> DataFrame | None:
        """How far each ordering key had come; None before the first one."""
        if not run.has_order:
            return None
        read = our_files(self._spark).schema(ledger.COMPARED)
        return read.parquet(self.path("order", run.number)).where("is_state")

    def rows(self, run: Run) -> DataFrame:
        """The ledger as of a run: one row per transaction; UsageError: there is no ledger yet."""
        if not run.number:
            raise UsageError(f"no ledger in {self.folder.path}: {self._what_to_do()}")
        stored = self.counting_as_of(run)
        names = Names(self._spark, groups=run.groups, topics=run.topics)
        stored = self._with_late(stored, run) if run.late else stored.withColumn("_late", F.lit(False))
        waits = is_unsure = F.lit(False)
        if run.has_ahead:
            stored = ledger.with_ahead(stored, our_files(self._spark).parquet(self.path("ahead", run.number)))
            stored = stored.withColumn("_late", F.col("_late") | F.col("_went_before"))
            waits, is_unsure = F.coalesce("_waits", waits), F.coalesce("_is_unsure", is_unsure)
        is_nowhere = F.isnull("v_n")
        may_wait = is_nowhere & (ledger.is_lost() | (F.col("verdict") == ledger.MAY_WAIT))
        is_unsure = (F.col("verdict") == ledger.MAY_WAIT) | (is_nowhere & ledger.is_lost() & is_unsure)
        verdict = F.when(may_wait & waits, "open").when(is_unsure, "out_of_window")
        stored = stored.withColumn("verdict", verdict.otherwise(F.replace("verdict", F.lit(ledger.LOST_OR), F.lit(""))))
        rows = to_ledger(stored, names, "_late")
        return with_late(rows, "_late").drop("_late")

    def counting_as_of(self, run: Run) -> DataFrame:
        """The stored rows that count as of a run, open and settled."""
        is_open = (F.col("run") == run.number) & (F.col("is_settled") == int(State.OPEN))
        open_rows = self._valid(self._every(run).where(is_open), run.revised, since=run.number)
        return open_rows.unionByName(self._settled(run))

    def _with_late(self, stored: DataFrame, run: Run) -> DataFrame:
        """Stored rows with `_late`: whether any run found their attempt out of order, not only the last that judged it."""
        attempts = self.ids("late", run.late).groupBy("txn_id", F.col("nonce").alias("nonce_max"))
        # Of an earlier release it is not known.
        late = attempts.agg(F.bool_or(lines.sure("is_turned")).alias("_turned")).withColumn("_late", F.lit(True))
        # Parked since: then it held no other up. Its own messages have their order all the same. An abandon has no effect on what
        # is visible.
        counts = F.isnull("more.d_parked_ms") | F.col("_turned")
        found = stored.join(F.broadcast(late), ["txn_id", "nonce_max"], "left")
        return found.withColumn("_late", F.col("_late") & counts).drop("_turned")

    def counting(self, run: int, columns: Mapping[str, Any], revised: tuple[int, ...], *states: State) -> DataFrame:
        """The stored rows of one run, except those that the run itself folded again from every record."""
        rows = self.stored(run, columns, *states).withColumn("run", F.lit(run))
        return self._valid(rows, revised, since=run).drop("run")

    def _valid(self, rows: DataFrame, revised: tuple[int, ...], *, since: int) -> DataFrame:
        """Rows but those of attempts that a later run of these, or their own one behind them, folded from every record."""
        return self._unrevised(rows, self._revisions(revised, since=since))

    def _revisions(self, revised: tuple[int, ...], *, since: int, spans: Sequence[Span] = ()) -> DataFrame | None:
        """What the runs of these from `since` on, and those of the spans, revised: `txn_id`, `nonce`, `run`; None: nothing."""
        runs = tuple(number for number in revised if number >= since)
        found = [self.ids("revised", runs)] if runs else []
        paths = [self.folder.at("revisions", s.name) for s in spans if self.folder.has("revisions", s.name)]
        if paths:
            found.append(our_files(self._spark).parquet(*paths).withColumnRenamed("of_run", "run"))
        return reduce(DataFrame.unionByName, found) if found else None

    def _unrevised(self, rows: DataFrame, revisions: DataFrame | None) -> DataFrame:
        if revisions is None:
            return rows
        newest = revisions.groupBy("txn_id", "nonce").agg(F.max("run").alias("_by"))
        newest = newest.select(F.col("txn_id").alias("_id"), F.col("nonce").alias("_nonce"), "_by")
        is_meant = (F.col("_nonce") == EVERY) | F.col("_nonce").eqNullSafe(F.col("nonce_max"))
        is_older = (F.col("run") < F.col("_by")) | ((F.col("run") == F.col("_by")) & F.isnull("is_exact"))
        same = (F.col("txn_id") == F.col("_id")) & is_meant & is_older
        return rows.join(F.broadcast(newest), same, "left_anti")

    def _every(self, run: Run) -> DataFrame:
        # A ledger without a transaction has no file to take columns from.
        columns = StructType.fromJson(dict(run.columns)).add("run", IntegerType())
        return our_files(self._spark).schema(columns).parquet(self.folder.at("rows"))

    def _settled(self, run: Run, *, first: int = 1) -> DataFrame:
        """The settled rows that count as of a run, of the runs from `first` on."""
        spans = [span for span in self.spans(run) if span.last >= first]
        folded = spans[-1].last if spans else 0
        is_newer = (F.col("run") > folded) & (F.col("run") <= run.number) & ~F.col("run").isin(*run.skipped)
        stored = self._every(run).where(is_newer & (F.col("is_settled") == int(State.SETTLED)))
        if spans:
            columns = StructType.fromJson(dict(run.columns)).add("of_run", IntegerType())
            read = (
                our_files(self._spark).schema(columns).parquet(*(self.folder.at("folded", span.name) for span in spans))
            )
            stored = stored.unionByName(read.withColumnRenamed("of_run", "run"))
        # What was folded has been revised by the runs up to there.
        revisions = self._revisions(run.revised, since=folded + 1, spans=spans[1:])
        return self._unrevised(stored if first == 1 else stored.where(F.col("run") >= first), revisions)

    def settled_since(self, run: Run, *, at_ms: int) -> DataFrame:
        """The settled rows that count as of a run, of those runs whose cut is not before that time; 0: of all."""
        cuts = {
            int(name.partition(".")[0]): self.folder.read_json("runs", name)["cut_ms"]
            for name in self.folder.notes("runs")
        }
        # Of runs that are no longer noted the cut is unknown.
        first = min((n for n, cut_ms in cuts.items() if cut_ms >= at_ms), default=run.number)
        is_noted = first > min(cuts, default=0)
        return self._settled(run, first=first if is_noted else 1)

    def spans(self, run: Run) -> list[Span]:
        """The folded spans of the runs up to one: they cover the runs from the first on, each once, in order."""
        found = [_span(n) for n in self.folder.names("folded") if self.folder.has("folded", n, COMPLETE)]
        found = [span for span in found if span.last <= run.number]

        def is_within(span: Span, other: Span) -> bool:
            return span != other and other.first <= span.first and span.last <= other.last

        return sorted(span for span in found if not any(is_within(span, other) for other in found))

    def revised_since_folding(self, run: Run) -> tuple[int, ...]:
        """The runs up to one that revised rows which are not folded: folded ones are as these runs left them."""
        spans = self.spans(run)
        return tuple(number for number in run.revised if not spans or number > spans[-1].last)

    def fold(self, *, kept_from_ms: int | None = None, runs_min: int = 1) -> int:
        """Write the settled rows of all runs but the last into few files; the run up to which.

        Fewer than `runs_min` new runs are left as they are. Earlier folds are rewritten if the new rows are as large: so each row
        is written only a few times. With `kept_from_ms` everything is rewritten, except what is older.

        Only what the fold before replaced is deleted: a job that is reading now goes on.
        """
        last = self.last()
        spans = self.spans(last)
        before = spans[-1].last if spans else 0
        for kind in ("folded", "revisions"):
            for name in set(self.folder.names(kind)) - {span.name for span in spans}:
                self.folder.remove(kind, name)
        for kind in ("rows", "revised"):
            self._end_runs(kind, up_to=before)
        up_to = max(self._numbers()[:-1], default=0)
        if up_to - before < runs_min:
            return before
        whole = Span(1 if kept_from_ms is not None else self._first_to_fold(spans, before, up_to), up_to)
        # As of that run, not of the last one: a reader may use the one before it.
        then = replace(last, number=up_to, revised=tuple(number for number in last.revised if number <= up_to))
        rows = self._settled(then, first=whole.first)
        if kept_from_ms is not None:
            # A visible message may have its writer's time, which alone does not show how old it is.
            known = F.greatest("h_last_ms", "o_commit_ms")
            alone = F.when(F.isnull(known), F.coalesce("born_ms", F.lit(last.cut_ms)))
            rows = rows.where(F.greatest(known, "v_last_ms", alone) >= kept_from_ms)
        anew = [span for span in spans if span.first >= whole.first]
        revisions = self._revisions(then.revised, since=before + 1, spans=anew) if whole.first > 1 else None
        # The rows last: they make the span count.
        for kind, written, files in (("revisions", revisions, 1), ("folded", rows, FOLDED_FILES)):
            if written is not None:
                writer = written.withColumnRenamed("run", "of_run").coalesce(files).write.mode("overwrite")
                writer.options(**WRITING).parquet(self.folder.at(kind, whole.name))
        return up_to

    def _first_to_fold(self, spans: Sequence[Span], before: int, up_to: int) -> int:
        sizes = {span: self.folder.size("folded", span.name) for span in spans}
        new = (("rows", f"run={n}", f"is_settled={State.SETTLED:d}") for n in range(before + 1, up_to + 1))
        sizes[Span(before + 1, up_to)] = sum(self.folder.size(*place) for place in new if self.folder.has(*place))
        return min((span.first for span in worth_folding(sizes)), default=before + 1)

    def ids(self, kind: str, runs: tuple[int, ...]) -> DataFrame:
        """What those runs put down of ids, each with its `run`."""
        paths = (self.path(kind, number) for number in runs)
        read = our_files(self._spark).option("basePath", self.folder.at(kind))
        if kind == "late":
            # Without them Spark would take the columns of one file, which may be of an earlier release.
            read = read.schema(LATE)
        found = read.parquet(*paths)
        # A session may take no types from the names of folders: as text, 9 is more than 10.
        return found.withColumn("run", F.col("run").cast("int"))

    def _what_to_do(self) -> str:
        earlier = [f"v{n}" for n in range(1, LEDGER_VERSION) if self._root.has(f"v{n}", "runs")]
        if not earlier:
            return "run txlayer-spark ledger first"
        return (
            f"run txlayer-spark ledger, which builds it anew from bronze; {self._root.at(*earlier)} is of an "
            "earlier release, is not read any more, and may be removed"
        )
