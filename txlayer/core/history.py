"""The history of a transaction: the records of one id in half, op, doubt and check, folded to one history per nonce.

For queries by people and programs (`txlayer tx show`, `producer.status`), so it also contains what the ledger does not keep.
It applies the ledger's rule of which line decides to the part of the logs that was read, and adds no rule of its own.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from txlayer.core import codec
from txlayer.core.codec import NEXT_VERSION, TIMED_VERSION, VERSION
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import (
    CheckKind,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    Headers,
    OpMessage,
    Resolution,
    Undecodable,
    nonce_of,
    txn_id_of,
)

_STATES = {state.value: state for state in TxnState}
_AFTER_A_COMMIT = (TxnState.WAITING, TxnState.SCHEDULED, TxnState.HELD, TxnState.PARKED_COMMITTED)
_BETWEEN = ": "


class HalfRecord(NamedTuple):
    """One half message of the transaction, and where it is stored."""

    offset: int
    appended_ms: int
    topic: str  # the real topic
    index: int  # type: ignore[assignment]  # 0 <= index < message_count
    options: HalfOptions
    born_ms: int


class OpLine(NamedTuple):
    """One line of the op log about the transaction: the resolution, its source and its time."""

    offset: int
    line: int
    appended_ms: int
    op: OpMessage
    is_counted: bool = True  # False: it names no half record of the transaction or was given up, so it has no effect


class CheckNote(NamedTuple):
    """One record of the check topic about the transaction."""

    partition: int  # of the check topic
    offset: int
    appended_ms: int
    number: int  # of the check-back; an op line that answers it contains it
    text: str  # of a check-back: the real topics; of a refusal: what was refused


@dataclass(frozen=True, slots=True)
class TransactionHistory:
    """One transaction, that is, one nonce of an id, as far as the records that were read show it."""

    txn_id: str
    nonce: str
    producer_group: str
    partition: int
    """The partition of half, op and doubt."""
    state: TxnState | None
    """COMMITTED is the decision; it does not mean that the messages are forwarded. None: it is settled, but the line that
    decided it is older than what was read."""
    reason: str
    """Why it is held or parked, else the reason that the deciding operator or policy gave, else empty."""
    message_count: int | None
    """Number of messages it should have; None: neither a half record nor a summary was read."""
    half_records: tuple[HalfRecord, ...]
    op_lines: tuple[OpLine, ...]
    decided_at: tuple[int, int] | None
    """(op offset, line) of the decision."""
    summary: DoubtSummary | None
    """The current summary on the doubt topic; None: it is not there."""
    left_doubt_ms: int | None
    """When its doubt records were removed, which is when it was settled; None: they were not, or never existed."""
    questions: tuple[CheckNote, ...] = ()
    """Its check-backs, the oldest first; empty if the check topic was not read."""
    refusals: tuple[CheckNote, ...] = ()
    """Resolutions that came too late and that were reported to its producer group."""
    notices: tuple[CheckNote, ...] = ()
    """Its parking, as often as it was reported to its producer group."""

    @property
    def born_ms(self) -> int | None:
        """The producer's clock at `prepare`."""
        if self.half_records:
            return self.half_records[0].born_ms
        if self.summary is not None:
            return self.summary.born_ms
        return self.op_lines[0].op.born_ms if self.op_lines else None

    @property
    def query_id(self) -> str | None:
        """The user's own id of the transaction; None if it has none, or its first half record was not read."""
        return next((half.options.query_id for half in self.half_records if not half.index), None)

    @property
    def appended_ms(self) -> int | None:
        """The broker's clock at the first half record; None if that was not read."""
        if self.half_records:
            return self.half_records[0].appended_ms
        return self.summary.appended_ms if self.summary is not None else None

    @property
    def decision(self) -> Resolution | None:
        """Commit or rollback, as carried out; None: undecided, or decided before what was read."""
        if self.state is None or not self.is_decided:
            return None
        return Resolution.ROLLBACK if self.state is TxnState.ROLLED_BACK else Resolution.COMMIT

    @property
    def ending(self) -> OpLine | None:
        """The line of the decision; of one that was abandoned after its commit, that of the abandon. None: it was not read."""
        line = next((n for n in self.op_lines if (n.offset, n.line) == self.decided_at), None)
        if line is not None and self.state is TxnState.ROLLED_BACK and line.op.resolution is Resolution.COMMIT:
            return self.abandon
        return line

    @property
    def last_half_offset(self) -> int:
        """Offset of its last half record; 0: it is not known."""
        if self.half_records:
            return self.half_records[-1].offset
        return 0 if self.summary is None else self.summary.last_offset

    @property
    def may_be_scheduled(self) -> bool:
        """True if it is committed, and messages of it may wait for their time."""
        is_timed = any(half.options.deliver_at_ms is not None for half in self.half_records)
        is_timed |= self.summary is not None and self.summary.is_timed
        is_settled = self.left_doubt_ms is not None and self.summary is None
        return is_timed and not is_settled and self.decision is Resolution.COMMIT

    def times_left(self, *, before: int = codec.WHOLE_MAX) -> tuple[int, ...]:
        """The times of its messages for which no line is in the op log before this offset that releases them or gives them up."""
        times = {half.options.deliver_at_ms or 0 for half in self.half_records} - {0}
        if len(self.half_records) < (self.message_count or 0) and self.summary is not None:
            times = set(self.summary.times) - {0}
        lines = [n for n in self.op_lines if n.offset < before and n.is_counted]
        # Before its first complete commit, no line gives it another time. That commit may be older than what was read.
        last_offset = _last_offset((half.offset, half.index, self.message_count) for half in self.half_records)
        commits = (
            n.op.is_decision and n.op.resolution is Resolution.COMMIT and n.op.last_offset >= last_offset for n in lines
        )
        first = next((number for number, is_commit in enumerate(commits) if is_commit), 0)
        return times_left(sorted(times), ((n.appended_ms, n.op) for n in lines[first:]))

    @property
    def abandon(self) -> OpLine | None:
        """The first line that gives it up; of what is forwarded by then it gives up nothing. None: there is none."""
        return next((line for line in self.op_lines if line.is_counted and line.op.is_abandon), None)

    @property
    def is_decided(self) -> bool:
        """True if the op log contains a commit or a rollback."""
        return self.state not in (TxnState.OPEN, TxnState.PARKED)


