"""A page that names a test which is gone, or which pytest does not find, is told."""

from __future__ import annotations

from tests.support.pages import missing_tests

HERE = "selftest/test_missing_tests.py"
THERE = f"{HERE}::test_what_is_not_there_is_told"


def test_what_is_not_there_is_told() -> None:
    gone = {f"{HERE}::test_gone", f"{HERE}::helping", "selftest/test_gone.py::test_x", "support/pages.py::blocks"}

    assert gone == missing_tests({THERE, *gone})


def helping() -> None:
    """No test."""
