"""Tables for SQL: every question of the page has its answer, what is new is added once, what is old or a person's is gone."""

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from tests.conftest import Broker
from tests.support.broker import create_topic
from tests.support.pages import ROOT, blocks
from tests.support.planted import GROUP, Field, Message
from tests.support.spark_processes import run_python
from tests.support.topic_records import Record
from txlayer.adapters.kafka.local.runtime import TABLES, installed_pyspark, locked_releases
from txlayer.cli.spark import app
from txlayer.core import codec
from txlayer.core.dead_letters import DLQ_HEADER, DeadLetter, DeadLetterReason, dead_letter_topic, encode_dead_letter
from txlayer.core.leases import LockKind, LockRecord, encode_lock
from txlayer.core.messages import Origin, Source
from txlayer.errors import UsageError
from txlayer_spark import open_tables, read_ledger
from txlayer_spark.catalog import COMPLETE, WRITING, BatchFolder, Catalog, Folder
from txlayer_spark.jobs import bronze as bronze_job
from txlayer_spark.jobs.bronze import BronzeSettings, read_new, to_bronze
from txlayer_spark.jobs.ledger import LedgerSettings, update_ledger
from txlayer_spark.jobs.tables import (
    BRONZE,
    EVENTS,
    VIEWS,
    Format,
    Table,
    TableSettings,
    _notes,
    _put_ledger,
    bronze_rows,
    compact_tables,
    erase_key,
    event_rows,
    expire_tables,
    update_tables,
    views_over,
)

pytestmark = pytest.mark.kafka

