"""What a handler writes in the user's own database at most once: a row per message, and changes under a fencing token.

A table that handlers change has a column for the token, `BIGINT NOT NULL DEFAULT 0`; null counts as 0. Tokens of one
queue only increase. A row keeps the highest token that changed it, so the update of a stale holder matches no row. Rows
that several queues change need one column per queue: tokens of different queues cannot be compared.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    NestedTransaction,
    Table,
    delete,
    or_,
    select,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.dml import Delete, Update

from txlayer.adapters.ports import LocalState
from txlayer.adapters.sql import tables
from txlayer.adapters.sql.joined import OWN_WORK, JoinedTransaction, Watch
from txlayer.core.codec import ID_HEADER, origin_of
from txlayer.core.dead_letters import DLQ_HEADER
from txlayer.core.messages import Headers, check_group
from txlayer.errors import LeaseLostError, RollbackRequiredError, UsageError

INBOX_NAME = "txlayer_inbox"

KEY_LENGTH_MAX = 200
"""Characters of a key in the table. Keys that are longer, not printable ASCII, or end with a blank are hashed."""

ROW = "the inbox's row"


class InboxMessage(Protocol):
    """The fields of a message that an inbox reads; a handler's message has them."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def headers(self) -> Headers: ...


MessageKey = Callable[[Any], str]  # maps a message to its key; two messages with equal keys are the same one


def message_key(message: InboxMessage) -> str:
    """`txn:ID/BORN/INDEX` for a message that txlayer forwarded, else, and for a dead letter, `at:TOPIC/PARTITION/OFFSET`.

    BORN is the time of `prepare` in milliseconds. If an id was prepared and committed twice, that makes two transactions.
    In replays, on mirrors and after a restored backup, the same message has the same BORN.
    """
    headers = dict(message.headers)
    # Several groups may give one message up. (A message that is replayed has the header no more.)
    txn_id, origin = headers.get(ID_HEADER), None if DLQ_HEADER in headers else origin_of(message.headers)
    if txn_id and origin:
        return f"txn:{txn_id.decode('ascii', errors='backslashreplace')}/{origin[4]}/{origin[2]}"
    return f"at:{message.topic}/{message.partition}/{message.offset}"


def inbox_table(name: str = INBOX_NAME, *, schema: str | None = None, metadata: MetaData | None = None) -> Table:
    """The table, in `metadata` or in new metadata, for migration tools.

    Raises:
        UsageError: `name` or `schema` is not a plain name of a table or schema.
    """
    return tables.made_table(
        name,
        schema,
        metadata,
        Column("consumer_group", tables.exact_text(tables.GROUP_LENGTH_MAX), primary_key=True),
        Column("message_key", tables.exact_text(KEY_LENGTH_MAX), primary_key=True),
        Column("seen_at", tables.instant(), nullable=False, server_default=tables.DatabaseNow()),
    )


class Seen(NamedTuple):
    """A new message, and the local transaction that holds its row."""

    session: Session | Connection
    connection: Connection
    savepoint: NestedTransaction | None
    key: str
    joined: JoinedTransaction


