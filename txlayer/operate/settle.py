"""Transactions settled by hand: what an operator orders, the op lines that are written for it, and the outcomes.

Every face says the same of an outcome: `sentence`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import HistoryStart, limits_of
from txlayer.adapters.telemetry import printable
from txlayer.config import SystemTopics, parse_time
from txlayer.coordinator.recovery import count_partitions
from txlayer.core import codec
from txlayer.core.history import TransactionHistory, times_left
from txlayer.core.ledger.transaction import OpPosition, Transaction
from txlayer.core.ledger.transitions import COMMITTING, TxnState
from txlayer.core.messages import OpMessage, Resolution, Source, Undecodable, check_txn_id, nonce_of, txn_id_of
from txlayer.errors import BrokerUnavailableError, ConfigError, UsageError
from txlayer.operate import Json, length_text, time_text, unsettled
from txlayer.operate.history import op_json, operator_of, position_json
from txlayer.operate.operators import OperatorWriter, check_choice
from txlayer.operate.unsettled import PARKED, Filter, Overview, UnsettledTransaction, committed_records, read_stored
from txlayer.runtime.environment import REAL, Environment


class OperatorAction(Enum):
    """What an operator can order for a transaction."""

    CHECK_NOW = "check-now"  #: ask its producer group at once
    COMMIT = "commit"  #: forward it; of what is committed and refused: try again
    ROLLBACK = "rollback"  #: consumers never see it
    ABANDON = "abandon"  #: the same, also of what is committed and cannot be forwarded
    CANCEL = "cancel"  #: of a scheduled one: consumers never see the messages whose time has not come
    RESCHEDULE = "reschedule"  #: of a scheduled one: all messages that are left get another time


class SettlementResult(Enum):
    """Outcomes of an action on one transaction."""

    DONE = "done"  #: it took effect
    ALREADY = "already"  #: it was so before
    NOT_FORWARDED = "not-forwarded"  #: committed, but it cannot be forwarded: it is on doubt
    REFUSED = "refused"  #: the contrary decision came first and counts
    IGNORED = "ignored"  #: the line has no effect: half records came meanwhile; repeat the command
    WRITTEN = "written"  #: the line is stored, and no coordinator has come to it yet
    NOT_SCHEDULED = "not-scheduled"  #: it is not scheduled, or not any more: nothing of it waits for its time
    PLANNED = "planned"  #: a dry run: nothing was written
    NOT_FOUND = "not-found"  #: nothing is stored under this id, and nothing was read about it


GOOD = frozenset({SettlementResult.DONE, SettlementResult.ALREADY, SettlementResult.PLANNED})
"""Results after which nothing is left to do."""

UNDECIDED = frozenset({TxnState.OPEN.value, TxnState.PARKED.value})
_STUCK = frozenset({TxnState.HELD.value, TxnState.PARKED_COMMITTED.value})
_COMMITTED, _ROLLED_BACK = TxnState.COMMITTED.value, TxnState.ROLLED_BACK.value
_RESOLUTIONS = {
    OperatorAction.CHECK_NOW: Resolution.UNKNOWN,
    OperatorAction.COMMIT: Resolution.COMMIT,
    OperatorAction.ROLLBACK: Resolution.ROLLBACK,
    OperatorAction.ABANDON: Resolution.ROLLBACK,
    OperatorAction.CANCEL: Resolution.ROLLBACK,
    OperatorAction.RESCHEDULE: Resolution.UNKNOWN,
}
_GIVE_UP = frozenset({OperatorAction.ABANDON, OperatorAction.CANCEL})
_OF_SCHEDULED = frozenset({OperatorAction.CANCEL, OperatorAction.RESCHEDULE})
_SCHEDULED = TxnState.SCHEDULED.value
_HAS_TURN = _STUCK | {TxnState.WAITING.value}
"""Of a scheduled one: messages are released and not forwarded. Others of it may wait for a later time."""


class RecordedLine(NamedTuple):
    """One op line and its position."""

    position: OpPosition
    appended_ms: int
    op: OpMessage


def time_to_come(name: str, text: str, *, now_ms: int) -> int:
    """As `time_of`; ConfigError: also a time that has passed: a slip of the hand would make messages visible at once."""
    at_ms = time_of(name, text, now_ms=now_ms)
    if at_ms < now_ms:
        raise has_passed(name, text)
    return at_ms


def has_passed(name: str, text: str) -> ConfigError:
    return ConfigError("this time has passed", name=name, value=text, expected="a later one, or 0s: at once")


def time_of(name: str, text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970 of `2h` (from now on), or of an ISO 8601 time (UTC when it names no zone); ConfigError: it is neither."""
    return parse_time(name, text, at_ms=lambda length_ms: now_ms + length_ms)


