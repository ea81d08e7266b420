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
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, takewhile
from typing import Any

from txlayer.core import codec
from txlayer.core.asking import ANSWERING, Asking
from txlayer.core.batch import Batch, Keep, Positions, ReportKind
from txlayer.core.doubt_fold import DoubtFold
from txlayer.core.fields import VERSION
from txlayer.core.forward_order import ForwardOrder
from txlayer.core.messages import NO_OPTIONS, OpMessage, ParkReason, Resolution, Source, Undecodable
from txlayer.core.target import UNKNOWN_TARGET
from txlayer.core.transaction import Content, OpPosition, Transaction, held_bytes
from txlayer.core.transitions import SETTLED, Effect, Kind, TxnState, transition

RECENT_COUNT_MAX = 50_000
"""Settled transactions remembered per partition, twice: to tell a contrary op line from one that never had a half."""

SETTLED_IN_HALF_MAX = 1024
"""Settled transactions that stay in memory behind an open one, beside as many as there are open ones."""

NEVER = 1 << 62
"""Beyond every offset."""

_OPEN, _COMMITTED = TxnState.OPEN, TxnState.COMMITTED
_PLAIN, _PRODUCER = f"{VERSION}|{Resolution.COMMIT.value}|", Source.PRODUCER.value
KEY_PLACE = len(_PLAIN)
"""Where the transaction's key stands in an op line."""

_KINDS = {
    Resolution.COMMIT: Kind.COMMIT,
    Resolution.ROLLBACK: Kind.ROLLBACK,
    Resolution.UNKNOWN: Kind.UNKNOWN,
}


