"""The tables of barrier and inbox, their purge, and the differences between databases: bounded waits, inserts of absent rows.

A row of the barrier's table is not changed once it is written.
"""

import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol

from sqlalchemy import (
    AdaptedConnection,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    func,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, NoSuchTableError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.functions import FunctionElement

from txlayer.core.messages import NONCE_LENGTH, TXN_ID_LENGTH_MAX
from txlayer.errors import ConfigError, RetriableError, UsageError

Isolation = Literal["READ COMMITTED", "REPEATABLE READ"]


class DialectRules(Protocol):
    """The rules of one kind of database."""

    isolation: Isolation | None = None  # isolation level of a check's own connection; None: the engine's
    has_row_locks: bool = True  # False: one open local transaction blocks all others
    wait_min_ms: int = 1  # the shortest wait that the database supports

    def insert_absent(self, table: Table) -> Insert:
        """Insert rows; leave existing ones unchanged."""

    def has_ended(self, connection: Connection, error: BaseException) -> bool:  # noqa: ARG002 - of some databases
        """True if a failed statement rolled back the whole transaction, and the next one silently begins another."""
        return False

    def begin_again(self, connection: Connection) -> None:
        """After `has_ended`: begin another transaction, where the next statement would be durable at once."""

    def schema_of(self, engine: Engine, name: str) -> str | None:
        """The schema in which a fresh connection finds the table `name`; None if it does not find it."""

    @contextmanager
    def bounded(self, connection: Connection, *, wait_ms: int, is_writing: bool) -> Iterator[None]:
        """Within a transaction of `connection`: bound every lock wait to about `wait_ms`.

        The connection's own settings are restored at the end, because it returns to the user's pool.
        """


class SqliteRules(DialectRules):
    """SQLite: one writer at a time, for the whole file."""

    has_row_locks = False

    def insert_absent(self, table: Table) -> Insert:
        return sqlite.insert(table).on_conflict_do_nothing()

    def has_ended(self, connection: Connection, error: BaseException) -> bool:  # noqa: ARG002 - the protocol's
        return not driver_connection(connection).in_transaction

    def begin_again(self, connection: Connection) -> None:
        # Only in its usual mode does Python's driver begin one by itself.
        cursor = connection.connection.cursor()
        cursor.execute("BEGIN")
        cursor.close()

    def schema_of(self, engine: Engine, name: str) -> str | None:  # noqa: ARG002 - the protocol's
        """As in `DialectRules`: the file, not a temporary table of the same name."""
        return "main"

    @contextmanager
    def bounded(self, connection: Connection, *, wait_ms: int, is_writing: bool) -> Iterator[None]:
        if has_no_commit(connection):
            raise UsageError("a check cannot commit in SQLite with autocommit=True; leave it out of connect_args")
        before = [
            (name, connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("busy_timeout", "read_uncommitted")
        ]
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait_ms}")
        # Connections with a shared cache can be set to read uncommitted data, which a check must not rely on.
        connection.exec_driver_sql("PRAGMA read_uncommitted = 0")
        try:
            # In some modes Python's driver begins no transaction by itself; every insert would then be synced alone.
            if is_writing and not driver_connection(connection).in_transaction:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield
        finally:
            if not connection.invalidated:
                for name, value in before:
                    connection.exec_driver_sql(f"PRAGMA {name} = {int(value)}")


_POSTGRESQL_SCHEMA = text(
    "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relname = :name AND n.nspname = ANY(current_schemas(false)) "
    "ORDER BY array_position(current_schemas(false), n.nspname) LIMIT 1"
)


_COMMIT_STORES = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
"""With `off` the server reports a commit before it stores it: a crash would take back a ROLLBACK that was said, and the local transaction
could commit."""


class PostgresqlRules(DialectRules):
    """PostgreSQL: an insert waits for the open transaction that inserted the same key; after an error it refuses all statements."""

    isolation: Isolation | None = "READ COMMITTED"
    """Independent of the local transactions' level: a check's read must see everything committed before it."""

    def insert_absent(self, table: Table) -> Insert:
        return postgresql.insert(table).on_conflict_do_nothing()

    def schema_of(self, engine: Engine, name: str) -> str | None:
        """As in `DialectRules`; temporary tables are ignored."""
        with fresh_connection(engine) as connection:
            schema: str | None = connection.execute(_POSTGRESQL_SCHEMA, {"name": name}).scalar()
        return schema

    @contextmanager
    def bounded(self, connection: Connection, *, wait_ms: int, is_writing: bool) -> Iterator[None]:
        """As in `DialectRules`; the settings end with the transaction."""
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {wait_ms}")
        if is_writing:
            connection.exec_driver_sql(_COMMIT_STORES).close()
        yield


ROLLING_BACK = (1020, 1206, 1213)
"""Error numbers of MySQL and MariaDB after which the whole transaction is rolled back: a row that changed after the snapshot (MariaDB,
`innodb_snapshot_isolation`), too many locks, a deadlock."""
LOCK_TIMEOUT = 1205
"""After it only the statement is rolled back, unless the server was started with `innodb_rollback_on_timeout`."""


class MysqlRules(DialectRules):
    """MySQL and MariaDB with InnoDB."""

    isolation: Isolation | None = "REPEATABLE READ"
    """Each transaction of a check reads once, after its begin. READ COMMITTED is refused if the binary log is statement-based."""

    wait_min_ms = 1_000

    def insert_absent(self, table: Table) -> Insert:
        return mysql.insert(table).prefix_with("IGNORE")

    def has_ended(self, connection: Connection, error: BaseException) -> bool:
        numbers = (getattr(error, "errno", None), *error.args[:1])
        if LOCK_TIMEOUT in numbers:
            cursor = connection.connection.cursor()
            cursor.execute("SELECT @@innodb_rollback_on_timeout")
            [(is_rolling_back,)] = cursor.fetchall()
            cursor.close()
            return bool(is_rolling_back)
        return any(number in numbers for number in ROLLING_BACK)

    def schema_of(self, engine: Engine, name: str) -> str | None:  # noqa: ARG002 - the protocol's
        with fresh_connection(engine) as connection:
            schema: str | None = connection.exec_driver_sql("SELECT DATABASE()").scalar()
        return schema

    @contextmanager
    def bounded(self, connection: Connection, *, wait_ms: int, is_writing: bool) -> Iterator[None]:  # noqa: ARG002 - the protocol's
        """As in `DialectRules`; in whole seconds."""
        names = ("innodb_lock_wait_timeout", "lock_wait_timeout")
        before = connection.exec_driver_sql(f"SELECT @@{names[0]}, @@{names[1]}").one()
        _set_session(connection, names, [math.ceil(wait_ms / 1000)] * 2)
        try:
            yield
        finally:
            if not connection.invalidated:
                _set_session(connection, names, before)


def _set_session(connection: Connection, names: tuple[str, ...], values: Any) -> None:
    settings = ", ".join(f"{name} = {int(v)}" for name, v in zip(names, values, strict=True))
    connection.exec_driver_sql(f"SET SESSION {settings}")


@contextmanager
def fresh_connection(engine: Engine) -> Iterator[Connection]:
    """A new connection of the engine: settings of an earlier session would survive in a pooled one."""
    fresh = Engine(engine.pool.recreate(), engine.dialect, engine.url, hide_parameters=engine.hide_parameters)
    try:
        with fresh.connect() as connection:
            yield connection
    finally:
        fresh.dispose()


class OwnTable:
    """A table of txlayer's in the user's database. Thread-safe."""

    def __init__(self, engine: Engine, table: Table, rules: DialectRules) -> None:
        self.table = table
        self._engine = engine
        self._rules = rules
        self._found: Table | None = None

    def create_table(self) -> None:
        """Create the table if it does not exist.

        Raises:
            UsageError: there is a table of this name without all the columns: another program made it.
            SQLAlchemyError: the database refused.
        """
        table = self.table
        try:
            table.create(self._engine, checkfirst=True)
        except DBAPIError:  # another process was quicker, or it fails once more
            table.create(self._engine, checkfirst=True)
        found = {each["name"] for each in inspect(self._engine).get_columns(table.name, schema=table.schema)}
        if missing := [column.name for column in table.columns if column.name not in found]:
            raise UsageError(
                f"another table has the name {table.name}: it lacks {', '.join(missing)}; choose another name"
            )

    def _located(self) -> tuple[Table, dict[str, Any]]:
        """The table by its full name, looked up once, and the options of a statement on it.

        An unqualified name depends on the settings of the session.

        Raises:
            NoSuchTableError: a fresh connection finds no such table. A session might find one, elsewhere than all others.
            SQLAlchemyError: the database does not answer.
        """
        found = self._found
        if found is None:
            translated = self._engine.get_execution_options().get("schema_translate_map") or {}
            schema = translated.get(self.table.schema, self.table.schema)
            if schema is None:
                schema = self._rules.schema_of(self._engine, self.table.name)
            if schema is None:
                raise NoSuchTableError(
                    f"a fresh connection finds no table {self.table.name}: create it, or name its schema with schema="
                )
            found = self._found = self.table.to_metadata(MetaData(), schema=schema)
        return found, AS_NAMED


AS_NAMED: dict[str, Any] = {"schema_translate_map": None}  # options of a statement whose schema no session may replace


def driver_insert(
    table: Table, dialect: Dialect, names: Sequence[str]
) -> Callable[[Connection, Sequence[str]], object]:
    """Inserts one row of these columns through the driver; SQLAlchemy's own way takes a third longer each time."""
    compiled = insert(table).compile(dialect=dialect, column_keys=list(names))
    assert isinstance(compiled, SQLCompiler)
    statement = str(compiled)
    if compiled.positiontup is None:
        return lambda connection, row: connection.exec_driver_sql(statement, dict(zip(names, row, strict=True)))
    indexes = [names.index(name) for name in compiled.positiontup]
    return lambda connection, row: connection.exec_driver_sql(statement, tuple(row[index] for index in indexes))


def rules_of(engine: Engine) -> DialectRules:
    """The rules of an engine's database for a barrier.

    Raises:
        UsageError: the database is not supported, or it allows no second connection.
    """
    rules = rules_of_dialect(engine.dialect.name, what="a barrier")
    check_pool(engine, what="a check", would="commit the local transaction")
    database = engine.url.database
    if isinstance(rules, SqliteRules) and (
        not database or ":memory:" in database or engine.url.query.get("mode") == "memory"
    ):
        raise UsageError(
            "a barrier in SQLite needs a file: a check uses a connection of its own, and in memory that is another database"
        )
    return rules


def check_pool(engine: Engine, *, what: str, would: str) -> None:
    """Raise UsageError for a pool that lends one connection to several at once, where `what` `would` harm another transaction."""
    if isinstance(engine.pool, StaticPool | SingletonThreadPool):
        raise UsageError(
            f"{what} needs a connection of its own, and {type(engine.pool).__name__} lends one to several at once: "
            f"it would {would}; use a QueuePool or a NullPool"
        )


def rules_of_dialect(name: str, *, what: str) -> DialectRules:
    """The rules of a kind of database; UsageError: it is not supported."""
    kinds: dict[str, Callable[[], DialectRules]]
    kinds = {"sqlite": SqliteRules, "postgresql": PostgresqlRules, "mysql": MysqlRules, "mariadb": MysqlRules}
    if name not in kinds:
        raise UsageError(f"{what} needs SQLite, PostgreSQL, MySQL or MariaDB, not {name}")
    return kinds[name]()


def is_same_database(one: Engine, other: Engine) -> bool:
    """True if two engines are known to use one database: they share a pool, or both go by the same address."""
    if one.pool is other.pool:
        return True
    address = _address(one)
    return address is not None and address == _address(other)


def _address(engine: Engine) -> Any:
    """The address in the URL; None if it does not identify the database."""
    url = engine.url
    is_named = url.host or url.query or url.database not in (None, "", ":memory:")
    # A `creator` may connect to any database. SQLAlchemy's own lives in this module.
    creator = getattr(engine.pool, "_creator", None)
    if not is_named or getattr(creator, "__module__", None) != "sqlalchemy.engine.create":
        return None
    # If no database is named, PostgreSQL's drivers use the user's name.
    database = (url.database, None if url.database else url.username)
    return (url.get_backend_name(), url.host, url.port, database, url.query)


def own_session(session: Any, *, of_asyncio: str) -> Session | Connection:
    """The session or connection that a user gave; UsageError: it is neither."""
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, Session | Connection):
        return session
    raise UsageError(
        f"a SQLAlchemy Session or Connection is due here, not {type(session).__name__} ({of_asyncio} takes theirs)"
    )


