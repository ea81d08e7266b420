"""Run by run the ledger must say what one run over everything says, also of what was young when it was judged first."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.reference.histories import BORN, make
from tests.support.spark_increments import HOUR_MS, Increments, Steps, Word, by_time, difference
from txlayer.errors import UsageError
from txlayer_spark.catalog import Folder
from txlayer_spark.jobs.bronze import expire
from txlayer_spark.jobs.ledger import LedgerSettings, compact_ledger, read_ledger, update_ledger
from txlayer_spark.shelf import Run, Shelf

DAY_MS = 86_400_000
BEHIND = "order-b/0000000b"
CASES = {
    "missing_then_visible": "half, C 0, cut, show 0",
    "visible_then_visible_again": "half, C 0, show 0, cut, show 0",
    "visible_then_rolled_back": "half, C 0, show 0, cut, R 0",
    "rolled_back_then_stored_again": "half, R 0, cut, half, cut, half txn=other/00000001",
    "open_then_stored_again": "half, cut, half, cut, half txn=other/00000001",
    "another_value": "half, C 0, show 0 value=another, cut, half txn=other/00000001",
    "in_another_partition_than_the_wanted_one": (
        "partitions shop=2, half options=n1, C 0, show 0 partition=0, cut, half txn=other/00000001"
    ),
    "beside_a_phantom_of_its_id": "half, C 0, show 0, forge order-1 0:77|0/1|5, cut, half txn=other/00000001",
    "another_value_of_one_message_and_the_other_missing": (
        "half 0/2, half 1/2, C 1, show 0 value=another, cut, half txn=other/00000001"
    ),
    "its_messages_are_read_one_by_one": "half 0/2, half 1/2 topic=loyalty, C 1, show 0, cut, show 1 to=loyalty",
    "its_messages_are_in_reverse_and_read_one_by_one": "half 0/2, half 1/2, C 1, show 1, cut, show 0",
    "second_attempt_after_the_first_was_settled": (
        "half txn=again/0000000a, C 0, show 0, cut, half txn=again/0000000b, cut, C 1, show 1"
    ),
    # The commit that comes again: an answer to a check-back, for example.
    "out_of_order_and_its_commit_is_repeated_later": (
        "half txn=order-a/0000000a order=commit, half txn=order-b/0000000b order=commit, C 0, C 1, show 1, "
        "show 0, cut, C 0"
    ),
    "out_of_order_and_its_two_messages_are_read_one_by_one": (
        "half 0/2 txn=order-a/0000000a order=commit, half 1/2 txn=order-a/0000000a order=commit topic=loyalty, "
        "half txn=order-b/0000000b order=commit, C 1, C 2, show 2, show 0, cut, show 1 to=loyalty"
    ),
    "reversed_and_its_commit_is_repeated_later": "half 0/2, half 1/2, C 1, show 1, show 0, cut, C 1",
    # A real topic keeps the producer's times (Kafka's default), and they are of long ago: an import, for example.
    "out_of_order_with_times_of_long_ago": (
        "half txn=order-a/0000000a options=t5 order=commit, half txn=order-b/0000000b options=t5 order=commit, "
        "C 0, C 1, show 1 at=5, cut, show 0 at=5"
    ),
    "one_attempt_settled_and_another_open": (
        "half txn=again/0000000a, C 0, show 0, half txn=again/0000000b, cut, half txn=other/00000001, cut, "
        "half txn=other/00000002"
    ),
    "one_attempt_settled_and_another_settled_later": (
        "half txn=again/0000000a, R 0, half txn=again/0000000b, cut, C 1, show 1"
    ),
    "second_copy_and_repeated_commit_of_it_after_it_was_settled": "half, C 0, show 0, cut, half, C 1",
    "second_copy_and_repeated_commit_of_the_first_after_it_was_settled": "half, C 0, show 0, cut, half, C 0",
    # As librdkafka #4953 leaves it.
    "second_copy_of_its_last_half_record_after_it_was_settled": (
        "half 0/2, half 1/2, C 1, show 0, show 1, cut, half 1/2"
    ),
    "second_copy_forwarded_after_it_was_settled": "half, C 0, show 0, cut, half, show 1",
    "many_messages_open_then_settled": ", ".join(
        [*(f"half {n}/70" for n in range(70)), "cut, C 69, cut", *(f"show {n}" for n in range(70))]
    ),
    "broken_headers_behind_a_settled_one": "half, C 0, show 0, cut, forge order-1 0:0|0",
    "phantom_that_says_it_was_born_far_in_the_future": "half, C 0, show 0, cut, forge phantom 0:7|0/1|4000000000000",
    "phantom_that_says_it_was_born_far_in_the_future_with_one_of_now": (
        "half, cut, forge phantom 0:7|0/1|4000000000000"
    ),
    "phantom_that_was_born_at_the_largest_time_that_is_in_form": (
        "half, C 0, show 0, cut, forge phantom 0:7|0/1|9223372036854775807, cut, half txn=other/00000001"
    ),
    "parked_as_incomplete": (
        "half 0/2, half 1/2, C 0, summary parked-committed 0 1 reason=incomplete, content 0, content 1, cut, "
        "half txn=other/00000001, cut, C 1, show 0, show 1, ended 0 1"
    ),
    "parked_and_released_in_reverse": (
        "half 0/2, half 1/2, content 0, content 1, summary parked 0 1 reason=checks-exhausted, cut, C 1, show 1, show 0, "
        "ended 0 1, cut, C 1"
    ),
    "conflicting_then_again": "half, R 0, cut, C 0, cut, C 0",
    "leaked_then_committed": "half, show 0, cut, C 0",
    "orphan_twice": (
        "half txn=other/00000001, forge phantom 0:7|0/1|1700000000000, cut, forge phantom 0:7|0/1|1700000000000"
    ),
    "behind_one_that_was_decided_a_moment_ago": (
        "half txn=order-a/0000000a order=prepare, half txn=order-b/0000000b order=prepare, C 1, cut, C 0, show 0"
    ),
    # Without a question the one ahead was in half: `transaction_age_max` is shorter than `doubt_after`.
    "behind_one_that_was_parked_a_moment_ago": (
        "half txn=order-a/0000000a order=prepare, half txn=order-b/0000000b order=prepare, C 1, cut, content 0, "
        "summary parked 0 reason=too-old order=prepare"
    ),
    "behind_one_whose_commit_was_repeated_a_moment_ago": (
        "half txn=order-a/0000000a order=prepare, half txn=order-b/0000000b order=prepare, C 0, C 1, cut, C 0"
    ),
    "missing_and_answered_with_unknown_a_moment_ago": "half, C 0, cut, U 0",
    # Bronze reads the real topics first, and `shop` a little later than `loyalty`.
    "held_and_released_between_the_reading_of_its_topics_and_of_doubt": (
        "half 0/2, half 1/2 topic=loyalty, half txn=alone/00000001, C 1, C 2, content 0, content 1, content 2, "
        "summary held 0 1 reason=topic-missing, summary held 2 reason=topic-missing, cut, show 0, ended 0 1, "
        "ended 0 txn=alone/00000001, cut, show 1 to=loyalty, show 2"
    ),
    # No coordinator ran for an hour, and the topics have producers' times: one that the user set is of long ago.
    "forwarded_late_between_the_reading_of_its_topics": (
        "half 0/3, half 1/3 options=t5, half 2/3 topic=loyalty, C 2, cut, show 0 at=+3600040, show 1 at=5, cut, "
        "show 2 to=loyalty"
    ),
    "rolled_back_then_committed_and_half_of_it_is_visible": (
        "half 0/2, half 1/2, R 1, C 1, show 0, cut, half txn=other/00000001"
    ),
    "rolled_back_at_the_last_half_record_on_doubt_that_another_one_joins_later": (
        "half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, cut, half 2/3, C 2, show 0, "
        "show 1, show 2, ended 0 1 2"
    ),
}
"""Histories as `Steps.play` reads them."""


@pytest.fixture(scope="module", params=[60_000, 600_000], ids=["old", "young"])
def judged(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[Word]]]:
    """What the ledger says of each case after each run, and at once; read two minutes later, with a grace."""
    logs = {name: Steps().play(script) for name, script in CASES.items()}
    found = Increments(
        {name: log.history() for name, log in logs.items()}, {name: log.numbers() for name, log in logs.items()}
    )
    root = str(tmp_path_factory.mktemp("increments"))
    runs = found.run(spark, root, grace_ms=request.param)
    return {name: [found.of(name, rows) for rows in runs] for name in CASES}


@pytest.mark.fault("Spark: the records of one transaction are read in several runs, young or old, in any parts")
@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_run_by_run_the_ledger_says_of_a_case_what_one_run_says(name: str, judged: dict[str, list[list[Word]]]) -> None:
    *each, last, at_once = judged[name]

    assert last == at_once, f"{difference(last, at_once)}; before: {each}"


@pytest.mark.nightly
def test_what_may_still_be_on_its_way_is_open_and_nothing_else_is(
    judged: dict[str, list[list[Word]]], request: pytest.FixtureRequest
) -> None:
    is_young = "[young]" in request.node.name
    later, in_part = ("open", "open") if is_young else ("lost", "torn")

    def words(name: str, run: int) -> list[str]:
        return [word for _, _, word in judged[name][run]]

    # What waits for one that was decided, or parked, a moment ago; what does not wait is lost.
    waiting, decided, *_ = judged["behind_one_that_was_decided_a_moment_ago"]
    assert (*BEHIND.split("/"), "open") in waiting
    assert (*BEHIND.split("/"), later) in decided
    assert ["parked", later] == words("behind_one_that_was_parked_a_moment_ago", 1)
    assert [later, "lost"] == words("behind_one_whose_commit_was_repeated_a_moment_ago", 1)
    # An answer that decides nothing puts nothing on its way.
    assert ["lost"] == words("missing_and_answered_with_unknown_a_moment_ago", 1)
    # What was released a moment ago, however long ago it was committed.
    assert {"open"} == set(words("held_and_released_between_the_reading_of_its_topics_and_of_doubt", 0))
    assert [later, in_part] == words("held_and_released_between_the_reading_of_its_topics_and_of_doubt", 1)
    assert [in_part] == words("forwarded_late_between_the_reading_of_its_topics", 1)
    # What was rolled back is leaked, also while a commit of it is young.
    assert ["leaked"] == words("rolled_back_then_committed_and_half_of_it_is_visible", 0)


def alone(
    spark: SparkSession, script: str, root: Path, behind: Callable[[int], None] = lambda _: None
) -> list[list[Word]]:
    """What the ledger says of one history in a bronze of its own."""
    log = Steps().play(script)
    found = Increments({"it": log.history()}, {"it": log.numbers()})
    return [found.of("it", rows) for rows in found.run(spark, str(root), behind=behind)]


@pytest.mark.nightly
# In the last one another transaction of that day is given up: it needs every record, too.
@pytest.mark.parametrize("later", ["show 0", "days 5, forge order-1 0:0|0, half txn=other/00000001, A 1"])
def test_what_was_settled_stays_when_something_on_its_real_topic_comes_later(
    later: str, spark: SparkSession, tmp_path: Path
) -> None:
    *_, last, at_once = alone(spark, f"half, C 0, show 0, cut, {later}", tmp_path)

    assert at_once == last


@pytest.mark.fault("Spark: the records of one transaction are read in several runs, young or old, in any parts")
@pytest.mark.nightly
@pytest.mark.parametrize("killed_at", [None, 1, 2])
def test_what_is_parked_as_incomplete_stays_in_the_ledger_when_bronze_forgets_its_day(
    killed_at: int | None, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `txlayer-spark expire --older-than 90d` between the second run and the third; also where it is killed behind some folders."""
    script = (
        "half 0/2, half 1/2, C 0, summary parked-committed 0 1 reason=incomplete, content 0, content 1, cut, days 100, "
        "half txn=other/00000001, cut, half txn=other/00000002, cut, C 1"
    )

    remove, removed = Folder.remove, list[str]()

    def killed(folder: Folder, *names: str) -> None:
        if len(removed) == killed_at:
            raise KeyboardInterrupt
        removed.append(folder.at(*names))
        remove(folder, *names)

    def forget(number: int) -> None:
        if number != 1:
            return
        with monkeypatch.context() as patched, nullcontext() if killed_at is None else pytest.raises(KeyboardInterrupt):
            patched.setattr(Folder, "remove", killed)
            expire(spark, str(tmp_path / "bronze"), keep_ms=90 * DAY_MS)
        assert removed

    runs = alone(spark, script, tmp_path, behind=forget)

    words = [[word for txn_id, _, word in rows if txn_id == "order-1"] for rows in runs]
    # When something more comes of it nobody can judge it.
    assert [["parked"], ["parked"], ["parked"], ["out_of_window"]] == words[:4]