class SettlementOutcome(NamedTuple):
    """What became of one action on one transaction."""

    key: str  # "id/nonce"
    group: str
    partition: int | None
    before: str | None  # the state that it was found in; None: it was settled
    result: SettlementResult
    state: str | None = None  # now; None: settled, in an unknown way
    reason: str = ""  # why it is on doubt now, a ParkReason's value
    written_at: OpPosition | None = None  # of the operator's line
    decision: RecordedLine | None = None  # what decided, as far as it was read
    decided_ms: int | None = None  # when, as far as it is known
    line: str = ""  # what is, or would be, written
    checked_count: int = 0  # questions asked by now
    is_timed: bool = False  # messages of it have times: some may be visible already


def outcome_of(found: UnsettledTransaction, result: SettlementResult, **more: Any) -> SettlementOutcome:
    """The outcome for a transaction that was found; its state and reason are as before unless `more` says otherwise."""
    txn = found.txn
    decision = more.get("decision")
    decided_ms = None if decision is None else decision.appended_ms
    known = {"state": found.state, "reason": _reason_of(found), "decided_ms": decided_ms, **more}
    is_timed = txn.due is not None
    return SettlementOutcome(txn.key, txn.group, found.partition, found.state, result, is_timed=is_timed, **known)


def _reason_of(found: UnsettledTransaction) -> str:
    more = found.txn.extras
    return "" if more is None or more.reason is None else more.reason.value


class Line(NamedTuple):
    """An op line to write for a transaction that exists."""

    found: UnsettledTransaction
    op: OpMessage


def line_of(action: OperatorAction, found: UnsettledTransaction, signature: str, time_ms: int | None = None) -> Line:
    txn = found.txn
    op = OpMessage(
        _RESOLUTIONS[action],
        txn.key,
        txn.group,
        max(txn.last_offset, 0),  # unknown when no half record came
        txn.summary().born_ms,
        Source.OPERATOR,
        is_abandon=action in _GIVE_UP,
        reason=signature,
        time_ms=time_ms,
    )
    return Line(found, op)


def known_before(action: OperatorAction, state: str) -> SettlementResult | None:
    """What is known without writing, because the decision is in the log; None: the line must be written."""
    if action in _OF_SCHEDULED:
        return None if state == _SCHEDULED else SettlementResult.NOT_SCHEDULED
    if state in UNDECIDED:
        return None
    if action is OperatorAction.COMMIT:
        return None if state in _STUCK else SettlementResult.ALREADY
    # What a coordinator is just forwarding may be past giving up.
    if action is OperatorAction.ABANDON and state != COMMITTING:
        return None
    return SettlementResult.REFUSED


def of_settled(action: OperatorAction, history: TransactionHistory) -> SettlementOutcome:
    h, line = history, history.ending
    decision = None if line is None else RecordedLine((line.offset, line.line), line.appended_ms, line.op)
    state = None if h.state is None else h.state.value
    found = settled_by(action, f"{h.txn_id}/{h.nonce}", h.partition, state, decision)
    decided_ms = h.left_doubt_ms if decision is None else decision.appended_ms
    return found._replace(group=h.producer_group, decided_ms=decided_ms)


