"""The state and helpers of assigned partitions: the ledger, its stored positions, the partition's clock, policies, reports.

The wall clock of the coordinator decides nothing. It is only a bound: an append time far beyond it is one broker's clock
against this machine's, and it takes no effect before that time has come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import Assignment, GroupReader, TopicPartition, no_append_time
from txlayer.adapters.tracing import TraceContext, trace_context_of
from txlayer.config import CoordinatorConfig, SystemTopics, milliseconds, parse_value
from txlayer.coordinator.contents import cut_whole, fetch_contents
from txlayer.core.checks import CLOCK_ERROR_MS, CheckPolicies, CheckPolicy, UnresolvedAction
from txlayer.core.codec import PlainHeaders
from txlayer.core.ledger.batch import Batch, Positions, ReportKind
from txlayer.core.ledger.ledger import Ledger, LedgerSettings
from txlayer.core.ledger.misplaced_records import LinesAheadOfHalf
from txlayer.core.ledger.transaction import Target, Transaction, records_of
from txlayer.core.messages import ParkReason, txn_id_of
from txlayer.errors import BrokerUnavailableError, ConfigError, TopicMismatchError

WINDOW_S = 30.0
"""The coordinator uses values that it saw at most two windows ago. If this machine's clock runs too fast, the error is what it
gains in a minute, not what it gained since it started."""


def latest_ms(wall_clock: Callable[[], float]) -> int:
    """Append times beyond this one do not count now."""
    return int(wall_clock() * 1000) + CLOCK_ERROR_MS


class LogTime:
    """Milliseconds of the broker's clock, from append times and the monotonic clock; 0 until a record was seen. It never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at: float | None = None
        # How far append times were ahead of the monotonic clock: the maximum of this window and of the one before. Records of a
        # backlog give too low a value, so the maximum is closest to the truth.
        self._ahead_ms = 0.0
        self._ahead_before_ms = 0.0
        self._last_ms = 0

    def see(self, appended_ms: int) -> None:
        """Note that a record was appended at `appended_ms`."""
        at = self._clock()
        ahead_ms = appended_ms - at * 1000
        if self._began_at is None:
            self._began_at = at
            self._ahead_ms = self._ahead_before_ms = ahead_ms
        elif at - self._began_at >= WINDOW_S:
            self._began_at = at
            self._ahead_before_ms, self._ahead_ms = self._ahead_ms, ahead_ms
        else:
            self._ahead_ms = max(self._ahead_ms, ahead_ms)

    def now_ms(self) -> int:
        """The time now."""
        self._last_ms = self.peek_ms()
        return self._last_ms

    def peek_ms(self) -> int:
        """The time now, for reading only: it does not change the state, and no decision may depend on it."""
        if self._began_at is None:
            return self._last_ms
        ahead_ms = max(self._ahead_ms, self._ahead_before_ms)
        return max(self._last_ms, int(self._clock() * 1000 + ahead_ms))


CHECK_SETTINGS = tuple(field.name.removesuffix("_ms") for field in fields(CheckPolicy))
"""Settings that a producer group may have of its own; a `CheckPolicy` holds them under the same names, lengths in ms."""


def check_policies(config: CoordinatorConfig) -> CheckPolicies:
    """The check policy of each producer group.

    Raises:
        ConfigError: a group's setting is not a check setting, or a value is malformed.
    """
    values = {name: getattr(config, name) for name in CHECK_SETTINGS}
    own: dict[str, dict[str, Any]] = {}
    for name, text in config.group_policies.items():
        group, _, setting = name.rpartition(".")
        if not group or setting not in CHECK_SETTINGS:
            raise ConfigError(
                "no check setting of a producer group",
                name=name,
                value=text,
                expected="GROUP.NAME=VALUE, NAME one of " + ", ".join(CHECK_SETTINGS),
            )
        value = parse_value(name, setting, text, CoordinatorConfig)
        own.setdefault(group, dict(values))[setting] = value
    return CheckPolicies(_policy(values), {group: _policy(v) for group, v in own.items()})


