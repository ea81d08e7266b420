"""`txlayer barrier|inbox create|purge`: the barrier's and the inbox's table in a user's database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlayer.cli import output
from txlayer.cli.options import AsJson, command, declared, from_file, option, refuse_password
from txlayer.config import parse_duration
from txlayer.errors import ConfigError

if TYPE_CHECKING:
    from txlayer.adapters.sql.tables import Purged

barrier_app = typer.Typer(
    no_args_is_help=True,
    help="The barrier's table in your database: create it, and delete rows that no check can need any more.",
)
inbox_app = typer.Typer(
    no_args_is_help=True,
    help="The inbox's table in your database: create it, and delete rows of messages that cannot come again.",
)

BARRIER_URL = "TXLAYER_BARRIER_URL"
URLS = {"barrier": BARRIER_URL, "inbox": "TXLAYER_INBOX_URL"}

TableName = Annotated[str, declared("--table", "The table's name.")]
Schema = Annotated[str | None, declared("--schema", "Its schema, if not the user's own.")]
Count = Annotated[bool, declared("--dry-run", "Count, and delete nothing.")]


def _url(what: str) -> Any:
    name = URLS[what]
    text = f"The database, as SQLAlchemy writes it, without a password; default {name}, or the content of the file {name}_FILE."
    return option("--url", text, "DIALECT+DRIVER://…")


def _add_create(app: typer.Typer, what: str, **more: Any) -> None:
    @command(app, "create")
    def create(*, url: str | None = _url(what), table: TableName = f"txlayer_{what}", schema: Schema = None) -> None:
        """Create the table unless it is there."""
        with opened_table(what, url, table=table, schema=schema, **more) as own:
            own.create_table()
            typer.echo(f"{own.table.name} is there")


_add_create(barrier_app, "barrier")
_add_create(inbox_app, "inbox", group="any")


@command(barrier_app, "purge")
def purge_barrier(
    *,
    url: str | None = _url("barrier"),
    older_than: str = option(
        "--older-than",
        "By the database's clock; at least the longest immunity (7d), transaction_age_max and 1d together.",
        "AGE",
        default="14d",
    ),
    table: TableName = "txlayer_barrier",
    schema: Schema = None,
    transaction_age_max: str = option(
        "--transaction-age-max", "The coordinators' setting of this name.", "AGE", default="72h"
    ),
    dry_run: Count = False,
    as_json: AsJson = False,
) -> None:
    """Delete rows that no check can need any more, a few thousand per database transaction."""
    age = parse_duration("--older-than", older_than)
    age_max = parse_duration("--transaction-age-max", transaction_age_max)
    with opened_table("barrier", url, table=table, schema=schema, transaction_age_max=age_max) as barrier:
        done = barrier.purge(age, is_dry_run=dry_run)
    _show_purged(done, is_dry_run=dry_run, as_json=as_json)


@command(inbox_app, "purge")
def purge_inbox(
    *,
    group: Annotated[str, declared("--group", "The consumer group whose rows these are.")],
    url: str | None = _url("inbox"),
    older_than: str = option(
        "--older-than",
        "By the database's clock; longer than the topics, and dead letters (30d), keep records.",
        "AGE",
        default="60d",
    ),
    table: TableName = "txlayer_inbox",
    schema: Schema = None,
    dry_run: Count = False,
    as_json: AsJson = False,
) -> None:
    """Delete rows of messages that cannot come again, a few thousand per database transaction."""
    age = parse_duration("--older-than", older_than)
    with opened_table("inbox", url, group=group, table=table, schema=schema) as inbox:
        done = inbox.purge(age, is_dry_run=dry_run)
    _show_purged(done, is_dry_run=dry_run, as_json=as_json)


@contextmanager
def opened_table(what: str, url: str | None, *, option: str = "--url", **given: Any) -> Iterator[Any]:
    """The barrier or the inbox in the database at `url`, closed at the end of the block, whose errors are ours and name no address."""
    url = database_url(url, name=URLS[what], option=option)
    try:
        from txlayer.adapters.sql.barrier import SqlBarrier
        from txlayer.adapters.sql.inbox import Inbox
        from txlayer.adapters.sql.tables import opened_engine
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "sqlalchemy":
            raise
        why = f'the {what} needs its extra: pip install "txlayer[sql]"'
        raise ConfigError(why, name="extra", expected="sql") from exc
    made: Any = {"barrier": SqlBarrier, "inbox": Inbox}[what]
    with opened_engine(url, create_command=f"txlayer {what} create") as engine:
        yield made(engine, **given)


def database_url(url: str | None, *, name: str, option: str = "--url") -> str:
    """The URL given with `option`, else what the environment says under `name` or in the file `name`_FILE."""
    if url:
        refuse_password(url, option=option, name=name)
        return url
    found = from_file(os.environ, name)
    if not found:
        raise ConfigError("no database named", name=f"{option}, {name} or {name}_FILE", expected="a database's address")
    return found


def _show_purged(done: Purged, *, is_dry_run: bool, as_json: bool) -> None:
    said = f"{done.purged_count:,} of {done.row_count:,} rows {'would be purged' if is_dry_run else 'purged'}"
    output.show({**done._asdict(), "is_dry_run": is_dry_run}, lambda _: said, as_json=as_json)
