"""The reference model and `txlayer verify` give each history that was once judged wrongly its right verdict."""

from dataclasses import replace

import pytest

from tests.reference.cases import CASES
from tests.reference.differential import NOW_MS, disagreements, orphan_places
from tests.reference.histories import Made
from tests.reference.model import judge, verdict
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
