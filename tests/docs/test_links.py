"""Every link of every page leads somewhere: files exist, and so do the headings that are named behind `#`."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Link(NamedTuple):
    """One link to a file of ours."""

    page: Path
    target: str


def without_code(text: str) -> str:
    """The text without blocks and spans of code: what looks like a link there is none."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def links(page: Path) -> list[Link]:
    """The page's links that stay within the project."""
    found = _LINK.findall(without_code(page.read_text(encoding="utf-8")))
    return [Link(page, target) for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """What the page's headings are called behind `#`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_there_are_pages_with_links() -> None:
    assert len(PAGES) > 10
    assert sum(len(links(page)) for page in PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        name, _, anchor = link.target.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link.target)

    assert [] == broken


def test_decisions_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))

    assert [f"{number:03d}" for number in range(1, len(names) + 1)] == [name[:3] for name in names]
