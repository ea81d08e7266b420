"""One partition: a fold over its half and op records, and what follows from them.

Decide → append → apply: `fold_half` and `add_ops` take what was read, `advance` applies op lines strictly in order and
collects a `Batch`; the service appends that batch and the positions in one Kafka transaction and calls `published`. When
the append fails the ledger is thrown away and built again from the stored positions: there is no undo.

Everything in a batch is a function of the positions (`half_next`, `op_next`) and of what the doubt topic holds. Two rules
keep it so: an op line sees its transaction as of the half offset that it names, and a transaction that waits for one on
the doubt topic stands on the doubt topic itself, in the same Kafka transaction.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, NamedTuple

from txlayer.core import codec
from txlayer.core.batch import Batch, Keep, KeptAside, Positions, Report, ReportKind
from txlayer.core.doubt_shelf import DoubtShelf
from txlayer.core.forward_order import ForwardOrder
from txlayer.core.messages import (
    NO_OPTIONS,
    HalfHeader,
    OpMessage,
    Origin,
    ParkReason,
    Resolution,
    Source,
    Undecodable,
)
from txlayer.core.partitions import partition_of_key_hash
from txlayer.core.transaction import Content, More, OpPosition, Transaction
from txlayer.core.transitions import SETTLED, Effect, Kind, TxnState, transition

RECENT_COUNT_MAX = 50_000
"""Settled transactions remembered per partition, twice: to tell a contrary op line from one that never had a half."""

FORWARD_OVERHEAD_BYTES = 512
"""Allowance for our two headers and the record's own fields when a message is held against its topic's limit."""

_COMMIT, _OPEN, _COMMITTED = Resolution.COMMIT.value, TxnState.OPEN, TxnState.COMMITTED
_SOURCES = frozenset(s.value for s in Source)


NEVER = 1 << 62
"""Beyond every offset."""


class Target(NamedTuple):
    """What is known of a real topic. `refusal` None: it accepts; else why not."""

    message_bytes_max: int
    quick_bytes_max: int = -1  # values up to this size need no exact measure
    refusal: ParkReason | None = None
    is_for_good: bool = False  # True: park at once; False: hold until it is mended


UNKNOWN_TARGET = Target(0, -1, ParkReason.TOPIC_MISSING)


def accepting_target(message_bytes_max: int) -> Target:
    """A topic that exists and may be written."""
    return Target(message_bytes_max, message_bytes_max // 2)


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The names and limits of one namespace that the fold needs."""

    half_topic: str
    op_topic: str
    partition_count: int
    doubt_after_ms: int
    held_age_max_ms: int
    transaction_messages_max: int


