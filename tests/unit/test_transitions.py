"""The table of a transaction's life: every state with every kind."""

import pytest

from txlayer.core.ledger.transitions import TRANSITIONS, Effect, TxnEvent, TxnState, transition
from txlayer.errors import InvalidTransitionError

EVERY_PAIR = [(state, kind) for state in TxnState for kind in TxnEvent]

# The effects, written down a second time: a slip in the table must meet one here. The states are drawn in the diagram.
OF_OTHERS = """
                  half    commit    rollback  unknown  abandon   release  reschedule
open              join    decide    forget    count    forget    repeat   repeat
waiting           join    repeat    conflict  repeat   forget    extend   reschedule
scheduled         join    repeat    conflict  repeat   forget    return   reschedule
held              join    try       conflict  repeat   forget    extend   reschedule
parked            join    return    forget    count    forget    repeat   repeat
parked-committed  join    return    conflict  repeat   forget    extend   reschedule
committed         report  repeat    conflict  repeat   conflict  repeat   repeat
rolled-back       report  conflict  repeat    repeat   repeat    repeat   repeat
"""
OF_THE_LEDGER = {
    "move": "keep",
    "park": "park",
    "go": "forward",
    "part": "forward-part",
    "not-due": "schedule",
    "blocked": "wait",
    "incomplete": "park",
    "target-refuses": "hold",
    "record-refused": "park",
    "mended": "try",
    "expired": "park",
}


def test_every_effect_is_the_one_that_is_wanted() -> None:
    first, *rows = [line.split() for line in OF_OTHERS.strip().splitlines()]
    wanted = {(state, kind): effect for state, *effects in rows for kind, effect in zip(first, effects, strict=True)}

    for (state, kind), (_, effect) in TRANSITIONS.items():
        expected = wanted.pop((state.value, kind.value), None) or OF_THE_LEDGER[kind.value]
        assert expected == effect.value, (state, kind)
    assert {} == wanted


@pytest.mark.parametrize(("state", "kind"), EVERY_PAIR)
def test_a_state_and_a_kind_have_an_entry_or_are_refused(state: TxnState, kind: TxnEvent) -> None:
    if (state, kind) in TRANSITIONS:
        assert TRANSITIONS[state, kind] == transition(state, kind, txn_id="a/0000000a")
        return

    with pytest.raises(InvalidTransitionError) as refused:
        transition(state, kind, txn_id="a/0000000a")

    fields = {"txn_id": "a/0000000a", "state": state.value, "kind": kind.value}
    assert fields == refused.value.fields


@pytest.mark.promise("P3")
def test_nothing_is_forwarded_but_out_of_a_commit() -> None:
    forwarding = {pair for pair, (_, effect) in TRANSITIONS.items() if effect is Effect.FORWARD}

    assert {(TxnState.WAITING, TxnEvent.GO)} == forwarding


def test_every_kind_and_effect_is_used() -> None:
    assert set(TxnEvent) == {kind for _, kind in TRANSITIONS}
    assert set(Effect) == {effect for _, effect in TRANSITIONS.values()}
