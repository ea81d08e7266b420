"""Barrier, inbox and fencing in the user's database, on SQLAlchemy. Import the submodules by name; they need the extra `sql`."""

from __future__ import annotations

from txlayer.adapters.sql.aio import AsyncInbox, AsyncSqlBarrier
from txlayer.adapters.sql.barrier import Doubtful, SqlBarrier
from txlayer.adapters.sql.fence import execute_fenced, execute_fenced_async, not_fenced
from txlayer.adapters.sql.inbox import Inbox, message_key

__all__ = [
    "AsyncInbox",
    "AsyncSqlBarrier",
    "Doubtful",
    "Inbox",
    "SqlBarrier",
    "execute_fenced",
    "execute_fenced_async",
    "message_key",
    "not_fenced",
]
