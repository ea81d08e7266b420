"""An operator's word on transactions, from the order to its outcome; nothing is written before it is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txlayer.coordinator.acts import Act, Outcome, Result, Said, known_before, line_of, of_settled
from txlayer.coordinator.by_hand import ByHand, Line, Picture
from txlayer.coordinator.overview import Standing
from txlayer.core import codec
from txlayer.core.history import TransactionHistory, split_operator_reason
from txlayer.core.ids import check_txn_id
from txlayer.core.messages import Source, nonce_of, txn_id_of
from txlayer.errors import BrokerUnavailableError, UsageError
from txlayer.operate import Json, unsettled
from txlayer.operate.operators import check_signature
from txlayer.operate.unsettled import PARKED, Filter

ReadHistories = Callable[[str], list[TransactionHistory]]


@dataclass(frozen=True, slots=True)
class Order:
    """What an operator asked for."""

    act: Act
    txn_ids: tuple[str, ...]
    nonce: str | None
    is_all: bool
    wanted: Filter
    limit: int | None
    operator: str
    reason: str

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: the options contradict each other, or one is missing. Nothing was read.
        """
        command = f"txlayer tx {self.act.value}"
        if self.is_all == bool(self.txn_ids):
            raise UsageError(f"{command}: name transaction ids, or say --all with filters")
        if not self.is_all and not self.wanted.is_empty:
            raise UsageError(f"{command}: filters choose among --all; with ids leave them out")
        if not self.is_all and self.limit is not None:
            raise UsageError(f"{command}: --limit goes with --all")
        if self.nonce is not None and len(self.txn_ids) != 1:
            raise UsageError(f"{command}: --nonce goes with exactly one id")
        for txn_id in self.txn_ids:
            check_txn_id(txn_id)
        check_signature(
            command, operator=self.operator, reason=self.reason, recorded="it is recorded in the op log",
            may_be_silent=self.act is Act.CHECK_NOW,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be written, and what is known without writing."""

    picture: Picture
    lines: list[Line]
    known: list[Outcome] = field(default_factory=list)
    skipped_count: int = (
        0  # chosen by filter, but decided already: this act says nothing about them
    )
    ambiguous: list[Standing] = field(default_factory=list)
    """Transactions of one id that are not settled, and no nonce says which is meant: nothing else is in the plan."""


def plan_of(order: Order, hands: ByHand, *, read_histories: ReadHistories, now_ms: int) -> Plan:
    """What the order comes to, as the topics are now; nothing is written."""
    if order.is_all:
        return _plan_of_many(order, hands, now_ms=now_ms)
    return _plan_of_named(order, hands, read_histories)


def _plan_of_many(order: Order, hands: ByHand, *, now_ms: int) -> Plan:
    states = order.wanted.states or PARKED
    picture = hands.look(
        lambda each: each.state in states and order.wanted.lets_through(each, now_ms=now_ms)
    )
    able = [each for each in picture.found if known_before(order.act, each.state) is None]
    oldest = unsettled.oldest(able, order.limit)
    skipped_count = len(picture.found) - len(able)
    return Plan(picture, [_line(order, each) for each in oldest], skipped_count=skipped_count)


def _plan_of_named(order: Order, hands: ByHand, read_histories: ReadHistories) -> Plan:
    wanted = dict.fromkeys(order.txn_ids)
    picture = hands.look(
        lambda each: (
            txn_id_of(each.txn.key) in wanted and order.nonce in (None, nonce_of(each.txn.key))
        )
    )
    standing: dict[str, list[Standing]] = {}
    for each in picture.found:
        standing.setdefault(txn_id_of(each.txn.key), []).append(each)
    for found in standing.values():
        if len(found) > 1:
            return Plan(picture, [], ambiguous=found)
    plan = Plan(picture, [])
    for txn_id in wanted:
        if txn_id not in standing:
            plan.known.append(_settled(order, txn_id, read_histories))
            continue
        (found_one,) = standing[txn_id]
        result = known_before(order.act, found_one.state)
        if result is None:
            plan.lines.append(_line(order, found_one))
        else:
            plan.known.append(_decided(found_one, result, hands))
    return plan


def _line(order: Order, found: Standing) -> Line:
    return Line(found, line_of(order.act, found, operator=order.operator, reason=order.reason))


def _decided(found: Standing, result: Result, hands: ByHand) -> Outcome:
    txn = found.txn
    position = None if txn.more is None else txn.more.decided_at
    said: Said | None = None if position is None else hands.said_at(found.partition, position)
    reason = None if txn.more is None else txn.more.reason
    return Outcome(
        txn.key,
        txn.group,
        found.partition,
        found.state,
        result,
        found.state,
        reason="" if reason is None else reason.value,
        decision=said,
        decided_ms=None if said is None else said.appended_ms,
    )


def _settled(order: Order, txn_id: str, read_histories: ReadHistories) -> Outcome:
    """Of several attempts the one that is as the operator wants it, else the newest."""
    settled = [
        of_settled(order.act, history)
        for history in read_histories(txn_id)
        if order.nonce in (None, history.nonce)
    ]
    if not settled:
        key = f"{txn_id}/{order.nonce or ''}"
        return Outcome(key, "", None, None, Result.NOT_FOUND)
    return next((o for o in settled if o.result is Result.ALREADY), settled[-1])


def planned(plan: Plan) -> list[Outcome]:
    """What would be written for each, without writing it."""
    return [
        Outcome(
            found.txn.key, found.txn.group, found.partition, found.state, Result.PLANNED, found.state,
            line=codec.encode_op(op),
        )
        for found, op in plan.lines
    ]  # fmt: skip


def carry_out(
    act: Act,
    hands: ByHand,
    plan: Plan,
    *,
    patience_s: float,
    on_written: Callable[[int], None] = lambda _count: None,
    on_reached: Callable[[int, int], None] = lambda _count, _partition_count: None,
) -> list[Outcome]:
    """Write the plan's lines, wait for the coordinators, and return what became of each.

    `on_written` gets the number of lines stored so far; `on_reached` the number of partitions whose coordinators have
    carried them out, and of how many.

    Raises:
        BrokerUnavailableError: the lines are stored, but their effect could not be read.
        OutcomeUnknownError, NotAuthorisedError, RetriableError: as `ByHand.write`.
    """
    if not plan.lines:
        return []
    written = hands.write(plan.lines, on_progress=on_written)
    on_written(len(written))
    partition_count = len({w.found.partition for w in written})
    try:
        reached = hands.wait(
            written,
            patience_s=patience_s,
            on_progress=lambda count: on_reached(count, partition_count),
        )
        return hands.outcomes(act, written, plan.picture, reached=reached)
    except BrokerUnavailableError as exc:
        raise BrokerUnavailableError(
            f"{len(written):,} lines are stored, but what became of them could not be read; the same command tells "
            f"it later: {exc.detail}",
            bootstrap_servers=exc.bootstrap_servers,
            waited_ms=exc.waited_ms,
        ) from exc


def outcome_json(act: Act, outcome: Outcome) -> Json:
    """One object of `tx commit --json` and the like."""
    o = outcome
    return {
        "txn_id": txn_id_of(o.key),
        "nonce": nonce_of(o.key) or None,
        "producer_group": o.group or None,
        "partition": o.partition,
        "act": act.value,
        "result": o.result.value,
        "state_before": o.before,
        "state": o.state,
        "reason": o.reason or None,
        "written_at": _position_json(o.written_at),
        "line": o.line or None,
        "checked_count": o.checked_count,
        "decided_ms": o.decided_ms,
        "decision": None if o.decision is None else _decision_json(o.decision),
    }


def _decision_json(said: Said) -> Json:
    operator, reason = operator_of(said)
    return {
        "offset": said.position[0],
        "line": said.position[1],
        "appended_ms": said.appended_ms,
        "resolution": "ABANDON" if said.op.is_abandon else said.op.resolution.name,
        "source": said.op.source.value,
        "operator": operator or None,
        "reason": reason or None,
    }


def _position_json(position: tuple[int, int] | None) -> Json | None:
    return None if position is None else {"offset": position[0], "line": position[1]}


def operator_of(said: Said) -> tuple[str, str]:
    """(operator, reason) of an op line; the name is empty when no operator wrote it."""
    if said.op.source is not Source.OPERATOR:
        return "", said.op.reason
    return split_operator_reason(said.op.reason)
