"""`txlayer`: one group of commands per module, and the one border where errors become exit codes."""

import os
import sys
from collections.abc import Collection, Sequence
from pkgutil import resolve_name
from typing import Annotated

import typer

from txlayer.adapters.telemetry import set_up_logging
from txlayer.cli.exits import ending_at_signals, guard
from txlayer.cli.options import version_option
from txlayer.cli.services import LOG_FORMAT, LOG_LEVEL, LogFormat, LogLevel, log_as_environment_says
from txlayer.config import check_names

GROUPS = {
    "broker": "txlayer.cli.broker:app",
    "topics": "txlayer.cli.topics:app",
    "coordinator": "txlayer.cli.coordinator:app",
    "responder": "txlayer.cli.responder:app",
    "tx": "txlayer.cli.tx:app",
    "barrier": "txlayer.cli.database:barrier_app",
    "inbox": "txlayer.cli.database:inbox_app",
    "locks": "txlayer.cli.locks:app",
    "consumer": "txlayer.cli.consumer:app",
    "dlq": "txlayer.cli.dlq:app",
    "console": "txlayer.cli.console:app",
}
"""Where the commands of a group are: a `typer.Typer` of a module."""
SINGLE = {"doctor": "txlayer.cli.health:doctor", "verify": "txlayer.cli.verify:verify", "top": "txlayer.cli.health:top"}
"""Commands without a group: a function of a module."""


def build_app(names: Collection[str] = (*GROUPS, *SINGLE)) -> typer.Typer:
    """All commands, or those of these names; only their modules are imported."""
    app = typer.Typer(
        name="txlayer",
        help="Transactional messages for Apache Kafka.",
        no_args_is_help=True,
        # A traceback is for programmers; users get the one line of the border.
        pretty_exceptions_enable=False,
    )
    # Before every command, also those that take no role's settings.
    app.callback()(_begin)
    for name, reference in GROUPS.items():
        if name in names:
            app.add_typer(resolve_name(reference), name=name)
    for name, reference in SINGLE.items():
        if name in names:
            app.command(name)(resolve_name(reference))
    return app


def needed(arguments: Sequence[str]) -> Collection[str]:
    """The names of commands that a command line may mean: those in it, and all where it has none."""
    names = (*GROUPS, *SINGLE)
    found = [name for name in names if name in arguments]
    return found or (() if "--version" in arguments else names)


def _begin(
    *,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    version: Annotated[bool, version_option("txlayer")] = False,  # noqa: ARG001 - its callback answers and ends the process
) -> None:
    check_names(os.environ)
    # Those that run services, and their workers, look into the environment, too.
    if log_format:
        os.environ[LOG_FORMAT] = log_format
    if log_level:
        os.environ[LOG_LEVEL] = log_level
    log_as_environment_says()


def main() -> None:
    set_up_logging(log_format="text", level="WARNING")  # else Python prints the name of an event without its fields
    with ending_at_signals():
        raise SystemExit(guard(build_app(needed(sys.argv[1:]))))
