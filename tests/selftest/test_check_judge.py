"""The judge of check-back, judged: a clean history is clean, and each thing that can be wrong is found where it is planted."""

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.selftest.test_run_checker import COMMIT, DOUBT, HALF, KEY, OP, OTHER, ROLLBACK, half, sites
from tests.support import check_judge
from tests.support.check_judge import check_back_findings
from tests.support.checker import Finding, Judge, Kind
from tests.support.history import Absence, History, Logs, Sample
from tests.support.logs import Seen
from txlayer.adapters.ports import StoredOffset
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.messages import (
    UNKNOWN,
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfOptions,
    OpMessage,
    OrderMode,
    Resolution,
    Source,
    UnresolvedAction,
)

CHECK, REAL = "ns.check", "orders"
POLICY = CheckPolicy(check_immunity_ms=100, check_interval_ms=100, check_max=2, transaction_age_max_ms=1_000)
GIVING_UP = replace(POLICY, unresolved=UnresolvedAction.ROLLBACK)


def notice() -> Seen:
    return word(CheckRecord(CheckKind.PARKED, KEY, "g", 0, 0, 5, 1, "too-old"), 900, 9)


def question(number: int = 1, *, at_ms: int = 200, offset: int = 0, key: str = KEY) -> Seen:
    return word(CheckRecord(CheckKind.QUESTION, key, "g", 0, 0, 5, number, REAL), at_ms, offset)


def refusal(resolution: Resolution, *, offset: int = 9) -> Seen:
    text = f"{resolution.name} by producer"
    return word(CheckRecord(CheckKind.REFUSED, KEY, "g", 0, 0, 5, 0, text), 900, offset)


def word(check: CheckRecord, at_ms: int, offset: int) -> Seen:
    return Seen(CHECK, 0, offset, b"k", codec.encode_check(check), [], at_ms)


def line(
    resolution: Resolution,
    offset: int,
    *,
    source: Source = Source.CHECK,
    number: int | None = 1,
    reason: str = "",
    at_ms: int = 300,
) -> Seen:
    op = OpMessage(resolution, KEY, "g", 0, 5, source, number, reason=reason)
    return Seen(OP, 0, offset, None, codec.encode_ops([codec.encode_op(op)]), [], at_ms)


def summary(
    offset: int, *, state: str = "open", reason: str = "", checked: int = 1, answered: int = 0, at_ms: int = 210
) -> Seen:
    value = DoubtSummary(
        KEY,
        state,
        reason,
        "g",
        0,
        0,
        1,
        1,
        10,
        5,
        None,
        OrderMode.COMMIT,
        None,
        None,
        15,
        (REAL,),
        checked,
        answered,
        200,
        answered,
    )
    return Seen(DOUBT, 0, offset, KEY.encode(), codec.encode_summary(value), [], at_ms)


def tombstone(offset: int, *, at_ms: int) -> Seen:
    return Seen(DOUBT, 0, offset, KEY.encode(), None, [], at_ms)


def stored(op_offset: int, *, check_end: int, writer: str = "w1") -> Sample:
    return Sample({(OP, 0): StoredOffset(op_offset, f"1|{writer}|1|0|0:0|0")}, {(CHECK, 0): check_end})


def history(
    *,
    halves: list[Seen] | None = None,
    op: list[Seen] | None = None,
    doubt: list[Seen] | None = None,
    check: list[Seen] | None = None,
    policy: CheckPolicy = POLICY,
) -> History:
    logs = Logs([half()] if halves is None else halves, op or [], doubt or [], [], {REAL: 1}, check or [])
    return History(
        logs, half_topic=HALF, op_topic=OP, partition_count=1, check_topic=CHECK, policies=CheckPolicies(policy)
    )


def clean() -> History:
    """Asked twice, unknown and then committed by the answers; a late word is refused and told."""
    return replace(
        history(
            op=[line(UNKNOWN, 0), line(COMMIT, 1, number=2), line(ROLLBACK, 2, number=2)],
            doubt=[
                summary(0),
                summary(1, answered=1, at_ms=310),
                summary(2, checked=2, answered=1, at_ms=410),
                tombstone(3, at_ms=500),
            ],
            check=[question(), question(2, at_ms=400, offset=1), refusal(ROLLBACK)],
        ),
        samples=[stored(0, check_end=2), stored(3, check_end=10)],
        absences=[Absence("g", 600, 700), Absence("h", 0, 700)],
        must_end=[KEY],
    )


def asked(*, at_ms: int = 200, key: str = KEY, options: HalfOptions | None = None) -> History:
    halves = None if options is None else [half(options=options)]
    return history(halves=halves, doubt=[summary(0)], check=[question(at_ms=at_ms, key=key)])


def findings_of(told: History) -> list[Finding]:
    judge = Judge(told.logs, partition_count=1)
    judge.verdict()
    return list(check_back_findings(told, judge))


def test_clean_check_back_is_clean_and_counted() -> None:
    judge = Judge(clean().logs, partition_count=1)
    judge.verdict()

    assert [] == list(check_back_findings(clean(), judge))
    assert 2 == judge.counts["check question"]
    assert 1 == judge.counts["unknown by check"]


def test_who_is_asked_by_hand_need_not_be_old_enough_nor_present() -> None:
    told = history(
        op=[line(UNKNOWN, 0, source=Source.OPERATOR, number=None)], doubt=[summary(0)], check=[question(at_ms=20)]
    )

    assert [] == findings_of(replace(told, absences=[Absence("g", 0, 700)]))


def test_who_gives_another_time_does_not_ask_for_a_question() -> None:
    moved = OpMessage(UNKNOWN, KEY, "g", 0, 5, Source.OPERATOR, time_ms=900)
    lines = [Seen(OP, 0, 0, None, codec.encode_ops([codec.encode_op(moved)]), [], 15)]
    told = history(op=lines, doubt=[summary(0)], check=[question(at_ms=20)])

    assert [] != findings_of(told)


