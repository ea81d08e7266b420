"""What an operator's word became, told from what stood before, the op lines since and what stands now."""

from typing import Any

import pytest

from txlayer.adapters.ports import StoredOffset
from txlayer.config import CoordinatorConfig
from txlayer.core import codec
from txlayer.core.history import HistoryFold, operator_reason
from txlayer.core.ledger.transaction import DueTimes, Transaction
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, TxnState
from txlayer.core.messages import OpMessage, ParkReason, Resolution, Source
from txlayer.operate.history import are_applied
from txlayer.operate.settle import (
    OperatorAction,
    RecordedLine,
    SettlementResult,
    known_before,
    line_of,
    of_settled,
    of_time,
    outcome_of,
    result_of,
)
from txlayer.operate.unsettled import UnsettledTransaction

KEY = "order-1/00000001"
OWN = (20, 3)
COMMIT, ROLLBACK, UNKNOWN = Resolution


def standing(state: str, *, reason: ParkReason | None = None) -> UnsettledTransaction:
    """The transaction in this state; its one half record is at 7."""
    txn = Transaction(KEY, "orders", "shop", 7, 1_000, "900", (0, 0), None)
    txn.ensure_extras().reason = reason
    return UnsettledTransaction(3, state, txn)


def said(
    resolution: Resolution, at: tuple[int, int] = OWN, *, offset: int = 7, abandon: bool = False, group: str = "orders"
) -> RecordedLine:
    """An operator's line; one second per op offset."""
    op = OpMessage(resolution, KEY, group, offset, 900, Source.OPERATOR, is_abandon=abandon)
    return RecordedLine(at, at[0] * 1_000, op)


def result(
    act: OperatorAction, before: str, *lines: RecordedLine, now: str | None = None, is_abandoned: bool = False
) -> tuple[SettlementResult, str | None]:
    """(result, state now)."""
    found = None if now is None else standing(now)
    told = result_of(act, standing(before), OWN, said=lines, now=found, is_abandoned=is_abandoned)
    return told[0], told[1]


# --- before writing ---------------------------------------------------------------------------------------------------


def test_every_act_on_every_state_that_is_not_settled_has_its_answer_before_writing() -> None:
    states = [s.value for s in TxnState if s not in SETTLED] + [COMMITTING]
    refused, already = SettlementResult.REFUSED, SettlementResult.ALREADY

    told = {act: {state: known_before(act, state) for state in states} for act in OperatorAction}

    nothing = dict.fromkeys(states)
    decided = {"waiting", "scheduled", "held", "parked-committed", COMMITTING}
    assert {s: refused if s in decided else None for s in states} == told[OperatorAction.CHECK_NOW]
    assert {s: refused if s in decided else None for s in states} == told[OperatorAction.ROLLBACK]
    assert nothing | {"waiting": already, "scheduled": already, COMMITTING: already} == told[OperatorAction.COMMIT]
    assert nothing | {COMMITTING: refused} == told[OperatorAction.ABANDON]
    for act in (OperatorAction.CANCEL, OperatorAction.RESCHEDULE):
        assert dict.fromkeys(states, SettlementResult.NOT_SCHEDULED) | {"scheduled": None} == told[act]


@pytest.mark.parametrize(
    ("act", "letter"),
    [
        (OperatorAction.CHECK_NOW, "U"),
        (OperatorAction.COMMIT, "C"),
        (OperatorAction.ROLLBACK, "R"),
        (OperatorAction.ABANDON, "A"),
    ],
)
def test_a_line_names_the_last_half_record_and_says_who_and_why(act: OperatorAction, letter: str) -> None:
    _, op = line_of(act, standing("parked"), operator_reason("zoe@desk", "ticket 12|3"))

    line = codec.encode_op(op)

    assert f"1|{letter}|{KEY}|orders|7|900|operator||zoe%40desk%3A ticket 12%7C3" == line
    assert op == codec.decode_op(line)


