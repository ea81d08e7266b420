"""`txlayer`: one group of commands per module, and the one border where errors become exit codes."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Annotated

import typer

from txlayer import __version__
from txlayer.adapters.telemetry import set_up_logging
from txlayer.cli.border import guard
from txlayer.cli.coordinator import LogFormat, LogLevel
from txlayer.config import check_names

LOG_FORMAT, LOG_LEVEL = "TXLAYER_LOG_FORMAT", "TXLAYER_LOG_LEVEL"

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
# (name, module): each module has a function of that name, which is the command.
SINGLE = (("doctor", "txlayer.cli.doctor"), ("verify", "txlayer.cli.verify"))


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
    app.callback()(_begin)
    for name, module in GROUPS:
        app.add_typer(import_module(module).app, name=name)
    for name, module in SINGLE:
        app.command(name)(getattr(import_module(module), name))
    return app


def _tell_version(is_asked: bool) -> None:  # noqa: FBT001 - typer calls it with its value alone
    if is_asked:
        typer.echo(f"txlayer {__version__}")
        raise typer.Exit


def _begin(
    *,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    version: Annotated[  # noqa: ARG001 - its callback answers and ends the process
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Say the version and end."
        ),
    ] = False,
) -> None:
    check_names(os.environ)
    # Commands that answer and end have little to log; who collects their lines says so, for all of them at once. Those that
    # run services, and their workers, look into the environment.
    if log_format:
        os.environ[LOG_FORMAT] = log_format
    if log_level:
        os.environ[LOG_LEVEL] = log_level
    log_format, log_level = os.environ.get(LOG_FORMAT), os.environ.get(LOG_LEVEL)
    if log_format or log_level:
        set_up_logging(log_format=log_format or "text", level=log_level or "WARNING")


def main() -> None:
    """Run the command of this process's arguments and end the process."""
    raise SystemExit(guard(build_app()))
