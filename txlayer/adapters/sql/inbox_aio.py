"""`AsyncInbox`: the same inbox, awaited. Never: a rule that `inbox.py` lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from txlayer.adapters.sql.aio import plain_of
from txlayer.adapters.sql.inbox import (
    DEFAULT_NAME,
    Inbox,
    InboxMessage,
    MessageKey,
    message_key,
)
from txlayer.adapters.sql.purge import Purged
from txlayer.errors import UsageError


class AsyncInbox:
    """`Inbox` over an `AsyncEngine`: the same words, awaited; nothing here blocks the loop.

    Args and Raises: those of `Inbox`.
    """

    is_async = True

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        group: str,
        table: str = DEFAULT_NAME,
        schema: str | None = None,
        key: MessageKey = message_key,
    ) -> None:
        if not isinstance(engine, AsyncEngine):
            raise UsageError(
                f"this inbox needs an AsyncEngine, not {type(engine).__name__} (Inbox takes an Engine)"
            )
        self._plain = Inbox(engine.sync_engine, group=group, table=table, schema=schema, key=key)

    @property
    def table(self) -> Table:
        """The table, for migrations and for a session's `binds`."""
        return self._plain.table

    async def create_table(self) -> None:
        """As `Inbox.create_table`."""
        await greenlet_spawn(self._plain.create_table)

    @asynccontextmanager
    async def once(self, session: Any, message: InboxMessage) -> AsyncIterator[bool]:
        """As `Inbox.once`, with `async with`."""
        seen = await greenlet_spawn(self._plain.see, plain_of(session), message)
        try:
            yield seen is not None
        except BaseException:
            if seen is not None:
                await greenlet_spawn(self._plain.forget, seen)
            raise
        if seen is not None:
            await greenlet_spawn(self._plain.leave, seen)

    async def purge(self, older_than: timedelta, *, is_dry_run: bool = False) -> Purged:
        """As `Inbox.purge`."""
        return await greenlet_spawn(self._plain.purge, older_than, is_dry_run=is_dry_run)
