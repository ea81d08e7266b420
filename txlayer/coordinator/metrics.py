"""The coordinator as seen from outside: its metrics and health, the log lines of what batches report, and the spans of what it publishes.

The loop's thread writes the counts, per Kafka transaction and not per record. The threads that answer scrapes and probes read
them while the loop works; a number may be one Kafka transaction behind another. Reading is bounded: of very many open
transactions it takes an even sample, at most once every few seconds. A test compares docs/howto/metrics.md with these metrics.

The spans follow from the context that the half records carry as an ordinary header. There is no span without one, or when the
context is not sampled:

    forward <topic>       one transaction's messages, from the Kafka transaction's begin until it was answered
    check <ns>.check      one question; its context is the header `traceparent` of the question
"""

import logging
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from txlayer.adapters.ports import Assignment, TopicPartition
from txlayer.adapters.telemetry import (
    CALL_S,
    LATENCY_S,
    LINKS_MAX,
    OTHER,
    Attributes,
    Family,
    Health,
    Histogram,
    Log,
    ObservedRole,
    Sample,
    Span,
    SpanRole,
    TraceContext,
    Tracing,
    age_ms,
    attributes_of,
    counter,
    gauge,
    histogram,
    stall_of,
    trace_context_of,
    with_few_labels,
)
from txlayer.config import SystemTopics
from txlayer.coordinator.shard import Shard
from txlayer.core.ledger.batch import Batch, Positions, ReportKind
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transaction import Target, Transaction, records_of
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import CheckKind, CheckRecord, ParkReason, Resolution, txn_id_of

HALF_RECORDS = counter("txlayer_half_records_total", "Half records folded and stored, by offset.")
OP_RECORDS = counter(
    "txlayer_op_records_total", "Op records applied and stored, by offset; one holds one or more resolutions."
)
FORWARDED_RECORDS = counter("txlayer_forwarded_records_total", "Messages forwarded to their real topics.")
SETTLED = counter(
    "txlayer_transactions_settled_total", "Transactions whose decision was carried out, by decision.", "decision"
)
MOVED = counter(
    "txlayer_transactions_moved_total", "Undecided transactions that became old enough for the doubt topic."
)
CHECKS_SENT = counter("txlayer_checks_sent_total", "Check-backs written for producer groups.")
ANSWERS = counter("txlayer_check_answers_total", "Answers to check-backs that were read, by answer.", "answer")
POLICY = counter(
    "txlayer_policy_decisions_total", "Commits and rollbacks that the coordinator wrote itself, as it is configured to."
)
PARKED = counter(
    "txlayer_transactions_parked_total",
    "Transactions that were parked on the doubt topic for a person, by reason.",
    "reason",
)
HELD = counter(
    "txlayer_transactions_held_total",
    "Times a committed transaction had to wait for its real topic, by reason.",
    "reason",
)
QUARANTINED = counter(
    "txlayer_records_kept_aside_total", "Records and op lines that were quarantined because they are not txlayer's."
)
LATE_HALF = counter(
    "txlayer_late_half_records_total", "Half records that were ignored because their transaction was settled."
)
LINES_WITHOUT_EFFECT = counter(
    "txlayer_op_lines_without_effect_total",
    "Resolutions that changed nothing, by reason: a repetition (repeat), contrary to the decision (conflict), of no open "
    "transaction (unmatched), with an offset that is no half record of the transaction (wrong-offset), or of another "
    "producer group (wrong-group).",
    "reason",
)
LIMITED = counter(
    "txlayer_group_limits_total", "Times that the limit of open transactions began or ended for a producer group."
)
REPLACEMENTS = counter(
    "txlayer_producer_replacements_total", "Transactional producers replaced because a call may have been sent twice."
)
REBALANCES = counter("txlayer_rebalances_total", "Assignments by the group.")
REBUILDS = counter("txlayer_rebuilds_total", "Times that the state was discarded and built again from stored offsets.")
UNTIMELY = counter(
    "txlayer_untimely_records_total",
    "Half and op records whose append time is not used: more than a minute ahead of this machine's clock, or not the broker's.",
)

DURATION = histogram(
    "txlayer_transaction_duration_seconds", "From a forwarded transaction's birth at its producer until it can be read."
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
    "When a Kafka transaction last succeeded, by this machine's clock.",
)