def settled_by(
    action: OperatorAction, key: str, partition: int | None, state: str | None, decision: RecordedLine | None
) -> SettlementOutcome:
    """The outcome for a transaction that has come to this state by that line, as far as both are known."""
    wanted = {OperatorAction.CHECK_NOW: "", OperatorAction.COMMIT: _COMMITTED}.get(action, _ROLLED_BACK)
    result = SettlementResult.ALREADY if state == wanted else SettlementResult.REFUSED
    if action is OperatorAction.RESCHEDULE or (action is OperatorAction.CANCEL and state != wanted):
        result = SettlementResult.NOT_SCHEDULED
    group, decided_ms = ("", None) if decision is None else (decision.op.producer_group, decision.appended_ms)
    return SettlementOutcome(key, group, partition, None, result, state, decision=decision, decided_ms=decided_ms)


def of_time(outcome: SettlementOutcome, *, is_due: bool) -> SettlementOutcome:
    """The outcome of an order to reschedule to a time that is now, or has passed: what is visible by then is no finding."""
    is_so = is_due and outcome.result is SettlementResult.NOT_SCHEDULED and outcome.state == _COMMITTED
    return outcome._replace(result=SettlementResult.ALREADY) if is_so else outcome


def result_of(
    action: OperatorAction,
    before: UnsettledTransaction,
    own: OpPosition,
    *,
    said: Sequence[RecordedLine],
    now: UnsettledTransaction | None,
    is_abandoned: bool,
) -> tuple[SettlementResult, str, RecordedLine | None]:
    """(result, state now, decision among `said`) once the coordinator has gone past the operator's line at `own`.

    `said` are the lines since `before` was seen, the oldest first; `now` is None if it is settled. `is_abandoned`: its end on the
    doubt topic says that it was abandoned after its commit.
    """
    txn = before.txn
    if action is OperatorAction.RESCHEDULE:
        # Whether a time was left at the operator's line; the messages may be visible at the new time already.
        left = times_left(() if txn.due is None else txn.due.left, (s[1:] for s in said if s.position < own))
        state = now.state if now is not None else _ROLLED_BACK if is_abandoned else _COMMITTED
        is_done = left and state != _ROLLED_BACK  # it counted, and may be cancelled since
        return SettlementResult.DONE if is_done else SettlementResult.NOT_SCHEDULED, state, None
    counted = [s for s in said if _names_half_of(txn, s.op.last_offset) and txn.is_of_group(s.op.producer_group)]
    decision = None
    if now is None and is_abandoned:
        decision = next((s for s in counted if s.op.is_abandon), None)
    elif before.state in UNDECIDED:
        decision = next((s for s in counted if s.op.is_decision), None)
        # One that is still undecided has grown on doubt, which knows its first and last half record alone.
        if decision is None or (now is not None and now.state in UNDECIDED):
            result = SettlementResult.DONE if action is OperatorAction.CHECK_NOW else SettlementResult.IGNORED
            return result, (now or before).state, None
    is_rolled_back = decision is not None and decision.op.resolution is Resolution.ROLLBACK
    state = now.state if now is not None else _ROLLED_BACK if is_rolled_back else _COMMITTED
    if action is OperatorAction.CHECK_NOW:
        result = SettlementResult.ALREADY
    elif action is OperatorAction.COMMIT and state in _STUCK:
        result = SettlementResult.NOT_FORWARDED
    elif action in _GIVE_UP and now is not None and not is_rolled_back:
        result = SettlementResult.IGNORED
    elif (action is OperatorAction.COMMIT) == is_rolled_back:
        result = SettlementResult.REFUSED
    else:
        is_own = decision is None or decision.position == own
        result = SettlementResult.DONE if is_own else SettlementResult.ALREADY
    return result, state, decision


