"""What a person may say of a transaction by hand, and what became of it. Pure: never reading or writing.

The ledger decides; this tells a person what it decided, from what stood before, the op lines since, and what stands now.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from txlayer.coordinator.overview import COMMITTING, Standing
from txlayer.core.history import TransactionHistory, operator_reason
from txlayer.core.messages import OpMessage, Resolution, Source
from txlayer.core.transaction import OpPosition
from txlayer.core.transitions import TxnState


class Act(Enum):
    """What an operator says."""

    CHECK_NOW = "check-now"  #: ask its producer group at once
    COMMIT = "commit"  #: forward it; of what is committed and refused: try again
    ROLLBACK = "rollback"  #: nobody may ever see it
    ABANDON = "abandon"  #: the same, also of what is committed and cannot be forwarded


class Result(Enum):
    """What became of it."""

    DONE = "done"  #: it took effect
    ALREADY = "already"  #: it was so before
    NOT_FORWARDED = "not-forwarded"  #: committed, but it cannot be forwarded: it stands on doubt
    REFUSED = "refused"  #: the contrary decision came first and stands
    IGNORED = "ignored"  #: the line counts for nothing: half records came meanwhile; say it again
    WRITTEN = "written"  #: the line is stored, and no coordinator has come to it yet
    PLANNED = "planned"  #: a dry run: nothing was written
    NOT_FOUND = "not-found"  #: nothing stands under this id, and nothing was read about it


GOOD = frozenset({Result.DONE, Result.ALREADY, Result.PLANNED})
"""Results after which nothing is left to do."""

UNDECIDED = frozenset({TxnState.OPEN.value, TxnState.PARKED.value})
_STUCK = frozenset({TxnState.HELD.value, TxnState.PARKED_COMMITTED.value})
_COMMITTED, _ROLLED_BACK = TxnState.COMMITTED.value, TxnState.ROLLED_BACK.value
_RESOLUTIONS = {
    Act.CHECK_NOW: Resolution.UNKNOWN,
    Act.COMMIT: Resolution.COMMIT,
    Act.ROLLBACK: Resolution.ROLLBACK,
    Act.ABANDON: Resolution.ROLLBACK,
}


class Said(NamedTuple):
    """One op line, where it stands."""

    position: OpPosition
    appended_ms: int
    op: OpMessage


class Outcome(NamedTuple):
    """What became of one act on one transaction."""

    key: str  # "id/nonce"
    group: str
    partition: int | None
    before: str | None  # the state that it was found in; None: it was settled
    result: Result
    state: str | None = None  # now; None: settled, and nobody knows how
    reason: str = ""  # why it stands on doubt now, a ParkReason's value
    written_at: OpPosition | None = None  # of the operator's line
    decision: Said | None = None  # what decided, as far as it was read
    decided_ms: int | None = None  # when, as far as it is known
    line: str = ""  # what is, or would be, written
    checked_count: int = 0  # questions asked by now


def line_of(act: Act, found: Standing, *, operator: str, reason: str) -> OpMessage:
    """The operator's op line."""
    txn = found.txn
    return OpMessage(
        _RESOLUTIONS[act],
        txn.key,
        txn.group,
        max(txn.last_offset, 0),  # nobody knows it when no half record came
        txn.summary().born_ms,
        Source.OPERATOR,
        is_abandon=act is Act.ABANDON,
        reason=operator_reason(operator, reason),
    )


def known_before(act: Act, state: str) -> Result | None:
    """What is known without writing, because the decision is in the log; None: the line must be written."""
    if state in UNDECIDED:
        return None
    if act is Act.COMMIT:
        return None if state in _STUCK else Result.ALREADY
    # Of what a coordinator is just forwarding nobody can say whether it could be given up still.
    if act is Act.ABANDON and state != COMMITTING:
        return None
    return Result.REFUSED


