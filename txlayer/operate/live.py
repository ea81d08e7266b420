"""What an operator sees now, kept current: the logs are folded once, and followed from there.

`LiveView` reads the positions that the coordinators have stored, folds what is behind them, and then follows half, op and
doubt. It joins no group, fences nobody and writes nothing, so any number may look at any time.

Two sources make the picture, and each is believed where it knows better:

* **Doubt** is the coordinators' own word. What it says of a transaction counts until its next record.
* **Half and op** show the rest, folded with the coordinator's own ledger. It decides nothing by time or by the state of
  topics: what a coordinator decides so, it writes to doubt. Then the transaction leaves this ledger.

Every second the view asks how far the coordinators are and where the logs end. Once it has read to these ends, its picture
is that of the moment at which it asked: `PartitionNow.true_ms`. If the ledger then holds a transaction that the coordinators
do not hold any more (after `txlayer coordinator reset`, or when doubt gives up a line that counted here), the partition is folded
again from the stored positions. After hours without a picture everything is folded again: of what was settled meanwhile,
compaction may have removed the tombstones, too.

Beside its rows it counts rates and latencies of the last minutes, and quarantined records.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import GroupMember, LogReader, TopicPartition, append_time_of
from txlayer.adapters.readers import check_end
from txlayer.coordinator.recovery import Recovery, StoredPositions, count_partitions, ledger_settings
from txlayer.coordinator.shard import latest_ms
from txlayer.core import codec
from txlayer.core.ledger.batch import NO_LIMIT, Batch, Positions
from txlayer.core.ledger.doubt import DoubtFold, HeadersOf, named_by
from txlayer.core.ledger.ledger import LedgerSettings
from txlayer.core.ledger.misplaced_records import NAMES_NO_HALF, LinesAheadOfHalf
from txlayer.core.ledger.transaction import OpPosition, Transaction
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, Effect, TxnEvent, TxnState, transition
from txlayer.core.messages import OpMessage, Resolution, Source
from txlayer.errors import TxLayerError
from txlayer.operate import problem_of
from txlayer.operate.rows import ROLLED_BACK, UnsettledRows
from txlayer.operate.unsettled import (
    ContentlessLedger,
    GroupResponders,
    committed_records,
    query_id_on_doubt,
    read_responders,
    read_stored,
)
from txlayer.runtime.environment import REAL, Environment, Running

BUCKET_MS = 10_000
BUCKET_COUNT = 90  # a quarter of an hour


@dataclass(slots=True)
class Minute:
    """What happened in `BUCKET_MS`, by the brokers' clocks."""

    at_ms: int
    prepared: int = 0
    committed: int = 0
    rolled_back: int = 0
    latency_ms: dict[int, int] = field(default_factory=dict)
    """{upper bound: decisions that came so long after the first half record}"""


class Minutes:
    """Rings of counts; one thread writes, any thread takes a `snapshot`."""

    def __init__(self) -> None:
        self._buckets: dict[int, Minute] = {}

    def prepared(self, at_ms: int) -> None:
        self._at(at_ms).prepared += 1

    def committed(self, at_ms: int, latency_ms: int) -> None:
        bucket = self._at(at_ms)
        bucket.committed += 1
        bound = 1 << max(latency_ms, 0).bit_length()
        bucket.latency_ms[bound] = bucket.latency_ms.get(bound, 0) + 1

    def rolled_back(self, at_ms: int, count: int) -> None:
        self._at(at_ms).rolled_back += count

    def snapshot(self) -> tuple[Minute, ...]:
        """The last quarter of an hour, the oldest first."""
        return tuple(replace(each, latency_ms=dict(each.latency_ms)) for _, each in sorted(self._buckets.items()))

    def _at(self, at_ms: int) -> Minute:
        start = at_ms - at_ms % BUCKET_MS
        bucket = self._buckets.get(start)
        if bucket is None:
            bucket = self._buckets[start] = Minute(start)
            if len(self._buckets) > BUCKET_COUNT:
                del self._buckets[min(self._buckets)]
        return bucket


