"""Docstrings and comments name other code as `Class.member`; a name that leads nowhere misleads its reader."""

import ast
import re
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([A-Z]\w+)\.([a-z_]\w*)(?:\(\))?`")
ATTRIBUTE = re.compile(r"\bself\.(\w+)")


@pytest.mark.slow
def test_every_member_that_the_source_names_exists() -> None:
    members: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    sources = {path: path.read_text() for path in sorted((ROOT / "txlayer").rglob("*.py"))}
    for text in sources.values():
        lines = text.splitlines()
        for found in ast.walk(ast.parse(text)):
            if not isinstance(found, ast.ClassDef):
                continue
            body = "\n".join(lines[found.lineno - 1 : found.end_lineno])
            members[found.name] |= set(ATTRIBUTE.findall(body)) | set(
                re.findall(r"^    (?:async )?(?:def )?(\w+)", body, re.MULTILINE)
            )
            bases[found.name] |= {base.id for base in found.bases if isinstance(base, ast.Name)}

    def has(name: str, member: str) -> bool:
        inherited = bases[name]
        return member in members[name] or any(base not in members or has(base, member) for base in inherited)

    missing = [
        f"{path.relative_to(ROOT)}: {name}.{member}"
        for path, text in sources.items()
        for name, member in NAMED.findall(text)
        if name in members and not has(name, member)
    ]
    assert [] == missing


@pytest.mark.slow
def test_benches_and_examples_import_what_is_there() -> None:
    """No check of types and no test looks at all of them."""
    missing = [
        f"{path.relative_to(ROOT)}: {found.module}.{name.name}"
        for folder in ("bench", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in ast.walk(ast.parse(path.read_text()))
        if isinstance(found, ast.ImportFrom) and (found.module or "").partition(".")[0] in ("txlayer", "txlayer_spark")
        for name in found.names
        if not _is_there(str(found.module), name.name)
    ]
    assert [] == missing


def _is_there(module: str, name: str) -> bool:
    found = import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)
