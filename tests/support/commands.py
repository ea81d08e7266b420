"""Commands of `txlayer` run inside the test's own process."""

import os
import pty
import subprocess
import sys

import pytest
import typer

from txlayer.cli.exits import guard
from txlayer.cli.main import build_app, needed


def run_command(app: typer.Typer, *arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command, through the border where errors become exit codes."""
    try:
        code = guard(lambda: app(list(arguments)))
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def run_txlayer(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """As `run_command`, of `txlayer`, which builds the commands alone that a command line may mean."""
    return run_command(build_app(needed(arguments)), *arguments, capsys=capsys)


def run_at_terminal(*words: str, answer: str, within: float = 60) -> tuple[int, str]:
    """(exit code, what a person at a terminal saw) of a `txlayer` command whose question was answered."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "txlayer", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "240"},
    ) as process:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        seen = _everything(ours)
        os.close(ours)
        return process.wait(within), seen


def _everything(terminal: int) -> str:
    seen = b""
    while True:
        try:
            read = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            read = b""
        if not read:
            return seen.decode(errors="replace")
        seen += read
