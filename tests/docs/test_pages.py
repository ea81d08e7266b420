"""What every page has: one title, and a number of its own where it is a decision."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_begins_with_its_title(page: Path) -> None:
    assert page.read_text().startswith("# ")


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decisions_file_and_title_have_the_same_number(page: Path) -> None:
    number = re.fullmatch(r"(\d{3})-[a-z0-9-]+", page.stem)

    assert number is not None
    assert page.read_text().startswith(f"# {number[1]} ")
