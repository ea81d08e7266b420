"""Numbers of a summary → charts as SVG text, to stand inside a page. Never: a number that a summary does not hold."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from txlayer_spark.summary import PERCENTILES, STAGES, Summary

INK, MUTED, GRID = "#1f2933", "#6b7785", "#e3e7ec"
BLUE, GREEN, RED, AMBER, VIOLET = "#2b6cb0", "#2f855a", "#c53030", "#b7791f", "#6b46c1"
AGE_NAMES = ("≤ 1 min", "≤ 10 min", "≤ 1 h", "≤ 6 h", "≤ 1 d", "≤ 3 d", "older")
STAGE_NAMES = {
    "decide_ms": "stored → decided",
    "forward_ms": "decided → visible",
    "total_ms": "stored → visible",
}
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: small, sharp, and found by a search
    "svg.hashsalt": "txlayer",  # the same numbers give the same bytes
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "legend.frameon": False,
}


def throughput(summary: Summary) -> str:
    """Transactions per second over time, by what became of them."""
    times = [row["at"] for row in summary.curve]
    with mpl.rc_context(_SETTINGS):
        figure, axes = _canvas()
        for name, label, colour in (
            ("stored", "stored", BLUE),
            ("committed", "committed", GREEN),
            ("rolled_back", "rolled back", RED),
        ):
            rates = [row[name] / summary.step_s for row in summary.curve]
            axes.plot(times, rates, label=label, color=colour, marker=_marker(times))
        axes.set_ylabel("transactions per second")
        return _finish(figure, axes, over_time=True)


def latency(summary: Summary) -> str:
    """Percentiles of each stage over time, on a logarithmic scale."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        panels = figure.subplots(1, len(STAGES), sharey=True)
        for axes, stage in zip(panels, STAGES, strict=True):
            points = [(row["at"], row[stage]) for row in summary.curve if row[stage]]
            times = [at for at, _ in points]
            for number, (percentile, colour) in enumerate(
                zip(PERCENTILES, (GREEN, AMBER, RED), strict=True)
            ):
                values = [max(1, each[number]) for _, each in points]
                axes.plot(
                    times,
                    values,
                    label=f"p{percentile * 100:.0f}",
                    color=colour,
                    marker=_marker(times),
                )
            axes.set_title(STAGE_NAMES[stage], fontsize=11, color=MUTED)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_plain)
            _time_axis(axes)
        panels[0].set_ylabel("ms")
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
        return _svg(figure)


def ages(summary: Summary) -> str:
    """What is not settled, by age."""
    with mpl.rc_context(_SETTINGS):
        figure, axes = _canvas(height=2.6)
        bottom = [0] * len(AGE_NAMES)
        for verdict, colour in (("open", BLUE), ("overdue", AMBER), ("parked", VIOLET)):
            heights = [row["n"] for row in summary.ages if row["verdict"] == verdict]
            axes.bar(AGE_NAMES, heights, bottom=bottom, label=verdict, color=colour, width=0.6)
            bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
        axes.set_ylabel("transactions")
        return _finish(figure, axes)


def checks(summary: Summary) -> str:
    """How often a producer group was asked, and who said the decision."""
    asked = ("never asked", "asked once", "asked twice", "asked more often")
    rows = sorted(summary.checks, key=lambda row: (row["checked"], row["decided_by"] or "~"))
    names = [f"{asked[row['checked']]}: {row['decided_by'] or 'undecided'}" for row in rows]
    return bars(names, [row["n"] for row in rows], unit="transactions", is_log=True)


def bars(names: Sequence[str], values: Sequence[int], *, unit: str, is_log: bool = False) -> str:
    """One bar for each name, lying; on a logarithmic scale small ones are seen beside large ones."""
    with mpl.rc_context(_SETTINGS):
        figure, axes = _canvas(height=0.8 + 0.24 * max(3, len(names)))
        axes.barh(list(names), list(values), color=BLUE, height=0.6)
        axes.invert_yaxis()
        if is_log:
            axes.set_xscale("log")
            axes.set_xlim(left=0.5)
        axes.xaxis.set_major_formatter(_plain)
        axes.set_xlabel(unit)
        return _svg(figure)


def _canvas(*, height: float = 3.0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, height), layout="constrained")
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


def _finish(figure: Figure, axes: Axes, *, over_time: bool = False) -> str:
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    if over_time:
        axes.set_ylim(bottom=0)
        _time_axis(axes)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # What stands before the element belongs to a file of its own.
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]
