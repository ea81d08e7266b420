"""The tables of docs/explanation/security.md: `python -m tests.support.threat_page` writes the roles and the tests of each threat.

For example, `@pytest.mark.threat("write a real topic")` puts its test into the row of that access. The other columns are written by hand.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.marked_tests import cell, marked
from txlayer.adapters.namespace import read_acl_files

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "security.md"
COMMAND = ".venv/bin/python -m tests.support.threat_page"

_TABLES = re.compile(r"<!-- (threats|roles) -->\n(.*?)<!-- end -->", re.DOTALL)


def page(text: str) -> str:
    """The page with its tables as the tests and the roles have them."""
    made = {"threats": threats, "roles": roles}
    return _TABLES.sub(
        lambda m: f"<!-- {m[1]} -->\n" + "\n".join(made[m[1]](m[2].splitlines())) + "\n<!-- end -->", text
    )


def accesses() -> list[str]:
    """The first cell of each row of threats."""
    found = dict(_TABLES.findall(PAGE.read_text("utf-8")))
    return [_cells(row)[0] for row in found["threats"].splitlines()[2:]]


def threats(rows: Sequence[str]) -> Iterable[str]:
    """The rows with the tests of each access."""
    yield from rows[:2]
    found = marked("threat")
    for access, can, cannot, _ in map(_cells, rows[2:]):
        yield f"| {access} | {can} | {cannot} | {cell(found.get(access, ()))} |"


def _cells(row: str) -> list[str]:
    return [each.strip() for each in row.split("|")[1:-1]]


def roles(_: Sequence[str]) -> Iterable[str]:
    """A row per role."""
    yield "| role | does |"
    yield "| --- | --- |"
    for role, content in read_acl_files().items():
        yield f"| `{role}` | {content['does']} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
