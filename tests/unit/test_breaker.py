"""A breaker by itself: when it opens, what it lets through then, and when it closes."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.core.retry import NO_LIMIT, SLICE_COUNT, Breaker, BreakerPolicy, BreakerState
from txlayer.errors import ConfigError

POLICY = BreakerPolicy(attempt_count_min=10, window=timedelta(seconds=10), probe_interval=timedelta(seconds=2))
NOW_MS = 1_000_000


def opened() -> Breaker:
    breaker = Breaker(POLICY)
    breaker.ended(count=10, failed_count=10, now_ms=NOW_MS)
    assert BreakerState.OPEN is breaker.state
    return breaker


def test_it_opens_at_its_share_of_enough_attempts() -> None:
    breaker = Breaker(POLICY)
    breaker.ended(count=9, failed_count=9, now_ms=NOW_MS)
    assert breaker.is_closed
    assert NO_LIMIT == breaker.room(NOW_MS)
    breaker.ended(count=10, failed_count=0, now_ms=NOW_MS)
    assert breaker.is_closed
    breaker.ended(count=0, failed_count=0, now_ms=NOW_MS)
    breaker.ended(count=1, failed_count=1, now_ms=NOW_MS + 9_000)
    assert BreakerState.OPEN is breaker.state
    assert 1 == breaker.opened_count


def test_what_left_the_window_does_not_count() -> None:
    breaker = Breaker(POLICY)
    breaker.ended(count=9, failed_count=9, now_ms=NOW_MS)
    breaker.ended(count=1, failed_count=1, now_ms=NOW_MS + 10_000)

    assert breaker.is_closed


def test_open_it_lets_one_probe_through_at_a_time() -> None:
    breaker = opened()

    assert 0 == breaker.room(NOW_MS + 1_999)
    assert NOW_MS + 2_000 == breaker.next_at_ms
    assert 1 == breaker.room(NOW_MS + 2_000)
    breaker.begin_probe()
    assert 0 == breaker.room(NOW_MS + 1_000_000)
    breaker.ended(count=5, failed_count=0, now_ms=NOW_MS + 2_000)  # began before
    assert BreakerState.PROBING is breaker.state
    breaker.probed(is_well=False, now_ms=NOW_MS + 3_000)
    assert (0, 1) == (breaker.room(NOW_MS + 4_999), breaker.room(NOW_MS + 5_000))


def test_a_probe_that_says_nothing_is_followed_by_another_one_at_once() -> None:
    breaker = opened()
    breaker.begin_probe()
    breaker.probed(is_well=None, now_ms=NOW_MS + 2_000)

    assert 1 == breaker.room(NOW_MS + 2_000)


def test_a_probe_that_succeeds_closes_it_and_the_window_begins_anew() -> None:
    breaker = opened()
    breaker.begin_probe()
    breaker.probed(is_well=True, now_ms=NOW_MS + 2_000)

    assert breaker.is_closed
    breaker.ended(count=9, failed_count=9, now_ms=NOW_MS + 2_000)
    assert breaker.is_closed
    breaker.ended(count=1, failed_count=1, now_ms=NOW_MS + 2_000)
    assert 2 == breaker.opened_count


@pytest.mark.promise("P11")
@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 50), st.floats(0, 1)), max_size=200))
def test_it_opens_as_the_whole_window_says_and_keeps_few_numbers(ends: list[tuple[int, int, float]]) -> None:
    breaker, seen, now_ms = Breaker(POLICY), list[tuple[int, int, int]](), NOW_MS
    for step_ms, count, share in ends:
        now_ms += step_ms
        failed = int(count * share)
        seen.append((now_ms // 1_000, count, failed))
        breaker.ended(count=count, failed_count=failed, now_ms=now_ms)
        recent = [each for each in seen if each[0] > now_ms // 1_000 - SLICE_COUNT]
        total, bad = sum(each[1] for each in recent), sum(each[2] for each in recent)
        assert (total >= 10 and bad * 2 >= total) is (not breaker.is_closed)
        assert len(breaker._slices) <= SLICE_COUNT
        if not breaker.is_closed:
            return


@pytest.mark.parametrize(
    "wrong",
    [{"failed_share": 0}, {"failed_share": 1.1}, {"attempt_count_min": 0}, {"window_ms": 9}, {"probe_interval_ms": 0}],
)
def test_limits_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        BreakerPolicy(**wrong)  # type: ignore[arg-type]  # of every kind


def test_lengths_are_lengths_of_time() -> None:
    assert (10_000, 2_000) == (POLICY.window_ms, POLICY.probe_interval_ms)
    with pytest.raises(ConfigError, match="a timedelta"):
        BreakerPolicy(window=10)  # type: ignore[arg-type]  # no unit
