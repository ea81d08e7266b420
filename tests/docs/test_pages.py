"""What every page has: one title, a number where it is a decision, and a table of names where it is reference."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
REFERENCE = sorted((DOCS / "reference").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_begins_with_its_title(page: Path) -> None:
    assert page.read_text().startswith("# ")


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decisions_file_and_title_have_the_same_number(page: Path) -> None:
    number = re.fullmatch(r"(\d{3})-[a-z0-9-]+", page.stem)

    assert number is not None
    assert page.read_text().startswith(f"# {number[1]} ")


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_a_reference_page_says_what_its_names_are_for_without_the_site(page: Path) -> None:
    text = page.read_text()
    directives = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    # `::: txlayer.errors` is a whole module: its page groups the classes by what to do.
    names = {place.rpartition(".")[2] for place in directives} - {"errors"}
    rows = set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))

    assert rows
    assert set() == names - rows
