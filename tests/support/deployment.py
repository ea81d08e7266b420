"""The files of compose/ as data, and the command lines that stand in them."""

from pathlib import Path
from typing import Any

import typer
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
ALONE = "docker-compose.yml"
COMPOSE_FILES = (ALONE, "docker-compose.override.yml", "docker-compose.three.yml", "docker-compose.host.yml")


def documents(path: Path) -> list[dict[str, Any]]:
    """Every document of a YAML file."""
    return [found for found in yaml.load_all(path.read_text("utf-8"), yaml.CSafeLoader) if found]


def services(name: str = ALONE) -> dict[str, dict[str, Any]]:
    """The services of a compose file, anchors resolved."""
    found: dict[str, dict[str, Any]] = documents(COMPOSE / name)[0]["services"]
    return found


def exit_code(arguments: list[str], app: typer.Typer) -> object:
    """What the program ends with when none of its commands does anything: 0, or 2 for a line that it does not take."""
    program: Any = typer.main.get_command(app)
    _mute(program)
    try:
        program.main(args=arguments, prog_name="program")
    except SystemExit as end:
        return end.code or 0
    return 0


def _mute(command: Any) -> None:
    command.callback = _nothing
    for name in getattr(command, "commands", ()):
        _mute(command.commands[name])


def _nothing(**_options: object) -> None:
    pass
