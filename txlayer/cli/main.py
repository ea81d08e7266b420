"""`txlayer`: one group of commands per module, and the one border where errors become exit codes."""

from __future__ import annotations

import os
from importlib import import_module

import typer

from txlayer.cli.border import guard
from txlayer.config import check_names

# (name, module): each module has an `app`, a `typer.Typer` with a line of help.
GROUPS = (
    ("broker", "txlayer.cli.broker"),
    ("topics", "txlayer.cli.topics"),
    ("coordinator", "txlayer.cli.coordinator"),
    ("responder", "txlayer.cli.responder"),
    ("tx", "txlayer.cli.tx"),
    ("barrier", "txlayer.cli.barrier"),
    ("inbox", "txlayer.cli.inbox"),
    ("locks", "txlayer.cli.locks"),
    ("consumer", "txlayer.cli.consumer"),
    ("dlq", "txlayer.cli.dlq"),
)


def build_app() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        name="txlayer",
        help="Transactional messages for Apache Kafka.",
        no_args_is_help=True,
        # A traceback is for programmers; users get the one line of the border.
        pretty_exceptions_enable=False,
    )
    # Before every command, also those that take no role's settings.
    app.callback()(_check_environment)
    for name, module in GROUPS:
        app.add_typer(import_module(module).app, name=name)
    return app


def _check_environment() -> None:
    check_names(os.environ)


def main() -> None:
    """Run the command of this process's arguments and end the process."""
    raise SystemExit(guard(build_app()))
