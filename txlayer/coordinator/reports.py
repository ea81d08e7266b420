"""What a batch reports, as log lines: a name and fields, never a user's value."""

from __future__ import annotations

import logging

from txlayer.core.batch import Batch, ReportKind

LEVELS = {
    ReportKind.REPEAT: logging.DEBUG,
    ReportKind.LATE_HALF: logging.INFO,
    ReportKind.MOVED: logging.INFO,
    ReportKind.CHECKED: logging.INFO,
    ReportKind.POLICY: logging.WARNING,
    ReportKind.LIMITED: logging.WARNING,
    ReportKind.UNMATCHED: logging.INFO,
    ReportKind.WRONG_OFFSET: logging.WARNING,
    ReportKind.CONFLICT: logging.WARNING,
    ReportKind.KEPT_ASIDE: logging.ERROR,
    ReportKind.HELD: logging.ERROR,
    ReportKind.PARKED: logging.ERROR,
}

COUNTED = frozenset({ReportKind.MOVED, ReportKind.CHECKED})
"""Kinds that are ordinary under load: how many is all that is logged."""

LINE_COUNT_MAX = 100
"""Lines per kind and batch; the rest is counted: a storm of one kind must not drown the others."""


def log_reports(logger: logging.Logger, partition: int, batch: Batch) -> None:
    """Log what the batch reports."""
    counts: dict[ReportKind, int] = {}
    for report in batch.reports:
        counts[report.kind] = counts.get(report.kind, 0) + 1
        if counts[report.kind] <= LINE_COUNT_MAX and report.kind not in COUNTED:
            logger.log(
                LEVELS[report.kind],
                "transaction.%s",
                report.kind.value,
                extra={"txn_key": report.key, "partition": partition, "detail": report.detail},
            )
    for kind, count in counts.items():
        if count > LINE_COUNT_MAX or kind in COUNTED:
            logger.log(
                LEVELS[kind],
                "transactions.%s",
                kind.value,
                extra={"partition": partition, "count": count},
            )
