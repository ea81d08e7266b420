"""The reference model and `txlayer verify` give each history that was once judged wrongly its right verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reference.cases import CASES
from tests.reference.differential import NOW_MS, disagreements, orphan_places
from tests.reference.histories import Made
from tests.reference.model import judge, verdict
from tests.reference.test_model import KEY, Log
from tests.reference.verified import verified


@pytest.mark.fault("Spark: a history that was once judged wrongly, or any random one")
@pytest.mark.parametrize("name", CASES)
def test_model_and_verify_give_a_case_its_right_verdict(name: str) -> None:
    case = CASES[name]
    history = case.history()
    history = replace(history, settings=replace(history.settings, clock_error_ms=0))

    report, told = judge(history), verified(history, now_ms=NOW_MS)

    assert case.word == verdict(report.of(case.txn_key))
    assert case.word == told.words.get(case.txn_key, "out_of_window")
    assert case.has_orphan == bool(orphan_places(report)) == bool(told.orphans)
    assert [] == disagreements(Made(0, history, (), is_whole=False))


@pytest.mark.fault("operation: two versions in one group, a wrong setting, or a return to an older version")
@pytest.mark.parametrize(("said", "word"), [("", "open"), ("C", "open"), ("R", "rolled_back"), ("A", "rolled_back")])
def test_one_on_doubt_in_a_state_of_a_later_release_is_not_settled(said: str, word: str) -> None:
    log = Log()
    half = log.half()
    if said:
        log.op((said, half))
    log.summary("asleep", half, reason="until-monday")
    log.content(half)
    history = log.history()

    assert word == verdict(judge(history).of(KEY))
    assert {KEY: word} == verified(history, now_ms=NOW_MS).words


@pytest.mark.fault("producer: its clock is a day off")
@pytest.mark.parametrize(
    ("asked", "shown_ms", "word"),
    [("t{later}", 0, "ok"), ("t0", 0, "ok"), ("t{later}", -1_000, "corrupt"), ("t{later}", 120_000, "corrupt")],
)
def test_a_time_in_the_future_becomes_that_of_forwarding(asked: str, shown_ms: int, word: str) -> None:
    log = Log()
    half = log.half(options=asked.format(later=log.now_ms + 60_000))
    log.op(("C", half))
    log.show(half)
    log.records[-1] = replace(log.records[-1], timestamp_ms=log.now_ms + shown_ms, is_append_time=False)
    history = log.history()

    assert word == verdict(judge(history).of(KEY))
    assert {KEY: word} == verified(history, now_ms=NOW_MS).words
