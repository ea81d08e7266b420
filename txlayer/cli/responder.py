"""`txlayer responder run`: answer check-backs for a producer group, without a producer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from txlayer import __version__
from txlayer.cli.database import BARRIER_URL, opened_table
from txlayer.cli.options import Connection, command, declared, duration, from_file, option
from txlayer.cli.services import Observing, StartTimeout, StopSignal, load, observed
from txlayer.config import ResponderConfig
from txlayer.core.messages import check_group
from txlayer.errors import ConfigError
from txlayer.producer.responder import ObservedResponder
from txlayer.producer.standalone import run_responder

URL_OPTION = "--barrier-url"

app = typer.Typer(
    no_args_is_help=True,
    help="Answer check-backs for a producer group whose services are down, or run for moments only.",
)

Group = Annotated[str, declared("--group -g", "The producer group that it answers for.")]
Workers = Annotated[
    int | None,
    declared("--workers", "Calls of the handler at a time; default TXLAYER_CHECK_WORKERS, then 8.", min=1, max=1000),
]


@app.callback()
def _group() -> None:
    """Keeps `run` a command of its own."""


@command(app)
def run(  # every option is a parameter
    *,
    group: Group,
    handler: str | None = option(
        "--handler",
        "Called with a txlayer.CheckRequest; returns COMMIT, ROLLBACK or UNKNOWN. Found from here, as Python finds modules.",
        "MODULE:FUNCTION",
    ),
    on_parked: str | None = option(
        "--on-parked",
        "Called with a txlayer.ParkedTransaction when one stays without an answer; returns COMMIT, ROLLBACK or nothing.",
        "MODULE:FUNCTION",
    ),
    barrier_url: str | None = option(
        URL_OPTION,
        f"Instead of a handler: the database with the barrier's table, as SQLAlchemy writes it, without a password; "
        f"default {BARRIER_URL}, or the content of the file {BARRIER_URL}_FILE.",
        "DIALECT+DRIVER://…",
    ),
    barrier_table: str = option("--barrier-table", "The barrier table's name.", default="txlayer_barrier"),
    barrier_schema: str | None = option("--barrier-schema", "Its schema, if not the user's own."),
    workers: Workers = None,
    check_timeout: str | None = option(
        "--check-timeout", "How long a call may take; then the answer is UNKNOWN.", "10s"
    ),
    start_timeout: StartTimeout = None,
    connection: Connection,
    observing: Observing,
) -> None:
    """Answer until SIGTERM or Ctrl-C; then finish the answers in flight, and leave the group.

    Any number may run for one group, beside its services: each question goes to one of them.

    Exit codes: 0 stopped as asked, 2 usage or configuration, 3 no broker or no database, 4 its client failed, 5 not
    authorised, 70 broken invariant.
    """
    observing.set_up_logging()
    config = connection.config(
        ResponderConfig,
        check_workers=workers,
        check_timeout=duration("--check-timeout", check_timeout),
        start_timeout=duration("--start-timeout", start_timeout),
    )
    check_group(group)
    if handler is not None and barrier_url is not None:
        why = "a handler and a barrier: only one of them is asked"
        raise ConfigError(why, name=f"--handler, {URL_OPTION}", expected="one of them")
    hears = None if on_parked is None else load(on_parked, name="--on-parked", kind="function")
    asked = observing.tracer()
    stop = StopSignal()
    metrics = observing.metrics()
    figures = ObservedResponder(group=group, version=__version__)
    with _answering(handler, barrier_url, table=barrier_table, schema=barrier_schema) as answering:
        stop.install()
        with observed(metrics, lambda: figures):
            run_responder(
                config,
                group=group,
                should_stop=stop.is_set,
                on_parked=hears,
                tracing=asked,
                observed=figures,
                **answering,
            )


@contextmanager
def _answering(
    handler: str | None, barrier_url: str | None, *, table: str, schema: str | None
) -> Iterator[dict[str, Any]]:
    if handler is not None:
        yield {"check": load(handler, name="--handler", kind="function")}
        return
    if not barrier_url and not from_file(os.environ, BARRIER_URL):
        why, name = "neither a handler nor a barrier to ask", f"--handler, {URL_OPTION} or {BARRIER_URL}"
        raise ConfigError(why, name=name, expected="a handler, or the barrier's database")
    with opened_table("barrier", barrier_url, option=URL_OPTION, table=table, schema=schema) as barrier:
        barrier.check_table()
        yield {"barrier": barrier}
