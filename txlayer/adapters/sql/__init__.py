"""Barrier, inbox and fencing in the user's database, on SQLAlchemy. Import the submodules by name; they need the extra `sql`."""

from txlayer.adapters.sql.aio import AsyncInbox, AsyncSqlBarrier, execute_fenced_async
from txlayer.adapters.sql.barrier import Doubtful, SqlBarrier
from txlayer.adapters.sql.inbox import Inbox, execute_fenced, message_key, not_fenced

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
