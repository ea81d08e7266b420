"""The programs of docs/howto/test-your-service.md run as a user's tests, and the names on the page exist."""

import os
import re
import sys
from pathlib import Path

from tests.support.programs import run_program
from txlayer.testing import Stage
from txlayer.testing.access import Kind

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "test-your-service.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_programs_of_the_page_pass_as_tests(tmp_path: Path) -> None:
    tests, settings = PROGRAMS
    (tmp_path / "test_sales.py").write_text(tests, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(settings, encoding="utf-8")
    options = ["-p", "txlayer.testing.plugin", "-p", "no:cacheprovider", "--txlayer-kafka=memory"]

    ran = run_program(
        [sys.executable, "-W", "error", "-m", "pytest", "--rootdir=.", *options],
        within=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert 0 == ran.returncode, ran.stdout[-4000:]
    assert "2 passed" in ran.stdout


def test_every_name_of_the_table_is_a_stages() -> None:
    named = set(re.findall(r"^\| `(\w+)[(`.]", PAGE, re.MULTILINE)) - {kind.value for kind in Kind}

    assert {"topic", "write", "assert_published", "assert_nothing_published"} <= named
    assert set() == {name for name in named if not hasattr(Stage, name)} - {"kafka"}


def test_the_page_names_every_kind_of_kafka() -> None:
    named = {kind.value for kind in Kind} - {Kind.GIVEN.value}

    assert named == set(re.findall(r"^\| `(\w+)`(?:, the default)? \| ", PAGE, re.MULTILINE)) & named
