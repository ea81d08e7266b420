"""The barrier's table: one row per transaction id, never changed once it is written. Never: who writes it, and when."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Column, DateTime, MetaData, String, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from txlayer.core.ids import NONCE_LENGTH, TXN_ID_LENGTH_MAX
from txlayer.errors import UsageError

DEFAULT_NAME = "txlayer_barrier"

GROUP_LENGTH_MAX = 200
SOURCE_LENGTH_MAX = 16

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class DatabaseNow(FunctionElement[Any]):
    """The database's clock at this very statement."""

    type = DateTime(timezone=True)
    inherit_cache = True


@compiles(DatabaseNow)
def _now(_element: DatabaseNow, _compiler: Any, **_more: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(DatabaseNow, "postgresql")
def _now_of_postgresql(_element: DatabaseNow, _compiler: Any, **_more: Any) -> str:
    # There, CURRENT_TIMESTAMP is when the transaction began: a row would look older than it is.
    return "clock_timestamp()"


def barrier_table(
    name: str = DEFAULT_NAME, *, schema: str | None = None, metadata: MetaData | None = None
) -> Table:
    """The table, in `metadata` or in one of its own; a migration tool takes it from there.

    Raises:
        UsageError: `name` or `schema` is no plain name of a table.
    """
    check_names(name, schema)
    return Table(
        name,
        MetaData() if metadata is None else metadata,
        Column("txn_id", exact_text(TXN_ID_LENGTH_MAX), primary_key=True),
        Column("nonce", exact_text(NONCE_LENGTH), nullable=False),
        Column("producer_group", exact_text(GROUP_LENGTH_MAX), nullable=False),
        Column("resolution", exact_text(1), nullable=False),
        Column("source", exact_text(SOURCE_LENGTH_MAX), nullable=False),
        Column("created_at", instant(), nullable=False, server_default=DatabaseNow()),
        schema=schema,
        # Tables without transactions would keep the row of a local transaction that was rolled back.
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def check_names(*names: str | None) -> None:
    """Refuse what is no plain name of a table or schema.

    Raises:
        UsageError: one of them is none.
    """
    for given in names:
        if given is not None and _NAME.fullmatch(given) is None:
            raise UsageError(f"a table's name is 1 to 63 letters, digits or _, not {given[:80]!r}")


def exact_text(length: int) -> String:
    """ASCII text that differs from any other by every letter."""
    # MySQL compares text without regard to case unless told otherwise: two transactions would share one row.
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def instant() -> DateTime:
    """A moment, whatever time zone a session has."""
    # MySQL's DATETIME is what the clock on the wall shows in the time zone of the session that wrote it.
    return DateTime(timezone=True).with_variant(mysql.TIMESTAMP(), "mysql", "mariadb")
