"""One partition: a fold over its half and op records, and what follows from them.

Decide → append → apply: `fold_half` and `add_ops` take what was read, `advance` applies op lines strictly in order and
collects a `Batch`; the service appends that batch and the positions in one Kafka transaction and calls `published`. When
the append fails the ledger is thrown away and built again from the stored positions: there is no undo.

Everything in a batch is a function of the positions (`half_next`, `op_next`) and of what the doubt topic holds. Two rules
keep it so: an op line sees its transaction as of the half offset that it names, and a transaction that waits for one on
the doubt topic stands on the doubt topic itself, in the same Kafka transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from txlayer.core import codec
from txlayer.core.batch import Batch, Keep, Positions, ReportKind
from txlayer.core.forward_order import ForwardOrder
from txlayer.core.half_fold import HalfFold
from txlayer.core.messages import OpMessage, ParkReason, Resolution, Source, Undecodable
from txlayer.core.target import UNKNOWN_TARGET
from txlayer.core.transaction import Content, OpPosition, Transaction, size_of
from txlayer.core.transitions import SETTLED, Effect, Kind, TxnState, transition

RECENT_COUNT_MAX = 50_000
"""Settled transactions remembered per partition, twice: to tell a contrary op line from one that never had a half."""

NEVER = 1 << 62
"""Beyond every offset."""

_COMMIT, _OPEN, _COMMITTED = Resolution.COMMIT.value, TxnState.OPEN, TxnState.COMMITTED
_SOURCES = frozenset(s.value for s in Source)
_KINDS = {
    Resolution.COMMIT: Kind.COMMIT,
    Resolution.ROLLBACK: Kind.ROLLBACK,
    Resolution.UNKNOWN: Kind.UNKNOWN,
}


class Ledger(HalfFold):
    """The transactions of one partition. One thread owns it; nothing in it blocks."""

    # --- op -----------------------------------------------------------------------------------------------------------

    def add_ops(self, offset: int, appended_ms: int, value: bytes | None, record: Any) -> None:
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
        kind = Kind.ABANDON if op.is_abandon else _KINDS[op.resolution]
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

    @property
    def has_more(self) -> bool:
        """True when op lines were read that could be applied now."""
        return bool(self._ops) and self.waits_for_half is None

    def forget_batch(self) -> None:
        """Nothing follows from a replay."""
        self.batch = Batch()

    def filled(self, txn: Transaction, contents: list[Content]) -> None:
        """Content that was not in memory is there again, for as long as the batch lives."""
        txn.content = contents
        if txn.key in self.transactions:
            self.content_bytes += size_of(txn)

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
                    self.content_bytes -= size_of(keep.txn)
                    keep.txn.content = None
                keep.txn.born = ""
                keep.txn.extra().joined = None
                self.shelf.put(keep.txn, doubt_offset)
        self.batch = Batch()

    def drop_content(self, byte_count: int) -> None:
        """Drop the oldest content until `byte_count` bytes are free; it is fetched again when it is needed."""
        wanted = self.content_bytes - byte_count
        for txn in self._young_ones():
            if self.content_bytes <= wanted:
                return
            if txn.content is not None and txn.key not in self.batch.keeps:
                self.content_bytes -= size_of(txn)
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