DAY_MS = 86_400_000
SECRET = b"where customer-7 lives"
WITH_JARS = [
    kind for kind in (Format.DELTA, Format.ICEBERG) if installed_pyspark() in locked_releases(TABLES[kind.value])
]
"""No jar of Iceberg resolves for the newest Spark; `make sparks` runs the others."""
QUESTIONS = blocks(ROOT / "docs" / "howto" / "spark-questions.md", "sql")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Audit:
    """A namespace in which every question has an answer, and the folder of its bronze, ledger and tables."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.field, self.folder = Field(servers), folder
        field = self.field
        personal = Message(field.orders, b"customer-7", SECRET)
        self.good = field.whole(personal, Message(field.stock))
        self.open, self.by_hand = field.prepare(personal), field.prepare()
        field.check(self.open, 1)
        field.roll_back(self.by_hand, source=Source.OPERATOR, reason="zoe: ticket 12")
        again = field.prepare(key=f"{self.good.txn_id}/0000beef")
        field.roll_back(again)
        self.lost = field.prepare()
        field.commit(self.lost)
        letters = create_topic(field.servers, dead_letter_topic("loyalty", field.orders))
        letter = DeadLetter(
            DeadLetterReason.REJECTED, Origin(field.orders, 0, 0), 1, 3, 2, 3, "ValueError", "no stock", "loyalty"
        )
        queue, lease = encode_lock(LockRecord(LockKind.CLAIM, f"loyalty/{field.orders}/0", 7, "host-1"))
        field.write(
            Record(letters, SECRET, b"customer-7", [(DLQ_HEADER, encode_dead_letter(letter))]),
            Record(field.topic("locks"), lease, queue),
        )

    def read(self, spark: SparkSession) -> None:
        """Bronze and the ledger up to now."""
        bronze = BronzeSettings(
            root=f"{self.folder}/bronze", namespace=self.field.namespace, bootstrap_servers=self.field.servers
        )
        read_new(spark, bronze, now_ms=now_ms)
        self.judge(spark, "ledger")

    def judge(self, spark: SparkSession, ledger: str) -> dict[tuple[str, str], str]:
        """{transaction, with its nonce: its verdict} in a ledger of that name."""
        update_ledger(spark, LedgerSettings(bronze=f"{self.folder}/bronze", root=f"{self.folder}/{ledger}", grace_ms=0))
        return {(row.txn_id, row.nonce): row.verdict for row in read_ledger(spark, f"{self.folder}/{ledger}").collect()}

    def settings(self, kind: Format = Format.PARQUET) -> TableSettings:
        return TableSettings(data=str(self.folder), format=kind, into=f"{self.folder}/{kind.value}")


def check_answers(answers: list[list[dict[str, Any]]], audit: Audit) -> None:
    """What the ten questions must be answered."""
    well, undecided, abandons, customer, by_hand, latency, asked, again, letters, leases = answers
    orders = audit.field.orders
    assert {"lost": 1, "ok": 1, "open": 1, "rolled_back": 2} == {r["verdict"]: r["transactions"] for r in well}
    assert [audit.open.txn_id] == [r["txn_id"] for r in undecided]
    assert [(GROUP, 5, 1, 1)] == [tuple(r.values()) for r in abandons]
    assert [(orders, audit.good.txn_id, SECRET.decode())] == [(r["topic"], r["txn_id"], r["value"]) for r in customer]
    assert [(audit.by_hand.txn_id, "rollback", "zoe: ticket 12")] == [tuple(r.values())[1:] for r in by_hand]
    assert [1] == [r["transactions"] for r in latency]
    assert all(0 <= r["p50"] <= r["p99"] < 600_000 for r in latency)
    assert [(GROUP, 1, 1)] == [tuple(r.values()) for r in asked]
    assert [(audit.good.txn_id, 2)] == [(r["txn_id"], r["attempts"]) for r in again]
    assert [("loyalty", orders, "rejected", "ValueError", 1, 3)] == [tuple(r.values()) for r in letters]
    assert [("loyalty", orders, 0, 1, "host-1")] == [tuple(r.values()) for r in leases]


@pytest.fixture(scope="module")
def audit(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audit]:
    """Read once, and written as tables of Parquet."""
    audit = Audit(broker.bootstrap_servers, tmp_path_factory.mktemp("audit"))
    audit.read(spark)
    assert 1 == update_tables(spark, audit.settings())
    yield audit
    for name in ("bronze", "ledger", "events", *VIEWS):
        spark.catalog.dropTempView(name)


@pytest.mark.nightly
def test_every_question_of_the_page_is_answered(spark: SparkSession, audit: Audit) -> None:
    assert 10 == len(QUESTIONS)
    open_tables(spark, audit.settings().into)

    check_answers([[row.asDict() for row in spark.sql(query).collect()] for query in QUESTIONS], audit)
    for name, columns in (("bronze", BRONZE), ("events", EVENTS)):
        found = {f.name: f.dataType.simpleString() for f in spark.table(name).schema}
        assert {name: kind.simpleString() for name, (kind, _) in columns.items()} == found


def test_the_page_has_every_column() -> None:
    page = (ROOT / "docs" / "howto" / "spark-tables.md").read_text("utf-8")

    rows = re.findall(
        r"^\| `([a-z_]+)` \| (string|int|bigint|timestamp|date|binary|array<.+>) \| (.+) \|$", page, re.MULTILINE
    )

    wanted = [*BRONZE.items(), *EVENTS.items()]
    assert [(name, kind.simpleString(), meaning) for name, (kind, meaning) in wanted] == rows


@pytest.mark.nightly
def test_what_is_new_is_added_once_and_what_is_a_persons_or_old_is_gone(spark: SparkSession, audit: Audit) -> None:
    field, settings = audit.field, audit.settings()
    field.commit(audit.open)
    field.forward(audit.open)
    new = field.whole()
    audit.read(spark)

    def rows(name: str) -> list[Row]:
        return spark.read.parquet(f"{settings.into}/{name}").collect()

    # Killed before its note, and done again.
    (noted,) = Path(settings.data, "tables").glob("*/runs")
    before = {path: path.read_bytes() for path in noted.iterdir()}
    assert 2 == update_tables(spark, settings)
    for path in noted.iterdir():
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)
    assert 2 == update_tables(spark, settings)

    records = [(row.topic, row.partition, row.offset) for row in rows("bronze")]
    assert len(set(records)) == len(records) == spark.read.parquet(f"{settings.data}/bronze/v1/records").count()
    events = [(row.topic, row.partition, row.offset, row.line) for row in rows("events")]
    assert len(set(events)) == len(events)
    verdicts = {(row.txn_id, row.nonce): row.verdict for row in rows("ledger")}
    assert 6 == len(rows("ledger")) == len(verdicts)
    is_ok = {key for key, verdict in verdicts.items() if verdict == "ok"}
    assert {tuple(txn.key.split("/")) for txn in (audit.good, audit.open, new)} == is_ok

    # half twice, orders twice, one dead letter
    assert 5 == bronze_job.erase(spark, f"{settings.data}/bronze", "customer-7")
    assert 5 == erase_key(spark, settings, "customer-7")
    assert [] == [row.value for row in rows("bronze") if row.value == SECRET]
    assert len(records) == len(rows("bronze"))
    held = spark.read.parquet(f"{settings.data}/bronze/v1/records")
    assert 0 == held.where(F.col("value") == F.lit(SECRET)).count()
    assert verdicts == audit.judge(spark, "ledger-anew")
    assert 0 == bronze_job.erase(spark, f"{settings.data}/bronze", "customer-7")

    again = replace(settings, into=f"{settings.into}/../parquet")
    with pytest.raises(UsageError, match="another name"):
        update_tables(spark, again)
    about = Path(settings.data, "bronze", "v1", "about.json")
    was = about.read_text("utf-8")
    about.with_name(".about.json.crc").unlink()  # Hadoop's, of what was there
    about.write_text(json.dumps({**json.loads(was), "id": "begun-anew"}), "utf-8")
    with pytest.raises(UsageError, match="another bronze"):
        update_tables(spark, settings)
    about.write_text(was, "utf-8")

    expire_tables(spark, settings, keep_ms=DAY_MS)
    assert len(records) == len(rows("bronze"))
    expire_tables(spark, settings, keep_ms=-2 * DAY_MS)
    assert [] == list(Path(settings.into).glob("*/day=*"))


def test_a_ledger_that_was_removed_and_is_built_anew_is_in_the_tables_as_a_whole(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    bronze = BronzeSettings(root=f"{tmp_path}/bronze", namespace=field.namespace, bootstrap_servers=field.servers)
    ledger = LedgerSettings(bronze=bronze.root, root=f"{tmp_path}/ledger", grace_ms=0)
    settings = TableSettings(data=str(tmp_path), into=f"{tmp_path}/parquet")

    def run() -> None:
        field.whole()
        read_new(spark, bronze, now_ms=now_ms)
        update_ledger(spark, ledger)
        update_tables(spark, settings)

    run()
    run()
    shutil.rmtree(ledger.root)
    run()

    assert 3 == Table(spark, settings, "ledger").read().count()


def test_the_tables_keep_what_bronze_keeps_whatever_this_machine_s_clock_says(
    spark: SparkSession, audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update_tables(spark, replace(audit.settings(), into=str(tmp_path)))
    folders = sorted(tmp_path.glob("*/day=*"))
    monkeypatch.setattr("txlayer.cli.spark.spark_session", lambda **_: nullcontext(spark))
    monkeypatch.setattr(time, "time", lambda: (now_ms() + 400 * DAY_MS) / 1000)

    command = ["expire", "--older-than", "90d", "--data", str(audit.folder), "--into", str(tmp_path)]
    done = CliRunner().invoke(app, command)

    assert 0 == done.exit_code, done.output
    assert 3 <= len(folders)
    assert folders == sorted(tmp_path.glob("*/day=*"))


def day(number: int) -> date:
    """A day of one month."""
    return date(2026, 1, number)


def test_a_message_is_shown_with_its_own_content_where_its_topic_was_made_anew(spark: SparkSession) -> None:
    times = [datetime(2026, 1, number, tzinfo=UTC) for number in (1, 2)]
    events = [(f"txn-{number}", "t", 0, 5, at, 0, 1, "forwarded", day(1), 1) for number, at in enumerate(times)]
    # Its runs are folded, those of the events are not.
    records = [("t", 0, 5, at, "forwarded", b"k", b"%d" % number, 3) for number, at in enumerate(times)]
    columns = "txn_id STRING, topic STRING, partition INT, offset BIGINT, at TIMESTAMP, index INT, count INT, event STRING, day DATE, run INT"
    spark.createDataFrame(events, columns).createOrReplaceTempView("anew_events")
    columns = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, kind STRING, key BINARY, value BINARY, run INT"
    spark.createDataFrame(records, columns).createOrReplaceTempView("anew_bronze")

    rows = spark.sql(views_over(("events", "bronze"), prefix="anew_")["anew_messages"]).collect()

    assert [("txn-0", b"0"), ("txn-1", b"1")] == sorted((row.txn_id, bytes(row.value)) for row in rows)
    for name in ("anew_events", "anew_bronze"):
        spark.catalog.dropTempView(name)


@pytest.mark.fault("Spark: a person's data are erased that doubt holds, or that a killed job left")
def test_what_a_person_sent_is_gone_from_doubt_too_and_from_what_a_killed_job_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = TableSettings(data=str(tmp_path), into=f"{tmp_path}/parquet")
    catalog, table = Catalog(spark, f"{tmp_path}/bronze"), Table(spark, settings, "bronze")
    held = [(codec.HALF_HEADER, b"1|a/00000001|g|t|0/1|5|"), (codec.KEY_HEADER, b"customer-7")]
    columns = "topic STRING, partition INT, offset BIGINT, kind STRING, key BINARY, value BINARY"
    columns += ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    records = [
        ("n.half", 0, 0, "half", b"customer-7", SECRET, held[:1]),
        ("n.doubt", 0, 0, "doubt", b"a/00000001/0", SECRET, held),
        ("n.doubt", 0, 1, "doubt", b"origin/n.half/0/7", SECRET, held[1:]),
        ("n.doubt", 0, 2, "doubt", b"a/00000001", b"of another", None),
        ("t", 0, 0, "forwarded", b"customer-8", b"of another", []),
        ("g.t.replay", 0, 0, "replay", b"customer-7", b"1|R|ticket-12|17|zoe: mended", None),
        ("g.t.replay", 0, 1, "replay", b"customer-7", b"1|E|ticket-12|17|failed|" + SECRET, None),
    ]
    rows = spark.createDataFrame(records, columns)
    rows = rows.withColumns({"day": F.lit(day(1)), "run": F.lit(1).cast("bigint")})
    folder = catalog.path_of(BatchFolder(0, 0, 0))
    rows.drop("run").write.options(**WRITING).partitionBy("kind", "day").parquet(folder)
    table.put(bronze_rows(catalog.records([BatchFolder(0, 0, 0)]), 1), F.lit(True))
    # By a batch, and by a run, that were killed.
    left = [Path(catalog.path_of(BatchFolder(0, 1, 1))), Path(table.path, "_new", "day=2026-01-01")]
    for path in left:
        path.mkdir(parents=True)
        (path / "part.parquet").write_bytes(SECRET)

    erased = bronze_job.erase(spark, f"{tmp_path}/bronze", "customer-7"), erase_key(spark, settings, "customer-7")

    assert (5, 5) == erased
    for found in (catalog.records(catalog.complete()), table.read()):
        kept = found.collect()
        assert (7, 2) == (len(kept), sum(row.value == b"of another" for row in kept))
        assert [] == [row for row in kept if SECRET in (row.value or b"") or row.key == b"customer-7"]
    assert [] == [path for path in left if path.exists()]


@pytest.mark.fault("Spark: tables are killed while days of them are written anew")
def test_the_table_of_the_ledger_has_each_row_once_as_it_is_now(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settled row is judged anew where others of its key are; a row leaves its day; a run is killed between two folders."""
    table = Table(spark, TableSettings(data=str(tmp_path), into=str(tmp_path)), "ledger")

    def put(run: int, *rows: tuple[str, str, int, int, int], is_order_judged: bool = False) -> None:
        ledger = spark.createDataFrame(
            [
                (txn, "n", verdict, is_settled, judged, datetime(2026, 1, at, tzinfo=UTC))
                for txn, verdict, is_settled, judged, at in rows
            ],
            "txn_id STRING, nonce STRING, verdict STRING, is_settled INT, run INT, stored_at TIMESTAMP",
        )
        for name in ("born_at", "decided_at", "forwarded_at", "first_checked_at"):
            ledger = ledger.withColumn(name, F.col("stored_at"))
        table.finish()
        _put_ledger(table, ledger, run - 1, run, is_order_judged=is_order_judged)

    def there() -> list[tuple[str, str, date]]:
        return sorted((row.txn_id, row.verdict, row.day) for row in table.read().collect())

    put(1, ("late", "out_of_order", 1, 1, 1), ("moves", "open", 0, 1, 2))
    put(2, ("late", "ok", 1, 1, 1), ("moves", "open", 0, 2, 3), is_order_judged=True)
    assert [("late", "ok", day(1)), ("moves", "open", day(3))] == there()

    moved: list[str] = []
    rename = Folder.rename

    def killed(folder: Folder, names: Sequence[str], to: Sequence[str]) -> None:
        if moved:
            raise KeyboardInterrupt
        moved.extend(to)
        rename(folder, names, to)

    more = [("moves", "ok", 1, 3, 3), ("new", "ok", 1, 3, 4), ("late", "ok", 1, 1, 1)]
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            put(3, *more)
    put(3, *more)
    assert [("late", "ok", day(1)), ("moves", "ok", day(3)), ("new", "ok", day(4))] == there()


