"""Records with numbers and times that nobody expects: the ledger and the report judge them, and stop at none."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.reference.steps import KEY
from tests.support.spark_histories import NAMESPACE
from tests.support.spark_increments import Increments, Steps, Word
from txlayer.errors import UsageError
from txlayer_spark import lines
from txlayer_spark.jobs.ledger import read_ledger
from txlayer_spark.report import FINDINGS_MAX, Summary, summarise, to_html, write_report

pytestmark = pytest.mark.nightly

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
OK = [("order-1", "5f3a90c2", "ok")]
DAY_MS = 86_400_000


GOOD = "half, C 0, show 0"


def many_messages(count: int) -> Steps:
    """One transaction of so many messages."""
    each = range(count)
    return Steps().play(
        ", ".join([*(f"half {n}/{count}" for n in each), f"C {count - 1}", *(f"show {n}" for n in each)])
    )


def check_of_a_partition_beyond_32_bits() -> Steps:
    log = Steps().play(GOOD)
    log.add("txlayer.check", value=b"1|Q|order-1/5f3a90c2|orders|99999999999|0|5|1|shop")
    return log


def doubled() -> Steps:
    """Kafka's default for real topics; the producer's clock is five days ahead, and only this one needs every record."""
    log = Steps()
    born = log.now_ms + 5 * DAY_MS
    txl = f"1|{KEY}|orders|shop|0/1|{born}|".encode()
    half = log.half(headers=[("trace", b"t"), ("txl", txl)])
    log.op(("C", half))
    log.show(half)
    log.records[-1] = replace(log.records[-1], is_append_time=False)
    log.cut()
    log.show(half)
    log.records[-1] = replace(log.records[-1], is_append_time=False)
    return log


def torn_over_two_topics() -> Steps:
    log = Steps()
    log.partition_counts.update({"aaa": 6, "zzz": 6})
    for _ in range(3):
        log.add("aaa", 5, value=b"somebody else's")
    one = log.half(KEY, "0/3", topic="aaa")
    two = log.half(KEY, "1/3", topic="zzz")
    log.half(KEY, "2/3", topic="zzz")
    log.op(("C", log.records[-1]))
    log.show(one, "aaa", 5)
    log.show(two, "zzz", 0)
    return log


def nine_rolled_back_and_one_slow() -> Steps:
    """A day later than all others, so that they have a place of their own in the curve; and one whose user gave it a time."""
    log = Steps()
    log.now_ms += DAY_MS
    timed = log.half("timed/0000000a", options=f"t{log.now_ms - 3_600_000}")
    log.op(("C", timed), key="timed/0000000a")
    log.show(timed)
    log.records[-1] = replace(log.records[-1], timestamp_ms=log.now_ms - 3_600_000, is_append_time=False)
    for number in range(9):
        log.half(f"rolled-{number}/0000000a")
        log.op(("R", log.records[-1]), key=f"rolled-{number}/0000000a")
    half = log.half()
    log.now_ms += 5_000
    log.op(("C", half))
    log.now_ms += 7_000
    log.show(half)
    return log


LOGS = {
    "62 messages": many_messages(62),
    "63 messages": many_messages(63),
    "64 messages": many_messages(64),
    "count": Steps().play(f"{GOOD}, half 0/3000000000 txn=other/00000001"),
    # `Renamed` moves only what has at most nine digits.
    "half partition": Steps().play(f"{GOOD}, forge phantom 999999999:7|0/1|5, cut, forge phantom2 99999999999:7|0/1|5"),
    "check": check_of_a_partition_beyond_32_bits(),
    "doubled": doubled(),
    "torn": torn_over_two_topics(),
    "slow": nine_rolled_back_and_one_slow(),
}


class Runs(NamedTuple):
    """The words on each history after each increment and, last, at once; and the page about all of them."""

    words: dict[str, list[list[Word]]]
    summary: Summary
    html: str
    root: Path


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The ledger's runs over all histories together."""
    root = tmp_path_factory.mktemp("unusual")
    found = Increments(
        {name: log.history() for name, log in LOGS.items()}, {name: log.numbers() for name, log in LOGS.items()}
    )
    rows = found.run(spark, str(root))
    words = {name: [found.of(name, each) for each in rows] for name in LOGS}
    return Runs(words, *report(spark, root), root)


