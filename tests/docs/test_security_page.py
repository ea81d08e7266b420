"""The page on security is what the tests say, and every test that it names is there."""

from __future__ import annotations

from tests.support import threat_page
from tests.support.pages import missing_tests
from tests.support.threats import THREATS


def test_the_tables_are_made_from_the_tests() -> None:
    text = threat_page.PAGE.read_text("utf-8")

    assert threat_page.page(text) == text, threat_page.COMMAND
    assert all(threat.access in text for threat in THREATS)


def test_every_threat_has_its_tests_and_they_are_there() -> None:
    assert [] == [threat.access for threat in THREATS if not threat.tests]
    assert set() == missing_tests({test for threat in THREATS for test in threat.tests})
