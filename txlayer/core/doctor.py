"""Facts about a cluster → findings: what they mean for txlayer, and the command that mends it. Pure; a rule per function.

A rule that finds nothing wrong says so, so that the reader sees what was looked at. docs/howto/doctor.md explains each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from txlayer.core import (
    doctor_brokers,
    doctor_progress,
    doctor_rights,
    doctor_topics,
)
from txlayer.core.cluster_facts import ClusterFacts, Limits
from txlayer.core.doctor_findings import Finding, Level

Rule = Callable[[ClusterFacts, Limits], Iterable[Finding]]

RULES: Sequence[Rule] = (
    doctor_brokers.versions,
    doctor_brokers.transaction_version,
    doctor_brokers.verification,
    doctor_brokers.transaction_timeout,
    doctor_brokers.session_timeout,
    doctor_brokers.offsets,
    doctor_brokers.auto_creation,
    doctor_brokers.internal_topics,
    doctor_topics.settings,
    doctor_topics.replication,
    doctor_topics.in_sync,
    doctor_topics.retention,
    doctor_topics.leaders,
    doctor_topics.skew,
    doctor_topics.real_topics,
    doctor_topics.message_bytes,
    doctor_progress.group,
    doctor_progress.lag,
    doctor_progress.log_start,
    doctor_progress.low_water,
    doctor_rights.clock,
    doctor_rights.rights,
    doctor_rights.untold,
)


def examine(facts: ClusterFacts, limits: Limits) -> list[Finding]:
    """Every rule's findings, in the order of `RULES`."""
    return [finding for rule in RULES for finding in rule(facts, limits)]


def is_ill(findings: Iterable[Finding], *, is_strict: bool) -> bool:
    """True when the exit code must say so: errors, and warnings when they count."""
    levels = {finding.level for finding in findings}
    return Level.ERROR in levels or (is_strict and Level.WARNING in levels)