class Rates(NamedTuple):
    """The last full minute, by the brokers' clocks: transactions a second, and times to a decision, rounded up."""

    prepared: float
    committed: float
    rolled_back: float
    median_ms: int | None  # from the first half record to a commit; None: there was none
    p99_ms: int | None


def rates_of(minutes: Sequence[Minute], *, since_ms: int, now_ms: int) -> Rates | None:
    """Those of the six full buckets before now; None: they were not counted whole, for counting began at `since_ms`."""
    end = now_ms - now_ms % BUCKET_MS
    if not since_ms or since_ms > end - 60_000:
        return None
    recent = [each for each in minutes if end - 60_000 <= each.at_ms < end]
    bins: Counter[int] = Counter()
    for each in recent:
        bins.update(each.latency_ms)
    return Rates(
        sum(each.prepared for each in recent) / 60,
        sum(each.committed for each in recent) / 60,
        sum(each.rolled_back for each in recent) / 60,
        quantile(bins, 0.5) if bins else None,
        quantile(bins, 0.99) if bins else None,
    )


def quantile(bins: Mapping[int, int], share: float) -> int:
    """The upper bound of the bin at which so large a share of all is reached."""
    left = share * sum(bins.values())
    for bound, number in sorted(bins.items()):
        left -= number
        if left <= 0:
            return bound
    return max(bins)


QUARANTINED_MAX = 10_000  # quarantined records that are counted


class Quarantine:
    """The quarantined records on doubt, by key. One thread follows, another reads what was there before."""

    def __init__(self) -> None:
        self._groups: dict[bytes, str | None] = {}  # the producer group that each names, "" for none; None: it is gone
        self._is_whole = False

    @property
    def counts(self) -> Mapping[str, int] | None:
        """How many there are, by the producer group that they name ("": none), together up to `QUARANTINED_MAX`; None: not known yet."""
        return Counter(g for g in list(self._groups.values()) if g is not None) if self._is_whole else None

    def note(self, raw_key: bytes | None, value: bytes | None, headers: HeadersOf) -> None:
        """A record of doubt, in the order of the log; those of transactions are none of ours."""
        parsed = codec.parse_quarantine_key(raw_key)
        if raw_key is None or parsed is None:
            return
        if raw_key in self._groups or len(self._groups) < QUARANTINED_MAX:
            self._groups[raw_key] = None if value is None else sys.intern(named_by(parsed[1], value, headers())[1])

    def add_earlier(self, earlier: Quarantine) -> None:
        """Add what was there before this one began; what was noted since counts."""
        for raw_key, group in earlier._groups.items():
            self._groups.setdefault(raw_key, group)
        self._is_whole = True


_QUARANTINED_MAX = 10_000  # op lines of a partition that this ledger has quarantined itself, and remembers


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
        return self._doubt_last - self._doubt_from

    def fold(self, offset: int, raw_key: bytes | None, value: bytes | None, headers: HeadersOf = lambda: None) -> None:
        self._doubt_last = offset
        if value is not None and raw_key is not None and raw_key.endswith(b"/0") and not raw_key.startswith(b"origin/"):
            named = query_id_on_doubt(raw_key, headers)
            if named is not None:
                self._ledger.rows.note_query_id(named, self._ledger.partition)
            return  # content: half of all records
        parsed = codec.parse_doubt_key(raw_key)
        if parsed is None:
            self._quarantine.note(raw_key, value, headers)
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
        self.committed: list[int] = []  # append times of the transactions that the last op record committed
        self.decided: dict[str, str] = {}  # what the last op record made of transactions that are not on doubt, by key
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

logger = logging.getLogger("txlayer.operate")

