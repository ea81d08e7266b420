"""Who was parked by an answer and decided by the next line gave up its place, though no summary shows it; nobody else did."""

from dataclasses import replace

import pytest

from tests.selftest.test_check_judge import GIVING_UP, POLICY, history, line, question, summary
from tests.selftest.test_run_checker import COMMIT, KEY, OTHER, RED, half, op, real
from tests.support.checker import Kind
from tests.support.history import History
from tests.support.logs import Seen
from tests.support.parked_by_answers import parked_by_answers
from tests.support.run_checker import judge_history
from txlayer.core.checks import CheckPolicy
from txlayer.core.messages import UNKNOWN

QUESTIONS = [question(), question(2, at_ms=400, offset=1)]
LAST_ANSWER = line(UNKNOWN, 0, number=2)
COMMITTED = op(COMMIT, 1)


def told(
    *,
    lines: list[Seen] | None = None,
    on_doubt: Seen | None = None,
    check: list[Seen] | None = None,
    policy: CheckPolicy = POLICY,
) -> History:
    """The second of a key is visible before the first, which was decided before it, and asked about twice."""
    run = history(
        halves=[half(options=RED), half(1, key=OTHER, options=RED)],
        op=[*(lines or [LAST_ANSWER, COMMITTED]), op(COMMIT, 2, last_offset=1, key=OTHER)],
        doubt=[on_doubt or summary(0, checked=2, answered=1, at_ms=410)],
        check=QUESTIONS if check is None else check,
        policy=policy,
    )
    visible = [real(half_offset=1, txn_id=b"order-2", timestamp_ms=600), real(1, timestamp_ms=600)]
    return replace(run, logs=run.logs._replace(real=visible))


def kinds(run: History) -> set[Kind]:
    return {finding.kind for finding in judge_history(run).findings}


def test_whom_its_last_answer_parked_gave_up_its_place() -> None:
    assert {KEY: (0, 0)} == parked_by_answers(told())
    assert Kind.OUT_OF_ORDER not in kinds(told())


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(told(on_doubt=summary(0, checked=2, answered=0, at_ms=410)), id="one more answer to give"),
        pytest.param(told(lines=[op(COMMIT, 0), line(UNKNOWN, 1, number=2)]), id="decided before"),
        pytest.param(told(policy=GIVING_UP), id="the policy parks nobody"),
        pytest.param(told(lines=[COMMITTED]), id="no answer"),
        pytest.param(told(lines=[line(UNKNOWN, 0, number=1), COMMITTED]), id="an answer to an older question"),
        pytest.param(told(check=[*QUESTIONS, question(3, at_ms=450, offset=2)]), id="asked once more since"),
        pytest.param(
            told(lines=[line(UNKNOWN, 0), COMMITTED], on_doubt=summary(0, answered=1, at_ms=310), check=[question()]),
            id="the answer counts already",
        ),
        pytest.param(told(lines=[line(COMMIT, 0, number=2)]), id="the answer is the decision"),
    ],
)
def test_who_was_not_parked_keeps_its_place(run: History) -> None:
    assert Kind.OUT_OF_ORDER in kinds(run)


def test_where_check_back_is_not_judged_nobody_is_parked_by_an_answer() -> None:
    assert {} == parked_by_answers(replace(told(), policies=None))
