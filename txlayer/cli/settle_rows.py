"""What `txlayer tx check-now|commit|rollback|abandon` say: outcomes as JSON values and as one sentence each."""

from __future__ import annotations

from txlayer.adapters.telemetry import printable
from txlayer.cli.tx_rows import Json, age_text, time_text
from txlayer.coordinator.acts import Act, Outcome, Result, Said
from txlayer.coordinator.overview import COMMITTING, Standing
from txlayer.core.history import split_operator_reason
from txlayer.core.messages import Source, nonce_of, txn_id_of
from txlayer.core.transitions import TxnState

_SAID_OF = {
    TxnState.COMMITTED.value: "committed",
    TxnState.ROLLED_BACK.value: "rolled back",
    TxnState.WAITING.value: "committed",
    TxnState.HELD.value: "committed",
    TxnState.PARKED_COMMITTED.value: "committed",
    COMMITTING: "committed",
}
_NOT_CARRIED_OUT = {
    TxnState.WAITING.value: "it waits for an earlier one of its ordering key",
    COMMITTING: "a coordinator has still to carry it out",
}
_GIVE_UP = "`txlayer tx abandon` gives up what is committed and cannot be forwarded"


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


def sentence(act: Act, outcome: Outcome, *, op_topic: str) -> str:
    """What became of one transaction, in one line without control characters."""
    o = outcome
    said = _SENTENCES[o.result](act, o, op_topic)
    name = " / ".join(filter(None, (txn_id_of(o.key), nonce_of(o.key))))
    return printable(f"{name} {said}")


def candidates(found: list[Standing], *, now_ms: int) -> str:
    """The nonces to choose from, the oldest first."""
    oldest = sorted(found, key=lambda each: each.txn.appended_ms)
    return ", ".join(
        printable(
            f"{nonce_of(each.txn.key)} ({each.state}, {age_text(now_ms - each.txn.appended_ms)} old, "
            f"group {each.txn.group})"
        )
        for each in oldest
    )


def _done(act: Act, o: Outcome, _op_topic: str) -> str:
    if act is Act.CHECK_NOW:
        # Whether it was asked before this act or because of it makes no difference to who waits for the answer.
        asked = f"question {o.checked_count} was asked" if o.checked_count else "not asked yet"
        return f"will be asked about at once; so far: {asked}, group {o.group}"
    if act is Act.COMMIT:
        more = _NOT_CARRIED_OUT.get(o.state or "")
        return "is committed and forwarded" if more is None else f"is committed; {more}"
    return "is rolled back" if act is Act.ROLLBACK else "is abandoned: nobody will see it"


def _already(act: Act, o: Outcome, _op_topic: str) -> str:
    if act is Act.CHECK_NOW:
        return f"was decided meanwhile: {_standing_decision(o)}"
    more = _NOT_CARRIED_OUT.get(o.state or "")
    return f"was {_standing_decision(o, already=True)}" + ("" if more is None else f"; {more}")


def _not_forwarded(_act: Act, o: Outcome, _op_topic: str) -> str:
    return (
        f"is committed and cannot be forwarded ({o.reason or 'no reason known'}), so it is {o.state} on the doubt "
        f"topic; mend what refuses and commit again, or {_GIVE_UP}"
    )


def _refused(act: Act, o: Outcome, _op_topic: str) -> str:
    if o.state is None:
        return (
            "is settled, and what decided it is older than what was read; --since goes further back"
        )
    said = f"refused: it was {_standing_decision(o)}"
    if act is Act.CHECK_NOW:
        return f"{said}; there is nothing to ask"
    if o.state == COMMITTING:
        return f"{said}; {_NOT_CARRIED_OUT[COMMITTING]}, then look again"
    if o.state not in (TxnState.COMMITTED.value, TxnState.ROLLED_BACK.value):
        return f"{said} and is {o.state} now; {_GIVE_UP}"
    return f"{said}; the first decision stands"


def _ignored(_act: Act, o: Outcome, _op_topic: str) -> str:
    return f"is {o.state or 'unknown'} as before: half records came meanwhile, so the line counts for nothing; say it again"


def _written(_act: Act, o: Outcome, op_topic: str) -> str:
    offset, line = o.written_at or (0, 0)
    return (
        f"has its line, {op_topic}-{o.partition}@{offset}:{line}, but no coordinator has come to it yet; it takes effect "
        "when one does, and `txlayer coordinator status` says whether one runs"
    )


def _planned(_act: Act, o: Outcome, op_topic: str) -> str:
    return f"is {o.before}; to {op_topic}-{o.partition} would go: {o.line}"


def _not_found(_act: Act, _o: Outcome, op_topic: str) -> str:
    return (
        f"is not found: nothing of this id stands open, and {op_topic} and half hold nothing about it as far back as "
        "--since says"
    )


_SENTENCES = {
    Result.NOT_FOUND: _not_found,
    Result.DONE: _done,
    Result.ALREADY: _already,
    Result.NOT_FORWARDED: _not_forwarded,
    Result.REFUSED: _refused,
    Result.IGNORED: _ignored,
    Result.WRITTEN: _written,
    Result.PLANNED: _planned,
}


def _standing_decision(o: Outcome, *, already: bool = False) -> str:
    """`committed already at TIME by operator zoe: ticket 12`, as far as it is known."""
    text = _SAID_OF.get(o.state or "", "settled") + (" already" if already else "")
    if o.decided_ms is not None:
        text += f" at {time_text(o.decided_ms)}"
    if o.decision is not None:
        operator, reason = _who(o.decision)
        text += f" by {o.decision.op.source.value}"
        text += f" {operator}" if operator else ""
        text += f" ({reason})" if reason else ""
    return text


def _decision_json(said: Said) -> Json:
    operator, reason = _who(said)
    return {
        "offset": said.position[0],
        "line": said.position[1],
        "appended_ms": said.appended_ms,
        "resolution": "ABANDON" if said.op.is_abandon else said.op.resolution.name,
        "source": said.op.source.value,
        "operator": operator or None,
        "reason": reason or None,
    }


def _who(said: Said) -> tuple[str, str]:
    if said.op.source is not Source.OPERATOR:
        return "", said.op.reason
    return split_operator_reason(said.op.reason)


def _position_json(position: tuple[int, int] | None) -> Json | None:
    return None if position is None else {"offset": position[0], "line": position[1]}
