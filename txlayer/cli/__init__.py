"""The command line: parse, call, print, exit code; never a rule.

A wrong value is a ConfigError or UsageError, raised before anything is asked; every error ends at one border, `exits.guard`.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec

_EXTRA = ("typer", "rich")
_SPARK_EXTRA = (*_EXTRA, "pyspark", "matplotlib", "jinja2")


def run() -> None:
    """The entry point `txlayer`: ends the process with the exit code of the command."""
    _open_closed_streams()
    _need(_EXTRA, 'txlayer needs its command line: pip install "txlayer[cli]"')
    _start("txlayer.cli.main")


def run_spark() -> None:
    """The entry point `txlayer-spark`: the same for the jobs on Spark."""
    _open_closed_streams()
    _need(_SPARK_EXTRA, 'txlayer-spark needs Spark: pip install "txlayer[spark]"')
    _start("txlayer.cli.spark")


def _open_closed_streams() -> None:
    """Let a stream that the caller has closed (`2>&-`) lead nowhere: Python has none then, and its number would go to the next file or socket."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _start(module: str) -> None:
    try:
        import_module(module).main()
    except KeyboardInterrupt:  # while modules are loaded; `exits.guard` hears of it later
        raise SystemExit(130) from None


def _need(modules: tuple[str, ...], sentence: str) -> None:
    if any(find_spec(name) is None for name in modules):
        sys.stderr.write(f"{sentence}\n")
        raise SystemExit(2)