def of_settled(act: Act, history: TransactionHistory) -> Outcome:
    """What an act would be on a transaction that does not stand any more."""
    h = history
    state = None if h.state is None else h.state.value
    is_so = {
        Act.CHECK_NOW: False,
        Act.COMMIT: state == _COMMITTED,
        Act.ROLLBACK: state == _ROLLED_BACK,
        Act.ABANDON: state == _ROLLED_BACK,
    }[act]
    decision = next(
        (
            Said((n.offset, n.line), n.appended_ms, n.op)
            for n in h.op_lines
            if (n.offset, n.line) == h.decided_at
        ),
        None,
    )
    return Outcome(
        f"{h.txn_id}/{h.nonce}",
        h.producer_group,
        h.partition,
        None,
        Result.ALREADY if is_so else Result.REFUSED,
        state,
        decision=decision,
        decided_ms=h.left_doubt_ms if decision is None else decision.appended_ms,
    )


def became(
    act: Act,
    before: Standing,
    own: OpPosition,
    *,
    said: Sequence[Said],
    now: Standing | None,
    left_doubt_ms: int | None,
) -> tuple[Result, str | None, Said | None]:
    """(result, state now, decision among `said`) once the coordinator has gone past the operator's line at `own`.

    `said` are the lines since `before` was seen, the oldest first; `now` is None for what is settled, `left_doubt_ms`
    tells when it left the doubt topic since.
    """
    txn = before.txn
    counted = [
        s
        for s in said
        if txn.has_half_at(s.op.last_offset) and txn.is_of_group(s.op.producer_group)
    ]
    decision = None
    if before.state in UNDECIDED:
        decision = next((s for s in counted if s.op.resolution is not Resolution.UNKNOWN), None)
        if decision is None:
            state = before.state if now is None else now.state
            return (Result.DONE if act is Act.CHECK_NOW else Result.IGNORED), state, None
        if act is Act.CHECK_NOW:
            return Result.ALREADY, _state_after(decision, now), decision
        if decision.op.resolution is Resolution.ROLLBACK or act is Act.ROLLBACK:
            is_wanted = (act is Act.COMMIT) == (decision.op.resolution is Resolution.COMMIT)
            good = Result.DONE if decision.position == own else Result.ALREADY
            return (good if is_wanted else Result.REFUSED), _state_after(decision, now), decision
    if act is Act.COMMIT:
        is_own = decision is None or decision.position == own
        return _committed(counted, now, left_doubt_ms, decision, is_own=is_own)
    return _abandoned(counted, own, before, now, left_doubt_ms, decision)


def _state_after(decision: Said, now: Standing | None) -> str:
    if now is not None:
        return now.state
    return _COMMITTED if decision.op.resolution is Resolution.COMMIT else _ROLLED_BACK


def _committed(
    counted: Sequence[Said],
    now: Standing | None,
    left_doubt_ms: int | None,
    decision: Said | None,
    *,
    is_own: bool,
) -> tuple[Result, str | None, Said | None]:
    if now is not None and now.state in _STUCK:
        return Result.NOT_FORWARDED, now.state, decision
    if now is None and decision is None:
        # It was held or parked after its commit: another operator may have given it up before this line came.
        given_up = _giving_up(counted, left_doubt_ms)
        if given_up is not None:
            return Result.REFUSED, _ROLLED_BACK, given_up
    state = _COMMITTED if now is None else now.state
    return (Result.DONE if is_own else Result.ALREADY), state, decision


def _abandoned(
    counted: Sequence[Said],
    own: OpPosition,
    before: Standing,
    now: Standing | None,
    left_doubt_ms: int | None,
    decision: Said | None,
) -> tuple[Result, str | None, Said | None]:
    if now is not None:
        return Result.IGNORED, now.state, decision
    # Committed since it was seen: then it was forwarded, unless its target refused within that moment.
    if decision is not None:
        return Result.REFUSED, _COMMITTED, decision
    given_up = _giving_up(counted, left_doubt_ms)
    if left_doubt_ms is None and before.state == TxnState.WAITING.value:
        given_up = next((s for s in counted if s.op.is_abandon), None)
    if given_up is None:
        return Result.REFUSED, _COMMITTED, None
    return (Result.DONE if given_up.position == own else Result.ALREADY), _ROLLED_BACK, given_up


def _giving_up(counted: Sequence[Said], left_doubt_ms: int | None) -> Said | None:
    """The abandon that ended it; one that came after its messages left the doubt topic ended nothing."""
    if left_doubt_ms is None:
        return None
    return next((s for s in counted if s.op.is_abandon and s.appended_ms <= left_doubt_ms), None)
