"""`txlayer-spark`: one command per job; each starts a session, and `audit` runs three jobs in one, with metrics where it repeats them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from txlayer import __version__
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.runtime import prepare_connector
from txlayer.adapters.telemetry import Health, ObservedRole, Sample, counter, gauge, printable, set_up_logging
from txlayer.cli import output
from txlayer.cli.exits import guard
from txlayer.cli.options import (
    AsJson,
    BootstrapServers,
    Bundle,
    Insecure,
    Namespace,
    client_config,
    command,
    command_line_settings,
    declared,
    duration,
    option,
    version_option,
    with_secrets,
)
from txlayer.cli.services import Metering, log_as_environment_says, observed
from txlayer.config import ClientConfig, check_names, milliseconds, parse_duration, parse_settings
from txlayer.core.verification import Severity
from txlayer.errors import RetriableError, TopicMismatchError, UsageError
from txlayer_spark.catalog import ReadState
from txlayer_spark.jobs import against as against_job
from txlayer_spark.jobs import bronze as bronze_job
from txlayer_spark.jobs import tables as tables_job
from txlayer_spark.jobs.against import AgainstSettings
from txlayer_spark.jobs.bronze import BronzeSettings, read_new, unread
from txlayer_spark.jobs.ledger import LedgerSettings, compact_ledger, update_ledger
from txlayer_spark.jobs.tables import Format, TableSettings
from txlayer_spark.parse import Values
from txlayer_spark.progress import QueryMetrics
from txlayer_spark.sessions import failures_as_ours, session
from txlayer_spark.verdicts import SEVERITIES, exit_code

if TYPE_CHECKING:
    from txlayer_spark.report import Summary

logger = logging.getLogger("txlayer.spark")

app = typer.Typer(
    name="txlayer-spark",
    help="What the topics of a namespace contain, proved by Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Data = Annotated[
    str, declared("--data -d", "Where bronze and ledger are kept: a folder, or any address that Spark knows.", "FOLDER")
]
Grace = Annotated[
    str, declared("--grace", "What is younger may still be on its way, and is called neither lost nor torn.")
]
Overdue = Annotated[str, declared("--overdue", "Age at which an undecided or held transaction is overdue.")]
Every = Annotated[
    str | None, declared("--every", "Go on, and read what is new after this time (30s, 5m), until Ctrl-C.")
]
Page = Annotated[Path, declared("--page", "The HTML file; JSON is written beside it.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(Bundle):
    """What is copied: the topics of a namespace, and where from."""

    bootstrap_servers: BootstrapServers = None
    namespace: Namespace = None
    topics: list[str] | None = option("--topics", "Real topics; default: those that half records name.", "TOPIC,…")
    kafka_option: list[str] | None = option(
        "--kafka-option -K",
        "A setting of Kafka's Java client (security.protocol, sasl.jaas.config, …); may be repeated. "
        "Secrets by file alone: sasl.jaas.config.file=PATH.",
        "NAME=VALUE",
    )
    values: Values = option(
        "--values",
        "What is kept of keys, values and headers: all of it, or hashes, which are enough for verdicts.",
        default=Values.FULL,
    )
    insecure: Insecure = False

    def settings(self, data: str) -> BronzeSettings:
        options = with_secrets(command_line_settings("--kafka-option", list(self.kafka_option or ())))
        protocol = {k: v for k, v in options.items() if k == "security.protocol"}
        # Whether plain text may go to that address is judged as everywhere else.
        config = client_config(
            ClientConfig,
            bootstrap_servers=self.bootstrap_servers,
            namespace=self.namespace,
            client_setting=[f"{k}={v}" for k, v in protocol.items()],
            insecure=self.insecure,
        )
        named = tuple(t.strip() for part in self.topics or () for t in part.split(",") if t.strip())
        return BronzeSettings(
            root=_bronze_root(data),
            namespace=config.namespace,
            bootstrap_servers=config.bootstrap_servers,
            topics=named,
            kafka_options=options,
            values=self.values,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions(Bundle):
    """Where and how Spark runs."""

    master: str = option("--master", "Where Spark runs; left to spark-submit under that.", default="local[*]")
    memory: str = option("--memory", "Memory of the driver; with a local master, of everything.", default="2g")
    spark_setting: list[str] | None = option("--spark-setting", "A setting of Spark; may be repeated.", "NAME=VALUE")

    def open(self, *places: str, tables: str = "") -> AbstractContextManager[SparkSession]:
        settings = parse_settings("--spark-setting", list(self.spark_setting or ()))
        s3 = any(place.startswith("s3a://") for place in places)
        return spark_session(master=self.master, memory=self.memory, tables=tables, s3=s3, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(Bundle):
    """Which tables."""

    format: Format = option("--format", "How tables are kept.", default=Format.PARQUET)
    into: str | None = option(
        "--into",
        "A folder, or of delta and iceberg a schema of a catalog (lake.audit); default: a folder beside bronze.",
        "PLACE",
    )

    def settings(self, data: str) -> TableSettings:
        data = data.rstrip("/")
        return TableSettings(data=data, format=self.format, into=self.into or f"{data}/{self.format.value}")

    @property
    def jars(self) -> str:
        return "" if self.format is Format.PARQUET else self.format.value


RUNS = counter("txlayer_audit_runs_total", "Runs, by their end: complete or failed.", "end")
SECONDS = gauge("txlayer_audit_run_seconds", "How long the last complete run took.")
AGE = gauge("txlayer_audit_age_seconds", "Time since the end of the last complete run.")
VERDICTS = gauge("txlayer_audit_transactions", "Transactions in the ledger, by verdict.", "verdict")
BEHIND = gauge("txlayer_audit_behind_records", "Offsets of committed records that the last run did not read.", "topic")
HIDDEN = gauge(
    "txlayer_audit_hidden_records",
    "Offsets behind an open Kafka transaction, which no reader of committed records sees.",
    "topic",
)
RECORDS = counter("txlayer_audit_records_total", "Records that bronze read.")
UNREADABLE = gauge(
    "txlayer_audit_unreadable",
    "What bronze could not read: gaps that retention left, and real topics that are absent, or hidden behind a Kafka "
    "transaction that stays open.",
    "cause",
)
FAMILIES = (RUNS, SECONDS, AGE, RECORDS, VERDICTS, BEHIND, HIDDEN, UNREADABLE)
LATE = 3  # so many pauses after the last complete run, an audit is called stalled


class RunResult(NamedTuple):
    """What a complete run found."""

    seconds: float
    verdicts: Mapping[str, int]
    unread: Mapping[str, tuple[int, int]]  # {topic: (behind, hidden)}
    unreadable: Mapping[str, int]  # {cause: how many gaps or topics}


class ObservedAudit(ObservedRole):
    """The runs of one audit. The thread that runs them writes; any thread may read."""

    role = "audit"

    def __init__(self, *, pause_s: float, record_count: Callable[[], int], **given: Any) -> None:
        super().__init__(**given)
        self._pause_s, self._record_count = pause_s, record_count
        self._began_at = self._clock()
        self._ends = {"complete": 0, "failed": 0}
        self._last: tuple[float, RunResult] | None = None

    @property
    def has_completed(self) -> bool:
        return self._last is not None

    def complete(self, result: RunResult) -> None:
        self._ends["complete"] += 1
        self._last = (self._clock(), result)

    def failed(self) -> None:
        """Count a run that could not be ended, and is tried again after the pause."""
        self._ends["failed"] += 1

    def _look(self, now: float) -> tuple[Health, Iterable[Sample]]:
        last = self._last
        since_s = now - (self._began_at if last is None else last[0])
        allowed_s = LATE * (self._pause_s + (0 if last is None else last[1].seconds))
        is_late = last is not None and since_s > allowed_s
        stalled = f"the last complete run ended {since_s:.0f} s ago" if is_late else ""
        samples = [Sample(RUNS, count, (end,)) for end, count in self._ends.items()]
        samples.append(Sample(RECORDS, self._record_count()))
        if last is not None:
            _, result = last
            samples += [Sample(SECONDS, result.seconds), Sample(AGE, since_s)]
            samples += [Sample(VERDICTS, count, (verdict,)) for verdict, count in result.verdicts.items()]
            for topic, (behind, hidden) in result.unread.items():
                samples += [Sample(BEHIND, behind, (topic,)), Sample(HIDDEN, hidden, (topic,))]
            samples += [Sample(UNREADABLE, count, (cause,)) for cause, count in result.unreadable.items()]
        return Health(stalled, "" if last is not None else "the first run goes on"), samples


_DATA, _PAGE = "txlayer-spark", Path("txlayer-report.html")
_SHOWN_MAX = 100  # differences that are printed; all are counted
_ROWS_MAX = 1_000


@command(app)
def audit(
    *,
    source: SourceOptions,
    data: Data = _DATA,
    grace: Grace = "1m",
    overdue: Overdue = "15m",
    page: Page = _PAGE,
    every: Every = None,
    observing: Metering,
    as_json: AsJson = False,
    session: SessionOptions,
) -> None:
    """Bronze, ledger and report, one after the other; with --every again and again, with metrics."""
    settings = source.settings(data)
    late = _ledger(data, grace, overdue)
    pause = duration("--every", every)

    def run(spark: SparkSession) -> tuple[ReadState, Summary]:
        state = _read(spark, settings)
        update_ledger(spark, late)
        return state, _report(spark, settings.namespace, data, page)

    with session.open(data) as spark:
        if pause is None:
            _end(run(spark)[1], page, as_json=as_json)
        observing.set_up_logging()
        queries = QueryMetrics()
        spark.streams.addListener(queries)
        audit = ObservedAudit(
            pause_s=pause.total_seconds(),
            record_count=lambda: queries.row_count,
            name=settings.namespace,
            version=__version__,
        )
        with observed(observing.metrics(), lambda: audit):
            while True:
                _run_observed(spark, settings, run, audit)
                time.sleep(pause.total_seconds())


def _run_observed(
    spark: SparkSession,
    settings: BronzeSettings,
    run: Callable[[SparkSession], tuple[ReadState, Summary]],
    audit: ObservedAudit,
) -> None:
    """One run of many: what may pass by itself is counted, and tried again after the pause."""
    began = time.monotonic()
    try:
        with failures_as_ours():
            state, summary = run(spark)
            unread_now = unread(spark, settings, state)
    except (RetriableError, TopicMismatchError) as exc:
        # After a complete run the namespace is right: a topic was deleted while it was read.
        if isinstance(exc, TopicMismatchError) and not audit.has_completed:
            raise
        audit.failed()
        logger.warning("audit.failed", extra={"error": str(exc)})
        return
    seconds = time.monotonic() - began
    # Of a topic that came later than its first message nothing was gone.
    gap_count = sum(gap["end"] > gap["start"] for gap in summary.gaps)
    unreadable = {"gap": gap_count, "absent": len(summary.unread_topics), "hidden": len(summary.hidden_topics)}
    # Zeros, too: an alert compares with what was there before.
    verdicts = {name: 0 for name, severity in SEVERITIES.items() if severity is Severity.FAULT} | summary.verdicts
    audit.complete(RunResult(seconds, verdicts, unread_now, unreadable))
    broken = exit_code(summary.verdicts) != 0
    logger.log(
        logging.ERROR if broken else logging.INFO,
        "audit.broken" if broken else "audit.complete",
        extra={"seconds": round(seconds, 1), **summary.verdicts},
    )


@command(app)
def bronze(*, source: SourceOptions, data: Data = _DATA, every: Every = None, session: SessionOptions) -> None:
    """Copy what is new in the topics of a namespace into Parquet files, each record exactly once."""
    settings = source.settings(data)
    pause = duration("--every", every)
    with session.open(data) as spark:
        _read(spark, settings)
        while pause is not None:
            time.sleep(pause.total_seconds())
            _read(spark, settings)


@command(app)
def compact(*, data: Data = _DATA, table: TableOptions, session: SessionOptions) -> None:
    """Fold many small files of bronze, of the ledger and of the tables into few."""
    settings = table.settings(data)
    with session.open(data, settings.into, tables=table.jars) as spark:
        written = bronze_job.compact(spark, _bronze_root(data))
        run = compact_ledger(spark, _ledger_root(data))
        folded = tables_job.compact_tables(spark, settings)
    typer.echo(f"folders written: {len(written)}; ledger folded up to run {run}; folded in the tables: {folded}")


@command(app)
def compare(
    against: Annotated[str, declared("--against", "Parquet of your own, or a JDBC address.")],
    topic: Annotated[str, declared("--topic", "The real topic.")],
    *,
    table: str = option("--table", "The table behind a JDBC address.", default=""),
    column: str = option("--column", "Its column with the business id.", default="id"),
    published_id: str = option(
        "--published-id",
        "SQL over txn_id, key and value: the business id, as get_json_object(value, '$.order').",
        default="txn_id",
    ),
    data: Data = _DATA,
    session: SessionOptions,
) -> None:
    """Compare the business ids of your database with what was published; exit code 1 when one side lacks some."""
    settings = AgainstSettings(
        bronze=_bronze_root(data), topic=topic, published_id=published_id, source=against, table=table, column=column
    )
    with session.open(data, against) as spark:
        found = against_job.compare(spark, settings).persist()
        counts = {row.finding: row["n"] for row in found.groupBy("finding").agg(F.count("*").alias("n")).collect()}
        for row in found.orderBy("finding", "id").limit(_SHOWN_MAX).collect():
            where = "" if row.offset is None else f" {topic}-{row.partition}@{row.offset}"
            typer.echo(printable(f"{row.finding:>8} {row.id}{where}"))
    typer.echo(f"missing: {counts.get('missing', 0):,}, unknown: {counts.get('unknown', 0):,}")
    raise typer.Exit(1 if counts else 0)


@command(app)
def ledger(*, data: Data = _DATA, grace: Grace = "1m", overdue: Overdue = "15m", session: SessionOptions) -> None:
    """Fold what is new in bronze into one row per transaction, with its verdict."""
    settings = _ledger(data, grace, overdue)
    with session.open(data) as spark:
        run = update_ledger(spark, settings)
    typer.echo(f"ledger: run {run.number} in {settings.root}")


@command(app)
def report(
    *,
    namespace: Namespace = None,
    data: Data = _DATA,
    page: Page = _PAGE,
    as_json: AsJson = False,
    session: SessionOptions,
) -> None:
    """Write what the ledger says as one HTML file and JSON; exit code 1 when a promise is broken."""
    name = client_config(ClientConfig, namespace=namespace).namespace
    with session.open(data) as spark:
        summary = _report(spark, name, data, page)
    _end(summary, page, as_json=as_json)


@command(app)
def tables(*, data: Data = _DATA, table: TableOptions, session: SessionOptions) -> None:
    """Write what is new in bronze and the ledger into tables for SQL: bronze, ledger and events."""
    settings = table.settings(data)
    with session.open(data, settings.into, tables=table.jars) as spark:
        run = tables_job.update_tables(spark, settings)
    typer.echo(f"tables: run {run}, {settings.format.value} in {settings.into}")


@command(app)
def sql(
    query: Annotated[str, typer.Argument(help="SQL over bronze, ledger, events, transactions, messages, checks, …")],
    *,
    data: Data = _DATA,
    table: TableOptions,
    session: SessionOptions,
) -> None:
    """Ask the tables, and print the answer (at most 1,000 rows)."""
    settings = table.settings(data)
    with session.open(data, settings.into, tables=table.jars) as spark:
        tables_job.open_tables(spark, settings.into, format=settings.format.value)
        try:
            found = spark.sql(query)
            rows = found.limit(_ROWS_MAX).collect()
        except PySparkException as exc:
            raise UsageError(f"Spark cannot answer: {str(exc).splitlines()[0]}") from exc
        typer.echo("\t".join(found.columns))
        for row in rows:
            typer.echo("	".join("" if cell is None else printable(str(cell)) for cell in row))


@command(app)
def expire(
    older_than: Annotated[str, declared("--older-than", "90d, for example.")],
    *,
    data: Data = _DATA,
    table: TableOptions,
    session: SessionOptions,
) -> None:
    """Delete what is older from bronze, the ledger and the tables."""
    keep_ms, settings = milliseconds(parse_duration("--older-than", older_than)), table.settings(data)
    with session.open(data, settings.into, tables=table.jars) as spark:
        days = bronze_job.expire(spark, _bronze_root(data), keep_ms=keep_ms)
        compact_ledger(spark, _ledger_root(data), keep_ms=keep_ms)
        first = tables_job.expire_tables(spark, settings, keep_ms=keep_ms)
    typer.echo(f"folders of a day ended in bronze: {days}; the tables begin with {first}")


@command(app)
def erase(
    key: Annotated[str, declared("--key", "The key of the messages, as text.")],
    *,
    data: Data = _DATA,
    table: TableOptions,
    session: SessionOptions,
) -> None:
    """Erase the content of all messages with a key from bronze and from the tables; the verdicts stay."""
    settings = table.settings(data)
    with session.open(data, settings.into, tables=table.jars) as spark:
        found = bronze_job.erase(spark, _bronze_root(data), key)
        rows = tables_job.erase_key(spark, settings, key)
    typer.echo(f"records erased in bronze: {found}, in the tables: {rows}")


@app.command()
def jars() -> None:
    """Fetch Spark's Kafka connector once, and print where its jars are, for `spark-submit --jars`."""
    found = prepare_connector(LocalConfig.from_environ(os.environ), say=partial(typer.echo, err=True))
    typer.echo(",".join(map(str, found.jars)))


