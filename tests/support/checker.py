"""The judge of P1-P6 for runs, simulated or real: the reference model's findings on what was read. Never a broker, never the ledger.

What each transaction is, and what is wrong with it, says `tests/reference/model.py`, which shares nothing with the product.
The fold here counts, and keeps what judges of other things need to know of each transaction.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.reference import model, wire
from tests.support.history import Logs
from tests.support.logs import Seen, header
from txlayer.core import codec
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import (
    DoubtSummary,
    HalfHeader,
    OpMessage,
    Origin,
    Resolution,
    Source,
    Undecodable,
    txn_id_of,
)
from txlayer.core.partitions import half_partition, partition_of_key_hash


class Kind(Enum):
    """What can be wrong."""

    LOST = "lost"  #: committed (or acknowledged), but neither visible nor whole on doubt (P1)
    DUPLICATE = "duplicate"  #: visible twice (P2)
    PHANTOM = "phantom"  #: visible without a half record or without a decision (P3)
    EARLY = "early"  #: visible before its decision was in the log (P3)
    ALTERED = "altered"  #: visible with other bytes, headers, topic or partition (P3)
    CONTRARY = "contrary"  #: rolled back and visible (P4)
    TORN = "torn"  #: some of a transaction's messages are visible or on doubt, others not (P5)
    OUT_OF_ORDER = "out-of-order"  #: one ordering key, one partition, the wrong order (P6)
    LEFT_ON_DOUBT = "left-on-doubt"  #: settled, and still on doubt
    FORGOTTEN = "forgotten"  #: undecided, and no successor would find it (P7)
    DROPPED = "dropped"  #: a foreign record is not quarantined, or quarantined more than once
    BACKWARDS = "backwards"  #: stored positions that went back, or two owners in turns
    AHEAD = "ahead"  #: stored positions beyond what is forwarded
    UNSTEADY = "unsteady"  #: a reader saw what later was not so
    HANGING = "hanging"  #: an open Kafka transaction holds readers back at the end
    STUCK = "stuck"  #: something that must come to its end did not
    HOARDED = "hoarded"  #: more content in memory than its limits allow (P11)
    BROKEN = "broken"  #: a process ended by an error that it must not meet
    ASKED = "asked"  #: a question that is too early, that no one can answer, or about a settled transaction
    MISCOUNTED = "miscounted"  #: questions and answers that are not as many as the summaries say
    GIVEN_UP = "given-up"  #: parked or rolled back by a policy before its time
    UNTOLD = "untold"  #: a resolution was refused, its group not told
    AGAIN = "again"  #: handled again although its end was stored (P9)
    ATTEMPTS = "attempts"  #: an attempt that was forgotten, not stored before the next, or one too many (P9)
    UNLEASED = "unleased"  #: handled without a lease, or under one that was or could be over (P10)
    STALE_WRITE = "stale-write"  #: a table took a write under an older lease (P10)


class Finding(NamedTuple):
    """One thing that is wrong."""

    kind: Kind
    txn_key: str
    detail: str


@dataclass(slots=True)
class Expected:
    """A transaction as half and op tell it."""

    key: str
    partition: int
    head: HalfHeader
    records: dict[int, Seen] = field(default_factory=dict)  # index → first half record with it
    heads: dict[int, HalfHeader] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    decision: Resolution | None = None
    decided_at: tuple[int, int] = (-1, -1)
    decided_ms: int = 0
    decided_by: Source = Source.PRODUCER
    may_be_gone: bool = False  # given up after its commit
    commit_count: int = 0

    @property
    def is_complete(self) -> bool:
        """True when every half record is there."""
        return len(self.records) == self.head.count

    @property
    def first_offset(self) -> int:
        """Of its first half record."""
        return self.offsets[0]


@dataclass(slots=True)
class Verdict:
    """What was found, and counts that show that there was something to judge."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    doubt_states: Counter[str] = field(default_factory=Counter)

    def kinds(self) -> set[Kind]:
        """Every kind of finding."""
        return {finding.kind for finding in self.findings}


