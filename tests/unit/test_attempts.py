"""What follows from what a handler said: the whole table, and how long to wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.core.attempts import (
    GiveUp,
    Handled,
    RetryPolicy,
    TryAgain,
    Verdict,
    backoff_ms,
    decide,
)
from txlayer.core.handling import Ack, DeadLetterReason, HandlerResult, Reject, Retry
from txlayer.errors import ConfigError

POLICY = RetryPolicy(attempt_count_max=3, backoff_first_ms=100, backoff_max_ms=1_000)
AGAIN = TryAgain(1_000 + 100)
EXHAUSTED, REJECTED = (
    GiveUp(DeadLetterReason.ATTEMPTS_EXHAUSTED),
    GiveUp(DeadLetterReason.REJECTED),
)


@pytest.mark.parametrize(
    ("result", "first", "last"),
    [
        (None, Handled(), Handled()),
        (Ack(), Handled(), Handled()),
        (Retry(), TryAgain(1_000 + 50), EXHAUSTED),
        (Retry(delay_ms=100), AGAIN, EXHAUSTED),
        (Retry(delay_ms=0), TryAgain(1_000), EXHAUSTED),
        (Retry(delay_ms=-5), TryAgain(1_000), EXHAUSTED),
        (Reject("bad"), REJECTED, REJECTED),
    ],
)
def test_what_follows_from_a_result(result: HandlerResult, first: Verdict, last: Verdict) -> None:
    def decided(attempt_count: int) -> Verdict:
        return decide(result, attempt_count=attempt_count, policy=POLICY, now_ms=1_000, draw=0.0)

    assert first == decided(1)
    assert type(first) is type(decided(2))
    assert last == decided(3)
    assert last == decided(4)


def test_a_back_off_doubles_up_to_its_maximum() -> None:
    waits = [backoff_ms(n, policy=POLICY, draw=0.0) for n in range(1, 7)]

    assert [50, 100, 200, 400, 500, 500] == waits


def test_a_back_off_is_drawn_from_half_of_it_to_the_whole() -> None:
    assert 75 == backoff_ms(1, policy=POLICY, draw=0.5)
    assert 99 == backoff_ms(1, policy=POLICY, draw=0.999)


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True), st.floats(1, 1e9))
def test_no_number_of_attempts_makes_a_back_off_longer_than_its_maximum(
    attempt_count: int, draw: float, factor: float
) -> None:
    policy = replace(POLICY, backoff_factor=factor)

    assert 50 <= backoff_ms(attempt_count, policy=policy, draw=draw) <= 1_000


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("attempt_count_max", lambda: RetryPolicy(attempt_count_max=0)),
        ("backoff_first_ms", lambda: RetryPolicy(backoff_first_ms=-1)),
        ("backoff_max_ms", lambda: RetryPolicy(backoff_first_ms=100, backoff_max_ms=99)),
        ("backoff_factor", lambda: RetryPolicy(backoff_factor=0.9)),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(
    name: str, make: Callable[[], RetryPolicy]
) -> None:
    with pytest.raises(ConfigError, match=name):
        make()