@pytest.mark.fault(
    "Spark: sessions of one folder have different time zones, or take no types from the names of folders"
)
def test_a_row_of_the_ledger_is_in_one_day_whatever_time_zone_a_session_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first row is of 3:00 in UTC, which is the evening of the day before in New York; the second one comes there."""
    table = Table(spark, TableSettings(data=str(tmp_path), into=str(tmp_path)), "ledger")

    def put(run: int, zone: str, *ids: str) -> None:
        with time_zone(spark, zone):
            ledger = spark.range(1).select(F.explode(F.array(*map(F.lit, ids))).alias("txn_id"))
            three = F.timestamp_millis(F.lit(int(datetime(2026, 1, 2, 3, tzinfo=UTC).timestamp() * 1000)))
            names = ("stored_at", "born_at", "decided_at", "forwarded_at", "first_checked_at")
            rest = {"nonce": F.lit("n"), "verdict": F.lit("ok"), "is_settled": F.lit(1), **dict.fromkeys(names, three)}
            ledger = ledger.withColumns({**rest, "run": F.substring("txn_id", 5, 1).cast("int")})
            _put_ledger(table, ledger, run - 1, run, is_order_judged=False)

    put(1, "UTC", "txn-1")
    put(2, "America/New_York", "txn-1", "txn-2")
    put(3, "UTC", "txn-1", "txn-2", "txn-3")

    found = sorted((row.txn_id, row.day) for row in table.read().collect())
    assert [(f"txn-{run}", day(2)) for run in (1, 2, 3)] == found


@pytest.mark.fault(
    "Spark: sessions of one folder have different time zones, or take no types from the names of folders"
)
def test_a_record_is_in_the_day_of_utc_whatever_time_zone_a_session_has(spark: SparkSession) -> None:
    three = F.timestamp_millis(F.lit(int(datetime(2026, 1, 2, 3, tzinfo=UTC).timestamp() * 1000)))
    columns = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestampType INT"
    at = [(f"n.{kind}", 0, offset, None, None, offset) for kind in ("half", "op") for offset in (1, 0)]
    headers = F.array(F.struct(F.lit("txl-id").alias("key"), F.lit(b"a").alias("value")))
    at += [
        (topic, 0, 0, None, None, 0)
        for topic in ("orders", "g.orders.dlq", "g.orders.replay", "n.check", "n.locks", "n.doubt")
    ]
    records = spark.createDataFrame(at, columns).withColumns({"timestamp": three, "headers": headers})

    def days() -> set[tuple[str, int, date]]:
        rows = to_bronze(records, namespace="n", batch=0, now_ms=read_ms)
        found = {(row.topic, row.offset, row.day) for row in rows.collect()}
        assert found == {(row.topic, row.offset, row.day) for row in event_rows(rows, 1).collect()}
        return found

    # Of a producer's time bronze takes the day on which it reads, and the events take that of bronze.
    read_ms = int(datetime(2026, 1, 3, 23, 59, tzinfo=UTC).timestamp() * 1000)
    with time_zone(spark, "Pacific/Kiritimati"):
        ahead = days()
    with time_zone(spark, "Pacific/Niue"):
        behind = days()

    assert {(topic, offset, day(2 if offset else 3)) for topic, _, offset, *_ in at} == ahead == behind


@contextmanager
def time_zone(spark: SparkSession, name: str) -> Iterator[None]:
    """That of the session, for the time of the block."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", name)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.fault("Spark: tables are killed while days of them are written anew")
