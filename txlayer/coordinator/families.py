"""Every metric of a coordinator: name, unit, meaning. docs/howto/metrics.md is held to it by a test. Never a value."""

from __future__ import annotations

from txlayer.adapters.meters import counter, gauge, histogram
from txlayer.core.batch import ReportKind
from txlayer.core.messages import ParkReason

HALF_RECORDS = counter("txlayer_half_records_total", "Half records folded and stored, by offset.")
OP_RECORDS = counter(
    "txlayer_op_records_total",
    "Op records applied and stored, by offset; one holds one or more resolutions.",
)
FORWARDED_RECORDS = counter(
    "txlayer_forwarded_records_total", "Messages forwarded to their real topics."
)
SETTLED = counter(
    "txlayer_transactions_settled_total",
    "Transactions whose decision was carried out, by decision.",
    "decision",
)
MOVED = counter(
    "txlayer_transactions_moved_total",
    "Undecided transactions that became old enough for the doubt topic.",
)
CHECKS_SENT = counter("txlayer_checks_sent_total", "Check-backs written for producer groups.")
ANSWERS = counter(
    "txlayer_check_answers_total", "Answers to check-backs that were read, by answer.", "answer"
)
POLICY = counter(
    "txlayer_policy_rollbacks_total",
    "Rollbacks that the coordinator wrote itself, as it is configured to.",
)
PARKED = counter(
    "txlayer_transactions_parked_total",
    "Transactions that went to the doubt topic for a person, by reason.",
    "reason",
)
HELD = counter(
    "txlayer_transactions_held_total",
    "Times a committed transaction had to wait for its real topic, by reason.",
    "reason",
)
KEPT_ASIDE = counter(
    "txlayer_records_kept_aside_total", "Records and op lines that are none of txlayer's, kept aside."
)  # fmt: skip
LATE_HALF = counter(
    "txlayer_late_half_records_total", "Half records of transactions that were settled, passed over."
)  # fmt: skip
LINES_WITHOUT_EFFECT = counter(
    "txlayer_op_lines_without_effect_total",
    "Resolutions that changed nothing, by why: said before (repeat), contrary to the decision (conflict), about nothing that "
    "stands open (unmatched), about no half record of theirs (wrong-offset), or of another producer group (wrong-group).",
    "reason",
)
LIMITED = counter(
    "txlayer_group_limits_total",
    "Times that the limit of open transactions began or ended for a producer group.",
)
REPLACEMENTS = counter(
    "txlayer_producer_replacements_total",
    "Transactional producers replaced because a call may have been sent twice.",
)
REBALANCES = counter("txlayer_rebalances_total", "Assignments that the group gave.")
REBUILDS = counter(
    "txlayer_rebuilds_total", "Times that the state was thrown away and built from stored offsets."
)
UNTIMELY = counter(
    "txlayer_untimely_records_total",
    "Half and op records whose append time nothing follows from: more than a minute ahead of this machine's clock, or not the broker's.",
)

DURATION = histogram(
    "txlayer_transaction_duration_seconds",
    "From a forwarded transaction's birth at its producer until it can be read.",
)
STAGE_DURATION = histogram(
    "txlayer_transaction_stage_duration_seconds",
    "The same by stage: birth until half is appended (prepare), until the decision is (decide), until it can be read (forward).",
    "stage",
)
KAFKA_DURATION = histogram(
    "txlayer_kafka_transaction_duration_seconds",
    "Kafka transactions, from their beginning to the answer of their commit.",
)
KAFKA_STAGE_DURATION = histogram(
    "txlayer_kafka_transaction_stage_duration_seconds",
    "The same by stage: handing over records (write), their acknowledgement (flush), storing offsets (offsets), commit.",
    "stage",
)
STORED_AT = gauge(
    "txlayer_last_kafka_transaction_timestamp_seconds",
    "When a Kafka transaction last went through, by this machine's clock.",
)

