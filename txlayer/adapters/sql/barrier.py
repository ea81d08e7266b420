"""`SqlBarrier`: one row per transaction in the user's own database, where the first writer wins."""

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, TwoPhaseTransaction, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError, UnboundExecutionError
from sqlalchemy.orm import Session

from txlayer.adapters.sql import tables
from txlayer.adapters.sql.joined import OWN_WORK, JoinedTransaction, Watch
from txlayer.config import IMMUNITY_MAX, CoordinatorConfig, milliseconds
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution, Source, check_group, check_txn_id, is_txn_id
from txlayer.errors import BarrierRefusedError, ConfigError, UsageError

logger = logging.getLogger("txlayer.barrier")

BATCH_COUNT_MAX = 1_000
"""Rows of one database transaction of a check; it limits how long the transaction keeps others waiting."""

READ_COUNT_MAX = 500  # ids of one query; every database accepts this many parameters

BATCH_WAIT_SHARE = 10
"""A batch waits for locks this many times shorter than a single check, so that one open row does not delay the others."""

APART_WAITS_MAX = 20
"""Lock waits that a batch may spend on finding the locked rows; the rest of its transactions are UNKNOWN."""

T = TypeVar("T")


class Doubtful(NamedTuple):
    """A transaction that is not decided yet."""

    txn_id: str
    nonce: str
    born_at_ms: int | None = None
    """When it was created, if known. If a purge may have deleted its row, neither a missing row nor another attempt's decides."""


class BarrierRow(NamedTuple):
    """What the first writer wrote."""

    nonce: str
    resolution: Resolution


class UnreadableError(Exception):
    """The database gave no answer; the cause says why."""


def judge(one: Doubtful, row: BarrierRow | None) -> Resolution | None:
    """What a row means for one attempt; None without a row."""
    if row is None:
        return None
    # The row belongs to another attempt of the same id: this one can no longer commit.
    return row.resolution if row.nonce == one.nonce else ROLLBACK


def _resolution(said: str) -> Resolution:
    try:
        return Resolution(said)
    except ValueError:
        logger.warning("barrier.garbage", extra={"found": said[:1]})
        return UNKNOWN


def _tell(txn_count: int, error: BaseException | None) -> None:
    logger.warning("barrier.unknown", extra={"txn_count": txn_count, "reason": tables.kind_and_number(error)})


def _chunks(items: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), count):
        yield items[start : start + count]


ROW = ("txn_id", "nonce", "producer_group", "resolution", "source")
"""The columns that a writer sets; the database adds the time."""

LOCK_WAIT = timedelta(seconds=2)
"""Worth waiting for a local transaction that is about to end; a longer one is checked again later."""

TRANSACTION_AGE_MAX = CoordinatorConfig().transaction_age_max
"""Counted from the end of the immunity; older transactions are not checked."""

AGE_MARGIN = timedelta(days=1)  # margin for differing clocks, and for the time between the half messages and the row