def begun_connection(session: Session | Connection, table: Table) -> Connection:
    """The connection on which a session's local transaction changes this table; the transaction has begun."""
    if isinstance(session, Session):
        return session.connection(bind_arguments={"clause": table})
    if not session.in_transaction():
        session.begin()
    return session


def check_database(engine: Engine, own: Engine, *, what: str) -> None:
    """Raise UsageError for an engine of another database than that of `what`, whose engine is `own`."""
    if not is_same_database(engine, own):
        raise UsageError(
            f"the session is of another database than {what}: one could commit without the other; use one engine for both"
        )


def check_autocommit(connection: Connection, *, row: str) -> None:
    """Raise UsageError for a connection on which `row` would be durable at once."""
    if is_in_autocommit(connection):
        raise UsageError(
            f"the connection is in autocommit: {row} would be durable without the local transaction; "
            "use a transactional isolation level"
        )


def driver_connection(connection: Connection) -> Any:
    return connection.connection.driver_connection


def is_in_autocommit(connection: Connection) -> bool:
    """True if every statement of this connection is durable at once, although SQLAlchemy has begun a transaction.

    It asks the driver, not the database.
    """
    dialect, below = connection.dialect, connection.connection.dbapi_connection
    if has_no_commit(connection):
        return True
    try:
        is_on = bool(dialect.detect_autocommit_setting(below))  # type: ignore[arg-type]  # it is connected
    except (AttributeError, NotImplementedError):
        is_on = connection.get_isolation_level() == "AUTOCOMMIT"
    if is_on and dialect.name == "sqlite":
        # There, the same setting also allows an explicit BEGIN, which has been executed.
        return not driver_connection(connection).in_transaction
    return is_on