def test_a_transaction_without_half_records_is_named_with_offset_0() -> None:
    txn = Transaction(KEY, "orders", "", -1, 1_000, "900", (0, 0), [])

    _, op = line_of(OperatorAction.ROLLBACK, UnsettledTransaction(3, "parked", txn), operator_reason("zoe", "gone"))

    assert 0 == op.last_offset


# --- after it ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["open", "parked"])
@pytest.mark.parametrize(
    ("act", "resolution", "state"),
    [
        (OperatorAction.COMMIT, COMMIT, "committed"),
        (OperatorAction.ROLLBACK, ROLLBACK, "rolled-back"),
        (OperatorAction.ABANDON, ROLLBACK, "rolled-back"),
    ],
)
def test_the_first_line_that_counts_decides(
    before: str, act: OperatorAction, resolution: Resolution, state: str
) -> None:
    own, contrary = said(resolution), COMMIT if resolution is ROLLBACK else ROLLBACK
    other_state = "rolled-back" if state == "committed" else "committed"

    assert (SettlementResult.DONE, state) == result(act, before, own)
    assert (SettlementResult.DONE, state) == result(act, before, said(UNKNOWN, (19, 0)), own)
    assert (SettlementResult.DONE, state) == result(act, before, said(contrary, (19, 0), offset=9), own)
    stranger = said(contrary, (19, 0), group="strangers")
    assert (SettlementResult.DONE, state) == result(act, before, stranger, own)
    assert (SettlementResult.DONE, state) == result(act, before, own, said(contrary, (21, 0)))
    assert (SettlementResult.ALREADY, state) == result(act, before, said(resolution, (20, 2)), own)
    assert (SettlementResult.REFUSED, other_state) == result(act, before, said(contrary, (20, 2)), own)


DONE, ALREADY, REFUSED, IGNORED = (
    SettlementResult.DONE,
    SettlementResult.ALREADY,
    SettlementResult.REFUSED,
    SettlementResult.IGNORED,
)
NOT_FORWARDED = SettlementResult.NOT_FORWARDED
ABANDON = said(ROLLBACK, abandon=True)
EARLIER_ABANDON, EARLIER_COMMIT = said(ROLLBACK, (19, 0), abandon=True), said(COMMIT, (19, 0))

# For each act: (state before, op lines, state now or None if settled, is it abandoned, result, state in the answer)
BECAME: dict[OperatorAction, list[tuple[str, list[RecordedLine], str | None, bool, SettlementResult, str]]] = {
    OperatorAction.COMMIT: [
        ("open", [said(COMMIT, offset=6)], "open", False, IGNORED, "open"),  # that half record is not the last any more
        ("open", [said(COMMIT)], "waiting", False, DONE, "waiting"),
        ("parked", [said(COMMIT)], "held", False, NOT_FORWARDED, "held"),
        ("parked", [said(COMMIT)], "parked-committed", False, NOT_FORWARDED, "parked-committed"),
        ("held", [said(COMMIT)], "held", False, NOT_FORWARDED, "held"),
        ("parked-committed", [said(COMMIT)], "parked-committed", False, NOT_FORWARDED, "parked-committed"),
        ("held", [said(COMMIT)], None, False, DONE, "committed"),
        ("held", [EARLIER_ABANDON, said(COMMIT)], None, True, REFUSED, "rolled-back"),
    ],
    OperatorAction.ABANDON: [
        ("held", [ABANDON], None, True, DONE, "rolled-back"),
        ("held", [ABANDON], None, False, REFUSED, "committed"),  # it was forwarded before
        ("held", [EARLIER_ABANDON, ABANDON], None, True, ALREADY, "rolled-back"),
        ("waiting", [ABANDON], None, True, DONE, "rolled-back"),
        ("waiting", [ABANDON], None, False, REFUSED, "committed"),
        ("held", [ABANDON], "held", False, IGNORED, "held"),
        ("parked", [EARLIER_COMMIT, ABANDON], None, True, DONE, "rolled-back"),
        ("parked", [EARLIER_COMMIT, ABANDON], None, False, REFUSED, "committed"),
    ],
    OperatorAction.CHECK_NOW: [
        ("open", [said(UNKNOWN)], "open", False, DONE, "open"),
        ("open", [said(UNKNOWN), said(COMMIT, (21, 0))], None, False, ALREADY, "committed"),  # needless by now
    ],
}


