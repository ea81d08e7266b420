"""The form of the code, as a test: each rule has its reason beside it, and a break is named by file and line."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("txlayer", "spark", "tests", "bench", "examples")
TOOLS_FILES = {".git", ".coverage"}
TEXT = (*CODE, "topics", "compose", "docs", ".ci")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".lock", ".json", ".sh", ".html", ".properties", ""}

BODY_LINES_MAX = 64
"""A function fits on a screen; a longer one says why on its `def` line."""


def files(folders: tuple[str, ...], suffixes: set[str]) -> list[Path]:
    """Our files of these kinds; what tools leave behind is not ours."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name not in TOOLS_FILES]
    for folder in folders:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(path for path in found if path.suffix in suffixes and "__pycache__" not in path.parts)


PYTHON = files(CODE, {".py"})


def at(path: Path, line: int) -> str:
    """A place, as editors understand it."""
    return f"{path.relative_to(ROOT)}:{line}"


def is_below(path: Path, *folder: str) -> bool:
    """True for a file in that folder of ours."""
    return path.relative_to(ROOT).parts[: len(folder)] == folder


@dataclass(frozen=True)
class Form:
    """What the rules ask of a file, so that it is read once for all of them."""

    names: list[tuple[int, str]]
    """(line, dotted name) of imports and, in a file with a word that is ASKED for, of attributes: `time.sleep`, `os.environ`."""
    classes: list[tuple[int, str]]
    functions: list[Function]
    waits_of_nobody: list[int]
    """Lines with `Event().wait(…)`: nobody else knows this event, so it is a sleep, or has no end."""
    has_docstring: bool


class Function(NamedTuple):
    """How long one is, without its docstring, and where a reason for that may stand."""

    line: int
    name: str
    length: int
    signature: range


ASKED = re.compile(rb"time\.sleep|mock\.patch|unittest\.mock|os\.(environ|getenv|putenv)|Event\([^()]*\)\s*\.wait")
"""The expressions that a rule asks for: without one of them a file's statements say all."""


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those below a node: a tenth of all nodes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from statements(child)


@cache
def form_of(path: Path) -> Form:
    """The file's form."""
    source = path.read_bytes()
    module = ast.parse(source, filename=str(path))
    form = Form([], [], [], [], ast.get_docstring(module) is not None)
    for node in ast.walk(module) if ASKED.search(source) else statements(module):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                form.names.append((node.lineno, f"{owner}.{name}"))
            case ast.ImportFrom():
                form.names.extend((node.lineno, f"{node.module}.{n.name}") for n in node.names)
            case ast.Import():
                form.names.extend((node.lineno, n.name) for n in node.names)
            case ast.ClassDef():
                form.classes.append((node.lineno, node.name))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                form.functions.append(function(node))
            case ast.Call(func=ast.Attribute(value=ast.Call(func=maker), attr="wait")):
                if ast.unparse(maker).rpartition(".")[2] == "Event":
                    form.waits_of_nobody.append(node.lineno)
    return form


@cache
def comments(path: Path) -> list[tuple[int, str]]:
    """(line, text) of every comment."""
    with path.open("rb") as source:
        return [
            (token.start[0], token.string)
            for token in tokenize.tokenize(source.readline)
            if token.type == tokenize.COMMENT
        ]


def function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    """What the rules ask of a function."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
    return Function(node.lineno, node.name, length, range(node.lineno, node.body[0].lineno))


def refuse(broken: Iterable[str]) -> None:
    """Fail with one line per break."""
    told = "\n".join(broken)
    assert not told, f"\n{told}"


def test_there_is_something_to_check() -> None:
    assert len(PYTHON) > 30


def test_the_form_of_the_code() -> None:
    """One test for all rules that ask for a file's form: to read it takes most of the time, on whichever worker."""
    rules = (waits, mocks, long_functions, empty_names, environment_reads, missing_docstrings, unexplained_exceptions)
    refuse(f"{path.relative_to(ROOT)}:{told}" for path in PYTHON for rule in rules for told in rule(path))


def waits(path: Path) -> Iterator[str]:
    """Tests wait for conditions and never sleep."""
    if not is_below(path, "tests"):
        return
    if not is_below(path, "tests", "support", "waiting.py"):
        yield from (f"{line} time.sleep" for line, name in form_of(path).names if name == "time.sleep")
    yield from (f"{line} wait for a condition, or say `pause` or `hang`" for line in form_of(path).waits_of_nobody)