POLL_S = 1.0  # between two questions how far the coordinators are
PRESENCE_S = 5.0
"""Between two looks at the members of groups, and at the number of partitions; while coordinators share them anew, `POLL_S`."""
STABLE = "stable"  # the state of a group whose members have their partitions
GIVE_UP_S = 60.0  # how long the ends of one moment are waited for: an open Kafka transaction may hide them
RETRY_S = 2.0  # pause after a failure
REFOLD_S = 30.0  # a partition is folded again at most this often
PICTURE_AGE_MAX_MS = 12 * 3_600_000
"""Without a picture for so long everything is folded again. Tombstones of doubt stay for a day (its `min.compaction.lag.ms`)."""
READ_COUNT_MAX = 10_000
READ_S = 0.2
"""Records of one step, and how long it waits for the first."""
AHEAD_LINES_MAX = 50_000  # op lines of a partition that wait for half: above it, reading of its op pauses
YOUNG_COUNT_MAX = 100_000
"""Transactions in all ledgers, about 60 MB: above it, reading of half pauses until doubt or op lines take some away."""
DECIDED_MAX = 50_000
"""Decisions of a partition that are remembered until they are carried out: doubt may say later what was before them."""
RECALLED_MAX = 2_000
"""Half records of a partition before the low-water mark that are read, to know second copies of them."""
GROUPS_MAX = 200  # producer groups that are looked at for responders
_MARKS_MAX = 5_000
_MARK_MS = 200


class PartitionNow(NamedTuple):
    """One partition, as of `true_ms`."""

    partition: int
    true_ms: int  # 0: not read to the end yet
    writer: str  # the process that stored the positions; "": none did
    op_lag: int  # offsets of op that are not carried out (markers count)
    op_lag_ms: int  # age of the oldest op line that is not carried out
    half_lag: int  # offsets of half that are not read
    restart_count: int  # offsets of half that a restart would read again
    op_end: int = 0
    doubt_end: int = 0  # the rows show what op and doubt say before these offsets


class LiveState(NamedTuple):
    """What a view knows beside its rows. `true_ms` is that of the partition that is known worst."""

    true_ms: int = 0
    is_ready: bool = False  # every partition was read to its end once
    read_count: int = 0  # offsets of doubt that are read before that, of so many
    to_read_count: int = 0
    problem: str = ""  # why it does not go on; "": it does
    problem_ms: int = 0  # since when
    group_state: str = ""  # of the coordinators' group
    members: tuple[GroupMember, ...] = ()
    group_ms: int = 0  # when the members were seen
    closed_at_ms: int | None = None  # since when the namespace accepts no new transactions
    group_problem: str = ""  # why they are not known now
    responders: tuple[GroupResponders, ...] = ()
    partitions: tuple[PartitionNow, ...] = ()
    quarantined: Mapping[str, int] | None = (
        None  # quarantined records, by the group that they name ("": none); None: not counted yet
    )
    minutes: tuple[Minute, ...] = ()
    since_ms: int = 0  # the minutes begin here


class _Poll(NamedTuple):
    """How far the coordinators were, and where the logs ended, at one moment."""

    at_ms: int
    stored: dict[int, StoredPositions]
    ends: dict[TopicPartition, int]


