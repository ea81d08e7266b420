"""The judge of P1-P6: a fold of its own over half, op, doubt and the real topics. Never a broker, never the ledger.

What must be visible follows from the half and op logs alone; what is visible and what stands on doubt is held against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.support.history import Logs
from tests.support.logs import Headers, Seen, header
from txlayer.core import codec
from txlayer.core.messages import (
    DoubtSummary,
    HalfHeader,
    OpMessage,
    OrderMode,
    Resolution,
    Source,
    Undecodable,
    txn_id_of,
)
from txlayer.core.partitions import half_partition, murmur2, partition_of_key_hash
from txlayer.core.transitions import TxnState


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
    DROPPED = "dropped"  #: a record that is none of ours is not kept aside, or more than once
    BACKWARDS = "backwards"  #: stored positions that went back, or two owners in turns
    AHEAD = "ahead"  #: stored positions beyond what is forwarded
    UNSTEADY = "unsteady"  #: a reader saw what later was not so
    HANGING = "hanging"  #: an open Kafka transaction holds readers back at the end
    RESTLESS = "restless"  #: something that must come to its end did not
    BROKEN = "broken"  #: a process ended by an error that it must not meet
    ASKED = "asked"  #: a question too early, to nobody, or about what is over
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
    def is_twin(self) -> bool:
        """True when the broker kept one of its half records twice (librdkafka #4953)."""
        return len(self.offsets) > len(self.records)

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
        self,
        logs: Logs,
        *,
        partition_count: int | None = None,
        parked_at: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """`parked_at`: {key: line of op} of those that an answer parked, which no summary need show."""
        self._logs = logs
        self._parked_at = parked_at or {}
        self._partition_count = partition_count
        self.expected: dict[str, Expected] = {}
        self.summaries: dict[str, DoubtSummary] = {}
        self.visible: dict[str, dict[int, Seen]] = {}
        self.asides: Counter[bytes] = Counter()
        """What is kept aside on doubt, by its key, and how often it was written."""
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
        self._fold_op()
        self._fold_doubt()
        self._look_at_real()
        self._look_at_transactions()
        self._look_at_order()
        return self._verdict

    # --- what must be -------------------------------------------------------------------------------------------------

    def _fold_half(self) -> None:
        for record in self._logs.half:
            head = codec.decode_half_header(header(record.headers, codec.HALF_HEADER) or b"")
            if isinstance(head, Undecodable) or not self._is_at_home(head, record):
                continue
            txn = self.expected.get(head.key)
            if txn is None:
                txn = self.expected[head.key] = Expected(head.key, record.partition, head)
            txn.offsets.append(record.offset)
            # The broker may keep a record twice (librdkafka #4953): the first one of an index counts.
            txn.records.setdefault(head.index, record)
            txn.heads.setdefault(head.index, head)
            self._by_half[record.partition, record.offset] = (txn, head.index)

    def _is_at_home(self, head: HalfHeader, record: Seen) -> bool:
        count = self._partition_count
        return count is None or home_of(head, partition_count=count) == record.partition

    def _fold_op(self) -> None:
        for record in self._logs.op:
            for number, line in enumerate(
                (record.value or b"").decode("ascii", "replace").split("\n")
            ):
                op = codec.decode_op(line)
                if isinstance(op, OpMessage):
                    self._apply(op, record, number)

    def _apply(self, op: OpMessage, record: Seen, number: int) -> None:
        txn = self.expected.get(op.key)
        is_about_it = (
            txn is not None
            and txn.partition == record.partition
            and op.last_offset in txn.offsets
            and op.resolution is not Resolution.UNKNOWN
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
                self._verdict.counts["kept aside"] += 1
                self.asides[record.key or b""] += 1
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
            found = self._by_half.get(place)
            where = f"{record.topic}-{record.partition}@{record.offset}"
            if found is None:
                self._add(Kind.PHANTOM, "", f"{where} has no half record")
                continue
            txn, index = found
            visible = self.visible.setdefault(txn.key, {})
            if index in visible:
                self._add(Kind.DUPLICATE, txn.key, f"message {index} at {where} again")
                continue
            visible[index] = record
            self._verdict.counts["visible"] += 1
            self._compare(txn, index, record, where)

    def _compare(self, txn: Expected, index: int, record: Seen, where: str) -> None:
        half, head = txn.records[index], txn.heads[index]
        wanted_headers = _user_headers(half.headers)
        if (half.key, half.value, wanted_headers) != (
            record.key,
            record.value,
            _user_headers(record.headers),
        ):
            self._add(Kind.ALTERED, txn.key, f"{where}: other bytes than half {half.offset}")
        if header(record.headers, codec.ID_HEADER) != txn.key.partition("/")[0].encode():
            self._add(Kind.ALTERED, txn.key, f"{where}: another {codec.ID_HEADER}")
        if head.topic != record.topic or not self._is_in_place(head, record):
            self._add(Kind.ALTERED, txn.key, f"{where}: not its topic or partition")
        if txn.decision is None:
            self._add(Kind.PHANTOM, txn.key, f"{where} is not decided")
        elif txn.decision is Resolution.ROLLBACK and not txn.may_be_gone:
            self._add(Kind.CONTRARY, txn.key, f"{where} was rolled back at op {txn.decided_at}")
        elif head.options.timestamp_ms is None and record.timestamp_ms < txn.decided_ms:
            self._add(Kind.EARLY, txn.key, f"{where} at {record.timestamp_ms}, {txn.decided_ms}")

    def _is_in_place(self, head: HalfHeader, record: Seen) -> bool:
        options = head.options
        count = self._logs.real_partition_counts[record.topic]
        if options.partition is not None:
            return record.partition == options.partition
        if options.key_murmur is not None:
            return record.partition == options.key_murmur % count
        return record.key is None or record.partition == murmur2(record.key) % count

    def _look_at_transactions(self) -> None:
        counts = self._verdict.counts
        for txn in self.expected.values():
            visible = self.visible.get(txn.key, {})
            summary = self.summaries.get(txn.key)
            name = "undecided" if txn.decision is None else txn.decision.name.lower()
            counts[name] += 1
            if visible and len(visible) < txn.head.count:
                missing = sorted(set(range(txn.head.count)) - set(visible))
                self._add(Kind.TORN, txn.key, f"{sorted(visible)} visible, {missing} not")
            is_owed = txn.decision is Resolution.COMMIT and not visible and not txn.may_be_gone
            if summary is not None and summary.seen:
                self._look_at_doubt(txn, summary, is_visible=bool(visible))
            elif is_owed and not self._waits(txn):
                self._add(Kind.LOST, txn.key, f"committed at op {txn.decided_at}")

    def _waits(self, txn: Expected) -> bool:
        """P6: a prepare-ordered one waits for every earlier one of its key, also in half."""
        options = txn.head.options
        return options.order is OrderMode.PREPARE and any(
            other.head.options.key_hash == options.key_hash
            and other.first_offset < txn.first_offset
            and (other.decision is None or self._is_unsettled(other.key) or self._waits(other))
            for other in self.expected.values()
        )

    def _is_unsettled(self, key: str) -> bool:
        summary = self.summaries.get(key)
        return summary is not None and summary.state in _GOES_FIRST

    def _look_at_doubt(self, txn: Expected, summary: DoubtSummary, *, is_visible: bool) -> None:
        if is_visible or txn.decision is Resolution.ROLLBACK:
            self._add(Kind.LEFT_ON_DOUBT, txn.key, f"{summary.state} {summary.reason}")
            return
        self._verdict.counts["on doubt"] += 1
        contents = self._doubt_contents.get(txn.key, {})
        if sorted(contents) != sorted(txn.records):
            detail = f"{sorted(contents)} of {sorted(txn.records)} on doubt"
            self._add(Kind.TORN, txn.key, detail)
            return
        for index, content in contents.items():
            half = txn.records[index]
            key, value, _ = codec.decode_content(value=content.value, headers=content.headers)
            if (half.key, half.value) != (key, value):
                self._add(Kind.ALTERED, txn.key, f"content {index} on doubt has other bytes")

    # --- order --------------------------------------------------------------------------------------------------------

    def _look_at_order(self) -> None:
        queues: dict[tuple[str, str, int], list[tuple[Seen, int, Expected]]] = {}
        for key, messages in self.visible.items():
            txn = self.expected[key]
            # Parked before it was decided, it gave up its place; released by a second commit, its place is another one.
            is_parked = key in self.were_parked or self._parked_at.get(key, _NEVER) < txn.decided_at
            is_first = txn.decision is Resolution.COMMIT and not is_parked
            if txn.head.options.key_hash is None or not is_first or txn.may_be_gone:
                continue
            for index, record in messages.items():
                queue = (txn.head.options.key_hash, record.topic, record.partition)
                queues.setdefault(queue, []).append((record, index, txn))
        for queue, entries in queues.items():
            entries.sort(key=lambda entry: entry[0].offset)
            self._verdict.counts["ordered"] += len(entries)
            self._look_at_queue(queue, entries)

    def _look_at_queue(
        self, queue: tuple[str, str, int], entries: Sequence[tuple[Seen, int, Expected]]
    ) -> None:
        # From the end: whatever comes later in the log must not have belonged before this one.
        first_half, first_decision, index_behind = _LATE, _NEVER, dict[str, int]()
        for record, index, txn in reversed(entries):
            where = f"{queue[1]}-{queue[2]}@{record.offset}"
            if index_behind.get(txn.key, _LATE) < index:
                self._add(Kind.OUT_OF_ORDER, txn.key, f"{where}: message {index} too early")
            index_behind[txn.key] = index
            if txn.head.options.order is OrderMode.PREPARE:
                if first_half < txn.first_offset:
                    detail = f"{where}: before half {first_half} of its key"
                    self._add(Kind.OUT_OF_ORDER, txn.key, detail)
            else:
                if first_decision < txn.decided_at:
                    detail = f"{where}: before the one decided at {first_decision}"
                    self._add(Kind.OUT_OF_ORDER, txn.key, detail)
                first_decision = min(first_decision, txn.decided_at)
            first_half = min(first_half, txn.first_offset)

    def _add(self, kind: Kind, txn_key: str, detail: str) -> None:
        self._verdict.findings.append(Finding(kind, txn_key, detail))


_LATE = 1 << 62
_NEVER = (_LATE, 0)
_GOES_FIRST = frozenset(s.value for s in (TxnState.OPEN, TxnState.WAITING, TxnState.HELD))


def home_of(head: HalfHeader, *, partition_count: int) -> int:
    """The partition of half, op and doubt where a transaction belongs."""
    key_hash = head.options.key_hash
    if key_hash is not None:
        return partition_of_key_hash(key_hash, partition_count=partition_count)
    txn_id = txn_id_of(head.key)
    return half_partition(ordering_key=None, txn_id=txn_id, partition_count=partition_count)


def judge(logs: Logs) -> Verdict:
    """Everything that is wrong in what was read."""
    return Judge(logs).verdict()


def _user_headers(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if not name.startswith("txl")]
