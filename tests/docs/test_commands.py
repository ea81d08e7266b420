"""Every command line on a page is one that there is: commands with their options, settings, extras, targets, programs."""

import re
import shlex
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.pages import PAGES, ROOT, blocks
from txlayer.cli.main import build_app
from txlayer.config import check_names

ASSIGNMENT = re.compile(r"[A-Z_]+=.*", re.DOTALL)
ENDS = ("|", "||", "&&", "&", ";", ">", ">>", "2>", "<")
"""Where a command's own words end."""
FOREIGN = frozenset({"--archives", "--build-arg", "--files", "--jars", "--memory", "--only", "--packages", "--preload"})
"""Options of other programs that sentences name without their program; those of our pytest plugin begin with its name."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lines_of(page: Path) -> list[list[str]]:
    """The page's lines of shell as words, without comments; a line that goes on in the next one is one."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := words_of(line))]


def words_of(line: str) -> list[str]:
    """A line's words; what shows that it goes on (`<<`, `<(`) is somebody's own."""
    return shlex.split(line, comments=True)


def command_lines(page: Path, program: str) -> list[list[str]]:
    """The arguments of one program in the page's blocks of shell, settings before it left out, and in its sentences."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = lines_of(page)
    lines += [words_of(line) for line in re.findall(rf"`({program} [a-z][^`]*)`", prose)]
    found = []
    for line in lines:
        words = list(line)
        while words and ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        if words[:1] == [program]:
            found.append(list(takewhile(lambda word: word not in ENDS, words[1:])))
    return found


def settings_in(page: Path) -> dict[str, str]:
    """Settings that the page's lines of shell give: exported, or before a command."""
    words = [word for line in lines_of(page) for word in line if word.startswith("TXLAYER_")]
    return {name: value for name, is_set, value in (w.partition("=") for w in words) if is_set}


def unknown_in(words: list[str], root: Any) -> list[str]:
    """What of a command line there is not."""
    command = root
    rest = list(words)
    while rest and getattr(command, "commands", None) and not rest[0].startswith("-"):
        # `list|show|stats` on a page stands for each of them.
        names = rest.pop(0).rstrip(",").split("|")
        missing = [name for name in names if name not in command.commands]
        if missing:
            return missing
        command = command.commands[names[0]]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in rest if word.startswith("-") and word not in known]


def options_of(command: Any) -> set[str]:
    """All of a command, and of those below it."""
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return found.union(*(options_of(each) for each in getattr(command, "commands", {}).values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_of_a_page_exists(page: Path) -> None:
    root = typer.main.get_command(build_app())

    lines = command_lines(page, "txlayer")
    assert [] == [" ".join(words) for words in lines if unknown_in(words, root)]


@pytest.mark.spark
def test_every_command_line_for_spark_exists() -> None:
    from txlayer.cli.spark import app as spark_app

    root = typer.main.get_command(spark_app)
    lines = [words for page in PAGES for words in command_lines(page, "txlayer-spark")]

    assert len(lines) > 3
    assert [] == [" ".join(words) for words in lines if unknown_in(words, root)]


@pytest.mark.spark
def test_every_option_that_a_sentence_names_exists() -> None:
    from txlayer.cli.spark import app as spark_app

    spans = {
        name
        for page in PAGES
        for name in re.findall(r"`(--(?!txlayer-)[a-z-]+)[^`]*`", page.read_text(encoding="utf-8"))
    }

    known = options_of(typer.main.get_command(build_app())) | options_of(typer.main.get_command(spark_app))
    assert FOREIGN <= spans
    assert set() == spans - known - FOREIGN


def test_there_are_command_lines() -> None:
    found = [" ".join(line) for page in PAGES for line in command_lines(page, "txlayer")]

    assert len(found) > 100
    assert any(line.startswith("barrier purge") for line in found)  # a setting stands before it
    assert any(line.startswith("topics widen") for line in found)  # it stands inside a list


def test_what_is_not_there_is_seen() -> None:
    root = typer.main.get_command(build_app())

    assert ["settle"] == unknown_in(["tx", "settle"], root)
    assert ["--how"] == unknown_in(["tx", "list", "--how"], root)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_that_a_page_gives_is_known(page: Path) -> None:
    check_names(settings_in(page))


def test_every_target_program_and_extra_that_a_page_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    lines = [line for page in PAGES for line in lines_of(page)]
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

    made = {line[1] for line in lines if line[0] == "make" and len(line) > 1}
    made |= set(re.findall(r"`make ([a-z-]+)[^`]*`", text))
    programs = {word for line in lines for word in line if re.fullmatch(r"(bench|examples)/\S+\.py", word)}
    extras = {e for found in re.findall(r"txlayer\[([a-z,]+)\]", text) for e in found.split(",")}

    assert {"demo", "test", "images", "restarts"} <= made
    assert made <= targets
    assert "bench/throughput.py" in programs
    assert [] == [name for name in sorted(programs) if not (ROOT / name).is_file()]
    assert {"local", "sql", "metrics"} <= extras <= set(PROJECT["optional-dependencies"])
