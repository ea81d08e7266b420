"""What may be joined, and what the end of a joined local transaction means."""

import asyncio
import sqlite3
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, QueuePool, SingletonThreadPool, StaticPool

from tests.support.handled import HandledMessage
from tests.support.shop import GROUP, NONCE, Order, Shop, Tables, make_shop, new_id
from txlayer.adapters.ports import LocalState
from txlayer.adapters.sql import AsyncInbox, AsyncSqlBarrier, Inbox, SqlBarrier
from txlayer.adapters.sql.tables import is_same_database
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN
from txlayer.errors import ConfigError, UsageError

pytestmark = [pytest.mark.sql]

each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
servers = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


# --- what cannot be joined --------------------------------------------------------------------------------------------


@pytest.mark.promise("P8")
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_session_of_another_user_whose_address_names_no_database_is_refused(database_url: str) -> None:
    """PostgreSQL's driver takes the user's name for the database's then."""
    admin = create_engine(database_url, isolation_level="AUTOCOMMIT")
    names = [f"u{new_id()}" for _ in range(2)]
    with admin.connect() as connection:
        for name in names:
            connection.execute(text(f"CREATE ROLE {name} LOGIN"))
            connection.execute(text(f"CREATE DATABASE {name} OWNER {name}"))
    admin.dispose()
    first, second = (
        make_shop(create_engine(URL.create("postgresql+psycopg", name, None, admin.url.host, admin.url.port)))
        for name in names
    )
    txn_id = new_id()

    with Session(second.engine) as session, pytest.raises(UsageError, match="another database"):
        first.barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)

    another = create_engine(first.engine.url)
    with Session(another) as session:
        first.barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)
        session.commit()
    assert COMMIT is first.barrier.read(txn_id, NONCE)
    for engine in (first.engine, second.engine, another):
        engine.dispose()


@each_database
@pytest.mark.parametrize("with_session", [True, False], ids=["session", "connection"])
def test_autocommit_is_refused_before_anything_is_written(shop: Shop, *, with_session: bool) -> None:
    engine = shop.at("AUTOCOMMIT")
    txn_id = new_id()
    with Session(engine) if with_session else engine.connect() as joinable:
        with pytest.raises(UsageError, match="autocommit"):
            shop.barrier.check_session(joinable)
        with pytest.raises(UsageError, match="autocommit"):
            shop.barrier.write(joinable, txn_id=txn_id, nonce=NONCE, group=GROUP)

    assert shop.barrier.read(txn_id, NONCE) is None


@each_database
def test_a_session_in_autocommit_of_a_transactional_engine_is_refused(shop: Shop) -> None:
    txn_id = new_id()
    with Session(shop.engine) as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        with pytest.raises(UsageError, match="autocommit"):
            shop.barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)

    assert shop.barrier.read(txn_id, NONCE) is None


class WithAutocommit(sqlite3.Connection):
    """Says what a connection of Python 3.12 and later says that was made with `autocommit=True`."""

    autocommit = True


@pytest.mark.promise("P8")
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_in_pythons_own_autocommit_is_refused(shop: Shop) -> None:
    """There the driver's commit and rollback do nothing."""
    has_it = sys.version_info >= (3, 12)
    settings: dict[str, Any] = {"autocommit": True} if has_it else {"factory": WithAutocommit}
    engine = create_engine(shop.engine.url, connect_args=settings)
    own, inbox = make_shop(engine), Inbox(shop.engine, group="loyalty")
    inbox.create_table()
    txn_id = new_id()
    with Session(engine) as session:
        for use in (
            lambda: own.barrier.check_session(session),
            lambda: own.barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP),
            lambda: own.check(txn_id),
            lambda: inbox.see(session, HandledMessage()),
        ):
            with pytest.raises(UsageError, match="autocommit"):
                use()

    assert shop.barrier.read(txn_id, NONCE) is None
    engine.dispose()


class AskedByItsThread(sqlite3.Connection):
    """As of Python 3.12 and later: with `check_same_thread`, only its own thread may ask for `autocommit`."""

    said: Any = -1

    @property
    def autocommit(self) -> Any:
        self.cursor().close()  # raises in any other thread
        return self.said


class OnByItsThread(AskedByItsThread):
    """The same, made with `autocommit=True`."""

    said = True


