"""The programs on our pages."""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "bench" / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """The page's blocks of code of one language, in order, also those inside a list."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"^( *)```{language}\b[^\n]*\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def programs(name: str) -> list[str]:
    """The Python programs of a how-to page."""
    return blocks(ROOT / "docs" / "howto" / f"{name}.md", "python")