def _policy(values: dict[str, Any]) -> CheckPolicy:
    try:
        unresolved = UnresolvedAction(values["unresolved"])
    except ValueError as exc:
        raise ConfigError(
            "no end for a transaction that nobody resolves",
            name="unresolved",
            value=values["unresolved"],
            expected=" or ".join(action.value for action in UnresolvedAction),
        ) from exc
    made: dict[str, Any] = {"unresolved": unresolved}
    for name, value in values.items():
        if isinstance(value, str):
            continue
        is_length = isinstance(value, timedelta)
        number = milliseconds(value) if is_length else value
        if number < 1:
            raise ConfigError("not possible as a limit", name=name, value=number, expected="more than 0")
        made[f"{name}_ms" if is_length else name] = number
    return CheckPolicy(**made)


logger = logging.getLogger("txlayer.coordinator")

PAUSED_TIMES = 1.1
"""A paused partition resumes when there would be room for a tenth more."""


@dataclass(slots=True)
class Shard:
    """One assigned partition."""

    ledger: Ledger
    stored: Positions
    half_end: int  # at assignment: nothing that depends on time happens before both ends are reached
    op_end: int
    time: LogTime  # per partition: a broker with a wrong clock affects no other
    heard_ms: int = field(init=False)  # the newest append time that `time` has seen
    is_op_paused: bool = False
    is_half_paused: bool = False  # too many unsettled transactions
    is_caught_up: bool = False  # both ends have been reached once
    probed_at: float = float("-inf")  # when its time was asked for last, by a line that releases scheduled messages
    lines_ahead: LinesAheadOfHalf = field(default_factory=LinesAheadOfHalf)

    def __post_init__(self) -> None:
        """Start with the stored time, unless this process has seen a later one: only newer append times add information."""
        self.heard_ms = self.time.peek_ms()
        self.hear()

    def hear(self) -> None:
        """Pass newer append times to the clock."""
        if self.ledger.times.newest_ms > self.heard_ms:
            self.heard_ms = self.ledger.times.newest_ms
            self.time.see(self.heard_ms)

    @property
    def is_busy(self) -> bool:
        """True if there is something left to apply or to append."""
        return self.ledger.has_more or not self.ledger.batch.is_empty

    def pass_markers(self, group: GroupReader, topics: SystemTopics) -> None:
        """Take what no record reports at the ends as read; call it after the records of a read are folded."""
        partition = self.ledger.partition
        self.ledger.pass_markers(
            half_to=group.read_to((topics.half, partition)), op_to=group.read_to((topics.op, partition))
        )

    def is_read_to_the_ends(self, group: GroupReader, topics: SystemTopics, *, is_idle: bool) -> bool:
        """True if everything that existed at the assignment is folded.

        A line that waits for half blocks the lines behind it, but not what depends on time: such lines may arrive
        all the time.
        """
        return not self.ledger.has_more and self._has_reached_the_ends(group, topics, is_idle=is_idle)

    def _has_reached_the_ends(self, group: GroupReader, topics: SystemTopics, *, is_idle: bool) -> bool:
        ledger = self.ledger
        # While half is paused, time goes on: check-backs for what was read must continue, or the pause would never end.
        is_half_read = self.is_half_paused or ledger.half_next >= self.half_end
        return is_half_read and (
            ledger.op_next[0] >= self.op_end
            # Lines that wait for half are not applied, and a marker behind them is not passed.
            or (is_idle and group.read_to((topics.op, ledger.partition)) >= self.op_end)
        )

    def peak_ms(self, group: GroupReader, topics: SystemTopics) -> int | None:
        """The time that counts while more is read than batches have room for: that of the first record without effect yet.

        None: nothing is left over from the batch before, or the ends at the assignment are not reached.
        """
        unapplied_ms = self.ledger.unapplied_ms
        if unapplied_ms is None or not self._has_reached_the_ends(group, topics, is_idle=False):
            return None
        return max(self.ledger.times.now_ms, unapplied_ms)

    def pause_op_far_ahead(
        self, group: GroupReader, topics: SystemTopics, *, line_count_max: int, byte_count_max: int
    ) -> None:
        """Stop reading op while it is far ahead of half, and resume when half is closer.

        Call it after every `advance`: with op paused and half read to its end, no record would arrive to trigger it.
        """
        ledger, op = self.ledger, [(topics.op, self.ledger.partition)]
        # 1.0 is the limit, of lines or of bytes.
        share = max(ledger.ops.line_count / max(1, line_count_max), ledger.ops.byte_count / byte_count_max)
        if not self.is_op_paused and share > 1:
            group.pause(op)
            self.is_op_paused = True
        elif self.is_op_paused and share <= 1 / 2:
            group.resume(op)
            self.is_op_paused = False

    def pause_half(self, group: GroupReader, topics: SystemTopics, *, is_full: bool) -> None:
        """Stop reading half while there is no memory for more transactions, and resume when there is."""
        if is_full is self.is_half_paused:
            return
        half = (topics.half, self.ledger.partition)
        self.is_half_paused = is_full
        if is_full:
            group.pause([half])
            logger.error("half.paused", extra={"partition": half[1], "open_count": self.ledger.open_count})
        else:
            group.resume([half])
            logger.warning("half.resumed", extra={"partition": half[1]})

    def give_up_misplaced_lines(
        self, topics: SystemTopics, *, connections: CoordinatorConnections, now: float, patience_s: float
    ) -> None:
        """Give up op lines that have named offsets without a record for `patience_s`, according to the broker."""
        ledger = self.ledger
        if ledger.waits_for_half is None:
            self.lines_ahead.clear()
            return
        self.lines_ahead.read_to(ledger.ops.read_to(ledger.op_next), now)
        half = (topics.half, ledger.partition)
        before = self.lines_ahead.given_up_before(
            op_next=ledger.op_next[0],
            half_next=ledger.half_next,
            half_end=lambda: connections.end_offsets([half], is_committed=False)[half],
            now=now,
            patience_s=patience_s,
        )
        if before is not None:
            ledger.give_up_waiting_for_half(before=before)


