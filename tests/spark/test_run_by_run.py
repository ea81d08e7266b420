"""Run by run the ledger must say what one run over everything says, also of what was young when it was judged first."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.reference.histories import BORN, make
from tests.reference.steps import HASH, KEY
from tests.support.spark_increments import HOUR_MS, Increments, Steps, Word, by_time, difference
from txlayer.errors import UsageError
from txlayer_spark.jobs.compaction import compact_ledger, expire
from txlayer_spark.jobs.ledger import LedgerSettings, read_ledger, update_ledger
from txlayer_spark.shelf import Run, Shelf

DAY_MS = 86_400_000
Case = Callable[[Steps], None]
CASES: dict[str, Case] = {}


def case(build: Case) -> Case:
    """Name a history by the function that builds it."""
    CASES[build.__name__] = build
    return build


@case
def another_value(log: Steps) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half, value=b"another")
    log.cut()
    log.half("other/00000001")


@case
def in_another_partition_than_the_wanted_one(log: Steps) -> None:
    log.partition_counts["shop"] = 2
    half = log.half(options="n1")
    log.op(("C", half))
    log.show(half, partition=0)
    log.cut()
    log.half("other/00000001")


@case
def beside_a_phantom_of_its_id(log: Steps) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    ours = [("txl-id", b"order-1"), ("txl-origin", b"0:77|0/1|5")]
    log.add("shop", key=b"k", value=b"x", headers=ours)
    log.cut()
    log.half("other/00000001")


@case
def another_value_of_one_message_and_the_other_missing(log: Steps) -> None:
    first, last = log.half(KEY, "0/2"), log.half(KEY, "1/2")
    log.op(("C", last))
    log.show(first, value=b"another")
    log.cut()
    log.half("other/00000001")


@case
def its_messages_are_read_one_by_one(log: Steps) -> None:
    first, last = log.half(KEY, "0/2"), log.half(KEY, "1/2", topic="loyalty")
    log.op(("C", last))
    log.show(first)
    log.cut()
    log.show(last, "loyalty")


@case
def its_messages_are_in_reverse_and_read_one_by_one(log: Steps) -> None:
    first, last = log.half(KEY, "0/2"), log.half(KEY, "1/2")
    log.op(("C", last))
    log.show(last)
    log.cut()
    log.show(first)


@case
def second_attempt_after_the_first_was_settled(log: Steps) -> None:
    first = log.half("again/0000000a")
    log.op(("C", first), key="again/0000000a")
    log.show(first)
    log.cut()
    second = log.half("again/0000000b")
    log.cut()
    log.op(("C", second), key="again/0000000b")
    log.show(second)


@case
def out_of_order_and_its_commit_is_repeated_later(log: Steps) -> None:
    a = log.half("order-a/0000000a", options=f"k{HASH}")
    b = log.half("order-b/0000000b", options=f"k{HASH}")
    log.op(("C", a), key="order-a/0000000a")
    log.op(("C", b), key="order-b/0000000b")
    log.show(b)
    log.show(a)
    log.cut()
    # An answer to a check-back, for example.
    log.op(("C", a), key="order-a/0000000a")


@case
def out_of_order_and_its_two_messages_are_read_one_by_one(log: Steps) -> None:
    a = log.half("order-a/0000000a", "0/2", options=f"k{HASH}")
    a2 = log.half("order-a/0000000a", "1/2", options=f"k{HASH}", topic="loyalty")
    b = log.half("order-b/0000000b", options=f"k{HASH}")
    log.op(("C", a2), key="order-a/0000000a")
    log.op(("C", b), key="order-b/0000000b")
    log.show(b)
    log.show(a)
    log.cut()
    log.show(a2, "loyalty")


@case
def reversed_and_its_commit_is_repeated_later(log: Steps) -> None:
    first, last = log.half(KEY, "0/2"), log.half(KEY, "1/2")
    log.op(("C", last))
    log.show(last)
    log.show(first)
    log.cut()
    log.op(("C", last))


@case
def out_of_order_with_times_of_long_ago(log: Steps) -> None:
    """A real topic keeps the producer's times (Kafka's default), and they are of long ago: an import, for example."""
    a = log.half("order-a/0000000a", options=f"k{HASH},t5")
    b = log.half("order-b/0000000b", options=f"k{HASH},t5")
    log.op(("C", a), key="order-a/0000000a")
    log.op(("C", b), key="order-b/0000000b")
    log.show(b)
    log.records[-1] = replace(log.records[-1], timestamp_ms=5, is_append_time=False)
    log.cut()
    log.show(a)
    log.records[-1] = replace(log.records[-1], timestamp_ms=5, is_append_time=False)


@case
def one_attempt_settled_and_another_open(log: Steps) -> None:
    a = log.half("again/0000000a")
    log.op(("C", a), key="again/0000000a")
    log.show(a)
    log.half("again/0000000b")
    log.cut()
    log.half("other/00000001")
    log.cut()
    log.half("other/00000002")


@case
def one_attempt_settled_and_another_settled_later(log: Steps) -> None:
    a = log.half("again/0000000a")
    log.op(("R", a), key="again/0000000a")
    b = log.half("again/0000000b")
    log.cut()
    log.op(("C", b), key="again/0000000b")
    log.show(b)


@case
def second_copy_and_repeated_commit_of_it_after_it_was_settled(log: Steps) -> None:
    a = log.half()
    log.op(("C", a))
    log.show(a)
    log.cut()
    copy = log.half()
    log.op(("C", copy))


@case
def second_copy_and_repeated_commit_of_the_first_after_it_was_settled(log: Steps) -> None:
    a = log.half()
    log.op(("C", a))
    log.show(a)
    log.cut()
    log.half()
    log.op(("C", a))


@case
def second_copy_of_its_last_half_record_after_it_was_settled(log: Steps) -> None:
    """As librdkafka #4953 leaves it."""
    first, last = log.half(KEY, "0/2"), log.half(KEY, "1/2")
    log.op(("C", last))
    log.show(first)
    log.show(last)
    log.cut()
    log.half(KEY, "1/2")