class Judge:
    """Folds the logs once and compares."""

    def __init__(
        self, logs: Logs, *, partition_count: int, parked_at: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """`parked_at`: {key: line of op} of those that an answer parked, which no summary need show."""
        self._logs = logs
        self._parked_at = parked_at or {}
        self._partition_count = partition_count
        self.expected: dict[str, Expected] = {}
        self.summaries: dict[str, DoubtSummary] = {}
        self.visible: dict[str, dict[int, Seen]] = {}
        self.quarantined: Counter[bytes] = Counter()
        """What is quarantined on doubt, by its key, and how often it was written."""
        self.were_on_doubt: set[str] = set()
        self.were_parked: set[str] = set()
        self.conflicts: list[tuple[Expected, OpMessage, tuple[int, int]]] = []  # refused, and where
        self._by_half: dict[tuple[int, int], tuple[Expected, int]] = {}
        self._doubt_contents: dict[str, dict[int, Seen]] = {}
        self._verdict = Verdict()

    @property
    def counts(self) -> Counter[str]:
        """What there was to judge."""
        return self._verdict.counts

    def verdict(self) -> Verdict:
        """Everything that is wrong."""
        self._fold_half()
        self._fold_doubt()
        self._fold_op()
        self._look_at_real()
        self._count()
        self._verdict.findings += self._findings_of_the_model()
        return self._verdict

    # --- what must be -------------------------------------------------------------------------------------------------

    def _fold_half(self) -> None:
        for record in self._logs.half:
            head = codec.decode_half_header(header(record.headers, codec.HALF_HEADER) or b"")
            if isinstance(head, Undecodable) or not self._is_at_home(head, record):
                continue
            txn = self.expected.get(head.key)
            if not _is_part(head, txn):
                continue  # it is quarantined
            if txn is None:
                txn = self.expected[head.key] = Expected(head.key, record.partition, head)
            txn.offsets.append(record.offset)
            # The broker may keep a record twice (librdkafka #4953): the first one of an index counts.
            txn.records.setdefault(head.index, record)
            txn.heads.setdefault(head.index, head)
            self._by_half[record.partition, record.offset] = (txn, head.index)

    def _is_at_home(self, head: HalfHeader, record: Seen) -> bool:
        return home_of(head, partition_count=self._partition_count) == record.partition

    def _fold_op(self) -> None:
        for record in self._logs.op:
            for number, line in enumerate((record.value or b"").decode("ascii", "replace").split("\n")):
                op = codec.decode_op(line)
                where = Origin(record.topic, record.partition, record.offset)
                if isinstance(op, OpMessage) and codec.quarantine_key(where, number) not in self.quarantined:
                    self._apply(op, record, number)

    def _apply(self, op: OpMessage, record: Seen, number: int) -> None:
        txn = self.expected.get(op.key)
        is_about_it = (
            txn is not None
            and txn.partition == record.partition
            and op.last_offset in txn.offsets
            and op.producer_group == txn.head.producer_group
            and decides(op)
        )
        if txn is None or not is_about_it:
            self._verdict.counts["idle lines"] += 1
            return
        txn.commit_count += op.resolution is Resolution.COMMIT
        if txn.decision is None:
            txn.decision = op.resolution
            txn.decided_at, txn.decided_ms = (record.offset, number), record.timestamp_ms
            txn.decided_by = op.source
        elif op.resolution is not txn.decision:
            self._verdict.counts["conflicts"] += 1
            self.conflicts.append((txn, op, (record.offset, number)))
            txn.may_be_gone = txn.may_be_gone or op.is_abandon
        else:
            self._verdict.counts["repeats"] += 1

    # --- what is ------------------------------------------------------------------------------------------------------

    def _fold_doubt(self) -> None:
        for record in self._logs.doubt:
            parsed = codec.parse_doubt_key(record.key)
            if parsed is None:
                self._verdict.counts["quarantined"] += 1
                self.quarantined[record.key or b""] += 1
                continue
            key, index = parsed
            self.were_on_doubt.add(key)
            if index is not None:
                contents = self._doubt_contents.setdefault(key, {})
                if record.value is None:
                    contents.pop(index, None)
                else:
                    contents[index] = record
            elif record.value is None:
                self.summaries.pop(key, None)
            else:
                summary = codec.decode_summary(key, record.value)
                assert isinstance(summary, DoubtSummary), summary
                self.summaries[key] = summary
                if summary.state == TxnState.PARKED.value:
                    self.were_parked.add(key)  # nobody of its key waits for it any more
        for summary in self.summaries.values():
            self._verdict.doubt_states[summary.state] += 1

    def _look_at_real(self) -> None:
        for record in self._logs.real:
            origin = codec.decode_origin(header(record.headers, codec.ORIGIN_HEADER) or b"")
            place = (-1, -1) if isinstance(origin, Undecodable) else (origin[0], origin[1])
            if place in self._by_half:
                txn, index = self._by_half[place]
                self.visible.setdefault(txn.key, {}).setdefault(index, record)
                self._verdict.counts["visible"] += 1
                self._verdict.counts["ordered"] += txn.head.options.key_hash is not None

    def _count(self) -> None:
        for txn in self.expected.values():
            name = "undecided" if txn.decision is None else txn.decision.name.lower()
            self._verdict.counts[name] += 1
            self._verdict.counts["on doubt"] += txn.key in self.summaries

    # --- what is wrong ------------------------------------------------------------------------------------------------

    def _findings_of_the_model(self) -> Iterable[Finding]:
        history = self._history()
        report = model.judge(history)
        for found in report.findings:
            kind = _KINDS.get(found.kind)
            if kind is None:
                continue  # it breaks no promise
            if found.kind is model.Kind.LEAKED and found.txn_key in self.expected:
                is_rolled_back = self.expected[found.txn_key].decision is Resolution.ROLLBACK
                kind = Kind.CONTRARY if is_rolled_back else Kind.PHANTOM
            where = ", ".join(found.places)
            yield Finding(kind, found.txn_key or "", f"{found.kind}: {where} {found.detail}".strip())

    def _history(self) -> wire.History:
        """What was read, for the model: everything that ever was, and none of it young."""
        logs, namespace = self._logs, "txlayer"
        system = [*logs.half, *logs.op, *logs.doubt]
        if system:
            namespace = system[0].topic.rpartition(".")[0]
        count = self._partition_count
        counts = {f"{namespace}.{name}": count for name in ("half", "op", "doubt")}
        counts |= logs.real_partition_counts
        bounds = {(t, p): wire.Bounds(0, wire.NUMBER_MAX) for t, n in counts.items() for p in range(n)}
        timed = {(place, txn.heads[index].options.timestamp_ms) for place, (txn, index) in self._by_half.items()}
        records = [self._record(seen, timed) for seen in (*system, *logs.real)]
        parked = frozenset(
            key
            for key, position in self._parked_at.items()
            if key not in self.expected
            or self.expected[key].decision is None
            or position < self.expected[key].decided_at
        )
        settings = wire.Settings(namespace=namespace, parked=parked)
        return wire.History(records, bounds, settings)

    def _record(self, seen: Seen, timed: set[tuple[tuple[int, int], int | None]]) -> wire.Record:
        """A reader is not told whose time it is: one that the user asked for is the writer's."""
        origin = wire.parse_origin(header(seen.headers, codec.ORIGIN_HEADER))
        asked = origin and ((origin.partition, origin.offset), seen.timestamp_ms)
        return wire.Record(
            seen.topic,
            seen.partition,
            seen.offset,
            seen.timestamp_ms,
            seen.key,
            seen.value,
            seen.headers,
            is_append_time=asked not in timed,
        )


_KINDS = {
    model.Kind.LOST: Kind.LOST,
    model.Kind.TORN: Kind.TORN,
    model.Kind.NOT_WHOLE: Kind.TORN,
    model.Kind.FORGOTTEN: Kind.FORGOTTEN,
    model.Kind.CONTRADICTED: Kind.LOST,
    model.Kind.DOUBLED: Kind.DUPLICATE,
    model.Kind.LEAKED: Kind.PHANTOM,
    model.Kind.EARLY: Kind.EARLY,
    model.Kind.CORRUPT: Kind.ALTERED,
    model.Kind.WRONG_PARTITION: Kind.ALTERED,
    model.Kind.OUT_OF_ORDER: Kind.OUT_OF_ORDER,
    model.Kind.PHANTOM: Kind.PHANTOM,
    model.Kind.NOT_ENDED: Kind.LEFT_ON_DOUBT,
}


def _is_part(head: HalfHeader, txn: Expected | None) -> bool:
    """Whether a half record's index is due or there already, and its count that of the first."""
    if txn is None:
        return head.index == 0
    return head.count == txn.head.count and head.index <= len(txn.records)


def decides(op: OpMessage) -> bool:
    """Whether a line commits or rolls back. One with a time releases messages or moves them, and any other `U` asks (protocol.md, "Op record")."""
    return op.resolution in (Resolution.COMMIT, Resolution.ROLLBACK) and op.time_ms is None


def home_of(head: HalfHeader, *, partition_count: int) -> int:
    """The partition of half, op and doubt where a transaction belongs."""
    key_hash = head.options.key_hash
    if key_hash is not None:
        return partition_of_key_hash(key_hash, partition_count=partition_count)
    txn_id = txn_id_of(head.key)
    return half_partition(ordering_key=None, txn_id=txn_id, partition_count=partition_count)


def judge(logs: Logs, *, partition_count: int) -> Verdict:
    """Everything that is wrong in what was read; `partition_count` of half, op and doubt."""
    return Judge(logs, partition_count=partition_count).verdict()
