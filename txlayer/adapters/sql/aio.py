"""Barrier, inbox and fencing for asyncio."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.sql.dml import Delete, Update
from sqlalchemy.util import greenlet_spawn

from txlayer.adapters.sql.barrier import LOCK_WAIT, TRANSACTION_AGE_MAX, SqlBarrier
from txlayer.adapters.sql.inbox import INBOX_NAME, Fence, Inbox, MessageKey, execute_fenced, message_key
from txlayer.adapters.sql.joined import JoinedTransaction
from txlayer.adapters.sql.tables import DEFAULT_NAME, OwnTable
from txlayer.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The same method of the plain object, awaited: it runs in a greenlet that awaits where the driver would block."""

    @wraps(method)
    async def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        result: T = await greenlet_spawn(partial(getattr(self._plain, method.__name__), *arguments, **named))
        return result

    return call


class AsyncOwnTable:
    """An `OwnTable`, awaited."""

    _plain: OwnTable

    @property
    def table(self) -> Table:
        """The table, for migrations and for a session's `binds`."""
        return self._plain.table

    create_table = _awaited(OwnTable.create_table)


class AsyncSqlBarrier(AsyncOwnTable):
    """`SqlBarrier` over an `AsyncEngine`: the same methods, awaited; no call blocks the loop.

    Args and Raises: those of `SqlBarrier`.
    """

    is_async = True
    _plain: SqlBarrier

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        table: str = DEFAULT_NAME,
        schema: str | None = None,
        lock_wait: timedelta = LOCK_WAIT,
        transaction_age_max: timedelta = TRANSACTION_AGE_MAX,
    ) -> None:
        if not isinstance(engine, AsyncEngine):
            raise UsageError(
                f"this barrier needs an AsyncEngine, not {type(engine).__name__} (SqlBarrier takes an Engine)"
            )
        self._plain = SqlBarrier(
            engine.sync_engine, table=table, schema=schema, lock_wait=lock_wait, transaction_age_max=transaction_age_max
        )

    check_table = _awaited(SqlBarrier.check_table)
    purge = _awaited(SqlBarrier.purge)
    resolve = _awaited(SqlBarrier.resolve)
    resolve_many = _awaited(SqlBarrier.resolve_many)
    read = _awaited(SqlBarrier.read)

    def belongs_here(self, owner: object) -> None:
        """As in `Barrier`."""
        self._plain.belongs_here(owner)

    def expect_join(self, owner: object, joined: JoinedTransaction | None = None) -> None:
        """As in `Barrier`."""
        self._plain.expect_join(owner, joined)

    def forget_join(self, owner: object) -> None:
        """As in `Barrier`."""
        self._plain.forget_join(owner)

    async def check_session(self, session: Any) -> None:
        """As in `Barrier`."""
        await greenlet_spawn(self._plain.check_session, plain_of(session))

    async def write(self, session: Any, *, txn_id: str, nonce: str, group: str) -> JoinedTransaction:
        """As in `Barrier`."""
        return await greenlet_spawn(self._plain.write, plain_of(session), txn_id=txn_id, nonce=nonce, group=group)


def plain_of(session: Any) -> Any:
    """The plain session or connection of an asynchronous one; UsageError: the argument is neither."""
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        return session.sync_session
    if isinstance(session, AsyncConnection):
        return session.sync_connection
    raise UsageError(
        f"an AsyncSession or AsyncConnection is due here, not {type(session).__name__}; the plain ones go with the plain class"
    )


class AsyncInbox(AsyncOwnTable):
    """`Inbox` over an `AsyncEngine`: the same methods, awaited; no call blocks the loop.

    Args and Raises: those of `Inbox`.
    """

    is_async = True
    _plain: Inbox

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        group: str,
        table: str = INBOX_NAME,
        schema: str | None = None,
        key: MessageKey = message_key,
    ) -> None:
        if not isinstance(engine, AsyncEngine):
            raise UsageError(f"this inbox needs an AsyncEngine, not {type(engine).__name__} (Inbox takes an Engine)")
        self._plain = Inbox(engine.sync_engine, group=group, table=table, schema=schema, key=key)

    @asynccontextmanager
    async def once(self, session: Any, message: Any) -> AsyncIterator[bool]:
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

    purge = _awaited(Inbox.purge)


async def execute_fenced_async(session: Any, statement: Update | Delete, *, fence: Fence, token: int | None) -> int:
    """`execute_fenced` for an AsyncSession or AsyncConnection."""
    return await greenlet_spawn(execute_fenced, plain_of(session), statement, fence=fence, token=token)