@dataclass(slots=True)
class _Followed:
    """One partition."""

    ledger: YoungLedger
    stored: StoredPositions
    folded_at: float
    folded_ms: int  # when its fold began, by the wall clock, which goes on while a machine sleeps
    shown: dict[str, tuple[TxnState, int]] = field(default_factory=dict)
    """The rows that are not on doubt: their state, and how many half records are there."""
    forwarded: deque[tuple[OpPosition, list[Transaction]]] = field(default_factory=deque)
    """Committed by the lines before a position, not known to be carried out, and not shown."""
    decided: dict[str, tuple[str, OpPosition]] = field(default_factory=dict)
    """What lines before a position made of transactions, by key, as long as that is not known to be carried out."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Op offsets and their append times, a few a second: the records from one to the next are as old, or a little younger."""
    op_end: int = 0  # behind the last op record that was read
    lines_ahead: LinesAheadOfHalf = field(default_factory=LinesAheadOfHalf)
    is_stale: bool = False
    now: PartitionNow | None = None

    def mark(self, op_offset: int, appended_ms: int) -> None:
        """An op record was read."""
        self.op_end = op_offset + 1
        if not self.marks or appended_ms - self.marks[-1][1] >= _MARK_MS:
            self.marks.append((op_offset, appended_ms))
            if len(self.marks) > _MARKS_MAX:
                del self.marks[1::2]

    def op_lag_ms(self, carried_out: int, now_ms: int) -> int:
        """Age of the oldest op record that is not carried out up to this offset; 0: all are."""
        passed = sum(1 for offset, _ in self.marks[1:] if offset <= carried_out)
        del self.marks[: len(self.marks) if carried_out >= self.op_end else passed]
        return max(now_ms - self.marks[0][1], 0) if self.marks else 0


def _before(position: OpPosition) -> OpPosition:
    offset, line = position
    return (offset, line - 1) if line else (offset - 1, NO_LIMIT)