@app.command()
def program() -> None:
    """Print the path of this program for `spark-submit`: spark-submit --jars "$(txlayer-spark jars)" "$(txlayer-spark program)" audit …"""
    typer.echo(str(Path(__file__)))


def _ledger(data: str, grace: str, overdue: str) -> LedgerSettings:
    return LedgerSettings(
        bronze=_bronze_root(data),
        root=_ledger_root(data),
        grace_ms=milliseconds(parse_duration("--grace", grace)),
        overdue_ms=milliseconds(parse_duration("--overdue", overdue)),
    )


def _bronze_root(data: str) -> str:
    return f"{data.rstrip('/')}/bronze"


def _ledger_root(data: str) -> str:
    return f"{data.rstrip('/')}/ledger"


def _read(spark: SparkSession, settings: BronzeSettings) -> ReadState:
    state = read_new(spark, settings, now_ms=lambda: int(time.time() * 1000))
    typer.echo(f"bronze: {len(state.real_topics)} real topics, in {settings.root}", err=True)
    return state


def _report(spark: SparkSession, namespace: str, data: str, page: Path) -> Summary:
    from txlayer_spark.report import write_report  # only here: most commands draw nothing

    return write_report(
        spark,
        bronze=_bronze_root(data),
        ledger=_ledger_root(data),
        namespace=namespace,
        page=page,
        made_at=datetime.now(UTC),
    )