def test_a_clock_that_runs_too_fast_is_believed_as_far_as_it_may() -> None:
    assert [] == findings_of(replace(asked(at_ms=100), clock_drift=0.2))


def test_its_clock_runs_from_the_first_record_that_told_it_the_time() -> None:
    told = replace(asked(at_ms=98), clock_drift=0.11)
    garbage = Seen(OP, 0, 0, None, b"garbage", [], 0)  # ten milliseconds before the half record

    assert [Kind.ASKED] == [finding.kind for finding in findings_of(told)]
    assert [] == findings_of(replace(told, logs=told.logs._replace(op=[garbage])))


PLANTED: dict[str, tuple[Kind, Callable[[], History]]] = {
    "a question about an unknown transaction": (Kind.ASKED, lambda: asked(key=OTHER)),
    "a notice of a parking that did not happen": (Kind.ASKED, lambda: history(doubt=[summary(0)], check=[notice()])),
    "a question within the immunity": (Kind.ASKED, lambda: asked(at_ms=100)),
    "a question within its own immunity": (Kind.ASKED, lambda: asked(options=HalfOptions(immunity_ms=500))),
    "a question without what its transaction asked for": (
        Kind.ASKED,
        lambda: asked(options=HalfOptions(check_with="k+q", query_id="7")),
    ),
    "a question after its end": (
        Kind.ASKED,
        lambda: history(
            op=[line(COMMIT, 0)],
            doubt=[summary(0), tombstone(1, at_ms=300)],
            check=[question(), question(2, at_ms=400, offset=1)],
        ),
    ),
    "a question after its decision was applied": (
        Kind.ASKED,
        lambda: replace(
            history(op=[line(ROLLBACK, 0, source=Source.PRODUCER, number=None)], check=[question()]),
            samples=[stored(1, check_end=0)],
        ),
    ),
    "a question to an absent group": (Kind.ASKED, lambda: replace(asked(), absences=[Absence("g", 0, 300)])),
    "a number that is left out": (
        Kind.MISCOUNTED,
        lambda: history(doubt=[summary(0, checked=2)], check=[question(), question(3, at_ms=400, offset=1)]),
    ),
    "asked about, and not on doubt": (Kind.MISCOUNTED, lambda: history(check=[question()])),
    "a count that goes back": (
        Kind.MISCOUNTED,
        lambda: history(
            doubt=[summary(0, checked=2), summary(1, checked=1)], check=[question(), question(2, at_ms=400, offset=1)]
        ),
    ),
    "a question that was not written": (
        Kind.MISCOUNTED,
        lambda: history(doubt=[summary(0, checked=2)], check=[question()]),
    ),
    "an answer that was not given": (
        Kind.MISCOUNTED,
        lambda: history(doubt=[summary(0, answered=1)], check=[question()]),
    ),
    "an answer that is counted twice": (
        Kind.MISCOUNTED,
        lambda: history(
            op=[line(UNKNOWN, 0), line(UNKNOWN, 1)], doubt=[summary(0), summary(1, answered=2)], check=[question()]
        ),
    ),
    "a question that is not counted": (
        Kind.MISCOUNTED,
        lambda: history(doubt=[summary(0)], check=[question(), question(2, offset=1)]),
    ),
    "parked against the policy": (
        Kind.GIVEN_UP,
        lambda: history(doubt=[summary(0, state="parked", reason="too-old", checked=0, at_ms=5_000)], policy=GIVING_UP),
    ),
    "rolled back against the policy": (
        Kind.GIVEN_UP,
        lambda: history(op=[line(ROLLBACK, 0, source=Source.POLICY, reason="too-old", at_ms=5_000)]),
    ),
    "parked as too old, too young": (
        Kind.GIVEN_UP,
        lambda: history(doubt=[summary(0, state="parked", reason="too-old", checked=0)]),
    ),
    "parked after too few answers": (
        Kind.GIVEN_UP,
        lambda: history(
            op=[line(UNKNOWN, 0)],
            doubt=[summary(0, state="parked", reason="checks-exhausted", answered=1)],
            check=[question()],
        ),
    ),
    "rolled back after too few answers": (
        Kind.GIVEN_UP,
        lambda: history(
            op=[
                line(UNKNOWN, 0),
                line(ROLLBACK, 1, source=Source.POLICY, reason="checks-exhausted"),
                line(UNKNOWN, 2, number=2),
            ],
            policy=GIVING_UP,
        ),
    ),
    "a late word that nobody is told of": (
        Kind.UNTOLD,
        lambda: replace(clean(), logs=clean().logs._replace(check=list(clean().logs.check)[:2])),
    ),
    "open for ever": (Kind.STUCK, lambda: replace(asked(), must_end=[KEY])),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_wrong_with_check_back_is_found(what: str) -> None:
    kind, plant = PLANTED[what]

    assert kind in {finding.kind for finding in findings_of(plant())}


def test_what_another_ledger_refused_need_not_be_told() -> None:
    told = replace(clean(), logs=clean().logs._replace(check=list(clean().logs.check)[:2]))

    samples = [stored(0, check_end=2), stored(3, check_end=2, writer="w2")]

    assert [] == findings_of(replace(told, samples=samples))


def test_every_place_where_this_judge_can_find_something_has_found_what_was_planted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: set[int] = set()

    def finding(*fields: object) -> Finding:
        found.add(sys._getframe(1).f_lineno)
        return Finding(*fields)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(check_judge, "Finding", finding)
    for _, plant in PLANTED.values():
        findings_of(plant())

    assert set() == set(sites(check_judge)) - found