class LiveView:
    """One namespace. One thread calls `step` or `run`; any thread reads `state` and asks `rows`."""

    def __init__(self, connect: Callable[[], CoordinatorConnections], *, environment: Environment = REAL) -> None:
        self.rows = UnsettledRows()
        self.state = LiveState()
        self._connect = connect
        self._connections = connect()
        self._config = self._connections.config
        self._topics = self._config.topics
        self._quarantine = Quarantine()
        self._doubt_from: dict[TopicPartition, int] = {}  # doubt offsets at which the first fold began
        self._counting: Running[None] | None = None
        self._environment = environment
        self._clock, self._wall_clock = environment.clock, environment.wall_clock
        self._followed: dict[int, _Followed] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._reader: LogReader | None = None
        self._poll: _Poll | None = None
        self._polled_at = self._looked_at = float("-inf")
        self._is_out_of_date = False
        self._groups: dict[str, None] = {}  # in the order in which they were seen last
        self._minutes = Minutes()

    # --- one thread ---------------------------------------------------------------------------------------------------

    def run(self, *, should_stop: threading.Event) -> None:
        """Keep the view current until `should_stop` is set. A failure is shown, and tried again."""
        try:
            while not should_stop.is_set():
                if not self.step():
                    should_stop.wait(RETRY_S)
        finally:
            self.close()

    def catch_up(self) -> None:
        """Read until every partition was read to its end once, and raise what cannot be read."""
        while not self.state.is_ready:
            self._go_on()
        self._look()  # now the groups are known whose responders matter

    def step(self) -> bool:
        """A bounded piece of work. False: it failed, and `state.problem` says why."""
        try:
            self._go_on()
        except Exception as exc:  # noqa: BLE001 - border of a thread
            self._note_problem(problem_of(exc, logger, "view.failed"))
            if not isinstance(exc, TxLayerError):  # what is not foreseen: everything is folded again
                self._forget()
            return False
        return True

    def close(self) -> None:
        self._close_reader()
        self._connections.close()

    def _go_on(self) -> None:
        if self._is_out_of_date:
            self._begin_anew()
        now = self._clock()
        is_settled = self.state.group_state == STABLE
        if now - self._looked_at >= (PRESENCE_S if is_settled else POLL_S):
            self._look()
        stale = {p for p, each in self._followed.items() if each.is_stale}
        if not self._followed:
            self._fold(range(count_partitions(self._connections, self._topics)))
        elif stale:
            self._fold(stale)
        if self._poll is None and now - self._polled_at >= POLL_S:
            self._poll = self._ask_how_far()
            self._polled_at = now
        self._read()
        if self._poll is not None:
            self._believe(self._poll)
        if self._counting is None and self.state.is_ready:
            self._counting = self._environment.background.start(
                partial(self._count_quarantined, self._quarantine, dict(self._doubt_from)), name="txlayer-kept-aside"
            )
        if self.state.problem and self._polled_at >= now:
            self.state = self.state._replace(problem="", problem_ms=0)

    def _note_problem(self, text: str) -> None:
        self._poll = None
        self._polled_at = float("-inf")
        since_ms = self.state.problem_ms or self._now_ms()
        self.state = self.state._replace(problem=text, problem_ms=since_ms)

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)

    def _forget(self) -> None:
        self._close_reader()
        self._followed.clear()
        self._positions.clear()
        self._poll = None
        self.rows.clear()

    def _begin_anew(self) -> None:
        self._forget()
        self._quarantine, self._counting = Quarantine(), None
        self._doubt_from.clear()
        self._is_out_of_date = False

    def _close_reader(self) -> None:
        if self._reader is not None:
            with suppress(TxLayerError):
                self._reader.close()
        self._reader, self._assigned = None, frozenset()

    def _fold(self, partitions: Collection[int]) -> None:
        began_ms = self._now_ms()
        count = count_partitions(self._connections, self._topics)
        settings = ledger_settings(self._config, partition_count=count)
        self.state = self.state._replace(is_ready=False)
        for p in partitions:
            self.rows.clear(p)
        stored = read_stored(self._connections, partitions)
        for p, each in stored.items():
            copies_from = max(each.positions.copies_from, each.positions.low_water - RECALLED_MAX)
            stored[p] = each._replace(positions=each.positions._replace(copies_from=copies_from))
        ledgers = {p: YoungLedger(p, settings, self.rows) for p in stored}
        self._replay(ledgers, stored)
        self.rows.flush()
        for p, ledger in ledgers.items():
            positions = stored[p].positions
            ledger.end_replay(positions)
            for key in [key for key in ledger.transactions if self.rows.on_doubt(key, p) is not None]:
                ledger.leave(key)
            self._positions[self._topics.half, p] = positions.half_next
            self._positions[self._topics.op, p] = positions.op_offset
            self._positions[self._topics.doubt, p] = ledger.doubt_index.next_offset
            self._doubt_from.setdefault((self._topics.doubt, p), positions.doubt_low)
            self._followed[p] = _Followed(ledger, stored[p], self._clock(), began_ms)
        self._poll = None
        self._polled_at = float("-inf")
        self._close_reader()
        if not self.state.since_ms:
            self.state = self.state._replace(since_ms=self._now_ms())
        if self._counting is not None:  # it ends in the same way: at first, the picture is shown sooner
            self._environment.keep_for_long()

    def _replay(self, ledgers: dict[int, YoungLedger], stored: dict[int, StoredPositions]) -> None:
        """Fold to the stored positions; the rows and `state` show meanwhile what is read, and how far that is."""
        now_ms = self._now_ms()
        doubt_ends = self._connections.end_offsets([(self._topics.doubt, p) for p in stored], is_committed=False)
        lows = {p: each.positions.doubt_low for p, each in stored.items()}
        to_read = sum(max(doubt_ends[self._topics.doubt, p] - low, 0) for p, low in lows.items())
        folds: list[RowsFold] = []

        def make_fold(p: int, op_offset: int) -> RowsFold:
            folds.append(
                RowsFold(
                    self._quarantine,
                    ledgers[p],
                    op_offset=op_offset,
                    half_next=stored[p].positions.half_next,
                    doubt_next=lows[p],
                    now_ms=now_ms,
                )
            )
            return folds[-1]

        def show_progress() -> None:
            read = sum(each.read_count for each in folds)
            self.state = self.state._replace(read_count=min(read, to_read), to_read_count=to_read)

        recovery = Recovery(
            self._config,
            self._connections,
            is_still_ours=show_progress,  # it is called between two reads, and no group can take a partition away
            environment=self._environment,
            make_fold=make_fold,
        )
        show_progress()
        recovery.replay(dict(ledgers), stored)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        reader = self._assigned_reader()
        records = reader.read(record_count_max=READ_COUNT_MAX, timeout_s=READ_S)
        latest = latest_ms(self._wall_clock)
        for each in self._followed.values():
            each.ledger.times.believe_until(latest)
        touched: set[int] = set()
        for record in records:
            tp = (record.topic(), record.partition())
            if tp not in self._positions:
                continue
            touched.add(tp[1])
            error = record.error()
            if error is not None:
                self._take_end(error, record, tp)
                continue
            if record.offset() < self._positions[tp]:
                continue
            self._positions[tp] = record.offset() + 1
            self._take(record, tp, latest)
        self.rows.flush()
        for p in touched:
            self._advance(self._followed[p])

    def _assigned_reader(self) -> LogReader:
        """The reader of every partition but those that must wait."""
        topics = self._topics
        paused = {(topics.op, p) for p, each in self._followed.items() if self._is_op_far_ahead(p, each)}
        if sum(each.ledger.open_count for each in self._followed.values()) > YOUNG_COUNT_MAX:
            paused |= {(topics.half, p) for p in self._followed}
        wanted = frozenset(self._positions.keys() - paused)
        if self._reader is None:
            self._reader = self._connections.make_reader("read_committed")
        if wanted != self._assigned:
            self._reader.assign({tp: self._positions[tp] for tp in wanted})
            self._assigned = wanted
        return self._reader

    def _is_op_far_ahead(self, p: int, followed: _Followed) -> bool:
        is_paused = bool(self._assigned) and (self._topics.op, p) not in self._assigned
        return followed.ledger.ops.line_count > (AHEAD_LINES_MAX // 2 if is_paused else AHEAD_LINES_MAX)

    def _take_end(self, error: Any, record: Any, tp: TopicPartition) -> None:
        try:
            check_end(error, record, tp)
        except TxLayerError:
            self._assigned = frozenset()  # read again what this read did not get to
            if error.name() == "_AUTO_OFFSET_RESET":
                self._followed[tp[1]].is_stale = True
            raise
        self._positions[tp] = max(self._positions[tp], record.offset())
        topics, ledger = self._topics, self._followed[tp[1]].ledger
        half_to = self._positions[topics.half, tp[1]] if tp[0] == topics.half else 0
        op_to = self._positions[topics.op, tp[1]] if tp[0] == topics.op else 0
        ledger.pass_markers(half_to=half_to, op_to=op_to)

    def _take(self, record: Any, tp: TopicPartition, latest: int) -> None:
        topics, followed = self._topics, self._followed[tp[1]]
        ledger, offset = followed.ledger, record.offset()
        appended_ms = append_time_of(record)
        if tp[0] == topics.doubt:
            self._take_doubt(followed, record)
        elif tp[0] == topics.half:
            header = codec.half_header_of(record.headers())
            if appended_ms is not None and header is not None and codec.begins_transaction(header):
                self._minutes.prepared(appended_ms)
            ledger.fold_half(offset, latest + 1 if appended_ms is None else appended_ms, header, record)
        else:
            at_ms = latest + 1 if appended_ms is None else appended_ms
            ledger.add_ops(offset, at_ms, record.value(), record)
            followed.mark(offset, at_ms)

    def _take_doubt(self, followed: _Followed, record: Any) -> None:
        parsed = codec.parse_doubt_key(record.key())
        if parsed is None:
            self._quarantine.note(record.key(), record.value(), record.headers)
            kept = codec.parse_quarantine_key(record.key())
            if kept is not None and kept[1] is not None and record.value() is not None:
                followed.is_stale |= not followed.ledger.is_given_up_in_time((kept[0].offset, kept[1]))
            return
        key, index = parsed
        ledger, value = followed.ledger, record.value()
        if index is not None:
            if value is not None:
                self.rows.note_query_id(query_id_on_doubt(record.key(), record.headers), ledger.partition)
            return
        ledger.take_doubt(key, value, half_next=ledger.half_next, at_ms=record.timestamp()[1])
        if value is not None and (decided := followed.decided.get(key)) is not None:
            # Op was read sooner than doubt.
            self.rows.flush()
            self.rows.decide(key, ledger.partition, decided[0], _before(decided[1]))

    def _advance(self, followed: _Followed) -> None:
        ledger = followed.ledger
        for batch in ledger.steps(2 * READ_COUNT_MAX):
            self._count(batch, ledger.committed)
            followed.decided.update((key, (state, ledger.op_next)) for key, state in ledger.decided.items())
            if batch.forwards:
                followed.forwarded.append((ledger.op_next, batch.forwards))
        for key in list(islice(followed.decided, max(len(followed.decided) - DECIDED_MAX, 0))):
            del followed.decided[key]
        if len(followed.forwarded) > READ_COUNT_MAX:
            self._show_committing(followed)
        ledger.forget_settled()

    def _count(self, batch: Batch, committed: list[int]) -> None:
        if not batch.marks:
            return
        at_ms = batch.marks[0][1]
        for appended_ms in committed:
            self._minutes.committed(at_ms, at_ms - appended_ms)
        if batch.rollback_count:
            self._minutes.rolled_back(at_ms, batch.rollback_count)

    # --- how far the coordinators are -----------------------------------------------------------------------------------

    def _ask_how_far(self) -> _Poll:
        at_ms = self._now_ms()
        stored = read_stored(self._connections, self._followed)
        # The last stable offset may still wait for the markers of what the positions already count in.
        ends = self._connections.end_offsets(list(self._positions), is_committed=False)
        for tp, end in ends.items():
            if end < self._positions[tp]:  # made anew, or brokers lost its end
                self._followed[tp[1]].is_stale = True
        return _Poll(at_ms, stored, ends)

    def _believe(self, poll: _Poll) -> None:
        """Show every partition that is read to the ends of this moment as of then."""
        for p in list(poll.stored):
            tps = [(topic, p) for topic in (self._topics.half, self._topics.op, self._topics.doubt)]
            if all(self._positions[tp] >= poll.ends[tp] for tp in tps):
                self._show(p, poll)
                del poll.stored[p]
        if not poll.stored or self._clock() - self._polled_at >= GIVE_UP_S:
            self._poll = None
        partitions = tuple(
            each.now or PartitionNow(p, 0, each.stored.writer, 0, 0, 0, 0) for p, each in sorted(self._followed.items())
        )
        is_ready = bool(partitions) and all(each.true_ms for each in partitions)
        self.state = self.state._replace(
            true_ms=min((each.true_ms for each in partitions), default=0),
            is_ready=is_ready,
            partitions=partitions,
            quarantined=self._quarantine.counts,
            minutes=self._minutes.snapshot(),
        )

    def _show(self, p: int, poll: _Poll) -> None:
        followed, topics = self._followed[p], self._topics
        if poll.at_ms - (followed.folded_ms if followed.now is None else followed.now.true_ms) > PICTURE_AGE_MAX_MS:
            self._is_out_of_date = True
            return
        before, followed.stored = followed.stored.positions, poll.stored[p]
        stored, ledger = followed.stored.positions, followed.ledger
        reached = (stored.op_offset, stored.op_line)
        is_back = reached < (before.op_offset, before.op_line)
        self._give_up_misplaced_lines(followed, poll, reached)
        is_apart = ledger.waits_for_half is None and ledger.oldest_offset() < stored.low_water
        if (is_back or is_apart) and self._clock() - followed.folded_at >= (0 if is_back else REFOLD_S):
            followed.is_stale = True
            return
        while followed.forwarded and followed.forwarded[0][0] <= reached:
            followed.forwarded.popleft()
        while followed.decided and next(iter(followed.decided.values()))[1] <= reached:
            del followed.decided[next(iter(followed.decided))]
        self.rows.carried_out(p, reached)
        now = {txn.key: (txn.state, txn.seen) for txn in ledger.transactions.values()}
        self.rows.remove_young(followed.shown.keys() - now.keys(), p)
        changed = (key for key, seen in now.items() if followed.shown.get(key) != seen)
        self.rows.put_young((ledger.transactions[key] for key in changed), p)
        followed.shown = now
        self._show_committing(followed)
        for group in {txn.group for txn in ledger.transactions.values()}:
            self._groups.pop(group, None)
            self._groups[group] = None
        for group in list(islice(self._groups, max(len(self._groups) - GROUPS_MAX, 0))):
            del self._groups[group]
        followed.now = PartitionNow(
            p,
            poll.at_ms,
            followed.stored.writer,
            poll.ends[topics.op, p] - stored.op_offset,
            followed.op_lag_ms(stored.op_offset, poll.at_ms),
            poll.ends[topics.half, p] - stored.half_next,
            poll.ends[topics.half, p] - stored.low_water,
            poll.ends[topics.op, p],
            poll.ends[topics.doubt, p],
        )

    def _give_up_misplaced_lines(self, followed: _Followed, poll: _Poll, reached: OpPosition) -> None:
        """Wait no longer for half where coordinators do not, or where they would not if they ran."""
        ledger, half = followed.ledger, (self._topics.half, followed.ledger.partition)
        if ledger.waits_for_half is None:
            followed.lines_ahead.clear()
            return
        given_up: tuple[int, int] | None = (reached[0], ledger.half_next)
        if ledger.op_next >= reached:
            now = self._clock()
            followed.lines_ahead.read_to(ledger.ops.read_to(ledger.op_next), now)
            given_up = followed.lines_ahead.given_up_before(
                op_next=ledger.op_next[0],
                named=ledger.waits_for_half,
                half_next=ledger.half_next,
                half_end=lambda: poll.ends[half],
                now=now,
                patience_s=self._config.misplaced_after.total_seconds(),
            )
        if given_up is not None:
            ledger.give_up_waiting_for_half(before=given_up[0], half_end=given_up[1])
            self._advance(followed)

    def _show_committing(self, followed: _Followed) -> None:
        p = followed.ledger.partition
        for behind, forwards in followed.forwarded:
            self.rows.put_young(forwards, p, committed_at=_before(behind))
        followed.forwarded.clear()

    def _count_quarantined(self, quarantine: Quarantine, before: Mapping[TopicPartition, int]) -> None:
        """Read what is before the fold in doubt, once: no position says where the first quarantined record is."""
        earlier = Quarantine()
        try:
            with closing(self._connect()) as connections:
                starts = connections.start_offsets(list(before))
                ranges = {tp: (start, before[tp]) for tp, start in starts.items()}
                for record in committed_records(connections, ranges):
                    earlier.note(record.key(), record.value(), record.headers)
        except TxLayerError as exc:
            logger.warning("kept_aside.not_counted", extra={"reason": str(exc)})
        else:
            quarantine.add_earlier(earlier)
        self._environment.keep_for_long()

    # --- groups -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look who owns partitions, who answers check-backs, and whether there are more partitions."""
        self._looked_at = self._clock()
        at_ms = self._now_ms()
        count = count_partitions(self._connections, self._topics)
        if self._followed and count != len(self._followed):
            self._forget()
        limits = self._connections.topic_limits(self._topics.half)
        self.state = self.state._replace(closed_at_ms=None if limits is None else limits.closed_at_ms)
        try:
            group = self._connections.group(self._topics.coordinator_group)
            names = list(dict.fromkeys([*self.rows.groups(GROUPS_MAX // 2), *reversed(self._groups)]))[:GROUPS_MAX]
            responders = read_responders(self._connections, names, now_ms=at_ms)
        except TxLayerError as exc:  # rights that are missing there must not hide the rest
            self.state = self.state._replace(group_problem=str(exc))
        else:
            self.state = self.state._replace(
                group_state=group.state, members=group.members, group_ms=at_ms, responders=responders, group_problem=""
            )
