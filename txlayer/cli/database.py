"""What the commands for a table in a user's database share: which database, and what a purge did."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from txlayer.cli.secrets import from_file, refuse_password
from txlayer.errors import ConfigError

if TYPE_CHECKING:
    from txlayer.adapters.sql.purge import Purged

TableName = Annotated[str, typer.Option("--table", help="The table's name.")]
Schema = Annotated[
    str | None,
    typer.Option("--schema", help="Its schema, if not the user's own.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count, and delete nothing.")]


def database_url(url: str | None, *, name: str, option: str = "--url") -> str:
    """The URL given with `option`, else what the environment says under `name` or in the file `name`_FILE.

    Raises:
        ConfigError: none of them names a database, or the command line holds a password.
    """
    if url:
        refuse_password(url, option=option, name=name)
        return url
    found = from_file(os.environ, name)
    if not found:
        raise ConfigError(
            "no database named",
            name=f"{option}, {name} or {name}_FILE",
            expected="a database's address",
        )
    return found


@contextmanager
def needing_sql(who: str) -> Iterator[None]:
    """A block that imports what only the extra `sql` brings.

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "sqlalchemy":
            raise
        raise ConfigError(
            f'{who} needs its extra: pip install "txlayer[sql]"', name="extra", expected="sql"
        ) from exc


def show_purged(done: Purged, *, is_dry_run: bool, as_json: bool) -> None:
    """Print how many rows there were, and how many went or would go."""
    if as_json:
        typer.echo(json.dumps({**done._asdict(), "is_dry_run": is_dry_run}))
        return
    word = "would be purged" if is_dry_run else "purged"
    Console().print(f"{done.purged_count:,} of {done.row_count:,} rows {word}")