def times_left(times: Iterable[int], lines: Iterable[tuple[int, OpMessage]]) -> tuple[int, ...]:
    """What these lines, each with its append time, leave of the times of a committed transaction, the first time first."""
    left = list(times)
    for appended_ms, op in lines:
        if op.is_abandon:
            return ()
        if op.is_reschedule and op.time_ms is not None and left:
            left = [op.time_ms]
        elif op.is_release and left[:1] == [op.time_ms] and appended_ms >= left[0]:
            del left[0]
    return tuple(left)


@dataclass(slots=True)
class _Traces:
    """What was read about one nonce."""

    partition: int
    halves: list[tuple[int, int, HalfHeader]] = field(default_factory=list)
    lines: list[OpLine] = field(default_factory=list)
    summary: DoubtSummary | None = None
    left_doubt_ms: int | None = None
    is_abandoned: bool = False  # after its commit, as the end of its records on doubt says
    checks: list[tuple[CheckKind, CheckNote]] = field(default_factory=list)


class HistoryFold:
    """Folds records in any order between topics, in offset order within a partition; ignores those of other ids."""

    def __init__(self, txn_id: str) -> None:
        self._prefix = f"{txn_id}/"
        self._half_prefixes = tuple(f"{v}|{txn_id}/".encode() for v in (VERSION, NEXT_VERSION, TIMED_VERSION))
        self._op_part = f"|{txn_id}/".encode("ascii")
        self._doubt_prefix = self._prefix.encode("ascii")
        self._traces: dict[str, _Traces] = {}
        self._given_up: set[tuple[int, int, int]] = set()  # lines of this id: partition, op offset, line

    def half(self, *, partition: int, offset: int, appended_ms: int, headers: Headers | None) -> None:
        raw = codec.half_header_of(headers)
        if raw is None or not raw.startswith(self._half_prefixes):
            return
        header = codec.decode_half_header(raw)
        if not isinstance(header, Undecodable):
            self._of(header.key, partition).halves.append((offset, appended_ms, header))

    def op(self, *, partition: int, offset: int, appended_ms: int, value: bytes | None) -> None:
        if value is None or self._op_part not in value:
            return
        lines = codec.split_ops(value)
        if isinstance(lines, Undecodable):
            return
        for number, line in enumerate(lines):
            op = codec.decode_op(line)
            if not isinstance(op, Undecodable) and op.key.startswith(self._prefix):
                self._of(op.key, partition).lines.append(OpLine(offset, number, appended_ms, op))

    def doubt(
        self,
        *,
        partition: int,
        appended_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
    ) -> None:
        if key is None or not key.startswith(self._doubt_prefix):
            self._note_given_up(key, value)
            return
        parsed = codec.parse_doubt_key(key)
        if parsed is None or parsed[1] is not None:
            return
        traces = self._of(parsed[0], partition)
        if value is None:
            traces.summary, traces.left_doubt_ms = None, appended_ms
            traces.is_abandoned = codec.is_abandoned(value, headers)
            return
        summary = codec.decode_summary(parsed[0], value)
        if not isinstance(summary, Undecodable):
            traces.summary, traces.left_doubt_ms = summary, None

    def _note_given_up(self, key: bytes | None, value: bytes | None) -> None:
        """Note a line that doubt keeps as it was given up: it has no effect, also if doubt does not keep it any more."""
        kept = codec.parse_quarantine_key(key)
        if kept is None or kept[1] is None or value is None or self._op_part not in value:
            return
        self._given_up.add((kept[0].partition, kept[0].offset, kept[1]))

    def check(self, *, partition: int, offset: int, appended_ms: int, value: bytes | None) -> None:
        """Fold a record of the check topic; its partition is unrelated to the transaction's."""
        if value is None or self._op_part not in value:
            return
        check = codec.decode_check(value)
        if not isinstance(check, Undecodable) and check.key.startswith(self._prefix):
            note = CheckNote(partition, offset, appended_ms, check.number, check.text)
            self._of(check.key, check.partition).checks.append((check.kind, note))

    def histories(self) -> list[TransactionHistory]:
        """One history per nonce, the oldest first."""
        made = [_history(key, traces, self._given_up) for key, traces in self._traces.items()]
        return sorted(made, key=lambda h: (h.appended_ms or h.born_ms or 0, h.nonce))

    def _of(self, key: str, partition: int) -> _Traces:
        traces = self._traces.get(key)
        if traces is None:
            traces = self._traces[key] = _Traces(partition)
        return traces


