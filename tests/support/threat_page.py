"""The table of docs/explanation/security.md out of the tests: `python -m tests.support.threat_page` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.support.threats import THREATS
from txlayer.adapters.namespace import read_acl_files

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "security.md"
COMMAND = ".venv/bin/python -m tests.support.threat_page"

_TABLES = re.compile(r"<!-- (threats|roles) -->\n.*?<!-- end -->", re.DOTALL)


def page(text: str) -> str:
    """The page with its tables as the tests have them."""
    made = {"threats": threats, "roles": roles}
    return _TABLES.sub(lambda m: f"<!-- {m[1]} -->\n" + "\n".join(made[m[1]]()) + "\n<!-- end -->", text)


def threats() -> Iterable[str]:
    """A row per access."""
    yield "| whoever may | can | cannot | tests |"
    yield "| --- | --- | --- | --- |"
    for threat in THREATS:
        tests = "<br>".join(f"`{test}`" for test in threat.tests)
        yield f"| {threat.access} | {threat.can} | {threat.cannot} | {tests} |"


def roles() -> Iterable[str]:
    """A row per role."""
    yield "| role | does |"
    yield "| --- | --- |"
    for role, content in read_acl_files().items():
        yield f"| `{role}` | {content['does']} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
