"""What the ledger keeps of earlier runs ends when no run names it any more, wherever a run is killed."""

from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from pyspark.sql import SparkSession

from txlayer_spark import shelf
from txlayer_spark.catalog import Folder
from txlayer_spark.shelf import Run, Shelf

KINDS = ("orphans", "revised", "late")


def store(spark: SparkSession, root: Path, run: Run) -> None:
    """One more run that did nothing but what is noted of it, and wrote each kind of ids."""
    of_it = Shelf(spark, str(root))
    of_it.begin()
    for kind in KINDS:
        folder = Path(of_it.path(kind, run.number))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part-0.parquet").touch()
    of_it.store(run)


def naming(number: int, kind: str, runs: tuple[int, ...]) -> Run:
    """A run that names those for what it has of a kind."""
    fields: dict[str, Any] = {kind: runs}
    return Run(number, **fields)


def there(root: Path, kind: str) -> set[int]:
    """The runs whose folders of a kind are there."""
    return {int(path.name.removeprefix("run=")) for path in root.glob(f"v*/{kind}/run=*")}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_end_when_neither_the_last_run_nor_the_one_before_names_them(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    for run in (naming(1, kind, (1,)), naming(2, kind, (1, 2)), naming(3, kind, (3,))):
        store(spark, tmp_path, run)

    # A job that reads now may have run 2.
    assert {1, 2, 3} == there(tmp_path, kind)
    store(spark, tmp_path, naming(4, kind, (3,)))

    assert {3, 4} == there(tmp_path, kind)
    # What the last run put down and did not name: nothing was in it.
    store(spark, tmp_path, naming(5, kind, (3,)))
    assert {3, 5} == there(tmp_path, kind)


class Killed(BaseException):
    """As the system ends a process."""


def test_a_run_that_is_killed_while_it_ends_ids_takes_none_that_count_and_the_next_one_ends_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = Folder.remove
    removed: list[tuple[str, ...]] = []

    def remove_some(folder: Folder, *names: str) -> None:
        if len(removed) == removed_max:
            raise Killed
        removed.append(names)
        remove(folder, *names)

    before = tmp_path / "before"
    for run in (Run(1, late=(1,)), Run(2, late=(1, 2)), Run(3, late=(3,))):
        store(spark, before, run)
    for removed_max in range(1, 21):
        root = tmp_path / str(removed_max)
        copytree(before, root)
        removed.clear()
        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(Folder, "remove", remove_some)
            store(spark, root, Run(4, late=(3, 4)))

        # The first one ends the note that run 3 had begun.
        assert 4 == Shelf(spark, str(root)).last().number
        assert {3, 4} <= there(root, "late")
        store(spark, root, Run(5, late=(3, 4)))
        assert {3, 4, 5} == there(root, "late")
        if len(removed) < removed_max:
            return
    pytest.fail("it was killed at each of 20 steps")


def test_what_runs_revised_ends_when_what_they_revised_was_folded(spark: SparkSession, tmp_path: Path) -> None:
    for run in (Run(1), Run(2, revised=(2,)), Run(3, revised=(2, 3))):
        store(spark, tmp_path, run)
    of_it = Shelf(spark, str(tmp_path))
    folded = Path(of_it.path("folded", 2))
    folded.mkdir(parents=True)
    (folded / "_SUCCESS").touch()

    of_it.fold(kept_from_ms=0)

    assert {3} == there(tmp_path, "revised")
    assert (3,) == of_it.revised_since_folding(of_it.last())


def test_ids_of_many_runs_become_those_of_one_without_what_has_no_row_any_more(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "RUNS_KEPT", 2)
    rows = spark.sql("SELECT explode(array('kept', 'new')) AS txn_id")
    monkeypatch.setattr(Shelf, "counting_as_of", lambda _self, _run: rows)
    of_it = Shelf(spark, str(tmp_path))
    of_it.begin()
    named: tuple[int, ...] = ()
    for number, txn_id in enumerate(("kept", "ended", "new"), start=1):
        found = spark.sql(f"SELECT '{txn_id}' AS txn_id")
        named = of_it.put_ids(found, "late", number, named)

    assert (3,) == named
    assert {"kept", "new"} == {row.txn_id for row in of_it.ids("late", named).collect()}
