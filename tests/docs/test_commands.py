"""Every `txlayer` command line on a page exists, with the options that are shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from txlayer.cli.main import build_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def command_lines(page: Path) -> list[list[str]]:
    """The command lines in the page's blocks of shell, without comments, and those that stand in its sentences."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"`(txlayer [a-z][^`]*)`", prose)
    words = [shlex.split(line, comments=True) for line in lines]
    return [found[1:] for found in words if found[:1] == ["txlayer"]]


def unknown_in(words: list[str], root: Any) -> list[str]:
    """What of a command line there is not."""
    command = root
    rest = list(words)
    while rest and getattr(command, "commands", None):
        # `list|show|stats` on a page stands for each of them.
        names = rest.pop(0).rstrip(",").split("|")
        missing = [name for name in names if name not in command.commands]
        if missing:
            return missing
        command = command.commands[names[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    return [word for word in rest if word.startswith("-") and word not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_of_a_page_exists(page: Path) -> None:
    root = typer.main.get_command(build_app())

    assert [] == [" ".join(words) for words in command_lines(page) if unknown_in(words, root)]


def test_there_are_command_lines() -> None:
    assert sum(len(command_lines(page)) for page in PAGES) > 20
