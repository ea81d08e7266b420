"""The ledger run by run: what a run reads is what is new and what was open, and in the end it is what one run would say."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrameWriter, SparkSession

from tests.support.planted import PARTITIONS, Field, Message, Transaction
from tests.support.spark_audit import HOUR_MS, Audit
from tests.support.topic_records import Record
from tests.support.waiting import wait_until
from txlayer.core.messages import NO_OPTIONS
from txlayer.core.partitions import half_partition
from txlayer.errors import UsageError
from txlayer_spark.catalog import Catalog
from txlayer_spark.jobs.bronze import compact
from txlayer_spark.jobs.ledger import LedgerSettings, compact_ledger, read_ledger, update_ledger
from txlayer_spark.shelf import LEDGER_VERSION, Run, Shelf

pytestmark = pytest.mark.kafka


class KilledError(Exception):
    """As far as what stands in files is concerned, a kill."""


class Killer:
    """Ends bronze at its n-th step: before a batch, behind one that Spark has not noted, behind a reader, around a note."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody is killed before `at` is set."""
        self.at, self.passed = -1, 0
        points: tuple[tuple[Any, str, bool], ...] = (
            (Catalog, "path_of", True),
            (DataFrameWriter, "parquet", False),
            (Catalog, "last_batch", True),
            (Catalog, "store", True),
            (Catalog, "store", False),
        )
        for owner, name, is_before in points:
            monkeypatch.setattr(owner, name, self._step(getattr(owner, name), is_before=is_before))

    def _step(self, whole: Callable[..., Any], *, is_before: bool) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            if is_before:
                self._pass()
            found = whole(*arguments, **named)
            if not is_before:
                self._pass()
            return found

        return step

    def _pass(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            raise KilledError

    def run(self, at: int, job: Callable[[], None]) -> bool:
        """Whether the job was killed."""
        self.at, self.passed = at, 0
        try:
            job()
        except (KilledError, StreamingQueryException):
            return self.passed >= at
        finally:
            self.at = -1
        return False


@pytest.mark.fault("Spark: bronze is killed at any step, also between its readers, while a ledger is made")
@pytest.mark.nightly
@pytest.mark.parametrize("every", [4, 1])
def test_wherever_bronze_is_killed_a_ledger_says_nothing_that_is_not_so(
    every: int, field: Field, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill at each step, or at each fourth: in its first run, and in one that goes on."""
    killer = Killer(monkeypatch)
    planted: list[Transaction] = []

    def plant() -> None:
        for txn in planted[-1:]:
            field.commit(txn)
            field.forward(txn)
        whole = field.whole(Message(field.orders), Message(field.stock))
        planted.extend((whole, field.prepare(Message(field.stock))))

    def verdicts() -> set[str] | None:
        """None: no run of bronze has come so far that there is a ledger."""
        try:
            return {row.verdict for row in audit.run(reads=False).values()}
        except UsageError as exc:
            if "run txlayer-spark bronze first" in str(exc):
                return None
            raise

    at, is_read_once, refused = 1, False, list[bool]()
    while True:
        plant()
        was_killed = killer.run(at, audit.read)
        found = verdicts()
        refused.append(found is None)
        assert (found or set()) <= {"ok", "overdue"}, f"killed at step {at}"
        at += every
        if not was_killed and is_read_once:
            break
        if not was_killed:
            # The second time begins with another step than the first.
            is_read_once, at = True, (every + 1) // 2
    assert at > 8
    assert sorted(refused, reverse=True) == refused, "there was a ledger, and then none"
    assert refused[0]

    rows = audit.run()
    undecided = {planted[-1].txn_id: "overdue"}
    assert {**{txn.txn_id: "ok" for txn in planted}, **undecided} == {
        txn_id: row.verdict for txn_id, row in rows.items()
    }
    assert rows == audit.run("at once", reads=False)


@pytest.mark.nightly
@pytest.mark.fault("Spark: bronze is killed at any step, also between its readers, while a ledger is made")
def test_a_ledger_beside_bronze_that_goes_on_says_nothing_that_is_not_so(field: Field, audit: Audit) -> None:
    is_over = threading.Event()
    field.whole(Message(field.orders), Message(field.stock))
    audit.read()

    def bronze() -> None:
        while not is_over.is_set():
            field.whole(Message(field.orders), Message(field.stock))
            audit.read()

    beside = threading.Thread(target=bronze)
    beside.start()
    try:
        runs = [audit.run(reads=False) for _ in range(4)]
    finally:
        is_over.set()
        beside.join()

    assert {"ok"} == {row.verdict for rows in runs for row in rows.values()}
    assert len(runs[-1]) > len(runs[0])


@pytest.mark.nightly
@pytest.mark.fault("Spark: half records are read after what followed from them")
def test_half_records_that_are_read_later_heal_what_came_before_them(
    spark: SparkSession, field: Field, tmp_path: Path
) -> None:
    # What is read late is written late here: the times of the broker say nothing of which came first.
    audit = Audit(spark, field, tmp_path, clock_error_ms=HOUR_MS)
    message = Message(field.orders)
    ids = [f"{field.namespace[-6:]}-x{n}" for n in range(40)]
    homes = [half_partition(ordering_key=None, txn_id=i, partition_count=PARTITIONS) for i in ids]
    here = (i for i, home in zip(ids, homes, strict=True) if home == 0)
    elsewhere = ids[homes.index(1)]

    def expected(key: str, offset: int) -> Transaction:
        """What `store` will have written."""
        return Transaction(key, 0, (message,), NO_OPTIONS, int(time.time() * 1000), (offset,))

    def store(txn: Transaction) -> None:
        assert txn == field.prepare(message, key=txn.key, born_ms=txn.born_ms)

    first, second, orphan = (expected(f"{next(here)}/0000000{at}", at) for at in range(3))
    field.commit(first)
    field.whole(Message(field.stock), key=f"{elsewhere}/0000000a")
    assert {elsewhere: "ok"} == {txn_id: row.verdict for txn_id, row in audit.run().items()}

    store(first)
    field.forward(first)
    field.commit(second)
    field.forward(orphan)
    found = audit.run()
    assert ("ok", "orphan") == (found[first.txn_id].verdict, found[orphan.txn_id].verdict)

    for txn in (second, orphan):
        store(txn)
    field.forward(second)
    field.commit(orphan)
    rows = audit.run()
    assert {"ok"} == {row.verdict for row in rows.values()}
    assert rows == audit.run("at once", reads=False)
    by_the_clock = Audit(spark, field, tmp_path).run("by the clock", reads=False)
    assert "leaked" == by_the_clock[orphan.txn_id].verdict


@pytest.mark.nightly
def test_topics_beyond_those_that_a_row_tells_apart_are_judged_as_well(field: Field, audit: Audit) -> None:
    field.roll_back(field.prepare(*(Message(f"never-made-{n}") for n in range(66))))
    audit.run()
    topics = (field.orders, field.orders, field.stock)
    good = [field.whole(Message(topic), ordering_key=b"k") for topic in topics]
    lost = field.prepare(Message(field.stock))
    field.commit(lost)

    rows = audit.run()

    assert {**{txn.txn_id: "ok" for txn in good}, lost.txn_id: "lost"} == {
        txn_id: row.verdict for txn_id, row in rows.items() if row.verdict != "rolled_back"
    }
    assert ["…"] == rows[good[0].txn_id].topics


@pytest.mark.nightly
def test_a_folded_ledger_says_the_same_and_forgets_what_is_too_old(
    spark: SparkSession, field: Field, audit: Audit, tmp_path: Path
) -> None:
    root = str(tmp_path / "ledger")
    twice, waiting = field.whole(ordering_key=b"k"), field.prepare()
    late, after = (field.prepare(ordering_key=b"k") for _ in range(2))
    field.commit(late, after)
    field.forward(after)
    audit.run()
    field.forward(late)
    field.whole()
    audit.run()
    before = audit.run()

    assert 0 == compact_ledger(spark, root)
    assert 2 == compact_ledger(spark, root, runs_min=1)
    assert before == audit.rows()
    field.forward(twice)
    field.commit(waiting)
    field.forward(waiting)
    after_it = audit.run()
    assert ("duplicate", "ok", "out_of_order") == tuple(after_it[txn.txn_id].verdict for txn in (twice, waiting, late))
    assert len(before) == len(after_it)

    # What was folded before goes with the next one.
    assert 3 == compact_ledger(spark, root, runs_min=1)
    assert after_it == audit.rows()
    runs = {path.name for path in (tmp_path / "ledger" / f"v{LEDGER_VERSION}" / "rows").glob("run=*")}
    assert {"run=3", "run=4"} == runs

    # An hour before the cut is when everything was written.
    audit.run()
    assert 4 == compact_ledger(spark, root, keep_ms=60_000)
    assert {} == audit.rows()


@pytest.mark.nightly
def test_to_compact_and_to_forget_beside_a_run_disturbs_neither(
    spark: SparkSession, field: Field, audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "ledger")
    again, died = field.whole(), field.prepare()
    for _ in range(3):
        field.whole(ordering_key=b"k")
        audit.run()
    # Each of these makes the run read what was settled before, or every record once more.
    field.forward(again)
    field.prepare(key=died.key)
    field.prepare(key=field.whole(key="copied/0000000a").key)
    audit.read()
    audit.run("alone", reads=False)
    expected = audit.run("twin", reads=False)
    assert expected == audit.run("alone", reads=False) == audit.rows("twin")
    steps = (Shelf.put, Shelf.put_rows, Shelf.stored, Catalog.records)
    disturbances, is_inside = 0, False

    def beside(step: Callable[..., Any]) -> Callable[..., Any]:
        def disturbed(*arguments: Any, **named: Any) -> Any:
            nonlocal disturbances, is_inside
            found = step(*arguments, **named)
            if disturbances < 6 and not is_inside:
                # Again and again: what was folded before is ended by the next one.
                is_inside = True
                compact_ledger(spark, root, keep_ms=HOUR_MS * 24)
                compact(spark, str(tmp_path / "bronze"), folders_min=2)
                disturbances, is_inside = disturbances + 1, False
            return found

        return disturbed

    for step in steps:
        owner = Catalog if step is Catalog.records else Shelf
        monkeypatch.setattr(owner, step.__name__, beside(step))
    rows = audit.run(reads=False)

    assert 6 == disturbances
    verdicts = {txn_id: row.verdict for txn_id, row in expected.items()}
    assert verdicts == {txn_id: row.verdict for txn_id, row in rows.items()}
    assert "duplicate" == rows[again.txn_id].verdict


def test_a_killed_run_is_done_again_and_a_day_of_settled_transactions_costs_two_steps_of_two_jobs(
    spark: SparkSession, field: Field, audit: Audit, tmp_path: Path
) -> None:
    field.whole(ordering_key=b"k")
    before = audit.run()
    txn = field.whole(ordering_key=b"k")
    audit.read()

    def jobs() -> list[int]:
        return list(spark.sparkContext.statusTracker().getJobIdsForGroup("day"))

    spark.sparkContext.setJobGroup("day", "a day's run")
    try:
        after = audit.run(reads=False)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None ends it

    # Rows, and how far each key came: shuffled, and written. Planning is most of what a day costs. One more reads them here.
    expected = 2 * 2 + 1
    # Spark tells of its jobs from a thread of its own, behind their ends.
    wait_until(lambda: len(jobs()) >= expected, within=30, what=f"{expected} jobs are told of")
    assert expected == len(jobs())

    # As a kill just before its end leaves it: everything written, the run not noted.
    runs = sorted((tmp_path / "ledger" / f"v{LEDGER_VERSION}" / "runs").glob("*2.json"))
    shutil.move(runs[0], tmp_path / "noted.json")
    assert before == audit.rows()
    assert after == audit.run(reads=False)
    assert txn.txn_id in after
    # All is settled, and only a real topic gets something, of a producer that knows no txlayer.
    field.write(Record(field.orders, b"of a stranger"))
    assert after == audit.run()


def test_a_ledger_of_an_earlier_release_is_left_alone_and_said_to_be_built_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    runs = tmp_path / "v1" / "runs"
    runs.mkdir(parents=True)
    (runs / "000000000001.json").write_text("{}")

    assert Run() == Shelf(spark, str(tmp_path)).last()
    with pytest.raises(UsageError, match=r"builds it anew from bronze; .*/v1 is of an earlier"):
        read_ledger(spark, str(tmp_path))


def test_a_ledger_without_bronze_says_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run txlayer-spark bronze first"):
        update_ledger(spark, LedgerSettings(bronze=str(tmp_path / "bronze"), root=str(tmp_path / "ledger")))
    with pytest.raises(UsageError, match="run txlayer-spark ledger first"):
        read_ledger(spark, str(tmp_path / "ledger"))
