"""The life of a transaction as a transition table: all of its rules, and nothing else. `Ledger._carry_out` does what it says.

Rules for authors: a repeat, a conflict and a refusal are ordinary entries. A missing entry raises and leaves the state
unchanged. The state diagram in docs/explanation/protocol.md is drawn from this table.
"""

from enum import Enum

from txlayer.errors import InvalidTransitionError


class _InTables(Enum):
    """Members are keys of tables for each op line: the hash of `Enum` is a slow function of Python."""

    __hash__ = object.__hash__


class TxnState(_InTables):
    """States of a transaction."""

    OPEN = "open"  #: prepared (or being prepared), no decision
    WAITING = "waiting"  #: committed; an earlier one of its ordering key goes first
    SCHEDULED = "scheduled"  #: committed; the time of its next messages has not come; its key does not wait
    HELD = "held"  #: committed; its target refuses for now; its key waits with it
    PARKED = "parked"  #: no decision, and asking has ended; content kept for an operator
    PARKED_COMMITTED = "parked-committed"  #: committed, but cannot be forwarded; only a commit or an abandon acts
    COMMITTED = "committed"  #: settled: forwarded
    ROLLED_BACK = "rolled-back"  #: settled: consumers never see it


class TxnEvent(_InTables):
    """Events of a transaction."""

    HALF = "half"  #: another half record of it was read
    COMMIT = "commit"  #: an op line
    ROLLBACK = "rollback"  #: an op line
    UNKNOWN = "unknown"  #: an op line
    ABANDON = "abandon"  #: an operator's op line: give up what was committed but cannot be forwarded
    RELEASE = "release"  #: the coordinator's op line: a time of it has come
    RESCHEDULE = "reschedule"  #: an op line: all that is left has another time
    MOVE = "move"  #: old enough for the doubt topic
    PARK = "park"  #: a policy, or an op line that named an offset beyond half's end
    GO = "go"  #: committed, complete, its key is free and its targets accept
    PART = "part"  #: as GO, and other messages of it have later times
    NOT_DUE = "not-due"  #: committed, and the time of its next messages has not come
    BLOCKED = "blocked"  #: an earlier one of its key goes first
    INCOMPLETE = "incomplete"  #: not all of its half records are there
    TARGET_REFUSES = "target-refuses"  #: a target topic is missing, denied or unreachable
    RECORD_REFUSED = "record-refused"  #: one of its records is refused for good
    MENDED = "mended"  #: its target may accept again
    EXPIRED = "expired"  #: held for `held_age_max`


class Effect(_InTables):
    """What follows from a transition; the ledger carries it out."""

    JOIN = "join"  #: the half record becomes part of the transaction, or is recognised as a second copy of one that is
    DECIDE = "decide"  #: its turn among the decisions of its key is noted; then as TRY
    RETURN = "return"  #: it takes part in the order of its key again; then as DECIDE
    TRY = "try"  #: determine whether it may go (GO, BLOCKED, INCOMPLETE, TARGET_REFUSES, RECORD_REFUSED)
    FORWARD = "forward"  #: its messages go to their real topics, its doubt records end
    FORWARD_PART = "forward-part"  #: its released messages go to their real topics; then as SCHEDULE
    SCHEDULE = "schedule"  #: it leaves the order of its key until it is released; kept as with KEEP
    RESCHEDULE = "reschedule"  #: its new time is noted; kept as with KEEP
    EXTEND = "extend"  #: more of its messages are released; kept as with KEEP
    WAIT = "wait"  #: it is tried again when its key is free
    HOLD = "hold"  #: it blocks its key until its topics accept; kept as with KEEP, and reported
    PARK = "park"  #: it blocks its key no more; kept as with KEEP, and reported
    FORGET = "forget"  #: its content and its doubt records are removed
    KEEP = "keep"  #: it is kept whole on the doubt topic, with its newest summary
    COUNT = "count"  #: a check-back answered with unknown
    REPEAT = "repeat"  #: stated before; counted
    CONFLICT = "conflict"  #: contrary to the decision; refused, counted, reported
    REPORT = "report"  #: too late; counted, reported