@pytest.mark.fault("Spark: the records of one transaction are read in several runs, young or old, in any parts")
@pytest.mark.nightly
def test_a_phantom_of_an_old_time_stays_in_the_ledger_when_what_is_old_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A real topic keeps the writer's times: what was found today may say that it is of any year."""
    script = (
        "half txn=other/00000001, forge phantom 0:7|0/1|1700000000000 at=5, forge broken ? at=5, cut, "
        "half txn=other/00000002, cut, half txn=other/00000003"
    )

    def forget(_number: int) -> None:
        compact_ledger(spark, str(tmp_path / "run-by-run"), keep_ms=90 * DAY_MS)

    *_, last, at_once = alone(spark, script, tmp_path, behind=forget)

    assert at_once == last


@pytest.mark.fault("Spark: two ledger runs overlap, or the cluster has other settings for writing")
@pytest.mark.nightly
def test_a_run_that_is_done_again_doubles_nothing_whatever_the_session_says_of_overwriting(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Clusters with tables of their own often say that only those partitions are overwritten which are written."""

    def again(_number: int) -> None:
        # As a kill just before its end leaves it: everything written, the run not noted.
        (noted,) = (tmp_path / "run-by-run").glob("v*/runs/*.json")
        noted.unlink()
        judged_once_more(spark, tmp_path)

    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        script = "half txn=again/0000000a, C 0, show 0, half txn=again/0000000b"
        alone(spark, script, tmp_path, behind=again)
        rows = read_ledger(spark, str(tmp_path / "run-by-run")).collect()
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    assert [("0000000a", "ok"), ("0000000b", "open")] == sorted((r.nonce, r.verdict) for r in rows)


def judged_once_more(spark: SparkSession, root: Path) -> None:
    """One more run, run by run."""
    settings = LedgerSettings(bronze=str(root / "bronze"), root=str(root / "run-by-run"), clock_error_ms=0)
    update_ledger(spark, settings)


@pytest.mark.fault("Spark: two ledger runs overlap, or the cluster has other settings for writing")
@pytest.mark.nightly
def test_of_two_runs_at_once_the_one_that_began_last_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that takes longer than the pause between two of them, or one by hand beside the one by the clock."""
    script = "half txn=other/00000001, cut, half, C 1, show 1, cut, half txn=other/00000002"
    store = Shelf.store
    stopped: list[str] = []

    def meanwhile(shelf: Shelf, run: Run) -> None:
        """Before the first run ends a second one goes all its way."""
        monkeypatch.setattr(Shelf, "store", store)
        judged_once_more(spark, tmp_path)
        with pytest.raises(UsageError, match="one at a time"):
            store(shelf, run)
        stopped.append(f"run {run.number}")

    def at_once(number: int) -> None:
        if not number:
            monkeypatch.setattr(Shelf, "store", meanwhile)
            judged_once_more(spark, tmp_path)

    *_, last, at_the_end = alone(spark, script, tmp_path, behind=at_once)

    assert ["run 2"] == stopped
    assert at_the_end == last


TAKEN = {
    "released_at_its_time_by_a_line_that_is_gone": (
        "timed, show 0, cut, release 0, taken, show 1, cut, U 0",
        "out_of_window",
    ),
    "incomplete_at_first_and_committed_by_a_line_that_is_gone": (
        "half 0/2, half 1/2, C 0, cut, C 1, taken, show 0 1, cut, U 0",
        "out_of_window",
    ),
    "held_and_abandoned_by_a_line_that_is_gone": (
        "half, C 0, keep held 0 reason=topic-missing, cut, A 0, taken, ended 0, cut, U 0",
        "out_of_window",
    ),
    # It was decided and released before.
    "committed_and_nowhere": ("half, C 0, cut, A 0, taken, cut, U 0", "lost"),
    "parked_as_incomplete": (
        "half 0/2, half 1/2, C 0, keep parked-committed 0 1 reason=incomplete, cut, A 0, taken, cut, U 0",
        "parked",
    ),
    "abandoned": (
        "half, C 0, keep held 0 reason=topic-missing, A 0, ended 0, cut, C 0, taken, cut, U 0",
        "rolled_back",
    ),
    "rolled_back_and_visible": ("half, R 0, show 0, cut, C 0, taken, cut, U 0", "leaked"),
    "released_as_a_whole_before": ("half options=d0, C 0, cut, C 0, taken, cut, show 0", "ok"),
}


@pytest.mark.fault(
    "Spark: a topic is shortened by retention, compacted, deleted, or ends at the open Kafka transaction of a stranger"
)
def test_a_line_of_op_that_was_gone_before_it_was_read_makes_no_fault(spark: SparkSession, tmp_path: Path) -> None:
    logs = {name: Steps().play(script) for name, (script, _) in TAKEN.items()}
    numbers = {name: log.numbers() for name, log in logs.items()}
    taken = {name: log.taken for name, log in logs.items()}
    found = Increments({name: log.history() for name, log in logs.items()}, numbers, taken=taken)

    *_, last, at_once = found.run(spark, str(tmp_path))

    for rows in (last, at_once):
        assert {name: [word] for name, (_, word) in TAKEN.items()} == {
            name: [verdict for _, _, verdict in found.of(name, rows)] for name in TAKEN
        }


HISTORIES = 40
# Read when the file is: while a test runs nothing of TXLAYER_ is set.
FIRST = int(os.environ.get("TXLAYER_DIFFERENTIAL_SEED", "0"))
COUNT = int(os.environ.get("TXLAYER_DIFFERENTIAL_COUNT", str(HISTORIES)))
CUTS_MS = (BORN + 15_000, BORN + 40_000, BORN + 90_000, BORN + 10 * HOUR_MS)


@pytest.mark.fault("Spark: the records of one transaction are read in several runs, young or old, in any parts")
@pytest.mark.nightly
def test_random_histories_run_by_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In four increments, folded behind each; by a grace of ten seconds much is young when it is judged first."""
    monkeypatch.setattr("txlayer_spark.catalog.SMALL_BYTES", 0)
    first, count = FIRST, COUNT
    wrong = []
    for start in range(first, first + count, HISTORIES):
        seeds = range(start, min(start + HISTORIES, first + count))
        histories = {f"seed {seed}": make(seed).history for seed in seeds}
        numbers = {
            name: by_time(history, CUTS_MS[:-1], seed=start, lag_ms=4_000) for name, history in histories.items()
        }
        found = Increments(histories, numbers, cuts_ms=CUTS_MS)
        root = str(tmp_path / str(start))

        def fold(_number: int, ledger: str = f"{root}/run-by-run") -> None:
            compact_ledger(spark, ledger, runs_min=1)

        *_, last, at_once = found.run(spark, root, behind=fold, grace_ms=10_000)
        for name in histories:
            one, other = found.of(name, last), found.of(name, at_once)
            if one != other:
                wrong.append(f"{name}: {difference(one, other)}")

    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} of {count} differ:", *wrong]), pytrace=False)
