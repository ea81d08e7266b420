"""Commands that run once ask with a command's patience, all of them; the coordinator alone asks with its own."""

import ast
from pathlib import Path

import txlayer.cli

SERVICE = "coordinator.py"


def calls_without_patience(path: Path) -> list[str]:
    """Places where a coordinator's connections are made to be asked again and again."""
    return [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "connect_coordinator"
        and "is_one_shot" not in {keyword.arg for keyword in node.keywords}
    ]


def test_every_command_but_the_coordinator_waits_as_long_as_a_person() -> None:
    folder = Path(txlayer.cli.__path__[0])
    found = {path.name: calls_without_patience(path) for path in folder.rglob("*.py")}

    assert 1 == len(found.pop(SERVICE))
    assert {} == {name: calls for name, calls in found.items() if calls}