def report(spark: SparkSession, root: Path, *, namespace: str = NAMESPACE) -> tuple[Summary, str]:
    page = root / f"{namespace}.html"
    summary = write_report(
        spark, bronze=str(root / "bronze"), ledger=str(root / "run-by-run"), namespace=namespace, page=page, made_at=AT
    )
    return summary, page.read_text("utf-8")


@pytest.mark.parametrize("count", [62, 63, 64])
def test_transactions_of_about_63_messages(count: int, runs: Runs) -> None:
    assert OK == runs.words[f"{count} messages"][-1]


def test_a_half_record_with_a_count_beyond_32_bits(runs: Runs) -> None:
    first, second = runs.words["count"][-1]

    assert OK == [first]
    assert ("other", "00000001") == second[:2]
    assert second[2] in ("open", "overdue")


def test_a_forwarded_record_that_names_a_half_partition_beyond_32_bits(runs: Runs) -> None:
    assert {"ok", "orphan"} == {verdict for _, _, verdict in runs.words["half partition"][-1]}


def test_a_check_about_a_half_partition_beyond_32_bits(runs: Runs) -> None:
    assert OK == runs.words["check"][-1]


def test_a_doubled_message_is_found_although_its_producers_clock_was_ahead_and_the_topic_keeps_such_times(
    runs: Runs,
) -> None:
    first, last, at_once = runs.words["doubled"]

    assert OK == first
    assert [("order-1", "5f3a90c2", "duplicate")] == at_once
    assert at_once == last


def test_the_report_names_a_place_where_something_stands_and_its_own_namespace(runs: Runs) -> None:
    records = {(r.topic, r.partition, r.offset) for r in LOGS["torn"].records}
    assert ("zzz", 0, 0) in records
    assert ("aaa", 0, 0) not in records
    assert [("order-1", "5f3a90c2", "torn")] == runs.words["torn"][-1]

    assert f"h{list(LOGS).index('torn')}-aaa-0@0" not in runs.html


def test_a_report_does_not_say_that_it_is_of_another_namespace(spark: SparkSession, runs: Runs) -> None:
    try:
        _, html = report(spark, runs.root, namespace="another")
    except UsageError:
        return
    assert "another.half-" not in html
    assert "<span>another</span>" not in html


def test_percentiles_are_of_what_was_decided_and_became_visible(runs: Runs) -> None:
    stages = [row["forward_ms"] for row in runs.summary.curve if row["visible"]]

    assert [7010] * 3 in stages, runs.summary.curve


def test_a_report_can_be_written_whatever_time_a_writer_gave_its_record(spark: SparkSession, runs: Runs) -> None:
    """As a broker stores it that lets producers set the time: `timestamp_millis` of any number."""
    ledger = read_ledger(spark, str(runs.root / "run-by-run"))
    # What `to_ledger` makes of a time before the first one that Python can show.
    strange = ledger.withColumn("forwarded_at", lines.time_of(F.lit(-70_000_000_000_000)))
    strange = strange.withColumns({name: F.lit(None).cast("timestamp") for name in ("stored_at", "decided_at")})
    many = strange.crossJoin(spark.range(FINDINGS_MAX)).drop("id").withColumn("verdict", F.lit("orphan"))
    one = strange.limit(1).withColumn("verdict", F.lit("torn"))
    nothing = spark.range(0).selectExpr("'x' AS kind", "'y' AS topic")
    found = summarise(many.unionByName(one), nothing, namespace="n", cut_ms=0)

    assert (FINDINGS_MAX, {"orphan", "torn"}) == (len(found.findings), {row["verdict"] for row in found.findings[:2]})
    assert "<svg" in to_html(found, made_at=datetime.now(UTC))