@pytest.mark.parametrize("step", range(14))
def test_a_day_of_folded_runs_is_the_old_or_the_new_one_wherever_it_is_killed(
    step: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and behind each of the seven steps; runs are files that name their rows."""
    table = Table(spark, TableSettings(data=str(tmp_path), into=str(tmp_path)), "bronze")
    whole, day = Path(table.path), "day=2026-01-01"
    new = whole / "_folded" / day / "2-4" / "run=4"
    for path, rows in ((new, "2 3 4"), *((whole / day / f"run={run}", str(run)) for run in (1, 2, 3, 4, 9))):
        path.mkdir(parents=True)
        (path / "part-0.parquet").write_text(rows, "ascii")
    (new / COMPLETE).touch()
    seen = 0

    def killed_at(work: Callable[..., None]) -> Callable[..., None]:
        def step_by_step(*given: Any) -> None:
            nonlocal seen
            for is_done in (False, True):
                if is_done:
                    work(*given)
                if seen == step:
                    raise KeyboardInterrupt
                seen += 1

        return step_by_step

    def shown() -> list[str]:
        files = (path for path in whole.rglob("*.parquet") if "_folded" not in path.parts)
        return sorted(row for path in files for row in path.read_text("ascii").split())

    with monkeypatch.context() as patched:
        for name in ("rename", "remove", "write_json"):
            patched.setattr(Folder, name, killed_at(getattr(Folder, name)))
        with pytest.raises(KeyboardInterrupt):
            table.finish()
    every = ["1", "2", "3", "4", "9"]
    assert shown() in (every, [])
    table.finish()
    assert every == shown()
    assert {"run=1", "run=4", "run=9"} == {path.name for path in (whole / day).iterdir()}
    assert {day} == {path.name for path in whole.iterdir()}


@pytest.mark.fault("Spark: tables on an object store are killed while the files of a day are moved one by one")
def test_of_a_day_on_an_object_store_each_row_is_there_once_wherever_it_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename copies and deletes the files of a folder, two at a time; before each of them once."""
    left = 0

    def tick() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    def files(path: Path) -> list[Path]:
        return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())

    def rename(folder: Folder, names: Sequence[str], to: Sequence[str]) -> bool:
        source, target = Path(folder.at(*names)), Path(folder.at(*to))
        every = files(source)
        for page in (every[at : at + 2] for at in range(0, len(every), 2)):
            for file in page:
                tick()
                copy = target / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
            for file in page:
                tick()
                file.unlink()
        shutil.rmtree(source, ignore_errors=True)
        return True

    def remove(folder: Folder, *names: str) -> None:
        for file in files(Path(folder.at(*names))):
            tick()
            file.unlink()
        shutil.rmtree(folder.at(*names), ignore_errors=True)

    monkeypatch.setattr(Folder, "_rename", rename)
    monkeypatch.setattr(Folder, "remove", remove)
    expected, is_killed, step = ["1", "2", "3", "4", "new"], True, 0
    while is_killed:
        step += 1
        table = Table(spark, TableSettings(data=str(tmp_path), into=f"{tmp_path}/{step}"), "bronze")
        whole = Path(table.path)
        plant_a_swap(whole)
        left = step
        try:
            table.finish()
            is_killed = False
        except KeyboardInterrupt:
            left = 0
            table.finish()
        shown = (path for path in whole.rglob("*.parquet") if not path.relative_to(whole).parts[0].startswith("_"))
        assert expected == sorted(row for path in shown for row in path.read_text("ascii").split()), step
        assert [] == [path.name for path in whole.iterdir() if path.name.startswith("_")]
    assert 30 < step