def has_no_commit(connection: Connection) -> bool:
    """True for SQLite in the autocommit of Python 3.12 and later, where the driver's commit and rollback do nothing."""
    if connection.dialect.name != "sqlite":
        return False
    driver = driver_connection(connection)
    # aiosqlite keeps the connection of `sqlite3` within its own.
    below = getattr(driver, "_conn", driver)
    try:
        return getattr(below, "autocommit", None) is True
    except sqlite3.ProgrammingError:
        adapted: Any = connection.connection.dbapi_connection
        if not isinstance(adapted, AdaptedConnection):
            raise
        # With `check_same_thread`, as in memory, only the thread that aiosqlite gives the connection may ask it.
        is_on = adapted.run_async(lambda ours: ours._execute(getattr, below, "autocommit"))  # noqa: SLF001 - no public way
        return is_on is True


DEFAULT_NAME = "txlayer_barrier"

GROUP_LENGTH_MAX = 200
SOURCE_LENGTH_MAX = 16

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class DatabaseNow(FunctionElement[Any]):
    """The database's clock at this statement."""

    type = DateTime(timezone=True)
    inherit_cache = True


@compiles(DatabaseNow)
def _now(_element: DatabaseNow, _compiler: Any, **_more: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(DatabaseNow, "postgresql")
def _now_of_postgresql(_element: DatabaseNow, _compiler: Any, **_more: Any) -> str:
    # There, CURRENT_TIMESTAMP is the begin of the transaction: a row would look older than it is.
    return "clock_timestamp()"


def barrier_table(name: str = DEFAULT_NAME, *, schema: str | None = None, metadata: MetaData | None = None) -> Table:
    """The table, in `metadata` or in new metadata, for migration tools.

    Raises:
        UsageError: `name` or `schema` is not a plain name of a table or schema.
    """
    return made_table(
        name,
        schema,
        metadata,
        Column("txn_id", exact_text(TXN_ID_LENGTH_MAX), primary_key=True),
        Column("nonce", exact_text(NONCE_LENGTH), nullable=False),
        Column("producer_group", exact_text(GROUP_LENGTH_MAX), nullable=False),
        Column("resolution", exact_text(1), nullable=False),
        Column("source", exact_text(SOURCE_LENGTH_MAX), nullable=False),
        Column("created_at", instant(), nullable=False, server_default=DatabaseNow()),
    )


def create_statement(name: str, database: str) -> str:
    """`CREATE TABLE` of the barrier's table in "sqlite", "postgresql" or "mysql", for migration tools without SQLAlchemy.

    Raises:
        UsageError: `name` is not a plain name of a table, or it is another kind of database.
    """
    dialects = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect, "mysql": mysql.dialect}
    if database not in dialects:
        raise UsageError(f"the barrier knows {', '.join(dialects)}, not {database!r}")
    return str(CreateTable(barrier_table(name)).compile(dialect=dialects[database]()))