@pytest.mark.parametrize(("kind", "is_refused"), [(AskedByItsThread, False), (OnByItsThread, True)])
def test_asyncio_asks_for_autocommit_in_the_connections_own_thread(
    kind: type[sqlite3.Connection], *, is_refused: bool
) -> None:
    """In memory `check_same_thread` is on, and aiosqlite gives each connection a thread."""

    async def main() -> None:
        engine = create_async_engine("sqlite+aiosqlite://", connect_args={"factory": kind})
        inbox = AsyncInbox(engine, group="loyalty")
        await inbox.create_table()
        try:
            async with (
                AsyncSession(engine) as session,
                session.begin(),
                inbox.once(session, HandledMessage()) as is_new,
            ):
                assert is_new
        finally:
            await engine.dispose()

    with pytest.raises(UsageError, match="autocommit") if is_refused else nullcontext():
        asyncio.run(main())


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_whose_transactions_are_begun_by_hand_is_no_autocommit(shop: Shop) -> None:
    engine = create_engine(shop.engine.url)

    @event.listens_for(engine, "connect")
    def by_hand(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    by_hand_shop = make_shop(engine)
    txn_id, other_id = new_id(), new_id()
    with Session(engine) as session, session.begin():
        joined = by_hand_shop.join(session, txn_id)

    assert LocalState.COMMITTED is joined.state
    assert COMMIT is by_hand_shop.check(txn_id)
    assert ROLLBACK is by_hand_shop.check(other_id)
    engine.dispose()


@each_database
def test_another_database_is_refused(shop: Shop, tmp_path: Any) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with Session(other) as session, pytest.raises(UsageError, match="another database"):
        shop.barrier.check_session(session)
    with other.connect() as connection, pytest.raises(UsageError, match="another database"):
        shop.barrier.check_session(connection)
    other.dispose()


@each_database
def test_another_engine_of_the_same_database_may_be_joined(shop: Shop) -> None:
    other = create_engine(shop.engine.url)
    txn_id = new_id()
    with Session(other) as session, session.begin():
        joined = shop.join(session, txn_id)

    assert LocalState.COMMITTED is joined.state
    assert COMMIT is shop.check(txn_id)
    other.dispose()


@pytest.mark.promise("P8")
def test_a_session_of_another_database_is_refused_also_when_a_creator_connects(tmp_path: Path) -> None:
    """As with connectors of clouds: the addresses are equal, and say nothing."""

    def engine_of(name: str) -> Engine:
        file = tmp_path / name
        return create_engine("sqlite:///db", creator=lambda: sqlite3.connect(file), poolclass=QueuePool)

    shop, billing = make_shop(engine_of("shop")), make_shop(engine_of("billing"))
    with Session(billing.engine) as session, pytest.raises(UsageError, match="another database"):
        shop.join(session, new_id())
    with Session(shop.at("SERIALIZABLE")) as session, session.begin():  # shares the pool
        joined = shop.join(session, new_id())

    assert LocalState.COMMITTED is joined.state
    shop.engine.dispose()
    billing.engine.dispose()


@pytest.mark.parametrize(
    ("url", "is_known"),
    [
        ("sqlite:///shop.db", True),
        ("postgresql+psycopg://db/shop", True),
        ("postgresql+psycopg://?service=shop", True),
        ("postgresql+psycopg://", False),  # connect_args or the environment say where
        ("sqlite://", False),
        ("sqlite:///:memory:", False),
    ],
)
def test_two_pools_are_of_one_database_when_the_address_says_so(url: str, *, is_known: bool) -> None:
    one, other = create_engine(url), create_engine(url)

    assert is_known is is_same_database(one, other)
    assert is_same_database(one, one.execution_options(isolation_level="SERIALIZABLE"))


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
@pytest.mark.promise("P8")
def test_a_two_phase_transaction_of_a_connection_is_refused(shop: Shop) -> None:
    """Its commit knows no refusal: a check may have said rollback before."""
    txn_id = new_id()
    with shop.engine.connect() as connection, connection.begin_twophase():
        with pytest.raises(UsageError, match="two-phase"):
            shop.barrier.check_session(connection)
        with pytest.raises(UsageError, match="two-phase"):
            shop.barrier.write(connection, txn_id=txn_id, nonce=NONCE, group=GROUP)
        with Session(connection) as session, pytest.raises(UsageError, match="two-phase"):
            shop.barrier.check_session(session)

    assert shop.barrier.read(txn_id, NONCE) is None


@each_database
def test_a_savepoint_is_refused(shop: Shop) -> None:
    txn_id = new_id()
    with Session(shop.engine) as session:
        shop.barrier.check_session(session)  # the engine is known from now on
    with Session(shop.engine) as session, session.begin(), session.begin_nested():
        with pytest.raises(UsageError, match="begin_nested"):
            shop.barrier.check_session(session)
        with pytest.raises(UsageError, match="begin_nested"):
            shop.barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)
    with shop.engine.begin() as connection, connection.begin_nested(), pytest.raises(UsageError, match="begin_nested"):
        shop.barrier.check_session(connection)

    assert shop.barrier.read(txn_id, NONCE) is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_is_no_session_is_refused(shop: Shop) -> None:
    for stranger in ("session", shop.engine, None):
        with pytest.raises(UsageError, match="Session or Connection"):
            shop.barrier.check_session(stranger)
    with pytest.raises(UsageError, match="two-phase"):
        shop.barrier.check_session(Session(shop.engine, twophase=True))
    with pytest.raises(UsageError, match="binds"):
        shop.barrier.check_session(Session())


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="file"):
        SqlBarrier(create_engine(url, poolclass=NullPool))


