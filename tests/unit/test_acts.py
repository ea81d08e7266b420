"""What an operator's word became, told from what stood before, the op lines since and what stands now."""

from __future__ import annotations

import pytest

from txlayer.core import codec
from txlayer.core.history import HistoryFold
from txlayer.core.messages import OpMessage, ParkReason, Resolution, Source
from txlayer.core.transaction import Transaction
from txlayer.core.transitions import COMMITTING, SETTLED, TxnState
from txlayer.operate.overview import Standing
from txlayer.operate.settle import (
    Act,
    Result,
    Said,
    became,
    known_before,
    line_of,
    of_settled,
)

KEY = "order-1/00000001"
OWN = (20, 3)
COMMIT, ROLLBACK, UNKNOWN = Resolution


def standing(state: str, *, reason: ParkReason | None = None) -> Standing:
    """The transaction in this state; its one half record is at 7."""
    txn = Transaction(KEY, "orders", "shop", 7, 1_000, "900", (0, 0), None)
    txn.extra().reason = reason
    return Standing(3, state, txn)


def said(
    resolution: Resolution,
    at: tuple[int, int] = OWN,
    *,
    offset: int = 7,
    abandon: bool = False,
    group: str = "orders",
) -> Said:
    """An operator's line; one second per op offset."""
    op = OpMessage(resolution, KEY, group, offset, 900, Source.OPERATOR, is_abandon=abandon)
    return Said(at, at[0] * 1_000, op)


def result(
    act: Act, before: str, *lines: Said, now: str | None = None, left_ms: int | None = None
) -> tuple[Result, str | None]:
    """(result, state now)."""
    found = None if now is None else standing(now)
    told = became(act, standing(before), OWN, said=lines, now=found, left_doubt_ms=left_ms)
    return told[0], told[1]


# --- before writing ---------------------------------------------------------------------------------------------------


def test_every_act_on_every_state_that_is_not_settled_has_its_answer_before_writing() -> None:
    states = [s.value for s in TxnState if s not in SETTLED] + [COMMITTING]
    refused, already = Result.REFUSED, Result.ALREADY

    told = {act: {state: known_before(act, state) for state in states} for act in Act}

    nothing = dict.fromkeys(states)
    decided = {"waiting", "held", "parked-committed", COMMITTING}
    assert {s: refused if s in decided else None for s in states} == told[Act.CHECK_NOW]
    assert {s: refused if s in decided else None for s in states} == told[Act.ROLLBACK]
    assert nothing | {"waiting": already, COMMITTING: already} == told[Act.COMMIT]
    assert nothing | {COMMITTING: refused} == told[Act.ABANDON]


@pytest.mark.parametrize(
    ("act", "letter"),
    [(Act.CHECK_NOW, "U"), (Act.COMMIT, "C"), (Act.ROLLBACK, "R"), (Act.ABANDON, "A")],
)
def test_a_line_names_the_last_half_record_and_says_who_and_why(act: Act, letter: str) -> None:
    op = line_of(act, standing("parked"), operator="zoe@desk", reason="ticket 12|3")

    line = codec.encode_op(op)

    assert f"1|{letter}|{KEY}|orders|7|900|operator||zoe%40desk%3A ticket 12%7C3" == line
    assert op == codec.decode_op(line)


def test_a_transaction_without_half_records_is_named_with_offset_0() -> None:
    txn = Transaction(KEY, "orders", "", -1, 1_000, "900", (0, 0), [])

    op = line_of(Act.ROLLBACK, Standing(3, "parked", txn), operator="zoe", reason="gone")

    assert 0 == op.last_offset


# --- after it ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["open", "parked"])
@pytest.mark.parametrize(
    ("act", "resolution", "state"),
    [
        (Act.COMMIT, COMMIT, "committed"),
        (Act.ROLLBACK, ROLLBACK, "rolled-back"),
        (Act.ABANDON, ROLLBACK, "rolled-back"),
    ],
)
def test_the_first_line_that_counts_decides(
    before: str, act: Act, resolution: Resolution, state: str
) -> None:
    own, contrary = said(resolution), COMMIT if resolution is ROLLBACK else ROLLBACK
    other_state = "rolled-back" if state == "committed" else "committed"

    assert (Result.DONE, state) == result(act, before, own)
    assert (Result.DONE, state) == result(act, before, said(UNKNOWN, (19, 0)), own)
    assert (Result.DONE, state) == result(act, before, said(contrary, (19, 0), offset=9), own)
    stranger = said(contrary, (19, 0), group="strangers")
    assert (Result.DONE, state) == result(act, before, stranger, own)
    assert (Result.DONE, state) == result(act, before, own, said(contrary, (21, 0)))
    assert (Result.ALREADY, state) == result(act, before, said(resolution, (20, 2)), own)
    assert (Result.REFUSED, other_state) == result(act, before, said(contrary, (20, 2)), own)


