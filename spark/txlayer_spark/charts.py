"""The numbers of a summary → the pictures of a report, as SVG. Apart from them, because matplotlib takes a second to load."""

import io
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from txlayer_spark.summary import PERCENTILES, STAGES, Summary

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