def test_of_days_that_are_written_anew_a_kill_hides_at_most_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(spark, TableSettings(data=str(tmp_path), into=str(tmp_path / "into")), "ledger")
    whole, days = Path(table.path), [f"day=2026-01-0{number}" for number in (1, 2, 3)]
    for place in (*days, *(f"_new/{day}" for day in days)):
        (whole / place).mkdir(parents=True)
        (whole / place / "part.parquet").write_text(place, "ascii")
    (whole / "_new" / "_SUCCESS").touch()

    def killed(_folder: Folder, _names: Sequence[str], _to: Sequence[str]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            table.finish()
    shown = [day for day in days if (whole / day).exists()]
    table.finish()

    assert 2 <= len(shown)
    assert [f"_new/{day}" for day in days] == [(whole / day / "part.parquet").read_text("ascii") for day in days]


def plant_a_swap(whole: Path) -> None:
    """Runs 2 and 3 of a day are folded into one of four files, and run 4 of another is written again into three."""
    first, second = "day=2026-01-01", "day=2026-01-02"
    planted = {
        **{f"{first}/run={run}/part-0.parquet": str(run) for run in (1, 2, 3)},
        f"_folded/{first}/2-3/run=3/{COMPLETE}": "",
        **{f"_folded/{first}/2-3/run=3/few-{n}.parquet": rows for n, rows in enumerate(("2", "3", "", ""))},
        f"{second}/run=4/old.parquet": "old",
        f"_new/{COMPLETE}": "",
        **{f"_new/{second}/run=4/new-{n}.parquet": rows for n, rows in enumerate(("new", "4", ""))},
    }
    for name, rows in planted.items():
        path = whole / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rows, "ascii")


