"""Commands of `txlayer` run inside the test's own process."""

from __future__ import annotations

import pytest
import typer

from txlayer.cli.border import guard


def run_command(
    app: typer.Typer, *arguments: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command, through the border where errors become exit codes."""
    try:
        code = guard(lambda: app(list(arguments)))
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err
