"""`txlayer barrier create|purge`: the barrier's table in a user's database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from txlayer.cli.database import DryRun, Schema, TableName, database_url, needing_sql, show_purged
from txlayer.cli.options import Json
from txlayer.config import parse_duration

if TYPE_CHECKING:
    from txlayer.adapters.sql.barrier import SqlBarrier

app = typer.Typer(
    no_args_is_help=True,
    help="The barrier's table in your database: create it, and delete rows that no check can need any more.",
)

_URL = "TXLAYER_BARRIER_URL"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="DIALECT+DRIVER://…",
        help=f"The database, as SQLAlchemy writes it, without a password; default {_URL}, or the content of the file {_URL}_FILE.",
        show_default=False,
    ),
]


@app.command()
def create(*, url: Url = None, table: TableName = "txlayer_barrier", schema: Schema = None) -> None:
    """Create the table unless it is there."""
    with opened(url, table=table, schema=schema) as barrier:
        barrier.create_table()
    Console().print(f"{table} is there")


@app.command()
def purge(
    *,
    url: Url = None,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="By the database's clock; at least the longest immunity (7d), transaction_age_max and 1d together.",
        ),
    ] = "14d",
    table: TableName = "txlayer_barrier",
    schema: Schema = None,
    transaction_age_max: Annotated[
        str,
        typer.Option(
            "--transaction-age-max", metavar="AGE", help="The coordinators' setting of this name."
        ),
    ] = "72h",
    allow_younger: Annotated[
        bool,
        typer.Option(
            "--allow-younger",
            help="Also delete rows that a check may still need: it would roll back what is committed.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete rows that no check can need any more, a few thousand per database transaction."""
    age = parse_duration("--older-than", older_than)
    age_max = parse_duration("--transaction-age-max", transaction_age_max)
    with opened(url, table=table, schema=schema, transaction_age_max=age_max) as barrier:
        done = barrier.purge(age, is_dry_run=dry_run, is_younger_allowed=allow_younger)
    show_purged(done, is_dry_run=dry_run, as_json=as_json)


def opened(
    url: str | None, *, option: str = "--url", **given: Any
) -> AbstractContextManager[SqlBarrier]:
    """A barrier in the database at `url`, closed at the end of the block, whose errors are ours and name no address.

    Raises:
        ConfigError: no database is named, its address cannot be used, or the extra `sql` is not installed.
    """
    found = database_url(url, name=_URL, option=option)
    with needing_sql("the barrier"):
        from txlayer.adapters.sql.opening import opened_barrier
    return opened_barrier(found, **given)
