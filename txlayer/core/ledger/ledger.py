"""The ledger of one partition: a fold over its half and op records, and the batches that result from it.

Decide → append → apply: `fold_half` and `add_ops` take records that were read; `advance` applies op lines strictly in order and
collects a `Batch`. The service appends the batch and the positions in one Kafka transaction and then calls `published`. If
the append fails, the service discards the ledger and rebuilds it from the stored positions. There is no undo.

A batch is a function of the positions (`half_next`, `op_next`) and of the contents of the doubt topic. Two rules ensure
this. An op line sees its transaction as of the half offset that the line names. A transaction that waits for one on the
doubt topic is moved to the doubt topic itself, in the same Kafka transaction.

What is an idea of its own has a file of its own: the order of a key (forward_order), misplaced records, check-backs (checks), doubt, second copies,
what is unsettled, with append times. When a transaction is held or parked: transaction.
"""

import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

from txlayer.core import codec
from txlayer.core.checks import CLOCK_ERROR_MS, NEVER_MS, CheckPolicies, CheckSchedule, OpenLimits
from txlayer.core.codec import (
    KEY_INDEX,
    PLAIN_OPTIONS_LENGTH,
    PLAIN_START,
    PLAIN_TAILS_MAX,
    PRODUCER_COMMIT,
    PRODUCER_END,
    PlainHeaders,
    is_key,
)
from txlayer.core.ledger.batch import (
    NO_LIMIT,
    Batch,
    BatchSize,
    LinesOfRecord,
    MoveToDoubt,
    Positions,
    RecordToQuarantine,
    Report,
    ReportKind,
)
from txlayer.core.ledger.dormant import DormantTransactions, ReleaseTimes
from txlayer.core.ledger.doubt import DoubtFold, DoubtIndex
from txlayer.core.ledger.forward_order import ForwardOrder
from txlayer.core.ledger.misplaced_records import NAMES_NO_HALF, own_partition, parked_by_line, why_misplaced
from txlayer.core.ledger.remembered import AppendTimes, HalfMarks, RecentlySettled, UnappliedOps, UnsettledInHalf
from txlayer.core.ledger.transaction import (
    NOT_IN_DOUBT,
    RECORD_BYTES,
    TIMES_MAX,
    UNKNOWN_TARGET,
    Content,
    DueTimes,
    HalfRecordFit,
    OpPosition,
    Target,
    Transaction,
    held_bytes,
    hold_or_park,
    summary_bytes,
)
from txlayer.core.ledger.transitions import SETTLED, Effect, TxnEvent, TxnState, transition
from txlayer.core.messages import (
    NO_OPTIONS,
    NONCE_LENGTH,
    TOPICS_BYTES_MAX,
    TXN_ID_LENGTH_MAX,
    CheckKind,
    CheckRecord,
    HalfHeader,
    HalfOptions,
    OpMessage,
    Origin,
    ParkReason,
    Resolution,
    Source,
    Undecodable,
    UnresolvedAction,
)

UNSETTLED_BYTES, DORMANT_BYTES, SHAPE_BYTES, GROUP_BYTES, FURTHER_BYTES, KEYED_BYTES = 750, 280, 700, 350, 300, 700
"""Bytes, measured: an unsettled transaction on doubt; a dormant one, and a shape that some of them have; a producer group that some of
them name; each half record of a transaction beyond the first, with a topic of its own; an ordering key of its own, with
order="prepare" (550 otherwise). A transaction in half takes 500 bytes,
but moves to doubt when memory is short: it counts in full."""
COPY_BYTES = 50  # the same: a second copy of a half record, which its transaction remembers

RELEASE_COUNT_MAX = 2_000
"""Transactions on doubt that one batch tries, beside those that its op lines name. One mended topic or settled transaction
may free a hundred thousand, and the size of a Kafka transaction is limited."""
KEY_IN_HALF_MAX = 5_000
"""Above this number of transactions of one ordering key, those that wait move to doubt at once: from there, several batches
can release them.
"""


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The names and limits of one namespace that the ledger needs."""

    half_topic: str
    op_topic: str
    partition_count: int
    doubt_after_ms: int
    held_age_max_ms: int
    transaction_messages_max: int
    checks: CheckPolicies = field(default_factory=CheckPolicies)
    transaction_bytes_max: int = NO_LIMIT


class DueContent(NamedTuple):
    """Where on doubt the content of a scheduled transaction is, and when messages of it are due."""

    time_ms: int
    key: str
    doubt_offset: int
    size: int


UNKNOWN_TOPICS_MAX = 1_000
"""Real topics per partition whose metadata are not known yet. Half records may contain any number of invented names."""

_PLAIN_BYTES = RECORD_BYTES + len(codec.HALF_HEADER) + 2

SECOND_COPIES_MAX = 64
"""Second copies of a transaction's half records that the ledger remembers, and as many again of its last half record, which a
producer's line names. The first copies are kept: a line that names one of them must count in a replay, too."""
ONLY_NAMED_COUNT_MAX = 1_000
"""Transactions of a partition that are known from an op line only. Of a further one the line alone is quarantined: op lines may
name any number of them, and each would stay in memory until a person settles it."""
TO_ASK_MAX = 10_000
"""Questions that people asked for while the check topic took none; further ones wait for their turn as any other."""
RELEASE_LINES_MAX = 5_000
"""Lines of a process that release scheduled transactions and are written, but not applied. An op line of another transaction waits for no
more of them. The service allows fewer while Kafka transactions take long."""
RELEASE_OFFSETS_MAX = 12_000
"""Offsets of doubt that a process may read for those lines, from the content of one message to that of the next, unless it has the content
already: a few more than for `RELEASE_LINES_MAX` messages without anything between them."""
SEEK_OFFSETS = 5_000  # going to a content that is further away costs as much as reading so many
ANSWERING = frozenset({Source.CHECK, Source.BARRIER})  # sources of op lines that answer a check-back


_OPEN, _COMMITTED = TxnState.OPEN, TxnState.COMMITTED
_PARKED = frozenset({TxnState.PARKED, TxnState.PARKED_COMMITTED})
_DECIDES = frozenset({Effect.DECIDE, Effect.RETURN})
_GOES = frozenset({TxnEvent.GO, TxnEvent.PART})
_SCHEDULES = frozenset({Effect.FORWARD_PART, Effect.SCHEDULE})
_BY_TIME = _SCHEDULES | {Effect.RESCHEDULE, Effect.EXTEND}

_EVENTS = {resolution: TxnEvent[resolution.name] for resolution in Resolution}
_BY_POLICY = {UnresolvedAction.ROLLBACK: Resolution.ROLLBACK, UnresolvedAction.COMMIT: Resolution.COMMIT}


