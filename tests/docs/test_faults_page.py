"""The page of faults names the tests that are marked with each fault, and every mark names a fault of the page."""

import pytest

from tests.simulation.guards import GUARDS
from tests.support import fault_page
from tests.support.checker import Kind
from tests.support.marked_tests import marked


def test_the_page_of_faults_is_made_from_the_tests() -> None:
    assert fault_page.page() == fault_page.PAGE.read_text("utf-8"), fault_page.COMMAND


def test_every_fault_is_covered_or_says_why_not() -> None:
    found, rows = marked("fault"), fault_page.faults()

    assert [] == [row.name for row in rows if row.name not in found and not row.missing]
    assert len(rows) == len({row.name for row in rows})
    assert len(rows) > 40


def test_every_mark_of_a_test_names_a_fault_of_the_page() -> None:
    assert set() == marked("fault").keys() - {row.name for row in fault_page.faults()}


@pytest.mark.parametrize("kind", Kind)
def test_every_invariant_has_been_seen_red_by_itself(kind: Kind) -> None:
    by_guard = {frozenset({kind})} & {guard.kinds for guard in GUARDS}

    assert by_guard or kind in fault_page.PLANTED.values()
