"""What a live view folds: doubt into rows, half and op into a ledger of the transactions that are not on doubt.

The ledger is the coordinator's own, but it decides nothing by time or by the state of topics, and writes nothing. What coordinators
decide so, they write to doubt, and then the transaction leaves this ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from txlayer.core import codec
from txlayer.core.ledger.batch import NO_LIMIT, Batch, Positions
from txlayer.core.ledger.doubt import DoubtFold
from txlayer.core.ledger.ledger import LedgerSettings
from txlayer.core.ledger.misplaced_records import NAMES_NO_HALF
from txlayer.core.ledger.transaction import OpPosition, Transaction
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, Effect, TxnEvent, TxnState, transition
from txlayer.core.messages import Headers, OpMessage, Resolution, Source
from txlayer.operate.overview import ContentlessLedger, query_id_on_doubt
from txlayer.operate.rows import ROLLED_BACK, UnsettledRows
from txlayer.operate.tallies import Quarantine

_QUARANTINED_MAX = 10_000
"""Op lines of a partition that this ledger has kept aside itself, and remembers."""


class RowsFold(DoubtFold):
    """Folds doubt into rows. Of what a ledger must know for its replay it keeps the rest."""

    def __init__(
        self,
        quarantine: Quarantine,
        ledger: YoungLedger,
        *,
        op_offset: int,
        half_next: int,
        doubt_next: int,
        now_ms: int,
    ) -> None:
        super().__init__(op_offset=op_offset)
        self._doubt_from = self._doubt_last = doubt_next
        self._quarantine = quarantine
        self._ledger = ledger
        self._half_next = half_next
        self._now_ms = now_ms

    @property
    def read_count(self) -> int:
        """Offsets of doubt that are read."""
        return self._doubt_last - self._doubt_from

    def fold(
        self,
        offset: int,
        raw_key: bytes | None,
        value: bytes | None,
        headers: Callable[[], Headers | None] = lambda: None,
    ) -> None:
        self._doubt_last = offset
        if value is not None and raw_key is not None and raw_key.endswith(b"/0") and not raw_key.startswith(b"origin/"):
            self._ledger.rows.note_query_id(query_id_on_doubt(raw_key, headers), self._ledger.partition)
            return  # content: half of all records
        parsed = codec.parse_doubt_key(raw_key)
        if parsed is None:
            self._quarantine.note(raw_key, is_there=value is not None)
            self._fold_quarantined(raw_key)
        elif parsed[1] is not None:
            if value is None:
                self._with_content = parsed[0]
        else:
            self._ledger.take_doubt(parsed[0], value, half_next=self._half_next, at_ms=self._now_ms)
            if value is None and parsed[0] != self._with_content:
                self.rolled_back.add(parsed[0])


_AHEAD_MAX = 50_000
_RECENT_MAX = 3_000
"""Settled transactions of a partition that are remembered, twice. A second copy that comes later is noticed with the next picture."""


class YoungLedger(ContentlessLedger):
    """What half and op say of the transactions that are not on doubt."""

    def __init__(self, partition: int, settings: LedgerSettings, rows: UnsettledRows) -> None:
        super().__init__(partition, settings)
        self.rows = rows
        self._own_quarantined: deque[OpPosition] = deque(maxlen=_QUARANTINED_MAX)
        self.committed: list[int] = []
        """Append times of the transactions that the last op record committed."""
        self.decided: dict[str, str] = {}
        """What the last op record made of transactions that are not on doubt, by key."""
        self._ahead: dict[str, None] = {}  # those on doubt whose half records are not read yet
        self._went: set[str] = set()

    def end_replay(self, positions: Positions) -> None:
        given_up = self._quarantined_lines
        super().end_replay(positions)
        # Doubt was read later than the positions: it may say more of them.
        self._quarantined_lines = {at: of for at, of in given_up.items() if at >= positions.op_offset}
        self._forget_step()

    def _forget_step(self) -> None:
        self.committed.clear()
        self.decided.clear()
        self._went.clear()

    def take_doubt(self, key: str, value: bytes | None, *, half_next: int, at_ms: int) -> None:
        """Doubt has this transaction now, or has ended it; half is read to `half_next`."""
        if key in self.transactions:
            self.leave(key)
        if value is None:
            self.rows.end_on_doubt(key, self.partition)
            return
        first_offset = self.rows.put_on_doubt(key, value, partition=self.partition, at_ms=at_ms)
        if first_offset >= half_next:
            self._ahead[key] = None
            if len(self._ahead) > _AHEAD_MAX:
                del self._ahead[next(iter(self._ahead))]

    def fold_half(self, offset: int, appended_ms: int, header: bytes | None, record: Any) -> None:
        super().fold_half(offset, appended_ms, header, record)
        if self._ahead and header is not None:
            key = header[2 : header.find(b"|", 2)].decode("ascii", "replace")
            if key in self._ahead:
                del self._ahead[key]
                self.leave(key)

    def leave(self, key: str) -> None:
        """Half and op say no more of this transaction: doubt has it, or has ended it."""
        txn = self.transactions.get(key)
        if txn is not None:
            txn.state = TxnState.COMMITTED  # in a final state, as far as half is concerned
            self._settle(txn)

    def is_given_up_in_time(self, position: OpPosition) -> bool:
        """Note that a coordinator gave up an op line. False: here it has acted already."""
        if position < self.op_next:
            return position in self._own_quarantined
        offset, line = position
        lines = dict(self._quarantined_lines)
        marks = lines.setdefault(offset, bytearray())
        marks.extend(bytes(max(line + 1 - len(marks), 0)))
        marks[line] = 1
        self._quarantined_lines = {at: of for at, of in lines.items() if at >= self.op_next[0]}
        return True

    def steps(self, count_max: int) -> Iterator[Batch]:
        """Apply op records one by one; at most so many."""
        for _ in range(count_max):
            line_count = len(self.ops.records[0][2]) if self.ops.records else 1
            batch = self.advance(line_count_max=max(line_count, 1), byte_count_max=NO_LIMIT)
            batch.forwards = [txn for txn in batch.forwards if txn.state in SETTLED]  # of others it is a part
            for txn in batch.forwards:
                self.decided[txn.key] = COMMITTING
                if txn.key not in self._went:
                    self.committed.append(txn.appended_ms)
            for each in batch.quarantined:
                if each.line is not None:
                    self._own_quarantined.append((each.origin.offset, each.number))
            yield batch
            self.forget_batch()
            self._forget_step()
            if not self.has_more:
                return

    def forget_settled(self) -> None:
        """Keep few of those that were settled last."""
        self.positions()  # it forgets what is no longer in half
        settled = self.settled
        if len(settled.newer) > _RECENT_MAX:
            settled.older, settled.newer = settled.newer, {}
        elif len(settled.older) > 2 * _RECENT_MAX:
            settled.older = dict(islice(settled.older.items(), len(settled.older) - _RECENT_MAX, None))

    def oldest_offset(self) -> int:
        """Half offset of the oldest transaction that is not settled; where reading is if there is none."""
        return next((txn.first_offset for txn in self._unsettled_in_half()), self.half_next)

    def _apply(self, op: OpMessage, position: OpPosition) -> None:
        if self.is_replaying or op.key in self.transactions:
            super()._apply(op, position)
            return
        found = self.rows.on_doubt(op.key, self.partition)
        if found is None:
            super()._apply(op, position)
            return
        txn = found.txn
        if found.state != txn.state.value or not (
            txn.has_half_at(op.last_offset) and txn.is_of_group(op.producer_group)
        ):
            return  # decided before, unreadable, or about something else
        event = TxnEvent.ABANDON if op.is_abandon else _EVENTS[op.resolution]
        effect = transition(txn.state, event, txn_id=txn.key)[1]
        if effect is Effect.FORGET:
            self.rows.decide(op.key, self.partition, ROLLED_BACK, position)
            self.batch.rollback_count += 1
        elif effect is Effect.TRY or effect in _DECISIONS:
            is_complete = effect is Effect.TRY or txn.is_complete_at(op.last_offset)
            state = COMMITTING if is_complete else TxnState.PARKED_COMMITTED.value
            self.rows.decide(op.key, self.partition, state, position)
            self.committed += [txn.appended_ms] if txn.state in _UNDECIDED else []

    def _carry_out(self, txn: Transaction, event: TxnEvent, **more: Any) -> None:
        if event in (TxnEvent.GO, TxnEvent.PART):
            self._went.add(txn.key)
        elif event is TxnEvent.COMMIT and txn.state in _UNDECIDED:
            self.committed.append(txn.appended_ms)
        super()._carry_out(txn, event, **more)
        if txn.state is TxnState.ROLLED_BACK:
            self.decided[txn.key] = ROLLED_BACK
        elif event is TxnEvent.COMMIT and txn.state is TxnState.WAITING:
            self.decided[txn.key] = COMMITTING

    def _quarantine_misplaced_line(self, op: OpMessage, line: str, position: OpPosition) -> None:
        found = self.rows.on_doubt(op.key, self.partition)
        if found is None:
            super()._quarantine_misplaced_line(op, line, position)
        elif not found.txn.seen and op.source is Source.OPERATOR:
            self._apply(op, position)
        else:
            self._quarantine_line(NAMES_NO_HALF, line, position)

    def _keep(self, txn: Transaction) -> None:
        """Only coordinators write to doubt."""

    def _ask(self, txn: Transaction, now_ms: int) -> None:
        """Only coordinators ask."""


_UNDECIDED = (TxnState.OPEN, TxnState.PARKED)
_DECISIONS = (Effect.DECIDE, Effect.RETURN)
_EVENTS = {
    Resolution.COMMIT: TxnEvent.COMMIT,
    Resolution.ROLLBACK: TxnEvent.ROLLBACK,
    Resolution.UNKNOWN: TxnEvent.UNKNOWN,
}
