"""What the demo shows: progress while it runs; at the end a table, or the same as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from audit import Audit
from bad_day import Kill
from compare import Comparison, Finding
from compare_points import PointsComparison
from reading import Checks
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

OnProgress = Callable[[int, int, int], None]
"""Is told how many purchases were accepted, how many refused, and how many messages are visible."""


@dataclass(frozen=True)
class Percentiles:
    """Of a latency, in milliseconds."""

    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, values_ms: Sequence[float]) -> Percentiles:
        """Nearest rank; zeros of nothing."""
        ordered = sorted(values_ms) or [0.0]
        p50, p99, longest = (round(ordered[round((len(ordered) - 1) * rank)], 1) for rank in (0.5, 0.99, 1))
        return cls(p50, p99, longest)


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """What the loyalty service did."""

    handled_count: int
    again_count: int
    """Orders that came again, and were in the inbox."""
    failed_count: int
    """Attempts that failed."""
    broken: str
    """The customer whose orders never succeeded before the account was mended."""
    dead_letter_count: int
    replayed_count: int
    is_complete: bool
    """False: it did not catch up within the time allowed."""
    took_s: float
    """From when everything was carried out to the end of the replay."""
    comparison: PointsComparison


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a run."""

    purchase_count: int
    seed: int
    kills: list[Kill]
    checks: Checks
    selling_s: float
    settling_s: float | None
    """From the last purchase until every decision was carried out; None: not within the time allowed."""
    whole_s: float
    """Until nothing was under way any more; the audit, and the comparisons beside it, come on top of it."""
    buying: Percentiles
    forwarding: Percentiles
    comparison: Comparison
    rewards: Rewards
    audit: Audit

    @property
    def findings(self) -> list[Finding]:
        """Everything that differs."""
        return [*self.comparison.findings, *self.rewards.comparison.findings]

    @property
    def is_good(self) -> bool:
        """True when nothing differs, nothing was left over, and no promise is broken."""
        is_over = self.settling_s is not None and self.rewards.is_complete
        return not self.findings and is_over and self.audit.is_good


class Show:
    """Progress goes to standard error, the result to standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._progress_console = Console(stderr=True, highlight=False)
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Since the start of the demo."""
        return time.monotonic() - self._started

    def tell(self, what: str) -> None:
        """One line of what happens, with its second."""
        self._progress_console.print(f"[dim]{self.elapsed_s:5.1f} s[/]  {what}")

    @contextmanager
    def progress(self, purchase_count: int) -> Iterator[OnProgress]:
        """Two bars: what the shop has sold, and what readers of `orders` see of it."""
        bars = Progress(
            TextColumn("         {task.description:<18}"),
            BarColumn(bar_width=36),
            TextColumn("{task.completed:>6,.0f} of {task.total:>6,.0f}"),
            TimeElapsedColumn(),
            console=self._progress_console,
        )
        done = bars.add_task("purchases", total=purchase_count)
        visible = bars.add_task("visible in orders", total=purchase_count)

        def update(accepted_count: int, refused_count: int, visible_count: int) -> None:
            bars.update(done, completed=accepted_count + refused_count)
            bars.update(visible, completed=visible_count, total=purchase_count - refused_count)

        with bars:
            yield update

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """The same line, and on a terminal something that moves until the block ends."""
        self.tell(what)
        with self._progress_console.status("working"):
            yield

    def result(self, report: Report) -> None:
        """The closing table with the path of Spark's report, or JSON."""
        if self._as_json:
            print(json.dumps(_as_json(report), indent=2))
            return
        console = Console(highlight=False)
        console.print(_as_table(report))
        # A path that is broken into lines cannot be opened.
        console.print(f"Spark's report: {report.audit.page}", soft_wrap=True, markup=False)


def _as_json(report: Report) -> dict[str, object]:
    body = asdict(report)
    del body["comparison"]["forward_ms"]
    body["checks"] = report.checks._asdict()
    return body | {"verdict": "equal" if report.is_good else "different"}


def _as_table(report: Report) -> Table:
    found = report.comparison
    table = Table(show_header=False, title="One purchase = one database row and two messages, or nothing")
    for row in (
        (
            "purchases",
            f"{report.purchase_count:,} in {report.selling_s:.1f} s: {report.purchase_count / report.selling_s:,.0f} each second",
        ),
        ("accepted, refused", f"{found.accepted_count:,} and {found.refused_count:,}"),
        *((f"messages in {t}", f"{count:,}") for t, count in found.record_counts.items()),
        ("one purchase", _latency(report.buying)),
        ("birth to real topic", _latency(report.forwarding)),
        (
            "left in doubt by the shop",
            f"{report.checks.checked_count:,} checked back: {report.checks.committed_count:,} committed, {report.checks.rolled_back_count:,} rolled back",
        ),
        ("all decisions carried out", _settling(report.settling_s)),
    ):
        table.add_row(*row)
    for row in _rewards(report.rewards):
        table.add_row(*row)
    for kill in report.kills:
        table.add_row("killed", f"{kill.who} (pid {kill.pid}, SIGKILL) after {kill.sold_count:,} purchases")
    table.add_section()
    for finding in report.findings:
        table.add_row(
            f"[red]{finding.where}[/]", f"{finding.count:,} {finding.what}, such as {', '.join(finding.examples)}"
        )
    table.add_row("judged by Spark", _judged(report.audit))
    table.add_row("verdict", _verdict(report))
    table.caption = (
        f"{report.whole_s:.0f} s and {report.audit.took_s:.0f} s for Spark; "
        f"the same moments again: --seed {report.seed}"
    )
    return table


def _rewards(found: Rewards) -> Sequence[tuple[str, str]]:
    points = found.comparison
    late = "" if found.is_complete else " [red]and it did not catch up[/]"
    return (
        (
            "loyalty service",
            f"{points.point_count:,} points for {points.entry_count:,} orders of {points.customer_count:,} customers{late}",
        ),
        (
            "handled",
            f"{found.handled_count:,}; {found.again_count:,} came again and were in the inbox; {found.failed_count:,} failed attempts",
        ),
        (
            "dead letters",
            f"{found.dead_letter_count:,}, of customer {found.broken}; mended, and {found.replayed_count:,} replayed; {found.took_s:.1f} s",
        ),
    )


def _judged(found: Audit) -> str:
    counts = sorted(found.verdicts.items(), key=lambda item: -item[1])
    told = ", ".join(f"{count:,} {verdict}" for verdict, count in counts)
    return told if found.is_good else f"[red]{told}: a promise is broken[/]"


def _settling(took_s: float | None) -> str:
    if took_s is None:
        return "[red]not within the time allowed[/]"
    return f"{took_s:.1f} s after the last purchase"


def _latency(found: Percentiles) -> str:
    return f"p50 {found.p50:,.1f} ms, p99 {found.p99:,.1f} ms, longest {found.longest:,.0f} ms"


def _verdict(report: Report) -> str:
    if not report.is_good:
        return "[bold red]DIFFERENT[/]"
    return "[bold green]EQUAL[/]: each accepted purchase once in each topic and in the points, customers in order, nothing else"