class Ledger:
    """The transactions of one partition. One thread owns it; its methods do not block."""

    # --- state and settlement of the partition -----------------------------------------------------

    batch_bytes_max = NO_LIMIT
    """Bytes of a batch above which only what op lines cause is added: no moves to doubt, check-backs or releases."""

    may_ask = True
    """False while the check topic takes no questions. One that a person asked for would be counted, and not be written."""

    may_write_op = True
    """False while op refuses the coordinator's lines: what a policy would decide is parked, and nothing is released."""

    op_read_to_end_ms = NEVER_MS
    """Op was read to an end that it had at this time, or later: nothing that is due later is released. The service asks for ends."""

    release_lines_max = RELEASE_LINES_MAX
    """This partition's share of `RELEASE_LINES_MAX`, or of what the service allows now."""

    release_offsets_max = RELEASE_OFFSETS_MAX  # this partition's share of that

    record_of_lines = LinesOfRecord(NO_LIMIT, NO_LIMIT)

    has_at_hand: Callable[[str], bool] = staticmethod(lambda _key: False)
    """True if the service need not read the content of a scheduled transaction from doubt."""

    def __init__(
        self,
        partition: int,
        *,
        settings: LedgerSettings,
        targets: Mapping[str, Target],
        refusals: Mapping[str, ParkReason] | None = None,
        headers: PlainHeaders | None = None,
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.targets = targets
        self.unknown_topics: set[str] = set()
        self.committed_topics: dict[str, None] = {}  # unknown topics that decisions wait for
        self.refusals = {} if refusals is None else refusals  # by key; shared across rebuilds
        self.headers = PlainHeaders(targets) if headers is None else headers
        self.transactions = dict[str, Transaction]()  # unsettled, in the order of arrival
        self.dormant = DormantTransactions()  # the other unsettled ones, in the short form
        self.order = ForwardOrder()
        self.batch, self.batch_size = Batch(), BatchSize()  # the service sets the size
        self.half_next = 0
        self._no_half = (0, 0)  # half offsets, [from, to), where markers are or what was aborted; the last such range
        self.op_next: OpPosition = (0, 0)
        self.op_read_ms = 0  # the append time of the last op record that was read
        self.times = AppendTimes()
        self.content_bytes = self.half_bytes = 0  # in memory; of all half since the marks began
        # The half offset that the next op line names, if it is not read yet.
        self.waits_for_half: int | None = None
        self.is_replaying = False
        self._replay_low = 0  # half offset where the replay begins to read
        # Earlier op records waited long enough for half, of which the lines that name an offset from the other one on.
        self._misplaced_before, self._misplaced_from = 0, 0
        # Those before this half offset, and those of these keys that wait in half, must move to doubt.
        self._move_before, self._keys_to_move = 0, dict[str, None]()
        self.doubt_index = DoubtIndex(self._doubt_offset_of)
        self._untold: dict[str, int] = {}  # growing ones of which doubt's summary says too little, and since when
        self.schedule = CheckSchedule(settings.checks)
        self.in_half = UnsettledInHalf(self.schedule)
        self.open_limits = OpenLimits()
        self._to_ask: dict[str, None] = {}  # for a person, when the check topic takes questions again
        self._further_count = 0  # half records beyond a first
        self._copy_count = 0  # second copies that transactions remember; dormant ones have none
        self._only_named_count = 0  # known from an op line only
        # By the half offset of the first copy: the newest of its second ones, where op is read from then, and the first copy's append time;
        # in the order of the second ones.
        self._second_copies: dict[int, tuple[int, OpPosition, int]] = {}
        # Half records that are read but not folded: the batch has no room for what they add to doubt.
        self._postponed_half: list[tuple[int, int, bytes | None, Any]] = []
        self.ops = UnappliedOps()
        # Quarantined lines that a replay would read again: the last of each group, and the doubt offset at which it is found.
        self._doubt_held_back: deque[tuple[OpPosition, int]] = deque()
        self._quarantined_lines: Mapping[int, bytearray] = {}  # in a replay: op offset → 1 by line
        self.settled = RecentlySettled()
        self._recalled_tails: dict[str, bool] = {}  # by the text of a half header between key and options: begins one
        self.half_marks = HalfMarks()
        self._keys_to_try: dict[str, None] = {}  # ordered; a waiting transaction may be free now
        self._keys_for_next_batch: dict[str, None] = {}  # the same, beyond the limit of one batch
        self._mended: deque[Transaction] = deque()  # held until now, in the order of decisions
        self.release_times = ReleaseTimes(self._committed_at, self.is_awaited)
        # Lines that release some, written and not applied: their ordering keys, by key and time; and how many each ordering key has.
        self._releases_ahead, self._keys_ahead = dict[str, str | None](), dict[str, int]()
        self._offsets_ahead = self._released_to = 0  # what is to be read for these, up to this doubt offset
        self.has_more_due = False  # True if more lines would have been written, were there not `release_lines_max`
        # By how much op's append times are behind this partition's time, and how many lines were written before it was known.
        self._op_behind_ms = self._releases_before = 0
        self._asked_op_ms = 0  # when a line was written last although op's clock is so far behind
        self._op_newest_ms = 0  # the newest append time of applied op records

    @property
    def _has_room(self) -> bool:
        return self.batch.byte_count < self.batch_bytes_max

    @property
    def _has_room_for_releases(self) -> bool:
        return self.batch.release_count < self.batch_size.of(RELEASE_COUNT_MAX) and self._has_room

    @property
    def _has_room_for_moves(self) -> bool:
        count = len(self.batch.to_doubt) + len(self.batch.quarantined)
        return count < self.batch_size.of(RELEASE_COUNT_MAX) and self._has_room

    @property
    def _has_moves_left(self) -> bool:
        """True if transactions must move to doubt before anything else happens. A replay applies what was applied before."""
        return not self.is_replaying and bool(self._move_before or self._keys_to_move)

    def _has_room_for_key(self, txn: Transaction | None) -> bool:
        """True if `txn` may be settled, parked or moved now: this batch can take what waits for it in half.

        A replay that finds no undecided transaction in half before a waiting one takes the waiting one for forwarded. So
        the waiting ones are released, or move to doubt, in one batch with `txn`. If that is too much, or if some are on doubt already, all
        of them move to doubt first, in pieces.
        """
        key_hash = None if txn is None else txn.key_hash
        count = self.order.count_in_half(key_hash)
        if key_hash is None or not count or self.is_replaying:
            return True
        size = self.order.bytes_in_half(key_hash)
        is_too_much = count > self.batch_size.of(KEY_IN_HALF_MAX) or size > self.batch_bytes_max
        if is_too_much or self.order.is_on_doubt(key_hash):
            self._keys_to_move[key_hash] = None
            return False
        return self.batch.is_empty or self.batch.byte_count + size <= self.batch_bytes_max

    @property
    def open_count(self) -> int:
        """Number of transactions that are not settled."""
        return len(self.transactions) + len(self.dormant)

    @property
    def unsettled_bytes(self) -> int:
        """Memory of the unsettled transactions without content, in memory or later on doubt: estimated by number, with names of usual length."""
        return (
            UNSETTLED_BYTES * len(self.transactions)
            + KEYED_BYTES * self.order.keyed_count
            + DORMANT_BYTES * len(self.dormant)
            + SHAPE_BYTES * self.dormant.shape_count
            + GROUP_BYTES * (self.schedule.group_count + 2 * self.dormant.group_count)
            + FURTHER_BYTES * (self._further_count + len(self._second_copies))
            + COPY_BYTES * self._copy_count
        )

    def topics_needed(self) -> set[str]:
        """Real topics that held transactions wait for, or that the batch writes to."""
        return self.doubt_index.held_topics() | {t for txn in self.batch.forwards for t in txn.topics}

    def all_unsettled(self) -> Iterator[Transaction]:
        """Every unsettled transaction, for reading only."""
        return chain(self.transactions.values(), self.dormant.all_unsettled())

    def find(self, key: str) -> Transaction | None:
        """The unsettled transaction of this key; a dormant one is loaded."""
        return self.transactions.get(key) or self._load(key)

    def look_at(self, key: str) -> Transaction | None:
        """The same, for reading only: a dormant one stays dormant."""
        return self.transactions.get(key) or self.dormant.look_at(key)

    def _load(self, key: str) -> Transaction | None:
        txn = self.dormant.load(key)
        if txn is not None:
            self.transactions[key] = txn
            self._further_count += max(txn.seen - 1, 0)
            self.order.keyed_count += txn.key_hash is not None
            if txn.state is TxnState.OPEN:
                self.schedule.add(txn)
        return txn

    def _make_dormant(self, txn: Transaction) -> None:
        """Keep a scheduled transaction on doubt in the short form, if it has one: a million of them may wait."""
        due = txn.due
        if txn.state is not TxnState.SCHEDULED or not txn.is_in_doubt or due is None or due.left[0] <= due.said_ms:
            return
        if txn.ensure_extras().further_at:
            return
        summary = codec.encode_summary(txn.summary())
        if self.dormant.put(txn.key, summary, doubt_offset=self._doubt_offset_of(txn.key), size=txn.size):
            del self.transactions[txn.key]
            self._further_count -= txn.seen - 1
            self.order.keyed_count -= txn.key_hash is not None

    def _doubt_offset_of(self, key: str) -> int:
        txn = self.transactions.get(key)
        if txn is not None:
            return NOT_IN_DOUBT if txn.extras is None else txn.extras.doubt_offset
        place = self.dormant.place_of(key)
        return NOT_IN_DOUBT if place is None else place[0]

    def _committed_at(self, key: str) -> OpPosition:
        txn = self.transactions.get(key)
        if txn is None:
            return self.dormant.committed_at(key)
        return (txn.due.committed_at if txn.due is not None else None) or (0, 0)

    def _carry_out(
        self,
        txn: Transaction,
        event: TxnEvent,
        *,
        op: OpMessage | None = None,
        position: OpPosition = (0, 0),
        reason: ParkReason | None = None,
    ) -> None:
        """Change the state of `txn` as the table of transitions says, and do what the effect says; all but the fast path of `advance` does so.
        `op`, at `position`: the line that is the event.
        """
        txn.state, effect = transition(txn.state, event, txn_id=txn.key)
        if effect is Effect.TRY:
            self._proceed(txn)
        elif effect in _DECIDES:
            assert op is not None
            extras = txn.ensure_extras()
            extras.decided_at = position
            if txn.is_in_doubt:
                extras.moved_ms = self.times.at_least(txn.appended_ms)
            _note_release(txn, op, position)
            if effect is Effect.RETURN:
                self.batch.checks.pop(_notice_name(txn.key), None)
                self.order.put_back(txn)
                if not self.is_replaying:
                    self.order.goes_to_doubt(txn)
                    self._move_those_waiting(txn)
            self._proceed(txn, is_complete=op.is_release or txn.is_complete_at(op.last_offset))
            self._await_release(txn)
        elif effect is Effect.FORWARD:
            self.batch.forwards.append(txn)
            self.batch.byte_count += txn.size
            self._settle(txn)
        elif effect in _BY_TIME:
            self._carry_out_by_time(txn, effect, op)
        elif effect is Effect.WAIT:
            self._wait_for_key(txn)
        elif effect is Effect.HOLD:
            txn.ensure_extras().reason = reason
            self.order.stuck(txn)
            self.doubt_index.hold(txn)
            self._report(ReportKind.HELD, txn.key, reason.value if reason else "")
            self._keep_on_doubt(txn)
        elif effect is Effect.PARK:
            txn.ensure_extras().reason = reason
            self.doubt_index.let_go(txn)
            self._leave_order(txn)
            self._report(ReportKind.PARKED, txn.key, reason.value if reason else "")
            if txn.state is TxnState.PARKED and txn.seen and not self.is_replaying:
                self.schedule.notices.add(txn.group, txn.key)
            self._keep_on_doubt(txn)
        elif effect is Effect.FORGET:
            self._forget(txn, position)
        elif effect is Effect.KEEP:
            self._keep_on_doubt(txn)
        elif effect is Effect.COUNT:
            assert op is not None
            self._answered_unknown(txn, op)
        else:
            assert op is not None
            self._report_without_effect(op, effect)

    def _proceed(self, txn: Transaction, *, is_complete: bool = True) -> None:
        """Determine what a decided transaction may do now, and do it."""
        was_held = self.doubt_index.let_go(txn)
        event, reason = self._next_event(txn, is_complete=is_complete)
        if event is TxnEvent.TARGET_REFUSES and not was_held:  # independent of the time that it waited before
            txn.ensure_extras().moved_ms = self.times.at_least(txn.appended_ms)
        if event in _GOES and txn.due is not None:
            txn.due.take_part()
        self._carry_out(txn, event, reason=reason)
        if was_held and txn.state is TxnState.WAITING:  # it blocks no other any more: the next free one may go first
            self._note_key_to_try(txn.key_hash)

    def _wait_for_key(self, txn: Transaction) -> None:
        self.order.stuck(txn)
        # What waits in half is released in one go, so no more should wait there than fits into one batch.
        is_hot = (
            self.order.count(txn.key_hash) > KEY_IN_HALF_MAX
            or self.order.bytes_in_half(txn.key_hash) > self.batch_bytes_max
        )
        if txn.is_in_doubt or is_hot or self.order.is_on_doubt(txn.key_hash):
            self._keep_on_doubt(txn)

    def _next_event(self, txn: Transaction, *, is_complete: bool) -> tuple[TxnEvent, ParkReason | None]:
        """What a committed transaction does now: it goes, waits for its key, is held until its topics accept, or is parked."""
        if not is_complete:
            return TxnEvent.INCOMPLETE, ParkReason.INCOMPLETE
        due = txn.due
        if due is not None and not due.is_due and not self.is_replaying:
            # Half may have lost it before its time, so it is decided now whether doubt can keep it.
            is_too_large = txn.count > self.settings.transaction_messages_max or self.is_beyond_limit(txn)
            return (TxnEvent.RECORD_REFUSED, ParkReason.LIMIT) if is_too_large else (TxnEvent.NOT_DUE, None)
        if due is not None and not due.is_due:  # it was scheduled before the restart: it is on doubt or settled
            return TxnEvent.GO, None
        if not self.order.is_free(txn):
            return TxnEvent.BLOCKED, None
        if self.is_replaying:  # what was refused before the restart is on doubt or settled
            return TxnEvent.GO, None
        event, reason = hold_or_park(
            txn,
            targets=self.targets,
            refusal=self.refusals.get(txn.key),
            messages_max=self.settings.transaction_messages_max,
            is_beyond_limit=self.is_beyond_limit(txn),
        )
        if event is TxnEvent.TARGET_REFUSES:
            self._ask_about_topics(txn)
        if event is TxnEvent.GO and due is not None and due.left:
            event = TxnEvent.PART
        return event, reason

    def _ask_about_topics(self, txn: Transaction) -> None:
        """Have the service ask about real topics of a committed transaction that it does not know."""
        unknown = dict.fromkeys(topic for topic in txn.topics if topic and topic not in self.targets)
        self.unknown_topics.update(unknown)
        self.committed_topics.update(unknown)

    def is_beyond_limit(self, txn: Transaction) -> bool:
        """True if it has more bytes than one Kafka transaction may carry. Doubt then stores only where its records are."""
        return (
            txn.size > self.settings.transaction_bytes_max
            or self.refusals.get(txn.key) is ParkReason.LIMIT  # no Kafka transaction lives long enough for it
        )

    def _settle(self, txn: Transaction) -> None:
        # `advance` does this by itself for a plain transaction; tests/unit/test_quick_path.py compares the two.
        del self.transactions[txn.key]
        if txn.key_hash is not None:
            self.order.keyed_count -= 1
        if txn.seen > 1:
            self._further_count -= txn.seen - 1
        elif not txn.seen:
            self._only_named_count -= 1
        self._copy_count -= txn.copy_count
        self.settled.add(txn.key, txn.state, first_offset=max(txn.first_offset, 0))
        if txn.content is not None:
            self.content_bytes -= txn.size
        self.batch.to_doubt.pop(txn.key, None)
        if self.batch.checks:
            self.batch.checks.pop(txn.key, None)
            self.batch.checks.pop(_notice_name(txn.key), None)
        self.batch.policy_lines.pop(txn.key, None)
        self.doubt_index.let_go(txn)
        if txn.is_in_doubt:
            self.doubt_index.ended(txn)
            self.batch.ends.append(txn)
            self.batch.byte_count += RECORD_BYTES * txn.seen
        self._leave_order(txn)

    def _leave_order(self, txn: Transaction) -> None:
        self.order.remove(txn)
        is_parked = txn.state in _PARKED and txn.key_hash is not None and txn.key not in self.batch.returned
        if txn.state is TxnState.SCHEDULED or is_parked:
            self.batch.parked.add(txn.key)
        self._note_key_to_try(txn.key_hash)

    def _forget(self, txn: Transaction, position: OpPosition) -> None:
        if not txn.seen:
            self._remember_on_doubt(txn, position)
        elif txn.is_abandoned and not txn.is_in_doubt:
            self._end_on_doubt(txn)  # the null values tell that the commit before the abandon forwarded nothing
        self._settle(txn)
        txn.content = None
        self.batch.rollback_count += 1

    def _carry_out_by_time(self, txn: Transaction, effect: Effect, op: OpMessage | None) -> None:
        due = txn.due
        assert due is not None
        if effect is Effect.FORWARD_PART:
            self.batch.forwards.append(txn)
            self.batch.byte_count += txn.size
        elif op is not None:
            if effect is Effect.RESCHEDULE and op.time_ms is not None:
                due.left, due.said_ms = (op.time_ms,), -1
            else:
                _note_release(txn, op, (0, 0))
            self._await_release(txn)
        if effect in _SCHEDULES:  # it holds back no other of its key until its next time
            txn.ensure_extras().reason = None
            self._leave_order(txn)
        self._keep_on_doubt(txn)

    def _await_release(self, txn: Transaction) -> None:
        """Note the next time of its messages for which no line was written yet, also if an earlier part of it waits."""
        due = txn.due
        if due is None or not txn.may_be_released or self.is_replaying:
            return
        time_ms = next((at_ms for at_ms in due.left if at_ms > due.said_ms), None)
        if time_ms is not None:
            self.release_times.add(time_ms, due.committed_at or (0, 0), txn.key)

    def is_awaited(self, time_ms: int, key: str) -> bool:
        """False if the transaction was settled or rescheduled meanwhile, or a line was written for this time."""
        txn = self.transactions.get(key)
        if txn is None:
            return time_ms == self.dormant.time_of(key)
        return txn.due is not None and time_ms in txn.due.left and time_ms > txn.due.said_ms

    def _release_those_due(self, now_ms: int) -> None:
        """Write a line for each time that has come, in the order of the times. Each takes effect when it is read from the op log.

        None for a time up to which op was not read and applied: there may be the commit of one that is due earlier.
        """
        op_ms = min(now_ms - self._op_behind_ms, self._applied_to_ms)
        while self._may_release and self.release_times.first_ms <= op_ms and self._has_room:
            if self._write_release() is None:
                return
        self.has_more_due = not self._may_release and self.release_times.first_ms <= op_ms
        is_due = op_ms < self.release_times.first_ms <= min(now_ms, self.op_read_to_end_ms)
        if self._may_release and self._is_far_behind(now_ms) and not self.ops.records and is_due:
            self._asked_op_ms = now_ms
            self._ask_for_time()

    @property
    def _applied_to_ms(self) -> int:
        """All op lines that were appended before this time, by op's clock, are applied."""
        oldest_ms = self.ops.oldest_ms
        read_ms = self.op_read_ms if self.op_read_ms <= self.times.latest_ms else 0  # op's clock was wrong
        read_ms = max(self.op_read_to_end_ms - self._op_behind_ms, read_ms)
        return read_ms if oldest_ms is None else min(read_ms, oldest_ms)

    def _is_far_behind(self, now_ms: int) -> bool:
        """True if op's clock was found so far behind that it is time to look again."""
        return self._op_behind_ms > CLOCK_ERROR_MS and now_ms - self._asked_op_ms >= CLOCK_ERROR_MS

    def needs_op_end(self, now_ms: int) -> bool:
        """True if messages are due now, and are released only if op was read to an end that it has now."""
        first_ms, oldest_ms = self.release_times.first_ms, self.ops.oldest_ms
        if not self.may_write_op or (oldest_ms is not None and oldest_ms < first_ms):
            return False
        is_waiting = self._applied_to_ms < first_ms <= now_ms - self._op_behind_ms
        return is_waiting or (self._is_far_behind(now_ms) and self.op_read_to_end_ms < first_ms <= now_ms)

    @property
    def _may_release(self) -> bool:
        is_full = self.is_releasing and self._offsets_ahead >= self.release_offsets_max
        return self.may_write_op and not is_full and len(self._releases_ahead) < self.release_lines_max

    def _write_release(self) -> int | None:
        """Write a line for the first time that is left; 0: it is not awaited any more.

        None: an earlier line of its key may have come too early. That is known when it is read; until then this one could overtake it.
        """
        time_ms, key = self.release_times.take()
        if not self.is_awaited(time_ms, key):
            return 0
        txn = self.find(key)
        assert txn is not None
        assert txn.due is not None
        op = OpMessage(
            Resolution.COMMIT, txn.key, txn.group, txn.last_offset, txn.born_ms, Source.POLICY, time_ms=time_ms
        )
        name, line = _release_name(key, time_ms), codec.encode_op(op)
        if txn.key_hash is not None and not self._note_key_ahead(txn.key_hash, time_ms, line):
            self._await_release(txn)
            return None
        self._note_offsets(txn)
        txn.due.said_ms = time_ms
        if name not in self._releases_ahead:  # else the transaction was given this time once more
            self._releases_ahead[name] = txn.key_hash
            if txn.key_hash is not None:
                self._keys_ahead[txn.key_hash] = self._keys_ahead.get(txn.key_hash, 0) + 1
        self._write_line(name, line)
        self.batch.byte_count += RECORD_BYTES + len(line)
        self._await_release(txn)
        return 1

    def _write_line(self, name: str, line: str) -> None:
        """Write a line of the coordinator's own with the batch."""
        self.batch.policy_lines[name] = line
        self.batch.lines_bytes += len(line) + 1

    def _note_offsets(self, txn: Transaction) -> None:
        """Note how much of doubt is to be read for a line that releases messages of `txn`."""
        if not self._releases_ahead:
            self._offsets_ahead = 0
        if txn.is_in_doubt and not self.has_at_hand(txn.key):
            at = txn.ensure_extras().doubt_offset
            self._offsets_ahead += min(abs(at - self._released_to), SEEK_OFFSETS)
            self._released_to = at

    def _note_key_ahead(self, key_hash: str, time_ms: int, line: str) -> bool:
        """Note a line for this time. False: another one of the key is under way, and op's clock may not have come to its time.

        One of an earlier record is waited for: the clock of op's next leader may be behind. Within a record the newest append time counts.
        """
        batch = self.batch
        latest_ms = batch.release_keys.get(key_hash)
        if latest_ms is None:
            is_ahead = key_hash in self._keys_ahead
        else:
            is_ahead = latest_ms > self._op_newest_ms or not batch.has_room_in_first_record(line, self.record_of_lines)
        if not is_ahead:
            batch.release_keys[key_hash] = time_ms
        return not is_ahead

    def _forget_release_ahead(self, name: str) -> None:
        """A line of this name was applied. That of another coordinator takes only its own place."""
        key_hash = self._releases_ahead.pop(name, None)
        if key_hash is not None:
            self._keys_ahead[key_hash] -= 1
            if not self._keys_ahead[key_hash]:
                del self._keys_ahead[key_hash]

    def probe_time(self, *, now_ms: int, wall_ms: int) -> bool:
        """Write one line that releases messages, if a time has come by this machine's clock alone: its append time tells whether it has.

        The partition's time stands still while it has no owner and no new record. False: no line was written.
        """
        return self.may_probe(now_ms=now_ms, wall_ms=wall_ms) and self._ask_for_time()

    def may_probe(self, *, now_ms: int, wall_ms: int) -> bool:
        """True if a time has come by this machine's clock alone."""
        return now_ms < self.release_times.first_ms <= wall_ms and not self.ops.records and self.may_write_op

    def _ask_for_time(self) -> bool:
        """Write one line, whose append time tells op's clock. It may well come early, so nothing else is learned from it."""
        is_written = bool(self._write_release())
        if is_written:
            self._releases_before = len(self._releases_ahead)
        return is_written

    def due_until(self, time_ms: int, *, count_max: int) -> Iterator[DueContent]:
        """What is due next and on doubt, in the order of the times, at most so many. A transaction with several times is there for each."""
        awaited = ((at_ms, key) for at_ms, key in self.release_times.until(time_ms) if self.is_awaited(at_ms, key))
        for at_ms, key in islice(awaited, count_max):
            place = self.dormant.place_of(key) or (self._doubt_offset_of(key), self.transactions[key].size)
            if place[0] != NOT_IN_DOUBT:
                yield DueContent(at_ms, key, *place)

    @property
    def is_releasing(self) -> bool:
        """True if lines that release scheduled transactions are written and not applied."""
        return bool(self._releases_ahead)

    @property
    def makes_room_behind_half(self) -> bool:
        """True if messages are released, or are due, behind an op line that waits for half."""
        return self.is_releasing or (bool(self.ops.records) and self.is_release_due(self.times.now_ms))

    def is_release_due(self, now_ms: int) -> bool:
        """True if the time of a scheduled transaction has come, and a line can be written that releases it."""
        return self.may_write_op and self.release_times.first_ms <= now_ms - self._op_behind_ms

    def _note_key_to_try(self, key_hash: str | None) -> None:
        if key_hash is not None:
            self._keys_to_try[key_hash] = None

    def _proceed_with_free(self) -> None:
        """Release transactions that are free now; of those on doubt, as many as fit into one batch.

        None while others must leave half: one could be settled meanwhile, and a restart would take its second copy for a new one.
        """
        if self._has_moves_left:
            return
        while self._keys_to_try:
            key_hash = next(iter(self._keys_to_try))
            free = self.order.next_free(key_hash)
            if free is None:
                del self._keys_to_try[key_hash]
            elif free.is_in_doubt and not self._has_room_for_releases:
                del self._keys_to_try[key_hash]
                self._keys_for_next_batch[key_hash] = None
            else:
                self.batch.release_count += free.is_in_doubt
                self._proceed(free)

    def _continue_moves(self) -> None:
        """Move transactions that must leave half to doubt, as many as fit into one batch."""
        if not self._has_moves_left:
            return
        for key_hash in list(self._keys_to_move):
            for txn in self.order.waiting(key_hash):
                if not self._has_room_for_moves:
                    return
                self._move_to_doubt(txn)
            del self._keys_to_move[key_hash]
        for txn in self.in_half:
            if txn.first_offset >= self._move_before:
                break
            if txn.state in SETTLED or txn.is_in_doubt or txn.key in self.batch.to_doubt:
                continue
            if not self._has_room_for_moves or not self._has_room_for_key(txn):
                return
            self._carry_out(txn, TxnEvent.MOVE)
        self._move_before = 0

    def _continue_earlier_work(self) -> None:
        """Continue with transactions on doubt that did not fit into earlier batches."""
        self._continue_moves()
        if self._has_moves_left:
            return
        while self._mended and self._has_room_for_releases:
            txn = self._mended.popleft()
            if txn.state is TxnState.HELD:
                self.batch.release_count += 1
                self._carry_out(txn, TxnEvent.MENDED)
        self._proceed_with_free()
        while self._keys_for_next_batch and self._has_room_for_releases:
            key_hash = next(iter(self._keys_for_next_batch))
            del self._keys_for_next_batch[key_hash]
            self._note_key_to_try(key_hash)
            self._proceed_with_free()

    def _keep_on_doubt(self, txn: Transaction) -> None:
        """Write the transaction, or its summary again, to doubt. Transactions that wait for it move too."""
        if self.is_replaying:
            return  # it was written before the restart
        before = self.batch.to_doubt.get(txn.key)
        if txn.is_in_doubt or before is not None:
            is_whole = txn.lacks_topics or (before is not None and before.is_whole)
            self.batch.byte_count += summary_bytes(txn) + txn.size * txn.lacks_topics
            self.batch.to_doubt[txn.key] = MoveToDoubt(txn, is_whole)
        else:
            self._move_to_doubt(txn)
            self._move_those_waiting(txn)

    def _move_to_doubt(self, txn: Transaction) -> None:
        self.batch.to_doubt[txn.key] = MoveToDoubt(txn, is_whole=True)
        self.batch.byte_count += txn.size + summary_bytes(txn)
        if self.is_beyond_limit(txn) and txn.content is not None:
            self.content_bytes -= txn.size
            txn.content = None
        txn.ensure_extras().moved_ms = self.times.at_least(txn.appended_ms)
        self.order.goes_to_doubt(txn)

    def _move_those_waiting(self, txn: Transaction) -> None:
        # A transaction that waits for one on doubt must be there too: a replay of half and op cannot know what it waits for.
        if self.order.is_on_doubt(txn.key_hash):
            for other in self.order.waiting(txn.key_hash):
                self._move_to_doubt(other)

    def _quarantine(
        self, topic: str, offset: int, why: Undecodable, *, record: Any = None, line: str | None = None, number: int = 0
    ) -> None:
        if self.is_replaying:
            return  # it was written before the restart
        self.batch.byte_count += RECORD_BYTES + len(line) if line is not None else held_bytes(record)
        self.batch.quarantined.append(
            RecordToQuarantine(Origin(topic, self.partition, offset), record, line, number, why)
        )
        self._report(ReportKind.QUARANTINED, "", f"{topic}-{self.partition}@{offset}: {why.why}")

    def _report(self, kind: ReportKind, key: str, detail: str) -> None:
        if not self.is_replaying:
            self.batch.reports.append(Report(kind, key, detail))

    # --- half records ------------------------------------------------------------------------------

    def fold_half(  # hot path, kept in one piece
        self, offset: int, appended_ms: int, header: bytes | None, record: Any
    ) -> None:
        """Fold one half record. `header` is the value of its `txl` header; `record` is kept as its content."""
        if self._postponed_half:
            self._postponed_half.append((offset, appended_ms, header, record))
            return
        self.half_next = offset + 1
        key_bytes, record_headers = record.key(), record.headers()
        if header is None or len(record_headers) > 1:
            size = held_bytes(record)
        else:  # the sum that `held_bytes` computes, in fewer steps
            size = _PLAIN_BYTES + len(header) + len(record) + (len(key_bytes) if key_bytes else 0)
        self.half_bytes += size
        times = self.times
        if appended_ms > times.newest_ms:
            times.saw(appended_ms)
        if appended_ms != times.half_ms:
            appended_ms = times.of_half(appended_ms)
        # A fast path for the common cases: a single message without options, or with an ordering key only. Everything that passes
        # here must be well formed. Its twin is `_fold_half_with_care`; tests/unit/test_ledger_half.py compares the two.
        headers = self.headers
        try:
            text = header.decode("ascii")  # type: ignore[union-attr]  # None is caught
            end = text.find("|", 2)
            key = text[2:end]
            txn_id, nonce = key.split("/")
            if text[-1] == "|":
                tail, options, home = text[end:], NO_OPTIONS, zlib.crc32(txn_id.encode())
            else:
                tail, asked = text[end:-PLAIN_OPTIONS_LENGTH], text[-PLAIN_OPTIONS_LENGTH:]
                options, home = headers.options.get(asked) or headers.parse_options(asked)
            plain = headers.tails.get(tail) or headers.parse_tail(tail)
            transactions = self.transactions
        except (AttributeError, ValueError):
            self._fold_half_with_care(offset, appended_ms, header, record, size)
            return
        if (
            plain is not None
            and text[:2] == PLAIN_START
            and key not in transactions
            and key not in self.dormant
            and key not in self.settled.newer
            and key not in self.settled.older
            and home % self.settings.partition_count == self.partition
            and len(nonce) == NONCE_LENGTH
            and 0 < len(txn_id) <= TXN_ID_LENGTH_MAX
            and "\n" not in key
        ):
            self.content_bytes += size
            group, topic, born = plain
            txn = Transaction(key, group, topic, offset, appended_ms, born, self.op_next, record, size, options)
            transactions[key] = txn
            self.in_half.immune.append(txn)
            if options is not NO_OPTIONS:
                self.order.keyed_count += 1
                if self.order.wants_all:
                    self.order.add(txn)
        else:
            self._fold_half_with_care(offset, appended_ms, header, record, size)

    @property
    def has_postponed_half(self) -> bool:
        """True if half records were read that are not folded yet."""
        return bool(self._postponed_half)

    def pass_markers(self, *, half_to: int, op_to: int) -> None:
        """Half and op are read to these offsets: what stands there behind the last records are markers, or it was aborted.

        So the positions stand behind it. Retention removes markers with the records before them, and a successor could not
        begin at an offset that the log has lost.
        """
        if half_to > self.half_next and not self._postponed_half:
            self._pass_half(half_to)
        if not self.ops.records:
            self.op_next = max(self.op_next, (op_to, 0))

    def _pass_half(self, half_next: int) -> None:
        """There is no half record between the last one and this offset: a line that names an offset there is misplaced."""
        start, end = self._no_half
        self._no_half = (start if end == self.half_next else self.half_next), half_next
        self.half_next = half_next

    def _fold_postponed(self) -> None:
        postponed, self._postponed_half = self._postponed_half, []
        for half in postponed:
            self.fold_half(*half)

    def recall_half(self, header: bytes | None, record: Any) -> None:
        """Remember a half record from before the replay: a transaction that begins with it is settled or is on doubt."""
        if header is None or len(record.headers()) > 1:
            self.half_bytes += held_bytes(record)
        else:  # as in `fold_half`
            self.half_bytes += _PLAIN_BYTES + len(header) + len(record) + len(record.key() or b"")
        if header is None:
            return
        # In most headers, all but the key and the ordering key was seen before.
        text = header.decode("ascii", "replace")
        end, last = text.find("|", 2), text.rfind("|") + 1
        key, tail, asked = text[2:end], text[end:last], text[last:]
        begins, key_hash = self._recalled_tails.get(tail), asked[1:] or None
        if begins is None or not codec.are_plain_options(asked) or text[:2] != PLAIN_START or "\n" in key:
            half = codec.decode_half_header(header)
            if not isinstance(half, HalfHeader):
                return
            if len(self._recalled_tails) >= PLAIN_TAILS_MAX:
                self._recalled_tails.clear()
            begins, key_hash = not half.index, half.options.key_hash
            if text[:2] == PLAIN_START:
                self._recalled_tails[tail] = begins
        count = self.settings.partition_count
        if begins and is_key(key) and own_partition(key, key_hash, partition_count=count) == self.partition:
            self.settled.older[key] = None

    def _fold_half_with_care(self, offset: int, appended_ms: int, raw: bytes | None, record: Any, size: int) -> None:
        """Fold any half record: what the fast path of `fold_half` does for most, by the codec."""
        header = Undecodable("half record without a header txl") if raw is None else codec.decode_half_header(raw)
        count = self.settings.partition_count
        if isinstance(header, HalfHeader):
            header = why_misplaced(header, partition=self.partition, partition_count=count) or header
        if isinstance(header, Undecodable):
            if self._has_room_for_moves:
                self._quarantine(self.settings.half_topic, offset, header, record=record)
            else:
                self._postpone_fold(offset, appended_ms, raw, record, size)
            return
        if header.topic not in self.targets and len(self.unknown_topics) < UNKNOWN_TOPICS_MAX:
            self.unknown_topics.add(header.topic)
        txn = self.find(header.key)
        if txn is None:
            self._begin(header, offset, appended_ms, record, size)
        elif self.is_replaying and txn.is_in_doubt:
            # Of a transaction's records, only a copy of the first could be taken for the beginning of another.
            is_second_copy = header.index == 0 and offset != txn.first_offset
            if is_second_copy and txn.first_offset >= self._replay_low:
                self._note_copy(offset, txn, self.op_next)
            elif is_second_copy:  # earlier batches had no room for some of the older ones
                self._move_before = max(self._move_before, offset)
        elif not self._has_room_for_moves:
            self._postpone_fold(offset, appended_ms, raw, record, size)
        else:
            txn.state, _ = transition(txn.state, TxnEvent.HALF, txn_id=txn.key)  # JOIN in every state
            self._join(txn, header, offset, appended_ms, record, size)

    def _postpone_fold(self, offset: int, appended_ms: int, raw: bytes | None, record: Any, size: int) -> None:
        """Fold it and all behind it with the next batch: this one has no room for what may go to doubt."""
        self.half_next = offset
        self.half_bytes -= size
        self._postponed_half.append((offset, appended_ms, raw, record))

    def _begin(self, header: HalfHeader, offset: int, appended_ms: int, record: Any, size: int) -> None:
        key, group, topic, index, count, born_ms, options = header
        if key in self.settled:
            # The transaction is settled. Or it is the second copy of a record (librdkafka #4953): taken for new, it would be
            # forwarded twice.
            self._report(ReportKind.LATE_HALF, key, f"half record {offset} of nothing that is open")
            return
        if index:
            # Its first record is out of form or was never written. What its producer commits must not vanish with it.
            why = Undecodable(f"record {index}/{count} of a transaction that did not begin", ParkReason.INCOMPLETE)
            self._quarantine(self.settings.half_topic, offset, why, record=record)
            return
        born = str(born_ms)
        txn = Transaction(key, group, topic, offset, appended_ms, born, self.op_next, record, size, options)
        txn.count = count
        if count > 1:
            txn.ensure_extras().offsets = [offset]
        if options.deliver_at_ms is not None:
            txn.ensure_extras().due = DueTimes(left=(options.deliver_at_ms,))
        if count > 1 or options != HalfOptions(options.key_hash):
            txn.content = [Content(0, topic, offset, options, born, record)]
        self.content_bytes += size
        self.transactions[key] = txn
        self.in_half.immune.append(txn)
        if options.immunity_ms is not None:
            self.schedule.add(txn)
        self.order.keyed_count += txn.key_hash is not None
        self.order.add(txn)

    def _move_older(self, *, before: int) -> None:
        """Move older transactions to doubt, so that no replay meets this second copy without its first copy."""
        self._move_before = max(self._move_before, before)
        self._continue_moves()

    def _join(
        self, txn: Transaction, header: HalfHeader, offset: int, appended_ms: int, record: Any, size: int
    ) -> None:
        extras = txn.ensure_extras()
        if txn.count == 0 and header.index == 0:  # so far known from an op line only; now its half record arrives
            txn.count, txn.group = header.count, header.producer_group
            txn.topic, txn.options = header.topic, header.options
            txn.first_offset, txn.appended_ms, txn.born = offset, appended_ms, str(header.born_ms)
            self.order.keyed_count += txn.key_hash is not None
            self._only_named_count -= 1
            extras.offsets = []
        # Avoids a call in most cases.
        is_next = header.index == txn.seen and header.count == txn.count
        fit = HalfRecordFit.NEXT if is_next else txn.fit_of(header, offset)
        if fit is HalfRecordFit.NONE:
            why = Undecodable(f"record {header.index}/{header.count} where {txn.seen}/{txn.count} is due")
            self._quarantine(self.settings.half_topic, offset, why, record=record)
            return
        if fit is not HalfRecordFit.NEXT:
            self._join_copy(txn, offset, is_last=header.index == txn.count - 1)
            return
        if not txn.has_room_for(header.topic):
            why = Undecodable(
                f"more real topics than a transaction may have ({TOPICS_BYTES_MAX} bytes of names)", ParkReason.LIMIT
            )
            self._quarantine(self.settings.half_topic, offset, why, record=record)
            return
        if (too_many := _add_time(txn, header.options.deliver_at_ms)) is not None:
            self._quarantine(self.settings.half_topic, offset, too_many, record=record)
            return
        txn.seen += 1
        if txn.seen > 1:
            self._further_count += 1
        txn.size += size
        txn.last_offset = offset
        assert extras.offsets is not None  # more than one half record: set
        extras.offsets.append(offset)
        txn.add_topic(header.topic)
        content = Content(header.index, header.topic, offset, header.options, str(header.born_ms), record)
        if txn.is_in_doubt:
            self.doubt_index.further_count += txn.seen > 1
            move = self.batch.to_doubt.get(txn.key)
            if extras.is_growing and txn.may_grow:
                self.batch.to_doubt[txn.key] = move or MoveToDoubt(txn, is_whole=False, has_summary=False)
                self._untold.setdefault(txn.key, self.times.now_ms)
            elif extras.joined is None or (move is not None and not move.has_summary):
                self._keep_on_doubt(txn)
                if txn.seen == 1:  # so far doubt knows it from an op line only
                    self.batch.to_doubt[txn.key] = MoveToDoubt(txn, is_whole=True)
            extras.joined = extras.joined or []
            extras.joined.append(content)
            self.batch.byte_count += size
        elif txn.content is not None:  # else it was dropped, and is fetched whole when needed
            txn.content.append(content)
            self.content_bytes += size

    def _join_copy(self, txn: Transaction, offset: int, *, is_last: bool) -> None:
        extras = txn.ensure_extras()
        if len(extras.second_copies or ()) < SECOND_COPIES_MAX + SECOND_COPIES_MAX * is_last:
            extras.second_copies = [*(extras.second_copies or ()), offset]
            self._copy_count += 1
        if txn.is_in_doubt:
            self._keep_on_doubt(txn)  # an op line may name any copy: the summary must list them
            self._move_older(before=offset)
        else:
            self._note_copy(offset, txn, txn.replay_from)

    def _note_copy(self, offset: int, txn: Transaction, replay_from: OpPosition) -> None:
        self._second_copies.pop(txn.first_offset, None)  # the newest is the last
        self._second_copies[txn.first_offset] = offset, replay_from, txn.appended_ms

    # --- questions and age -------------------------------------------------------------------------

    def _answered_unknown(self, txn: Transaction, op: OpMessage) -> None:
        if op.source is Source.OPERATOR and not self.may_ask:
            if len(self._to_ask) < TO_ASK_MAX:
                self._to_ask[txn.key] = None
            return
        if op.source is Source.OPERATOR:
            self._ask(txn, self.times.newest_ms)
            return
        extras = txn.extras
        if (
            op.source not in ANSWERING
            or extras is None
            or op.check_number != extras.checked_count
            or op.check_number <= extras.answered_number
        ):
            # The producer's own line, an answer to an older check-back, or a repeated answer: not counted.
            self._report_without_effect(op, Effect.REPEAT)
            return
        extras.answered_count += 1
        extras.answered_number = op.check_number
        if txn.state is TxnState.OPEN and self.schedule.is_out_of_answers(txn):
            self._give_up(txn, ParkReason.CHECKS_EXHAUSTED, self.times.newest_ms)
        self._keep_on_doubt(txn)

    def _report_without_effect(self, op: OpMessage, effect: Effect) -> None:
        kind = ReportKind.REPEAT
        if effect is Effect.CONFLICT:
            kind = ReportKind.CONFLICT
            self._notify_refused(op)
        self._report(kind, op.key, f"{op.resolution.name} by {op.source.value} {op.reason}".rstrip())

    def _notify_refused(self, op: OpMessage) -> None:
        """Add a record that tells the producer group that its resolution came too late."""
        if op.source in (Source.OPERATOR, Source.POLICY) or self.is_replaying:
            return
        self.batch.checks[f"{op.key}/{op.resolution.value}"] = CheckRecord(
            CheckKind.REFUSED,
            op.key,
            op.producer_group,
            self.partition,
            op.last_offset,
            op.born_ms,
            op.check_number or 0,
            f"{op.resolution.name} by {op.source.value}",
        )

    def _ask_those_due(self, *, now_ms: int, present: Collection[str], count_max: int) -> None:
        """Add due check-backs to groups with a live responder; give up on transactions that are too old or out of checks."""
        self.in_half.end_immunity(now_ms, newest_ms=self.times.newest_ms)
        schedule = self.schedule
        while self._to_ask and self.may_ask and self._has_room:
            key = next(iter(self._to_ask))
            wanted = self.find(key)
            if not self._has_room_for_key(wanted):
                break
            del self._to_ask[key]
            if wanted is not None and wanted.state in (TxnState.OPEN, TxnState.PARKED):
                self._ask(wanted, now_ms)
        self._load_due(now_ms, count_max)
        schedule.ripen(now_ms)
        # None is given up while others must leave half: `_proceed_with_free` would release none of those that waited for it. A replay
        # would take them for forwarded.
        for txn in schedule.take_overdue(now_ms, count_max):
            if self._has_room and self._has_room_for_key(txn) and not self._has_moves_left:
                self._give_up(txn, ParkReason.TOO_OLD, now_ms)
            else:
                schedule.try_again(txn, now_ms)
        for txn in schedule.take(now_ms, present, count_max):
            is_to_give_up = schedule.is_out_of_answers(txn)
            if not self._has_room or not self._has_room_for_key(txn) or (is_to_give_up and self._has_moves_left):
                schedule.add(txn)
            elif is_to_give_up:
                self._give_up(txn, ParkReason.CHECKS_EXHAUSTED, now_ms)
            elif txn.key in self.batch.checks:
                schedule.add(txn)  # an operator asked for it in this batch
            else:
                self._ask(txn, now_ms)
        schedule.tidy(len(self.transactions))
        self._notify_parked(now_ms, present)
        self._report_limits(now_ms)

    def _notify_parked(self, now_ms: int, present: Collection[str]) -> None:
        """Let groups with a live responder hear of their parked transactions."""
        if not self._has_room:
            return
        for key, number in self.schedule.notices.take(
            now_ms, present, is_parked=self._is_parked, open_count=self.open_count
        ):
            txn = self.transactions[key]
            reason = txn.ensure_extras().reason
            text = "" if reason is None else reason.value
            self.batch.checks[_notice_name(key)] = self._check_of(CheckKind.PARKED, txn, number, text)
            self.batch.byte_count += RECORD_BYTES

    def _check_of(self, kind: CheckKind, txn: Transaction, number: int, text: str) -> CheckRecord:
        return CheckRecord(kind, txn.key, txn.group, self.partition, txn.last_offset, txn.born_ms, number, text)

    def _is_parked(self, key: str) -> bool:
        txn = self.transactions.get(key)
        return txn is not None and txn.state is TxnState.PARKED

    def _load_due(self, now_ms: int, count_max: int) -> None:
        """Load dormant transactions, only as many as can be asked soon. Those of groups without a live responder stay dormant."""
        left = count_max  # for all groups together: very many may have one each
        for group in self.dormant.groups:
            for key in self.dormant.too_old(group, now_ms, left):
                self._load(key)
                left -= 1
            room = 2 * self.schedule.policies.of(group).check_rate_max - self.schedule.due_count(group)
            for key in self.dormant.due(group, now_ms, min(room, left)):
                self._load(key)
                left -= 1
            if left <= 0:
                return

    def _ask(self, txn: Transaction, now_ms: int) -> None:
        """Add a check-back for `txn` to the batch. `txn` moves to doubt, where the number of its check-backs survives."""
        if self.is_replaying or not txn.seen:  # a responder could not name a half record
            return
        if txn.key in self.batch.checks:  # one at a time, or its number would be skipped
            return
        extras = txn.ensure_extras()
        extras.checked_count += 1
        extras.asked_ms = now_ms
        check_with = txn.options.check_with
        # Its first message is read whole for what the question carries.
        to_read = txn.size if check_with and txn.is_in_doubt else 0
        self.batch.byte_count += summary_bytes(txn) + max(codec.details_bytes_max(check_with), to_read)
        topics = ",".join(topic for topic in txn.topics if topic)
        self.batch.checks[txn.key] = self._check_of(CheckKind.QUESTION, txn, extras.checked_count, topics)
        self._keep_on_doubt(txn)
        if txn.state is TxnState.OPEN:
            self.schedule.add(txn)
        self._report(ReportKind.CHECKED, txn.key, f"question {extras.checked_count}")

    def _give_up(self, txn: Transaction, reason: ParkReason, now_ms: int) -> None:
        """Stop asking: commit or roll back by policy, or park."""
        if txn.state is not TxnState.OPEN:
            return  # with a check-back by an operator, it was scheduled twice, and both were due
        policy = self.schedule.policies.of(txn.group)
        action = txn.options.unresolved or policy.unresolved
        resolution = _BY_POLICY.get(action)
        # A commit of what is incomplete would publish nothing: its prepare did not succeed.
        is_incomplete = resolution is Resolution.COMMIT and not txn.is_complete_at(txn.last_offset)
        if resolution is not None and self.may_write_op and not is_incomplete:
            op = OpMessage(
                resolution, txn.key, txn.group, txn.last_offset, txn.born_ms, Source.POLICY, reason=reason.value
            )
            self._write_line(txn.key, codec.encode_op(op))
            self.schedule.try_again(txn, now_ms + policy.check_interval_max_ms)
            self._report(ReportKind.POLICY, txn.key, f"{action.value}: {reason.value}")
            return
        self._carry_out(txn, TxnEvent.PARK, reason=reason)
        self._proceed_with_free()

    def _report_limits(self, now_ms: int) -> None:
        """Tell producers that their group has too many open transactions, and that it has not any more."""
        for group, count, is_new in self.open_limits.look(
            self.transactions.values(),
            self.schedule.policies,
            now_ms=now_ms,
            dormant=self.dormant.counts,
            open_count=self.open_count,
        ):
            self.batch.checks[f"{group}/"] = CheckRecord(
                CheckKind.LIMIT, "", group, self.partition, number=count, text="on" if count else "off"
            )
            if is_new:
                detail = f"{group}: {count} are open" if count else f"{group}: not any more"
                self._report(ReportKind.LIMITED, "", detail)

    # --- op lines, batches and replay --------------------------------------------------------------

    def add_ops(self, offset: int, appended_ms: int, value: bytes | None, record: Any) -> None:
        """Add one op record; `advance` applies its lines in order."""
        self.times.saw(appended_ms)
        self.op_read_ms = appended_ms  # also if it is earlier: op may have another leader, with a slower clock
        self.ops.add(offset, appended_ms, value, record)

    def advance(self, *, line_count_max: int, byte_count_max: int) -> Batch:  # hot path, kept in one piece
        """Apply op lines until one names a half record that is not read yet, or until a limit is reached.

        The batch also holds what follows from half records that were folded before. It belongs to the ledger until
        `published`, or until the ledger is discarded.
        """
        batch, transactions, refusals = self.batch, self.transactions, self.refusals
        if batch.is_empty:
            batch.line_count = 0  # a batch that may be refused does not include lines without effect
            batch.byte_count = 0
            batch.marks.clear()
        self._fold_postponed()
        self._continue_earlier_work()
        if self._has_moves_left:
            # As in `_proceed_with_free`.
            return self._pause(self.op_next, batch.line_count, 0, 0)
        unapplied = self.ops
        forwards, recent, ops = batch.forwards, self.settled.newer, unapplied.records
        passes = self.order.passes
        begins, ends, key_index = PRODUCER_COMMIT, PRODUCER_END, KEY_INDEX
        start = self.op_next[1] if ops and ops[0][0] == self.op_next[0] else 0
        line_count = batch.line_count
        quick_bytes, quick_bytes_left = 0, byte_count_max - batch.byte_count
        dropped_bytes = 0  # of those on the fast path, not in memory
        topic, topic_bytes_max = "", -1
        self.waits_for_half = None
        marked_ms = -1
        while ops:
            op_offset, appended_ms, lines, op_bytes = ops[0]
            if appended_ms != marked_ms:
                marked_ms = appended_ms
                self._op_newest_ms = max(self._op_newest_ms, appended_ms)
                batch.marks.append((len(forwards), appended_ms))
            if not lines:
                if line_count >= line_count_max or quick_bytes >= quick_bytes_left:
                    return self._pause((op_offset, 0), line_count, quick_bytes, dropped_bytes)
                quick_bytes_left -= self._quarantine_unreadable(op_offset)
                line_count += 1
            # In a replay: lines that were quarantined.
            passed_over = self._quarantined_lines.get(op_offset, b"")
            for number in range(start, len(lines)):
                if passed_over and number < len(passed_over) and passed_over[number]:
                    continue
                if line_count >= line_count_max or quick_bytes >= quick_bytes_left:
                    return self._pause((op_offset, number), line_count, quick_bytes, dropped_bytes)
                line = lines[number]
                key = line[key_index : line.find("|", key_index)]
                if (
                    (txn := transactions.get(key)) is not None
                    and txn.extras is None
                    and txn.state is _OPEN
                    and line == f"{begins}{key}|{txn.group}|{txn.last_offset}|{txn.born}{ends}"
                    and (not refusals or key not in refusals)
                ):
                    if txn.topic is not topic:
                        topic = txn.topic
                        topic_bytes_max = self.targets.get(topic, UNKNOWN_TARGET).quick_bytes_max
                    size = txn.size
                    if size <= topic_bytes_max and (txn.options is NO_OPTIONS or passes(txn)):
                        # OPEN + COMMIT → WAITING + GO → COMMITTED, as in the transition table. Its twin is `_apply`;
                        # tests/unit/test_quick_path.py compares the two.
                        del transactions[key]
                        txn.state = _COMMITTED
                        recent[key] = txn.first_offset
                        quick_bytes += size
                        if txn.content is None:
                            dropped_bytes += size
                        forwards.append(txn)
                        line_count += 1
                        continue
                op = codec.decode_op(line)
                batch.byte_count += quick_bytes
                self.content_bytes -= quick_bytes - dropped_bytes
                quick_bytes = dropped_bytes = 0
                if not self._apply_or_wait(op, line, (op_offset, number)):
                    return self._pause((op_offset, number), line_count, 0, 0)
                quick_bytes_left = byte_count_max - batch.byte_count
                line_count += 1
            ops.popleft()
            start = 0
            unapplied.line_count -= len(lines) or 1
            unapplied.byte_count -= op_bytes
            self.op_next = (op_offset + 1, 0)
        return self._pause(self.op_next, line_count, quick_bytes, dropped_bytes)

    def _apply_or_wait(self, op: OpMessage | Undecodable, line: str, position: OpPosition) -> bool:
        """Apply a line. False: it must wait, for half or for room in the batch."""
        if isinstance(op, Undecodable):
            self._quarantine_line(op, line, position)
        elif self._is_without_half(op.last_offset):
            is_early = position[0] >= self._misplaced_before or op.last_offset < self._misplaced_from
            if op.last_offset >= self.half_next and (is_early or self._postponed_half):
                self.waits_for_half = op.last_offset
                return False
            self._quarantine_misplaced_line(op, line, position)
        elif op.key in self.batch.parked and not self.is_replaying:
            return False  # doubt says first that it was parked, or nothing in the log would explain why others went before it
        elif self.is_replaying or self._has_room_for_key(self.find(op.key)):
            self._apply(op, position)
        else:
            return False
        return True

    def _is_without_half(self, offset: int) -> bool:
        """True if no half record is at this offset, or none is read yet. A replay does what was done."""
        start, end = self._no_half
        return (offset >= self.half_next or start <= offset < end) and not self.is_replaying

    def _pause(self, position: OpPosition, line_count: int, quick_bytes: int, dropped_bytes: int) -> Batch:
        self.op_next = position
        self.content_bytes -= quick_bytes - dropped_bytes
        self.batch.line_count = line_count
        self.batch.byte_count += quick_bytes
        self.half_marks.passed(self.half_next, self.half_bytes)
        self.settled.forget_old_ones(half_next=self.half_next)
        return self.batch

    def _quarantine_unreadable(self, offset: int) -> int:
        """Keep an op record without lines aside, and return how much larger the batch is by it."""
        before = self.batch.byte_count
        why, record = self.ops.take_unreadable(offset)
        self._quarantine(self.settings.op_topic, offset, why, record=record)
        return self.batch.byte_count - before

    def _apply(self, op: OpMessage, position: OpPosition) -> None:
        """Apply any op line: what the fast path of `advance` does for most, by the transition table."""
        if op.source in ANSWERING:
            answers = self.batch.answers
            answers[op.resolution] = answers.get(op.resolution, 0) + 1
        event = TxnEvent.ABANDON if op.is_abandon else _EVENTS[op.resolution]
        if op.is_release:
            event = TxnEvent.RELEASE
            self._forget_release_ahead(_release_name(op.key, op.time_ms))
        elif op.is_reschedule:
            event = TxnEvent.RESCHEDULE
        txn = self.transactions.get(op.key)
        if self.is_replaying and (op.key in self.dormant if txn is None else txn.is_in_doubt):
            return  # applied before: doubt holds the result
        txn = txn or self._load(op.key)
        if txn is None:
            state = self.settled.state_of(op.key)
            if state is None:
                self._report(ReportKind.UNMATCHED, op.key, f"{event.value} by {op.source.value}")
            else:
                self._report_without_effect(op, transition(state, event, txn_id=op.key)[1])
        elif not txn.has_half_at(op.last_offset):
            self._report(ReportKind.WRONG_OFFSET, op.key, f"{event.value} names half offset {op.last_offset}")
        elif not txn.is_of_group(op.producer_group):
            detail = f"{event.value} names producer group {op.producer_group}"
            self._report(ReportKind.WRONG_GROUP, op.key, detail)
        elif op.time_ms is not None and not self._is_about_time(txn, op):
            self._report_without_effect(op, Effect.REPEAT)
        else:
            if txn.state in _PARKED:
                self.batch.returned.add(txn.key)
            self._carry_out(txn, event, op=op, position=position)
        if op.is_release:
            self._releases_before = max(self._releases_before - 1, 0)
        self._proceed_with_free()

    def _is_about_time(self, txn: Transaction, op: OpMessage) -> bool:
        """True if a line with a time counts: one that releases messages names the time that they wait for, and was appended when it had come.

        So nothing is early by the clock of the broker, whatever clock its writer has.
        """
        due, time_ms = txn.due, op.time_ms
        if due is None or time_ms is None or not txn.may_be_released or (op.is_release and due.left[0] != time_ms):
            return False
        if op.is_reschedule:
            return True
        early_ms = time_ms - self.ops.records[0][1]
        if time_ms <= due.said_ms:  # this ledger wrote it
            self._learn_how_far_op_is_behind(early_ms)
            if early_ms > 0:
                due.said_ms = time_ms - 1  # it is written again
                self._asked_op_ms = self.times.now_ms
                self._await_release(txn)
        return early_ms <= 0

    def _learn_how_far_op_is_behind(self, early_ms: int) -> None:
        """The clock of op's broker may be behind: then lines are written later, or they would be written again and again without effect."""
        at_most_ms = max(self.times.now_ms - self.ops.records[0][1], 0) + CLOCK_ERROR_MS
        behind_ms = min(max(self._op_behind_ms + early_ms * (not self._releases_before), 0), at_most_ms)
        if behind_ms != self._op_behind_ms:
            self._op_behind_ms, self._releases_before = behind_ms, len(self._releases_ahead) + 1

    def _remember_on_doubt(self, txn: Transaction, position: OpPosition) -> None:
        """Only doubt can tell a restart that this line ended `txn`: the restart may read a half record that arrives later."""
        if txn.is_in_doubt:
            self._hold_back_doubt(position, min(self.doubt_index.low, txn.ensure_extras().doubt_offset))
        else:  # its summary is part of this batch, and is left out: the null value says enough
            self._hold_back_doubt(position, self.doubt_index.low)
            self._end_on_doubt(txn)

    def _end_on_doubt(self, txn: Transaction) -> None:
        """Write null values for a transaction that settles now and is not on doubt."""
        self.batch.ends.append(txn)
        self.batch.byte_count += RECORD_BYTES * (txn.seen + 1)

    @property
    def has_more(self) -> bool:
        """True if there is work that can go on now: op lines, or what did not fit into one batch."""
        return bool(
            (self.ops.records and self.waits_for_half is None)
            or self._mended
            or self._keys_for_next_batch
            or self._has_moves_left
            or self._postponed_half
        )

    @property
    def unapplied_ms(self) -> int | None:
        """Append time of the oldest record that was read and can go on now, but for the size of a batch. None: there is none."""
        times = [
            self._postponed_half[0][1] if self._postponed_half else None,
            self.ops.oldest_ms if self.waits_for_half is None else None,
        ]
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def forget_batch(self) -> None:
        """Discard the batch of a replay, and the content of what it settled: that is not needed, and not counted."""
        for txn in self.batch.forwards:
            txn.content = None
        self.batch = Batch()

    def filled(self, txn: Transaction, contents: list[Content]) -> None:
        """Attach fetched content that was not in memory; it stays until the batch is published."""
        txn.content = contents
        if txn.lacks_topics:
            txn.learn_topics(contents)
            if txn.state is TxnState.HELD:
                self._ask_about_topics(txn)
        # Content that doubt did not take whole may be fetched in the form that doubt holds; forwarding needs its full size.
        txn.size = max(txn.size, sum(held_bytes(content.record) for content in contents))
        if txn.key in self.transactions:
            self.content_bytes += txn.size

    # --- time ---------------------------------------------------------------------------------------------------------

    def let_time_pass(self, *, now_ms: int, move_count_max: int, present: Collection[str] = frozenset()) -> None:
        """Add to the batch what follows from the time alone: check-backs, moves to doubt, the end of asking and of holding.

        `present` contains the producer groups with a live responder. `now_ms` is 0 while no trusted time is known; then
        only what needs no time follows. Call it only after half and op have been read to the ends that were taken at
        assignment. While lines are read that are not applied, `now_ms` is no later than the time of the first of them.
        """
        self.times.now_ms = max(self.times.now_ms, now_ms)
        if now_ms:
            self._ask_those_due(now_ms=now_ms, present=present, count_max=move_count_max)
            self._release_those_due(now_ms)
        born_before_ms = now_ms - self.settings.doubt_after_ms
        # A transaction with an append time in the future must not hold back half and those behind it until then.
        young = range(born_before_ms + 1, max(now_ms, self.times.newest_ms) + 1)
        for txn in self._unsettled_in_half() if now_ms else ():
            if txn.appended_ms in young or len(self.batch.to_doubt) >= move_count_max or not self._has_room:
                break
            if txn.key not in self.batch.to_doubt:
                if not self._has_room_for_key(txn):
                    break
                self._carry_out(txn, TxnEvent.MOVE)
                self._report(ReportKind.MOVED, txn.key, "")
        if now_ms and self._second_copies and next(iter(self._second_copies.values()))[2] not in young:
            # Copies between which others begin would keep half readable from the first one on: whoever lies before the newest one leaves.
            self._move_older(before=next(reversed(self._second_copies.values()))[0])
        while self._untold and self._has_room and len(self.batch.to_doubt) < move_count_max:
            key, since_ms = next(iter(self._untold.items()))
            if born_before_ms < since_ms:
                break
            del self._untold[key]
            if (grown := self.transactions.get(key)) is not None:
                self._keep_on_doubt(grown)
        left = move_count_max - len(self.batch.to_doubt)
        # Ask again which topics accept: a caller that learned of a mended topic may be gone.
        if not self._mended:  # otherwise they are in it already; each may be there once
            self._mended.extend(self.doubt_index.held_in_vain(self.targets))
        self._continue_earlier_work()
        held_max_ms = self.settings.held_age_max_ms
        too_long = self.doubt_index.held_too_long(now_ms=now_ms, age_max_ms=held_max_ms, targets=self.targets)
        for txn in too_long[: max(left, 0)]:
            self._carry_out(txn, TxnEvent.EXPIRED, reason=ParkReason.HELD_TOO_LONG)
            left -= 1
        for key in self.doubt_index.to_write_again(max(left, 0)):
            oldest = self.look_at(key)
            assert oldest is not None  # it is on doubt
            if not self._has_room:
                break
            self.batch.to_doubt[key] = MoveToDoubt(oldest, is_whole=True)
            self.batch.byte_count += oldest.size + summary_bytes(oldest)
        self._proceed_with_free()

    def mended(self, topics: Iterable[str]) -> None:
        """`topics` may accept again: try the transactions that are held for them, in the order of the decisions."""
        self._mended.extend(self.doubt_index.held_for(topics))
        self._continue_earlier_work()

    # --- misplaced records --------------------------------------------------------------------------------------------
    # The rule: txlayer/core/ledger/misplaced_records.py.

    def give_up_waiting_for_half(self, *, before: int, half_end: int) -> None:
        """Treat lines of op records before this offset that name an offset beyond half's end as misplaced: they waited long enough."""
        self._misplaced_before, self._misplaced_from = before, half_end
        self.waits_for_half = None

    def _quarantine_misplaced_line(self, op: OpMessage, line: str, position: OpPosition) -> None:
        """Quarantine it, unless an operator speaks of a transaction without a half record: the line cannot name one."""
        txn = self.find(op.key)
        if txn is not None and not txn.seen and op.source is Source.OPERATOR:
            self._apply(op, position)
            return
        self._quarantine_line(NAMES_NO_HALF, line, position)
        if txn is None and op.key not in self.settled and self._only_named_count < ONLY_NAMED_COUNT_MAX:
            self._only_named_count += 1
            txn = parked_by_line(op, position, appended_ms=self.times.newest_ms)
            self.transactions[op.key] = txn
            self._keep_on_doubt(txn)

    def _quarantine_line(self, why: Undecodable, line: str, position: OpPosition) -> None:
        """Quarantine an op line. It has no effect, now or in a replay: doubt records that it was quarantined."""
        offset, number = position
        self._quarantine(self.settings.op_topic, offset, why, line=line, number=number)
        if not self.is_replaying:
            self._hold_back_doubt(position, self.doubt_index.low)

    def _hold_back_doubt(self, position: OpPosition, doubt_low: int) -> None:
        held = self._doubt_held_back
        if held and held[-1][1] == doubt_low:
            held.pop()
        held.append((position, doubt_low))

    # --- positions, memory, restart -----------------------------------------------------------------------------------

    def positions(self) -> Positions:
        """Positions at which a successor begins once the batch is appended."""
        oldest = next((t for t in self._unsettled_in_half() if t.key not in self.batch.to_doubt), None)
        low_water, replay = (
            (self.half_next, self.op_next) if oldest is None else (oldest.first_offset, oldest.replay_from)
        )
        for first_offset, (copy_offset, replay_from, _) in reversed(self._second_copies.items()):
            # A replay that meets the second copy of a half record must meet the first one too, or it would take the copy for new.
            if copy_offset < low_water:
                break
            if first_offset < low_water:
                low_water, replay = first_offset, replay_from
        while self._second_copies and next(iter(self._second_copies.values()))[0] < low_water:
            del self._second_copies[next(iter(self._second_copies))]
        held_back = self._doubt_held_back
        while held_back and held_back[0][0] < replay:
            held_back.popleft()
        doubt_low = min(self.doubt_index.low, held_back[0][1]) if held_back else self.doubt_index.low
        return Positions(
            low_water, self.half_next, *self.op_next, *replay, doubt_low, self.half_marks.copies_from(low_water)
        )

    def published(self, doubt_offsets: Mapping[str, int]) -> None:
        """The batch is in the log. `doubt_offsets` contains, by transaction, the doubt offset of the first content that was written."""
        self.doubt_index.wrote(self.batch.doubt_record_count)
        for move in self.batch.to_doubt.values():
            move.txn.forget_topics()
            if move.has_summary:
                move.txn.ensure_extras().is_growing = move.txn.may_grow
                self._untold.pop(move.txn.key, None)
            if move.txn.joined and not move.is_whole:
                first = move.txn.seen - len(move.txn.joined), doubt_offsets[move.txn.key]
                move.txn.ensure_extras().further_at += (first,)
                move.txn.forget_joined()
            if self.doubt_index.let_go(move.txn):  # it may have less topics
                self.doubt_index.hold(move.txn)
        for key, doubt_offset in doubt_offsets.items():
            txn, is_whole, _ = self.batch.to_doubt[key]
            if not is_whole:
                continue
            if key in self.transactions:
                self.content_bytes -= txn.size
            txn.forget_content()
            if key in self.dormant:
                self.dormant.put(key, codec.encode_summary(txn.summary()), doubt_offset=doubt_offset, size=txn.size)
            self.doubt_index.put(self.transactions.get(key, txn), doubt_offset)
        for txn in self.batch.forwards:
            if txn.content is not None and txn.key in self.transactions:  # a part of it: the rest is on doubt
                self.content_bytes -= txn.size
            txn.content = None  # other references to the transaction need not hold its content
        for txn in filter(None, map(self.transactions.get, self.batch.to_doubt)):
            self._make_dormant(txn)
        self.batch = Batch()

    def drop_content(self, byte_count: int) -> None:
        """Drop the oldest content until `byte_count` bytes are free. It is fetched again when it is needed."""
        self.content_bytes -= self.in_half.drop_content(byte_count, needed=self.batch.to_doubt)

    def start_replay(self, positions: Positions, kept: DoubtFold, *, doubt_next: int, time_ms: int = 0) -> None:
        """Begin again at stored positions, with the contents of the doubt topic. Then fold half and op, and call `end_replay`.

        The ledger takes over the dormant transactions in `kept`. `time_ms`: this instance's time when the positions were stored;
        time goes on from there, so that transactions also age in a partition without new records.
        """
        self.is_replaying = True
        self.half_next = self._replay_low = positions.low_water
        self.settled.begin_replay(positions.half_next)
        self.half_marks.begin(min(positions.copies_from, positions.low_water))
        self.op_next = (positions.replay_offset, positions.replay_line)
        self.doubt_index.next_offset = doubt_next
        self._quarantined_lines = kept.quarantined_lines
        if kept.quarantined_lines:
            newest = max(kept.quarantined_lines)
            self._hold_back_doubt((newest, len(kept.quarantined_lines[newest])), positions.doubt_low)
        if kept.rolled_back:
            self._hold_back_doubt((positions.op_offset, positions.op_line - 1), positions.doubt_low)
        self.settled.add_unknown(kept.rolled_back)
        # What only a later release can read is not new either: half would bring back what that release did to it.
        self.settled.add_unknown(kept.unreadable)
        others = set[str]()
        for txn in kept.transactions.values():
            self.transactions[txn.key] = txn
            self._further_count += max(txn.seen - 1, 0)
            self._copy_count += txn.copy_count
            self._only_named_count += not txn.seen
            # A transaction that is known from an op line only has no topic: do not ask about "".
            unknown = [t for t in txn.topics if t and t not in self.targets]
            if txn.state in (TxnState.HELD, TxnState.WAITING):
                self.committed_topics.update(dict.fromkeys(unknown))
            else:
                others.update(unknown)
            self.times.saw(txn.ensure_extras().moved_ms)
        # Those without topics are written again, too: their contents, which are read for that, tell the topics.
        lacking = (key for key, txn in kept.transactions.items() if txn.lacks_topics)
        self._untold = dict.fromkeys((*kept.grown, *lacking), 0)
        self.schedule.restore(self.transactions.values())
        self.dormant = kept.dormant
        newest_ms = self.dormant.begin(self.settings.checks, self.release_times)
        self.doubt_index.restore(kept.transactions, self.dormant)
        self.doubt_index.kept_readable_from = min(kept.unreadable.values(), default=None)
        # Those that held ones wait for are asked about first; undecided ones may name any number.
        others |= self.dormant.topics - self.targets.keys()
        self.unknown_topics = {*self.committed_topics, *islice(others, UNKNOWN_TOPICS_MAX)}
        for stored_ms in (newest_ms, time_ms):
            self.times.saw(stored_ms)

    def end_replay(self, positions: Positions) -> None:
        """Half is folded to `half_next` and op to the stored position: continue live, and discard the batch of the replay."""
        self.ops.clear()
        self._quarantined_lines = {}
        self._pass_half(positions.half_next)
        self.op_next = (positions.op_offset, positions.op_line)
        self.forget_batch()
        self._forget_what_doubt_does_not_hold()
        self.order = ForwardOrder(self.transactions.values())
        self._keys_to_try.clear()
        self.is_replaying = False
        for txn in list(self.transactions.values()):
            self._await_release(txn)
            self._make_dormant(txn)  # its half record was read again
        # The first of those that did not fit into a batch may be free.
        self._keys_for_next_batch = dict.fromkeys(
            txn.key_hash
            for txn in self.transactions.values()
            if txn.state is TxnState.WAITING and txn.is_in_doubt and txn.key_hash is not None
        )

    def _forget_what_doubt_does_not_hold(self) -> None:
        # The doubt topic holds fewer copies of half records than the half topic. A line that was refused because its copy was missing may
        # have acted in the replay. A transaction that could not be forwarded then is on doubt, or was settled since.
        parked = [t for t in self.transactions.values() if t.state is TxnState.PARKED_COMMITTED]
        for txn in parked:
            if not txn.is_in_doubt:
                del self.transactions[txn.key]
                self._further_count -= max(txn.seen - 1, 0)
                self._copy_count -= txn.copy_count
                self.content_bytes -= 0 if txn.content is None else txn.size
                txn.content = None
                txn.state = TxnState.COMMITTED  # or rolled back: the doubt topic knew it
                self.settled.newer[txn.key] = None  # its second copies must not be taken for new

    def _unsettled_in_half(self) -> Iterator[Transaction]:
        """The unsettled transactions in half, oldest first."""
        return self.in_half.unsettled(count=self.open_count - self.doubt_index.count)


def _notice_name(key: str) -> str:
    """Under which a batch has the notice that a transaction is parked."""
    return f"{key}/{CheckKind.PARKED.value}"


def _release_name(key: str, time_ms: int | None) -> str:
    """Under which a batch has the line that releases messages of this time."""
    return f"{key}@{time_ms}"


def _add_time(txn: Transaction, time_ms: int | None) -> Undecodable | None:
    """Note the time of a further message of `txn`, None or a time. Returns why it has too many."""
    due = txn.due
    if due is None and time_ms is None:
        return None
    if due is None:  # those before it have none
        due = txn.ensure_extras().due = DueTimes(left=(0,) if txn.seen else ())
    if (time_ms or 0) not in due.left and len(due.left) >= TIMES_MAX:
        return Undecodable(f"more different times than a transaction may have ({TIMES_MAX})", ParkReason.LIMIT)
    due.add(time_ms or 0)
    return None


def _note_release(txn: Transaction, op: OpMessage, position: OpPosition) -> None:
    """A line that counts was applied: its time has come, or with the decision that of the messages without a time."""
    due = txn.due
    if due is None:
        return
    if op.is_release and op.time_ms is not None:
        due.release(op.time_ms)
    elif due.committed_at is None and txn.is_complete_at(op.last_offset):
        due.committed_at = position
        if due.left[:1] == (0,):
            due.release(0)
