"""Delete old rows in bounded pages, and keep those that a check may still need."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, DateTime, Engine, Table, delete, func, select

from txlayer.adapters.sql.joined import OWN_WORK
from txlayer.adapters.sql.tables import LocatedTable
from txlayer.config import CoordinatorConfig
from txlayer.errors import UsageError

TRANSACTION_AGE_MAX = CoordinatorConfig().transaction_age_max
"""Counted from the end of the immunity; older transactions are not checked."""

AGE_MARGIN = timedelta(days=1)
"""Margin for differing clocks, and for the time between the half messages and the row."""

PAGE_COUNT_MAX = 5_000
"""Rows that one transaction of a purge reads; the maximum that it deletes."""


class Purged(NamedTuple):
    """What a purge deleted, or would delete."""

    row_count: int
    """Rows that it read."""
    purged_count: int


class Purge:
    """Deletes rows by age along the primary key, so that no further index slows down every insert."""

    def __init__(self, engine: Engine, located: LocatedTable, *, age_min: timedelta) -> None:
        self._engine = engine
        self._located = located
        self._age_min = age_min

    def run(self, older_than: timedelta, *, is_dry_run: bool, is_younger_allowed: bool) -> Purged:
        """As `SqlBarrier.purge`."""
        if older_than < self._age_min and not is_younger_allowed:
            raise UsageError(
                f"rows younger than {self._age_min / timedelta(days=1):g} days may still be needed by a check: without "
                "its row a committed transaction would be rolled back. None was deleted"
            )
        table, options = self._located.find()
        return delete_old(
            self._engine.execution_options(**options, **OWN_WORK),
            table,
            key=table.c.txn_id,
            made_at=table.c.created_at,
            older_than=older_than,
            is_dry_run=is_dry_run,
        )


def delete_old(  # one loop: read a page, delete it, count it
    engine: Engine,
    table: Table,
    *,
    key: Column[Any],
    made_at: Column[Any],
    older_than: timedelta,
    is_dry_run: bool,
    where: Sequence[ColumnElement[bool]] = (),
) -> Purged:
    """Delete rows by the database's clock, page by page along `key`, which is unique among the rows of `where`.

    Raises:
        UsageError: `older_than` is not a valid age. No row was deleted.
        SQLAlchemyError: the database refused; rows deleted before stay deleted.
    """
    if older_than <= timedelta(0):
        raise UsageError("an age is more than 0. None was deleted")
    bound: datetime | None = None
    row_count = purged_count = 0
    last_key = ""
    while True:
        with engine.begin() as connection:
            if bound is None:
                now = connection.execute(select(func.current_timestamp(type_=DateTime(timezone=True)))).scalar_one()
                bound = now - older_than
            page = connection.execute(
                select(key, made_at < bound).where(key > last_key, *where).order_by(key).limit(PAGE_COUNT_MAX)
            ).all()
            if not page:
                return Purged(row_count, purged_count)
            old = [found for found, is_old in page if is_old]
            if old and not is_dry_run:
                connection.execute(delete(table).where(key.between(old[0], old[-1]), made_at < bound, *where))
        row_count += len(page)
        purged_count += len(old)
        last_key = page[-1][0]
