"""The page on security names the tests that are marked with each threat, and every mark names a threat of the page."""

from tests.support import threat_page
from tests.support.marked_tests import marked


def test_the_tables_are_made_from_the_tests() -> None:
    text = threat_page.PAGE.read_text("utf-8")

    assert threat_page.page(text) == text, threat_page.COMMAND


def test_every_threat_has_its_tests_and_every_mark_a_threat() -> None:
    assert set(threat_page.accesses()) == marked("threat").keys()
