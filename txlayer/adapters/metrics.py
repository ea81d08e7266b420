"""Metrics as plain values: families, samples, histograms and health; independent of Prometheus' client.

Services keep their counts in any form and turn them into samples on request. The reader and the output format are
decided elsewhere.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import NamedTuple, Protocol

OTHER = "other"  # the label for values that are not counted separately

LABEL_COUNT_MAX = 50
"""Values of a label that users name (producer groups, causes): the largest keep their names, the rest is `other`."""

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds for how long transactions take: from one Kafka transaction to an hour of check-backs."""

CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds for calls to a broker."""


class FamilyKind(Enum):
    """The kind of a metric."""

    COUNTER = "counter"  #: only grows while its process lives
    GAUGE = "gauge"  #: the current value
    HISTOGRAM = "histogram"  #: a count per range of sizes


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its Prometheus name, its help text and its label names."""

    name: str
    kind: FamilyKind
    text: str
    labels: tuple[str, ...] = ()


class HistogramView(NamedTuple):
    """The content of a histogram at one moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # cumulative counts: values up to each bound, and finally all values
    total: float


class Sample(NamedTuple):
    """One value of a family."""

    family: Family
    value: float | HistogramView
    labels: tuple[str, ...] = ()


class Health(NamedTuple):
    """The health of a process, for supervisors and load balancers."""

    stalled: str  # why it should be restarted; empty: it is alive
    waiting: str  # why it does not do its work yet; empty: it is ready


class Measured(Protocol):
    """A source of metrics. Any thread may ask at any time; the answer does not wait for other threads."""

    def samples(self) -> Iterable[Sample]:
        """The current samples."""


class Observed(Measured, Protocol):
    """A source of metrics and health."""

    def health(self) -> Health:
        """The current health."""


class Histogram:
    """Counts by size. One thread writes; any thread may read."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Count `weight` values of this size, which is 0 or more."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self.total += value * weight

    def add(self, other: Histogram) -> None:
        self._counts = [ours + theirs for ours, theirs in zip(self._counts, other._counts, strict=True)]
        self.total += other.total

    def view(self) -> HistogramView:
        return HistogramView(self._bounds, tuple(accumulate(tuple(self._counts))), self.total)


def counter(name: str, text: str, *labels: str) -> Family:
    """A family of counters; its name ends in `_total`."""
    return Family(name, FamilyKind.COUNTER, text, labels)


def gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name, FamilyKind.GAUGE, text, labels)


def histogram(name: str, text: str, *labels: str) -> Family:
    return Family(name, FamilyKind.HISTOGRAM, text, labels)


def with_few_labels(counts: Mapping[str, int], count_max: int = LABEL_COUNT_MAX) -> dict[str, int]:
    """The same sum over at most `count_max` names and `other`; of equal counts, names that sort first are kept."""
    if len(counts) <= count_max:
        return dict(counts)
    in_order = sorted(counts, key=lambda name: (-counts[name], name))
    kept = {name: counts[name] for name in in_order[:count_max]}
    rest = sum(counts[name] for name in in_order[count_max:])
    kept[OTHER] = kept.get(OTHER, 0) + rest
    return kept


INFO = gauge(
    "txlayer_info",
    "Always 1; the labels name the release, the role and the namespace or group.",
    "role",
    "version",
    "name",
)
ALIVE = gauge("txlayer_alive", "1 while the loop makes progress, else 0; the answer of /livez.")
READY = gauge("txlayer_ready", "1 while the process is ready, else 0; the answer of /readyz.")
EVERYBODYS = (INFO, ALIVE, READY)  # the families of every role

STALL_S = 60.0
"""A loop without a turn for this long hangs. The slowest turn that can still succeed is a coordinator's: it waits 10 s for records,
10 s for offsets and 20 s for a commit. A responder pauses for 19 s at most. Users' handlers run elsewhere."""


def stall_of(turned_at: float, now: float) -> str:
    """Why a process should be restarted whose loop last turned at `turned_at`, in monotonic seconds; empty: it is alive."""
    return "" if now - turned_at < STALL_S else f"the loop has not turned for {now - turned_at:.0f} s"


class ObservedRole:
    """The metrics and the health of one process. Thread-safe.

    Args:
        name: its namespace or group.
        version: of txlayer.
        clock: monotonic seconds, the same clock as that of the loop.
    """

    role = ""

    def __init__(self, *, name: str, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._labels = (self.role, version, name)
        self._clock = clock

    def _look(self, now: float) -> tuple[Health, Iterable[Sample]]:
        raise NotImplementedError

    def health(self) -> Health:
        return self._look(self._clock())[0]

    def samples(self) -> Iterator[Sample]:
        health, own = self._look(self._clock())
        yield Sample(INFO, 1, self._labels)
        yield Sample(ALIVE, 0 if health.stalled else 1)
        yield Sample(READY, 0 if health.stalled or health.waiting else 1)
        yield from own
