"""The metrics and the health of `txlayer-spark audit --every`. A module of its own: reading the names of metrics needs no Spark."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from txlayer.adapters.metrics import Health, ObservedRole, Sample, counter, gauge

RUNS = counter("txlayer_audit_runs_total", "Runs, by their end: complete or failed.", "end")
SECONDS = gauge("txlayer_audit_run_seconds", "How long the last complete run took.")
AGE = gauge("txlayer_audit_age_seconds", "Time since the end of the last complete run.")
VERDICTS = gauge("txlayer_audit_transactions", "Transactions in the ledger, by verdict.", "verdict")
BEHIND = gauge("txlayer_audit_behind_records", "Offsets of committed records that the last run did not read.", "topic")
HIDDEN = gauge(
    "txlayer_audit_hidden_records",
    "Offsets behind an open Kafka transaction, which no reader of committed records sees.",
    "topic",
)
RECORDS = counter("txlayer_audit_records_total", "Records that bronze read.")
UNREADABLE = gauge(
    "txlayer_audit_unreadable",
    "What bronze could not read: gaps that retention left, and real topics that are absent, or hidden behind a Kafka "
    "transaction that stays open.",
    "cause",
)
FAMILIES = (RUNS, SECONDS, AGE, RECORDS, VERDICTS, BEHIND, HIDDEN, UNREADABLE)
LATE = 3  # so many pauses after the last complete run, an audit is called stalled


class RunResult(NamedTuple):
    """What a complete run found."""

    seconds: float
    verdicts: Mapping[str, int]
    unread: Mapping[str, tuple[int, int]]  # {topic: (behind, hidden)}
    unreadable: Mapping[str, int]  # {cause: how many gaps or topics}


class ObservedAudit(ObservedRole):
    """The runs of one audit. The thread that runs them writes; any thread may read."""

    role = "audit"

    def __init__(self, *, pause_s: float, record_count: Callable[[], int], **given: Any) -> None:
        super().__init__(**given)
        self._pause_s, self._record_count = pause_s, record_count
        self._began_at = self._clock()
        self._ends = {"complete": 0, "failed": 0}
        self._last: tuple[float, RunResult] | None = None

    @property
    def has_completed(self) -> bool:
        return self._last is not None

    def complete(self, result: RunResult) -> None:
        self._ends["complete"] += 1
        self._last = (self._clock(), result)

    def failed(self) -> None:
        """Count a run that could not be ended, and is tried again after the pause."""
        self._ends["failed"] += 1

    def _look(self, now: float) -> tuple[Health, Iterable[Sample]]:
        last = self._last
        since_s = now - (self._began_at if last is None else last[0])
        allowed_s = LATE * (self._pause_s + (0 if last is None else last[1].seconds))
        is_late = last is not None and since_s > allowed_s
        stalled = f"the last complete run ended {since_s:.0f} s ago" if is_late else ""
        samples = [Sample(RUNS, count, (end,)) for end, count in self._ends.items()]
        samples.append(Sample(RECORDS, self._record_count()))
        if last is not None:
            _, result = last
            samples += [Sample(SECONDS, result.seconds), Sample(AGE, since_s)]
            samples += [Sample(VERDICTS, count, (verdict,)) for verdict, count in result.verdicts.items()]
            for topic, (behind, hidden) in result.unread.items():
                samples += [Sample(BEHIND, behind, (topic,)), Sample(HIDDEN, hidden, (topic,))]
            samples += [Sample(UNREADABLE, count, (cause,)) for cause, count in result.unreadable.items()]
        return Health(stalled, "" if last is not None else "the first run goes on"), samples