PARTITIONS = gauge("txlayer_assigned_partitions", "Partitions of half and op that are worked on.")
LAG = gauge(
    "txlayer_lag_records",
    "Records of half and op that are not folded yet, by offset: markers count, so some may stay when nothing is left.",
    "topic", "partition",
)  # fmt: skip
REPLAY = gauge(
    "txlayer_replay_records", "Records of half and doubt that a restart reads again.", "topic", "partition"
)  # fmt: skip
OPEN = gauge(
    "txlayer_open_transactions",
    "Undecided transactions by producer group and age: younger than 10s, 1m, 10m, 1h, 1d, or older. Of very many an estimate.",
    "group", "age",
)  # fmt: skip
OLDEST_OPEN = gauge(
    "txlayer_oldest_open_transaction_seconds", "Age of the oldest undecided transaction."
)
STANDING = gauge(
    "txlayer_standing_transactions",
    "Transactions that wait for their key, are held for their topic, or are parked for a person, by state.",
    "state",
)
ON_DOUBT = gauge("txlayer_doubt_transactions", "Transactions that stand on the doubt topic.")
CONTENT_BYTES = gauge("txlayer_content_bytes", "Content of messages in memory.")
REFUSING_TOPICS = gauge(
    "txlayer_refusing_topics", "Real topics that take nothing: missing, denied, unreachable or not allowed."
)  # fmt: skip
PAUSED_PARTITIONS = gauge(
    "txlayer_paused_partitions", "Partitions whose half is not read on: there is no memory for more unsettled transactions."
)  # fmt: skip
UNSETTLED_BYTES = gauge(
    "txlayer_unsettled_bytes", "About what unsettled transactions take in memory, without content; its limit is `unsettled_bytes_max`."
)  # fmt: skip
LIMITED_GROUPS = gauge("txlayer_limited_groups", "Producer groups with too many open transactions.")

OF_REPORTS = {
    MOVED: ReportKind.MOVED,
    CHECKS_SENT: ReportKind.CHECKED,
    POLICY: ReportKind.POLICY,
    KEPT_ASIDE: ReportKind.KEPT_ASIDE,
    LATE_HALF: ReportKind.LATE_HALF,
    LIMITED: ReportKind.LIMITED,
}
_HOLDING = (ParkReason.TOPIC_MISSING, ParkReason.TOPIC_DENIED, ParkReason.TOPIC_UNREACHABLE)
OF_REPORTS_BY_REASON = (
    (PARKED, ReportKind.PARKED, tuple(r.value for r in ParkReason if r not in _HOLDING)),
    (HELD, ReportKind.HELD, tuple(r.value for r in _HOLDING)),
)
"""Each with the reasons that are shown also before they occur: an alert sees a counter grow from 0, not appear."""
WITHOUT_EFFECT = (
    ReportKind.REPEAT,
    ReportKind.CONFLICT,
    ReportKind.UNMATCHED,
    ReportKind.WRONG_OFFSET,
    ReportKind.WRONG_GROUP,
)

FAMILIES = (
    HALF_RECORDS, OP_RECORDS, FORWARDED_RECORDS, SETTLED, MOVED, CHECKS_SENT, ANSWERS, POLICY, PARKED, HELD, KEPT_ASIDE,
    LATE_HALF, LINES_WITHOUT_EFFECT, LIMITED, REPLACEMENTS, REBALANCES, REBUILDS, UNTIMELY, DURATION, STAGE_DURATION,
    KAFKA_DURATION, KAFKA_STAGE_DURATION, STORED_AT, PARTITIONS, LAG, REPLAY, OPEN, OLDEST_OPEN, STANDING, ON_DOUBT,
    CONTENT_BYTES, UNSETTLED_BYTES, PAUSED_PARTITIONS, REFUSING_TOPICS, LIMITED_GROUPS,
)  # fmt: skip