def _history(key: str, traces: _Traces, given_up: Collection[tuple[int, int, int]]) -> TransactionHistory:
    halves = sorted(traces.halves, key=lambda half: half[0])
    summary, partition = traces.summary, traces.partition
    lines = tuple(
        n._replace(is_counted=(partition, n.offset, n.line) not in given_up and _is_counted(n.op, halves, summary))
        for n in sorted(traces.lines, key=lambda n: (n.offset, n.line))
    )
    decision = next((n for n in lines if n.is_counted and n.op.is_decision), None)
    state, reason = _state(traces, lines, decision)
    return TransactionHistory(
        txn_id=txn_id_of(key),
        nonce=nonce_of(key),
        producer_group=_group(halves, lines, summary),
        partition=traces.partition,
        state=state,
        reason=reason,
        message_count=halves[0][2].count if halves else (summary.count if summary else None),
        half_records=tuple(
            HalfRecord(offset, at_ms, h.topic, h.index, h.options, h.born_ms) for offset, at_ms, h in halves
        ),
        op_lines=lines,
        decided_at=_decided_at(summary, decision),
        summary=summary,
        left_doubt_ms=traces.left_doubt_ms,
        questions=_notes(traces, CheckKind.QUESTION),
        refusals=_notes(traces, CheckKind.REFUSED),
        notices=_notes(traces, CheckKind.PARKED),
    )