@case
def second_copy_forwarded_after_it_was_settled(log: Steps) -> None:
    a = log.half()
    log.op(("C", a))
    log.show(a)
    log.cut()
    log.show(log.half())


@case
def many_messages_open_then_settled(log: Steps) -> None:
    halves = [log.half(numbers=f"{index}/70") for index in range(70)]
    log.cut()
    log.op(("C", halves[-1]))
    log.cut()
    for half in halves:
        log.show(half)


@case
def broken_headers_behind_a_settled_one(log: Steps) -> None:
    a = log.half()
    log.op(("C", a))
    log.show(a)
    log.cut()
    headers = [("trace", b"t"), ("txl-id", KEY.split("/")[0].encode()), ("txl-origin", b"0:0|0")]
    log.show(a, headers=headers)


@case
def phantom_that_says_it_was_born_far_in_the_future(log: Steps) -> None:
    a = log.half()
    log.op(("C", a))
    log.show(a)
    log.cut()
    ours = [("txl-id", b"phantom"), ("txl-origin", b"0:7|0/1|4000000000000")]
    log.add("shop", key=b"k", value=b"0/1", headers=ours)


@case
def phantom_that_says_it_was_born_far_in_the_future_with_one_of_now(log: Steps) -> None:
    log.half()
    log.cut()
    ours = [("txl-id", b"phantom"), ("txl-origin", b"0:7|0/1|4000000000000")]
    log.add("shop", key=b"k", value=b"0/1", headers=ours)


@case
def phantom_that_was_born_at_the_largest_time_that_is_in_form(log: Steps) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.cut()
    ours = [("txl-id", b"phantom"), ("txl-origin", b"0:7|0/1|9223372036854775807")]
    log.add("shop", key=b"k", value=b"0/1", headers=ours)
    log.cut()
    log.half("other/00000001")


@case
def parked_as_incomplete(log: Steps) -> None:
    first = log.half(KEY, "0/2")
    last = log.half(KEY, "1/2")
    log.op(("C", first))
    log.summary("parked-committed", first, last, reason="incomplete")
    log.content(first, 0)
    log.content(last, 1)
    log.cut()
    log.half("other/00000001")
    log.cut()
    log.op(("C", last))
    log.show(first)
    log.show(last)
    log.end_on_doubt(0, 1)


