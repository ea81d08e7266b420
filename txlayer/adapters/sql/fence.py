"""Fencing tokens in the user's own tables: the holder of an older lease can no longer change a row.

A table that handlers change has a column for the token, `BIGINT NOT NULL DEFAULT 0`; null counts as 0. Tokens of one
queue only increase. A row keeps the highest token that changed it, so the update of a stale holder matches no row. Rows
that several queues change need one column per queue: tokens of different queues cannot be compared.
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
"""The token column, of a Table or of a mapped class."""


def not_fenced(fence: Fence, token: int) -> ColumnElement[bool]:
    """The condition under which a holder with this token may change a row; for your own statements."""
    return or_(fence <= token, fence.is_(None))


def execute_fenced(session: Any, statement: Update | Delete, *, fence: Fence, token: int | None) -> int:
    """Run an update or delete under a fencing token; returns the number of changed rows.

    An update writes the token into the changed rows. It changes all rows of its `where` or none: one row with a newer
    token stops the whole statement.

    Args:
        session: a Session or a Connection, in the local transaction.
        statement: an update or delete with its `where`, without the fence.
        fence: the token column of the statement's table.
        token: `context.token`.

    Raises:
        LeaseLostError: a row has a newer token. Roll back and stop: another process has the queue.
        UsageError: the token is None (as in a consumer without order). Nothing was executed.
    """
    if token is None:
        raise UsageError("there is no fencing token: only ordered consumers hold leases")
    fenced = statement.where(not_fenced(fence, token))
    if isinstance(fenced, Update):
        fenced = fenced.values({fence: token})
    changed_count: int = session.execute(fenced).rowcount
    where = statement.whereclause
    conditions = [] if where is None else [where]
    # After the change, which waits for a newer holder's open transaction, and with a locking read, which sees the
    # last commit at every isolation level.
    newest = session.execute(
        select(fence).where(*conditions, fence > token).order_by(fence.desc()).limit(1).with_for_update()
    ).scalar()
    if newest is not None:
        raise LeaseLostError("a newer holder of the queue has changed this row", token=token, current_token=newest)
    return changed_count


async def execute_fenced_async(session: Any, statement: Update | Delete, *, fence: Fence, token: int | None) -> int:
    """`execute_fenced` for an AsyncSession or AsyncConnection."""
    return await greenlet_spawn(execute_fenced, plain_of(session), statement, fence=fence, token=token)
