"""Bisection finds the one line that a broker refuses, in few failures, wherever it stands."""

from __future__ import annotations

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from txlayer.core.batch import Batch, Bisection


def play(line_count: int, bad: int) -> tuple[int, int]:
    """(place of the line that was found, failures) for a run of lines of which one is refused."""
    bisection, position, failures = Bisection(), 0, 0
    run = line_count
    while True:
        if position <= bad < position + run:
            failures += 1
            if bisection.failed(run):
                return position, failures
        else:
            bisection.passed(run)
            position += run
        run = min(bisection.line_count_max, line_count - position)


@given(st.integers(1, 10_000), st.data())
def test_the_refused_line_is_found_in_few_failures(line_count: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, line_count - 1))

    found, failures = play(line_count, bad)

    assert bad == found
    assert failures <= ceil(log2(line_count)) + 1


@given(st.integers(1, 10_000))
def test_suspicion_ends_when_all_lines_went_through(line_count: int) -> None:
    bisection = Bisection()
    bisection.failed(line_count)
    left = line_count

    while bisection.is_active:
        run = min(bisection.line_count_max, left)
        bisection.passed(run)
        left -= run

    assert 0 == left


def test_a_found_line_ends_the_suspicion() -> None:
    bisection = Bisection()
    bisection.failed(8)

    bisection.found()

    assert not bisection.is_active


def test_a_new_batch_has_nothing_to_write() -> None:
    assert Batch().is_empty
