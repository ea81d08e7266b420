"""A summary → one HTML file that needs nothing beside it, and the same numbers as JSON. Never: a rule about verdicts."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from pyspark.sql import SparkSession

from txlayer_spark.catalog import Catalog
from txlayer_spark.schemas import TopicKind
from txlayer_spark.sessions import done_again
from txlayer_spark.shelf import Shelf
from txlayer_spark.summary import (
    Summary,
    ages_chart,
    bars_chart,
    checks_chart,
    latency_chart,
    summarise,
    throughput_chart,
)
from txlayer_spark.verdicts import SEVERITIES, VERDICTS, exit_code


def to_json(summary: Summary) -> str:
    """The summary with its exit code; times are ISO 8601 in UTC."""
    content = {**asdict(summary), "exit_code": exit_code(summary.verdicts)}
    return json.dumps(content, default=_text, indent=2, sort_keys=True) + "\n"


def to_html(summary: Summary, *, made_at: datetime) -> str:
    """The page; whatever users wrote is escaped."""
    environment = Environment(
        loader=PackageLoader("txlayer_spark", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["moment"] = _moment
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment.get_template("report.html").render(
        summary=summary,
        made_at=made_at,
        cut_at=datetime.fromtimestamp(summary.cut_ms / 1000, UTC),
        total=sum(summary.verdicts.values()),
        faults=sum(n for v, n in summary.verdicts.items() if SEVERITIES[v].value == "fault"),
        warnings=sum(n for v, n in summary.verdicts.items() if SEVERITIES[v].value == "warning"),
        tiles=[(v.name, v.severity.value, v.means, summary.verdicts.get(v.name, 0)) for v in VERDICTS],
        severities={name: kind.value for name, kind in SEVERITIES.items()},
        charts=_charts(summary),
        findings=[_finding(row, summary.namespace) for row in summary.findings],
    )


def _charts(summary: Summary) -> list[tuple[str, str, str]]:
    """(title, what it shows, SVG) of each chart that has something to show."""
    step = f"Steps of {summary.step_s} s, by the time of the last half record."
    found = []
    if summary.curve:
        found += [
            ("Throughput", step, throughput_chart(summary)),
            ("Latency of each stage", f"{step} By the broker's clock.", latency_chart(summary)),
        ]
    if summary.checks:
        found.append(("Check-backs", "How often a group was asked, and who said the decision.", checks_chart(summary)))
    if any(row["n"] for row in summary.ages):
        found.append(("Not settled, by age", "At the cut.", ages_chart(summary)))
    if summary.partitions:
        names = [f"half-{row['half_partition']}" for row in summary.partitions]
        values = [row["n"] for row in summary.partitions]
        found.append(
            ("Partitions", "Transactions in each partition of half.", bars_chart(names, values, unit="transactions"))
        )
    if summary.hot_keys:
        names = [row["key_hash"] for row in summary.hot_keys]
        values = [row["n"] for row in summary.hot_keys]
        found.append(
            (
                "Hottest ordering keys",
                "By the key's hash, as half records name it.",
                bars_chart(names, values, unit="transactions"),
            )
        )
    if summary.dead_letters:
        names = [row["topic"] for row in summary.dead_letters]
        values = [row["n"] for row in summary.dead_letters]
        found.append(
            ("Dead letters and replays", "Records that bronze holds.", bars_chart(names, values, unit="records"))
        )
    return found


def _finding(row: dict[str, Any], namespace: str) -> dict[str, Any]:
    """A row of the table: where to look, in words that a console consumer understands."""
    places = []
    if row["first_offset"] is not None:
        last = "" if row["first_offset"] == row["last_offset"] else f"…{row['last_offset']}"
        places.append(f"{namespace}.half-{row['half_partition']}@{row['first_offset']}{last}")
    if row["decided_offset"] is not None:
        line = f":{row['decided_line']}" if row["decided_line"] else ""
        places.append(f"{namespace}.op-{row['half_partition']}@{row['decided_offset']}{line}")
    topics = row["visible_topics"] or []
    if row["visible_offset"] is not None and len(topics) == 1:
        places.append(f"{topics[0]}-{row['visible_partition']}@{row['visible_offset']}")
    else:
        places += topics  # the ledger keeps one offset, and does not say of which topic
    return {**row, "places": places, "when": row["decided_at"] or row["stored_at"] or row["forwarded_at"]}


def _moment(value: datetime | None) -> str:
    return "" if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def write_report(
    spark: SparkSession, *, bronze: str, ledger: str, namespace: str, page: Path, made_at: datetime
) -> Summary:
    """Write `page` and, beside it, the same with the ending `.json`; what they show.

    Raises:
        UsageError: there is no ledger yet, or bronze is of another namespace. Nothing was written.
    """
    summary = done_again(lambda: _summary(spark, bronze, ledger, namespace))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(to_html(summary, made_at=made_at), "utf-8")
    page.with_suffix(".json").write_text(to_json(summary), "utf-8")
    return summary


def _summary(spark: SparkSession, bronze: str, ledger: str, namespace: str) -> Summary:
    catalog, shelf = Catalog(spark, bronze), Shelf(spark, ledger)
    run = shelf.last()
    catalog.check(namespace)
    rows = shelf.rows(run)
    state = catalog.state()
    dead = catalog.records(catalog.cut(state), kinds=[TopicKind.DLQ, TopicKind.REPLAY])
    return summarise(
        rows,
        dead,
        namespace=namespace,
        cut_ms=run.cut_ms,
        gaps=state.gaps,
        hidden_topics=state.hidden,
        unread_topics=run.unread,
    )
