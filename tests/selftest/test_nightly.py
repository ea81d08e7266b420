"""Every nightly test runs in `make nightly` and in exactly one share of CI; `make test` runs all others."""

import pytest

from tests.support.nightly import Choice

QUICK = ["tests/a.py::test_quick", "tests/b.py::test_quick"]
NIGHTLY = {f"tests/{file}.py::test_long[{case}]" for file in "abcdefg" for case in (1, 2)}
ALL = [*QUICK, *sorted(NIGHTLY)]


def taken(text: str) -> list[str]:
    choice = Choice.of(text)
    return [test for test in ALL if choice.takes(test, NIGHTLY)]


def test_every_test_is_in_one_of_the_two_runs() -> None:
    assert taken("none") == QUICK
    assert taken("only") == sorted(NIGHTLY)
    assert taken("all") == ALL


@pytest.mark.parametrize("shares", [1, 3, 7, 20])
def test_every_nightly_test_is_in_one_share_and_all_others_are_in_each(shares: int) -> None:
    runs = [taken(f"{share}/{shares}") for share in range(1, shares + 1)]

    assert all(run[:2] == QUICK for run in runs)
    assert sorted(NIGHTLY) == sorted(test for run in runs for test in run[2:])


def test_the_cases_of_a_function_are_in_one_share() -> None:
    for share in range(1, 8):
        assert len(taken(f"{share}/7")) == len(QUICK) + 2


@pytest.mark.parametrize("text", ["", "some", "0/3", "4/3", "1/0", "1", "1/"])
def test_what_is_no_choice_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="share such as"):
        Choice.of(text)
