"""Which transactions an operator's command is about, before anything is written; every refusal is one line."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from txlayer.cli.operators import check_signature
from txlayer.cli.settle_rows import candidates
from txlayer.cli.tx_filters import PARKED, Filter
from txlayer.coordinator.acts import Act, Outcome, Result, Said, known_before, line_of, of_settled
from txlayer.coordinator.by_hand import ByHand, Line, Picture
from txlayer.coordinator.overview import Standing
from txlayer.core.history import TransactionHistory
from txlayer.core.ids import check_txn_id
from txlayer.core.messages import nonce_of, txn_id_of
from txlayer.errors import UsageError

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


def plan_of(order: Order, hands: ByHand, *, read_histories: ReadHistories, now_ms: int) -> Plan:
    """Look at what stands.

    Raises:
        UsageError: an id has several open transactions and no nonce was named. Nothing was written.
    """
    if order.is_all:
        return _plan_of_many(order, hands, now_ms=now_ms)
    return _plan_of_named(order, hands, read_histories, now_ms=now_ms)


def _plan_of_many(order: Order, hands: ByHand, *, now_ms: int) -> Plan:
    states = order.wanted.states or PARKED
    picture = hands.look(
        lambda each: each.state in states and order.wanted.lets_through(each, now_ms=now_ms)
    )
    able = [each for each in picture.found if known_before(order.act, each.state) is None]
    oldest = heapq.nsmallest(
        len(able) if order.limit is None else order.limit,
        able,
        key=lambda each: (each.txn.appended_ms, each.partition, each.txn.first_offset),
    )
    skipped_count = len(picture.found) - len(able)
    return Plan(picture, [_line(order, each) for each in oldest], skipped_count=skipped_count)


def _plan_of_named(
    order: Order, hands: ByHand, read_histories: ReadHistories, *, now_ms: int
) -> Plan:
    wanted = dict.fromkeys(order.txn_ids)
    picture = hands.look(
        lambda each: (
            txn_id_of(each.txn.key) in wanted and order.nonce in (None, nonce_of(each.txn.key))
        )
    )
    standing: dict[str, list[Standing]] = {}
    for each in picture.found:
        standing.setdefault(txn_id_of(each.txn.key), []).append(each)
    for txn_id, found in standing.items():
        if len(found) > 1:
            raise UsageError(
                f"{txn_id} names {len(found)} transactions that are not settled; say with --nonce which one: "
                + candidates(found, now_ms=now_ms)
            )
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
