"""What `txlayer verify` says beside a verdict, of windows that lack something, and what verdicts prove. The verdicts: tests/reference/cases.py."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from tests.reference.steps import HALF, MINUTE, Log
from tests.reference.verified import Admin, verified
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.config import SystemTopics
from txlayer.core.checks import IMMUNITY_MS_MAX
from txlayer.core.messages import Origin
from txlayer.core.partitions import half_partition
from txlayer.core.verification import (
    COMMIT,
    ROLLBACK,
    ContentTrace,
    DoubtTrace,
    ForwardTrace,
    HalfTrace,
    Judged,
    OpTrace,
    OrderFold,
    OrderMark,
    Promise,
    Proof,
    Severity,
    Traces,
    Verdict,
    VerdictFinding,
    Window,
    judge,
    severity,
)
from txlayer.operate.verify import TraceIndex, TraceRecords, prove

NOW_MS = 1_000_000
WINDOW = Window(
    half_topic="ns.half", starts={0: 10}, ends={0: 1_000}, cut_ms=NOW_MS, grace_ms=60_000, overdue_ms=300_000
)


class Case:
    """One id, laid out trace by trace."""

    def __init__(self, *, count: int = 1, first: int = 100, at_ms: int = 0) -> None:
        self.traces = Traces("id")
        self.at_ms = at_ms
        self.traces.halves += [
            HalfTrace("n", 0, first + index, index, count, "orders", 7 + index, at_ms, "", False, 0)
            for index in range(count)
        ]

    def op(self, said: str, *, last: int = 100) -> Case:
        self.traces.ops.append(OpTrace("n", 0, 1, 0, self.at_ms, said, last))
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


def test_a_fault_names_its_place_and_what_is_young_is_on_its_way() -> None:
    (lost,) = Case().op(COMMIT).judged()
    (twice,) = Case().op(COMMIT).forward(at=5).forward(at=9).judged()
    (leaked,) = Case().op(ROLLBACK).forward().judged()
    (undecided,) = Case().forward().judged()
    (torn,) = Case(count=2).op(COMMIT, last=101).forward(count=2).judged()
    (young,) = Case(at_ms=NOW_MS - 59_000).op(COMMIT).judged()

    assert (Verdict.LOST, Origin("ns.half", 0, 100)) == (lost.verdict, lost.origin)
    assert (Verdict.DUPLICATE, Origin("orders", 0, 9)) == (twice.verdict, twice.origin)
    assert (Verdict.LEAKED, Origin("orders", 0, 5), True) == (leaked.verdict, leaked.origin, leaked.is_rolled_back)
    assert (Verdict.LEAKED, False) == (undecided.verdict, undecided.is_rolled_back)
    assert (Verdict.TORN, "messages 1 are not visible") == (torn.verdict, torn.detail)
    assert (Verdict.OPEN, True) == (young.verdict, young.is_on_its_way)


def test_an_aborted_record_from_before_the_window_is_nobodys_business() -> None:
    assert [Verdict.OK] == Case().op(COMMIT).forward().forward(9, is_committed=False).verdicts()


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


@pytest.mark.parametrize("immunity_ms", [IMMUNITY_MS_MAX, IMMUNITY_MS_MAX + 1, 1 << 62])
def test_an_immunity_counts_for_seven_days_at_most(immunity_ms: int) -> None:
    case = Case()
    case.traces.halves[0] = case.traces.halves[0]._replace(immunity_ms=immunity_ms)
    window = replace(WINDOW, cut_ms=IMMUNITY_MS_MAX + WINDOW.overdue_ms)

    assert [Verdict.OPEN] == case.verdicts(window)
    assert [Verdict.OVERDUE] == case.verdicts(replace(window, cut_ms=window.cut_ms + 1))


PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "reconcile.md"
P1, P2, P3, P4, P5, P6 = Promise


def judged(verdict: Verdict, *, is_rolled_back: bool = False, visible_count: int = 1) -> Judged:
    return Judged("id", "n", verdict, Origin("orders", 0, 1), "", not is_rolled_back, is_rolled_back, visible_count)


def mark(offset: int, *, decided: int | None, half: int, key: str = "k") -> OrderMark:
    is_prepare = decided is None
    decided_at = None if decided is None else (decided, 0)
    return OrderMark(key, Origin("orders", 0, offset), decided_at, half, is_prepare)


def test_the_verdicts_are_those_of_the_page_with_their_exit_code_and_in_their_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (yes)? *\|", PAGE.read_text("utf-8"), re.MULTILINE)

    assert rows == [(v.value, "yes" if severity(v) is Severity.FAULT else "") for v in Verdict]


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (judged(Verdict.LOST, visible_count=0), {P1}),
        (judged(Verdict.DUPLICATE), {P2}),
        (judged(Verdict.LEAKED), {P3}),
        (judged(Verdict.LEAKED, is_rolled_back=True), {P3, P4}),
        (judged(Verdict.ORPHAN), {P3}),
        (judged(Verdict.CORRUPT), {P3}),
        (judged(Verdict.TORN), {P5, P1}),
        (judged(Verdict.OK), set()),
        (judged(Verdict.PARKED, visible_count=0), set()),
        (judged(Verdict.CONFLICTING), set()),
        (judged(Verdict.ROLLED_BACK, is_rolled_back=True, visible_count=0), set()),
    ],
)
def test_each_fault_refutes_its_promises_and_no_other(found: Judged, broken: set[Promise]) -> None:
    proof = Proof()

    proof.add(found)

    assert broken == {status.promise for status in proof.statuses() if status.refuted_count}
    assert bool(broken) is proof.is_refuted
    assert all(s.proved_count == 0 for s in proof.statuses() if s.promise in broken)


def test_what_is_out_of_the_window_proves_nothing_and_refutes_nothing() -> None:
    proof = Proof()

    proof.add(judged(Verdict.OUT_OF_WINDOW))

    assert {"undecidable"} == {status.word for status in proof.statuses()}


def test_the_words_are_those_of_the_page() -> None:
    proof = Proof()
    proof.add(judged(Verdict.OK))
    proof.add(judged(Verdict.DUPLICATE))
    words = {status.promise: status.word for status in proof.statuses()}

    assert "refuted" == words[Promise.P2]
    assert "proved" == words[Promise.P1]
    assert "nothing to judge" == words[Promise.P6]
    assert 2 == proof.transaction_count


def test_what_is_on_its_way_is_undecidable_for_loss_and_atomicity_alone() -> None:
    proof = Proof()
    origin = Origin("orders", 0, 1)
    proof.add(Judged("id", "n", Verdict.OPEN, origin, is_committed=True, visible_count=1, is_on_its_way=True))

    undecided = {s.promise for s in proof.statuses() if s.undecidable_count}
    assert {P1, P5} == undecided
    assert {P2, P3, P4} == {s.promise for s in proof.statuses() if s.proved_count}


def test_an_undecided_transaction_proves_that_nothing_is_visible_and_no_more() -> None:
    proof = Proof()
    proof.add(Judged("id", "n", Verdict.OPEN, Origin("ns.half", 0, 1)))

    assert {P3} == {s.promise for s in proof.statuses() if s.proved_count}


@pytest.mark.parametrize("is_in_half_order", [True, False])
def test_one_that_may_have_given_up_its_place_proves_no_order(*, is_in_half_order: bool) -> None:
    proof = Proof()
    of_key = mark(1, decided=None, half=1)._replace(is_in_half_order=is_in_half_order)
    proof.add(replace(judged(Verdict.OK), order_marks=(of_key,)))

    assert is_in_half_order is bool(next(s for s in proof.statuses() if s.promise is P6).proved_count)


def test_a_late_transaction_that_has_a_worse_verdict_keeps_it() -> None:
    proof = Proof()
    late = VerdictFinding(Verdict.OUT_OF_ORDER, "id", "n", Origin("orders", 0, 1), "why", (P6,))
    proof.add(judged(Verdict.CORRUPT))

    proof.add_late(late, before=Verdict.CORRUPT)

    assert {Verdict.CORRUPT: 1} == +proof.verdicts
    assert 2 == proof.finding_count


@pytest.mark.parametrize("before", [Verdict.OK, Verdict.CORRUPT, Verdict.OUT_OF_ORDER, Verdict.OUT_OF_WINDOW])
def test_a_late_transaction_counts_once_for_the_order(before: Verdict) -> None:
    proof = Proof()
    found = replace(judged(before), order_marks=(mark(1, decided=1, half=1),))
    proof.add(found)

    proof.add_late(VerdictFinding(Verdict.OUT_OF_ORDER, "id", "n", Origin("orders", 0, 1), "why", (P6,)), before=before)

    of_order = next(s for s in proof.statuses() if s.promise is P6)
    assert (0, 1, 0) == (of_order.proved_count, of_order.refuted_count, of_order.undecidable_count)


def test_faults_beyond_what_is_kept_are_counted() -> None:
    proof = Proof(finding_count_max=1)
    for verdict in (Verdict.LOST, Verdict.LOST, Verdict.PARKED):
        proof.add(judged(verdict))

    assert ([Verdict.LOST], 3) == ([f.verdict for f in proof.findings], proof.finding_count)


def test_an_empty_window_says_that_there_was_nothing_to_judge() -> None:
    assert {"nothing to judge"} == {status.word for status in Proof().statuses()}


def test_a_fault_takes_the_place_of_a_warning_when_no_more_is_kept() -> None:
    proof = Proof(finding_count_max=1)

    proof.add(judged(Verdict.PARKED))
    proof.add(judged(Verdict.LOST))

    assert ([Verdict.LOST], 2) == ([f.verdict for f in proof.findings], proof.finding_count)


def test_another_key_begins_anew() -> None:
    fold = OrderFold()

    assert not fold.is_late(mark(1, decided=5, half=2))
    assert not fold.is_late(mark(2, decided=4, half=1, key="other"))


def test_a_whole_shelf_is_proved_and_an_inversion_in_it_refutes_the_order() -> None:
    window = Window(half_topic="ns.half", starts={0: 0}, ends={0: 100}, cut_ms=10**9)
    with TraceIndex() as shelf:
        # Decided in the order a, b, c; visible in the order b, c, a.
        for offset, (txn_id, place) in enumerate((("a", 9), ("b", 7), ("c", 8))):
            shelf.keep(txn_id, ForwardTrace("orders", 0, place, 0, offset, 1, 7, True))
            shelf.keep(txn_id, OpTrace("n", 0, offset, 0, 1, COMMIT, offset))
            half = HalfTrace("n", 0, offset, 0, 1, "orders", 7, 1, "key", False, 0)
            shelf.keep(txn_id, half)

        proof = prove(shelf, window)

    (finding,) = proof.findings
    assert (Verdict.OUT_OF_ORDER, "a", Origin("orders", 0, 9)) == (finding.verdict, finding.txn_id, finding.origin)
    assert {Verdict.OK: 2, Verdict.OUT_OF_ORDER: 1} == +proof.verdicts
    assert (2, 1) == (proof.statuses()[5].proved_count, proof.statuses()[5].refuted_count)


def commit(txn_id: str, *, last_offset: str) -> str:
    return f"1|C|{txn_id}/0123abcd|shop|{last_offset}|1700000000000|producer||"


def kept_ids(*lines: str, is_past: bool = True) -> list[str]:
    with TraceIndex() as shelf:
        traces = TraceRecords(shelf, SystemTopics("ns"), partition_count=1)
        traces.half_starts, traces.half_ends, traces.is_past = {0: 100}, {0: 200}, is_past
        value = "\n".join(lines).encode()
        traces.op(MemoryRecord("ns.op", 0, None, value, None, (1, 1_700_000_000_000), log_offset=7))
        return [found.txn_id for found in shelf.each()]


def test_lines_that_name_no_half_record_of_the_window_are_passed_over() -> None:
    ids = kept_ids(
        commit("before", last_offset="99"),
        commit("first", last_offset="100"),
        commit("last", last_offset="199"),
        commit("behind", last_offset="200"),
    )

    assert ["first", "last"] == ids


def test_a_line_behind_the_end_of_half_is_read_if_the_window_has_no_end() -> None:
    assert ["behind"] == kept_ids(commit("behind", last_offset="200"), is_past=False)


def test_an_offset_of_thousands_of_digits_is_malformed_and_stops_nothing() -> None:
    assert ["well"] == kept_ids(commit("odd", last_offset="9" * 10_000), commit("well", last_offset="150"))


@pytest.mark.parametrize("born_ms", [5, 6])
def test_records_that_name_no_half_record_take_no_time_of_all_attempts_of_their_id(born_ms: int) -> None:
    """For example of another namespace, whose producers use the same id again and again, too."""
    count = 3_000
    halves = [HalfTrace(f"{n:08x}", 0, n, 0, 1, "orders", 1, n, "", False, 0, born_ms=5) for n in range(count)]
    forwards = [ForwardTrace("orders", 0, n, 0, count + n, 1, 1, True, born_ms=born_ms) for n in range(count)]
    began_s = process_time()

    found = judge(Traces("same", halves=halves, forwards=forwards), replace(WINDOW, ends={0: count}, starts={0: 0}))

    assert {Verdict.ORPHAN, Verdict.OVERDUE} >= {each.verdict for each in found}
    assert 2 * count == len(found)
    assert process_time() - began_s < 3  # 14 s where each was compared with every attempt


def test_a_held_transaction_of_many_messages_has_one_mark_for_each_partition_that_they_may_be_in() -> None:
    case = Case(count=5).op(COMMIT, last=104)
    case.traces.halves[:] = [half._replace(key_hash="0000002a712c936a") for half in case.traces.halves]
    case.traces.doubts.append(DoubtTrace("n", 0, 1, 0, "held", 100, 104, seen=5, count=5))
    case.traces.contents += [ContentTrace("n", 0, 2 + n, n, 7 + n, 100 + n) for n in range(5)]

    (held,) = case.judged(replace(WINDOW, partition_counts={"orders": 3}))

    assert [("orders", p) for p in range(3)] == [mark.origin[:2] for mark in held.order_marks]


@pytest.mark.parametrize(("first_named", "half_start"), [(300, 0), (500, 0), (1_000, 0), (1_000, 2_000)])
def test_attempts_on_doubt_and_records_with_the_same_claim_are_not_compared_each_with_each(
    first_named: int, half_start: int
) -> None:
    """A producer used one id again and again within a millisecond, all of it is parked, and the records name half records between those
    that doubt names, these, or others, which are gone in the end. Twice as many take twice as many steps.
    """
    window = replace(WINDOW, starts={0: half_start})

    assert steps(claimed(200, first_named), window) < 3 * steps(claimed(100, first_named), window)


def claimed(count: int, first_named: int) -> Traces:
    traces = Traces("same")
    for n in range(count):
        nonce = f"{n:08x}"
        traces.halves.append(HalfTrace(nonce, 0, n, 0, 1, "orders", 1, 0, "", False, 0, born_ms=5))
        traces.doubts.append(DoubtTrace(nonce, 0, n, 0, "parked", n, 500 + n, seen=1))
        traces.contents.append(ContentTrace(nonce, 0, count + n, 0, 1, n))
        traces.forwards.append(ForwardTrace("stock", 0, n, 0, first_named + n, 1, 2, True, born_ms=5))
    return traces


def test_op_lines_and_messages_of_one_transaction_are_not_compared_each_with_each() -> None:
    """Each line names another message of a transaction that is on doubt, and is incomplete."""
    assert steps(named_one_by_one(200), WINDOW) < 3 * steps(named_one_by_one(100), WINDOW)


def named_one_by_one(count: int) -> Traces:
    case = Case(count=count)
    case.traces.doubts.append(DoubtTrace("n", 0, 0, 0, "parked", 100, 99 + count, seen=count, count=count))
    for number in range(count):
        case.traces.ops.append(OpTrace("n", 0, number, 0, 0, COMMIT, 100 + number))
    return case.traces


def steps(traces: Traces, window: Window) -> int:
    """Lines that a judgement runs."""
    count = 0

    def ran(*_: object) -> Any:
        nonlocal count
        count += 1
        return ran

    before = sys.gettrace()
    sys.settrace(ran)
    try:
        judge(traces, window)
    finally:
        sys.settrace(before)
    return count


def test_what_is_stored_in_an_added_partition_while_half_is_read_is_no_phantom(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (f"later-{number}" for number in range(99))
    name = next(each for each in names if half_partition(ordering_key=None, txn_id=each, partition_count=2) == 1)
    log = Log()
    for partition, key in enumerate(("order-1/0000000a", f"{name}/0000000b")):
        half = log.half(key, partition=partition)
        log.op(("C", half), key=key, partition=partition)
        log.show(half)
    count_of, asked = Admin.partition_count, list[str]()

    def widened(admin: Admin, topic: str) -> int | None:
        asked.append(topic)
        return 1 if topic == HALF and asked.count(HALF) == 1 else count_of(admin, topic)

    monkeypatch.setattr(Admin, "partition_count", widened)
    told = verified(log.history(), now_ms=log.now_ms + 10 * MINUTE)

    assert (frozenset(), {"order-1/0000000a": "ok"}) == (told.orphans, dict(told.words))
