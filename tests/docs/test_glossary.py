"""The glossary's words are the code's: every name in it exists, and the tables of states and reasons are the enums."""

import ast
import inspect
import re
from enum import Enum
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import txlayer
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import ParkReason, Source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


def tables() -> dict[str, list[list[str]]]:
    """{heading: rows} of the page."""
    found: dict[str, list[list[str]]] = {}
    for section in re.split(r"^#+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        found[section.splitlines()[0]] = [
            [cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[2:]
        ]
    return found


def names_in_the_code() -> set[str]:
    """Public names of all modules, and `Class.member` of their classes, fields and slots."""
    names: set[str] = set()
    for module_info in walk_packages(txlayer.__path__, "txlayer."):
        if module_info.name.endswith("__main__"):
            continue
        for name, value in vars(import_module(module_info.name)).items():
            names.add(name)
            if inspect.isclass(value):
                members = {m for cls in value.__mro__ for m in (*vars(cls), *inspect.get_annotations(cls))}
                names.update(f"{name}.{member}" for member in members)
    return names


def comments(enum: type[Enum]) -> dict[str, str]:
    """{value: its `#:` line} of an enum; the formatter may have broken a long one."""
    source = inspect.getsource(enum)
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    members = [s for s in body.body if isinstance(s, ast.Assign)]
    lines = source.splitlines()
    found = {}
    for statement in members:
        text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
        found[str(ast.literal_eval(statement.value))] = text.partition("#:")[2].splitlines()[0].strip()
    return found


def test_every_name_that_the_glossary_gives_exists() -> None:
    names = names_in_the_code()
    rows = tables()["Glossary"]
    given = [name for row in rows for name in re.findall(r"`([^`]+)`", row[2])]

    assert len(given) > 20
    assert [] == [name for name in given if name not in names]


def test_a_word_stands_there_once() -> None:
    words = [row[0] for row in tables()["Glossary"]]

    assert sorted(set(words)) == sorted(words)


@pytest.mark.parametrize(
    ("heading", "enum"),
    [("States of a transaction", TxnState), ("Reasons for holding and parking", ParkReason), ("Who resolves", Source)],
)
def test_the_tables_are_the_enums(heading: str, enum: type[Enum]) -> None:
    rows = {value.strip("`"): meaning.replace("`", "") for value, meaning in tables()[heading]}

    assert {value: text.replace("`", "") for value, text in comments(enum).items()} == rows
