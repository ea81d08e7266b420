"""The verdicts on one transaction: their names, their severity, and the promises that each breaks.

docs/howto/reconcile.md defines the names and meanings, which Spark's jobs share; a test compares them.
"""

from __future__ import annotations

from enum import Enum


class Severity(Enum):
    """What a verdict requires."""

    GOOD = "good"  #: nothing
    WARNING = "warning"  #: an operator should look; the exit code stays 0
    FAULT = "fault"  #: a promise is broken: exit code 1


class Verdict(Enum):
    """Verdicts in order of precedence: a transaction gets the first one whose condition holds."""

    OUT_OF_WINDOW = "out_of_window"  #: a half record of it, or a topic of it, was not read
    ORPHAN = "orphan"  #: visible without a half record
    LEAKED = "leaked"  #: visible though rolled back or undecided
    DUPLICATE = "duplicate"  #: a message is visible twice, or two attempts under one id are
    TORN = "torn"  #: only a part of the transaction is visible
    CORRUPT = "corrupt"  #: what is visible is not what was stored
    OUT_OF_ORDER = "out_of_order"  #: visible after a later one of its ordering key
    PARKED = "parked"  #: on the doubt topic for a person, with its content
    LOST = "lost"  #: committed, not visible, and not held or parked
    CONFLICTING = "conflicting"  #: settled, and a contrary resolution was refused
    ROLLED_BACK = "rolled_back"  #: rolled back or given up, and nothing is visible
    OK = "ok"  #: committed, and every message is visible once as it was stored
    OVERDUE = "overdue"  #: undecided or held for longer than it should be
    OPEN = "open"  #: undecided, held, or in progress


class Promise(Enum):
    """Promises that `verify` proves or refutes; short forms of the sentences in docs/explanation/promises.md."""

    P1 = "no loss"  #: a committed message is visible, or is whole on the doubt topic
    P2 = "no duplicate"  #: a read_committed reader sees each message once
    P3 = "no phantom"  #: no rolled-back, undecided or foreign message is visible
    P4 = "one final decision"  #: the first commit or rollback holds, whatever comes later
    P5 = "atomic visibility"  #: all messages of one transaction, or none
    P6 = "order"  #: messages of one ordering key, in the order of their decisions


_FAULTS = {
    Verdict.ORPHAN: (Promise.P3,),
    Verdict.LEAKED: (Promise.P3,),
    Verdict.DUPLICATE: (Promise.P2,),
    Verdict.TORN: (Promise.P5, Promise.P1),
    Verdict.CORRUPT: (Promise.P3,),
    Verdict.OUT_OF_ORDER: (Promise.P6,),
    Verdict.LOST: (Promise.P1,),
}
_WARNINGS = frozenset({Verdict.OUT_OF_WINDOW, Verdict.PARKED, Verdict.CONFLICTING, Verdict.OVERDUE})


def severity(verdict: Verdict) -> Severity:
    """The severity of the verdict."""
    if verdict in _FAULTS:
        return Severity.FAULT
    return Severity.WARNING if verdict in _WARNINGS else Severity.GOOD


def broken_promises(verdict: Verdict, *, is_rolled_back: bool) -> tuple[Promise, ...]:
    """The promises that a transaction with this verdict breaks. If it was rolled back and is visible, it had two decisions."""
    broken = _FAULTS.get(verdict, ())
    return (*broken, Promise.P4) if verdict is Verdict.LEAKED and is_rolled_back else broken
