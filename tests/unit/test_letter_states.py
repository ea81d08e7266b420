"""What a replay topic's records mean for dead letters, what an operator's replay asks for, and what the options of `txlayer dlq` mean."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.codec_strategies import replays
from txlayer.cli.dlq import DeadLetterFilters
from txlayer.cli.options import parse_instant
from txlayer.core.dead_letters import (
    AnsweredRequests,
    DeadLetterEvent,
    DeadLetterReason,
    DeadLetterState,
    PartitionStates,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
)
from txlayer.core.progress import hash_of_key
from txlayer.errors import ConfigError, UsageError
from txlayer.operate.dead_letters import DeadLetterFilter, DeadLetterPosition, FoundLetter, QueueStatus, parse_letter
from txlayer.operate.replay import author_of, freed_by_retention, requests_for

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


@pytest.mark.slow
@given(st.lists(replays(), max_size=20))
def test_any_records_in_any_order_are_folded(records: list[ReplayRecord]) -> None:
    states = folded(*records)

    for history in states.letters.values():
        assert (history.state is DeadLetterState.REQUESTED) == bool(history.unanswered)
        assert history.unanswered <= history.asked.keys()


REPLAY, RESULT = ReplayKind.REPLAY, ReplayKind.RESULT


def answered(*records: ReplayRecord, with_pauses: bool = False, count_max: int = 100) -> tuple[tuple[int, int], ...]:
    """The offsets of the requests that have a result."""
    requests = AnsweredRequests(with_pauses=with_pauses, count_max=count_max)
    for offset, record in enumerate(records):
        requests.fold(offset, record)
    return requests.runs


def test_a_request_is_answered_by_a_later_result_of_its_name_and_dead_letter() -> None:
    asked, failed = ReplayRecord(REPLAY, "a", 7), ReplayRecord(RESULT, "a", 7, ReplayOutcome.FAILED)

    assert ((0, 2),) == answered(asked, asked, failed)
    assert ((0, 1), (2, 3)) == answered(asked, failed, ReplayRecord(ReplayKind.DROP, "a", 7), failed, asked)
    others = ReplayRecord(RESULT, "b", 7, ReplayOutcome.HANDLED), ReplayRecord(RESULT, "a", 8, ReplayOutcome.HANDLED)
    assert () == answered(failed, asked, *others)


def test_pauses_are_answered_requests_where_the_group_knows_whether_it_is_paused() -> None:
    pause, result = ReplayRecord(ReplayKind.PAUSE, "a", None), ReplayRecord(RESULT, "a", None, ReplayOutcome.HANDLED)

    assert () == answered(pause, result)
    assert ((0, 1),) == answered(pause, result, with_pauses=True)


def test_a_pause_and_a_resume_of_one_name_have_a_result_each() -> None:
    pause, resume = (ReplayRecord(kind, "a", None) for kind in (ReplayKind.PAUSE, ReplayKind.RESUME))
    result = ReplayRecord(RESULT, "a", None, ReplayOutcome.HANDLED)

    assert ((0, 1),) == answered(pause, resume, result, with_pauses=True)
    assert ((0, 2),) == answered(pause, resume, result, result, with_pauses=True)


@pytest.mark.promise("P11")
def test_requests_of_one_name_count_too() -> None:
    asked, handled = ReplayRecord(REPLAY, "a", 7), ReplayRecord(RESULT, "a", 7, ReplayOutcome.HANDLED)
    requests = AnsweredRequests(count_max=10)
    for offset in range(1_000):
        requests.fold(offset, asked)
        assert sum(map(len, requests._open.values())) <= 10
    requests.fold(1_000, handled)

    assert ((0, 10),) == requests.runs


def test_of_more_requests_than_are_remembered_the_first_open_ones_and_the_last_answered_ones_are() -> None:
    asked = [ReplayRecord(REPLAY, "a", n) for n in range(4)]
    results = [ReplayRecord(RESULT, "a", n, ReplayOutcome.HANDLED) for n in range(4)]

    assert ((0, 3),) == answered(*asked, *results, count_max=3)
    assert ((2, 3), (4, 5), (6, 7)) == answered(
        *(r for pair in zip(asked, results, strict=True) for r in pair), count_max=3
    )


A = b"customer-7"


class Log:
    """One partition whose key A, or null keys, are stuck at dead letter 0."""

    def __init__(self, *there: int, key: bytes | None = A) -> None:
        self._there = there
        self._key = key

    def queues(self) -> dict[int, QueueStatus]:
        key_hash = hash_of_key(self._key)
        return {0: QueueStatus(False, frozenset({key_hash}), None, {key_hash: 0})}

    def is_gone(self, _partition: int, offset: int) -> bool:
        return offset not in self._there


def chosen(offset: int, key: bytes | None) -> FoundLetter:
    return FoundLetter(DeadLetterPosition("orders", 0, offset), key, 0, cast("Any", None), cast("Any", None))


def asked_for(log: Log, kind: ReplayKind, *, key: bytes | None = A) -> list[tuple[bytes | None, int | None]]:
    letters = [chosen(1, b"other"), chosen(2, key), chosen(3, key)]
    freed = freed_by_retention(cast("Any", {"orders": log}), letters)
    requests = requests_for(letters, freed, kind=kind, request_id="r1", text="")
    return [(request.key, request.record.dead_letter_offset) for request in requests]


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    ("there", "key", "kind", "expected"),
    [
        # Without a key: those at 0 and 2 have none, and it stands before the other one.
        ((1, 2, 3), None, ReplayKind.REPLAY, [(None, 0), (b"other", 1), (None, 2), (None, 3)]),
        ((1, 2, 3), A, ReplayKind.REPLAY, [(b"other", 1), (A, 0), (A, 2), (A, 3)]),
        # Its key would stay parked at it.
        ((1, 2, 3), A, ReplayKind.DROP, [(b"other", 1), (A, 0), (A, 2), (A, 3)]),
        # It is there, and nobody asked for it.
        ((0, 1, 2, 3), A, ReplayKind.REPLAY, [(b"other", 1), (A, 2), (A, 3)]),
    ],
)
def test_a_dead_letter_that_is_gone_and_holds_back_its_key_is_asked_for_first(
    there: tuple[int, ...], key: bytes | None, kind: ReplayKind, expected: list[tuple[bytes | None, int]]
) -> None:
    assert expected == asked_for(Log(*there, key=key), kind, key=key)


NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2h", NOW_MS - 7_200_000),
        ("1.5s", NOW_MS - 1_500),
        ("30000d", 0),
        ("1970-01-01T00:00:01+00:00", 1_000),
        ("1970-01-01T01:00:01+01:00", 1_000),
        ("1970-01-02", 86_400_000),  # UTC when no zone is named
        ("1969-12-31", 0),
    ],
)
def test_a_time_is_so_long_ago_or_an_instant(text: str, at_ms: int) -> None:
    assert at_ms == parse_instant("--since", text, now_ms=lambda: NOW_MS)


@pytest.mark.parametrize("text", ["", "yesterday", "2 h", "h", "1.2.3s", "2026-13-01", "12:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_instant("--since", text, now_ms=lambda: NOW_MS)


def test_a_dead_letter_is_named_with_its_topic_or_with_the_only_one() -> None:
    assert DeadLetterPosition("shop.orders", 3, 17) == parse_letter("shop.orders/3:17", topics=[])
    assert DeadLetterPosition("orders", 3, 17) == parse_letter("3:17", topics=["orders"])
    assert "orders/3:17" == str(DeadLetterPosition("orders", 3, 17))


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("3:17", []),
        ("3:17", ["a", "b"]),
        ("orders", []),
        ("orders/3", []),
        ("orders/-1:2", []),
        ("a/b/3:17", []),
        ("../3:17", []),
        ("orders/٣:17", []),
        ("", ["orders"]),
    ],
)
def test_what_names_no_dead_letter_is_refused(text: str, topics: list[str]) -> None:
    with pytest.raises(UsageError, match="names no dead letter"):
        parse_letter(text, topics=topics)


def test_a_key_is_text_or_hex() -> None:
    by_text = DeadLetterFilters(key="Zoë").read(now_ms=lambda: NOW_MS)
    by_hex = DeadLetterFilters(key_hex="5a6fc3ab").read(now_ms=lambda: NOW_MS)

    assert DeadLetterFilter("Zoë".encode()) == by_text == by_hex


def test_every_option_narrows() -> None:
    found = DeadLetterFilters(reason_code=[DeadLetterReason.REJECTED], since="2h", until="1h").read(
        now_ms=lambda: NOW_MS
    )

    assert not found.is_empty
    assert (NOW_MS - 7_200_000, NOW_MS - 3_600_000) == (found.since_ms, found.until_ms)


def test_a_request_has_an_author_and_a_name_of_its_own() -> None:
    first = author_of("x", operator=None, reason="ticket 12", request_id=None)
    second = author_of("x", operator="zoe", reason="ticket 12", request_id=None)

    assert "@" in first.text
    assert "zoe: ticket 12" == second.text
    assert first.request_id != second.request_id
    assert "t-12" == author_of("x", operator=None, reason="r", request_id="t-12").request_id
