"""A summary → one HTML file that needs nothing beside it, and the same numbers as JSON. Never: a rule about verdicts."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from pyspark.sql import SparkSession

from txlayer.core.verification import ADVICE, Advice, Verdict
from txlayer.errors import UsageError
from txlayer_spark.catalog import Catalog
from txlayer_spark.schemas import TopicKind
from txlayer_spark.sessions import done_again
from txlayer_spark.shelf import Shelf
from txlayer_spark.summary import Summary, summarise
from txlayer_spark.verdicts import VERDICTS, exit_code

WORST_MAX = 10  # findings on the page; JSON has more of them
EARLIER_MAX = 48  # earlier reports that JSON keeps, at most one an hour
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000


class Change(NamedTuple):
    """How many transactions have a verdict, and how many more than in an earlier report."""

    name: str
    severity: str
    means: str
    transactions: int
    more: int


def to_json(summary: Summary) -> str:
    """The summary with its exit code; times are ISO 8601 in UTC."""
    content = {**asdict(summary), "exit_code": exit_code(summary.verdicts)}
    return json.dumps(content, default=_text, indent=2, sort_keys=True) + "\n"


def to_html(summary: Summary, *, made_at: datetime) -> str:
    """The page; whatever users wrote is escaped."""
    from txlayer_spark import charts  # only here: most commands draw nothing

    environment = Environment(
        loader=PackageLoader("txlayer_spark", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["moment"] = _moment
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["change"] = lambda value: f"{value:+,}" if value else "±0"
    before = _a_day_before(summary)
    changes = [
        Change(v.name, v.severity.value, v.means, count, count - (before["verdicts"].get(v.name, 0) if before else 0))
        for v in VERDICTS
        for count in [summary.verdicts.get(v.name, 0)]
    ]
    worst = [_finding(row, summary.namespace) for row in summary.findings[:WORST_MAX]]
    kinds = {row["verdict"]: _what_to_do(row, summary.namespace) for row in reversed(worst)}
    return environment.get_template("report.html").render(
        summary=summary,
        made_at=made_at,
        cut_at=_at(summary.cut_ms),
        before_at=_at(before["cut_ms"]) if before else None,
        total=sum(summary.verdicts.values()),
        sums={
            kind: (
                sum(c.transactions for c in changes if c.severity == kind),
                sum(c.more for c in changes if c.severity == kind),
            )
            for kind in ("fault", "warning", "good")
        },
        changes=changes,
        colours=charts.COLOURS,
        charts=_charts(summary),
        worst=[
            (change, kinds[change.name], [row for row in worst if row["verdict"] == change.name])
            for change in sorted(changes, key=lambda change: change.severity)
            if change.name in kinds
        ],
        worst_count=len(worst),
    )


def _a_day_before(summary: Summary) -> Mapping[str, Any] | None:
    """The earlier report that is nearest to a day before this one."""
    return min(summary.earlier, key=lambda each: abs(summary.cut_ms - _DAY_MS - each["cut_ms"]), default=None)


def with_earlier(summary: Summary, said: str | None) -> Summary:
    """The summary with what the JSON of the report before it (None: there is none) knows of earlier ones, and says itself."""
    try:
        before = json.loads(said or "{}")
    except ValueError:
        return summary  # a report that was cut off, or another file: there is nothing to compare with
    if not isinstance(before, dict) or before.get("namespace") != summary.namespace:
        return summary
    earlier = [each for each in before.get("earlier", ()) if each["cut_ms"] < summary.cut_ms]
    last_ms = earlier[-1]["cut_ms"] if earlier else 0
    if last_ms + _HOUR_MS <= before["cut_ms"] < summary.cut_ms:
        earlier.append({name: before[name] for name in ("cut_ms", "verdicts")})
    return replace(summary, earlier=earlier[-EARLIER_MAX:])


def _what_to_do(row: dict[str, Any], namespace: str) -> Advice:
    """The advice for a finding; its command can be pasted into a shell."""
    advice = ADVICE[Verdict(row["verdict"])]
    at = row["stored_at"] or row["decided_at"] or row["forwarded_at"]
    # What is visible may have a time of its writer's, of any year.
    since = "7d" if at is None else (max(at, _at(60_000)) - timedelta(minutes=1)).replace(microsecond=0).isoformat()
    topics = row["visible_topics"] or row["topics"] or ["TOPIC"]
    words = {"ID": row["txn_id"], "SINCE": since, "TOPIC": topics[0]}
    command = [shlex.quote(words.get(word, word)) for word in advice.command.split()]
    return advice._replace(command=" ".join([*command, "--namespace", shlex.quote(namespace)]))


def _charts(summary: Summary) -> list[tuple[str, str, str]]:
    """(title, what it shows, SVG) of each chart that has something to show."""
    from txlayer_spark import charts

    step = f"Steps of {summary.step_s} s, by the time of the last half record."
    found = []
    if len(summary.curve) > 1:  # one step is no curve
        found += [
            (
                "Latency of each stage",
                f"{step} Without messages whose time the user set.",
                charts.latency_chart(summary),
            ),
            ("Throughput", step, charts.throughput_chart(summary)),
        ]
    if any(row["n"] for row in summary.ages):
        found.append(("Not settled, by age", "At the time of reading.", charts.ages_chart(summary)))
    if summary.checks:
        found.append(
            ("Check-backs", "How often a group was asked, and who said the decision.", charts.checks_chart(summary))
        )
    bars = (
        ("Partitions", "Transactions in each partition of half.", summary.partitions, "half_partition"),
        ("Hottest ordering keys", "By the key's hash, as half records name it.", summary.hot_keys, "key_hash"),
        ("Dead letters and replays", "Records that bronze holds.", summary.dead_letters, "topic"),
    )
    for title, shows, rows, name in bars:
        if rows:
            drawn = charts.bars_chart(
                ["unknown" if row[name] is None else str(row[name]) for row in rows], [row["n"] for row in rows]
            )
            found.append((title, shows, drawn))
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


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


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
        UsageError: there is no ledger yet, bronze is of another namespace, or a file cannot be there. Nothing was written.
    """
    numbers = page.with_suffix(".json")
    for path in (page, numbers):
        if path.exists() and not path.is_file():  # a device, too, would be replaced by the file
            raise UsageError(f"--page {page}: {path} is no file; name another one")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"--page {page}: {exc.strerror}; name a folder that may be written") from exc
    summary = _summary(spark, bronze, ledger, namespace)
    summary = with_earlier(summary, numbers.read_text("utf-8") if numbers.exists() else None)
    for path, text in ((page, to_html(summary, made_at=made_at)), (numbers, to_json(summary))):
        written = path.with_name(f"{path.name}.new")
        written.write_text(text, "utf-8")
        written.replace(path)
    return summary


@done_again
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
