"""Bronze holds every record of a namespace once: run by run, batch by batch, and after a kill in the middle of one."""

import re
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conftest import Broker
from tests.support.broker import create_topic
from tests.support.logs import read_log
from tests.support.planted import Field, Message
from tests.support.spark_processes import files_in, has_content
from tests.support.topic_records import Record, write_records
from tests.support.waiting import wait_until
from txlayer.errors import TopicMismatchError, UsageError
from txlayer_spark.catalog import (
    SMALL_BYTES,
    BatchFolder,
    Catalog,
    Folder,
    Gap,
    Reader,
    ReadState,
    Turn,
    effective,
    parse_folder,
    worth_folding,
)
from txlayer_spark.jobs.bronze import BronzeSettings, compact, expire, is_subscribed, read_new, subscription, to_bronze
from txlayer_spark.jobs.ledger import LedgerSettings, read_ledger, update_ledger
from txlayer_spark.parse import Values
from txlayer_spark.report import write_report
from txlayer_spark.sessions import failures_as_ours
from txlayer_spark.shelf import Run, Shelf

Place = tuple[str, int, int]
DAY_MS = 86_400_000


def settings_of(field: Field, root: Path, **more: object) -> BronzeSettings:
    """Where from and where to."""
    return BronzeSettings(
        root=str(root),
        namespace=field.namespace,
        bootstrap_servers=field.servers,
        **more,  # type: ignore[arg-type]  # settings by name
    )


def places(spark: SparkSession, root: Path) -> Counter[Place]:
    """How often each record is in bronze."""
    catalog = Catalog(spark, str(root))
    rows = catalog.records(effective(catalog.complete())).select("topic", "partition", "offset")
    return Counter((row.topic, row.partition, row.offset) for row in rows.collect())


def in_topics(field: Field, *more: str) -> Counter[Place]:
    """Each record that the topics hold, once."""
    topics = [field.topic(role) for role in ("half", "op", "doubt", "check", "locks")]
    logs = read_log(field.servers, [*topics, *more])
    return Counter((r.topic, r.partition, r.offset) for log in logs.values() for r in log)


def clock() -> int:
    """A time that stands still."""
    return 1_700_000_000_000


def running() -> int:
    """This machine's."""
    return int(time.time() * 1000)


def test_folders_that_another_one_covers_are_not_read() -> None:
    single = [BatchFolder(1, n, n) for n in range(4)]
    folded = BatchFolder(1, 0, 2)
    other_reader = BatchFolder(2, 1, 1)

    assert [folded, single[3], other_reader] == effective([*single, folded, other_reader])
    assert folded == parse_folder(f"folder={folded.name}")
    assert [None] * 3 == [parse_folder(name) for name in ("_temporary", "folder=1-2", "folder=a-b-c")]


def test_what_is_folded_is_what_is_new() -> None:
    folders = [BatchFolder(0, n, n) for n in range(5)]

    def folded(*sizes: int) -> list[int]:
        by_folder = dict(zip(folders, (size * SMALL_BYTES for size in sizes), strict=True))
        return [folder.first for folder in worth_folding(by_folder)]

    assert [0, 1, 2, 3, 4] == folded(1, 1, 1, 1, 1)
    assert [1, 2, 3, 4] == folded(50, 1, 1, 1, 1)
    assert [2, 3, 4] == folded(50, 8, 2, 2, 2)
    assert [0, 1, 2, 3, 4] == folded(6, 1, 1, 2, 2)
    assert [0, 1, 2, 3, 4] == folded(1, 1, 1, 50, 0)