@pytest.mark.parametrize("poolclass", [StaticPool, SingletonThreadPool])
@pytest.mark.promise("P8")
def test_a_pool_that_lends_one_connection_twice_is_refused(
    tmp_path: Path, poolclass: type[StaticPool | SingletonThreadPool]
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", poolclass=poolclass)
    Tables.metadata.create_all(engine)
    txn_id = new_id()
    with pytest.raises(UsageError, match="connection of its own"):  # noqa: PT012 - what follows shows why
        barrier = SqlBarrier(engine)
        barrier.create_table()
        with Session(engine) as session:
            barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)
            session.add(Order(txn_id=txn_id))
            session.flush()
            said = barrier.resolve(txn_id, NONCE, group=GROUP)
            session.rollback()
        assert (ROLLBACK, False) == (said, Shop(engine, barrier).has_order(txn_id))
    engine.dispose()


def test_settings_that_cannot_be_are_refused() -> None:
    engine = create_engine("sqlite:///x.db")
    with pytest.raises(UsageError, match="AsyncEngine"):
        SqlBarrier("sqlite://")  # type: ignore[arg-type] # the mistake
    with pytest.raises(UsageError, match="AsyncEngine"):
        AsyncSqlBarrier(engine)  # type: ignore[arg-type] # the mistake
    with pytest.raises(UsageError, match="name"):
        SqlBarrier(engine, table="a; drop table b")
    with pytest.raises(ConfigError):
        SqlBarrier(engine, lock_wait=timedelta(0))


# --- what an end means ------------------------------------------------------------------------------------------------


@each_database
def test_a_session_reports_its_outermost_commit_only(shop: Shop) -> None:
    txn_id = new_id()
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)
        with session.begin_nested():
            session.add(Order(txn_id=txn_id))
        is_open = joined.state is LocalState.OPEN
        session.commit()

    assert is_open
    assert LocalState.COMMITTED is joined.state
    assert COMMIT is shop.check(txn_id)


@each_database
def test_a_session_whose_commit_leaves_the_outer_transaction_open_is_open(shop: Shop) -> None:
    txn_id = new_id()
    with shop.engine.connect() as connection, connection.begin() as outer:
        session = Session(connection, join_transaction_mode="rollback_only")
        joined = shop.join(session, txn_id)
        session.commit()
        assert LocalState.OPEN is joined.state
        outer.rollback()

    assert ROLLBACK is shop.check(txn_id)


@each_database
def test_a_connection_is_unclear_after_its_commit_and_the_row_tells(shop: Shop) -> None:
    txn_id = new_id()
    with shop.engine.begin() as connection:
        joined = shop.join(connection, txn_id)
        is_open = joined.state is LocalState.OPEN

    assert is_open
    assert LocalState.UNCLEAR is joined.state
    assert COMMIT is shop.check(txn_id)


