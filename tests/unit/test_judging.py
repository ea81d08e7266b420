"""What `txlayer verify` says beside a verdict, and of windows that lack something. The verdicts: tests/reference/cases.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from txlayer.core.checks import IMMUNITY_MS_MAX
from txlayer.core.messages import Origin
from txlayer.core.verification import (
    COMMIT,
    ROLLBACK,
    ContentTrace,
    DoubtTrace,
    ForwardTrace,
    HalfTrace,
    Judged,
    OpTrace,
    Promise,
    Proof,
    Traces,
    Verdict,
    Window,
    judge,
)

NOW_MS = 1_000_000
WINDOW = Window(
    half_topic="ns.half", starts={0: 10}, ends={0: 1_000}, cut_ms=NOW_MS, grace_ms=60_000, overdue_ms=300_000
)


class Case:
    """One id, laid out trace by trace."""

    def __init__(self, *, count: int = 1, first: int = 100, at_ms: int = 0) -> None:
        self.traces = Traces("id")
        self.at_ms = at_ms
        self.half(count=count, first=first)

    def half(self, *, count: int = 1, first: int, nonce: str = "n", indices: list[int] | None = None) -> None:
        for index in range(count) if indices is None else indices:
            self.traces.halves.append(
                HalfTrace(nonce, 0, first + index, index, count, "orders", 7 + index, self.at_ms, "", False, 0)
            )

    def op(self, said: str, *, at: int = 1, last: int = 100, nonce: str = "n", partition: int = 0) -> Case:
        self.traces.ops.append(OpTrace(nonce, partition, at, 0, self.at_ms, said, last))
        return self

    def forward(
        self, half: int = 100, *, at: int = 5, content: int = 7, is_committed: bool = True, count: int = 1, **more: Any
    ) -> Case:
        self.traces.forwards.append(ForwardTrace("orders", 0, at, 0, half, count, content, is_committed, **more))
        return self

    def doubt(self, state: str, *, at: int = 1, content: int | None = 7) -> Case:
        self.traces.doubts.append(DoubtTrace("n", 0, at, self.at_ms, state, 100))
        if content is not None:
            self.traces.contents.append(ContentTrace("n", 0, at, 0, content))
        return self

    def verdicts(self, window: Window = WINDOW) -> list[Verdict]:
        return [found.verdict for found in self.judged(window)]

    def judged(self, window: Window = WINDOW) -> list[Judged]:
        return judge(self.traces, window)


def test_a_committed_transaction_that_nobody_sees_is_lost_and_its_half_message_named() -> None:
    (found,) = Case().op(COMMIT).judged()

    assert (Verdict.LOST, Origin("ns.half", 0, 100)) == (found.verdict, found.origin)


def test_what_is_younger_than_the_grace_is_on_its_way_and_not_lost() -> None:
    (found,) = Case(at_ms=NOW_MS - 59_000).op(COMMIT).judged()

    assert (Verdict.OPEN, True) == (found.verdict, found.is_on_its_way)


def test_a_message_that_is_visible_twice_is_a_duplicate_at_its_second_place() -> None:
    (found,) = Case().op(COMMIT).forward(at=5).forward(at=9).judged()

    assert (Verdict.DUPLICATE, Origin("orders", 0, 9)) == (found.verdict, found.origin)


def test_two_visible_attempts_of_one_id_are_duplicates() -> None:
    case = Case().op(COMMIT).forward(at=5)
    case.half(first=200, nonce="m")
    case.op(COMMIT, at=2, last=200, nonce="m").forward(200, at=6)

    assert [Verdict.DUPLICATE] * 2 == case.verdicts()


def test_an_attempt_that_nobody_decided_beside_a_visible_one_is_no_duplicate() -> None:
    case = Case().op(COMMIT).forward()
    case.half(first=200, nonce="m")
    case.op(ROLLBACK, at=2, last=200, nonce="m")

    assert [Verdict.OK, Verdict.ROLLED_BACK] == case.verdicts()


@pytest.mark.parametrize(("is_past", "expected"), [(True, Verdict.OUT_OF_WINDOW), (False, Verdict.LEAKED)])
def test_what_a_long_prepare_stored_behind_a_past_window_may_have_been_committed(
    *, is_past: bool, expected: Verdict
) -> None:
    case = Case(count=2).forward(count=2)
    del case.traces.halves[1:]

    assert [expected] == case.verdicts(replace(WINDOW, is_past=is_past))


@pytest.mark.parametrize(("is_past", "expected"), [(True, Verdict.OUT_OF_WINDOW), (False, Verdict.LEAKED)])
def test_what_was_the_last_half_record_on_doubt_may_be_followed_by_one_behind_a_past_window(
    *, is_past: bool, expected: Verdict
) -> None:
    case = Case(count=3).doubt("open").op(ROLLBACK, last=101).forward(count=3).doubt("", at=2, content=None)
    del case.traces.halves[2:]

    assert [expected] == case.verdicts(replace(WINDOW, is_past=is_past))


@pytest.mark.parametrize("said", [None, ROLLBACK])
@pytest.mark.parametrize("is_committed", [True, False])
def test_what_is_in_the_log_without_a_commit_is_leaked(said: str | None, is_committed: bool) -> None:
    case = Case().forward(is_committed=is_committed)
    if said:
        case.op(said)

    (found,) = case.judged()

    assert (Verdict.LEAKED, Origin("orders", 0, 5)) == (found.verdict, found.origin)
    assert (said == ROLLBACK) is found.is_rolled_back


def test_an_aborted_copy_of_a_committed_message_is_no_fault() -> None:
    assert [Verdict.OK] == Case().op(COMMIT).forward(at=4, is_committed=False).forward().verdicts()


def test_a_part_of_a_transaction_is_torn() -> None:
    (found,) = Case(count=2).op(COMMIT, last=101).forward(count=2).judged()

    assert (Verdict.TORN, "messages 1 are not visible") == (found.verdict, found.detail)


def test_what_names_a_half_record_before_the_window_is_out_of_it() -> None:
    case = Case().op(ROLLBACK).forward(9)

    assert [Verdict.ROLLED_BACK, Verdict.OUT_OF_WINDOW] == case.verdicts()


def test_an_aborted_record_from_before_the_window_is_nobodys_business() -> None:
    assert [Verdict.OK] == Case().op(COMMIT).forward().forward(9, is_committed=False).verdicts()


def test_a_transaction_that_begins_behind_the_window_is_not_judged() -> None:
    assert [] == Case(first=1_000).op(COMMIT, last=1_000).verdicts()


def test_what_is_missing_on_a_topic_that_was_not_read_is_out_of_the_window() -> None:
    unread = Window(
        half_topic="ns.half", starts={0: 0}, ends={0: 1_000}, cut_ms=NOW_MS, unread_topics=frozenset({"orders"})
    )

    assert [Verdict.OUT_OF_WINDOW] == Case().op(COMMIT).verdicts(unread)


@pytest.mark.parametrize("said", [None, ROLLBACK])
@pytest.mark.parametrize(
    ("edges", "is_proof"),
    [
        ({}, True),
        ({"unread_topics": frozenset({"orders"})}, False),
        ({"real_from_ms": {("orders", 0): 10}}, False),
        ({"real_from_ms": {("orders", 0): -1}}, True),
    ],
)
def test_what_is_not_visible_proves_nothing_where_its_topic_was_not_read_or_lacks_records(
    *, said: str | None, edges: dict[str, Any], is_proof: bool
) -> None:
    case, proof = Case(), Proof()
    if said:
        case.op(said)

    for found in case.judged(replace(WINDOW, partition_counts={"orders": 1}, **edges)):
        proof.add(found)

    (of_p3,) = (status for status in proof.statuses() if status.promise is Promise.P3)
    assert (is_proof, not is_proof) == (of_p3.proved_count == 1, of_p3.undecidable_count == 1)


def test_what_retention_may_have_taken_is_out_of_the_window() -> None:
    gone = replace(WINDOW, partition_counts={"orders": 1}, real_from_ms={("orders", 0): 0})
    assert [Verdict.OUT_OF_WINDOW] == Case().op(COMMIT).verdicts(gone)
    assert [Verdict.LOST] == Case(at_ms=1).op(COMMIT).verdicts(gone)
    lines_gone = replace(WINDOW, op_from_ms={0: 0})
    assert [Verdict.OUT_OF_WINDOW] == Case().verdicts(lines_gone)
    assert [Verdict.OPEN] == Case(at_ms=NOW_MS).verdicts(lines_gone)


def test_a_held_transaction_is_not_lost_and_in_time_overdue() -> None:
    assert [Verdict.OPEN] == Case(at_ms=NOW_MS - 200_000).op(COMMIT).doubt("held").verdicts()
    assert [Verdict.OVERDUE] == Case().op(COMMIT).doubt("held").verdicts()


def test_a_line_in_another_partition_decides_nothing() -> None:
    assert [Verdict.OVERDUE] == Case().op(COMMIT, partition=1).verdicts()


def test_an_undecided_transaction_is_open_and_in_time_overdue() -> None:
    assert [Verdict.OPEN] == Case(at_ms=NOW_MS - 300_000).verdicts()
    assert [Verdict.OVERDUE] == Case(at_ms=NOW_MS - 300_001).verdicts()


@pytest.mark.parametrize("immunity_ms", [IMMUNITY_MS_MAX, IMMUNITY_MS_MAX + 1, 1 << 62])
def test_an_immunity_counts_for_seven_days_at_most(immunity_ms: int) -> None:
    case = Case()
    case.traces.halves[0] = case.traces.halves[0]._replace(immunity_ms=immunity_ms)
    window = replace(WINDOW, cut_ms=IMMUNITY_MS_MAX + WINDOW.overdue_ms)

    assert [Verdict.OPEN] == case.verdicts(window)
    assert [Verdict.OVERDUE] == case.verdicts(replace(window, cut_ms=window.cut_ms + 1))
