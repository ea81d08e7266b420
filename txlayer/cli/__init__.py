"""The command line: parse, call, print, exit code; never a rule."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_EXTRA = ("typer", "rich")


def run() -> None:
    """The entry point `txlayer`: ends the process with the exit code of the command."""
    if any(find_spec(name) is None for name in _EXTRA):
        sys.stderr.write('txlayer needs its command line: pip install "txlayer[cli]"\n')
        raise SystemExit(2)
    from txlayer.cli.main import main

    main()
