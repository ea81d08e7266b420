"""Logs what batches report, with the trace of the transaction."""

import logging
from collections.abc import Mapping
from types import MappingProxyType

from txlayer.adapters.tracing import TraceContext, trace_context_of
from txlayer.core.ledger.batch import Batch, ReportKind
from txlayer.core.ledger.transaction import Transaction, records_of
from txlayer.core.messages import txn_id_of

LEVELS = {
    ReportKind.REPEAT: logging.DEBUG,
    ReportKind.LATE_HALF: logging.INFO,
    ReportKind.MOVED: logging.INFO,
    ReportKind.CHECKED: logging.INFO,
    ReportKind.POLICY: logging.WARNING,
    ReportKind.LIMITED: logging.WARNING,
    ReportKind.UNMATCHED: logging.INFO,
    ReportKind.WRONG_OFFSET: logging.WARNING,
    ReportKind.WRONG_GROUP: logging.WARNING,
    ReportKind.CONFLICT: logging.WARNING,
    ReportKind.QUARANTINED: logging.ERROR,
    ReportKind.HELD: logging.ERROR,
    ReportKind.PARKED: logging.ERROR,
}

COUNTED = frozenset({ReportKind.MOVED, ReportKind.CHECKED})
"""Kinds that are frequent under load: only their number is logged."""

LINE_COUNT_MAX = 100
"""Lines per kind and batch; further ones are counted, so that many of one kind do not hide the others."""


def log_reports(
    logger: logging.Logger, partition: int, batch: Batch, *, known: Mapping[str, TraceContext] = MappingProxyType({})
) -> None:
    """Log the reports of the batch. `known` contains trace contexts of transactions whose content is not in memory."""
    counts: dict[ReportKind, int] = {}
    for report in batch.reports:
        counts[report.kind] = counts.get(report.kind, 0) + 1
        if counts[report.kind] <= LINE_COUNT_MAX and report.kind not in COUNTED:
            logger.log(
                LEVELS[report.kind],
                "transaction.%s",
                report.kind.value,
                extra={
                    "txn_key": report.key,
                    **_ids(batch, report.key, known),
                    "partition": partition,
                    "detail": report.detail,
                },
            )
    for kind, count in counts.items():
        if count > LINE_COUNT_MAX or kind in COUNTED:
            logger.log(LEVELS[kind], "transactions.%s", kind.value, extra={"partition": partition, "count": count})


def trace_of(txn: Transaction) -> TraceContext | None:
    """The trace context of a transaction's first message; None if it has none, or if its content is not in memory."""
    first = next(records_of(txn), None)
    return None if first is None else trace_context_of(first[1].headers())


def _ids(batch: Batch, key: str, known: Mapping[str, TraceContext]) -> dict[str, str]:
    """The transaction's id, and its trace id if known."""
    if not key:
        return {}
    keep = batch.to_doubt.get(key)
    context = (None if keep is None else trace_of(keep.txn)) or known.get(key)
    ids = {"txn_id": txn_id_of(key)}
    return ids if context is None else {**ids, "trace_id": context.trace_id}
