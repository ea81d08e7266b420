"""The table of a transaction's life: every state with every kind."""

import pytest

from txlayer.core.ledger.transitions import SETTLED, TRANSITIONS, Effect, TxnEvent, TxnState, transition
from txlayer.errors import InvalidTransitionError

OP_KINDS = (
    TxnEvent.COMMIT,
    TxnEvent.ROLLBACK,
    TxnEvent.UNKNOWN,
    TxnEvent.ABANDON,
    TxnEvent.RELEASE,
    TxnEvent.RESCHEDULE,
)
EVERY_PAIR = [(state, kind) for state in TxnState for kind in TxnEvent]
UNDECIDED = frozenset({TxnState.OPEN, TxnState.PARKED})
DECIDED = frozenset(
    {TxnState.WAITING, TxnState.SCHEDULED, TxnState.HELD, TxnState.PARKED_COMMITTED, TxnState.COMMITTED}
)

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


@pytest.mark.parametrize("state", TxnState)
def test_an_op_line_or_a_half_record_is_expected_in_every_state(state: TxnState) -> None:
    # What others write may come at any time; only what the ledger itself does may be out of place.
    assert [] == [kind for kind in (*OP_KINDS, TxnEvent.HALF) if (state, kind) not in TRANSITIONS]


@pytest.mark.promise("P4")
@pytest.mark.parametrize("state", sorted(SETTLED, key=str))
def test_what_is_settled_stays_so(state: TxnState) -> None:
    after = {TRANSITIONS[pair][0] for pair in EVERY_PAIR if pair[0] is state and pair in TRANSITIONS}

    assert {state} == after


@pytest.mark.promise("P4")
@pytest.mark.parametrize("state", sorted(DECIDED, key=str))
def test_a_rollback_after_a_commit_changes_nothing_and_is_a_conflict(state: TxnState) -> None:
    assert (state, Effect.CONFLICT) == transition(state, TxnEvent.ROLLBACK, txn_id="a/0000000a")


@pytest.mark.promise("P4")
def test_a_commit_after_a_rollback_changes_nothing_and_is_a_conflict() -> None:
    found = transition(TxnState.ROLLED_BACK, TxnEvent.COMMIT, txn_id="a/0000000a")

    assert (TxnState.ROLLED_BACK, Effect.CONFLICT) == found


@pytest.mark.promise("P4")
@pytest.mark.parametrize("state", sorted(UNDECIDED, key=str))
@pytest.mark.parametrize("kind", [TxnEvent.COMMIT, TxnEvent.ROLLBACK])
def test_parking_is_no_decision(state: TxnState, kind: TxnEvent) -> None:
    after, _ = transition(state, kind, txn_id="a/0000000a")

    assert (after in DECIDED) is (kind is TxnEvent.COMMIT)


@pytest.mark.promise("P3")
def test_nothing_is_forwarded_but_out_of_a_commit() -> None:
    forwarding = {pair for pair, (_, effect) in TRANSITIONS.items() if effect is Effect.FORWARD}
    into_waiting = {
        pair[1] for pair, (after, _) in TRANSITIONS.items() if after is TxnState.WAITING and pair[0] not in DECIDED
    }

    assert {(TxnState.WAITING, TxnEvent.GO)} == forwarding
    assert {TxnEvent.COMMIT} == into_waiting


def test_only_an_abandon_gives_up_what_was_committed() -> None:
    giving_up = {
        pair[1] for pair, (after, _) in TRANSITIONS.items() if pair[0] in DECIDED and after is TxnState.ROLLED_BACK
    }

    assert {TxnEvent.ABANDON} == giving_up


@pytest.mark.parametrize("state", sorted(set(TxnState) - SETTLED, key=str))
def test_every_unsettled_state_can_be_settled(state: TxnState) -> None:
    reachable, waiting = {state}, [state]
    while waiting:
        here = waiting.pop()
        for (start, _), (after, _) in TRANSITIONS.items():
            if start is here and after not in reachable:
                reachable.add(after)
                waiting.append(after)

    assert reachable >= SETTLED


def test_every_kind_and_effect_is_used() -> None:
    assert set(TxnEvent) == {kind for _, kind in TRANSITIONS}
    assert set(Effect) == {effect for _, effect in TRANSITIONS.values()}