def test_notes_of_a_later_release_are_read_without_the_fields_that_this_one_does_not_know(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog, shelf = Catalog(spark, str(tmp_path)), Shelf(spark, str(tmp_path))
    reader = Reader(0, ("n.half",), at_ms=5, last_batch=3, is_system=True)
    state = ReadState(1, readers=(reader,), topics=("orders",), gaps=(Gap("orders", 0, 1, 2),))
    later = {
        **asdict(state),
        "readers": [{**asdict(reader), "later": 1}],
        "gaps": [("orders", 0, 1, 2, "later")],
        "later": 1,
    }

    catalog.folder.note(later, "reads", kept=1)
    shelf.folder.note({**asdict(Run(1, 5)), "later": 1}, "runs", kept=1)

    assert (state, Run(1, 5)) == (catalog.state(), shelf.last())


def test_thousands_of_folders_are_not_asked_for_one_by_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path with a comma is none of two; what no cut holds, and what was folded, is looked at."""
    catalog = Catalog(spark, str(tmp_path / "a, b"))
    catalog.store(ReadState(readers=(Reader(0, ("orders",), last_batch=999),)))
    singles = [BatchFolder(0, n, n) for n in range(1000)]
    unfinished, folded, later, unread = (
        BatchFolder(0, 0, 10),
        BatchFolder(0, 20, 30),
        BatchFolder(0, 1000, 1000),
        BatchFolder(0, 1001, 1001),
    )
    for folder in (*singles, unfinished, folded, later, unread):
        Path(catalog.path_of(folder)).mkdir(parents=True)
    for folder in (folded, later):
        (Path(catalog.path_of(folder)) / "_SUCCESS").touch()
    asked: list[tuple[str, ...]] = []
    has = Folder.has

    def counted(folder: Folder, *names: str) -> bool:
        asked.append(names)
        return has(folder, *names)

    monkeypatch.setattr(Folder, "has", counted)

    found = catalog.complete()

    assert {*singles, folded, later} == set(found)
    assert 4 == len(asked)


@pytest.mark.kafka
def test_every_record_is_there_once_byte_for_byte_also_of_topics_that_half_records_name(
    spark: SparkSession, field: Field, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letters, too: also where a real topic's name ends with another's."""
    settings = settings_of(field, tmp_path)
    # Spark's clock is this machine's, too.
    monkeypatch.setattr(F, "current_timestamp", lambda: F.timestamp_millis(F.lit(clock())))
    others = create_topic(field.servers, f"x.{field.orders}")
    letters = create_topic(field.servers, f"g.{others}.dlq")
    write_records(field.servers, [Record(letters, b"letter")])
    never = (Message(field.topic("op")), Message(f"group.{field.orders}.dlq"), Message("__consumer_offsets"))
    txn = field.prepare(Message(field.orders, headers=[("a", b"1")]), Message("never-created"), *never)
    field.commit(txn)
    field.forward(txn, 0)

    state = read_new(spark, settings, now_ms=clock)

    assert in_topics(field, field.orders, letters) == places(spark, tmp_path)
    assert {field.orders, "never-created"} == set(state.topics) == state.real_topics
    assert ("shop",) == state.groups
    # This machine's clock is years behind.
    assert state.cut_ms is not None
    assert running() - state.cut_ms < DAY_MS

    field.whole(Message(field.stock), Message(others))
    headers: list[tuple[str, bytes | None]] = [("twice", b"\xff"), ("twice", None)]
    odd = field.whole(Message(field.orders, key=None, value=b"\x00\xff", headers=headers))
    state = read_new(spark, settings, now_ms=clock)

    assert in_topics(field, field.orders, field.stock, others, letters) == places(spark, tmp_path)
    assert {0, 1, 2} == {reader.number for reader in state.readers}
    assert 1 == state.readers[1].end_offsets[field.orders]["0"] - 1
    catalog = Catalog(spark, str(tmp_path))
    rows = {(r.topic, r.partition, r.offset): r for r in catalog.records(effective(catalog.complete())).collect()}
    assert {"half", "op", "forwarded", "dlq"} == {row.kind for row in rows.values()}
    *_, record = read_log(field.servers, [field.orders])[field.orders]
    found = rows[record.topic, record.partition, record.offset]
    assert (None, b"\x00\xff", headers) == (record.key, record.value, record.headers[:2])
    assert (record.key, record.value) == (found.key, bytes(found.value))
    assert record.headers == [(h.key, None if h.value is None else bytes(h.value)) for h in found.headers]
    assert record.timestamp_ms == round(found.timestamp.timestamp() * 1000)
    assert (field.topic("half"), odd.partition, odd.offsets[0]) in rows
    written = tmp_path / "v1" / "records"
    assert list(written.glob(f"folder=*/kind=half/day={found.day}/*.parquet"))
    # What has its producer's time is kept as long as the half record that it came from.
    assert {True, False} == {row.is_append_time for row in rows.values()}
    assert all((found.day - row.day).days <= 1 for row in rows.values())


@pytest.mark.kafka
@pytest.mark.nightly
def test_a_bronze_of_hashes_holds_nothing_that_a_user_sent_and_its_ledger_says_the_same(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    person = b"a-person"
    message = Message(field.orders, key=person, value=person, headers=[("who", person), ("none", None)])
    good, changed, held = field.whole(message), field.prepare(message), field.prepare(message)
    field.commit(changed)
    field.forward(field.moved(changed, value=b"a-person or another"))
    field.doubt(held, "parked", "too-old")
    field.check(held, 1)
    letters, replays = (create_topic(field.servers, f"g.{field.orders}.{kind}") for kind in ("dlq", "replay"))
    aside = f"origin/{field.topic('half')}/0/99".encode()
    others = [
        Record(letters, person, person, [("who", person), ("txl-dlq", b"of a-person")]),
        Record(replays, b"1|R|ticket-12|0|zoe: mended", person),
        Record(replays, b"1|E|ticket-12|0|failed|ValueError%3A a-person", person),
        Record(field.topic("doubt"), person, aside, [("txl-key", person), ("txl-why", person)]),
        Record(field.orders, person, person, [("who", person)]),
        Record(field.topic("check"), b"1|Q|a/00000001|shop|0|17|5|1|", b"a", [("txl-key", person), ("who", person)]),
    ]
    write_records(field.servers, others)
    roots = {values: tmp_path / values.value for values in Values}
    verdicts = {}

    for values, root in roots.items():
        read_new(spark, settings_of(field, root, values=values), now_ms=running)
        update_ledger(spark, LedgerSettings(bronze=str(root), root=str(root / "ledger")))
        verdicts[values] = {row.txn_id: row.verdict for row in read_ledger(spark, str(root / "ledger")).collect()}

    assert places(spark, roots[Values.FULL]) == places(spark, roots[Values.HASH])
    assert {"ok", "corrupt", "parked"} == {verdicts[Values.FULL][txn.txn_id] for txn in (good, changed, held)}
    assert verdicts[Values.FULL] == verdicts[Values.HASH]
    catalog = Catalog(spark, str(roots[Values.HASH]))
    rows = catalog.records(catalog.complete()).collect()
    assert [] == [row for row in rows if "person" in str(row)]
    with pytest.raises(UsageError, match="--values hash"):
        read_new(spark, settings_of(field, roots[Values.HASH]), now_ms=clock)


@pytest.mark.kafka
def test_a_job_killed_around_the_note_of_a_batch_has_it_once_and_knows_the_names_in_it(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    settings = settings_of(field, tmp_path)
    field.whole()
    read_new(spark, settings, now_ms=clock)

    # As a kill leaves it when Spark has noted the batch: what was written later is not there.
    system = tmp_path / "v1" / "checkpoints" / "000"
    noted_ns = (system / "commits" / "0").stat().st_mtime_ns
    for path in (tmp_path / "v1").rglob("*"):
        is_later = path.is_file() and path.stat().st_mtime_ns > noted_ns
        if is_later and system not in path.parents:
            path.unlink()
    assert [0] == [f.reader for f in Catalog(spark, str(tmp_path)).complete()]
    state = read_new(spark, settings, now_ms=clock)

    assert (("shop",), (field.orders,)) == (state.groups, state.topics)
    expected = in_topics(field, field.orders)
    assert expected == places(spark, tmp_path)

    # As a kill before that leaves it: each batch was written, and none is noted.
    for commits in (tmp_path / "v1" / "checkpoints").glob("*/commits"):
        shutil.rmtree(commits)
        commits.mkdir()
    read_new(spark, settings, now_ms=clock)

    assert expected == places(spark, tmp_path)


@pytest.mark.kafka
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_checkpoint_that_was_deleted_or_put_back_from_a_copy_doubles_no_record_and_hides_none(
    spark: SparkSession, field: Field, tmp_path: Path, *, is_copy: bool
) -> None:
    """Spark would begin at batch 0, or at an earlier one, of which the ledger has read all."""
    settings, checkpoint, copy = (
        settings_of(field, tmp_path),
        tmp_path / "v1" / "checkpoints" / "000",
        tmp_path / "copy",
    )
    field.whole()
    read_new(spark, settings, now_ms=clock)
    shutil.copytree(checkpoint, copy)
    field.whole()
    read_new(spark, settings, now_ms=clock)
    expected = in_topics(field, field.orders)

    shutil.rmtree(checkpoint)
    if is_copy:
        shutil.copytree(copy, checkpoint)
    field.whole()
    with pytest.raises(UsageError, match="restored from a copy"):
        read_new(spark, settings, now_ms=clock)

    found = places(spark, tmp_path)
    assert expected.items() <= found.items()
    assert {1} == set(found.values())


@pytest.mark.kafka
def test_what_a_killed_run_left_of_a_batch_does_not_count_and_ends_with_what_is_old_or_folded(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    field.whole()
    read_new(spark, settings_of(field, tmp_path), now_ms=running)
    catalog, batch = Catalog(spark, str(tmp_path)), BatchFolder(0, 0, 0)
    left, again = Path(catalog.path_of(batch)), catalog.begin(batch)
    shutil.copytree(left, catalog.path_of(again), dirs_exist_ok=True)
    (left / "_SUCCESS").unlink()

    assert again == batch._replace(edition=1)
    assert in_topics(field, field.orders) == places(spark, tmp_path)
    expire(spark, str(tmp_path), keep_ms=-2 * DAY_MS)
    assert [] == list(tmp_path.glob("v1/records/**/*.parquet"))
    compact(spark, str(tmp_path))
    assert not left.exists()


def test_a_note_that_another_job_has_put_down_is_not_written_over(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path))
    folder.write_json({"first": True}, "notes", "1.json")

    with pytest.raises(UsageError, match="run one at a time"):
        folder.write_json({"first": False}, "notes", "1.json")

    assert {"first": True} == folder.read_json("notes", "1.json")


@pytest.mark.kafka
def test_of_two_runs_in_one_folder_the_one_that_began_first_writes_nothing_more(
    spark: SparkSession, field: Field, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a batch that the other one has noted: killed meanwhile it would have ended records that nobody reads again."""
    settings = settings_of(field, tmp_path)
    field.whole()

    def while_another_begins(*args: Any, **named: Any) -> DataFrame:
        Turn(Catalog(spark, str(tmp_path)).folder, "bronze").begin()
        return to_bronze(*args, **named)

    with monkeypatch.context() as patched:
        patched.setattr("txlayer_spark.jobs.bronze.to_bronze", while_another_begins)
        with pytest.raises(UsageError, match="another run of bronze"):
            read_new(spark, settings, now_ms=clock)

    assert [] == list(tmp_path.rglob("*.parquet"))
    read_new(spark, settings, now_ms=clock)
    assert in_topics(field, field.orders) == places(spark, tmp_path)


@pytest.mark.kafka
def test_bronze_of_another_namespace_is_left_alone(spark: SparkSession, field: Field, tmp_path: Path) -> None:
    Catalog(spark, str(tmp_path)).claim("another")

    with pytest.raises(UsageError, match="namespace 'another'"):
        read_new(spark, settings_of(field, tmp_path), now_ms=clock)


@pytest.mark.kafka
def test_compaction_keeps_every_record_once_in_fewer_files_and_days_that_are_too_old_are_ended(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    settings = settings_of(field, tmp_path, batch_offsets_max=5)
    for _ in range(4):
        field.whole(Message(field.orders), Message(field.stock))
    read_new(spark, settings, now_ms=clock)
    expected = places(spark, tmp_path)
    before = len(list(tmp_path.rglob("*.parquet")))

    compact(spark, str(tmp_path), folders_min=2)

    assert expected == places(spark, tmp_path)
    # What is covered goes with the next run: a job that reads it now goes on.
    compact(spark, str(tmp_path), folders_min=2)
    assert expected == places(spark, tmp_path) == in_topics(field, field.orders, field.stock)
    assert before > len(list(tmp_path.rglob("*.parquet")))

    txn = field.whole()
    later_ms = txn.born_ms + 10 * DAY_MS
    read_new(spark, settings, now_ms=lambda: later_ms)
    assert in_topics(field, field.orders, field.stock) == places(spark, tmp_path)

    assert 0 == expire(spark, str(tmp_path), keep_ms=12 * DAY_MS)
    assert in_topics(field, field.orders, field.stock) == places(spark, tmp_path)
    assert 3 <= expire(spark, str(tmp_path), keep_ms=8 * DAY_MS)
    assert {} == places(spark, tmp_path)

    field.whole()
    read_new(spark, settings, now_ms=lambda: later_ms)
    assert 3 == len(places(spark, tmp_path))


def test_a_session_that_keeps_no_progress_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Bronze would not know how far it has read, and what is lost would not be judged."""
    kept = "spark.sql.streaming.numRecentProgressUpdates"
    spark.conf.set(kept, "1")
    try:
        with pytest.raises(UsageError, match=kept):
            read_new(
                spark, BronzeSettings(root=str(tmp_path), namespace="n", bootstrap_servers="127.0.0.1:9"), now_ms=clock
            )
    finally:
        spark.conf.unset(kept)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.kafka
def test_a_namespace_without_topics_is_told_as_such(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    settings = BronzeSettings(root=str(tmp_path), namespace="never-made", bootstrap_servers=broker.bootstrap_servers)

    with pytest.raises(TopicMismatchError, match="txlayer topics apply"), failures_as_ours():
        read_new(spark, settings, now_ms=clock)


@pytest.mark.fault(
    "Spark: a topic is shortened by retention, compacted, deleted, or ends at the open Kafka transaction of a stranger"
)
@pytest.mark.kafka
def test_gaps_that_retention_left_are_noted_and_stop_nothing(spark: SparkSession, field: Field, tmp_path: Path) -> None:
    settings = settings_of(field, tmp_path / "bronze")
    whole = field.whole(ordering_key=b"k")
    waiting = field.prepare(ordering_key=b"k")
    field.doubt(waiting, "parked", "too-old")
    assert () == read_new(spark, settings, now_ms=running).gaps
    # Of half, op, doubt and the real topic: three records come, and the first of them goes before it is read.
    gone, kept = (field.whole(ordering_key=b"k") for _ in range(2))
    # A transaction of the same millisecond as the first record behind a gap would count as older than the gap.
    kept_ms = running()
    wait_until(lambda: running() > kept_ms, within=30, what="a later millisecond")
    last = field.whole(ordering_key=b"k")
    for txn in (gone, kept, last):
        field.doubt(txn, "open")
        field.doubt(txn, "ended")
    assert {whole.partition} == {txn.partition for txn in (gone, kept, last)}
    home = whole.partition
    places = [
        (field.topic("half"), home, 3),
        (field.topic("op"), home, 2),
        (field.topic("doubt"), home, 6),
        (field.orders, 0, 2),
    ]
    field.take(*places)

    gaps = read_new(spark, settings, now_ms=running).gaps

    begins = {field.topic("half"): 2, field.topic("op"): 1, field.topic("doubt"): 2, field.orders: 1}
    assert {Gap(t, p, begins[t], end) for t, p, end in places} == set(gaps)
    assert gaps == read_new(spark, settings, now_ms=running).gaps
    ledger = LedgerSettings(bronze=settings.root, root=str(tmp_path / "ledger"), clock_error_ms=0)
    update_ledger(spark, ledger)
    rows = {row.txn_id: row.verdict for row in read_ledger(spark, ledger.root).collect()}
    assert {
        whole.txn_id: "ok",
        kept.txn_id: "out_of_window",
        last.txn_id: "ok",
        waiting.txn_id: "out_of_window",
    } == rows
    page = tmp_path / "report.html"
    summary = write_report(
        spark, bronze=settings.root, ledger=ledger.root, namespace=field.namespace, page=page, made_at=datetime.now(UTC)
    )
    assert 4 == len(summary.gaps)
    assert "retention was faster than bronze" in page.read_text("utf-8")


@pytest.mark.fault(
    "Spark: a topic is shortened by retention, compacted, deleted, or ends at the open Kafka transaction of a stranger"
)
@pytest.mark.kafka
def test_what_retention_took_between_runs_that_were_killed_is_a_gap_and_what_they_had_read_is_none(
    spark: SparkSession, field: Field, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run reads the longest, from the oldest records on."""
    settings = settings_of(field, tmp_path)
    *_, last = (field.whole(ordering_key=b"k") for _ in range(4))
    beside = next(
        txn for txn in (field.whole(Message(field.stock)) for _ in range(99)) if txn.partition != last.partition
    )
    short = [(field.topic("half"), last.partition), (field.topic("op"), last.partition), (field.orders, 0)]
    whole = [(field.topic("half"), beside.partition), (field.topic("op"), beside.partition)]

    def killed_at(step: str) -> None:
        def end(*_: Any, **__: Any) -> DataFrame:
            raise StreamingQueryException("killed")

        with monkeypatch.context() as patched:
            patched.setattr(f"txlayer_spark.jobs.bronze.{step}", end)
            with pytest.raises(StreamingQueryException, match="killed"):
                read_new(spark, settings, now_ms=clock)

    def take(before: int, *more: tuple[str, int]) -> None:
        field.take(*((*place, before) for place in short), *((*place, 1) for place in more))

    take(1)
    killed_at("to_bronze")
    take(2)
    killed_at("_Reading._note_edges")
    take(3, *whole)
    state = read_new(spark, settings, now_ms=clock)

    assert {Gap(topic, partition, 0, 2) for topic, partition in short} == set(state.gaps)
    catalog = Catalog(spark, str(tmp_path))
    counting = catalog.records(catalog.cut(state)).select("topic", "partition", "offset").collect()
    assert {(*place, 2) for place in short} | {(*place, 0) for place in whole} <= set(map(tuple, counting))


@pytest.mark.kafka
def test_a_deleted_topic_and_a_gap_in_locks_stop_nothing(spark: SparkSession, field: Field, tmp_path: Path) -> None:
    settings = settings_of(field, tmp_path)
    locks = [Record(field.topic("locks"), b"{}", b"k") for _ in range(4)]
    write_records(field.servers, locks)
    field.whole(Message(field.orders), Message(field.stock))
    read_new(spark, settings, now_ms=clock)
    before = places(spark, tmp_path)

    field.delete(field.stock)
    write_records(field.servers, locks)
    field.take((field.topic("locks"), 0, 6))
    field.whole()
    for _ in range(2):
        state = read_new(spark, settings, now_ms=clock)

    assert (field.stock,) == state.gone
    assert {field.orders} == state.judged_topics & {field.orders, field.stock}
    assert before | in_topics(field, field.orders) == places(spark, tmp_path)
    assert 4 == len(state.readers)

    # One of that name is read from its beginning.
    create_topic(field.servers, field.stock, partitions=2)
    field.whole(Message(field.stock))
    read_new(spark, settings, now_ms=clock)
    compact(spark, str(tmp_path), folders_min=2)
    again = {(field.stock, 0, 0): 1}
    found = places(spark, tmp_path)
    assert 2 == found.pop((field.stock, 0, 0))
    assert {**in_topics(field, field.orders, field.stock), **before} == {**found, **again}


def test_a_topic_is_subscribed_to_as_the_pattern_says() -> None:
    real = ["orders", "a.b"]
    pattern = re.compile(subscription(real).replace(r"\Q", "").replace(r"\E", ""))
    beside = "orders.dlq g.orders.dlq g.orders.replay .orders.dlq g.h.a.b.dlq g.orders stock g.stock.dlq g.orders.dlq.x gorders.dlq"
    topics = [*real, *beside.split()]

    assert [bool(pattern.fullmatch(t)) for t in topics] == [is_subscribed(t, real) for t in topics]

    later = re.compile(subscription(["x.a.b"], but=real).replace(r"\Q", "").replace(r"\E", ""))
    topics = ["x.a.b", "a.b", "g.x.a.b.dlq", "g.a.b.dlq", "x.a.b.dlq"]
    assert [True, False, False, False, False] == [bool(later.fullmatch(t)) for t in topics]
    assert [True, False, False, False, False] == [is_subscribed(t, ["x.a.b"], but=real) for t in topics]


@pytest.mark.fault("Spark: bronze is killed at any step, also between its readers, while a ledger is made")
@pytest.mark.kafka
@pytest.mark.slow
def test_a_job_killed_in_the_middle_of_a_batch_loses_and_repeats_nothing(
    spark: SparkSession, field: Field, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(field.servers, [Record(field.topic("op"), b"x" * 50, partition=n % 2) for n in range(12_000)])
    root, killed = tmp_path / "data", tmp_path / "killed"
    third = Path("v1", "records", f"folder={BatchFolder(0, 2, 2).name}")

    def standing(raw: DataFrame, *, batch: int, **given: Any) -> DataFrame:
        """The task of one partition sleeps within its rows; the task of the other one ends."""
        rows = to_bronze(raw, batch=batch, **given)
        stands = "partition = 0 AND offset % 100 = 99 AND reflect('java.lang.Thread', 'sleep', 600000L) IS NOT NULL"
        return rows if batch < 2 else rows.where(f"NOT ({stands})")

    def written() -> list[Path]:
        """Whole files of the batch that does not end."""
        return [path for path in files_in(root / third, ".parquet") if has_content(path)]

    def stop() -> None:
        for query in spark.streams.active:
            query.stop()

    def copied() -> bool:
        """False: a file was moved meanwhile, and the copy is of no one moment."""
        try:
            shutil.copytree(root, killed)
        except shutil.Error:
            shutil.rmtree(killed)
            return False
        return True

    with monkeypatch.context() as patched, ThreadPoolExecutor() as beside, ExitStack() as stack:
        stack.callback(stop)  # or a failure here would wait until the task has slept
        patched.setattr("txlayer_spark.jobs.bronze.to_bronze", standing)
        reading = beside.submit(read_new, spark, settings_of(field, root, batch_offsets_max=1500), now_ms=clock)
        wait_until(
            lambda: written() or reading.done(),
            within=300,
            growing=lambda: len(files_in(root, "_SUCCESS")),
            what="the moment of a kill",
        )
        assert not reading.done()
        # The files at this moment are what a kill leaves.
        wait_until(copied, within=60, what="a copy of one moment")
        stop()
        reading.exception(60)

    assert files_in(killed / third, ".parquet")
    assert not (killed / third / "_SUCCESS").exists()
    # The batch that was killed is read again as it was; what is left in one.
    read_new(spark, settings_of(field, killed), now_ms=clock)
    assert in_topics(field) == places(spark, killed)
