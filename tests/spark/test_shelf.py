"""What the ledger keeps of earlier runs ends when no run names it any more, wherever a run is killed."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from pyspark.sql import DataFrameWriter, SparkSession

from txlayer_spark import shelf
from txlayer_spark.catalog import Folder
from txlayer_spark.shelf import EVERY, Run, Shelf

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

    of_it.fold()

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
        # The first one is of an earlier release.
        more = "" if number == 1 else ", true AS is_turned"
        found = spark.sql(f"SELECT '{txn_id}' AS txn_id, 0L AS nonce{more}")
        named = of_it.put_ids(found, "late", number, named)

    assert (3,) == named
    assert {("kept", None), ("new", True)} == {
        (row.txn_id, row.is_turned) for row in of_it.ids("late", named).collect()
    }


def test_of_what_was_folded_the_widest_counts_and_of_an_earlier_run_what_there_was_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    of_it = Shelf(spark, str(tmp_path))
    killed = Path(of_it.folder.at("folded", "run=10-14"))
    for name in ("run=9", "run=10-12", "run=13-14"):
        folded = Path(of_it.folder.at("folded", name))
        folded.mkdir(parents=True)
        (folded / "_SUCCESS").touch()
    killed.mkdir()

    assert [(1, 9), (10, 12), (13, 14)] == of_it.spans(Run(15))
    (killed / "_SUCCESS").touch()
    assert [(1, 9), (10, 14)] == of_it.spans(Run(15))
    assert [(1, 9), (10, 12)] == of_it.spans(Run(13))


Row = tuple[str, int | None, int]
"""Id, attempt, and the run whose row counts."""
COLUMNS = "txn_id string, nonce_max bigint, is_exact boolean, is_settled int"
WRITE = DataFrameWriter.parquet


class Runs:
    """Runs that write rows and revise earlier ones, and a plain list of what counts as of each."""

    def __init__(self, spark: SparkSession, root: Path, seed: int) -> None:
        """Nothing is written yet."""
        self._spark, self._draw, self.shelf = spark, random.Random(seed), Shelf(spark, str(root))
        self._counting: set[Row] = set()
        self.as_of: dict[int, tuple[Run, set[Row]]] = {}

    def one_more(self, *, count: int, revised: int) -> None:
        """A run with new rows, and some in place of earlier ones: an attempt's, or all of an id."""
        number = len(self.as_of) + 1
        new: list[tuple[Any, ...]] = [(f"{number}-{n}", n % 2, None, 1) for n in range(count)]
        ids: list[tuple[str, int | None]] = []
        for txn_id, nonce, _ in self._draw.sample(sorted(self._counting), min(revised, len(self._counting))):
            is_whole = self._draw.random() < 0.5
            ids.append((txn_id, EVERY if is_whole else nonce))
            taken = {row for row in self._counting if row[0] == txn_id and (is_whole or row[1] == nonce)}
            self._counting -= taken
            if self._draw.random() < 0.7:
                new.append((txn_id, nonce, True, 1))
        self._counting |= {(txn_id, nonce, number) for txn_id, nonce, *_ in new}
        # What is open counts in the newest run alone.
        rows = self._spark.createDataFrame([*new, (f"open-{number}", 0, None, 0)], COLUMNS)
        self.shelf.begin()
        columns = self.shelf.put_rows(rows.coalesce(1), number, options={})
        last = self.shelf.last()
        named = self.shelf.revised_since_folding(last)
        if ids:
            self.shelf.put(self._spark.createDataFrame(ids, "txn_id string, nonce bigint"), "revised", number)
            named = (*named, number)
        run = Run(number, columns=columns, revised=named)
        self.shelf.store(run)
        self.as_of[number] = run, {*self._counting, (f"open-{number}", 0, number)}

    def check(self, *, also_before: bool) -> None:
        """As of the last run, and as of the one before, which a job that reads now may have."""
        for run, expected in list(self.as_of.values())[-2 if also_before else -1 :]:
            rows = self.shelf.counting_as_of(run).select("txn_id", "nonce_max", "run").collect()
            assert sorted(expected) == sorted((row.txn_id, row.nonce_max, row.run) for row in rows), run.number


@pytest.mark.fault("Spark: the ledger is folded in steps, and a fold is killed at any of them")
@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.nightly), pytest.param(3, marks=pytest.mark.nightly)]
)
def test_what_is_folded_in_steps_counts_as_before_wherever_a_fold_is_killed(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer_spark.catalog.SMALL_BYTES", 0)
    runs, left, kills = Runs(spark, tmp_path, seed), -1, 0

    def killed(step: Callable[..., Any]) -> Callable[..., Any]:
        def done_or_not(*arguments: Any) -> Any:
            nonlocal left, kills
            left -= 1
            if left == -1:
                kills += 1
                if step is WRITE:
                    step(*arguments)
                    Path(arguments[1], "_SUCCESS").unlink()
                raise Killed
            return step(*arguments)

        return done_or_not

    spans = set()
    # The first run stays larger than all later ones together.
    for count in (4_000, 20, 3, 2, 30):
        runs.one_more(count=count, revised=3)
        is_killed, step = True, 0
        while is_killed:
            with monkeypatch.context() as patch, suppress(Killed):
                patch.setattr(Folder, "remove", killed(Folder.remove))
                patch.setattr(DataFrameWriter, "parquet", killed(WRITE))
                left = step
                runs.shelf.fold()
                is_killed = False
            runs.check(also_before=not is_killed)
            step += 1
        spans |= {span.name for span in runs.shelf.spans(runs.shelf.last())}

    # 1 stays; 2 too, while 3 and 4 are smaller, and so on: each with what it revised of those before.
    assert 10 < kills
    assert {"run=1", "run=2-2"} < spans
    assert list(tmp_path.glob("v*/revisions/run=*/*.parquet"))


def test_a_file_that_is_gone_ends_a_read_although_the_session_ignores_such_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    of_it = Shelf(spark, str(tmp_path))
    of_it.begin()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        ids = of_it.put(spark.range(3).coalesce(1), "few", 1)
        for written in Path(of_it.path("few", 1)).glob("*.parquet"):
            written.unlink()

        with pytest.raises(Exception, match="FILE_NOT_EXIST"):
            ids.count()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.fault(
    "Spark: sessions of one folder have different time zones, or take no types from the names of folders"
)
def test_the_tenth_run_revises_what_the_ninth_one_did_where_a_session_takes_no_types_from_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    runs = Runs(spark, tmp_path, 1)
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    try:
        for run in range(1, 12):
            runs.one_more(count=1, revised=3 * (run > 8))
        runs.check(also_before=True)
        runs.shelf.fold()
        runs.one_more(count=1, revised=3)
        runs.check(also_before=False)
    finally:
        spark.conf.unset("spark.sql.sources.partitionColumnTypeInference.enabled")
