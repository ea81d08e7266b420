"""The ledger run by run: what a run reads is what is new and what was open, and in the end it is what one run would say."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from tests.conftest import Broker
from tests.support.planted import Field, Message
from tests.support.waiting import wait_until
from txlayer.errors import UsageError
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, read_ledger, update_ledger
from txlayer_spark.shelf import Run, Shelf

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000


class Audit:
    """Bronze and a ledger of a field, an hour after whatever was written."""

    def __init__(self, spark: SparkSession, field: Field, root: Path) -> None:
        """Nothing is read yet."""
        self._spark, self._root = spark, root
        self._bronze = BronzeSettings(
            root=str(root / "bronze"), namespace=field.namespace, bootstrap_servers=field.servers
        )

    def run(self, ledger: str = "ledger", *, reads: bool = True) -> dict[str, Row]:
        """The rows by id after one more run."""
        if reads:
            read_new(self._spark, self._bronze, now_ms=lambda: int(time.time() * 1000) + HOUR_MS)
        settings = LedgerSettings(bronze=self._bronze.root, root=str(self._root / ledger))
        update_ledger(self._spark, settings)
        return self.rows(ledger)

    def rows(self, ledger: str = "ledger") -> dict[str, Row]:
        """The rows by id as they are."""
        rows = read_ledger(self._spark, str(self._root / ledger)).collect()
        assert len({row.txn_id for row in rows}) == len(rows)
        return {row.txn_id: row for row in rows}


def test_run_by_run_it_says_what_one_run_over_everything_says(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    two = (Message(field.orders), Message(field.stock))
    audit = Audit(spark, field, tmp_path)
    settled, twice, contrary = (field.whole(*two, ordering_key=b"k") for _ in range(3))
    waiting, never = field.prepare(*two, ordering_key=b"k"), field.prepare()
    lost = field.prepare()
    field.commit(lost)
    seed = {txn.txn_id: "ok" for txn in (settled, twice, contrary)}

    first = {txn_id: row.verdict for txn_id, row in audit.run().items()}
    assert {
        **seed, waiting.txn_id: "overdue", never.txn_id: "overdue", lost.txn_id: "lost"
    } == first  # fmt: skip

    field.forward(twice, 1)
    field.roll_back(contrary)
    field.check(waiting, 1)
    field.commit(waiting)
    field.forward(waiting)
    field.forward(lost)
    late, after = (field.prepare(ordering_key=b"k") for _ in range(2))
    field.commit(late, after)
    field.forward(after)
    second = audit.run()
    assert ("duplicate", "conflicting") == (
        second[twice.txn_id].verdict, second[contrary.txn_id].verdict
    )  # fmt: skip
    assert 1 == second[waiting.txn_id].checked_count

    # Its key had gone further in the run before.
    field.forward(late)
    third = audit.run()
    assert {
        settled.txn_id: "ok", twice.txn_id: "duplicate", contrary.txn_id: "conflicting", waiting.txn_id: "ok",
        never.txn_id: "overdue", lost.txn_id: "ok", after.txn_id: "ok", late.txn_id: "out_of_order",
    } == {txn_id: row.verdict for txn_id, row in third.items()}  # fmt: skip
    assert third == audit.run("at once", reads=False)


def test_a_killed_run_is_done_again_and_leaves_the_last_one_readable(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    audit = Audit(spark, field, tmp_path)
    field.whole()
    before = audit.run()
    txn = field.whole()
    after = audit.run()

    # As a kill just before its end leaves it: everything written, the run not noted.
    runs = sorted((tmp_path / "ledger" / "v2" / "runs").glob("*2.json"))
    shutil.move(runs[0], tmp_path / "noted.json")
    assert before == audit.rows()
    assert after == audit.run(reads=False)
    assert txn.txn_id in after


def test_a_day_of_settled_transactions_costs_two_steps_of_two_jobs(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    audit = Audit(spark, field, tmp_path)
    field.whole(ordering_key=b"k")
    audit.run()
    field.whole(ordering_key=b"k")
    audit.run("read by another")

    spark.sparkContext.setJobGroup("day", "a day's run")
    try:
        audit.run(reads=False)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None ends it

    def jobs() -> list[int]:
        return list(spark.sparkContext.statusTracker().getJobIdsForGroup("day"))

    # Rows, and how far each key came: shuffled, and written. Planning is most of what a day costs. One more reads them here.
    expected = 2 * 2 + 1
    # Spark tells of its jobs from a thread of its own, behind their ends.
    wait_until(lambda: len(jobs()) >= expected, within=30, what=f"{expected} jobs are told of")
    assert expected == len(jobs())


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
        update_ledger(
            spark, LedgerSettings(bronze=str(tmp_path / "bronze"), root=str(tmp_path / "ledger"))
        )
    with pytest.raises(UsageError, match="run txlayer-spark ledger first"):
        read_ledger(spark, str(tmp_path / "ledger"))
