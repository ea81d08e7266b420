"""`txlayer-spark`: one command per job."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.jars import CONNECTOR
from txlayer.adapters.kafka.local.runtime import prepare_connector
from txlayer.cli.exits import guard
from txlayer.cli.options import version_option
from txlayer.cli.output import FetchBar
from txlayer.cli.spark import jobs
from txlayer.config import check_names


def build_app() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        name="txlayer-spark",
        help="What the topics of a namespace contain, proved by Spark.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_begin)
    for command in (
        jobs.audit,
        jobs.bronze,
        jobs.compact,
        jobs.compare,
        jobs.ledger,
        jobs.report,
        jars,
        program,
    ):
        app.command(command.__name__)(command)
    return app


def jars() -> None:
    """Fetch Spark's Kafka connector once, and print where its jars are, for `spark-submit --jars`."""
    with closing(FetchBar(CONNECTOR)) as progress:
        runtime = prepare_connector(LocalConfig.from_environ(os.environ), progress=progress)
    typer.echo(",".join(str(jar) for jar in runtime.jars))


def program() -> None:
    """Print the path of this program for `spark-submit`: spark-submit --jars "$(txlayer-spark jars)" "$(txlayer-spark program)" audit …"""
    typer.echo(str(Path(__file__).with_name("__main__.py")))


def _begin(
    *,
    version: Annotated[bool, version_option("txlayer-spark")] = False,  # noqa: ARG001 - its callback answers and ends the process
) -> None:
    check_names(os.environ)


def main() -> None:
    """Run the command of this process's arguments and end the process."""
    raise SystemExit(guard(build_app()))
