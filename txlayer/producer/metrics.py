"""Metrics of the producers of a program: counts derived from op records, and states read at each scrape.

No code here runs per message or takes the time per message: when an op record is acknowledged, it shows how its
transactions ended. A producer without metrics checks once per op record whether there are any.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import TYPE_CHECKING

from txlayer.adapters.telemetry import (
    CALL_S,
    INFO,
    LABEL_COUNT_MAX,
    LATENCY_S,
    OTHER,
    Family,
    Histogram,
    HistogramView,
    Sample,
    counter,
    gauge,
    histogram,
)
from txlayer.core.messages import Resolution
from txlayer.producer.identity import now_ms
from txlayer.producer.pipeline import FAILED, UNSTORED, PendingTransaction
from txlayer.producer.questions import OpenLimit

if TYPE_CHECKING:
    from txlayer.producer.engine import Engine
    from txlayer.producer.pipeline import OpRecord

SAMPLE_COUNT_MAX = 4
"""Transactions of one op record whose duration is measured; evenly spaced samples represent the others."""


class TransactionOutcome(Enum):
    """How a transaction ended, as its producer saw it."""

    COMMIT = "commit"  #: the broker acknowledged this resolution
    ROLLBACK = "rollback"  #: the broker acknowledged this resolution
    UNKNOWN = "unknown"  #: the broker acknowledged this resolution; a check-back settles it
    FAILED = "failed"  #: not all of its half messages were stored; it cannot commit
    LOST = "lost"  #: its resolution may not be stored; a check-back settles it


_OUTCOMES = {resolution: TransactionOutcome[resolution.name] for resolution in Resolution}

ENDED = counter(
    "txlayer_producer_transactions_total",
    "Transactions that ended at their producer: by the resolution that the broker acknowledged, or failed (not all half messages stored), or lost (the resolution may not be stored, a check-back settles it).",
    "group",
    "outcome",
)
DURATION = histogram(
    "txlayer_producer_transaction_duration_seconds",
    "From the first half message queued until the resolution is acknowledged, the local transaction included.",
    "group",
)
OP_DURATION = histogram(
    "txlayer_producer_op_record_duration_seconds",
    "Op records, from queued until acknowledged; one holds the resolutions of one or more transactions.",
    "group",
)
IN_FLIGHT = gauge(
    "txlayer_producer_in_flight_transactions",
    "Transactions whose half messages are sent and whose resolution is not acknowledged.",
    "group",
)
IN_FLIGHT_MAX = gauge(
    "txlayer_producer_in_flight_transactions_max", "How many may be in flight; one more waits.", "group"
)
LIMITED = gauge(
    "txlayer_producer_limited",
    "1 while the coordinators say that the group has too many open transactions, else 0.",
    "group",
)
OPEN = gauge("txlayer_producer_open_producers", "Producers of this process that are started and not closed.", "group")
QUESTIONS = counter(
    "txlayer_producer_check_questions_total", "Check-backs that these producers had to answer.", "group"
)
ANSWERS = counter("txlayer_producer_check_answers_total", "Answers to check-backs, by answer.", "group", "answer")

FAMILIES = (ENDED, DURATION, OP_DURATION, IN_FLIGHT, IN_FLIGHT_MAX, LIMITED, OPEN, QUESTIONS, ANSWERS)


class ProducerMetrics:
    """Metrics of the producers that receive it as `metrics=`, of any number and of any groups.

    `txlayer.adapters.exposition.SampleCollector(metrics)` passes them to a registry of Prometheus' client. Thread-safe.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()

    def follow(self, engine: Engine) -> None:
        """Include a started producer; txlayer calls this."""
        group = engine.pipeline.group
        with self._lock:
            if group not in self._groups and len(self._groups) >= LABEL_COUNT_MAX:
                group = OTHER
            engine.pipeline.meters.append(self._groups.setdefault(group, _Group()).begin(engine))

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            return iter([s for name, group in self._groups.items() for s in group.samples(name)])


