"""Records with numbers and times that nobody expects: the ledger and the report judge them, and stop at none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.reference.test_model import KEY
from tests.support.spark_histories import NAMESPACE
from tests.support.spark_increments import Increments, Steps, Word
from txlayer.errors import UsageError
from txlayer_spark.jobs.ledger import read_ledger
from txlayer_spark.report import write_report
from txlayer_spark.summary import Summary, summarise

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def runs(
    spark: SparkSession, log: Steps, root: Path, behind: Callable[[int], None] = lambda _: None
) -> list[list[Word]]:
    """What the ledger says after each increment and, last, at once."""
    found = Increments({"it": log.history()}, {"it": log.numbers()})
    return [found.of("it", rows) for rows in found.run(spark, str(root), behind=behind)]


@pytest.mark.parametrize("count", [62, 63, 64])
def test_transactions_of_about_63_messages(count: int, spark: SparkSession, tmp_path: Path) -> None:
    log = Steps()
    halves = [log.half(numbers=f"{index}/{count}") for index in range(count)]
    log.op(("C", halves[-1]))
    for half in halves:
        log.show(half)

    *_, at_once = runs(spark, log, tmp_path)

    assert [("order-1", "5f3a90c2", "ok")] == at_once


def test_a_half_record_with_a_count_beyond_32_bits(spark: SparkSession, tmp_path: Path) -> None:
    log = Steps()
    log.half("large/00000001", "0/3000000000")
    half = log.half()
    log.op(("C", half))
    log.show(half)

    *_, at_once = runs(spark, log, tmp_path)

    assert [("large", "00000001", "overdue"), ("order-1", "5f3a90c2", "ok")] == at_once or [
        ("large", "00000001", "open"),
        ("order-1", "5f3a90c2", "ok"),
    ] == at_once


def test_a_forwarded_record_that_names_a_half_partition_beyond_32_bits(spark: SparkSession, tmp_path: Path) -> None:
    log = Steps()
    half = log.half()
    log.op(("C", half))
    log.show(half)
    ours = [("txl-id", b"phantom"), ("txl-origin", b"999999999:7|0/1|5")]
    log.add("shop", key=b"k", value=b"x", headers=ours)
    log.cut()
    # `Renamed` moves only what has at most nine digits.
    ours = [("txl-id", b"phantom2"), ("txl-origin", b"99999999999:7|0/1|5")]
    log.add("shop", key=b"k", value=b"x", headers=ours)

    *_, at_once = runs(spark, log, tmp_path)

    assert {"ok", "orphan"} == {verdict for _, _, verdict in at_once}


def test_a_check_about_a_half_partition_beyond_32_bits(spark: SparkSession, tmp_path: Path) -> None:
    log = Steps()
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.add("txlayer.check", value=b"1|Q|order-1/5f3a90c2|orders|99999999999|0|5|1|shop")

    *_, at_once = runs(spark, log, tmp_path)

    assert [("order-1", "5f3a90c2", "ok")] == at_once


def test_a_doubled_message_is_found_although_its_producers_clock_was_ahead_and_the_topic_keeps_such_times(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Kafka's default for real topics; the producer's clock is five days ahead, and only this one needs every record."""
    log = Steps()
    born = log.now_ms + 5 * 86_400_000
    txl = f"1|{KEY}|orders|shop|0/1|{born}|".encode()
    half = log.half(headers=[("trace", b"t"), ("txl", txl)])
    log.op(("C", half))
    log.show(half)
    log.records[-1] = replace(log.records[-1], is_append_time=False)
    log.cut()
    log.show(half)
    log.records[-1] = replace(log.records[-1], is_append_time=False)

    first, last, at_once = runs(spark, log, tmp_path)

    assert [("order-1", "5f3a90c2", "ok")] == first
    assert [("order-1", "5f3a90c2", "duplicate")] == at_once
    assert at_once == last


def report(
    spark: SparkSession, root: Path, *, namespace: str = NAMESPACE, ledger: str = "run-by-run"
) -> tuple[Summary, str]:
    page = root / "page.html"
    summary = write_report(
        spark, bronze=str(root / "bronze"), ledger=str(root / ledger), namespace=namespace, page=page, made_at=AT
    )
    return summary, page.read_text("utf-8")


def test_the_report_names_a_place_where_something_stands_and_its_own_namespace(
    spark: SparkSession, tmp_path: Path
) -> None:
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
    found = runs(spark, log, tmp_path)
    assert [("order-1", "5f3a90c2", "torn")] == found[-1]

    _, html = report(spark, tmp_path)

    records = {(r.topic, r.partition, r.offset) for r in log.records}
    assert ("zzz", 0, 0) in records
    assert ("aaa", 0, 0) not in records
    assert "h0-aaa-0@0" not in html


def test_a_report_does_not_say_that_it_is_of_another_namespace(spark: SparkSession, tmp_path: Path) -> None:
    log = Steps()
    log.op(("C", log.half()))
    runs(spark, log, tmp_path)

    try:
        _, html = report(spark, tmp_path, namespace="another")
    except UsageError:
        return
    assert "another.half-" not in html
    assert '<code style="font-size:inherit">another</code>' not in html


def test_percentiles_are_of_what_was_decided_and_became_visible(spark: SparkSession, tmp_path: Path) -> None:
    log = Steps()
    for number in range(9):
        log.half(f"rolled-{number}/0000000a")
        log.op(("R", log.records[-1]), key=f"rolled-{number}/0000000a")
    half = log.half()
    log.now_ms += 5_000
    log.op(("C", half))
    log.now_ms += 7_000
    log.show(half)
    runs(spark, log, tmp_path)

    summary, _ = report(spark, tmp_path)

    stages = [row["forward_ms"] for row in summary.curve if row["visible"]]
    assert [7010] * 3 in stages, summary.curve


def test_a_report_can_be_written_whatever_time_a_writer_gave_its_record(spark: SparkSession, tmp_path: Path) -> None:
    """As a broker stores it that lets producers set the time: `timestamp_millis` of any number."""
    log = Steps()
    log.op(("C", log.half()))
    log.show(log.records[0])
    found = Increments({"it": log.history()}, {"it": log.numbers()})
    found.run(spark, str(tmp_path))
    ledger = read_ledger(spark, str(tmp_path / "run-by-run"))
    from pyspark.sql import functions as F

    from txlayer_spark import lines

    # What `to_ledger` makes of a time before the first one that Python can show.
    strange = ledger.withColumn("forwarded_at", lines.time_of(F.lit(-70_000_000_000_000)))
    strange = strange.withColumn("verdict", F.lit("orphan"))
    summarise(strange, spark.range(0).selectExpr("'x' AS kind", "'y' AS topic"), namespace="n", cut_ms=0)