def pause_those_too_full(
    shards: Mapping[int, Shard], group: GroupReader, topics: SystemTopics, *, bytes_max: int
) -> None:
    """Limit the memory of unsettled transactions: pause half for partitions with too many of them, or for all.

    A partition with more than half of its share stops first: at half of the memory while no op line waits for half, else at
    three quarters. So it leaves room for the others. At the limit, all stop. Call it after every `advance`.
    """
    sizes = {p: shard.ledger.unsettled_bytes for p, shard in shards.items()}
    total = sum(sizes.values())
    for p, shard in shards.items():
        times = PAUSED_TIMES if shard.is_half_paused else 1.0
        size, taken = sizes[p] * times, total * times
        is_full = taken >= bytes_max
        if not is_full and size * 2 * len(shards) >= bytes_max:
            is_needed = shard.ledger.waits_for_half is not None
            is_full = taken >= bytes_max * 3 / 4 or (taken >= bytes_max / 2 and not is_needed)
        shard.pause_half(group, topics, is_full=is_full)


def keep_within_memory(ledgers: Collection[Ledger], content_bytes_max: int) -> None:
    """Drop the oldest content if the total is too large; it is fetched again when it is needed."""
    total = sum(ledger.content_bytes for ledger in ledgers)
    if total > content_bytes_max:
        # Down to three quarters, so that not every read drops some; each partition drops its share.
        too_much = total - content_bytes_max * 3 // 4
        for ledger in ledgers:
            ledger.drop_content(ledger.content_bytes * too_much // total + 1)


def known_ends(group: GroupReader, shards: Mapping[int, Shard], topics: SystemTopics) -> dict[TopicPartition, int]:
    """Ends of half and op according to the last fetches, without a request; unknown ones are missing."""
    tps = [(topic, p) for p in shards for topic in (topics.half, topics.op)]
    found = {tp: group.known_end(tp) for tp in tps}
    return {tp: end for tp, end in found.items() if end is not None}


def first_partition_count(
    connections: CoordinatorConnections, config: CoordinatorConfig, *, clock: Callable[[], float]
) -> int:
    """`count_partitions` for a cluster that may just be starting: retries until `start_timeout` is over."""
    patience_s = config.start_timeout.total_seconds()
    give_up_at = clock() + patience_s
    while True:
        connections.wait_until_reachable(config.topics.half, timeout_s=patience_s)
        try:
            return count_partitions(connections, config.topics)
        except BrokerUnavailableError:
            if clock() >= give_up_at:
                raise


def count_partitions(connections: CoordinatorConnections, topics: SystemTopics) -> int:
    """Number of partitions of half, op and doubt.

    Raises:
        TopicMismatchError: a topic is missing, the numbers differ, or the broker does not set append times. Nothing was read.
    """
    counts = {}
    for topic in (topics.half, topics.op, topics.doubt, topics.check):
        limits = connections.topic_limits(topic)
        if limits is None:
            raise TopicMismatchError(
                "a topic of the namespace is missing; `txlayer topics apply` makes it",
                topic=topic,
                expected="there",
                found="missing",
            )
        if topic in (topics.half, topics.op) and limits.is_append_time is False:
            raise no_append_time(topic, why="transactions grow old by the broker's clock alone")
        counts[topic] = limits.partition_count
    del counts[topics.check]  # its records name the partition that they concern
    for topic, count in counts.items():
        if count != counts[topics.half]:
            raise TopicMismatchError(
                "half, op and doubt must have equally many partitions; transactions would be torn apart",
                topic=topic,
                expected=str(counts[topics.half]),
                found=str(count),
            )
    return counts[topics.half]


def assigned_partitions(assignment: Assignment, topics: SystemTopics) -> list[int]:
    """The assigned partitions, the same for half and op.

    Raises:
        TopicMismatchError: they differ; nothing may be read.
    """
    halves = {p for topic, p in assignment.partitions if topic == topics.half}
    ops = {p for topic, p in assignment.partitions if topic == topics.op}
    if halves != ops:
        raise TopicMismatchError(
            "half and op were not assigned alike; every member must subscribe to both with equal partition counts",
            topic=topics.op,
            expected=str(sorted(halves)),
            found=str(sorted(ops)),
        )
    return sorted(halves)


def ledger_settings(config: CoordinatorConfig, *, partition_count: int) -> LedgerSettings:
    """The part of the configuration that the ledger needs."""
    return LedgerSettings(
        half_topic=config.topics.half,
        op_topic=config.topics.op,
        partition_count=partition_count,
        doubt_after_ms=milliseconds(config.doubt_after),
        held_age_max_ms=milliseconds(config.held_age_max),
        transaction_messages_max=config.transaction_messages_max,
        checks=check_policies(config),
        transaction_bytes_max=config.transaction_bytes_max,
    )


def empty_ledgers(
    partitions: Sequence[int],
    *,
    settings: LedgerSettings,
    targets: Mapping[str, Target],
    refusals: Mapping[str, ParkReason],
    make: type[Ledger] = Ledger,
) -> dict[int, Ledger]:
    """One ledger per partition, to be filled by a recovery."""
    headers = PlainHeaders(targets)
    return {p: make(p, settings=settings, targets=targets, refusals=refusals, headers=headers) for p in partitions}


def fill_contents(
    batches: list[tuple[int, Batch]],
    shards: dict[int, Shard],
    *,
    config: CoordinatorConfig,
    connections: CoordinatorConnections,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Fetch the contents that the batches need and that are not in memory.

    Raises:
        InvariantError: a content is not where it must be.
        BrokerUnavailableError: no broker answered; nothing was changed.
    """
    wanted: list[tuple[int, Transaction, int]] = []
    for p, batch in batches:
        needed = [*batch.forwards, *(k.txn for k in batch.to_doubt.values() if k.is_whole)]
        wanted.extend((p, t, t.seen - len(_joined(t))) for t in needed if t.content is None or _joined(t))
    if not wanted:
        return
    # A transaction that is only rewritten on doubt stays as it is there: half may no longer have the rest of it.
    forwarded = {(p, txn.key) for p, batch in batches for txn in batch.forwards}
    as_cut = {(p, txn.key) for p, txn, _ in wanted} - forwarded
    to_cut = {(p, txn.key) for p, txn, _ in wanted if shards[p].ledger.is_beyond_limit(txn)}
    reader = connections.make_reader("read_committed")
    try:
        found = fetch_contents(
            reader,
            wanted,
            half_topic=config.topics.half,
            doubt_topic=config.topics.doubt,
            patience_s=config.kafka_transaction_timeout.total_seconds(),
            clock=clock,
            as_cut=as_cut,
            to_cut=to_cut,
        )
    finally:
        reader.close()
    for p, txn, _ in wanted:
        joined = _joined(txn)
        if (p, txn.key) in to_cut:
            joined = [cut_whole(content, partition=p, count=txn.count) for content in joined]
        shards[p].ledger.filled(txn, [*found[p, txn.key], *joined])


def _joined(txn: Transaction) -> list[Any]:
    return (txn.extras.joined if txn.extras is not None else None) or []


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
