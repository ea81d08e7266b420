"""Fencing tokens in the user's own tables: who holds an older lease changes nothing any more.

A table that handlers change has a column for the token, `BIGINT NOT NULL DEFAULT 0`; null counts as 0. Tokens of one queue
only grow, so a row keeps the highest that changed it, and the update of a stale holder finds no row. Rows that several
queues change need a column for each: tokens of different queues have nothing to do with each other.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.dml import Delete, Update
from sqlalchemy.util import greenlet_spawn

from txlayer.adapters.sql.aio import plain_of
from txlayer.errors import LeaseLostError, UsageError

Fence = ColumnElement[Any] | InstrumentedAttribute[Any]
"""The column: of a Table or of a mapped class."""


def not_fenced(fence: Fence, token: int) -> ColumnElement[bool]:
    """The condition under which a holder with this token may change a row: for statements of one's own."""
    return or_(fence <= token, fence.is_(None))


def execute_fenced(
    session: Any, statement: Update | Delete, *, fence: Fence, token: int | None
) -> int:
    """Run an update (or delete) under a fencing token; the number of rows that it changed.

    An update writes the token into the rows that it changes. All rows of its `where` or none: a row that a newer holder
    changed stops all of it.

    Args:
        session: a Session or a Connection, in the local transaction.
        statement: with its `where`, which must not hold the fence.
        fence: the column of the statement's own table.
        token: `context.token`.

    Raises:
        LeaseLostError: a row has a newer token. Roll back and stop: another process has the queue.
        UsageError: there is no token (a consumer without order has none). Nothing was executed.
    """
    if token is None:
        raise UsageError("there is no fencing token: only ordered consumers hold leases")
    fenced = statement.where(not_fenced(fence, token))
    if isinstance(fenced, Update):
        fenced = fenced.values({fence: token})
    changed_count: int = session.execute(fenced).rowcount
    where = statement.whereclause
    conditions = [] if where is None else [where]
    # After the change, which waits for a newer holder's open transaction; and by a locking read, which sees what was
    # committed last at every isolation level.
    newest = session.execute(
        select(fence).where(*conditions, fence > token).order_by(fence.desc()).limit(1).with_for_update()
    ).scalar()  # fmt: skip
    if newest is not None:
        raise LeaseLostError(
            "a newer holder of the queue has changed this row", token=token, current_token=newest
        )
    return changed_count


async def execute_fenced_async(
    session: Any, statement: Update | Delete, *, fence: Fence, token: int | None
) -> int:
    """`execute_fenced` for an AsyncSession or AsyncConnection."""
    return await greenlet_spawn(
        execute_fenced, plain_of(session), statement, fence=fence, token=token
    )
