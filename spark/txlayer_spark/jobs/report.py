"""Ledger → report: an HTML file, JSON beside it, and the exit code."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession

from txlayer_spark.catalog import Catalog
from txlayer_spark.failures import done_again
from txlayer_spark.report import to_html, to_json
from txlayer_spark.schemas import TopicKind
from txlayer_spark.shelf import Shelf
from txlayer_spark.summary import Summary, summarise


def write_report(
    spark: SparkSession,
    *,
    bronze: str,
    ledger: str,
    namespace: str,
    page: Path,
    made_at: datetime,
) -> Summary:
    """Write `page` and, beside it, the same with the ending `.json`; what they show.

    Raises:
        UsageError: there is no ledger yet. Nothing was written.
    """
    summary = done_again(lambda: _summary(spark, bronze, ledger, namespace))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(to_html(summary, made_at=made_at), "utf-8")
    page.with_suffix(".json").write_text(to_json(summary), "utf-8")
    return summary


def _summary(spark: SparkSession, bronze: str, ledger: str, namespace: str) -> Summary:
    catalog, shelf = Catalog(spark, bronze), Shelf(spark, ledger)
    run = shelf.last()
    rows = shelf.rows(run)
    state = catalog.state()
    dead = catalog.records(catalog.cut(state), kinds=[TopicKind.DLQ, TopicKind.REPLAY])
    return summarise(
        rows, dead, namespace=namespace, cut_ms=run.cut_ms, gaps=state.gaps, hidden_topics=state.hidden,
    )  # fmt: skip