def test_a_line_that_names_a_half_record_which_is_not_the_last_any_more_is_ignored() -> None:
    assert (Result.IGNORED, "open") == result(
        Act.COMMIT, "open", said(COMMIT, offset=6), now="open"
    )


@pytest.mark.parametrize("state", ["held", "parked-committed"])
def test_what_is_committed_and_cannot_be_forwarded_is_told_so(state: str) -> None:
    assert (Result.NOT_FORWARDED, state) == result(Act.COMMIT, "parked", said(COMMIT), now=state)
    assert (Result.NOT_FORWARDED, state) == result(Act.COMMIT, state, said(COMMIT), now=state)


def test_what_waits_for_its_key_is_committed() -> None:
    assert (Result.DONE, "waiting") == result(Act.COMMIT, "open", said(COMMIT), now="waiting")


def test_a_commit_after_another_operators_abandon_is_refused() -> None:
    given_up = said(ROLLBACK, (19, 0), abandon=True)

    assert (Result.REFUSED, "rolled-back") == result(
        Act.COMMIT, "held", given_up, said(COMMIT), left_ms=19_500
    )
    assert (Result.DONE, "committed") == result(Act.COMMIT, "held", said(COMMIT), left_ms=20_500)


def test_an_abandon_of_what_was_forwarded_before_is_refused() -> None:
    own = said(ROLLBACK, abandon=True)

    assert (Result.DONE, "rolled-back") == result(Act.ABANDON, "held", own, left_ms=20_500)
    assert (Result.REFUSED, "committed") == result(Act.ABANDON, "held", own, left_ms=19_500)
    assert (Result.ALREADY, "rolled-back") == result(
        Act.ABANDON, "held", said(ROLLBACK, (19, 0), abandon=True), own, left_ms=19_500
    )
    assert (Result.DONE, "rolled-back") == result(Act.ABANDON, "waiting", own)
    assert (Result.IGNORED, "held") == result(Act.ABANDON, "held", own, now="held")


def test_to_ask_is_done_when_the_coordinator_knows_and_needless_when_it_is_decided() -> None:
    assert (Result.DONE, "open") == result(Act.CHECK_NOW, "open", said(UNKNOWN), now="open")
    assert (Result.ALREADY, "committed") == result(
        Act.CHECK_NOW, "open", said(UNKNOWN), said(COMMIT, (21, 0))
    )


# --- what is settled --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "resolution", "expected"),
    [
        (Act.COMMIT, COMMIT, Result.ALREADY),
        (Act.COMMIT, ROLLBACK, Result.REFUSED),
        (Act.ROLLBACK, ROLLBACK, Result.ALREADY),
        (Act.ROLLBACK, COMMIT, Result.REFUSED),
        (Act.ABANDON, ROLLBACK, Result.ALREADY),
        (Act.ABANDON, COMMIT, Result.REFUSED),
        (Act.CHECK_NOW, COMMIT, Result.REFUSED),
        (Act.CHECK_NOW, ROLLBACK, Result.REFUSED),
    ],
)
def test_what_is_settled_is_so_already_or_refuses(
    act: Act, resolution: Resolution, expected: Result
) -> None:
    fold = HistoryFold("order-1")
    value = codec.encode_ops([codec.encode_op(said(resolution).op)])
    fold.op(partition=3, offset=20, appended_ms=20_000, value=value)
    (history,) = fold.histories()

    outcome = of_settled(act, history)

    assert (expected, KEY, None) == (outcome.result, outcome.key, outcome.before)
    assert (20_000, (20, 0)) == (
        outcome.decided_ms,
        outcome.decision.position if outcome.decision else None,
    )
