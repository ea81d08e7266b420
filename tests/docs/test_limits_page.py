"""docs/howto/limits.md names every setting with its default and its reason, as the code has them."""

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pytest

from txlayer.config import (
    ClientConfig,
    ConsumerConfig,
    CoordinatorConfig,
    MetricsConfig,
    ProducerConfig,
    ResponderConfig,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "limits.md"

MIB = 1024 * 1024

Role = type[ClientConfig] | type[MetricsConfig]


def shown(value: object) -> str:
    """A default as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value // MIB} MiB" if value and value % MIB == 0 else f"{value:,}"
    if isinstance(value, timedelta):
        for unit, length in (("d", timedelta(days=1)), ("min", timedelta(minutes=2)), ("s", timedelta(seconds=1))):
            if value >= length:
                size = {"d": 86400, "min": 60, "s": 1}[unit]
                return f"{value.total_seconds() / size:g} {unit}"
        return f"{value / timedelta(milliseconds=1):g} ms"
    if isinstance(value, str) and value:
        return f"`{value}`"
    assert not value, value
    return "none"


def reasons(role: Role) -> dict[str, str]:
    """{field: the text below it} of one class."""
    (body,) = ast.parse(inspect.getsource(role)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found


def expected_rows(role: Role) -> list[list[str]]:
    """[setting, default, why] of what the role itself adds."""
    inherited = {f.name for f in fields(ClientConfig)} if role is not ClientConfig else set()
    why = reasons(role)
    rows = []
    for f in fields(role):
        if f.name not in inherited:
            default = f.default if f.default is not MISSING else {}
            rows.append([f"`{f.name}`", shown(default), why.get(f.name, "")])
    return rows


def table(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    section = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert section is not None, heading
    lines = [line for line in section[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize(
    ("heading", "role"),
    [
        ("Every role", ClientConfig),
        ("Producer", ProducerConfig),
        ("Responder", ResponderConfig),
        ("Coordinator", CoordinatorConfig),
        ("Consumer", ConsumerConfig),
        ("Metrics", MetricsConfig),
    ],
)
def test_every_setting_stands_there_with_its_default_and_its_reason(heading: str, role: Role) -> None:
    found = table(heading)
    expected = expected_rows(role)
    # A setting whose name says it all has its reason on the page alone.
    for row, on_page in zip(expected, found, strict=False):
        row[2] = row[2] or on_page[2]

    assert expected == found, "\n" + "\n".join(f"| {' | '.join(row)} |" for row in expected)


def test_every_fixed_limit_has_the_value_that_the_code_has() -> None:
    rows = table("Fixed limits")

    assert len(rows) > 10
    for name, value, where, why in rows:
        module = import_module("txlayer." + where.strip("`").replace("/", "."))
        constant = vars(module)[name.strip("`")]
        assert shown(constant) == value if not isinstance(constant, float) else f"{constant:g}" == value, name
        assert why, name


def test_units_of_time_are_chosen_as_people_would() -> None:
    given: Mapping[timedelta, str] = {
        timedelta(milliseconds=70): "70 ms",
        timedelta(seconds=60): "60 s",
        timedelta(minutes=5): "5 min",
        timedelta(days=7): "7 d",
    }

    assert list(given.values()) == [shown(length) for length in given]