@case
def conflicting_then_again(log: Steps) -> None:
    a = log.half()
    log.op(("R", a))
    log.cut()
    log.op(("C", a))
    log.cut()
    log.op(("C", a))


@case
def leaked_then_committed(log: Steps) -> None:
    a = log.half()
    log.show(a)
    log.cut()
    log.op(("C", a))


@case
def orphan_twice(log: Steps) -> None:
    log.half("other/00000001")
    ours = [("txl-id", b"phantom"), ("txl-origin", b"0:7|0/1|1700000000000")]
    log.add("shop", key=b"k", value=b"0/1", headers=ours)
    log.cut()
    log.add("shop", key=b"k", value=b"0/1", headers=ours)


AHEAD, BEHIND = "order-a/0000000a", "order-b/0000000b"


@case
def behind_one_that_was_decided_a_moment_ago(log: Steps) -> None:
    a, b = (log.half(key, options=f"k{HASH},op") for key in (AHEAD, BEHIND))
    log.op(("C", b), key=BEHIND)
    log.cut()
    log.op(("C", a), key=AHEAD)
    log.show(a)


@case
def behind_one_that_was_parked_a_moment_ago(log: Steps) -> None:
    """Without a question the one ahead was in half: `transaction_age_max` is shorter than `doubt_after`."""
    a, b = (log.half(key, options=f"k{HASH},op") for key in (AHEAD, BEHIND))
    log.op(("C", b), key=BEHIND)
    log.cut()
    log.content(a, key=AHEAD)
    log.summary("parked", a, key=AHEAD, reason="too-old", key_hash=HASH, order="prepare")


@case
def behind_one_whose_commit_was_repeated_a_moment_ago(log: Steps) -> None:
    a, b = (log.half(key, options=f"k{HASH},op") for key in (AHEAD, BEHIND))
    log.op(("C", a), key=AHEAD)
    log.op(("C", b), key=BEHIND)
    log.cut()
    log.op(("C", a), key=AHEAD)


@case
def missing_and_answered_with_unknown_a_moment_ago(log: Steps) -> None:
    half = log.half()
    log.op(("C", half))
    log.cut()
    log.op(("U", half))


@case
def held_and_released_between_the_reading_of_its_topics_and_of_doubt(log: Steps) -> None:
    """Bronze reads the real topics first, and `shop` a little later than `loyalty`."""
    first, last = log.half(KEY, "0/2"), log.half(KEY, "1/2", topic="loyalty")
    alone = log.half("alone/00000001")
    log.op(("C", last))
    log.op(("C", alone), key="alone/00000001")
    for index, half in enumerate((first, last)):
        log.content(half, index)
    log.content(alone, key="alone/00000001")
    log.summary("held", first, last, reason="topic-missing")
    log.summary("held", alone, key="alone/00000001", reason="topic-missing")
    log.cut()
    log.show(first)
    log.end_on_doubt(0, 1)
    log.end_on_doubt(0, key="alone/00000001")
    log.cut()
    log.show(last, "loyalty")
    log.show(alone)


@case
def forwarded_late_between_the_reading_of_its_topics(log: Steps) -> None:
    """No coordinator ran for an hour, and the topics have producers' times: one that the user set is of long ago."""
    first, last = log.half(KEY, "0/3"), log.half(KEY, "1/3", options="t5")
    other = log.half(KEY, "2/3", topic="loyalty")
    log.op(("C", other))
    log.cut()
    for half in (first, last):
        log.show(half)
        log.records[-1] = replace(log.records[-1], is_append_time=False)
    log.records[-1] = replace(log.records[-1], timestamp_ms=5)
    log.cut()
    log.show(other, "loyalty")


@case
def rolled_back_then_committed_and_half_of_it_is_visible(log: Steps) -> None:
    first, last = log.half(KEY, "0/2"), log.half(KEY, "1/2")
    log.op(("R", last))
    log.op(("C", last))
    log.show(first)
    log.cut()
    log.half("other/00000001")


