"""The ledger → the few numbers of a report, their charts as SVG, one HTML file that needs no other file, and the same numbers
as JSON. Every result is small, whatever the ledger's size. Never: a rule about verdicts.

matplotlib takes a second to load: import this module only to make a report.
"""

import io
import json
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from txlayer.core.verification import ADVICE, Advice, Severity, Verdict
from txlayer.errors import UsageError
from txlayer_spark.catalog import Catalog, Gap
from txlayer_spark.parse import TopicKind
from txlayer_spark.sessions import done_again
from txlayer_spark.shelf import Shelf
from txlayer_spark.verdicts import SEVERITIES, VERDICTS, exit_code

BUCKETS_MAX = 120  # points of a curve: more are not told apart on a page
FINDINGS_MAX = 500
"""How many findings JSON lists, the worst first and some of each verdict; it also has their number, and the ledger has them all."""
HOT_MAX = 15
QUERIES_AT_ONCE = 3  # beside the curve's: the driver plans them on few cores
AGES_MS = (60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 259_200_000)
"""Ends of the classes of age: a minute, ten, an hour, six, a day, three."""
STAGES = ("decide_ms", "forward_ms", "total_ms")
PERCENTILES = (0.5, 0.95, 0.99)
_STEPS_S = (1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a report shows; the JSON has the same fields, with times in ISO 8601."""

    namespace: str
    cut_ms: int
    verdicts: dict[str, int]
    step_s: int
    curve: list[dict[str, Any]]
    """Per step: stored, committed, rolled back, messages visible, and percentiles of each stage."""
    ages: list[dict[str, Any]]
    checks: list[dict[str, Any]]  # transactions by the number of check-backs, with who decided them
    hot_keys: list[dict[str, Any]]
    partitions: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    finding_count: int
    gaps: list[dict[str, Any]] = field(default_factory=list)
    """What was gone before it was read: `topic`, `partition`, and offsets from `start` to before `end`; no offsets for a
    topic that was not there when bronze ran before."""
    hidden_topics: list[str] = field(default_factory=list)
    """Real topics whose end is behind a Kafka transaction that stays open."""
    unread_topics: list[str] = field(default_factory=list)
    """Real topics that half records name and bronze could not read."""
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """What earlier reports said, the oldest first: `cut_ms` and `verdicts`."""


def summarise(
    ledger: DataFrame,
    bronze: DataFrame,
    *,
    namespace: str,
    cut_ms: int,
    gaps: Sequence[Gap] = (),
    hidden_topics: Sequence[str] = (),
    unread_topics: Sequence[str] = (),
) -> Summary:
    """The numbers of a ledger and of the dead letters in bronze, and what bronze could not read."""
    bad = ledger.where(F.col("verdict").isin(*_not_good()))
    checked = ledger.withColumn("checked", F.least("checked_count", F.lit(3)))
    keyed = ledger.where(F.isnotnull("key_hash"))
    dead = bronze.where(F.col("kind").isin(TopicKind.DLQ.value, TopicKind.REPLAY.value))
    # Each takes longer to plan and compile than to run; one alone would leave the other cores idle.
    with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        found = {
            name: pool.submit(_rows, frame)
            for name, frame in {
                "verdicts": _count(ledger, "verdict"),
                "findings": _findings(bad),
                "hot_keys": _count(keyed, "key_hash").orderBy(F.desc("n"), "key_hash").limit(HOT_MAX),
                "checks": _count(checked, "checked", "decided_by").orderBy("checked", "decided_by"),
                "partitions": _count(ledger, "half_partition").orderBy("half_partition"),
                "dead_letters": _count(dead, "topic", "kind").orderBy("topic"),
            }.items()
        }
        ages = pool.submit(_ages, ledger, cut_ms)
        step_s = _step_s(ledger)
        curve = _rows(_curve(ledger, step_s))
        rows = {name: future.result() for name, future in found.items()}
    verdicts = {row["verdict"]: row["n"] for row in rows.pop("verdicts")}
    return Summary(
        namespace=namespace,
        cut_ms=cut_ms,
        verdicts=verdicts,
        step_s=step_s,
        curve=curve,
        ages=ages.result(),
        finding_count=sum(n for verdict, n in verdicts.items() if verdict in _not_good()),
        gaps=[gap._asdict() for gap in gaps],
        hidden_topics=list(hidden_topics),
        unread_topics=list(unread_topics),
        **rows,
    )


def _not_good() -> list[str]:
    return [name for name, severity in SEVERITIES.items() if severity is not Severity.GOOD]


def _count(frame: DataFrame, *by: str) -> DataFrame:
    return frame.groupBy(*by).agg(F.count("*").alias("n"))


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows with times in UTC: Spark gives them in the time of this machine, and does not say so."""
    return [
        {
            name: value.astimezone(UTC) if isinstance(value, datetime) else value
            for name, value in row.asDict(recursive=True).items()
        }
        for row in frame.collect()
    ]


def _step_s(ledger: DataFrame) -> int:
    span = ledger.agg((F.max(F.unix_seconds("stored_at")) - F.min(F.unix_seconds("stored_at"))).alias("s")).head()
    seconds = (span.s if span is not None else None) or 0
    return next((step for step in _STEPS_S if seconds <= step * BUCKETS_MAX), _STEPS_S[-1])


def _curve(ledger: DataFrame, step_s: int) -> DataFrame:
    begin = F.timestamp_seconds(F.floor(F.unix_seconds("stored_at") / step_s) * step_s)
    committed = F.col("resolution") == "COMMIT"
    stages = [
        # `greatest` passes over null: what never happened would count as 0 ms.
        F.percentile_approx(
            F.when(F.isnotnull(stage), F.greatest(F.col(stage), F.lit(0))), list(PERCENTILES), 1000
        ).alias(stage)
        for stage in STAGES
    ]
    return (
        ledger.where(F.isnotnull("stored_at"))
        .groupBy(begin.alias("at"))
        .agg(
            F.count("*").alias("stored"),
            F.count_if(committed).alias("committed"),
            F.count_if(F.col("resolution") == "ROLLBACK").alias("rolled_back"),
            F.sum("visible_count").alias("visible"),
            *stages,
        )
        .orderBy("at")
    )


def _ages(ledger: DataFrame, cut_ms: int) -> list[dict[str, Any]]:
    waiting = ledger.where(F.col("verdict").isin("open", "overdue", "parked"))
    age = F.lit(cut_ms) - F.unix_millis(F.coalesce("stored_at", "born_at"))
    found = {
        (row.verdict, row.age): row.n
        for row in _count(waiting.select("verdict", _class(age, AGES_MS).alias("age")), "verdict", "age").collect()
    }
    return [
        {"age": number, "verdict": verdict, "n": found.get((verdict, number), 0)}
        for number in range(len(AGES_MS) + 1)
        for verdict in ("open", "overdue", "parked")
    ]


def _class(value: Column, ends: Sequence[int]) -> Column:
    chosen = F.when(value <= ends[0], 0)
    for number, end in enumerate(ends[1:], start=1):
        chosen = chosen.when(value <= end, number)
    return chosen.otherwise(len(ends))


def _findings(bad: DataFrame) -> DataFrame:
    rank = F.when(F.col("verdict").isin(*(n for n, s in SEVERITIES.items() if s is Severity.FAULT)), 0).otherwise(1)
    # Many of one verdict hide no other one.
    number = F.row_number().over(Window.partitionBy("verdict").orderBy("stored_at", "txn_id"))
    return (
        bad.withColumn("_number", number)
        .where(F.col("_number") <= FINDINGS_MAX)
        .orderBy(rank, "_number", "verdict")
        .limit(FINDINGS_MAX)
        .select(
            *("verdict", "txn_id", "nonce", "producer_group", "topics", "half_partition"),
            *("first_offset", "last_offset", "decided_offset", "decided_line", "visible_topics", "visible_partition"),
            *("visible_offset", "visible_count", "message_count"),
            *("stored_at", "decided_at", "forwarded_at", "doubt_reason"),
        )
    )


# --- pictures ---------------------------------------------------------------------------------------------------------

COLOURS = {
    "ground": "#fbfbfa",
    "panel": "#fff",
    "ink": "#1c2227",
    "soft": "#55606a",
    "line": "#d6dadd",
    "link": "#0b5c93",
    "good": "#1d6b3a",
    "warn": "#7d5300",
    "bad": "#a61b1b",
}
"""The console's, by light. A chart names them as the page's variables, so that it follows the page into the dark and onto paper."""
AGE_NAMES = ("≤ 1 min", "≤ 10 min", "≤ 1 h", "≤ 6 h", "≤ 1 d", "≤ 3 d", "older")
STAGE_NAMES = {"decide_ms": "stored → decided", "forward_ms": "decided → visible", "total_ms": "stored → visible"}
_LINES = (("link", "-"), ("good", "--"), ("bad", ":"))
"""A line is known by its colour, and on black and white paper by its form."""
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: small, sharp, and found by a search
    "svg.hashsalt": "txlayer",  # the same numbers give the same bytes
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["soft"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"],
    "xtick.color": COLOURS["soft"],
    "ytick.color": COLOURS["soft"],
    "text.color": COLOURS["ink"],
    "hatch.color": COLOURS["panel"],
    "legend.frameon": False,
}


def throughput_chart(summary: Summary) -> str:
    """Transactions per second over time, by what became of them."""
    rows, step = {row["at"]: row for row in summary.curve}, timedelta(seconds=summary.step_s)
    # A step without a transaction has no row.
    times = [min(rows) + number * step for number in range((max(rows) - min(rows)) // step + 1)]
    with mpl.rc_context(_SETTINGS):
        figure, axes = _canvas()
        for name, (colour, form) in zip(("stored", "committed", "rolled_back"), _LINES, strict=True):
            rates = [rows[at][name] / summary.step_s if at in rows else 0 for at in times]
            label = name.replace("_", " ")
            axes.plot(times, rates, form, label=label, color=COLOURS[colour], marker=_marker(times))
        axes.set_ylabel("transactions per second")
        axes.set_ylim(bottom=0)
        _time_axis(axes)
        return _finish(figure)


def latency_chart(summary: Summary) -> str:
    """Percentiles of each stage over time, on a logarithmic scale."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(11, 3), layout="constrained")
        panels = figure.subplots(1, len(STAGES), sharey=True)
        for axes, stage in zip(panels, STAGES, strict=True):
            points = [(row["at"], row[stage]) for row in summary.curve if row[stage]]
            times = [at for at, _ in points]
            for number, (percentile, (colour, form)) in enumerate(zip(PERCENTILES, _LINES, strict=True)):
                values = [max(1, each[number]) for _, each in points]
                label = f"p{percentile * 100:.0f}"
                axes.plot(times, values, form, label=label, color=COLOURS[colour], marker=_marker(times))
            axes.set_title(STAGE_NAMES[stage], fontsize=11, color=COLOURS["soft"])
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_plain)
            _time_axis(axes)
        panels[0].set_ylabel("ms")
        return _finish(figure)


def ages_chart(summary: Summary) -> str:
    """What is not settled, by age."""
    with mpl.rc_context(_SETTINGS):
        figure, axes = _canvas()
        bottom = [0] * len(AGE_NAMES)
        for verdict, colour, hatch in (("open", "link", ""), ("overdue", "warn", "//"), ("parked", "bad", "xx")):
            heights = [row["n"] for row in summary.ages if row["verdict"] == verdict]
            axes.bar(
                AGE_NAMES, heights, bottom=bottom, label=verdict, color=COLOURS[colour], width=0.6, hatch=hatch, lw=0
            )
            bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
        axes.set_ylabel("transactions")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(axis="x", labelsize=10)
        return _finish(figure)


def checks_chart(summary: Summary) -> str:
    """How often a producer group was asked, and who said the decision."""
    asked = ("never asked", "asked once", "asked twice", "asked more often")
    rows = sorted(summary.checks, key=lambda row: (row["checked"], row["decided_by"] or "~"))
    names = [f"{asked[row['checked']]}: {row['decided_by'] or 'undecided'}" for row in rows]
    return bars_chart(names, [row["n"] for row in rows], is_log=True)


def bars_chart(names: Sequence[str], values: Sequence[int], *, is_log: bool = False) -> str:
    """One bar for each name, lying, with its number; on a logarithmic scale small ones are seen beside large ones."""
    with mpl.rc_context(_SETTINGS):
        figure, axes = _canvas(height=0.5 + 0.26 * max(3, len(names)))
        bars = axes.barh(list(names), list(values), color=COLOURS["link"], height=0.6)
        axes.bar_label(bars, labels=[f"{value:,}" for value in values], padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.16)
        axes.grid(visible=False, axis="y")
        if is_log:
            axes.set_xscale("log")
            axes.set_xlim(left=0.5)
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(_plain)
        return _svg(figure)


def _canvas(*, height: float = 3.0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, height), layout="constrained")
    return figure, figure.subplots()


def _plain(value: float, _position: float) -> str:
    return f"{value:,.0f}"


def _marker(times: Sequence[Any]) -> str:
    # A single point is no line.
    return "o" if len(times) < 3 else ""


def _time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=2, maxticks=5)  # type: ignore[no-untyped-call]  # matplotlib's own
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # the same


def _finish(figure: Figure) -> str:
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, handlelength=2.6)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # What is before the element belongs to a file of its own.
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    for name, colour in COLOURS.items():
        drawn = drawn.replace(to_hex(colour), f"var(--{name})")
    return drawn


# --- the page ---------------------------------------------------------------------------------------------------------

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
        colours=COLOURS,
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
    """The summary with the earlier reports in the JSON of the report before it (None: there is none), and that report."""
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
    step = f"Steps of {summary.step_s} s, by the time of the last half record."
    found = []
    if len(summary.curve) > 1:  # one step is no curve
        found += [
            ("Latency of each stage", f"{step} Without messages whose time the user set.", latency_chart(summary)),
            ("Throughput", step, throughput_chart(summary)),
        ]
    if any(row["n"] for row in summary.ages):
        found.append(("Not settled, by age", "At the time of reading.", ages_chart(summary)))
    if summary.checks:
        found.append(("Check-backs", "How often a group was asked, and who said the decision.", checks_chart(summary)))
    bars = (
        ("Partitions", "Transactions in each partition of half.", summary.partitions, "half_partition"),
        ("Hottest ordering keys", "By the key's hash, as half records name it.", summary.hot_keys, "key_hash"),
        ("Dead letters and replays", "Records that bronze holds.", summary.dead_letters, "topic"),
    )
    for title, shows, rows, name in bars:
        if rows:
            drawn = bars_chart(
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
