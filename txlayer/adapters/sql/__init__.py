"""Barrier, inbox and fencing in a user's database, on SQLAlchemy; imported by name, because the extra `sql` brings what it needs."""

from __future__ import annotations

from txlayer.adapters.sql.aio import AsyncSqlBarrier
from txlayer.adapters.sql.barrier import SqlBarrier
from txlayer.adapters.sql.checks import Doubtful
from txlayer.adapters.sql.fence import execute_fenced, execute_fenced_async, not_fenced
from txlayer.adapters.sql.inbox import Inbox, message_key
from txlayer.adapters.sql.inbox_aio import AsyncInbox

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