PARTITIONS = gauge("txlayer_assigned_partitions", "Partitions of half and op that are assigned to this process.")
LAG = gauge(
    "txlayer_lag_records",
    "Records of half and op that are not folded yet, by offset: markers count, so some may stay when nothing is left.",
    "topic",
    "partition",
)
REPLAY = gauge("txlayer_replay_records", "Records of half and doubt that a restart reads again.", "topic", "partition")
OPEN = gauge(
    "txlayer_open_transactions",
    "Undecided transactions by producer group and age: younger than 10s, 1m, 10m, 1h, 1d, or older. If there are very many, an estimate.",
    "group",
    "age",
)
OLDEST_OPEN = gauge("txlayer_oldest_open_transaction_seconds", "Age of the oldest undecided transaction.")
STANDING = gauge(
    "txlayer_standing_transactions",
    "Transactions that wait for their key or their time, are held for their topic, or are parked for a person, by state.",
    "state",
)
ON_DOUBT = gauge("txlayer_doubt_transactions", "Transactions on the doubt topic.")
CONTENT_BYTES = gauge("txlayer_content_bytes", "Content of messages in memory.")
REFUSING_TOPICS = gauge(
    "txlayer_refusing_topics", "Real topics that accept nothing: missing, denied, unreachable or not allowed."
)
PAUSED_PARTITIONS = gauge(
    "txlayer_paused_partitions",
    "Partitions in which reading of half is paused, because there is no memory for more unsettled transactions.",
)
UNSETTLED_BYTES = gauge(
    "txlayer_unsettled_bytes",
    "Approximate memory of unsettled transactions, without content; the limit is `unsettled_bytes_max`.",
)
LIMITED_GROUPS = gauge("txlayer_limited_groups", "Producer groups with too many open transactions.")


class Shown(NamedTuple):
    """How reports of one kind are counted and logged."""

    family: Family
    level: int  # of their log lines
    reasons: tuple[str, ...] = ()
    """Those that are shown before they occur: an alert sees a counter grow from 0, not appear. Without any, reasons are not counted."""
    is_frequent: bool = False  # under load: only their number is logged


_HOLDING = (ParkReason.TOPIC_MISSING, ParkReason.TOPIC_DENIED, ParkReason.TOPIC_UNREACHABLE)
REPORTS: Mapping[ReportKind, Shown] = {
    ReportKind.MOVED: Shown(MOVED, logging.INFO, is_frequent=True),
    ReportKind.CHECKED: Shown(CHECKS_SENT, logging.INFO, is_frequent=True),
    ReportKind.POLICY: Shown(POLICY, logging.WARNING),
    ReportKind.QUARANTINED: Shown(QUARANTINED, logging.ERROR),
    ReportKind.LATE_HALF: Shown(LATE_HALF, logging.INFO),
    ReportKind.LIMITED: Shown(LIMITED, logging.WARNING),
    ReportKind.PARKED: Shown(PARKED, logging.ERROR, tuple(r.value for r in ParkReason if r not in _HOLDING)),
    ReportKind.HELD: Shown(HELD, logging.ERROR, tuple(r.value for r in _HOLDING)),
    # The kind itself is the reason.
    ReportKind.REPEAT: Shown(LINES_WITHOUT_EFFECT, logging.DEBUG),
    ReportKind.CONFLICT: Shown(LINES_WITHOUT_EFFECT, logging.WARNING),
    ReportKind.UNMATCHED: Shown(LINES_WITHOUT_EFFECT, logging.INFO),
    ReportKind.WRONG_OFFSET: Shown(LINES_WITHOUT_EFFECT, logging.WARNING),
    ReportKind.WRONG_GROUP: Shown(LINES_WITHOUT_EFFECT, logging.WARNING),
}

FAMILIES = tuple(family for family in list(globals().values()) if isinstance(family, Family))


SAMPLE_COUNT_MAX = 4
"""Transactions per partition and Kafka transaction whose times are measured; each represents those up to the next one."""

_NEVER = float("inf")


