"""The judge of what restarted consumers wrote down: each thing that can be wrong is found, and nothing else."""

import pytest

from tests.support.handling_order import Handled, judge_handling
from tests.support.logs import Seen

LOG = [Seen("orders", 0, offset, key, b"v", [], 0) for offset, key in [(0, b"a"), (1, b"b"), (3, b"a"), (4, b"b")]]


def handled(*calls: tuple[int, int]) -> list[Handled]:
    """(offset, token) of calls in partition 0."""
    return [Handled(pid=7, partition=0, offset=offset, token=token) for offset, token in calls]


def test_one_key_in_order_beside_another_is_right() -> None:
    found = judge_handling(handled((1, 1), (0, 1), (4, 1), (3, 1)), LOG)

    assert ([], 4) == (found.findings, found.handled_count)


def test_what_a_crash_repeats_under_a_later_token_is_counted_and_not_wrong() -> None:
    found = judge_handling(handled((0, 1), (1, 1), (0, 2), (3, 2), (4, 2)), LOG)

    assert ([], 1) == (found.findings, found.repeated_count)


def test_a_late_write_under_an_old_token_is_refused_and_does_not_count() -> None:
    found = judge_handling(handled((0, 2), (1, 2), (3, 2), (4, 1)), LOG)

    assert 1 == found.refused_count
    assert ["(0, 4) was never handled"] == found.findings


@pytest.mark.parametrize(
    ("calls", "wrong"),
    [
        ([(0, 1), (1, 1), (3, 1)], "(0, 4) was never handled"),
        ([(3, 1), (0, 1), (1, 1), (4, 1)], "partition 0, key b'a': 0 after 3"),
        ([(0, 1), (1, 1), (3, 1), (4, 1), (2, 1)], "no such message"),
    ],
)
def test_a_fault_is_found(calls: list[tuple[int, int]], wrong: str) -> None:
    (finding,) = judge_handling(handled(*calls), LOG).findings

    assert wrong in finding