class Ledger(Asking):
    """The transactions of one partition. One thread owns it; nothing in it blocks."""

    # --- op -----------------------------------------------------------------------------------------------------------

    def add_ops(self, offset: int, appended_ms: int, value: bytes | None, record: Any) -> None:
        """One op record; its lines are applied by `advance`, in their turn."""
        lines = codec.split_ops(value)
        if isinstance(lines, Undecodable):
            self._unreadable_ops[offset] = (lines, record)
            lines = []
        if appended_ms > self.newest_ms:
            self._saw(appended_ms)
        self._ops.append((offset, appended_ms, lines))
        self.ahead_line_count += len(lines)

    def advance(
        self, *, line_count_max: int, byte_count_max: int
    ) -> Batch:  # hot path, kept in one piece
        """Apply op lines until one names a half record that is not read yet, or a limit is reached.

        The batch holds everything that follows, also from what was folded before; it stays the ledger's until
        `published` or the ledger's end.
        """
        batch, refusals = self.batch, self.refusals
        self.transactions.keep_fresh_small()
        fresh, rest = self.transactions.fresh, self.transactions.rest
        if batch.is_empty:
            batch.line_count = (
                0  # lines from which nothing followed are no part of what may be refused
            )
            batch.byte_count = 0
            batch.marks.clear()
        self._fold_those_behind()
        self._go_on()
        if self._leave_before and not self.is_replaying:
            # Else a restart could take a second copy of one that is settled here for new. A replay applies what was applied.
            return self._pause(self.op_next, batch.line_count, 0, 0)
        forwards, recent, ops = batch.forwards, self._recent, self._ops
        passes = self.order.passes
        half_next = NEVER if self.is_replaying else self.half_next
        start = self.op_next[1] if ops and ops[0][0] == self.op_next[0] else 0
        line_count = batch.line_count
        quick_bytes, quick_bytes_left = 0, byte_count_max - batch.byte_count
        dropped_bytes = 0  # of the quick ones, not in memory
        topic, topic_bytes_max = "", -1
        self.waits_for_half = None
        marked_ms = -1
        while ops:
            op_offset, appended_ms, lines = ops[0]
            if appended_ms != marked_ms:
                marked_ms = appended_ms
                batch.marks.append((len(forwards), appended_ms))
            passed_over = self._lines_aside.get(op_offset, b"")  # in a replay: kept aside then
            for number in range(start, len(lines)):
                if passed_over and number < len(passed_over) and passed_over[number]:
                    continue
                if line_count >= line_count_max or quick_bytes >= quick_bytes_left:
                    return self._pause((op_offset, number), line_count, quick_bytes, dropped_bytes)
                line = lines[number]
                key = line[KEY_PLACE : line.find("|", KEY_PLACE)]
                table = fresh if key in fresh else rest
                if (
                    (txn := table.get(key)) is not None
                    and txn.more is None
                    and txn.state is _OPEN
                    and line
                    == f"{_PLAIN}{key}|{txn.group}|{txn.last_offset}|{txn.born}|{_PRODUCER}||"
                    and (not refusals or key not in refusals)
                ):
                    if txn.topic is not topic:
                        topic = txn.topic
                        topic_bytes_max = self.targets.get(topic, UNKNOWN_TARGET).quick_bytes_max
                    size = txn.size
                    if size <= topic_bytes_max and (txn.options is NO_OPTIONS or passes(txn)):
                        # OPEN + COMMIT → WAITING + GO → COMMITTED, as the table has it; a test holds this to the table.
                        del table[key]
                        txn.state = _COMMITTED
                        recent[key] = txn.first_offset
                        quick_bytes += size
                        if txn.content is None:
                            dropped_bytes += size
                        forwards.append(txn)
                        line_count += 1
                        continue
                op = codec.decode_op(line)
                if isinstance(op, OpMessage) and op.last_offset >= half_next:
                    if op_offset >= self._hopeless_before or self._behind:
                        self.waits_for_half = op.last_offset
                        return self._pause(
                            (op_offset, number), line_count, quick_bytes, dropped_bytes
                        )
                    self._give_up_line(op, line, (op_offset, number))
                else:
                    batch.byte_count += quick_bytes
                    self.content_bytes -= quick_bytes - dropped_bytes
                    quick_bytes = dropped_bytes = 0
                    self._apply(op, line, (op_offset, number))
                quick_bytes_left = byte_count_max - batch.byte_count
                line_count += 1
            ops.popleft()
            if not lines:
                self._keep_unreadable_aside(op_offset)
            start = 0
            self.ahead_line_count -= len(lines)
            self.op_next = (op_offset + 1, 0)
        return self._pause(self.op_next, line_count, quick_bytes, dropped_bytes)

    def _pause(
        self, position: OpPosition, line_count: int, quick_bytes: int, dropped_bytes: int
    ) -> Batch:
        self.op_next = position
        self.content_bytes -= quick_bytes - dropped_bytes
        self.batch.line_count = line_count
        self.batch.byte_count += quick_bytes
        self.half_marks.passed(self.half_next, self.half_bytes)
        if len(self._recent) > RECENT_COUNT_MAX:
            self._forget_what_is_far()
        return self.batch

    def _keep_unreadable_aside(self, offset: int) -> None:
        why, record = self._unreadable_ops.pop(offset)
        self._keep_aside(self.settings.op_topic, offset, why, record=record)

    def _apply(self, op: OpMessage | Undecodable, line: str, position: OpPosition) -> None:
        if isinstance(op, Undecodable):
            self._keep_line_aside(op, line, position)
            return
        if op.source in ANSWERING:
            answers = self.batch.answers
            answers[op.resolution] = answers.get(op.resolution, 0) + 1
        kind = Kind.ABANDON if op.is_abandon else _KINDS[op.resolution]
        txn = self.transactions.get(op.key)
        if txn is None and op.key in self.asleep.sleepers:
            if self.is_replaying:
                return  # applied before, as below; a restart wakes nobody for it
            txn = self._wake(op.key)
        if txn is None:
            state = self._recent_state(op.key)
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
        elif not txn.is_of_group(op.producer_group):
            detail = f"{kind.value} names producer group {op.producer_group}"
            self._report(ReportKind.WRONG_GROUP, op.key, detail)
        else:
            before = txn.state
            txn.state, effect = transition(before, kind, txn_id=txn.key)
            if effect is Effect.TRY:
                self._decided(txn, before, position)
                is_complete = before is TxnState.HELD or txn.is_complete_at(op.last_offset)
                self._try(txn, is_complete=is_complete)
            elif effect is Effect.FORGET:
                if not txn.seen:  # a restart must know of it when it reads this line and a half record that comes yet
                    self._hold_back_doubt(position, self.shelf.low)
                self._settle(txn)
                txn.content = None
                self.batch.rollback_count += 1
            elif effect is Effect.COUNT:
                self._answered_unknown(txn, op)
            else:
                self._carry_out_repeat(op, effect)
        self._try_those_behind()

    @property
    def has_more(self) -> bool:
        """True when something is left that need not wait: op lines, or what was too much for one batch."""
        return bool(
            (self._ops and self.waits_for_half is None)
            or self._mended
            or self._keys_to_go_on_with
            or self._leave_before
            or self._behind
        )

    def forget_batch(self) -> None:
        """Nothing follows from a replay."""
        self.batch = Batch()

    def filled(self, txn: Transaction, contents: list[Content]) -> None:
        """Content that was not in memory is there again, for as long as the batch lives."""
        txn.content = contents
        # One that doubt did not take whole may be fetched as it stands there: it is as large as ever when it is forwarded.
        txn.size = max(txn.size, sum(held_bytes(content.record) for content in contents))
        if txn.key in self.transactions:
            self.content_bytes += txn.size

    # --- time ---------------------------------------------------------------------------------------------------------

    def due(
        self, *, now_ms: int, move_count_max: int, present: Collection[str] = frozenset()
    ) -> None:
        """What follows from the time alone, into the batch: questions, moves to doubt, the end of asking and of holding.

        `present` names the producer groups that somebody answers for. `now_ms` is 0 while nobody who is believed told the
        time: then only what needs none follows. Call it only when half and op have been read to the ends taken at
        assignment.
        """
        self.now_ms = max(self.now_ms, now_ms)
        if now_ms:
            self._ask_those_due(now_ms=now_ms, present=present, count_max=move_count_max)
        born_before_ms = now_ms - self.settings.doubt_after_ms
        left = move_count_max - len(self.batch.keeps)
        for txn in self._young_ones() if now_ms else ():
            # Who was appended in the future must not hold back half, and all behind it, until that time has come.
            is_young = born_before_ms < txn.appended_ms <= now_ms
            if is_young or left <= 0 or not self._has_room:
                break
            if txn.key not in self.batch.keeps:
                txn.state, _ = transition(txn.state, Kind.MOVE, txn_id=txn.key)
                self._keep(txn)
                self._report(ReportKind.MOVED, txn.key, "")
                left -= 1
        # What accepts is asked here once more: who heard of it when a topic was mended may be gone.
        if not self._mended:  # else they stand there already: each may be there once
            self._mended.extend(self.shelf.held_in_vain(self.targets))
        self._go_on()
        held_max_ms = self.settings.held_age_max_ms
        for txn in self.shelf.held_too_long(now_ms=now_ms, age_max_ms=held_max_ms)[: max(left, 0)]:
            txn.state, _ = transition(txn.state, Kind.EXPIRED, txn_id=txn.key)
            txn.extra().reason = ParkReason.HELD_TOO_LONG
            self.shelf.held.pop(txn.key)
            self._leave_order(txn)
            self._keep(txn)
            self._report(ReportKind.PARKED, txn.key, ParkReason.HELD_TOO_LONG.value)
            left -= 1
        for key in self.shelf.to_write_again(max(left, 0)):
            oldest = self.find(key)
            assert oldest is not None  # it stands on doubt
            if not self._has_room:
                break
            self.batch.keeps[key] = Keep(oldest, is_whole=True)
            self.batch.byte_count += oldest.size
        self._try_those_behind()

    def mended(self, topics: Iterable[str]) -> None:
        """`topics` may accept again: what is held for them is tried, in the order of the decisions."""
        self._mended.extend(self.shelf.held_for(topics))
        self._go_on()

    @property
    def ops_read_to(self) -> int:
        """Behind the last op record that is at hand."""
        return self._ops[-1][0] + 1 if self._ops else self.op_next[0]

    def give_up_waiting_for_half(self, *, before: int) -> None:
        """Lines of op records before this offset that name a place beyond half's end are misplaced: they waited for it."""
        self._hopeless_before = before
        self.waits_for_half = None

    def _give_up_line(self, op: OpMessage, line: str, position: OpPosition) -> None:
        why = Undecodable("names a half record that does not exist", ParkReason.MISPLACED)
        self._keep_line_aside(why, line, position)
        if self.find(op.key) is None and not self._is_known(op.key):
            txn = Transaction(
                op.key, op.producer_group, "", -1, self.newest_ms, str(op.born_ms), position, []
            )
            txn.count = txn.seen = 0
            txn.state = TxnState.PARKED
            txn.extra().reason = ParkReason.MISPLACED
            self.transactions[op.key] = txn
            self._keep(txn)

    def _keep_line_aside(self, why: Undecodable, line: str, position: OpPosition) -> None:
        """It does not act: not now, and, because doubt says so, not in a replay that could read it in another way."""
        offset, number = position
        self._keep_aside(self.settings.op_topic, offset, why, line=line, number=number)
        if not self.is_replaying:
            self._hold_back_doubt(position, self.shelf.low)

    def _hold_back_doubt(self, position: OpPosition, doubt_low: int) -> None:
        held = self._doubt_held_back
        if held and held[-1][1] == doubt_low:
            held.pop()
        held.append((position, doubt_low))

    # --- positions, memory, restart -----------------------------------------------------------------------------------

    def positions(self) -> Positions:
        """Where a successor begins, once the batch is appended."""
        oldest = next((t for t in self._young_ones() if t.key not in self.batch.keeps), None)
        low_water, replay = (
            (self.half_next, self.op_next)
            if oldest is None
            else (oldest.first_offset, oldest.replay_from)
        )
        for twin_offset, first_offset, replay_from in reversed(self._twins):
            # A replay that meets the second copy of a half record must meet the first one too, or take it for new.
            if twin_offset < low_water:
                break
            if first_offset < low_water:
                low_water, replay = first_offset, replay_from
        while self._twins and self._twins[0][0] < low_water:
            self._twins.popleft()
        held_back = self._doubt_held_back
        while held_back and held_back[0][0] < replay:
            held_back.popleft()
        doubt_low = min(self.shelf.low, held_back[0][1]) if held_back else self.shelf.low
        return Positions(
            low_water, self.half_next, *self.op_next, *replay, doubt_low,
            self.half_marks.copies_from(low_water),
        )  # fmt: skip

    def published(self, doubt_offsets: Mapping[str, int]) -> None:
        """The batch is in the log; `doubt_offsets` says where each whole transaction's doubt records begin."""
        self.shelf.wrote(self.batch.doubt_record_count)
        for key, doubt_offset in doubt_offsets.items():
            txn = self.batch.keeps[key].txn
            self.content_bytes -= txn.size
            txn.forget_content()
            self.shelf.put(txn, doubt_offset)
        for txn in self.batch.forwards:
            txn.content = None  # whoever still knows the transaction needs not hold its content
        self.batch = Batch()

    def drop_content(self, byte_count: int) -> None:
        """Drop the oldest content until `byte_count` bytes are free; it is fetched again when it is needed."""
        wanted = self.content_bytes - byte_count
        # From the newest back: a look at all that were bare before would cost more with every drop.
        newest_first = chain(reversed(self._young), reversed(self._old))
        left = list(takewhile(self._may_hold_content, newest_first))
        while left and self.content_bytes > wanted:
            txn = left.pop()
            self._bare_until = txn.first_offset
            if txn.content is None or _is_elsewhere(txn) or txn.key in self.batch.keeps:
                continue
            self.content_bytes -= txn.size
            txn.content = None

    def _may_hold_content(self, txn: Transaction) -> bool:
        return txn.first_offset > self._bare_until

    def start_replay(
        self, positions: Positions, kept: DoubtFold, *, doubt_next: int, time_ms: int = 0
    ) -> None:
        """Begin again at stored positions, with what the doubt topic holds; then fold half, op, and `end_replay`.

        What sleeps in `kept` becomes the ledger's own. `time_ms`: what time it was here when the positions were stored; it
        goes on from there, or nobody would grow old in a partition to which nothing comes.
        """
        self.is_replaying = True
        self.half_next = self._replay_low = positions.low_water
        # Keys that are recalled from half are dropped by distance like any others.
        self._replay_end = self._recent_before_end = positions.half_next
        self.half_marks.begin(min(positions.copies_from, positions.low_water))
        self.op_next = (positions.replay_offset, positions.replay_line)
        self.shelf.next_offset = doubt_next
        self.shelf.kept_readable_from = min(kept.unreadable.values(), default=None)
        self._lines_aside = kept.lines_aside
        if kept.lines_aside:
            newest = max(kept.lines_aside)
            self._hold_back_doubt((newest, len(kept.lines_aside[newest])), positions.doubt_low)
        self._recent_before.update(dict.fromkeys(kept.rolled_back))
        for txn in kept.in_offset_order():
            self.transactions[txn.key] = txn
            self._further_count += max(txn.seen - 1, 0)
            self.shelf.put_restored(txn)
            # Who stands there on an op line's word alone names none: nobody can be asked about "".
            self.unknown_topics.update(t for t in txn.topics if t and t not in self.targets)
            if txn.extra().moved_ms > self.newest_ms:
                self._saw(txn.extra().moved_ms)
        self.schedule.restore(self.transactions.values())
        self.asleep.fill(kept.sleepers, self.settings.checks)
        self.shelf.put_asleep(self.asleep.sleepers, woken=self.transactions)
        self.unknown_topics.update(self.asleep.topics - self.targets.keys())
        for told_ms in (self.asleep.newest_ms, time_ms):
            if told_ms > self.newest_ms:
                self._saw(told_ms)

    def end_replay(self, positions: Positions) -> None:
        """Half was folded to `half_next` and op to the stored position: go on live, nothing follows from the replay."""
        self._ops.clear()
        self._lines_aside = {}
        self.ahead_line_count = 0
        self.half_next = positions.half_next
        self.op_next = (positions.op_offset, positions.op_line)
        self.batch = Batch()
        self._forget_what_doubt_does_not_hold()
        self.order = ForwardOrder(self.transactions.values())
        self._keys_to_try.clear()
        # Of those that a batch did not take any more the first may be free.
        self._keys_to_go_on_with = dict.fromkeys(
            txn.key_hash
            for txn in self.transactions.values()
            if txn.state is TxnState.WAITING and txn.is_in_doubt and txn.key_hash is not None
        )
        self.is_replaying = False

    def _forget_what_doubt_does_not_hold(self) -> None:
        # A line that was refused because doubt remembers less than half may have acted in the replay. What could not be
        # forwarded then stands on doubt, or was settled since.
        parked = [t for t in self.transactions.values() if t.state is TxnState.PARKED_COMMITTED]
        for txn in parked:
            if not txn.is_in_doubt:
                del self.transactions[txn.key]
                self._further_count -= max(txn.seen - 1, 0)
                self.content_bytes -= 0 if txn.content is None else txn.size
                txn.state = TxnState.COMMITTED  # or rolled back: the doubt topic knew it
                self._recent[txn.key] = None  # its second copies must not be taken for new

    def _young_ones(self) -> Iterator[Transaction]:
        """The unsettled ones in half, oldest first."""
        old, young = self._old, self._young
        while old and _is_elsewhere(old[0]):
            old.popleft()
        while young and _is_elsewhere(young[0]):
            if (txn := young.popleft()).state not in SETTLED:  # nearly all are: no call for them
                self._give_a_place(txn)
        in_half_count = self.open_count - self.shelf.count
        if len(old) + len(young) > 2 * in_half_count + SETTLED_IN_HALF_MAX:
            # One old open transaction must not keep all that settled behind it in memory.
            self._old = old = deque(t for t in old if not _is_elsewhere(t))
            for txn in filter(_is_elsewhere, young):
                self._give_a_place(txn)
            self._young = young = deque(t for t in young if not _is_elsewhere(t))
        return (t for t in chain(old, young) if not _is_elsewhere(t))


def _is_elsewhere(txn: Transaction) -> bool:
    """True when half need not be read again for it."""
    return txn.state in SETTLED or txn.is_in_doubt