@case
def rolled_back_at_the_last_half_record_on_doubt_that_another_one_joins_later(log: Steps) -> None:
    halves = [log.half(numbers=f"{index}/3") for index in range(2)]
    for index, half in enumerate(halves):
        log.content(half, index)
    log.summary("open", *halves, count=3)
    log.op(("R", halves[1]))
    log.cut()
    halves.append(log.half(numbers="2/3"))
    log.op(("C", halves[2]))
    for half in halves:
        log.show(half)
    log.end_on_doubt(0, 1, 2)


@pytest.fixture(scope="module", params=[60_000, 600_000], ids=["old", "young"])
def judged(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[Word]]]:
    """What the ledger says of each case after each run, and at once; read two minutes later, with a grace."""
    logs = {name: Steps() for name in CASES}
    for name, build in CASES.items():
        build(logs[name])
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
def test_what_waited_for_one_that_was_decided_a_moment_ago_may_still_be_on_its_way(
    judged: dict[str, list[list[Word]]], request: pytest.FixtureRequest
) -> None:
    waiting, decided, *_ = judged["behind_one_that_was_decided_a_moment_ago"]

    id_b, nonce_b = BEHIND.split("/")
    assert (id_b, nonce_b, "open") in waiting
    assert (id_b, nonce_b, "open" if "[young]" in request.node.name else "lost") in decided


@pytest.mark.nightly
def test_what_waited_for_one_that_was_parked_a_moment_ago_may_still_be_on_its_way(
    judged: dict[str, list[list[Word]]], request: pytest.FixtureRequest
) -> None:
    _, parked, *_ = judged["behind_one_that_was_parked_a_moment_ago"]

    expected = "open" if "[young]" in request.node.name else "lost"
    assert [(*AHEAD.split("/"), "parked"), (*BEHIND.split("/"), expected)] == parked


@pytest.mark.nightly
def test_what_does_not_wait_is_lost_also_while_a_repeated_commit_ahead_of_it_is_young(
    judged: dict[str, list[list[Word]]], request: pytest.FixtureRequest
) -> None:
    _, repeated, *_ = judged["behind_one_whose_commit_was_repeated_a_moment_ago"]

    expected = "open" if "[young]" in request.node.name else "lost"
    assert [(*AHEAD.split("/"), expected), (*BEHIND.split("/"), "lost")] == repeated


@pytest.mark.nightly
def test_an_answer_that_decides_nothing_puts_nothing_on_its_way(judged: dict[str, list[list[Word]]]) -> None:
    _, answered, *_ = judged["missing_and_answered_with_unknown_a_moment_ago"]

    assert [(*KEY.split("/"), "lost")] == answered


@pytest.mark.nightly
def test_what_was_released_a_moment_ago_may_still_be_on_its_way(
    judged: dict[str, list[list[Word]]], request: pytest.FixtureRequest
) -> None:
    """However long ago it was committed."""
    held, released, *_ = judged["held_and_released_between_the_reading_of_its_topics_and_of_doubt"]

    assert {"open"} == {word for _, _, word in held}
    expected = ["open", "open"] if "[young]" in request.node.name else ["lost", "torn"]
    assert expected == [word for _, _, word in released]
    _, in_part, *_ = judged["forwarded_late_between_the_reading_of_its_topics"]
    assert expected[1:] == [word for _, _, word in in_part]


@pytest.mark.nightly
def test_what_was_rolled_back_is_leaked_also_while_a_commit_of_it_is_young(judged: dict[str, list[list[Word]]]) -> None:
    first, *_ = judged["rolled_back_then_committed_and_half_of_it_is_visible"]

    assert [("order-1", KEY.split("/")[1], "leaked")] == first


def alone(
    spark: SparkSession, log: Steps, root: Path, behind: Callable[[int], None] = lambda _: None
) -> list[list[Word]]:
    """What the ledger says of one history in a bronze of its own."""
    found = Increments({"it": log.history()}, {"it": log.numbers()})
    return [found.of("it", rows) for rows in found.run(spark, str(root), behind=behind)]