@pytest.mark.parametrize(("act", "row"), [(act, row) for act, rows in BECAME.items() for row in rows])
def test_what_became_of_a_line_is_told_by_the_lines_before_it_and_by_what_is_there_now(
    act: OperatorAction, row: tuple[str, list[RecordedLine], str | None, bool, SettlementResult, str]
) -> None:
    before, lines, now, is_abandoned, expected, state = row

    assert (expected, state) == result(act, before, *lines, now=now, is_abandoned=is_abandoned)


# --- what is settled --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "resolution", "expected"),
    [
        (OperatorAction.COMMIT, COMMIT, SettlementResult.ALREADY),
        (OperatorAction.COMMIT, ROLLBACK, SettlementResult.REFUSED),
        (OperatorAction.ROLLBACK, ROLLBACK, SettlementResult.ALREADY),
        (OperatorAction.ROLLBACK, COMMIT, SettlementResult.REFUSED),
        (OperatorAction.ABANDON, ROLLBACK, SettlementResult.ALREADY),
        (OperatorAction.ABANDON, COMMIT, SettlementResult.REFUSED),
        (OperatorAction.CHECK_NOW, COMMIT, SettlementResult.REFUSED),
        (OperatorAction.CHECK_NOW, ROLLBACK, SettlementResult.REFUSED),
    ],
)
def test_what_is_settled_is_so_already_or_refuses(
    act: OperatorAction, resolution: Resolution, expected: SettlementResult
) -> None:
    fold = HistoryFold("order-1")
    value = codec.encode_ops([codec.encode_op(said(resolution).op)])
    fold.op(partition=3, offset=20, appended_ms=20_000, value=value)
    (history,) = fold.histories()

    outcome = of_settled(act, history)

    assert (expected, KEY, None) == (outcome.result, outcome.key, outcome.before)
    assert (20_000, (20, 0)) == (outcome.decided_ms, outcome.decision.position if outcome.decision else None)


def committed_and_abandoned() -> HistoryFold:
    """A commit at 20, and an abandon at 22."""
    fold = HistoryFold("order-1")
    for offset, line in ((20, said(COMMIT)), (22, said(ROLLBACK, abandon=True))):
        value = codec.encode_ops([codec.encode_op(line.op)])
        fold.op(partition=3, offset=offset, appended_ms=offset * 1_000, value=value)
    return fold


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (OperatorAction.ABANDON, SettlementResult.ALREADY),
        (OperatorAction.ROLLBACK, SettlementResult.ALREADY),
        (OperatorAction.COMMIT, SettlementResult.REFUSED),
    ],
)
def test_what_was_abandoned_after_its_commit_was_ended_by_the_abandon(
    act: OperatorAction, expected: SettlementResult
) -> None:
    fold = committed_and_abandoned()
    fold.doubt(partition=3, appended_ms=23_000, key=KEY.encode(), value=None, headers=codec.abandoned_headers())
    (history,) = fold.histories()

    outcome = of_settled(act, history)

    assert (expected, "rolled-back", 22_000) == (outcome.result, outcome.state, outcome.decided_ms)
    assert (22, 0) == (outcome.decision.position if outcome.decision else None)


@pytest.mark.parametrize(("op_next", "is_applied"), [(21, False), (23, True)])
def test_an_abandon_is_carried_out_when_the_coordinators_are_beyond_it(*, op_next: int, is_applied: bool) -> None:
    """They were beyond the commit before: it was held."""
    fold = committed_and_abandoned()
    held = standing("held").txn
    held.state = TxnState.HELD
    fold.doubt(partition=3, appended_ms=21_000, key=KEY.encode(), value=codec.encode_summary(held.summary()))

    class Offsets:
        config = CoordinatorConfig()

        def stored_offsets(self, _group: str, partitions: Any) -> Any:
            return {tp: StoredOffset(op_next, f"1|w|9|0|{op_next}:0|0") for tp in partitions}

    connections: Any = Offsets()

    assert [is_applied] == list(are_applied(connections, fold.histories()))