def test_of_a_day_what_is_new_is_folded_and_what_is_large_or_not_noted_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer_spark.catalog.SMALL_BYTES", 0)
    settings = TableSettings(data=str(tmp_path), into=f"{tmp_path}/parquet")
    table = Table(spark, settings, "bronze")

    def put(run: int, count: int, *days: int) -> None:
        value = F.unhex(F.sha2(F.concat_ws("-", F.lit(run), "id"), 512))
        days_of = F.explode(F.array(*map(F.lit, map(day, days))))
        records = spark.range(count).select(F.col("id").alias("offset"), value.alias("value"), days_of.alias("day"))
        table.put(bronze_rows(records, run), F.lit(True))

    def rows() -> Counter[tuple[date, bytes]]:
        return Counter((row.day, bytes(row.value)) for row in table.read().collect())

    def files() -> dict[str, set[str]]:
        """{day and run: names of files}."""
        found: dict[str, set[str]] = {}
        for path in Path(table.path).rglob("*.parquet"):
            found.setdefault(f"{path.parts[-3][-1]}/{path.parts[-2]}", set()).add(path.name)
        return found

    put(1, 500, 1)
    for run in (2, 3, 4, 5):
        put(run, 2, 1, 2)
    # The fifth was killed before its note, and will be written again.
    _notes(spark, settings).note({"number": 4}, "runs", kept=2)
    large, expected = files()["1/run=1"], rows()

    assert 6 == compact_tables(spark, settings, runs_min=2)
    assert {"1/run=1", "1/run=4", "1/run=5", "2/run=4", "2/run=5"} == files().keys()
    assert large == files()["1/run=1"]
    assert expected == rows()
    put(5, 2, 1, 2)
    assert expected == rows()
    assert 0 == compact_tables(spark, settings, runs_min=2)