_S, _K, _E = TxnState, TxnEvent, Effect

TRANSITIONS: dict[tuple[TxnState, TxnEvent], tuple[TxnState, Effect]] = {
    (_S.OPEN, _K.HALF): (_S.OPEN, _E.JOIN),
    (_S.OPEN, _K.COMMIT): (_S.WAITING, _E.DECIDE),
    (_S.OPEN, _K.ROLLBACK): (_S.ROLLED_BACK, _E.FORGET),
    (_S.OPEN, _K.UNKNOWN): (_S.OPEN, _E.COUNT),
    (_S.OPEN, _K.ABANDON): (_S.ROLLED_BACK, _E.FORGET),
    (_S.OPEN, _K.RELEASE): (_S.OPEN, _E.REPEAT),
    (_S.OPEN, _K.RESCHEDULE): (_S.OPEN, _E.REPEAT),
    (_S.OPEN, _K.MOVE): (_S.OPEN, _E.KEEP),
    (_S.OPEN, _K.PARK): (_S.PARKED, _E.PARK),
    #
    (_S.WAITING, _K.HALF): (_S.WAITING, _E.JOIN),
    (_S.WAITING, _K.COMMIT): (_S.WAITING, _E.REPEAT),
    (_S.WAITING, _K.ROLLBACK): (_S.WAITING, _E.CONFLICT),
    (_S.WAITING, _K.UNKNOWN): (_S.WAITING, _E.REPEAT),
    (_S.WAITING, _K.ABANDON): (_S.ROLLED_BACK, _E.FORGET),
    (_S.WAITING, _K.RELEASE): (_S.WAITING, _E.EXTEND),
    (_S.WAITING, _K.RESCHEDULE): (_S.WAITING, _E.RESCHEDULE),
    (_S.WAITING, _K.MOVE): (_S.WAITING, _E.KEEP),
    (_S.WAITING, _K.GO): (_S.COMMITTED, _E.FORWARD),
    (_S.WAITING, _K.PART): (_S.SCHEDULED, _E.FORWARD_PART),
    (_S.WAITING, _K.NOT_DUE): (_S.SCHEDULED, _E.SCHEDULE),
    (_S.WAITING, _K.BLOCKED): (_S.WAITING, _E.WAIT),
    (_S.WAITING, _K.INCOMPLETE): (_S.PARKED_COMMITTED, _E.PARK),
    (_S.WAITING, _K.TARGET_REFUSES): (_S.HELD, _E.HOLD),
    (_S.WAITING, _K.RECORD_REFUSED): (_S.PARKED_COMMITTED, _E.PARK),
    #
    (_S.SCHEDULED, _K.HALF): (_S.SCHEDULED, _E.JOIN),
    (_S.SCHEDULED, _K.COMMIT): (_S.SCHEDULED, _E.REPEAT),
    (_S.SCHEDULED, _K.ROLLBACK): (_S.SCHEDULED, _E.CONFLICT),
    (_S.SCHEDULED, _K.UNKNOWN): (_S.SCHEDULED, _E.REPEAT),
    (_S.SCHEDULED, _K.ABANDON): (_S.ROLLED_BACK, _E.FORGET),
    (_S.SCHEDULED, _K.RELEASE): (_S.WAITING, _E.RETURN),
    (_S.SCHEDULED, _K.RESCHEDULE): (_S.SCHEDULED, _E.RESCHEDULE),
    #
    (_S.HELD, _K.HALF): (_S.HELD, _E.JOIN),
    (_S.HELD, _K.COMMIT): (_S.WAITING, _E.TRY),
    (_S.HELD, _K.ROLLBACK): (_S.HELD, _E.CONFLICT),
    (_S.HELD, _K.UNKNOWN): (_S.HELD, _E.REPEAT),
    (_S.HELD, _K.ABANDON): (_S.ROLLED_BACK, _E.FORGET),
    (_S.HELD, _K.RELEASE): (_S.HELD, _E.EXTEND),
    (_S.HELD, _K.RESCHEDULE): (_S.HELD, _E.RESCHEDULE),
    (_S.HELD, _K.MENDED): (_S.WAITING, _E.TRY),
    (_S.HELD, _K.EXPIRED): (_S.PARKED_COMMITTED, _E.PARK),
    #
    (_S.PARKED, _K.HALF): (_S.PARKED, _E.JOIN),
    (_S.PARKED, _K.COMMIT): (_S.WAITING, _E.RETURN),
    (_S.PARKED, _K.ROLLBACK): (_S.ROLLED_BACK, _E.FORGET),
    (_S.PARKED, _K.UNKNOWN): (_S.PARKED, _E.COUNT),
    (_S.PARKED, _K.ABANDON): (_S.ROLLED_BACK, _E.FORGET),
    (_S.PARKED, _K.RELEASE): (_S.PARKED, _E.REPEAT),
    (_S.PARKED, _K.RESCHEDULE): (_S.PARKED, _E.REPEAT),
    #
    (_S.PARKED_COMMITTED, _K.HALF): (_S.PARKED_COMMITTED, _E.JOIN),
    (_S.PARKED_COMMITTED, _K.COMMIT): (_S.WAITING, _E.RETURN),
    (_S.PARKED_COMMITTED, _K.ROLLBACK): (_S.PARKED_COMMITTED, _E.CONFLICT),
    (_S.PARKED_COMMITTED, _K.UNKNOWN): (_S.PARKED_COMMITTED, _E.REPEAT),
    (_S.PARKED_COMMITTED, _K.ABANDON): (_S.ROLLED_BACK, _E.FORGET),
    (_S.PARKED_COMMITTED, _K.RELEASE): (_S.PARKED_COMMITTED, _E.EXTEND),
    (_S.PARKED_COMMITTED, _K.RESCHEDULE): (_S.PARKED_COMMITTED, _E.RESCHEDULE),
    #
    (_S.COMMITTED, _K.HALF): (_S.COMMITTED, _E.REPORT),
    (_S.COMMITTED, _K.COMMIT): (_S.COMMITTED, _E.REPEAT),
    (_S.COMMITTED, _K.ROLLBACK): (_S.COMMITTED, _E.CONFLICT),
    (_S.COMMITTED, _K.UNKNOWN): (_S.COMMITTED, _E.REPEAT),
    (_S.COMMITTED, _K.ABANDON): (_S.COMMITTED, _E.CONFLICT),
    (_S.COMMITTED, _K.RELEASE): (_S.COMMITTED, _E.REPEAT),
    (_S.COMMITTED, _K.RESCHEDULE): (_S.COMMITTED, _E.REPEAT),
    #
    (_S.ROLLED_BACK, _K.HALF): (_S.ROLLED_BACK, _E.REPORT),
    (_S.ROLLED_BACK, _K.COMMIT): (_S.ROLLED_BACK, _E.CONFLICT),
    (_S.ROLLED_BACK, _K.ROLLBACK): (_S.ROLLED_BACK, _E.REPEAT),
    (_S.ROLLED_BACK, _K.UNKNOWN): (_S.ROLLED_BACK, _E.REPEAT),
    (_S.ROLLED_BACK, _K.ABANDON): (_S.ROLLED_BACK, _E.REPEAT),
    (_S.ROLLED_BACK, _K.RELEASE): (_S.ROLLED_BACK, _E.REPEAT),
    (_S.ROLLED_BACK, _K.RESCHEDULE): (_S.ROLLED_BACK, _E.REPEAT),
}

COMMITTING = "committing"
"""Not a state of the ledger: committed in the op log, but not forwarded yet according to the stored offsets."""
SETTLED = frozenset({TxnState.COMMITTED, TxnState.ROLLED_BACK})  # final states


def transition(state: TxnState, kind: TxnEvent, *, txn_id: str) -> tuple[TxnState, Effect]:
    """Return (next state, effect); InvalidTransitionError: the table has no such entry; the state is unchanged."""
    entry = TRANSITIONS.get((state, kind))
    if entry is None:
        raise InvalidTransitionError("no such transition", txn_id=txn_id, state=state.value, kind=kind.value)
    return entry