def _end(summary: Summary, page: Path, *, as_json: bool) -> NoReturn:
    body = {"verdicts": summary.verdicts, "page": str(page.absolute())}
    counts = sorted(summary.verdicts.items(), key=lambda item: -item[1])
    lines: output.Drawn = [*(f"{count:>12,} {verdict}" for verdict, count in counts), f"report: {body['page']}"]
    output.show(body, lambda _: lines, as_json=as_json)
    raise typer.Exit(exit_code(summary.verdicts))


@app.callback()
def _begin(
    *,
    version: Annotated[bool, version_option("txlayer-spark")] = False,  # noqa: ARG001 - its callback answers and ends the process
) -> None:
    check_names(os.environ)
    log_as_environment_says()


def main() -> None:
    set_up_logging(log_format="text", level="WARNING")  # else Python prints the name of an event without its fields
    raise SystemExit(guard(app))


# --- the session -------------------------------------------------------------------------------------------------------


@contextmanager
def spark_session(
    *,
    master: str = "local[*]",
    memory: str = "2g",
    tables: str = "",
    s3: bool = False,
    settings: Mapping[str, str] | None = None,
    config: LocalConfig | None = None,
) -> Iterator[SparkSession]:
    """A `txlayer_spark.session` for the time of the block, whose failures are ours; under `spark-submit` the one that it started."""
    say = partial(typer.echo, err=True)
    spark = session(master=master, memory=memory, tables=tables, s3=s3, settings=settings, config=config, say=say)
    try:
        with failures_as_ours():
            yield spark
    finally:
        spark.stop()


if __name__ == "__main__":  # as `spark-submit` runs it; `txlayer-spark program` prints where it is
    main()
