"""What a coordinator counts while it works: per Kafka transaction, never per record. Never who may look at it.

The loop's thread writes; any thread may read. A number may be a Kafka transaction behind the one beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from txlayer.adapters.meters import CALL_S, LATENCY_S, Histogram
from txlayer.adapters.ports import TopicPartition
from txlayer.core.batch import Batch, Positions, ReportKind
from txlayer.core.messages import Resolution
from txlayer.core.transaction import Transaction

SAMPLE_COUNT_MAX = 4
"""Transactions of one partition whose times one Kafka transaction looks at; each stands for as many as lie between them."""

_NEVER = float("inf")
_WITH_REASON = frozenset({ReportKind.PARKED, ReportKind.HELD})


def _call_times(*stages: str) -> dict[str, Histogram]:
    return {stage: Histogram(CALL_S) for stage in stages}


@dataclass(slots=True)
class PublishStats:
    """What publishers did."""

    kafka_transaction_count: int = 0
    forwarded_count: int = 0
    """Transactions."""
    forwarded_record_count: int = 0
    replaced_count: int = 0
    ended_at: float | None = None
    """Monotonic seconds: when the last Kafka transaction went through."""
    seconds: Histogram = field(default_factory=lambda: Histogram(CALL_S))
    """Of a Kafka transaction, from its beginning to the answer of its commit."""
    stage_seconds: dict[str, Histogram] = field(
        default_factory=lambda: _call_times("write", "flush", "offsets", "commit")
    )

    def forwarded(self, transaction_count: int, further_count: int) -> None:
        """It held these: transactions, and their messages beyond the first ones."""
        self.forwarded_count += transaction_count
        self.forwarded_record_count += transaction_count + further_count

    def took(self, began: float, written: float, flushed: float, sent: float, ended: float) -> None:
        """A Kafka transaction went through; when each of its stages ended."""
        self.kafka_transaction_count += 1
        self.ended_at = ended
        self.seconds.observe(ended - began)
        stages = self.stage_seconds
        stages["write"].observe(written - began)
        stages["flush"].observe(flushed - written)
        stages["offsets"].observe(sent - flushed)
        stages["commit"].observe(ended - sent)


@dataclass(slots=True)
class Measures:
    """Counts since the start of the process; a rebuild of the ledgers takes nothing back."""

    publishing: PublishStats = field(default_factory=PublishStats)
    half_count: int = 0
    op_count: int = 0
    rollback_count: int = 0
    rebuild_count: int = 0
    rebalance_count: int = 0
    untimely_count: int = 0
    """Records whose append time did not count."""
    answers: Counter[Resolution] = field(default_factory=Counter)
    reports: Counter[tuple[ReportKind, str]] = field(default_factory=Counter)
    """By kind, and by reason where there is a closed list of them."""
    seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    """From the birth of a forwarded transaction until it can be read."""
    stage_seconds: dict[str, Histogram] = field(
        default_factory=lambda: {s: Histogram(LATENCY_S) for s in ("prepare", "decide", "forward")}
    )
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where half and op end, as the last fetches told it."""
    turned_at: float | None = None
    """When the loop last turned; None: not yet."""

    def stored(self, batch: Batch, before: Positions, after: Positions, *, now_ms: int) -> None:
        """What followed from one partition's records between two positions is in the log."""
        self.half_count += after.half_next - before.half_next
        self.op_count += after.op_offset - before.op_offset
        self.rollback_count += batch.rollback_count
        if batch.answers:
            self.answers.update(batch.answers)
        for report in batch.reports:
            reason = report.detail if report.kind in _WITH_REASON else ""
            self.reports[report.kind, reason] += 1
        count = len(batch.forwards)
        step = -(-count // SAMPLE_COUNT_MAX) or 1
        first_op = before.op_offset, before.op_line
        for number in range(0, count, step):
            txn, weight = batch.forwards[number], min(step, count - number)
            self._forwarded(txn, _decided_ms(txn, number, batch, first_op), now_ms, weight)

    def _forwarded(self, txn: Transaction, decided_ms: int, now_ms: int, weight: int) -> None:
        appended_ms, born_ms, stages = txn.appended_ms, txn.born_ms, self.stage_seconds
        # Clocks of producers and brokers differ: what would have taken less than no time took none.
        stages["prepare"].observe(max(appended_ms - born_ms, 0) / 1000, weight)
        stages["decide"].observe(max(decided_ms - appended_ms, 0) / 1000, weight)
        stages["forward"].observe(max(now_ms - decided_ms, 0) / 1000, weight)
        self.seconds.observe(max(now_ms - born_ms, 0) / 1000, weight)


def _decided_ms(txn: Transaction, number: int, batch: Batch, first_op: tuple[int, int]) -> int:
    """When the decision of the batch's forward of this number was appended."""
    more = txn.more
    # Decided before this batch it was held, or waited for its key; on doubt it is known since when.
    if (
        more is not None and more.moved_ms and more.decided_at is not None and more.decided_at < first_op
    ):  # fmt: skip
        return more.moved_ms
    place = bisect_right(batch.marks, (number, _NEVER)) - 1
    return batch.marks[place][1] if place >= 0 else txn.appended_ms