class Ledger:
    """The transactions of one partition. One thread owns it; nothing in it blocks."""

    def __init__(
        self, partition: int, *, settings: LedgerSettings, targets: Mapping[str, Target]
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.targets = targets
        self.unknown_topics: set[str] = set()
        self.refusals: dict[
            str, ParkReason
        ] = {}  # key → reason: found by bisection, outlives the rebuild
        self.transactions: dict[str, Transaction] = {}
        self.order = ForwardOrder()
        self.batch = Batch()
        self.half_next = 0
        self.op_next: OpPosition = (0, 0)
        self.newest_ms = 0
        self.content_bytes = 0
        self.waits_for_half: int | None = (
            None  # the half offset that the next op line names, when it is not read yet
        )
        self.ahead_line_count = 0
        self.is_replaying = False
        self.shelf = DoubtShelf()
        self._young: deque[Transaction] = (
            deque()
        )  # in half, by offset; settled and moved ones are dropped lazily
        self._ops: deque[tuple[int, int, list[str]]] = (
            deque()
        )  # op records read ahead: offset, append time, lines
        self._recent: dict[str, TxnState] = {}
        self._recent_before: dict[str, TxnState] = {}
        self._keys_to_try: deque[str | None] = deque()

    # --- half ---------------------------------------------------------------------------------------------------------

    def fold_half(self, offset: int, appended_ms: int, header: bytes | None, record: Any) -> None:  # noqa: ANN401
        """One half record. `header` is the value of its `txl`; `record` is kept as its content."""
        self.half_next = offset + 1
        self.newest_ms = appended_ms
        # The common case in as few steps as Python allows: a single message without options.
        try:
            version, key, group, topic, part, born, options = header.decode("ascii").split("|")  # type: ignore[union-attr]
        except (AttributeError, ValueError):
            self._fold_half_with_care(offset, appended_ms, header, record)
            return
        if (
            part == "0/1"
            and not options
            and version == codec.VERSION
            and topic in self.targets
            and key not in self.transactions
            and zlib.crc32(key[:-9].encode()) % self.settings.partition_count == self.partition
            and born.isdigit()
            and key[-9:-8] == "/"
            and group
        ):
            self.content_bytes += len(record)
            txn = Transaction(
                key, intern(group), intern(topic), offset, appended_ms, born, self.op_next, record
            )
            self.transactions[key] = txn
            self._young.append(txn)
        else:
            self._fold_half_with_care(offset, appended_ms, header, record)

    def _fold_half_with_care(
        self, offset: int, appended_ms: int, raw: bytes | None, record: Any
    ) -> None:  # noqa: ANN401
        header = (
            Undecodable("half record without a header txl")
            if raw is None
            else codec.decode_half_header(raw)
        )
        if isinstance(header, HalfHeader) and self._home_of(header) != self.partition:
            header = Undecodable(
                f"belongs into partition {self._home_of(header)}", ParkReason.MISPLACED
            )
        if isinstance(header, Undecodable):
            self._keep_aside(self.settings.half_topic, offset, header, record=record)
            return
        if header.topic not in self.targets:
            self.unknown_topics.add(header.topic)
        txn = self.transactions.get(header.key)
        if txn is None:
            self._begin(header, offset, appended_ms, record)
        elif not (self.is_replaying and txn.is_in_doubt):
            txn.state, effect = transition(txn.state, Kind.HALF, txn_id=txn.key)
            if effect is Effect.JOIN:
                self._join(txn, header, offset, appended_ms, record)
            else:
                self._report(
                    ReportKind.LATE_HALF, txn.key, f"half record {offset} after the decision"
                )

    def _home_of(self, header: HalfHeader) -> int:
        count = self.settings.partition_count
        if header.options.key_hash is not None:
            return partition_of_key_hash(header.options.key_hash, partition_count=count)
        return zlib.crc32(header.key.partition("/")[0].encode()) % count

    def _begin(self, header: HalfHeader, offset: int, appended_ms: int, record: Any) -> None:  # noqa: ANN401
        if header.index:
            # Its first record lies before the low-water mark, or was never written: settled, or never begun.
            self._report(
                ReportKind.LATE_HALF, header.key, f"half record {offset} without its first one"
            )
            return
        txn = Transaction(
            header.key,
            header.producer_group,
            header.topic,
            offset,
            appended_ms,
            str(header.born_ms),
            self.op_next,
            record,
        )
        txn.count = header.count
        if header.count > 1 or header.options != NO_OPTIONS:
            txn.more = More(header.options)
            txn.more.offsets = [offset] if header.count > 1 else None
            txn.content = [
                Content(0, header.topic, offset, header.options, str(header.born_ms), record)
            ]
        self.content_bytes += len(record)
        self.transactions[txn.key] = txn
        self._young.append(txn)
        self.order.add(txn)

    def _join(
        self, txn: Transaction, header: HalfHeader, offset: int, appended_ms: int, record: Any
    ) -> None:  # noqa: ANN401
        more = txn.extra()
        if (
            txn.count == 0 and header.index == 0
        ):  # kept on an op line's word alone: now its half record comes
            txn.count, txn.group, txn.topic, more.options = (
                header.count, header.producer_group, header.topic, header.options,
            )  # fmt: skip
            txn.first_offset, txn.appended_ms, txn.born = offset, appended_ms, str(header.born_ms)
        elif header.index < txn.seen and header.count == txn.count:
            more.twins = [*(more.twins or ()), offset]
            return
        elif header.index != txn.seen or header.count != txn.count:
            why = Undecodable(
                f"record {header.index}/{header.count} where {txn.seen}/{txn.count} is due"
            )
            self._keep_aside(self.settings.half_topic, offset, why, record=record)
            return
        txn.seen += 1
        txn.last_offset = offset
        if more.offsets is not None:
            more.offsets.append(offset)
        if header.topic not in txn.topics:
            more.topics = (*txn.topics, header.topic)
        content = Content(
            header.index, header.topic, offset, header.options, str(header.born_ms), record
        )
        if txn.is_in_doubt:
            self.batch.joins.append((txn, content))
            self._keep(txn)
        elif txn.content is not None:  # else it was dropped, and comes back whole when it is needed
            txn.content.append(content)
            self.content_bytes += len(record)

    # --- op -----------------------------------------------------------------------------------------------------------

    def add_ops(self, offset: int, appended_ms: int, value: bytes | None, record: Any) -> None:  # noqa: ANN401
        """One op record; its lines are applied by `advance`, in their turn."""
        lines = codec.split_ops(value)
        if isinstance(lines, Undecodable):
            self._keep_aside(self.settings.op_topic, offset, lines, record=record)
            lines = []
        self._ops.append((offset, appended_ms, lines))
        self.ahead_line_count += len(lines)

    def advance(
        self, *, line_count_max: int, byte_count_max: int
    ) -> Batch:  # hot path, kept in one piece
        """Apply op lines until one names a half record that is not read yet, or a limit is reached.

        The batch holds everything that follows, also from what was folded before; it stays the ledger's until
        `published` or the ledger's end.
        """
        batch, transactions, targets, refusals = (
            self.batch,
            self.transactions,
            self.targets,
            self.refusals,
        )
        forwards, recent, ops = batch.forwards, self._recent, self._ops
        half_next = NEVER if self.is_replaying else self.half_next
        start = self.op_next[1] if ops and ops[0][0] == self.op_next[0] else 0
        line_count = batch.line_count
        quick_bytes = 0
        self.waits_for_half = None
        while ops:
            op_offset, appended_ms, lines = ops[0]
            for number in range(start, len(lines)):
                if line_count >= line_count_max or quick_bytes + batch.byte_count >= byte_count_max:
                    return self._pause((op_offset, number), line_count, quick_bytes)
                line = lines[number]
                try:
                    version, letter, key, _, last, _, source, _, _ = line.split("|")
                    last_offset = int(last)
                except ValueError:
                    letter, last_offset = "", -1
                if last_offset >= half_next:
                    self.waits_for_half = last_offset
                    return self._pause((op_offset, number), line_count, quick_bytes)
                line_count += 1
                if (
                    letter == _COMMIT
                    and (txn := transactions.get(key)) is not None
                    and txn.more is None
                    and txn.last_offset == last_offset
                    and txn.state is _OPEN
                    and version == codec.VERSION
                    and source in _SOURCES
                    and (size := len(txn.content or b""))
                    <= targets.get(txn.topic, UNKNOWN_TARGET).quick_bytes_max
                    and key not in refusals
                ):
                    # OPEN + COMMIT → WAITING + GO → COMMITTED, as the table has it; a test holds this to the table.
                    del transactions[key]
                    txn.state = recent[key] = _COMMITTED
                    quick_bytes += size
                    forwards.append(txn)
                else:
                    self._apply(line, (op_offset, number))
            ops.popleft()
            start = 0
            self.newest_ms = max(self.newest_ms, appended_ms)
            self.ahead_line_count -= len(lines)
            self.op_next = (op_offset + 1, 0)
        return self._pause(self.op_next, line_count, quick_bytes)

    def _pause(self, position: OpPosition, line_count: int, quick_bytes: int) -> Batch:
        self.op_next = position
        self.content_bytes -= quick_bytes
        self.batch.line_count = line_count
        self.batch.byte_count += quick_bytes
        if len(self._recent) > RECENT_COUNT_MAX:
            self._recent_before, self._recent = self._recent, {}
        return self.batch

    def _apply(self, line: str, position: OpPosition) -> None:
        op = codec.decode_op(line)
        if isinstance(op, Undecodable):
            self._keep_aside(self.settings.op_topic, position[0], op, line=line, number=position[1])
            return
        kind = _kind_of(op)
        txn = self.transactions.get(op.key)
        if txn is None:
            state = self._recent.get(op.key) or self._recent_before.get(op.key)
            if state is None:
                self._report(ReportKind.UNMATCHED, op.key, f"{kind.value} by {op.source.value}")
            else:
                self._carry_out_repeat(op, transition(state, kind, txn_id=op.key)[1])
        elif self.is_replaying and txn.is_in_doubt:
            return  # applied before: doubt holds what came of it
        elif not txn.has_half_at(op.last_offset):
            self._report(
                ReportKind.WRONG_OFFSET, op.key, f"{kind.value} names half offset {op.last_offset}"
            )
        else:
            before = txn.state
            txn.state, effect = transition(before, kind, txn_id=txn.key)
            if effect is Effect.TRY:
                self._decided(txn, before, position)
                self._try(txn, is_complete=txn.is_complete_at(op.last_offset))
            elif effect is Effect.FORGET:
                self._settle(txn)
            elif effect is Effect.COUNT:
                txn.extra().answered_count += 1
                if txn.is_in_doubt:
                    self._keep(txn)
            else:
                self._carry_out_repeat(op, effect)
        self._try_those_behind()

    def _carry_out_repeat(self, op: OpMessage, effect: Effect) -> None:
        kind = ReportKind.CONFLICT if effect is Effect.CONFLICT else ReportKind.REPEAT
        self._report(
            kind, op.key, f"{op.resolution.name} by {op.source.value} {op.reason}".rstrip()
        )

    # --- what follows -------------------------------------------------------------------------------------------------

    def _decided(self, txn: Transaction, before: TxnState, position: OpPosition) -> None:
        more = txn.extra()
        if before is not TxnState.HELD:  # a held one keeps its place among the decisions
            more.decided_at = position
        if before in (TxnState.PARKED, TxnState.PARKED_COMMITTED):
            self.order.put_back(txn)

    def _try(self, txn: Transaction, *, is_complete: bool = True) -> None:
        """Find out what a decided transaction may do now, and let it."""
        self.shelf.held.pop(txn.key, None)
        kind, reason = self._fate(txn, is_complete=is_complete)
        txn.state, effect = transition(txn.state, kind, txn_id=txn.key)
        if effect is Effect.FORWARD:
            self.batch.forwards.append(txn)
            self.batch.byte_count += _size_of(txn)
            self._settle(txn)
            return
        if txn.state is TxnState.WAITING:
            self.order.stuck(txn)
            if txn.is_in_doubt or self.order.waits_for_doubt(txn, self.batch.keeps):
                self._keep(txn)
            return
        txn.extra().reason = reason
        if txn.state is TxnState.HELD:
            self.order.stuck(txn)
            self.shelf.held[txn.key] = txn
            self._report(ReportKind.HELD, txn.key, reason.value if reason else "")
        else:
            self._leave_order(txn)
            self._report(ReportKind.PARKED, txn.key, reason.value if reason else "")
        self._keep(txn)

    def _fate(self, txn: Transaction, *, is_complete: bool) -> tuple[Kind, ParkReason | None]:
        if not is_complete:
            return Kind.INCOMPLETE, ParkReason.INCOMPLETE
        if not self.order.is_free(txn):
            return Kind.BLOCKED, None
        if self.is_replaying:  # whatever refused then is on doubt, or was settled since
            return Kind.GO, None
        if txn.key in self.refusals:
            return Kind.RECORD_REFUSED, self.refusals[txn.key]
        if txn.count > self.settings.transaction_messages_max:
            return Kind.RECORD_REFUSED, ParkReason.LIMIT
        held: ParkReason | None = None
        for topic in txn.topics:
            target = self.targets.get(topic, UNKNOWN_TARGET)
            if target.refusal is not None and target.is_for_good:
                return Kind.RECORD_REFUSED, target.refusal
            held = held or target.refusal
        if held is not None:
            return Kind.TARGET_REFUSES, held
        if self._is_too_large(txn):
            return Kind.RECORD_REFUSED, ParkReason.TOO_LARGE
        return Kind.GO, None

    def _is_too_large(self, txn: Transaction) -> bool:
        # Content that was dropped is measured by the broker, and a refusal found by bisection.
        return any(
            record_size(record) + FORWARD_OVERHEAD_BYTES
            > self.targets.get(topic, UNKNOWN_TARGET).message_bytes_max
            for topic, record in _records_of(txn)
        )

    def _settle(self, txn: Transaction) -> None:
        del self.transactions[txn.key]
        self._recent[txn.key] = txn.state
        if txn.content is not None:
            self.content_bytes -= _size_of(txn)
        kept = self.batch.keeps.pop(txn.key, None)
        if kept is not None or txn.is_in_doubt:
            self.batch.joins = [j for j in self.batch.joins if j[0] is not txn]
        if txn.is_in_doubt:
            self.shelf.settled(txn)
            self.batch.ends.append(txn)
        self._leave_order(txn)

    def _leave_order(self, txn: Transaction) -> None:
        if txn.key_hash is not None:
            self.order.remove(txn)
            self._keys_to_try.append(txn.key_hash)

    def _try_those_behind(self) -> None:
        while self._keys_to_try:
            for txn in self.order.waiting(self._keys_to_try.popleft()):
                if txn.state is TxnState.WAITING and self.order.is_free(txn):
                    self._try(txn)

    def _keep(self, txn: Transaction) -> None:
        """It goes to the doubt topic, or its summary there is written again; who waits for it goes along."""
        is_new = not txn.is_in_doubt and txn.key not in self.batch.keeps
        self.batch.keeps[txn.key] = Keep(txn, is_whole=not txn.is_in_doubt)
        if is_new and not self.is_replaying:
            txn.extra().moved_ms = self.newest_ms
            for other in self.order.waiting(txn.key_hash):
                if not other.is_in_doubt and other.key not in self.batch.keeps:
                    self._keep(other)

    def _keep_aside(
        self,
        topic: str,
        offset: int,
        why: Undecodable,
        *,
        record: Any = None,
        line: str | None = None,
        number: int = 0,  # noqa: ANN401
    ) -> None:
        self.batch.asides.append(
            KeptAside(Origin(topic, self.partition, offset), record, line, number, why)
        )
        self._report(ReportKind.KEPT_ASIDE, "", f"{topic}-{self.partition}@{offset}: {why.why}")

    def _report(self, kind: ReportKind, key: str, detail: str) -> None:
        if not self.is_replaying:
            self.batch.reports.append(Report(kind, key, detail))

    # --- time ---------------------------------------------------------------------------------------------------------

    def due(self, *, now_ms: int, move_count_max: int) -> None:
        """What follows from the time alone, into the batch: moves to doubt, the end of holding, writing again.

        Call it only when half and op have been read to the ends taken at assignment.
        """
        born_before_ms = now_ms - self.settings.doubt_after_ms
        moved = 0
        for txn in self._young_ones():
            if txn.appended_ms > born_before_ms or moved >= move_count_max:
                break
            if txn.key not in self.batch.keeps:
                txn.state, _ = transition(txn.state, Kind.MOVE, txn_id=txn.key)
                self._keep(txn)
                self._report(ReportKind.MOVED, txn.key, "")
                moved += 1
        for txn in self.shelf.held_too_long(
            now_ms=now_ms, age_max_ms=self.settings.held_age_max_ms
        ):
            txn.state, _ = transition(txn.state, Kind.EXPIRED, txn_id=txn.key)
            txn.extra().reason = ParkReason.HELD_TOO_LONG
            self.shelf.held.pop(txn.key)
            self._leave_order(txn)
            self._keep(txn)
            self._report(ReportKind.PARKED, txn.key, ParkReason.HELD_TOO_LONG.value)
        for txn in self.shelf.to_write_again(move_count_max - moved):
            self.batch.keeps[txn.key] = Keep(txn, is_whole=True)
        self._try_those_behind()

    def mended(self, topics: Iterable[str]) -> None:
        """`topics` may accept again: what is held for them is tried, in the order of the decisions."""
        for txn in self.shelf.held_for(topics):
            txn.state, _ = transition(txn.state, Kind.MENDED, txn_id=txn.key)
            self._try(txn)
        self._try_those_behind()

    def give_up_waiting_for_half(self) -> None:
        """The next op line names a place beyond half's end and nothing came there: it is misplaced."""
        offset, _, lines = self._ops[0]
        number = self.op_next[1] if offset == self.op_next[0] else 0
        op = codec.decode_op(lines[number])
        key = "" if isinstance(op, Undecodable) else op.key
        why = Undecodable("names a half record that does not exist", ParkReason.MISPLACED)
        self._keep_aside(self.settings.op_topic, offset, why, line=lines[number], number=number)
        if (
            not isinstance(op, Undecodable)
            and key not in self.transactions
            and key not in self._recent
        ):
            txn = Transaction(
                op.key, op.producer_group, "", -1, self.newest_ms, str(op.born_ms), self.op_next, []
            )
            txn.count = txn.seen = 0
            txn.state = TxnState.PARKED
            txn.extra().reason = ParkReason.MISPLACED
            self.transactions[op.key] = txn
            self._keep(txn)
        self.op_next = (offset, number + 1)
        self.waits_for_half = None

    # --- positions, memory, restart -----------------------------------------------------------------------------------

    def positions(self) -> Positions:
        """Where a successor begins, once the batch is appended."""
        oldest = next((t for t in self._young_ones() if t.key not in self.batch.keeps), None)
        low_water, replay = (
            (self.half_next, self.op_next)
            if oldest is None
            else (oldest.first_offset, oldest.replay_from)
        )
        return Positions(low_water, self.half_next, *self.op_next, *replay, self.shelf.low)

    def published(self, doubt_offsets: Mapping[str, int]) -> None:
        """The batch is in the log; `doubt_offsets` says where each whole transaction's doubt records begin."""
        for key, doubt_offset in doubt_offsets.items():
            keep = self.batch.keeps.get(key)
            if keep is not None and keep.is_whole:
                if keep.txn.content is not None:
                    self.content_bytes -= _size_of(keep.txn)
                    keep.txn.content = None
                keep.txn.born = ""
                self.shelf.put(keep.txn, doubt_offset)
        self.batch = Batch()

    def drop_content(self, byte_count: int) -> None:
        """Drop the oldest content until `byte_count` bytes are free; it is fetched again when it is needed."""
        wanted = self.content_bytes - byte_count
        for txn in self._young_ones():
            if self.content_bytes <= wanted:
                return
            if txn.content is not None and txn.key not in self.batch.keeps:
                self.content_bytes -= _size_of(txn)
                txn.content = None

    def start_replay(
        self, positions: Positions, kept: Iterable[Transaction], *, doubt_next: int
    ) -> None:
        """Begin again at stored positions, with what the doubt topic holds; then fold half, op, and `end_replay`."""
        self.is_replaying = True
        self.half_next = positions.low_water
        self.op_next = (positions.replay_offset, positions.replay_line)
        self.shelf.next_offset = doubt_next
        for txn in kept:
            self.transactions[txn.key] = txn
            self.shelf.put_restored(txn)

    def end_replay(self, positions: Positions) -> None:
        """Half was folded to `half_next` and op to the stored position: go on live, nothing follows from the replay."""
        self._ops.clear()
        self.ahead_line_count = 0
        self.half_next = positions.half_next
        self.op_next = (positions.op_offset, positions.op_line)
        self.batch = Batch()
        self._keys_to_try.clear()
        self.order = ForwardOrder(self.transactions.values())
        self.is_replaying = False

    def _young_ones(self) -> Iterator[Transaction]:
        """The unsettled ones in half, oldest first."""
        young = self._young
        while young and (young[0].state in SETTLED or young[0].is_in_doubt):
            young.popleft()
        if len(young) > 2 * len(self.transactions) + 1024:
            # One old open transaction must not keep all that settled behind it in memory.
            self._young = young = deque(
                t for t in young if t.state not in SETTLED and not t.is_in_doubt
            )
        return (t for t in young if t.state not in SETTLED and not t.is_in_doubt)


def record_size(record: Any) -> int:  # noqa: ANN401 - opaque to the core but for these three
    """Bytes of a record's key, value and headers."""
    headers = sum(len(name) + len(value or b"") + 2 for name, value in record.headers() or ())
    return len(record) + len(record.key() or b"") + headers


def _kind_of(op: OpMessage) -> Kind:
    if op.is_abandon:
        return Kind.ABANDON
    return {
        Resolution.COMMIT: Kind.COMMIT,
        Resolution.ROLLBACK: Kind.ROLLBACK,
        Resolution.UNKNOWN: Kind.UNKNOWN,
    }[op.resolution]


def _records_of(txn: Transaction) -> Iterator[tuple[str, Any]]:
    if isinstance(txn.content, list):
        return ((c.topic, c.record) for c in txn.content)
    return iter(()) if txn.content is None else iter(((txn.topic, txn.content),))


def _size_of(txn: Transaction) -> int:
    return sum(len(record) for _, record in _records_of(txn))
