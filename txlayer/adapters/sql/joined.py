"""A local transaction that holds the barrier's row: what became of it, and why it may not commit.

Never here: committing or rolling back the user's session.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session
from sqlalchemy.sql import Select

from txlayer.adapters.barrier import LocalState
from txlayer.errors import RollbackRequiredError, TxLayerError


class JoinedTransaction:
    """One local transaction of one connection, watched from the barrier's row to its end.

    SQLAlchemy says before a connection commits that it will, and after a session's commit that it did. A connection
    that was joined without a session is therefore `UNCLEAR` after its commit, and the row tells.
    """

    def __init__(
        self, connection: Connection, session: Session | None, *, txn_id: str, own_row: Select[Any]
    ) -> None:
        self._connection = weakref.ref(connection)
        self._session = session
        self._session_transaction = None if session is None else session.get_transaction()
        self._txn_id = txn_id
        self._own_row = own_row
        self._veto: TxLayerError | None = None
        self._has_failed_statement = False
        self._has_commit_begun = False
        self._is_rolled_back = False
        self._is_reported = False
        event.listen(connection, "commit", self._before_commit)
        event.listen(connection, "rollback", self._before_rollback)
        if session is not None:
            event.listen(session, "after_commit", self._after_commit)

    @property
    def state(self) -> LocalState:
        """As in `Joined`."""
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

    def forbid_commit(self, reason: str) -> None:
        """As in `Joined`."""
        self.refuse(RollbackRequiredError(f"{reason}: roll back", txn_id=self._txn_id))

    def refuse(self, error: TxLayerError) -> None:
        """Have the commit raise `error`; the first one stays."""
        self._veto = self._veto or error

    def statement_failed(self) -> None:
        """Some databases end the whole transaction with a failed statement, and begin another one unasked."""
        self._has_failed_statement = True

    def leave(self) -> None:
        """As in `Joined`."""
        if self._session is not None:
            event.remove(self._session, "after_commit", self._after_commit)
            self._session = self._session_transaction = None

    # --- called by SQLAlchemy -----------------------------------------------------------------------------------------

    def _before_commit(self, connection: Connection) -> None:
        if self._is_rolled_back or self._has_commit_begun:
            return  # another transaction of this connection
        try:
            self._check_row(connection)
        except BaseException:
            # SQLAlchemy takes for granted that whoever stops a commit here has ended the transaction: it would hand the
            # connection back as it is, and its next user would commit all of this.
            connection.dialect.do_rollback(connection.connection)
            self._is_rolled_back = True
            raise
        self._has_commit_begun = True

    def _check_row(self, connection: Connection) -> None:
        if self._veto is not None:
            raise self._veto
        if self._has_failed_statement and connection.execute(self._own_row).first() is None:
            raise RollbackRequiredError(
                "the barrier's row was rolled back with a failed statement: roll back",
                txn_id=self._txn_id,
            )

    def _before_rollback(self, _connection: Connection) -> None:
        if not self._has_commit_begun:
            self._is_rolled_back = True

    def _after_commit(self, session: Session) -> None:
        # The end of a savepoint is announced the same way, and so is that of a session inside somebody's transaction.
        if (
            self._has_commit_begun
            and not session.in_nested_transaction()
            and session.get_transaction() is self._session_transaction
        ):
            self._is_reported = True


class FailedStatements:
    """Tells joined transactions about statements that failed. Any thread may use it."""

    def __init__(self) -> None:
        self._joined: weakref.WeakKeyDictionary[Connection, list[JoinedTransaction]] = (
            weakref.WeakKeyDictionary()
        )
        self._dialects: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def watch(self, connection: Connection, joined: JoinedTransaction) -> None:
        """Tell `joined` about the statements of its connection."""
        self._listen(connection.engine)
        with self._lock:
            # Several transactions may join one local transaction; those of earlier ones are over.
            open_ones = [j for j in self._joined.get(connection, ()) if j.state is LocalState.OPEN]
            self._joined[connection] = [*open_ones, joined]

    def _listen(self, engine: Engine) -> None:
        # Once for each dialect object: engines that were derived from one share it.
        with self._lock:
            if engine.dialect not in self._dialects:
                event.listen(engine, "handle_error", self._failed)
                self._dialects.add(engine.dialect)

    def _failed(self, context: ExceptionContext) -> None:
        if context.connection is not None:
            for joined in self._joined.get(context.connection, ()):
                joined.statement_failed()