class Inbox(tables.OwnTable):
    """A table with one row per message that a consumer group has handled, written in the handler's own transaction.

    A message that is delivered again (after a crash, a rebalance or a replay) finds its row. Threads may share an inbox.

    Args:
        engine: engine of the database that the handlers change: SQLite, PostgreSQL, MySQL or MariaDB.
        group: the consumer group. Each group has its own rows, so groups may share a table.
        table: name of the table; `create_table` or a migration creates it.
        schema: schema of the table, if unqualified names do not find it.
        key: maps a message to its key; messages with equal keys are the same one.

    Raises:
        UsageError: the database or a name is not supported. Nothing was connected.
    """

    is_async = False

    def __init__(
        self,
        engine: Engine,
        *,
        group: str,
        table: str = INBOX_NAME,
        schema: str | None = None,
        key: MessageKey = message_key,
    ) -> None:
        if not isinstance(engine, Engine):
            raise UsageError(f"an inbox needs an Engine, not {type(engine).__name__} (AsyncInbox takes an AsyncEngine)")
        rules = tables.rules_of_dialect(engine.dialect.name, what="an inbox")
        super().__init__(engine, inbox_table(table, schema=schema), rules)
        self._group = check_group(group)
        self._key = key
        self._watch = Watch(rules)
        self._watch.listen(engine)
        self._left: weakref.WeakKeyDictionary[Connection, dict[str, JoinedTransaction]] = weakref.WeakKeyDictionary()

    @contextmanager
    def once(self, session: Any, message: Any) -> Iterator[bool]:
        """True if this group has not handled the message: then handle it, in the local transaction of `session`.

        `message` is what `key` takes: a `ReceivedMessage`, or another `InboxMessage`, unless the inbox has a `key` of its own.

        A concurrent second call waits until the local transaction of the first has ended. If the block raises, the
        message counts as not handled, even if the local transaction goes on; roll it back, because it still contains
        what the block did. A local transaction that has lost its row refuses its commit.

        Raises:
            UsageError: `session` is not a Session or Connection of this database, or is in autocommit. Nothing was
                written.
            RollbackRequiredError: it cannot be written in what `session` has begun; roll back, and the message comes again.
            SQLAlchemyError: the database refused; roll back.
        """
        seen = self.see(session, message)
        try:
            yield seen is not None
        except BaseException:
            if seen is not None:
                self.forget(seen)
            raise
        if seen is not None:
            self.leave(seen)

    def purge(self, older_than: timedelta, *, is_dry_run: bool = False) -> tables.Purged:
        """Delete this group's rows older than `older_than` by the database's clock, in transactions of bounded size.

        A message that is delivered again after that is handled again: keep rows longer than the topic and its
        dead-letter topic keep records.

        Raises:
            UsageError: `older_than` is not a valid age. No row was deleted.
            SQLAlchemyError: the database refused; rows deleted before stay deleted.
        """
        tables.check_pool(self._engine, what="a purge", would="commit what the handlers have open")
        table, options = self._located()
        columns = table.c
        return tables.delete_old(
            self._engine.execution_options(**options, **OWN_WORK),
            table,
            key=columns.message_key,
            made_at=columns.seen_at,
            older_than=older_than,
            is_dry_run=is_dry_run,
            where=[columns.consumer_group == self._group],
        )

    # --- the steps of `once` ------------------------------------------------------------------------------------------

    def key_of(self, message: Any) -> str:
        key = self._key(message)
        is_plain = len(key) <= KEY_LENGTH_MAX and key.isascii() and key.isprintable()
        if is_plain and not key.endswith(" "):  # MySQL ignores blanks at the end in comparisons
            return key
        return f"hash:{blake2b(key.encode(errors='surrogatepass'), digest_size=32).hexdigest()}"

    def see(self, session: Any, message: Any) -> Seen | None:
        """Write the row; None if it exists."""
        session = tables.own_session(session, of_asyncio="AsyncInbox")
        connection = self._connection_of(session)
        key = self.key_of(message)
        left = self._left.get(connection, {}).get(key)
        if left is not None and left.state is LocalState.OPEN:
            raise RollbackRequiredError(
                f"a block of this message failed and left a savepoint open, which may hold {ROW}: roll back"
            )
        row = {"consumer_group": self._group, "message_key": key}
        table, options = self._located()
        # SQLAlchemy drops the row count of an insert unless it is asked to keep it.
        options = {**options, "preserve_rowcount": True}
        insert = self._rules.insert_absent(table)
        if connection.execute(insert, row, execution_options=options).rowcount != 1:
            return None
        savepoint = connection.get_nested_transaction()
        has_row = partial(self._has_row, key)
        joined = JoinedTransaction(connection, None, has_row=has_row, savepoint=savepoint, row=ROW)
        self._watch.add(connection, None, joined)
        self._watch.expect(joined, connection.engine, joined)
        return Seen(session, connection, savepoint, key, joined)

    def _connection_of(self, session: Session | Connection) -> Connection:
        connection = tables.begun_connection(session, self.table)
        tables.check_database(connection.engine, self._engine, what="the inbox")
        tables.check_autocommit(connection, row=ROW)
        if self._watch.is_savepoint_alone(connection):
            self._watch.listen(connection.engine)
            raise RollbackRequiredError(
                "a savepoint began before the inbox knew this engine, and in SQLite its release may commit what it holds alone: "
                "roll back, and handle the message again; the engine is known now"
            )
        return connection

    def forget(self, seen: Seen) -> None:
        self._watch.forget(seen.joined)
        if seen.joined.state is not LocalState.OPEN:
            return
        # A transaction that the database has aborted cannot commit the row, and the block's error is the one to raise.
        with suppress(SQLAlchemyError):
            self._delete_row(seen.key, seen.connection)
        if seen.connection.get_nested_transaction() in (None, seen.savepoint):
            seen.joined.forget_row()
            return
        # A savepoint of the block is open: its rollback brings the row back.
        seen.joined.forget_row_at_commit(partial(self._delete_row, seen.key))
        self._left.setdefault(seen.connection, {})[seen.key] = seen.joined

    def leave(self, seen: Seen) -> None:
        """End of the block: refuse the commit if the row was rolled back meanwhile; later work may commit."""
        self._watch.forget(seen.joined)
        seen.joined.let_savepoint_go()
        if not seen.session.in_transaction():
            return
        is_lost = seen.joined.is_lost
        if not is_lost and seen.savepoint is not None and not seen.savepoint.is_active:
            is_lost = not self._has_row(seen.key, seen.connection)
        if is_lost:
            connection = self._connection_of(seen.session)
            another = JoinedTransaction(connection, None, has_row=None, row=ROW)
            another.refuse(seen.joined.lost_error())
            self._watch.add(connection, None, another)

    def _delete_row(self, key: str, connection: Connection) -> None:
        table, options = self._located()
        connection.execute(delete(table).where(*self._is_row(table, key)), execution_options=options)

    def _has_row(self, key: str, connection: Connection) -> bool:
        table, options = self._located()
        own = select(table.c.message_key).where(*self._is_row(table, key))
        return connection.execute(own, execution_options=options).first() is not None

    def _is_row(self, table: Table, key: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return table.c.consumer_group == self._group, table.c.message_key == key


# --- fencing tokens ---------------------------------------------------------------------------------------------------

Fence = ColumnElement[Any] | InstrumentedAttribute[Any]  # the token column, of a Table or of a mapped class


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