@dataclass(slots=True)
class PublishStats:
    """Counts and times of publishing."""

    kafka_transaction_count: int = 0
    forwarded_count: int = 0  # forwarded transactions
    forwarded_record_count: int = 0
    replaced_count: int = 0
    ended_at: float | None = None  # monotonic seconds: when the last Kafka transaction succeeded
    seconds: Histogram = field(default_factory=lambda: Histogram(CALL_S))
    """Duration of a Kafka transaction, from its beginning to the answer of its commit."""
    stage_seconds: dict[str, Histogram] = field(
        default_factory=lambda: {s: Histogram(CALL_S) for s in ("write", "flush", "offsets", "commit")}
    )

    def took(self, began: float, *ends: float) -> None:
        """Record a Kafka transaction that succeeded, with the times at which its stages ended, in their order."""
        self.kafka_transaction_count += 1
        self.ended_at = ends[-1]
        self.seconds.observe(ends[-1] - began)
        for seconds, (start, end) in zip(self.stage_seconds.values(), pairwise([began, *ends]), strict=True):
            seconds.observe(end - start)


@dataclass(slots=True)
class CoordinatorCounts:
    """Counts since the start of the process; a rebuild of the ledgers does not reset them."""

    publishing: PublishStats = field(default_factory=PublishStats)
    half_count: int = 0
    op_count: int = 0
    rollback_count: int = 0
    rebuild_count: int = 0
    rebalance_count: int = 0
    untimely_count: int = 0  # records whose append time did not count
    answers: Counter[Resolution] = field(default_factory=Counter)
    reports: Counter[tuple[ReportKind, str]] = field(default_factory=Counter)
    """By kind, and by reason if there is a closed list of reasons."""
    seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    """From the birth of a forwarded transaction until it is readable."""
    stage_seconds: dict[str, Histogram] = field(
        default_factory=lambda: {s: Histogram(LATENCY_S) for s in ("prepare", "decide", "forward")}
    )
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Ends of half and op, according to the last fetches."""
    turned_at: float | None = None  # time of the loop's last turn; None: no turn yet

    def stored(self, batch: Batch, before: Positions, after: Positions, *, now_ms: int) -> None:
        """Count a batch of one partition that is in the log, with the positions before and after it."""
        self.half_count += after.half_next - before.half_next
        self.op_count += after.op_offset - before.op_offset
        self.rollback_count += batch.rollback_count
        if batch.answers:
            self.answers.update(batch.answers)
        for report in batch.reports:
            reason = report.detail if REPORTS[report.kind].reasons else ""
            self.reports[report.kind, reason] += 1
        count = len(batch.forwards)
        step = -(-count // SAMPLE_COUNT_MAX) or 1
        first_op = before.op_offset, before.op_line
        for number in range(0, count, step):
            txn, weight = batch.forwards[number], min(step, count - number)
            self._forwarded(txn, _decided_ms(txn, number, batch, first_op), now_ms, weight)

    def _forwarded(self, txn: Transaction, decided_ms: int, now_ms: int, weight: int) -> None:
        appended_ms, born_ms, stages = txn.appended_ms, txn.born_ms, self.stage_seconds
        # Clocks of producers and brokers differ: a negative duration counts as zero.
        stages["prepare"].observe(max(appended_ms - born_ms, 0) / 1000, weight)
        stages["decide"].observe(max(decided_ms - appended_ms, 0) / 1000, weight)
        stages["forward"].observe(max(now_ms - decided_ms, 0) / 1000, weight)
        self.seconds.observe(max(now_ms - born_ms, 0) / 1000, weight)


def _decided_ms(txn: Transaction, number: int, batch: Batch, first_op: tuple[int, int]) -> int:
    """Append time of the decision behind forward `number` of the batch."""
    extras = txn.extras
    # If it was decided before this batch, it was held or waited for its key, and doubt has the time.
    if extras is not None and extras.moved_ms and extras.decided_at is not None and extras.decided_at < first_op:
        return extras.moved_ms
    index = bisect_right(batch.marks, (number, _NEVER)) - 1
    return batch.marks[index][1] if index >= 0 else txn.appended_ms


LOOK_COUNT_MAX = 20_000
"""Transactions of one partition that one scan reads; with more, an even sample, each representing its neighbours."""
DORMANT_COUNT_MAX = 1_000  # the same limit for dormant transactions: each must be decoded
LOOK_EVERY_S = 10.0
"""How long the ages of very many open transactions are reused; with fewer than `LOOK_COUNT_MAX` they are always current."""
AGES = (("10s", 10), ("1m", 60), ("10m", 600), ("1h", 3_600), ("1d", 86_400))
"""(label, upper limit of the age in seconds)."""
OLDER = "older"

_STANDING = (TxnState.WAITING, TxnState.SCHEDULED, TxnState.HELD, TxnState.PARKED, TxnState.PARKED_COMMITTED)


class CoordinatorView(NamedTuple):
    """A snapshot of a coordinator; the objects in it continue to change."""

    namespace: str
    counts: CoordinatorCounts
    shards: Mapping[int, Shard]
    assignment: Assignment | None
    targets: Mapping[str, Target]


@dataclass(slots=True)
class AgeCounts:
    """Unsettled transactions, counted by age and state."""

    open_by_group: dict[str, Counter[str]] = field(default_factory=dict)
    """{age: {producer group: number of undecided transactions}}."""
    by_state: Counter[TxnState] = field(default_factory=Counter)
    oldest_open_ms: int = 0

    def add(self, txn: Transaction, count: int, now_ms: int) -> None:
        """Count `txn`, which represents `count` transactions."""
        state = txn.state
        if state is not TxnState.OPEN:
            self.by_state[state] += count
            return
        age_ms = max(now_ms - txn.appended_ms, 0)
        self.oldest_open_ms = max(self.oldest_open_ms, age_ms)
        self.open_by_group.setdefault(age_label(age_ms), Counter())[txn.group] += count


def age_label(age_ms: int) -> str:
    return next((label for label, limit_s in AGES if age_ms < limit_s * 1000), OLDER)


def ages_of(shards: Iterable[Shard]) -> AgeCounts:
    """Count the unsettled transactions; the loop may continue meanwhile."""
    ages = AgeCounts()
    for shard in shards:
        ledger, now_ms = shard.ledger, shard.time.peek_ms()
        # The interpreter runs list() of a dict's values as one step: the loop cannot change the dict in between.
        awake = list(ledger.transactions.values())
        step = len(awake) // LOOK_COUNT_MAX + 1
        for number in range(0, len(awake), step):
            ages.add(awake[number], min(step, len(awake) - number), now_ms)
        for txn, count in ledger.dormant.sample(DORMANT_COUNT_MAX):
            ages.add(txn, count, now_ms)
    return ages


class ObservedCoordinator(ObservedRole):
    """The metrics and the health of a coordinator: of its `view`; `wall_clock` gives seconds since 1970."""

    role = "coordinator"

    def __init__(
        self, look: Callable[[], CoordinatorView], *, wall_clock: Callable[[], float] = time.time, **given: Any
    ) -> None:
        super().__init__(name=look().namespace, **given)
        self._view = look
        self._wall_clock = wall_clock
        self._ages = AgeCounts()
        self._looked_at = float("-inf")

    def _look(self, now: float) -> tuple[Health, Iterable[Sample]]:
        view = self._view()
        return health_of(view, now=now), self._samples(view, now)

    def _samples(self, view: CoordinatorView, now: float) -> Iterator[Sample]:
        ledgers = [shard.ledger for shard in view.shards.values()]
        is_small = sum(ledger.open_count for ledger in ledgers) < LOOK_COUNT_MAX
        if is_small or now - self._looked_at >= LOOK_EVERY_S:
            self._ages, self._looked_at = ages_of(view.shards.values()), now
        yield from _counts(view.counts)
        yield from _times(view.counts, to_wall_s=self._wall_clock() - now)
        yield from _partitions(view)
        yield from _open(self._ages)
        yield from _state(view, ledgers)


def health_of(view: CoordinatorView, *, now: float) -> Health:
    """Alive while the loop turns; ready once its partitions have been read to the ends taken at their assignment."""
    turned_at, shards = view.counts.turned_at, list(view.shards.values())
    if turned_at is None:
        return Health("", "it waits for a broker")
    stalled = stall_of(turned_at, now)
    if view.assignment is None:
        return Health(stalled, "the group has assigned nothing yet")
    if not view.assignment.partitions:
        return Health(stalled, "")  # more coordinators than partitions: a standby
    if not shards:
        return Health(stalled, "its state is being built from the stored offsets")
    behind = sum(not shard.is_caught_up for shard in shards)
    waiting = f"{behind} of {len(shards)} partitions are not read to their ends yet"
    return Health(stalled, waiting if behind else "")


def _counts(counts: CoordinatorCounts) -> Iterator[Sample]:
    published, reports = counts.publishing, dict(counts.reports)
    yield Sample(HALF_RECORDS, counts.half_count)
    yield Sample(OP_RECORDS, counts.op_count)
    yield Sample(FORWARDED_RECORDS, published.forwarded_record_count)
    yield Sample(SETTLED, published.forwarded_count, (Resolution.COMMIT.name.lower(),))
    yield Sample(SETTLED, counts.rollback_count, (Resolution.ROLLBACK.name.lower(),))
    for kind, shown in REPORTS.items():
        by_reason = dict.fromkeys(shown.reasons or ("",), 0) | {r: n for (k, r), n in reports.items() if k is kind}
        for reason, count in by_reason.items():
            yield Sample(shown.family, count, (reason or kind.value,) if shown.family.labels else ())
    answers = dict(counts.answers)
    for resolution in Resolution:
        yield Sample(ANSWERS, answers.get(resolution, 0), (resolution.name.lower(),))
    yield Sample(REPLACEMENTS, published.replaced_count)
    yield Sample(REBALANCES, counts.rebalance_count)
    yield Sample(REBUILDS, counts.rebuild_count)
    yield Sample(UNTIMELY, counts.untimely_count)


def _times(counts: CoordinatorCounts, *, to_wall_s: float) -> Iterator[Sample]:
    yield Sample(DURATION, counts.seconds.view())
    for stage, seconds in counts.stage_seconds.items():
        yield Sample(STAGE_DURATION, seconds.view(), (stage,))
    published = counts.publishing
    yield Sample(KAFKA_DURATION, published.seconds.view())
    for stage, seconds in published.stage_seconds.items():
        yield Sample(KAFKA_STAGE_DURATION, seconds.view(), (stage,))
    if published.ended_at is not None:
        yield Sample(STORED_AT, to_wall_s + published.ended_at)


def _partitions(view: CoordinatorView) -> Iterator[Sample]:
    topics, ends = SystemTopics(view.namespace), view.counts.ends
    yield Sample(PARTITIONS, len(view.shards))
    for partition, shard in view.shards.items():
        ledger, name = shard.ledger, str(partition)
        for label, topic, position in (("half", topics.half, ledger.half_next), ("op", topics.op, ledger.op_next[0])):
            end = ends.get((topic, partition))
            if end is not None:
                yield Sample(LAG, max(end - position, 0), (label, name))
        yield Sample(REPLAY, max(ledger.half_next - shard.stored.low_water, 0), ("half", name))
        doubt = max(ledger.doubt_index.next_offset - shard.stored.doubt_low, 0)
        yield Sample(REPLAY, doubt, ("doubt", name))


def _open(ages: AgeCounts) -> Iterator[Sample]:
    # Which groups keep their names must be the same for all ages: the totals decide.
    named = with_few_labels(sum(ages.open_by_group.values(), Counter()))
    for age in (*(label for label, _ in AGES), OLDER):
        counts: Counter[str] = Counter()
        for group, count in ages.open_by_group.get(age, {}).items():
            counts[group if group in named else OTHER] += count
        for group in named:
            yield Sample(OPEN, counts[group], (group, age))
    yield Sample(OLDEST_OPEN, ages.oldest_open_ms / 1000)
    for state in _STANDING:
        yield Sample(STANDING, ages.by_state[state], (state.value,))


def _state(view: CoordinatorView, ledgers: list[Ledger]) -> Iterator[Sample]:
    yield Sample(ON_DOUBT, sum(ledger.doubt_index.count for ledger in ledgers))
    yield Sample(CONTENT_BYTES, sum(ledger.content_bytes for ledger in ledgers))
    yield Sample(UNSETTLED_BYTES, sum(ledger.unsettled_bytes for ledger in ledgers))
    paused_count = sum(shard.is_half_paused for shard in view.shards.values())
    yield Sample(PAUSED_PARTITIONS, paused_count)
    refusing = sum(target.refusal is not None for target in view.targets.values())
    yield Sample(REFUSING_TOPICS, refusing)
    yield Sample(LIMITED_GROUPS, len({g for ledger in ledgers for g in ledger.open_limits.groups}))


LINE_COUNT_MAX = 100
"""Lines per kind and batch; further ones are counted, so that many of one kind do not hide the others."""


def log_reports(
    logger: Log, partition: int, batch: Batch, *, known: Mapping[str, TraceContext] = MappingProxyType({})
) -> None:
    """Log the reports of the batch. `known` contains trace contexts of transactions whose content is not in memory."""
    counts: dict[ReportKind, int] = {}
    for report in batch.reports:
        counts[report.kind] = counts.get(report.kind, 0) + 1
        if counts[report.kind] <= LINE_COUNT_MAX and not REPORTS[report.kind].is_frequent:
            where = {"txn_key": report.key, **_ids(batch, report.key, known), "partition": partition}
            extra = where | {"detail": report.detail}
            logger.log(REPORTS[report.kind].level, "transaction.%s", report.kind.value, extra=extra)
    for kind, count in counts.items():
        level, is_frequent = REPORTS[kind].level, REPORTS[kind].is_frequent
        if count > LINE_COUNT_MAX or is_frequent:
            logger.log(level, "transactions.%s", kind.value, extra={"partition": partition, "count": count})


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


# --- spans: without tracing nothing here is called --------------------------------------------------------------------

REMEMBERED_MAX = 10_000
"""Contexts of transactions whose contents are on the doubt topic, or gone already: for the next question, or a refusal."""


class CoordinatorSpans:
    """Makes spans of what a coordinator's publishers publish. They call it on their thread; it does not raise."""

    def __init__(self, tracing: Tracing, *, check_topic: str) -> None:
        self.remembered: OrderedDict[str, TraceContext] = OrderedDict()
        """By the key of a transaction, for log lines about one whose content is not in memory."""
        self._tracing = tracing
        self._check_topic = check_topic
        self._started_ns = 0
        self._questions: list[Span] = []

    def begun(self) -> None:
        """A Kafka transaction begins; the spans of one that was not published are never ended, so they are never exported."""
        self._started_ns = time.time_ns()
        self._questions = []

    def published(self, batches: Sequence[tuple[int, Batch]]) -> None:
        """The Kafka transaction is committed."""
        for span in self._questions:
            span.end()
        for partition, batch in batches:
            for keep in batch.to_doubt.values():
                if keep.is_whole and (context := trace_of(keep.txn)) is not None:
                    self._remember(keep.txn.key, context)
            for txn in batch.forwards:
                context = trace_of(txn)
                if context is not None and context.is_sampled:
                    self._forwarded(partition, txn, context)

    def asked(self, partition: int, check: CheckRecord, txn: Transaction | None) -> list[tuple[str, Any]] | None:
        """The headers that carry the context of a question or notice, about `txn` if it is in memory; None: there is none that is recorded."""
        context = None if txn is None else trace_of(txn)
        if context is None:
            context = self.remembered.get(check.key)
        if context is None or not context.is_sampled:
            return None
        if check.kind is CheckKind.QUESTION:
            context = self._asked(partition, check, context)
        return list(context.headers)

    def _forwarded(self, partition: int, txn: Transaction, context: TraceContext) -> None:
        self._remember(txn.key, context)
        topic = txn.topics[0] if len(txn.topics) == 1 else None
        more: Attributes = {
            "messaging.batch.message_count": txn.count,
            "txlayer.txn_id": txn_id_of(txn.key),
            "txlayer.producer_group": txn.group,
            "txlayer.half.partition": partition,
            "txlayer.half.offset": txn.last_offset,
        }
        self._tracing.start(
            "forward" if topic is None else f"forward {topic}",
            SpanRole.CLIENT,
            attributes=attributes_of("forward", "send", topic, more),
            cause=context,
            age_ms=age_ms(txn.born_ms),
            links=_others(txn, context),
            started_ns=self._started_ns,
        ).end()

    def _asked(self, partition: int, check: CheckRecord, context: TraceContext) -> TraceContext:
        self._remember(check.key, context)
        more: Attributes = {
            "txlayer.txn_id": txn_id_of(check.key),
            "txlayer.producer_group": check.producer_group,
            "txlayer.half.partition": partition,
            "txlayer.check_number": check.number,
        }
        span = self._tracing.start(
            f"check {self._check_topic}",
            SpanRole.PRODUCER,
            attributes=attributes_of("check", "send", self._check_topic, more),
            cause=context,
            age_ms=age_ms(check.born_ms),
        )
        self._questions.append(span)
        return span.context or context

    def _remember(self, key: str, context: TraceContext) -> None:
        self.remembered[key] = context
        self.remembered.move_to_end(key)
        if len(self.remembered) > REMEMBERED_MAX:
            self.remembered.popitem(last=False)


def _others(txn: Transaction, context: TraceContext) -> list[TraceContext]:
    """Contexts of a transaction's further messages, where their user gave them others than the first one's."""
    found = [trace_context_of(record.headers()) for _, record in records_of(txn)]
    return [c for c in dict.fromkeys(found) if c is not None and c != context][:LINKS_MAX]