@pytest.mark.parametrize("what", ["a record of nobody", pytest.param("a message once more", marks=pytest.mark.nightly)])
def test_a_ledger_can_be_read_when_a_run_read_nothing_but_a_real_topic(
    what: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Everything is settled; then only the real topic gets something, for example of a producer that knows no txlayer."""
    log = Steps()
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.cut()
    if what == "a message once more":
        log.show(half)
    else:
        log.add("shop", key=b"k", value=b"of a stranger")

    *_, last, at_once = alone(spark, log, tmp_path)

    assert at_once == last


@pytest.mark.nightly
def test_a_settled_transaction_stays_in_the_ledger_when_a_broken_record_names_its_id_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Steps()
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.cut()
    log.now_ms += 5 * DAY_MS
    headers = [("trace", b"t"), ("txl-id", b"order-1"), ("txl-origin", b"0:0|0")]
    log.show(half, headers=headers)
    # Another transaction of the same day is given up: it needs every record, too.
    other = log.half("other/00000001")
    log.op(("A", other), key="other/00000001")

    *_, last, at_once = alone(spark, log, tmp_path)

    assert at_once == last


@pytest.mark.fault("Spark: the records of one transaction are read in several runs, young or old, in any parts")
@pytest.mark.nightly
def test_what_is_parked_as_incomplete_stays_in_the_ledger_when_bronze_forgets_its_day(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As `txlayer-spark compact --keep 90d` between the second run and the third."""
    log = Steps()
    first, last = log.half(KEY, "0/2"), log.half(KEY, "1/2")
    log.op(("C", first))
    log.summary("parked-committed", first, last, reason="incomplete")
    log.content(first, 0)
    log.content(last, 1)
    log.cut()
    log.now_ms += 100 * DAY_MS
    log.half("other/00000001")
    log.cut()
    log.half("other/00000002")
    log.cut()
    log.op(("C", last))

    def forget(number: int) -> None:
        if number == 1:
            assert expire(spark, str(tmp_path / "bronze"), keep_ms=90 * DAY_MS)

    runs = alone(spark, log, tmp_path, behind=forget)

    words = [[word for txn_id, _, word in rows if txn_id == "order-1"] for rows in runs]
    # When something more comes of it nobody can judge it.
    assert [["parked"], ["parked"], ["parked"], ["out_of_window"]] == words[:4]


@pytest.mark.fault("Spark: the records of one transaction are read in several runs, young or old, in any parts")
@pytest.mark.nightly
def test_a_phantom_of_an_old_time_stays_in_the_ledger_when_what_is_old_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A real topic keeps the writer's times: what was found today may say that it is of any year."""
    log = Steps()
    log.half("other/00000001")
    ours = [("txl-id", b"phantom"), ("txl-origin", b"0:7|0/1|1700000000000")]
    for headers in (ours, [("txl-id", b"broken"), ("txl-origin", b"?")]):
        log.add("shop", key=b"k", value=b"0/1", headers=headers)
        log.records[-1] = replace(log.records[-1], timestamp_ms=5, is_append_time=False)
    log.cut()
    log.half("other/00000002")
    log.cut()
    log.half("other/00000003")

    def forget(_number: int) -> None:
        compact_ledger(spark, str(tmp_path / "run-by-run"), keep_ms=90 * DAY_MS)

    *_, last, at_once = alone(spark, log, tmp_path, behind=forget)

    assert at_once == last


@pytest.mark.fault("Spark: two ledger runs overlap, or the cluster has other settings for writing")
@pytest.mark.nightly
def test_a_run_that_is_done_again_doubles_nothing_whatever_the_session_says_of_overwriting(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Clusters with tables of their own often say that only those partitions are overwritten which are written."""
    log = Steps()
    half = log.half("again/0000000a")
    log.op(("C", half), key="again/0000000a")
    log.show(half)
    log.half("again/0000000b")

    def again(_number: int) -> None:
        # As a kill just before its end leaves it: everything written, the run not noted.
        (noted,) = (tmp_path / "run-by-run").glob("v*/runs/*.json")
        noted.unlink()
        judged_once_more(spark, tmp_path)

    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        alone(spark, log, tmp_path, behind=again)
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
    log = Steps()
    log.half("open/00000001")
    log.cut()
    half = log.half("late/0000000a")
    log.op(("C", half), key="late/0000000a")
    log.show(half)
    log.cut()
    log.half("open/00000002")
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

    *_, last, at_the_end = alone(spark, log, tmp_path, behind=at_once)

    assert ["run 2"] == stopped
    assert at_the_end == last


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