def _notes(traces: _Traces, kind: CheckKind) -> tuple[CheckNote, ...]:
    found = (note for each, note in traces.checks if each is kind)
    return tuple(sorted(found, key=lambda note: (note.appended_ms, note.partition, note.offset)))


def _is_counted(op: OpMessage, halves: list[tuple[int, int, HalfHeader]], summary: DoubtSummary | None) -> bool:
    """True if it names a half record of the transaction, or a second copy of one, and its producer group."""
    if summary is not None and summary.seen:
        known = {summary.first_offset, summary.last_offset, *summary.twin_offsets}
        is_there = op.last_offset in known or summary.first_offset < op.last_offset < summary.last_offset
        return is_there and op.producer_group == summary.producer_group
    # Half records older than what was read cannot be compared: then the line counts.
    return not halves or any(
        offset == op.last_offset and half.producer_group == op.producer_group for offset, _, half in halves
    )


def _state(traces: _Traces, lines: tuple[OpLine, ...], decision: OpLine | None) -> tuple[TxnState | None, str]:
    summary, left_ms = traces.summary, traces.left_doubt_ms
    last_offset, is_over = _last_offset((offset, half.index, half.count) for offset, _, half in traces.halves), False
    left: Iterable[int] = sorted({half.options.deliver_at_ms or 0 for *_, half in traces.halves} - {0})
    for line in (each for each in lines if each.is_counted):
        # After a commit, an abandon only affects what is not forwarded: no commit was complete, messages wait for their time, it is on doubt,
        # or its end there says so.
        if line.op.is_abandon and (not is_over or left or summary is not None or traces.is_abandoned):
            return TxnState.ROLLED_BACK, line.op.reason
        if line.op.is_decision:
            is_commit = line.op.resolution is Resolution.COMMIT
            is_over |= line.op.last_offset >= last_offset if is_commit else line is decision
        if is_over:  # before, no line gives another time
            left = times_left(left, [(line.appended_ms, line.op)])
    stands = None if summary is None else _STATES.get(summary.state)
    if summary is not None and stands in _AFTER_A_COMMIT:
        return stands, summary.reason
    if decision is not None:
        is_commit = decision.op.resolution is Resolution.COMMIT
        return (TxnState.COMMITTED if is_commit else TxnState.ROLLED_BACK), decision.op.reason
    if summary is not None:
        return stands or TxnState.OPEN, summary.reason
    if not traces.halves and any(line.op.is_release and line.is_counted for line in lines):
        return TxnState.COMMITTED, ""  # by a line that is older than what was read
    return (TxnState.OPEN, "") if left_ms is None else (None, "")


def _last_offset(halves: Iterable[tuple[int, int, int | None]]) -> int:
    """Offset of the last half record, copies aside; 0 if not all were read: then any commit may be complete.

    `halves`: offset, index and the number of messages of each.
    """
    firsts: dict[int, int] = {}
    count: int | None = 0
    for offset, index, count in halves:  # noqa: B007 - the last one's
        firsts[index] = min(offset, firsts.get(index, offset))
    return max(firsts.values()) if firsts and len(firsts) == count else 0


def _decided_at(summary: DoubtSummary | None, decision: OpLine | None) -> tuple[int, int] | None:
    if decision is not None:
        return decision.offset, decision.line
    return summary.decided_at if summary is not None else None


def _group(halves: list[tuple[int, int, HalfHeader]], lines: tuple[OpLine, ...], summary: DoubtSummary | None) -> str:
    if halves:
        return halves[0][2].producer_group
    if summary is not None and summary.seen:
        return summary.producer_group
    return lines[0].op.producer_group if lines else ""


# --- operators' reasons -----------------------------------------------------------------------------------------------


def operator_reason(operator: str, reason: str) -> str:
    return f"{operator}{_BETWEEN}{reason}"


def split_operator_reason(text: str) -> tuple[str, str]:
    """(operator, reason) of an operator's op line. If another client wrote it without a name: ("", text)."""
    operator, between, reason = text.partition(_BETWEEN)
    return (operator, reason) if between else ("", text)