@each_database
def test_a_connection_without_a_transaction_begins_one(shop: Shop) -> None:
    txn_id = new_id()
    with shop.engine.connect() as connection:
        joined = shop.join(connection, txn_id)
        connection.rollback()

    assert LocalState.ROLLED_BACK is joined.state
    assert ROLLBACK is shop.check(txn_id)


@each_database
def test_a_scoped_session_is_its_session(shop: Shop) -> None:
    registry = scoped_session(sessionmaker(shop.engine))
    joined = shop.join(registry, new_id())
    registry.commit()

    assert LocalState.COMMITTED is joined.state
    registry.remove()


@each_database
def test_a_closed_session_is_rolled_back(shop: Shop) -> None:
    session = Session(shop.engine)
    joined = shop.join(session, new_id())
    session.close()

    assert LocalState.ROLLED_BACK is joined.state


@each_database
def test_a_later_transaction_of_the_session_is_none_of_its_business(shop: Shop) -> None:
    txn_id = new_id()
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)
        session.rollback()
        session.add(Order(txn_id=new_id()))
        session.commit()

    assert LocalState.ROLLED_BACK is joined.state
    assert ROLLBACK is shop.check(txn_id)


@each_database
def test_a_later_transaction_of_the_connection_is_none_of_its_business(shop: Shop) -> None:
    txn_id, later_id = new_id(), new_id()
    orders = Tables.metadata.tables["shop_order"]
    with shop.engine.connect() as connection:
        joined = shop.join(connection, txn_id)
        joined.forbid_commit("said so")
        connection.rollback()
        connection.execute(orders.insert(), {"txn_id": later_id})
        connection.commit()

    assert LocalState.ROLLED_BACK is joined.state
    assert shop.has_order(later_id)
    assert ROLLBACK is shop.check(txn_id)


@each_database
def test_a_commit_that_a_listener_stopped_is_not_taken_for_one(shop: Shop) -> None:
    txn_id = new_id()
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)

        @event.listens_for(shop.engine, "commit")
        def stop(connection: Any) -> None:
            connection.connection.rollback()
            raise OSError("no")

        with pytest.raises(OSError, match="no"):
            session.commit()
        session.rollback()
        event.remove(shop.engine, "commit", stop)
        session.add(Order(txn_id=new_id()))
        session.commit()  # another transaction of the same session

    assert LocalState.UNCLEAR is joined.state
    assert ROLLBACK is shop.check(txn_id)


@servers
def test_a_lost_connection_in_commit_is_read_back_from_the_row(shop: Shop) -> None:
    """The server ends the connection while the session is about to commit: nobody reports, the row is not there."""
    txn_id = new_id()
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
        session.flush()
        kill(shop, session)
        with pytest.raises(DBAPIError):
            session.commit()

    assert LocalState.UNCLEAR is joined.state
    assert ROLLBACK is settled(shop, txn_id)
    assert not shop.has_order(txn_id)


@servers
def test_a_commit_whose_report_is_lost_is_read_back_from_the_row(shop: Shop) -> None:
    """The server commits, and the connection is lost before the session hears of it."""
    txn_id = new_id()
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
        session.flush()
        dialect = shop.engine.dialect
        do_commit = dialect.do_commit

        def lose_the_answer(connection: Any) -> None:
            do_commit(connection)
            raise dialect.loaded_dbapi.OperationalError("server closed the connection")

        dialect.do_commit = lose_the_answer  # type: ignore[method-assign,assignment] # the driver's answer is what gets lost
        try:
            with pytest.raises(DBAPIError):
                session.commit()
        finally:
            del dialect.do_commit

    assert LocalState.UNCLEAR is joined.state
    assert COMMIT is settled(shop, txn_id)
    assert shop.has_order(txn_id)


def kill(shop: Shop, session: Session) -> None:
    """Have the server end the session's connection."""
    of_own = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
    number = session.execute(text(of_own[shop.kind])).scalar_one()
    end = {"postgresql": f"SELECT pg_terminate_backend({number})", "mysql": f"KILL {number}"}
    with shop.engine.connect() as other:
        other.execute(text(end[shop.kind]))


def settled(shop: Shop, txn_id: str) -> Any:
    """A check, again while the server still rolls back."""
    answers = [shop.check(txn_id) for _ in range(20)]
    return next(answer for answer in answers if answer is not UNKNOWN)
