"""What a replay topic's records mean for dead letters: the fold, record by record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.codec_strategies import replays
from txlayer.core.dead_letters import (
    AnsweredRequests,
    DeadLetterEvent,
    DeadLetterState,
    PartitionStates,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
)

OFFSET = 17


def ask(request_id: str = "r1", kind: ReplayKind = ReplayKind.REPLAY) -> ReplayRecord:
    return ReplayRecord(kind, request_id, OFFSET, text="zoe: mended")


def answer(outcome: ReplayOutcome, request_id: str = "r1") -> ReplayRecord:
    return ReplayRecord(ReplayKind.RESULT, request_id, OFFSET, outcome)


def folded(*records: ReplayRecord) -> PartitionStates:
    states = PartitionStates()
    for offset, record in enumerate(records):
        states.fold(DeadLetterEvent(offset, 1_000 + offset, record))
    return states


H, F, D, M, U = (
    ReplayOutcome.HANDLED,
    ReplayOutcome.FAILED,
    ReplayOutcome.DROPPED,
    ReplayOutcome.MISSING,
    ReplayOutcome.UNKNOWN,
)


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ((), DeadLetterState.OPEN),
        ((ask(),), DeadLetterState.REQUESTED),
        ((ask(kind=ReplayKind.DROP),), DeadLetterState.REQUESTED),
        ((ask(), answer(H)), DeadLetterState.HANDLED),
        ((ask(), answer(F)), DeadLetterState.FAILED),
        ((ask(), answer(D)), DeadLetterState.DROPPED),
        ((ask(), answer(F), ask("r2")), DeadLetterState.REQUESTED),
        ((ask(), answer(F), ask("r2"), answer(H, "r2")), DeadLetterState.HANDLED),
        ((ask(), ask("r2"), answer(H)), DeadLetterState.REQUESTED),  # one of two is unanswered
        ((ask(), answer(F), ask()), DeadLetterState.REQUESTED),  # the same request once more
        # What says nothing of the letter leaves it as it was.
        ((ask(), answer(M)), DeadLetterState.OPEN),
        ((ask(), answer(U)), DeadLetterState.OPEN),
        ((ask(), answer(F), ask("r2"), answer(U, "r2")), DeadLetterState.FAILED),
        # An answer whose request was removed by retention counts all the same.
        ((answer(H),), DeadLetterState.HANDLED),
    ],
)
def test_the_state_of_a_dead_letter_follows_from_what_was_said(
    records: tuple[ReplayRecord, ...], state: DeadLetterState
) -> None:
    assert state is folded(*records).of(OFFSET).state


def test_who_asked_and_what_was_answered_is_kept() -> None:
    history = folded(ask(), answer(F), ask("r2")).of(OFFSET)

    assert ["r1", "r2"] == list(history.asked)
    assert {"r2"} == history.unanswered
    assert {"r1": F} == {request_id: s.record.outcome for request_id, s in history.results.items()}


def test_the_last_word_on_a_queue_counts() -> None:
    paused = ReplayRecord(ReplayKind.PAUSE, "p", None, text="zoe: migration")
    resumed = ReplayRecord(ReplayKind.RESUME, "u", None, text="zoe: done")

    assert folded().pause is None
    assert DeadLetterEvent(1, 1_001, paused) == folded(resumed, paused).pause
    assert DeadLetterEvent(1, 1_001, resumed) == folded(paused, resumed).pause


def test_dead_letters_that_nobody_spoke_of_share_no_history() -> None:
    states = folded(ask())

    assert DeadLetterState.OPEN is states.of(OFFSET + 1).state
    assert [OFFSET] == list(states.letters)


@given(st.lists(replays(), max_size=20))
def test_any_records_in_any_order_are_folded(records: list[ReplayRecord]) -> None:
    states = folded(*records)

    for history in states.letters.values():
        assert (history.state is DeadLetterState.REQUESTED) == bool(history.unanswered)
        assert history.unanswered <= history.asked.keys()


REPLAY, RESULT = ReplayKind.REPLAY, ReplayKind.RESULT


def answered(*records: ReplayRecord, count_max: int = 100) -> tuple[tuple[int, int], ...]:
    """The offsets of the requests that have a result."""
    requests = AnsweredRequests(count_max=count_max)
    for offset, record in enumerate(records):
        requests.fold(offset, record)
    return requests.runs


def test_a_request_is_answered_by_a_later_result_of_its_name_and_dead_letter() -> None:
    asked, failed = ReplayRecord(REPLAY, "a", 7), ReplayRecord(RESULT, "a", 7, ReplayOutcome.FAILED)

    assert ((0, 2),) == answered(asked, asked, failed)
    assert ((0, 1), (2, 3)) == answered(asked, failed, ReplayRecord(ReplayKind.DROP, "a", 7), failed, asked)
    others = ReplayRecord(RESULT, "b", 7, ReplayOutcome.HANDLED), ReplayRecord(RESULT, "a", 8, ReplayOutcome.HANDLED)
    assert () == answered(failed, asked, *others)


def test_pauses_are_not_answered_requests() -> None:
    pause, result = ReplayRecord(ReplayKind.PAUSE, "a", None), ReplayRecord(RESULT, "a", None, ReplayOutcome.HANDLED)

    assert () == answered(pause, result)


@pytest.mark.promise("P11")
def test_requests_of_one_name_count_too() -> None:
    asked, handled = ReplayRecord(REPLAY, "a", 7), ReplayRecord(RESULT, "a", 7, ReplayOutcome.HANDLED)
    requests = AnsweredRequests(count_max=10)
    for offset in range(1_000):
        requests.fold(offset, asked)
        assert sum(map(len, requests._open.values())) <= 10
    requests.fold(1_000, handled)

    ((first, end),) = requests.runs
    assert (True, 1_000) == (990 <= first <= 995, end)


def test_of_more_requests_than_are_remembered_the_newest_are() -> None:
    asked = [ReplayRecord(REPLAY, "a", n) for n in range(4)]
    results = [ReplayRecord(RESULT, "a", n, ReplayOutcome.HANDLED) for n in range(4)]

    assert ((1, 4),) == answered(*asked, *results, count_max=3)
    assert ((2, 3), (4, 5), (6, 7)) == answered(
        *(r for pair in zip(asked, results, strict=True) for r in pair), count_max=3
    )
