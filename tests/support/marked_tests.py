"""Which tests carry a mark, by the names that the mark gives: `pytest.mark.fault("producer: …")`, `pytest.mark.threat("…")`."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


@cache
def marked(mark: str) -> dict[str, list[str]]:
    """{name given to the mark: node ids of its tests below tests/, in their order}."""
    call = f"pytest.mark.{mark}"
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text("utf-8")
        if f"{call}(" in source:
            for test, name in _marks(ast.parse(source), call):
                found[name].append(f"{path.relative_to(TESTS).as_posix()}::{test}")
    return found


def cell(tests: Iterable[str]) -> str:
    """The tests as a cell of a table in Markdown."""
    return "<br>".join(f"`{test}`" for test in tests) or "none"


def _marks(module: ast.Module, call: str) -> Iterator[tuple[str, str]]:
    """Each test of a module with each name that its marks give; a mark of several tests may have a name in the module."""
    named = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                found = named.get(mark.id) if isinstance(mark, ast.Name) else mark
                if isinstance(found, ast.Call) and ast.unparse(found.func) == call:
                    yield from ((node.name, str(ast.literal_eval(name))) for name in found.args)
