"""The page on security is what the tests say, and every test that it names can be collected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import threat_page
from tests.support.threats import THREATS

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_are_made_from_the_tests() -> None:
    text = threat_page.PAGE.read_text("utf-8")

    assert threat_page.page(text) == text, threat_page.COMMAND
    assert all(threat.access in text for threat in THREATS)


def test_every_threat_has_its_tests_and_they_are_there() -> None:
    assert [] == [threat.access for threat in THREATS if not threat.tests]
    named = {f"tests/{test}" for threat in THREATS for test in threat.tests}
    files = sorted({name.partition("::")[0] for name in named})

    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip

    collected = {line.partition("[")[0] for line in listed.stdout.splitlines() if "::" in line}
    assert set() == named - collected, listed.stdout[-2000:]
