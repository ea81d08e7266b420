"""`txlayer inbox create|purge`: the inbox's table in a user's database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from txlayer.cli.database import DryRun, Schema, TableName, database_url, needing_sql, show_purged
from txlayer.cli.options import Json
from txlayer.config import parse_duration

if TYPE_CHECKING:
    from txlayer.adapters.sql.inbox import Inbox

app = typer.Typer(
    no_args_is_help=True,
    help="The inbox's table in your database: create it, and delete rows of messages that cannot come again.",
)

_URL = "TXLAYER_INBOX_URL"

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
def create(*, url: Url = None, table: TableName = "txlayer_inbox", schema: Schema = None) -> None:
    """Create the table unless it is there."""
    with opened(url, table=table, schema=schema) as inbox:
        inbox.create_table()
    Console().print(f"{table} is there")


@app.command()
def purge(
    *,
    group: Annotated[str, typer.Option("--group", help="The consumer group whose rows these are.")],
    url: Url = None,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help="By the database's clock; longer than the topics, and dead letters (30d), keep records.",
        ),
    ] = "60d",
    table: TableName = "txlayer_inbox",
    schema: Schema = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete rows of messages that cannot come again, a few thousand per database transaction."""
    age = parse_duration("--older-than", older_than)
    with opened(url, group=group, table=table, schema=schema) as inbox:
        done = inbox.purge(age, is_dry_run=dry_run)
    show_purged(done, is_dry_run=dry_run, as_json=as_json)


def opened(url: str | None, *, group: str = "any", **given: Any) -> AbstractContextManager[Inbox]:
    """An inbox in the database at `url`, closed at the end of the block, whose errors are ours and name no address.

    Raises:
        ConfigError: no database is named, its address cannot be used, or the extra `sql` is not installed.
    """
    found = database_url(url, name=_URL)
    with needing_sql("the inbox"):
        from txlayer.adapters.sql.opening import opened_inbox
    return opened_inbox(found, group=group, **given)