class SqlBarrier(tables.OwnTable):
    """A table with one row per transaction id in the user's database; the second writer reads the first one's row (P8).

    A local transaction that joins writes COMMIT inside itself; a check writes ROLLBACK if there is no row. The primary
    key lets only one of them through, at every isolation level. Threads may share a barrier.

    Args:
        engine: engine of the database that the local transactions change: SQLite (a file), PostgreSQL, MySQL or
            MariaDB. Checks use connections of its pool.
        table: name of the table; `create_table` or a migration creates it.
        schema: schema of the table, if unqualified names do not find it.
        lock_wait: how long a check waits for the open transaction of the other side; then its answer is UNKNOWN.
        transaction_age_max: the coordinators' setting of this name. Checks are possible until this age after the longest
            immunity, so a purge keeps younger rows, and a missing row of an older transaction decides nothing.

    Raises:
        UsageError, ConfigError: the database or a value is not supported. Nothing was connected.
    """

    is_async = False

    def __init__(
        self,
        engine: Engine,
        *,
        table: str = tables.DEFAULT_NAME,
        schema: str | None = None,
        lock_wait: timedelta = LOCK_WAIT,
        transaction_age_max: timedelta = TRANSACTION_AGE_MAX,
    ) -> None:
        if not isinstance(engine, Engine):
            raise UsageError(
                f"a barrier needs an Engine, not {type(engine).__name__} (AsyncSqlBarrier takes an AsyncEngine)"
            )
        for name, length in (("lock_wait", lock_wait), ("transaction_age_max", transaction_age_max)):
            if length < timedelta(milliseconds=1):
                raise ConfigError("not possible as a limit", name=name, value=length, expected="1 ms or more")
        super().__init__(engine, tables.barrier_table(table, schema=schema), tables.rules_of(engine))
        oldest_check = IMMUNITY_MAX + transaction_age_max
        self._checking = engine.execution_options(**OWN_WORK)
        self._lock_wait_ms = milliseconds(lock_wait)
        self._absence_age_max_ms = milliseconds(oldest_check)
        self._purged_age_min = oldest_check + AGE_MARGIN
        self._insert: Callable[[Connection, Sequence[str]], object] | None = None
        self._watch = Watch(self._rules)
        self._transactional: weakref.WeakSet[Engine] = weakref.WeakSet()

    # --- the table ----------------------------------------------------------------------------------------------------

    def check_table(self) -> None:
        """Check that the table can be read.

        Raises:
            SQLAlchemyError: the database does not answer, or the table does not exist.
        """
        table, options = self._located()
        with self._engine.connect() as connection:
            connection.execute(select(table.c.txn_id).limit(1), execution_options=options)

    def purge(self, older_than: timedelta, *, is_dry_run: bool = False) -> tables.Purged:
        """Delete rows older than `older_than` by the database's clock, in transactions of bounded size.

        Raises:
            UsageError: it would delete rows of transactions that may still be checked. No row was deleted.
            SQLAlchemyError: the database refused; rows deleted before stay deleted.
        """
        if older_than < self._purged_age_min:
            raise UsageError(
                f"rows younger than {self._purged_age_min / timedelta(days=1):g} days may still be needed by a check: without "
                "its row a committed transaction would be rolled back. None was deleted"
            )
        table, options = self._located()
        return tables.delete_old(
            self._engine.execution_options(**options, **OWN_WORK),
            table,
            key=table.c.txn_id,  # the primary key, so that no further index slows down every insert
            made_at=table.c.created_at,
            older_than=older_than,
            is_dry_run=is_dry_run,
        )

    # --- a check ------------------------------------------------------------------------------------------------------

    def resolve(self, txn_id: str, nonce: str, *, group: str, born_at_ms: int | None = None) -> Resolution:
        """The first writer's resolution of a transaction; without a row, write ROLLBACK and return it once it is durable.

        UNKNOWN if the other side's row is still open after `lock_wait`, or the database does not answer. A row of another
        nonce means ROLLBACK. With `born_at_ms`, a transaction so old that a purge may have deleted its row is UNKNOWN
        without it, also if a later attempt of its id has a row.

        Raises:
            UsageError: the id or the group is not valid. Nothing was written.
        """
        check_txn_id(txn_id)
        return self.resolve_many([Doubtful(txn_id, nonce, born_at_ms)], group=group)[0]

    def resolve_many(self, doubtful: Sequence[Doubtful], *, group: str) -> list[Resolution]:
        """`resolve` for many, many of them in one database transaction; the resolutions are in the order of `doubtful`.

        An id that no producer of txlayer writes is UNKNOWN: other clients of the namespace may write one, and the others have an answer.

        Raises:
            UsageError: the group is not valid. Nothing was written.
        """
        check_group(group)
        resolutions: list[Resolution] = []
        for chunk in _chunks(doubtful, BATCH_COUNT_MAX):
            now_ms = time.time_ns() // 1_000_000
            try:
                rows = self._settled_rows([one for one in chunk if is_txn_id(one.txn_id)], group, now_ms)
            except UnreadableError as exc:
                _tell(len(doubtful) - len(resolutions), exc.__cause__)
                break
            for one in chunk:
                row = rows.get(one.txn_id)
                if row is not None and row.nonce != one.nonce and self._is_too_old(one, now_ms):
                    row = None  # a later attempt wrote it, perhaps after a purge took this one's
                resolutions.append(judge(one, row) or UNKNOWN)
        return resolutions + [UNKNOWN] * (len(doubtful) - len(resolutions))

    def read(self, txn_id: str, nonce: str) -> Resolution | None:
        """Like `resolve`, without writing: None if there is no row, or none that is committed.

        Raises:
            UsageError: the id is not valid.
        """
        check_txn_id(txn_id)
        try:
            rows = self._read([txn_id])
        except UnreadableError as exc:
            _tell(1, exc.__cause__)
            return UNKNOWN
        return judge(Doubtful(txn_id, nonce), rows.get(txn_id))

    def _settled_rows(self, chunk: Sequence[Doubtful], group: str, now_ms: int) -> Mapping[str, BarrierRow]:
        rows = self._read([one.txn_id for one in chunk])
        absent = {
            one.txn_id: one for one in reversed(chunk) if one.txn_id not in rows and not self._is_too_old(one, now_ms)
        }
        if not absent:
            return rows
        # One order everywhere, so that two responders cannot deadlock.
        values = [
            {
                "txn_id": one.txn_id,
                "nonce": one.nonce,
                "producer_group": group,
                "resolution": ROLLBACK.value,
                "source": Source.CHECK.value,
            }
            for _, one in sorted(absent.items())
        ]
        wait_ms = self._lock_wait_ms
        if len(values) > 1:
            wait_ms = max(wait_ms // BATCH_WAIT_SHARE, self._rules.wait_min_ms)
        give_up_at = time.monotonic() + APART_WAITS_MAX * wait_ms / 1000
        self._insert_absent(values, wait_ms=wait_ms, give_up_at=give_up_at)
        # Only a later transaction reads what is durable, whichever side wrote it and however our insert ended.
        return {**rows, **self._read(list(absent))}

    def _is_too_old(self, one: Doubtful, now_ms: int) -> bool:
        return one.born_at_ms is not None and now_ms - one.born_at_ms > self._absence_age_max_ms

    def _insert_absent(self, values: Sequence[Mapping[str, str]], *, wait_ms: int, give_up_at: float) -> None:
        try:
            with self._transaction(wait_ms=wait_ms, is_writing=True) as connection:
                table, options = self._located()
                insert = self._rules.insert_absent(table)
                connection.execute(insert, values, execution_options=options)
        except UnreadableError as exc:
            _tell(len(values), exc.__cause__)
        else:
            return
        if len(values) == 1 or not self._rules.has_row_locks or time.monotonic() > give_up_at:
            return
        # One of the rows is locked: the others need not wait for it.
        middle = len(values) // 2
        for part in (values[:middle], values[middle:]):
            self._insert_absent(part, wait_ms=wait_ms, give_up_at=give_up_at)

    def _read(self, txn_ids: Sequence[str]) -> dict[str, BarrierRow]:
        rows = {}
        with self._transaction(wait_ms=self._lock_wait_ms, is_writing=False) as connection:
            table, options = self._located()
            columns = table.c
            for ids in _chunks(txn_ids, READ_COUNT_MAX):
                wanted = select(columns.txn_id, columns.nonce, columns.resolution)
                wanted = wanted.where(columns.txn_id.in_(ids))
                for txn_id, nonce, said in connection.execute(wanted, execution_options=options):
                    rows[txn_id] = BarrierRow(nonce, _resolution(said))
        return rows

    @contextmanager
    def _transaction(self, *, wait_ms: int, is_writing: bool) -> Iterator[Connection]:
        """A short transaction with bounded waits.

        Raises:
            UnreadableError: the database refused or did not answer. The writes may be stored or not.
        """
        try:
            with self._checking.connect() as connection:
                if self._rules.isolation is not None:
                    connection.execution_options(isolation_level=self._rules.isolation)
                with connection.begin(), self._rules.bounded(connection, wait_ms=wait_ms, is_writing=is_writing):
                    yield connection
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error, OSError) as exc:
            # A deadlock, a serialisation failure, a lock time-out or a lost connection decides nothing. SQLAlchemy leaves the driver's
            # own error as it is where the isolation level is set.
            raise UnreadableError from exc

    # --- the local transaction's side ---------------------------------------------------------------------------------

    def belongs_here(self, owner: object) -> None:
        self._watch.belongs_here(owner)

    def expect_join(self, owner: object, joined: JoinedTransaction | None = None) -> None:
        """As in `Barrier`; for this engine, and for other engines of this database that a session has joined from."""
        self._watch.expect(owner, self._engine, joined)

    def forget_join(self, owner: object) -> None:
        self._watch.forget(owner)

    def check_session(self, session: Any) -> None:
        """As in `Barrier`. The first session of an engine, and every connection, begins its transaction here."""
        found = self._own(session)
        if isinstance(found, Session):
            if found.in_nested_transaction():
                raise _savepoint()
            bind = self._bind_of(found)
            tables.check_database(bind.engine, self._engine, what="the barrier")
            if isinstance(bind, Engine):
                if bind not in self._transactional:
                    # Checked once per engine, so that nothing is sent if every transaction would fail, and no session
                    # holds a connection while its messages are stored.
                    self._check_connection(tables.begun_connection(found, self.table))
                    self._transactional.add(bind)
                return
        self._check_connection(tables.begun_connection(found, self.table))

    def write(self, session: Any, *, txn_id: str, nonce: str, group: str) -> JoinedTransaction:
        check_txn_id(txn_id)
        found = self._own(session)
        orm_session = found if isinstance(found, Session) else None
        connection = tables.begun_connection(found, self.table)
        self._check_connection(connection)
        if self._insert is None:
            self._insert = tables.driver_insert(self._located()[0], self._engine.dialect, ROW)
        joined = JoinedTransaction(
            connection, orm_session, txn_id=txn_id, has_row=partial(self._has_row, txn_id, nonce)
        )
        self._watch.add(connection, orm_session, joined)
        row = (txn_id, nonce, check_group(group), COMMIT.value, Source.PRODUCER.value)
        try:
            self._insert(connection, row)
        except IntegrityError as exc:
            error = BarrierRefusedError(
                "a check-back, or another attempt of the same id, came first: roll back",
                txn_id=txn_id,
                resolution="ROLLBACK",
            )
            joined.refuse(error)
            joined.leave()
            raise error from exc
        except BaseException:
            joined.forbid_commit("the barrier's row could not be written")
            joined.leave()
            raise
        return joined

    def _has_row(self, txn_id: str, nonce: str, connection: Connection) -> bool:
        table, options = self._located()
        own = select(table.c.nonce).where(
            table.c.txn_id == txn_id,
            table.c.nonce == nonce,
            table.c.resolution == COMMIT.value,  # a check in between wrote the same nonce
        )
        return connection.execute(own, execution_options=options).first() is not None

    def _bind_of(self, session: Session) -> Engine | Connection:
        try:
            return session.get_bind(clause=self.table)
        except UnboundExecutionError as exc:
            raise UsageError(
                "the session has no engine for the barrier's table: Session(binds={barrier.table: engine, …})"
            ) from exc

    def _own(self, session: Any) -> Session | Connection:
        found = tables.own_session(session, of_asyncio="AsyncSqlBarrier")
        if isinstance(found, Session) and found.twophase:
            raise _two_phase()
        return found

    def _check_connection(self, connection: Connection) -> None:
        tables.check_database(connection.engine, self._engine, what="the barrier")
        if connection.in_nested_transaction():
            raise _savepoint()
        if isinstance(connection.get_transaction(), TwoPhaseTransaction):
            raise _two_phase()
        tables.check_autocommit(connection, row="the barrier's row")


def _two_phase() -> UsageError:
    return UsageError("a two-phase transaction cannot be joined: its commit is not one moment")


def _savepoint() -> UsageError:
    return UsageError("join before begin_nested(): a savepoint can be rolled back alone, and the barrier's row with it")
