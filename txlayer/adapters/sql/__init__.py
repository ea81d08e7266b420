"""The barrier in a user's database, on SQLAlchemy; imported by name, because the extra `sql` brings what it needs."""

from __future__ import annotations

from txlayer.adapters.sql.aio import AsyncSqlBarrier
from txlayer.adapters.sql.barrier import SqlBarrier
from txlayer.adapters.sql.checks import Doubtful

__all__ = ["AsyncSqlBarrier", "Doubtful", "SqlBarrier"]