def _names_half_of(txn: Transaction, offset: int) -> bool:
    """True if a line that names `offset` may count for `txn`, whose missing half records may have come since it was seen."""
    return txn.has_half_at(offset) or (txn.seen < txn.count and offset > txn.last_offset)


BATCH_BYTES = 128 * 1024  # one produce batch of op records, each of one line; where the topic takes less, what it takes

LOOK_AGAIN_S = 0.1  # between two questions how far the coordinators are


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that were found, and the offsets up to which the logs were read for them."""

    found: list[UnsettledTransaction]
    op_ends: Mapping[int, int]
    doubt_ends: Mapping[int, int]


class WrittenLine(NamedTuple):
    """An acknowledged op line."""

    found: UnsettledTransaction
    position: OpPosition


@dataclass(frozen=True, slots=True)
class ManualSettlement:
    """One namespace. One thread uses it; no producer is fenced and no group is joined."""

    connections: CoordinatorConnections
    _: KW_ONLY
    environment: Environment = REAL

    @property
    def topics(self) -> SystemTopics:
        return self.connections.config.topics

    def find(self, is_wanted: Callable[[UnsettledTransaction], bool]) -> Snapshot:
        """What is there now and wanted, in no promised order; everything in the op log so far is in it."""
        overview = Overview(self.connections)
        topic = self.topics.doubt
        # Before the snapshot: what is ended on doubt later is found by `outcomes`.
        count = count_partitions(self.connections, self.topics)
        ends = self.connections.end_offsets([(topic, p) for p in range(count)])
        found = [each for each in overview.unsettled() if is_wanted(each)]
        return Snapshot(found, overview.op_ends, {p: end for (_, p), end in ends.items()})

    def write(
        self, lines: Sequence[Line], *, on_progress: Callable[[int], None] = lambda _count: None
    ) -> list[WrittenLine]:
        """Write the lines, each as a record, and raise as `OperatorWriter.write`; the same lines may be written again."""
        topic = self.topics.op
        limits = limits_of(self.connections.topic_limits, topic)
        batch_bytes = min(BATCH_BYTES, limits.message_bytes_max or BATCH_BYTES)
        client = self.connections.operator_writer(batch_bytes)
        writer = OperatorWriter(client, topic=topic, clock=self.environment.clock)
        records = ((found, found.partition, codec.encode_ops([codec.encode_op(op)])) for found, op in lines)
        return [WrittenLine(found, (offset, 0)) for found, offset in writer.write(records, on_progress=on_progress)]

    def wait(
        self,
        written: Iterable[WrittenLine],
        *,
        patience_s: float,
        on_progress: Callable[[int, int], None] = lambda _count, _partition_count: None,
    ) -> set[int]:
        """The partitions whose coordinators have gone past the lines, and stored it; `on_progress` gets how many of how many have.

        Returns when all have, or when for `patience_s` none of the others moved.
        """
        wanted: dict[int, OpPosition] = {}
        for each in written:
            p = each.found.partition
            wanted[p] = max(each.position, wanted.get(p, each.position))
        missing = dict(wanted)
        before: dict[int, OpPosition] = {}
        clock = self.environment.clock
        give_up_at = clock() + patience_s
        while missing:
            stored = read_stored(self.connections, missing)
            reached = {p: (s.positions.op_offset, s.positions.op_line) for p, s in stored.items()}
            missing = {p: own for p, own in missing.items() if reached[p] <= own}
            on_progress(len(wanted) - len(missing), len(wanted))
            if any(reached[p] != before.get(p) for p in missing):
                give_up_at = clock() + patience_s if before else give_up_at
                before = reached
            if missing and clock() >= give_up_at:
                break
            if missing:
                self.environment.sleep(LOOK_AGAIN_S)
        return wanted.keys() - missing.keys()

    def outcomes(
        self,
        action: OperatorAction,
        written: Sequence[WrittenLine],
        snapshot: Snapshot,
        *,
        reached: Collection[int],
        now: Mapping[str, UnsettledTransaction] | None = None,
    ) -> list[SettlementOutcome]:
        """What became of each; of those in partitions that were not `reached`, that they are written.

        `now` are those of them that are not settled since the coordinators went past the lines; None: they are read.
        """
        keys = {w.found.txn.key for w in written if w.found.partition in reached}
        said: defaultdict[str, list[RecordedLine]] = defaultdict(list)
        abandoned: dict[str, bool] = {}
        doubt = self.topics.doubt

        if keys:
            if now is None:
                overview = Overview(self.connections)
                now = {s.txn.key: s for s in overview.unsettled() if s.txn.key in keys}
            starts = {(self.topics.op, p): snapshot.op_ends[p] for p in reached}
            starts |= {(doubt, p): snapshot.doubt_ends[p] for p in reached}
            ends = self.connections.end_offsets(list(starts))
            ranges = {tp: (start, ends[tp]) for tp, start in starts.items()}
            for record in committed_records(self.connections, ranges):
                if record.topic() == doubt:
                    key, index = codec.parse_doubt_key(record.key()) or ("", None)
                    if index is None and key in keys:
                        abandoned[key] = codec.is_abandoned(record.value(), record.headers())
                    continue
                for line in lines_of(record):
                    if line.op.key in keys:
                        said[line.op.key].append(line)
        outcomes = []
        for found, position in written:
            key = found.txn.key
            if key not in keys:
                outcomes.append(outcome_of(found, SettlementResult.WRITTEN, reason="", written_at=position))
                continue
            found_now = (now or {}).get(key)
            more = None if found_now is None else found_now.txn.extras
            result, state, decision = result_of(
                action, found, position, said=said[key], now=found_now, is_abandoned=abandoned.get(key, False)
            )
            outcome = outcome_of(
                found,
                result,
                state=state,
                reason="" if found_now is None else _reason_of(found_now),
                written_at=position,
                decision=decision,
                checked_count=0 if more is None else more.checked_count,
            )
            outcomes.append(outcome)
        return outcomes

    def known(self, found: UnsettledTransaction, result: SettlementResult) -> SettlementOutcome:
        """The outcome for a transaction of which no line is written, with the line that decided it."""
        position = None if found.txn.extras is None else found.txn.extras.decided_at
        line = position and self._line_at(found.partition, position)
        # Of messages that were released it is the position of the release, which decided nothing.
        return outcome_of(found, result, decision=line if line and line.op.is_decision else None)

    def _line_at(self, partition: int, position: OpPosition) -> RecordedLine | None:
        """The op line at that position; None if retention has removed it."""
        op = (self.topics.op, partition)
        if self.connections.start_offsets([op])[op] > position[0]:
            return None
        records = committed_records(self.connections, {op: (position[0], position[0] + 1)})
        lines = [line for record in records for line in lines_of(record)]
        return next((line for line in lines if line.position == position), None)


def lines_of(record: Any) -> Iterable[RecordedLine]:
    """The lines of an op record that can be read."""
    lines = codec.split_ops(record.value())
    if isinstance(lines, Undecodable):
        return
    for number, line in enumerate(lines):
        op = codec.decode_op(line)
        if not isinstance(op, Undecodable):
            yield RecordedLine((record.offset(), number), record.timestamp()[1], op)


@dataclass(frozen=True, slots=True)
class SettlementOrder:
    """What an operator asked for."""

    action: OperatorAction
    txn_ids: tuple[str, ...]
    nonce: str | None
    is_all: bool
    wanted: Filter
    limit: int | None
    signature: str
    time_ms: int | None = None  # of a reschedule

    def __post_init__(self) -> None:
        command = f"txlayer tx {self.action.value}"
        check_choice(command, "transaction ids", self.txn_ids, is_all=self.is_all, wanted=self.wanted, limit=self.limit)
        if self.nonce is not None and len(self.txn_ids) != 1:
            raise UsageError(f"{command}: --nonce goes with exactly one id")
        for txn_id in self.txn_ids:
            check_txn_id(txn_id)

    def line(self, found: UnsettledTransaction) -> Line:
        return line_of(self.action, found, self.signature, self.time_ms)


@dataclass(frozen=True, slots=True)
class SettlementPlan:
    """What would be written, and what is known without writing."""

    snapshot: Snapshot
    lines: list[Line]
    known: list[SettlementOutcome] = field(default_factory=list)
    skipped_count: int = 0  # chosen by filter, but this action says nothing about what is in their state


def plan_of(order: SettlementOrder, settlement: ManualSettlement, *, since_ms: int, now_ms: int) -> SettlementPlan:
    """What the order comes to, as the topics are now; nothing is written. What is settled is looked for since `since_ms`.

    Raises:
        UsageError: several transactions of one id are not settled, and no nonce says which is meant.
    """
    if not order.is_all:
        return _plan_of_named(order, settlement, since_ms=since_ms, now_ms=now_ms)
    states = order.wanted.states or (frozenset({_SCHEDULED}) if order.action in _OF_SCHEDULED else PARKED)
    snapshot = settlement.find(lambda each: each.state in states and order.wanted.lets_through(each, now_ms=now_ms))
    able = [each for each in snapshot.found if known_before(order.action, each.state) is None]
    oldest = unsettled.oldest(able, order.limit)
    skipped_count = len(snapshot.found) - len(able)
    return SettlementPlan(snapshot, [order.line(each) for each in oldest], skipped_count=skipped_count)


def _plan_of_named(
    order: SettlementOrder, settlement: ManualSettlement, *, since_ms: int, now_ms: int
) -> SettlementPlan:
    wanted = dict.fromkeys(order.txn_ids)
    snapshot = settlement.find(
        lambda each: txn_id_of(each.txn.key) in wanted and order.nonce in (None, nonce_of(each.txn.key))
    )
    by_id: dict[str, list[UnsettledTransaction]] = {}
    for each in snapshot.found:
        by_id.setdefault(txn_id_of(each.txn.key), []).append(each)
    for txn_id, found in by_id.items():
        if len(found) > 1:
            raise UsageError(
                f"{txn_id} names {len(found)} transactions that are not settled; say with --nonce which one: "
                f"{candidates(found, now_ms=now_ms)}"
            )
    plan, history = SettlementPlan(snapshot, []), settlement.connections.history()
    for txn_id in wanted:
        if txn_id not in by_id:
            plan.known.append(
                _settled(order, txn_id, history.read(txn_id, start=HistoryStart(since_ms), is_whole=True))
            )
            continue
        (found_one,) = by_id[txn_id]
        result = known_before(order.action, found_one.state)
        if result is None:
            plan.lines.append(order.line(found_one))
        else:
            plan.known.append(settlement.known(found_one, result))
    return plan


def _settled(order: SettlementOrder, txn_id: str, histories: Iterable[TransactionHistory]) -> SettlementOutcome:
    """Of several attempts the one that is as the operator wants it, else the newest."""
    settled = [of_settled(order.action, each) for each in histories if order.nonce in (None, each.nonce)]
    if not settled:
        key = f"{txn_id}/{order.nonce or ''}"
        return SettlementOutcome(key, "", None, None, SettlementResult.NOT_FOUND)
    return next((o for o in settled if o.result is SettlementResult.ALREADY), settled[-1])


def planned(plan: SettlementPlan) -> list[SettlementOutcome]:
    return [
        outcome_of(found, SettlementResult.PLANNED, reason="", line=codec.encode_op(op)) for found, op in plan.lines
    ]


def carry_out(
    action: OperatorAction,
    settlement: ManualSettlement,
    plan: SettlementPlan,
    *,
    patience_s: float,
    on_written: Callable[[int], None] = lambda _count: None,
    on_reached: Callable[[int, int], None] = lambda _count, _partition_count: None,
) -> list[SettlementOutcome]:
    """Write the plan's lines, wait for the coordinators, and return what became of each.

    `on_written` gets the number of lines stored so far; `on_reached` is `on_progress` of `ManualSettlement.wait`. Raises as
    `OperatorWriter.write`; BrokerUnavailableError, too, if the lines are stored and their effect could not be read.
    """
    if not plan.lines:
        return []
    written = settlement.write(plan.lines, on_progress=on_written)
    on_written(len(written))
    try:
        reached = settlement.wait(written, patience_s=patience_s, on_progress=on_reached)
        return settlement.outcomes(action, written, plan.snapshot, reached=reached)
    except BrokerUnavailableError as exc:
        raise BrokerUnavailableError(
            f"{len(written):,} lines are stored, but what became of them could not be read; the same command reports "
            f"it later: {exc.detail}",
            bootstrap_servers=exc.bootstrap_servers,
            waited_ms=exc.waited_ms,
        ) from exc


def outcome_json(action: OperatorAction, outcome: SettlementOutcome) -> Json:
    o = outcome
    return {
        "txn_id": txn_id_of(o.key),
        "nonce": nonce_of(o.key) or None,
        "producer_group": o.group or None,
        "partition": o.partition,
        "act": action.value,
        "result": o.result.value,
        "state_before": o.before,
        "state": o.state,
        "reason": o.reason or None,
        "written_at": position_json(o.written_at),
        "line": o.line or None,
        "checked_count": o.checked_count,
        "decided_ms": o.decided_ms,
        "decision": None if o.decision is None else op_json(*o.decision),
    }


# --- in sentences ------------------------------------------------------------------------------------------------------

_SAID_OF = {
    TxnState.COMMITTED.value: "committed",
    TxnState.ROLLED_BACK.value: "rolled back",
    TxnState.WAITING.value: "committed",
    TxnState.HELD.value: "committed",
    TxnState.PARKED_COMMITTED.value: "committed",
    TxnState.SCHEDULED.value: "committed",
    COMMITTING: "committed",
}
_NOT_CARRIED_OUT = {
    TxnState.WAITING.value: "it waits for an earlier one of its ordering key",
    TxnState.SCHEDULED.value: "it is scheduled, and its time has not come",
    COMMITTING: "a coordinator has still to carry it out",
}
_GIVEN_UP = "consumers never see what was not visible by then"
_ADVICE = "`txlayer tx abandon` gives up what is committed and cannot be forwarded"


def sentence(action: OperatorAction, outcome: SettlementOutcome, *, op_topic: str) -> str:
    """What became of one transaction, in one line without control characters."""
    name = " / ".join(filter(None, (txn_id_of(outcome.key), nonce_of(outcome.key))))
    return printable(f"{name} {_said(action, outcome, op_topic)}")


def candidates(found: list[UnsettledTransaction], *, now_ms: int) -> str:
    oldest = sorted(found, key=lambda each: each.txn.appended_ms)
    return ", ".join(
        printable(
            f"{nonce_of(each.txn.key)} ({each.state}, {length_text(now_ms - each.txn.appended_ms)} old, "
            f"group {each.txn.group})"
        )
        for each in oldest
    )


def _said(action: OperatorAction, o: SettlementOutcome, op_topic: str) -> str:
    match o.result:
        case SettlementResult.DONE:
            return _done(action, o)
        case SettlementResult.ALREADY if action is OperatorAction.CHECK_NOW:
            return f"was decided meanwhile: {_decision_text(o)}"
        case SettlementResult.ALREADY:
            more = _NOT_CARRIED_OUT.get(o.state or "")
            if o.decision is not None and o.decision.op.is_abandon:
                more = _GIVEN_UP
            return f"was {_decision_text(o, already=True)}{'; ' + more if more else ''}"
        case SettlementResult.NOT_FORWARDED:
            return (
                f"is committed and cannot be forwarded ({o.reason or 'no reason known'}), so it is {o.state} on the doubt "
                f"topic; mend what refuses and commit again, or {_ADVICE}"
            )
        case SettlementResult.REFUSED:
            return _refused(action, o)
        case SettlementResult.IGNORED:
            return f"is {o.state or 'unknown'} as before: half records came meanwhile, so the line counts for nothing; say it again"
        case SettlementResult.WRITTEN:
            offset, line = o.written_at or (0, 0)
            return (
                f"has its line, {op_topic}-{o.partition}@{offset}:{line}, but no coordinator has come to it yet; it takes "
                "effect when one does, and `txlayer coordinator status` says whether one runs"
            )
        case SettlementResult.NOT_SCHEDULED if o.state in _HAS_TURN:
            return f"is {o.state}: its time has come, or it has none, and there is nothing to {action.value} now; {_ADVICE}"
        case SettlementResult.NOT_SCHEDULED:
            return f"is {o.state or 'settled'}: none of its messages waits for a time, so there is nothing to {action.value}"
        case SettlementResult.PLANNED:
            return f"is {o.before}; to {op_topic}-{o.partition} would go: {o.line}"
        case SettlementResult.NOT_FOUND:
            return (
                f"is not found: nothing of this id is open, and {op_topic} and half hold nothing about it as far back as "
                "--since says"
            )


def _done(action: OperatorAction, o: SettlementOutcome) -> str:
    match action:
        case OperatorAction.CHECK_NOW:
            # Whether it was asked before this action or because of it makes no difference to the operator.
            asked = f"question {o.checked_count} was asked" if o.checked_count else "not asked yet"
            return f"will be asked about at once; so far: {asked}, group {o.group}"
        case OperatorAction.COMMIT:
            more = _NOT_CARRIED_OUT.get(o.state or "")
            return "is committed and forwarded" if more is None else f"is committed; {more}"
        case OperatorAction.ROLLBACK:
            return "is rolled back"
        case OperatorAction.ABANDON if o.is_timed:
            return f"is abandoned: {_GIVEN_UP}"
        case OperatorAction.ABANDON:
            return "is abandoned: consumers never see it"
        case OperatorAction.CANCEL:
            return "is cancelled: consumers never see the messages whose time had not come"
        case OperatorAction.RESCHEDULE:
            return "is scheduled for the new time"


def _refused(action: OperatorAction, o: SettlementOutcome) -> str:
    if o.state is None:
        return "is settled, and what decided it is older than what was read; --since goes further back"
    said = f"refused: it was {_decision_text(o)}"
    if action is OperatorAction.CHECK_NOW:
        return f"{said}; there is nothing to ask"
    if o.state == COMMITTING:
        return f"{said}; {_NOT_CARRIED_OUT[COMMITTING]}, then look again"
    if o.state not in (TxnState.COMMITTED.value, TxnState.ROLLED_BACK.value):
        return f"{said} and is {o.state} now; {_ADVICE}"
    if o.decision is not None and o.decision.op.is_abandon:
        return f"{said}; {_GIVEN_UP}"
    return f"{said}; the first decision counts"


def _decision_text(o: SettlementOutcome, *, already: bool = False) -> str:
    """`committed already at TIME by operator zoe: ticket 12`, as far as it is known."""
    text = _SAID_OF.get(o.state or "", "settled") + (" already" if already else "")
    if o.decided_ms is not None:
        text += f" at {time_text(o.decided_ms)}"
    if o.decision is not None:
        operator, reason = operator_of(o.decision.op)
        text += f" by {o.decision.op.source.value}"
        text += f" {operator}" if operator else ""
        text += f" ({reason})" if reason else ""
    return text
