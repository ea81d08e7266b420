"""What follows from what a handler said: the whole table, and how long to wait."""

import pickle
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txlayer.core.dead_letters import DeadLetterReason
from txlayer.core.retry import GiveUp, Reject, Retry, RetryPolicy, TryAgain, Verdict, backoff_ms, decide, resume_at_ms
from txlayer.errors import ConfigError

POLICY = RetryPolicy(attempt_count_max=3, backoff_first_ms=100, backoff_max_ms=1_000)
AGAIN = TryAgain(1_000 + 100)
EXHAUSTED, REJECTED = (GiveUp(DeadLetterReason.ATTEMPTS_EXHAUSTED), GiveUp(DeadLetterReason.REJECTED))


def test_a_policy_takes_lengths_of_time_as_well_as_milliseconds() -> None:
    given = RetryPolicy(3, backoff_first=timedelta(seconds=0.1), backoff_max=timedelta(seconds=1))

    assert POLICY == given
    assert hash(POLICY) == hash(given)
    assert given == pickle.loads(pickle.dumps(given))
    assert 200 == replace(given, backoff_first=timedelta(milliseconds=200)).backoff_first_ms
    with pytest.raises(ConfigError, match="a timedelta"):
        RetryPolicy(backoff_first=100)  # type: ignore[arg-type]  # no unit
    with pytest.raises(ConfigError, match="backoff_first_ms or more"):
        RetryPolicy(backoff_first=timedelta(hours=1))


@pytest.mark.parametrize(
    ("result", "first", "last"),
    [
        (Retry(), TryAgain(1_000 + 50), EXHAUSTED),
        (Retry(delay_ms=100), AGAIN, EXHAUSTED),
        (Retry(delay_ms=0), TryAgain(1_000), EXHAUSTED),
        (Retry(delay_ms=-5), TryAgain(1_000), EXHAUSTED),
        (Reject("bad"), REJECTED, REJECTED),
    ],
)
def test_what_follows_from_a_result(result: Retry | Reject, first: Verdict, last: Verdict) -> None:
    def decided(attempt_count: int) -> Verdict:
        return decide(result, attempt_count=attempt_count, policy=POLICY, now_ms=1_000, draw=0.0)

    assert first == decided(1)
    assert type(first) is type(decided(2))
    assert last == decided(3)
    assert last == decided(4)


def test_a_back_off_doubles_up_to_its_maximum() -> None:
    waits = [backoff_ms(n, policy=POLICY, draw=0.0) for n in range(1, 7)]

    assert [50, 100, 200, 400, 500, 500] == waits


def test_the_default_attempts_take_about_half_an_hour() -> None:
    policy = RetryPolicy()

    def minutes(draw: float) -> float:
        return sum(backoff_ms(n, policy=policy, draw=draw) for n in range(1, policy.attempt_count_max)) / 60_000

    assert 28 < minutes(0.5) < 30
    assert minutes(1.0) < 39
    page = (Path(__file__).parents[2] / "docs" / "howto" / "consumers.md").read_text(encoding="utf-8")
    assert 3 == page.count("about half an hour")


def test_a_back_off_is_drawn_from_half_of_it_to_the_whole() -> None:
    assert 75 == backoff_ms(1, policy=POLICY, draw=0.5)
    assert 99 == backoff_ms(1, policy=POLICY, draw=0.999)


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True), st.floats(1, 1e9))
def test_no_number_of_attempts_makes_a_back_off_longer_than_its_maximum(
    attempt_count: int, draw: float, factor: float
) -> None:
    policy = replace(POLICY, backoff_factor=factor)

    assert 50 <= backoff_ms(attempt_count, policy=policy, draw=draw) <= 1_000


def resumed(attempt_count: int, *, first_at_s: int, offset: int = 0) -> int:
    """How long after a take-over at 100 s."""
    taken_over_ms = 100_000
    at_ms = resume_at_ms(
        attempt_count, first_at_s=first_at_s, offset=offset, taken_over_ms=taken_over_ms, policy=POLICY
    )
    return at_ms - taken_over_ms


def test_after_a_take_over_a_back_off_begins_anew() -> None:
    assert [50, 100, 200, 400, 500, 500] == [resumed(n, first_at_s=99) for n in range(1, 7)]


def test_after_a_take_over_nothing_waits_longer_than_it_would_have_without() -> None:
    # Attempts that began in second 95, with back-offs of 0.1, 0.2, 0.4, 0.8 and then 1 s each.
    assert [-3_900, -3_700, -3_300, -2_500, -1_500] == [resumed(n, first_at_s=95) for n in range(1, 6)]
    assert 500 == resumed(1_000_000, first_at_s=95)


def test_a_take_over_brings_those_that_failed_together_back_apart() -> None:
    waits = sorted(resumed(4, first_at_s=100, offset=offset) for offset in range(1_000, 1_100))

    assert waits[0] < 410
    assert waits[-1] > 790
    assert all(later - earlier <= 10 for earlier, later in pairwise(waits))


@given(st.integers(1, 300), st.integers(0, 1_000), st.integers(0, 100_000), st.floats(1, 1e3) | st.floats(1, 1.001))
@example(300, 100, 900, 1.0000000000000002)
def test_what_it_would_have_waited_without_is_the_sum_of_all_back_offs(
    attempt_count: int, first_ms: int, more_ms: int, factor: float
) -> None:
    policy = RetryPolicy(
        attempt_count_max=3, backoff_first_ms=first_ms, backoff_max_ms=first_ms + more_ms, backoff_factor=factor
    )
    wholes = [float(first_ms)]
    while len(wholes) < attempt_count:
        wholes.append(min(wholes[-1] * factor, first_ms + more_ms))

    at_ms = resume_at_ms(attempt_count, first_at_s=-1, offset=0, taken_over_ms=1 << 60, policy=policy)

    assert abs(at_ms - sum(wholes)) <= 1 + first_ms / 2  # a factor that is hardly a number: half a back-off


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(0, 2**63), st.floats(1, 1e9))
@example(10**9, 0, 0, 1.0000000000000002)  # nothing may be done for each attempt
def test_no_clock_and_no_number_of_attempts_makes_the_wait_after_a_take_over_longer_than_the_maximum(
    attempt_count: int, first_at_s: int, offset: int, factor: float
) -> None:
    at_ms = resume_at_ms(
        attempt_count,
        first_at_s=first_at_s,
        offset=offset,
        taken_over_ms=0,
        policy=replace(POLICY, backoff_factor=factor),
    )

    assert at_ms <= 1_000


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"attempt_count_max": 0}, "at least 1"),
        ({"backoff_first_ms": -1}, "at least 0"),
        ({"backoff_max_ms": 999}, "backoff_first_ms or more"),
        ({"backoff_factor": 0.5}, "at least 1"),
    ],
)
def test_what_is_wrong_with_a_policy_is_told(settings: dict[str, Any], expected: str) -> None:
    ((name, value),) = settings.items()

    with pytest.raises(ConfigError) as told:
        RetryPolicy(**settings)

    assert (name, value, expected) == (told.value.name, told.value.value, told.value.expected)


def test_the_least_that_a_policy_may_be() -> None:
    policy = RetryPolicy(1, backoff_first_ms=0, backoff_max_ms=0, backoff_factor=1)

    assert 0 == backoff_ms(1, policy=policy, draw=0.9)
