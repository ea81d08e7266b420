"""Figures as plain values: families, samples, histograms, health. Never a client of Prometheus, never IO.

Services keep their counts as they like and turn them into samples when somebody asks; what asks, and in which form the
answer goes out, is not theirs to know.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import NamedTuple, Protocol

OTHER = "other"
"""The label of whatever is not told apart any more."""

LABEL_COUNT_MAX = 50
"""Values of a label that is named by users (producer groups, causes): the largest keep their names, the rest is `other`."""

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)  # fmt: skip
"""Upper bounds for how long transactions take: from one Kafka transaction to an hour of check-backs."""

CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds for calls to a broker."""


class FamilyKind(Enum):
    """What a figure is."""

    COUNTER = "counter"  #: it only grows while its process lives
    GAUGE = "gauge"  #: it is as it is now
    HISTOGRAM = "histogram"  #: how often which size was seen


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name as Prometheus shows it, what it means, and what tells its samples apart."""

    name: str
    kind: FamilyKind
    text: str
    labels: tuple[str, ...] = ()


class HistogramView(NamedTuple):
    """What a histogram held at one moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """How many were at most as large as each bound, and at last all: they only grow from left to right."""
    total: float


class Sample(NamedTuple):
    """One figure of a family."""

    family: Family
    value: float | HistogramView
    labels: tuple[str, ...] = ()


class Health(NamedTuple):
    """How a process is, for whoever starts, ends and sends to it."""

    stalled: str
    """Why it should be started anew; empty: it is alive."""
    waiting: str
    """Why it does not do its work yet; empty: it is ready."""


class Measured(Protocol):
    """Somebody whose figures can be asked, from any thread, at any time, without waiting for anybody."""

    def samples(self) -> Iterable[Sample]:
        """Its figures now."""
        ...


class Observed(Measured, Protocol):
    """Somebody whose figures and health can be asked so."""

    def health(self) -> Health:
        """Its health now."""
        ...


class Histogram:
    """Counts by size. One thread writes; any thread may look."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """`weight` times something of this size, which is 0 or more."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self.total += value * weight

    def add(self, other: Histogram) -> None:
        """Count what another of the same bounds holds, too."""
        self._counts = [
            ours + theirs for ours, theirs in zip(self._counts, other._counts, strict=True)
        ]
        self.total += other.total

    def view(self) -> HistogramView:
        """What it holds now."""
        return HistogramView(self._bounds, tuple(accumulate(tuple(self._counts))), self.total)


def counter(name: str, text: str, *labels: str) -> Family:
    """A family of counters; its name ends in `_total`."""
    return Family(name, FamilyKind.COUNTER, text, labels)


def gauge(name: str, text: str, *labels: str) -> Family:
    """A family of gauges."""
    return Family(name, FamilyKind.GAUGE, text, labels)


def histogram(name: str, text: str, *labels: str) -> Family:
    """A family of histograms, in seconds."""
    return Family(name, FamilyKind.HISTOGRAM, text, labels)


def with_few_labels(counts: Mapping[str, int], count_max: int = LABEL_COUNT_MAX) -> dict[str, int]:
    """The same sum over at most `count_max` names and `other`; of equal ones those that sort first keep their names."""
    if len(counts) <= count_max:
        return dict(counts)
    in_order = sorted(counts, key=lambda name: (-counts[name], name))
    kept = {name: counts[name] for name in in_order[:count_max]}
    rest = sum(counts[name] for name in in_order[count_max:])
    kept[OTHER] = kept.get(OTHER, 0) + rest
    return kept


INFO = gauge(
    "txlayer_info", "Always 1: which release runs here, as what, for whom.", "role", "version", "name"
)  # fmt: skip
ALIVE = gauge("txlayer_alive", "1 while the loop turns, else 0; the answer of /livez.")
READY = gauge("txlayer_ready", "1 while it does its work, else 0; the answer of /readyz.")
EVERYBODYS = (INFO, ALIVE, READY)
"""Families of every role."""


def of_all(health: Health, *, role: str, version: str, name: str) -> list[Sample]:
    """The samples that every role has; `name` is its namespace or group."""
    return [
        Sample(INFO, 1, (role, version, name)),
        Sample(ALIVE, 0 if health.stalled else 1),
        Sample(READY, 0 if health.stalled or health.waiting else 1),
    ]
