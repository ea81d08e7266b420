"""The programs on our pages."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable
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


def missing_tests(named: Iterable[str]) -> set[str]:
    """Of the tests that a page names, `unit/test_codec.py::test_…`, those that pytest would not find under tests/.

    Read, not collected: a collection imports and rewrites every file that is named.
    """
    files = {name.partition("::")[0] for name in named}
    found = {
        f"{file}::{node.name}"
        for file in files
        if (ROOT / "tests" / file).is_file()
        for node in ast.parse((ROOT / "tests" / file).read_bytes()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return {name for name in named if name not in found or not _is_test(name)}


def _is_test(name: str) -> bool:
    file, _, function = name.partition("::")
    return file.rpartition("/")[2].startswith("test_") and function.startswith("test_")