class Meter:
    """Counts of one producer, or of closed ones; one thread at a time writes."""

    def __init__(self) -> None:
        self.ended: Counter[TransactionOutcome] = Counter()
        self.durations = Histogram(LATENCY_S)
        self.op_durations = Histogram(CALL_S)
        self.asked = 0
        self.answered: Counter[Resolution] = Counter()

    def acknowledged(self, record: OpRecord) -> None:
        """The record's lines are stored; called before its transactions are notified."""
        self.op_durations.observe(max(time.monotonic() - record.written_at_s, 0.0))
        # A failed transaction was counted then; a line written twice is acknowledged already.
        txns = [f for f in record.txns if f.op_offset == UNSTORED and f.stage is not FAILED]
        for resolution, count in Counter(txn.resolution for txn in txns).items():
            assert resolution is not None
            self.ended[_OUTCOMES[resolution]] += count
        at_ms = now_ms()
        for txn, weight in _spaced(txns):
            self.durations.observe(max(at_ms - txn.born_ms, 0) / 1000, weight)

    def lost(self, record: OpRecord) -> None:
        """The record's lines may not be stored; called before its transactions are notified."""
        self.ended[TransactionOutcome.LOST] += sum(txn.stage is not FAILED for txn in record.txns)

    def failed(self) -> None:
        """A transaction was not prepared."""
        self.ended[TransactionOutcome.FAILED] += 1

    def look(self, engine: Engine) -> None:
        """Take over the current counts of the producer's responder."""
        if engine.responder is not None:
            stats = engine.responder.stats()
            self.asked, self.answered = stats.asked, Counter(stats.answered)

    def add(self, other: Meter) -> None:
        self.ended.update(other.ended)
        self.durations.add(other.durations)
        self.op_durations.add(other.op_durations)
        self.asked += other.asked
        self.answered.update(other.answered)


class _Group:
    """The producers of one group: the open ones, and the sums of the closed ones."""

    def __init__(self) -> None:
        self._there: list[tuple[weakref.ref[Engine], Meter]] = []
        self._gone = Meter()

    def begin(self, engine: Engine) -> Meter:
        meter = Meter()
        self._there.append((weakref.ref(engine), meter))
        return meter

    def samples(self, name: str) -> Iterator[Sample]:
        engines, sums = self._look()
        yield Sample(INFO, 1, ("producer", _version(), name))
        for outcome in TransactionOutcome:
            yield Sample(ENDED, sums.ended[outcome], (name, outcome.value))
        for resolution in Resolution:
            yield Sample(ANSWERS, sums.answered[resolution], (name, resolution.name.lower()))
        values: dict[Family, float | HistogramView] = {
            DURATION: sums.durations.view(),
            OP_DURATION: sums.op_durations.view(),
            QUESTIONS: sums.asked,
            IN_FLIGHT: sum(e.pipeline.in_flight_count for e in engines),
            IN_FLIGHT_MAX: sum(e.config.in_flight_max for e in engines),
            LIMITED: int(any(isinstance(e.limit, OpenLimit) for e in engines)),
            OPEN: len(engines),
        }
        for family, value in values.items():
            yield Sample(family, value, (name,))

    def _look(self) -> tuple[list[Engine], Meter]:
        """(the open producers, the sums over all)."""
        there, engines, sums = [], [], Meter()
        for reference, meter in self._there:
            engine = reference()
            if engine is None:
                self._gone.add(meter)
                continue
            meter.look(engine)
            sums.add(meter)
            there.append((reference, meter))
            if engine.pipeline.is_alive:
                engines.append(engine)
        self._there = there
        sums.add(self._gone)
        return engines, sums


@cache
def _version() -> str:
    """The installed version, from the package's metadata, because services do not import the whole of txlayer."""
    try:
        return version("txlayer")
    except PackageNotFoundError:  # a folder on PYTHONPATH
        return "unknown"


def _spaced(txns: Sequence[PendingTransaction]) -> Iterator[tuple[PendingTransaction, int]]:
    """At most `SAMPLE_COUNT_MAX` of them, evenly spaced, each with the number of transactions that it represents."""
    bounds = [len(txns) * n // SAMPLE_COUNT_MAX for n in range(SAMPLE_COUNT_MAX + 1)]
    return ((txns[first], behind - first) for first, behind in pairwise(bounds) if behind > first)
