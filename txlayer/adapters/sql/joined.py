"""Watches a local transaction that holds a row of a barrier or an inbox: how it ended, and whether it may commit.

The user's session is committed and rolled back by the user only, except when a refused commit ends it.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, NestedTransaction, TwoPhaseTransaction, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session

from txlayer.adapters.ports import LocalState
from txlayer.adapters.sql.tables import DialectRules, driver_connection, is_in_autocommit
from txlayer.errors import LifecycleError, RollbackRequiredError, TxLayerError

K = TypeVar("K", Connection, Session)

OWN_WORK = {"txlayer_own_work": True}  # the option of connections that a barrier or an inbox uses for its own work


class JoinedTransaction:
    """One local transaction of one connection, watched from the write of its row to its end.

    SQLAlchemy reports a connection's commit before it happens, and a session's commit after it. After the commit of a
    connection that was joined without a session, the state is therefore `UNCLEAR`, and the row decides.
    """

    def __init__(
        self,
        connection: Connection,
        session: Session | None,
        *,
        has_row: Callable[[Connection], bool] | None,
        savepoint: NestedTransaction | None = None,
        row: str = "the barrier's row",
        txn_id: str | None = None,
    ) -> None:
        self._connection = weakref.ref(connection)
        self._session_transaction = None if session is None else session.get_transaction()
        self._has_row = has_row
        self._savepoint = savepoint
        self._row = row
        self._txn_id = txn_id
        self._veto: TxLayerError | None = None
        self._delete_row: Callable[[Connection], None] | None = None
        self._has_failed_statement = False
        self._has_commit_begun = False
        self._has_commit_failed = False
        self._is_rolled_back = False
        self._is_reported = False

    @property
    def state(self) -> LocalState:
        if self._is_reported:
            return LocalState.COMMITTED
        if self._has_commit_begun:
            return LocalState.UNCLEAR
        connection = self._connection()
        if (
            self._is_rolled_back
            or connection is None
            or connection.closed
            or connection.invalidated
            or not connection.in_transaction()
        ):
            return LocalState.ROLLED_BACK
        return LocalState.OPEN

    @property
    def is_lost(self) -> bool:
        """True if it ended without a reported commit: work that is done again has no row."""
        state = self.state
        return state is LocalState.ROLLED_BACK or (state is LocalState.UNCLEAR and self._has_commit_failed)

    def forbid_commit(self, reason: str) -> None:
        self.refuse(RollbackRequiredError(f"{reason}: roll back", txn_id=self._txn_id))

    def lost_error(self) -> RollbackRequiredError:
        """The error for any other local transaction that tries to commit in its place."""
        return RollbackRequiredError(
            f"{self._row} was rolled back with its local transaction, and this one has none: roll back",
            txn_id=self._txn_id,
        )

    def refuse(self, error: TxLayerError) -> None:
        """Make the commit raise `error`; the first error is kept."""
        self._veto = self._veto or error

    def statement_failed(self, *, is_commit: bool, has_ended: bool) -> None:
        """Handle a failed statement: some databases end the whole transaction with it and silently begin another."""
        self._has_failed_statement = True
        self._has_commit_failed |= is_commit and self._has_commit_begun
        if has_ended:
            self.refuse(self._failed_error())

    def _failed_error(self) -> RollbackRequiredError:
        return RollbackRequiredError(
            f"{self._row} was rolled back with a failed statement or a savepoint: roll back", txn_id=self._txn_id
        )

    def leave(self) -> None:
        self._session_transaction = None

    def let_savepoint_go(self) -> None:
        """From now on, a rollback of the savepoint that holds the row may take the row with it, and the work beside it."""
        if self._savepoint is not None:
            self._has_row = None

    def forget_row(self) -> None:
        """The row was deleted: the local transaction is free again, unless its commit was refused before."""
        self._is_rolled_back = self._veto is None

    def forget_row_at_commit(self, delete_row: Callable[[Connection], None]) -> None:
        """The row was deleted, but a savepoint may bring it back: delete it again before the commit."""
        self._delete_row = delete_row

    # --- called by SQLAlchemy, and by the watch of the connection ---------------------------------------------------------

    def before_commit(self, connection: Connection) -> None:
        """Let the transaction commit, or end it and raise."""
        if self._is_rolled_back or self._has_commit_begun:
            return  # another transaction of this connection
        try:
            self._check_row(connection)
        except BaseException:
            _end(connection)
            self._is_rolled_back = True
            raise
        self._has_commit_begun = True

    def _check_row(self, connection: Connection) -> None:
        if self._veto is not None:
            raise self._veto
        if self._delete_row is not None:
            self._delete_row(connection)
            return
        has_savepoint_ended = self._savepoint is not None and not self._savepoint.is_active
        if self._has_row is None or not (self._has_failed_statement or has_savepoint_ended):
            return
        if not self._has_row(connection):
            raise self._failed_error()

    def before_rollback(self) -> None:
        """A rollback before a commit began has ended the transaction."""
        if not self._has_commit_begun:
            self._is_rolled_back = True

    def after_commit(self, session: Session) -> None:
        """Note the commit, if it was that of the whole local transaction."""
        # The end of a savepoint is reported the same way, and so is that of a session inside an outer transaction;
        # in both cases the connection has not begun to commit.
        if self._has_commit_begun and session.get_transaction() is self._session_transaction:
            self._is_reported = True
            self._session_transaction = None


class Watch:
    """Passes SQLAlchemy's events to the joined transactions of their connections. Thread-safe.

    It registers one listener per engine: one per transaction costs as much as a statement.
    """

    def __init__(self, rules: DialectRules) -> None:
        self._rules = rules
        self._joined: weakref.WeakKeyDictionary[Connection, list[JoinedTransaction]] = weakref.WeakKeyDictionary()
        self._of_sessions: weakref.WeakKeyDictionary[Session, list[JoinedTransaction]] = weakref.WeakKeyDictionary()
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._dialects: weakref.WeakSet[Any] = weakref.WeakSet()
        self._saved: weakref.WeakSet[Connection] = weakref.WeakSet()  # a savepoint began while their engine was watched
        # Whose local transactions must hold a row, by owner. While the one that holds it is open, and after its commit, others may commit.
        self._expected: weakref.WeakKeyDictionary[Any, JoinedTransaction | None] = weakref.WeakKeyDictionary()
        # The owners' threads and tasks.
        self._places: weakref.WeakKeyDictionary[Any, set[object]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def belongs_here(self, owner: object) -> None:
        """This thread or task is the owner's, as each one is that calls `expect`: `asyncio.wait_for` awaits in another in Python 3.11."""
        with self._lock:
            self._places.setdefault(owner, set()).add(_this_thread_or_task())

    def expect(self, owner: object, engine: Engine, joined: JoinedTransaction | None = None) -> None:
        """Refuse commits of the owner's threads and tasks without a row, until `forget`; with `joined`, from the loss of its row on."""
        self.listen(engine)
        self.belongs_here(owner)
        with self._lock:
            self._expected[owner] = joined

    def forget(self, owner: object) -> None:
        with self._lock:
            self._expected.pop(owner, None)
            self._places.pop(owner, None)

    def add(self, connection: Connection, session: Session | None, joined: JoinedTransaction) -> None:
        self.listen(connection.engine)
        with self._lock:
            _append(self._joined, connection, joined)
            if session is None:
                return
            if session not in self._of_sessions:
                event.listen(session, "after_commit", self._after_commit)
            _append(self._of_sessions, session, joined)

    def listen(self, engine: Engine) -> None:
        if engine in self._engines:
            return
        with self._lock:
            if engine in self._engines:
                return
            # An engine derived from another also receives the events of the other's listeners, so they come twice.
            event.listen(engine, "commit", self._before_commit)
            event.listen(engine, "prepare_twophase", self._before_twophase)
            event.listen(engine, "commit_twophase", self._before_twophase)
            event.listen(engine, "rollback", self._before_rollback)
            # A discarded connection whose commit was refused reports no rollback, but its next transaction.
            event.listen(engine, "begin", self._before_rollback)
            if engine.dialect.name == "sqlite":
                event.listen(engine, "savepoint", self._before_savepoint)
            self._engines.add(engine)
            if engine.dialect not in self._dialects:
                event.listen(engine, "handle_error", self._failed)
                self._dialects.add(engine.dialect)

    def is_savepoint_alone(self, connection: Connection) -> bool:
        """True if the open savepoint may be all that the database has begun: its release would commit what it holds."""
        is_sqlite = connection.dialect.name == "sqlite"
        return is_sqlite and connection.in_nested_transaction() and connection not in self._saved

    def _before_savepoint(self, connection: Connection, _name: str) -> None:
        # Python's driver begins no transaction for a savepoint: its release would commit what it holds, the row among it.
        if not driver_connection(connection).in_transaction and not is_in_autocommit(connection):
            connection.exec_driver_sql("BEGIN")
        self._saved.add(connection)

    def _before_commit(self, connection: Connection) -> None:
        of_connection = self._joined.get(connection, ())
        if self._expected:
            self._check_expected(connection, of_connection)
        for joined in of_connection:
            joined.before_commit(connection)

    def _before_twophase(self, connection: Connection, *_: Any) -> None:
        self._before_commit(connection)

    def _check_expected(self, connection: Connection, of_connection: Sequence[JoinedTransaction]) -> None:
        if any(joined.state is LocalState.OPEN for joined in of_connection):
            return
        if OWN_WORK.items() <= connection.get_execution_options().items():
            return
        here = _this_thread_or_task()
        with self._lock:
            expected = [joined for owner, joined in self._expected.items() if here in self._places[owner]]
        for joined in expected:
            if joined is None:
                _end(connection)
                raise LifecycleError(
                    "this local transaction commits without tx.join(session), though tx.prepare() was called: its commit would "
                    "not decide the messages. It is rolled back; join it, or commit what does not belong to it before prepare()",
                    state="prepared",
                )
            if joined.is_lost:
                _end(connection)
                raise joined.lost_error()

    def _before_rollback(self, connection: Connection) -> None:
        """The transaction that was joined ends, or is over."""
        for joined in self._joined.get(connection, ()):
            joined.before_rollback()

    def _after_commit(self, session: Session) -> None:
        for joined in self._of_sessions.get(session, ()):
            joined.after_commit(session)

    def _failed(self, context: ExceptionContext) -> None:
        connection = context.connection
        of_connection = () if connection is None else self._joined.get(connection, ())
        if connection is None or not of_connection:
            return
        error = context.original_exception
        # A call that was cancelled or interrupted may still run: SQLAlchemy gives its connection up, and nothing may be asked on it.
        has_ended = isinstance(error, Exception) and self._rules.has_ended(connection, error)
        is_open = any(joined.state is LocalState.OPEN for joined in of_connection)
        for joined in of_connection:
            joined.statement_failed(is_commit=context.statement is None, has_ended=has_ended)
        if has_ended and is_open:
            self._rules.begin_again(connection)


def _end(connection: Connection) -> None:
    # SQLAlchemy assumes that a listener that stops a commit has ended the transaction. Otherwise it would return the
    # open connection to the pool, and the next user would commit this work. It rolls back two-phase transactions itself.
    if not isinstance(connection.get_transaction(), TwoPhaseTransaction):
        connection.dialect.do_rollback(connection.connection)


def _this_thread_or_task() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return threading.get_ident() if task is None else weakref.ref(task)  # a task may keep its transaction alive


def _append(watched: weakref.WeakKeyDictionary[K, list[JoinedTransaction]], key: K, joined: JoinedTransaction) -> None:
    # Several transactions may join one local transaction in turn; the earlier ones are over.
    open_ones: list[JoinedTransaction] = [j for j in watched.get(key, ()) if j.state is LocalState.OPEN]
    watched[key] = [*open_ones, joined]