@pytest.mark.nightly
def test_the_commands_do_what_the_page_says(broker: Broker, tmp_path: Path) -> None:
    audit = Audit(broker.bootstrap_servers, tmp_path)
    commands = [
        ["bronze", "-b", audit.field.servers, "-n", audit.field.namespace],
        ["ledger", "--grace", "0s"],
        ["tables"],
        ["compact"],
        ["sql", "SELECT verdict, count(*) AS n FROM transactions WHERE verdict = 'ok' GROUP BY verdict"],
        ["erase", "--key", "customer-7"],
        ["expire", "--older-than", "1d"],
        ["sql", "SELECT nothing FROM nowhere"],
    ]

    ended = in_a_process(COMMANDS, str(tmp_path), json.dumps(commands))

    codes, said = zip(*ended, strict=True)
    assert (*[0] * 7, 2) == codes, said
    assert f"tables: run 1, parquet in {tmp_path}/parquet" in said[2]
    assert "folded in the tables: 0" in said[3]
    assert "verdict\tn\nok\t1\n" in said[4]
    # customer-7: half twice, orders once, a dead letter.
    assert "records erased in bronze: 4, in the tables: 4" in said[5]
    assert "folders of a day ended in bronze: 0; the tables begin with" in said[6]
    assert re.search(r"Spark cannot answer: .*`nowhere`", said[7])
    assert "Traceback" not in said[7]


def in_a_process(program: str, *arguments: str) -> Any:
    """What a program of its own prints last, as JSON."""
    done = run_python(program, *arguments)
    assert 0 == done.returncode, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


COMMANDS = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from txlayer.cli.exits import guard
from txlayer.cli.spark import app

data, commands = sys.argv[1:]
ended = []
for command in json.loads(commands):
    text = StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            code = guard(lambda: app([*command, "--data", data, "--master", "local[2]"]))
        except SystemExit as left:
            code = int(left.code or 0)
    ended.append((code, text.getvalue()))
print(json.dumps(ended))
"""


def test_a_folder_of_delta_is_named_in_spark_s_own_catalog_whatever_the_default_one_is(spark: SparkSession) -> None:
    """With `spark.sql.defaultCatalog` another one, Spark finds no folder under a name without a catalog."""
    settings = TableSettings(data="data", format=Format.DELTA, into="/data/tables")

    assert "spark_catalog.delta.`/data/tables/bronze`" == Table(spark, settings, "bronze").name


def test_a_folder_of_delta_that_is_named_from_here_has_a_whole_name_for_delta(spark: SparkSession) -> None:
    """`tables --format delta` without `--into`, and `--data` without one, too."""
    settings = TableSettings(data="data", format=Format.DELTA, into="data/delta")

    assert f"spark_catalog.delta.`file:{Path.cwd()}/data/delta/bronze`" == Table(spark, settings, "bronze").name


def test_a_table_of_delta_of_which_a_killed_run_wrote_no_version_is_not_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Delta makes the folder of its log first, then the files of rows."""
    table = Table(spark, TableSettings(data="", format=Format.DELTA, into=str(tmp_path)), "bronze")
    log = tmp_path / "bronze" / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log.parent / "part-0.parquet").touch()

    assert not table.exists()
    (log / f"{0:020d}.json").touch()
    assert table.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", WITH_JARS, ids=lambda kind: kind.value)
