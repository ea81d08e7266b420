"""The tests' own waiting: patient with work that goes on, and not with work that stands still."""

from itertools import count

import pytest

from tests.support.waiting import TimedOutError, wait_until

WITHIN_S = 0.05
POLLS = 10
"""At 20 ms each four times as long as `WITHIN_S`."""


def test_work_that_goes_on_is_waited_for_beyond_the_time() -> None:
    polls, work = count(), count()

    seen = wait_until(lambda: next(polls) >= POLLS, within=WITHIN_S, what="done", growing=lambda: next(work))

    assert seen


def test_work_that_stands_still_is_given_up_with_what_it_came_to() -> None:
    with pytest.raises(TimedOutError, match="since it got to 7, last seen: False"):
        wait_until(lambda: False, within=WITHIN_S, what="done", growing=lambda: 7)


def test_work_that_only_comes_back_to_where_it_was_is_given_up() -> None:
    work = count()

    with pytest.raises(TimedOutError, match="since it got to 1"):
        wait_until(lambda: False, within=WITHIN_S, what="done", growing=lambda: next(work) % 2)


def test_what_the_condition_itself_finds_wrong_is_no_time_out() -> None:
    def is_wrong() -> bool:
        raise AssertionError("seen twice")

    with pytest.raises(AssertionError, match="seen twice") as caught:
        wait_until(is_wrong, within=WITHIN_S, what="done")
    assert not isinstance(caught.value, TimedOutError)


def test_a_time_out_within_a_condition_is_one() -> None:
    def inner() -> bool:
        return wait_until(lambda: False, within=WITHIN_S, what="the inner one")

    with pytest.raises(TimedOutError, match="the inner one"):
        wait_until(inner, within=WITHIN_S, what="the outer one")
