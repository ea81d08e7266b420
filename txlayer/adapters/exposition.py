"""Samples in Prometheus' formats. Needs the extra `metrics`; no other module of txlayer imports its client.

Metrics are read at each scrape; nothing is computed between two scrapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from threading import Lock

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from txlayer.adapters.metrics import Family, FamilyKind, HistogramView, Measured, Observed, Sample
from txlayer.adapters.telemetry import printable

_TOTAL = "_total"

PAGE_KEPT_S = 1.0
"""How long a page is reused for further readers. Making one blocks the interpreter for milliseconds."""

_OPENMETRICS = "application/openmetrics-text"
_FORMS = {True: f"{_OPENMETRICS}; version=1.0.0", False: ""}
"""The supported formats; every reader gets one of them, so that few pages are cached."""


class Page:
    """The metrics page of one process, in the format that the reader accepts. Thread-safe; callers take turns.

    Each format is made at most once in `PAGE_KEPT_S`.

    Args:
        observed: the source of the metrics.
        clock: seconds.
    """

    def __init__(self, observed: Observed, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(SampleCollector(observed))
        ProcessCollector(registry=self._registry)
        self._lock = Lock()

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type); `accept` is the reader's Accept header."""
        form = _FORMS[_OPENMETRICS in accept]
        encode, content_type = choose_encoder(form)
        with self._lock:
            now = self._clock()
            until, body = self._kept.get(form, (now, b""))
            if now >= until:
                body = encode(self._registry)
                self._kept[form] = (now + PAGE_KEPT_S, body)
            return body, content_type


class SampleCollector(Collector):
    """A collector for a registry of Prometheus' client; nothing is computed between two scrapes.

    Args:
        measured: the source of the metrics, such as a program's `ProducerMetrics`.
    """

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        """Every metric that has a sample now."""
        return _metrics(self._measured.samples())

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise the registry would collect at once to learn the names."""
        return ()


def _metrics(samples: Iterable[Sample]) -> Iterator[Metric]:
    by_family: dict[Family, list[Sample]] = {}
    for sample in samples:
        by_family.setdefault(sample.family, []).append(sample)
    for family, found in by_family.items():
        yield _metric(family, found)


def _metric(family: Family, samples: Iterable[Sample]) -> Metric:
    if family.kind is FamilyKind.COUNTER:
        counted = CounterMetricFamily(family.name.removesuffix(_TOTAL), family.text, labels=family.labels)
        for sample in samples:
            counted.add_metric(_labels(sample), _number(sample))
        return counted
    if family.kind is FamilyKind.GAUGE:
        gauged = GaugeMetricFamily(family.name, family.text, labels=family.labels)
        for sample in samples:
            gauged.add_metric(_labels(sample), _number(sample))
        return gauged
    sized = HistogramMetricFamily(family.name, family.text, labels=family.labels)
    for sample in samples:
        view = sample.value
        assert isinstance(view, HistogramView), family.name
        bounds = [*map(str, view.bounds), "+Inf"]
        buckets = [(b, float(n)) for b, n in zip(bounds, view.counts, strict=True)]
        sized.add_metric(_labels(sample), buckets, view.total)
    return sized


def _labels(sample: Sample) -> list[str]:
    """Label values in which a backslash is escaped too, so that different values stay different."""
    return [printable(label.replace("\\", "\\\\")) for label in sample.labels]


def _number(sample: Sample) -> float:
    assert not isinstance(sample.value, HistogramView), sample.family.name
    return sample.value
