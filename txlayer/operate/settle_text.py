"""What became of transactions that an operator settled, in sentences; every face says the same."""

from __future__ import annotations

from txlayer.adapters.telemetry import printable
from txlayer.core.ledger.transitions import COMMITTING, TxnState
from txlayer.core.messages import nonce_of, txn_id_of
from txlayer.operate import length_text, time_text
from txlayer.operate.history import operator_of
from txlayer.operate.overview import UnsettledTransaction
from txlayer.operate.settle import OperatorAction, SettlementOutcome, SettlementResult

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
_GIVE_UP = "`txlayer tx abandon` gives up what is committed and cannot be forwarded"


def sentence(action: OperatorAction, outcome: SettlementOutcome, *, op_topic: str) -> str:
    """What became of one transaction, in one line without control characters."""
    name = " / ".join(filter(None, (txn_id_of(outcome.key), nonce_of(outcome.key))))
    return printable(f"{name} {_said(action, outcome, op_topic)}")


def candidates(found: list[UnsettledTransaction], *, now_ms: int) -> str:
    """The nonces to choose from, the oldest first."""
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
            return f"was {_decision_text(o, already=True)}{'; ' + more if more else ''}"
        case SettlementResult.NOT_FORWARDED:
            return (
                f"is committed and cannot be forwarded ({o.reason or 'no reason known'}), so it is {o.state} on the doubt "
                f"topic; mend what refuses and commit again, or {_GIVE_UP}"
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
        return f"{said} and is {o.state} now; {_GIVE_UP}"
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