def mocks(path: Path) -> Iterator[str]:
    """Tests use fakes at the ports and never mocks."""
    for line, name in form_of(path).names:
        if name.startswith(("mock.patch", "unittest.mock", "mock.mock", "pytest_mock")) or name in (
            "mock",
            "unittest.mock",
        ):
            yield f"{line} {name}"


def long_functions(path: Path) -> Iterator[str]:
    """A function fits on a screen, or says why not."""
    long = [one for one in form_of(path).functions if one.length > BODY_LINES_MAX]
    said = {line for line, text in (comments(path) if long else ()) if not text.startswith(("# noqa", "# type:"))}
    yield from (f"{one.line} {one.name}: {one.length} lines" for one in long if not said.intersection(one.signature))


def empty_names(path: Path) -> Iterator[str]:
    """A name tells the content."""
    empty = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "base", "impl"}
    if empty & set(path.stem.split("_")):
        yield "1 the file's name"
    for line, name in form_of(path).classes:
        if re.search(r"(Manager|Impl|Helper|Utils?)$|^Abstract", name):
            yield f"{line} {name}"


EDGES = (
    ("txlayer", "cli"),
    ("txlayer", "testing"),
    # The edge of notebooks and programs on Spark, as the command line is that of shells.
    ("spark", "txlayer_spark", "sessions.py"),
    # It reads no setting: `multiprocessing` gives a child no interpreter option, so PYTHONSAFEPATH is set while one starts.
    ("txlayer", "consumer", "process_pool.py"),
)


def environment_reads(path: Path) -> Iterator[str]:
    """The environment is read at the edge."""
    is_ours = is_below(path, "txlayer") or is_below(path, "spark")
    if is_ours and not any(is_below(path, *edge) for edge in EDGES):
        reads = {"os.environ", "os.environb", "os.getenv", "os.putenv"}
        yield from (f"{line} {name}" for line, name in form_of(path).names if name in reads)


def missing_docstrings(path: Path) -> Iterator[str]:
    """Every module says what lives there."""
    if not form_of(path).has_docstring:
        yield "1 no docstring"


# As in: type: ignore[code]  # why / noqa: CODE - why / pragma: no cover - why
EXCEPTIONS = {
    "type: ignore": re.compile(r"type: ignore\[[a-z, -]+\]\s+#\s*\S"),
    "noqa": re.compile(r"noqa: [A-Z0-9, ]+ - \S"),
    "pragma: no": re.compile(r"pragma: no (cover|branch) - \S"),
}


def unexplained_exceptions(path: Path) -> Iterator[str]:
    """An exception to a tool is named and has its reason."""
    said = path.read_text("utf-8")
    # The rest of the line, because a reason may stand in a comment of its own.
    found = [
        (number, line[at.start() :])
        for word, form in EXCEPTIONS.items()
        if word in said
        for number, line in enumerate(said.splitlines(), start=1)
        for at in re.finditer(rf"#\s*(ruff: )?{word}", line)
        if not form.search(line, at.start())
    ]
    are_comments = dict(comments(path)) if found else {}  # else a string has the words
    yield from (f"{number} {text}" for number, text in found if text.startswith(are_comments.get(number, "\n")))


# Written in two pieces each, so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(" + "|".join(("FIX" + "ME", "TO" + "DO", "X" + "XX", "HA" + "CK")) + r")\b")
MACHINE = re.compile(
    "|".join(("/wor" + "k/", "/ro" + "ot/", r"/hom" + r"e/\w", r"/Use" + r"rs/\w", "/opt/whe" + "els"))
)
REGISTRY = re.compile(
    "|".join(
        (
            r"pypi\." + "org",
            r"pythonhosted\." + "org",
            r"maven\." + "org",
            r"maven\.apache\." + r"org/m",
            r"docker\." + "io",
            r"gh" + r"cr\.io",
            r"quay\." + "io",
            "artifact" + "ory",
        )
    )
)


@pytest.mark.parametrize(
    ("what", "pattern"),
    [("unfinished", UNFINISHED), ("a path of one machine", MACHINE), ("a registry's address", REGISTRY)],
)
def test_a_file_says_nothing_that_belongs_elsewhere(what: str, pattern: re.Pattern[str]) -> None:
    broken = [
        f"{at(path, number)} {what}"
        for path in files(TEXT, TEXT_SUFFIXES)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]

    refuse(broken)
