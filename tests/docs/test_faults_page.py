"""The page of faults is what the tests say, and every test that it names is there."""

from __future__ import annotations

import pytest

from tests.simulation.guards import GUARDS
from tests.support import fault_page
from tests.support.checker import Kind
from tests.support.fault_matrix import MATRIX
from tests.support.pages import missing_tests


def test_the_page_of_faults_is_made_from_the_tests() -> None:
    assert fault_page.page() == fault_page.PAGE.read_text("utf-8"), fault_page.COMMAND


def test_every_fault_is_covered_or_says_why_not() -> None:
    assert [] == [row.fault for row in MATRIX if not row.tests and not row.missing]
    assert len(MATRIX) == len({(row.where, row.fault) for row in MATRIX})
    assert len(MATRIX) > 40


def test_every_test_that_covers_a_fault_is_there() -> None:
    assert set() == missing_tests({test for row in MATRIX for test in row.tests})


@pytest.mark.parametrize("kind", Kind)
def test_every_invariant_has_been_seen_red_by_itself(kind: Kind) -> None:
    by_guard = {frozenset({kind})} & {guard.kinds for guard in GUARDS}

    assert by_guard or kind in fault_page.PLANTED.values()