# --- scheduled ones ---------------------------------------------------------------------------------------------------


def scheduled(*times: int) -> UnsettledTransaction:
    """One whose messages wait for these times."""
    found = standing("scheduled")
    found.txn.ensure_extras().due = DueTimes(1, 1, times, (1, 0))
    return found


def timed(resolution: Resolution, time_ms: int, at: tuple[int, int]) -> RecordedLine:
    """A line with a time; one second per op offset."""
    op = OpMessage(resolution, KEY, "orders", 7, 900, Source.POLICY, time_ms=time_ms)
    return RecordedLine(at, at[0] * 1_000, op)


@pytest.mark.parametrize(
    ("before_it", "result"),
    [
        ([], SettlementResult.DONE),
        ([timed(Resolution.COMMIT, 2_000, (2, 0))], SettlementResult.DONE),
        (
            [timed(Resolution.COMMIT, 2_000, (2, 0)), timed(Resolution.COMMIT, 3_000, (3, 0))],
            SettlementResult.NOT_SCHEDULED,
        ),
        ([timed(Resolution.COMMIT, 3_000, (3, 0))], SettlementResult.DONE),
        ([timed(Resolution.COMMIT, 2_000, (1, 0))], SettlementResult.DONE),
        (
            [timed(Resolution.UNKNOWN, 2_500, (2, 0)), timed(Resolution.COMMIT, 2_500, (3, 0))],
            SettlementResult.NOT_SCHEDULED,
        ),
        ([said(Resolution.ROLLBACK, (2, 0), abandon=True)], SettlementResult.NOT_SCHEDULED),
    ],
)
def test_another_time_counts_while_one_is_left(before_it: list[RecordedLine], result: SettlementResult) -> None:
    lines = [*before_it, timed(Resolution.UNKNOWN, 90_000, OWN)]

    told = result_of(OperatorAction.RESCHEDULE, scheduled(2_000, 3_000), OWN, said=lines, now=None, is_abandoned=False)

    assert result is told[0]


@pytest.mark.parametrize(
    ("first", "is_abandoned", "result", "state"),
    [
        (timed(Resolution.COMMIT, 2_000, (2, 0)), False, SettlementResult.ALREADY, "committed"),
        (said(Resolution.ROLLBACK, (2, 0), abandon=True), True, SettlementResult.NOT_SCHEDULED, "rolled-back"),
        (said(Resolution.ROLLBACK, (99, 0), abandon=True), True, SettlementResult.NOT_SCHEDULED, "rolled-back"),
    ],
)
def test_at_once_is_already_so_for_what_is_visible_and_not_for_what_another_person_cancelled(
    first: RecordedLine, result: SettlementResult, state: str, *, is_abandoned: bool
) -> None:
    before = scheduled(2_000)
    lines = sorted([first, timed(Resolution.UNKNOWN, 2_500, OWN)], key=lambda each: each.position)
    told = result_of(OperatorAction.RESCHEDULE, before, OWN, said=lines, now=None, is_abandoned=is_abandoned)
    outcome = outcome_of(before, told[0], state=told[1])

    assert (result, state) == of_time(outcome, is_due=True)[4:6]
    assert SettlementResult.NOT_SCHEDULED is of_time(outcome, is_due=False).result


@pytest.mark.parametrize("state", ["committing", "waiting", "held", "parked-committed"])
def test_at_once_is_not_so_already_where_later_messages_may_wait_for_their_times(state: str) -> None:
    outcome = outcome_of(standing(state), SettlementResult.NOT_SCHEDULED)

    assert outcome == of_time(outcome, is_due=True)