def made_table(name: str, schema: str | None, metadata: MetaData | None, *columns: Column[Any]) -> Table:
    """A table in `metadata` or in new metadata; UsageError: `name` or `schema` is not a plain name."""
    for given in (name, schema):
        if given is not None and _NAME.fullmatch(given) is None:
            raise UsageError(f"a table's name is 1 to 63 letters, digits or _, not {given[:80]!r}")
    # A table without transactions would keep the row of a local transaction that was rolled back.
    metadata = MetaData() if metadata is None else metadata
    return Table(name, metadata, *columns, schema=schema, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def exact_text(length: int) -> String:
    """ASCII text that is compared by every character, including case."""
    # By default MySQL compares text without regard to case: two transactions would share one row.
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def instant() -> DateTime:
    """A moment, independent of the session's time zone."""
    # MySQL's DATETIME is wall-clock time in the time zone of the writing session.
    return DateTime(timezone=True).with_variant(mysql.TIMESTAMP(), "mysql", "mariadb")


# --- old rows ---------------------------------------------------------------------------------------------------------

PAGE_COUNT_MAX = 5_000  # rows that one transaction of a purge reads; the maximum that it deletes


class Purged(NamedTuple):
    """What a purge deleted, or would delete."""

    row_count: int  # rows that it read
    purged_count: int


def delete_old(  # one loop: read a page, delete it, count it
    engine: Engine,
    table: Table,
    *,
    key: Column[Any],
    made_at: Column[Any],
    older_than: timedelta,
    is_dry_run: bool,
    where: Sequence[ColumnElement[bool]] = (),
) -> Purged:
    """Delete rows by the database's clock, page by page along `key`, which is unique among the rows of `where`."""
    if older_than <= timedelta(0):
        raise UsageError("an age is more than 0. None was deleted")
    bound: datetime | None = None
    row_count = purged_count = 0
    behind: list[ColumnElement[bool]] = []
    while True:
        with engine.begin() as connection:
            if bound is None:
                now = connection.execute(select(func.current_timestamp(type_=DateTime(timezone=True)))).scalar_one()
                try:
                    bound = now - older_than
                except OverflowError as exc:
                    raise UsageError("an age begins after the year 1. None was deleted") from exc
            page = connection.execute(
                select(key, made_at < bound).where(*behind, *where).order_by(key).limit(PAGE_COUNT_MAX)
            ).all()
        if not page:
            return Purged(row_count, purged_count)
        old = [found for found, is_old in page if is_old]
        count = len(old)
        if old and not is_dry_run:
            # Not in the transaction that read them: another purge may have deleted some since, which MariaDB would refuse there.
            with engine.begin() as connection:
                done = connection.execute(delete(table).where(key.between(old[0], old[-1]), made_at < bound, *where))
                count = done.rowcount
        row_count += len(page)
        purged_count += count
        behind = [key > page[-1][0]]


# --- from a URL -------------------------------------------------------------------------------------------------------


def kind_and_number(error: BaseException | None) -> str:
    """An error by its kind and number: its text may contain addresses, statements or users' values."""
    below = error.orig if isinstance(error, DBAPIError) else error
    number = getattr(below, "sqlstate", None) or getattr(below, "sqlite_errorname", None)
    if number is None and below is not None and below.args and isinstance(below.args[0], int):
        number = below.args[0]
    return f"{type(below).__name__} {number}" if number else type(below).__name__


@contextmanager
def opened_engine(url: str, *, create_command: str) -> Iterator[Engine]:
    """An engine for the database at `url` (SQLAlchemy's form), whose connections are closed at the end of the block.

    Database errors inside the block become txlayer errors with kind and number, without addresses, users and passwords.

    Raises:
        ConfigError: `url` cannot be used.
        RetriableError: the database does not answer, or refused temporarily.
        UsageError: the database refused the statement: a missing table (`create_command` makes it) or a missing right.
    """
    try:
        engine = create_engine(make_url(url), hide_parameters=True)
    except ImportError as exc:
        raise ConfigError(
            f"the driver {exc.name or 'of this database'} is not installed", name="url", expected="an installed driver"
        ) from exc
    except (ArgumentError, NoSuchModuleError, ValueError):
        # The original error texts quote the address.
        raise ConfigError(
            "no address of a database", name="url", expected="DIALECT+DRIVER://USER:PASSWORD@HOST/DATABASE"
        ) from None
    try:
        yield engine
    except (DBAPIError, NoSuchTableError) as exc:
        raise _ours(exc, create_command) from None
    except SQLAlchemyError as exc:
        raise RetriableError(f"the database did not answer: {type(exc).__name__}") from None
    finally:
        engine.dispose()


_NO_SQLITE_FILE = ("SQLITE_CANTOPEN", "SQLITE_NOTADB")


def _ours(error: DBAPIError | NoSuchTableError, create_command: str) -> UsageError | RetriableError:
    if getattr(error.orig if isinstance(error, DBAPIError) else None, "sqlite_errorname", None) in _NO_SQLITE_FILE:
        return ConfigError(
            f"the file cannot be opened as a database ({kind_and_number(error)})",
            name="url",
            expected="a file of SQLite, or a new one in a folder that is there",
        )
    is_missing = isinstance(error, NoSuchTableError) or "no such table" in str(error.orig)
    if is_missing or type(error).__name__ == "ProgrammingError":
        return UsageError(
            f"the database refused the statement ({kind_and_number(error)}): is the table there (`{create_command}`), "
            "and may this user use it?"
        )
    return RetriableError(f"the database did not answer, or refused for now ({kind_and_number(error)})")