def test_delta_and_iceberg_answer_every_question(broker: Broker, tmp_path: Path, kind: Format) -> None:
    """By the command line, in processes of their own: the jars must be there when Java starts."""
    audit = Audit(broker.bootstrap_servers, tmp_path)
    field = audit.field

    found = in_a_process(PROGRAM, kind.value, str(tmp_path), field.servers, field.namespace, json.dumps(QUESTIONS))

    check_answers(found["answers"], audit)
    # customer-7: half twice, orders once, a dead letter.
    assert (4, 0) == (found["erased"], found["left"])
    assert found["rows"] == found["rows_again"] == found["rows_folded"] > 10
    assert 2 <= found["folded"]
    assert found["bronze"] == found["at_first"]
    assert 0 == found["rows_expired"]


PROGRAM = """
import json, sys, time
from pathlib import Path
from pyspark.sql import functions as F
from txlayer_spark import open_tables, session
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, update_ledger
from txlayer_spark.jobs.tables import Format, Table, TableSettings, compact_tables, erase_key, expire_tables, update_tables

kind, data, servers, namespace, questions = sys.argv[1:]
spark = session(master="local[2]", memory="1g", tables=kind, settings={"spark.sql.shuffle.partitions": "2"})
now_ms = lambda: int(time.time() * 1000)
read_new(
    spark, BronzeSettings(root=f"{data}/bronze", namespace=namespace, bootstrap_servers=servers), now_ms=now_ms
)
update_ledger(spark, LedgerSettings(bronze=f"{data}/bronze", root=f"{data}/ledger", grace_ms=0))
settings = TableSettings(data=data, format=Format(kind), into=f"{data}/lake")

from txlayer_spark.jobs import tables

def counted():
    return {name: spark.table(name).count() for name in ("bronze", "events", "ledger")}

def opened():
    open_tables(spark, settings.into, format=kind)

# By an earlier release, that has no column `state`; killed before its note, and done again by this one.
kept = tables.EVENTS.pop("state")
update_tables(spark, settings)
opened()
rows_of = counted()
(note,) = Path(data, "tables").glob("*/runs/*1.json")
note.unlink()
tables.EVENTS["state"] = kept
update_tables(spark, settings)
opened()
answers = [[row.asDict() for row in spark.sql(question).collect()] for question in json.loads(questions)]
again = counted()
# As many runs leave it: several small files of a day.
for name in ("bronze", "events"):
    table = Table(spark, settings, name)
    rows = spark.createDataFrame(table.read().collect(), table.read().schema)
    spark.sql(f"DELETE FROM {table.name}")
    for part in rows.randomSplit([1.0, 1.0], seed=1):
        part.writeTo(table.name).append()
# By a run that was killed before its note.
bronze = Table(spark, settings, "bronze")
rows = bronze.read().limit(3).withColumn("run", F.lit(2).cast("bigint"))
killed = spark.createDataFrame(rows.collect(), rows.schema)
killed.writeTo(bronze.name).append()
folded = compact_tables(spark, settings, runs_min=2)
assert 0 == compact_tables(spark, settings, runs_min=2)
bronze.put(killed, F.col("run") == 2)
assert 3 == bronze.read().where("run = 2").count()
spark.sql(f"DELETE FROM {bronze.name} WHERE run = 2")
opened()
folded_rows = counted()
first = 0
if kind == "iceberg":
    first = spark.sql(f"SELECT snapshot_id FROM {bronze.name}.snapshots ORDER BY committed_at").head().snapshot_id
at_first = spark.sql(f"SELECT * FROM {bronze.name} VERSION AS OF {first}").count()
erased = erase_key(spark, settings, "customer-7")
opened()
left = spark.sql("SELECT * FROM bronze WHERE CAST(key AS STRING) = 'customer-7'").count()
expire_tables(spark, settings, keep_ms=-2 * 86_400_000)
opened()
found = {
    "answers": answers, "erased": erased, "left": left, "rows": sum(rows_of.values()), "rows_again": sum(again.values()),
    "rows_expired": sum(counted().values()), "folded": folded, "rows_folded": sum(folded_rows.values()),
    "bronze": rows_of["bronze"], "at_first": at_first,
}
print(json.dumps(found, default=str))
"""
