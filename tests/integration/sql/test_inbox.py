"""The inbox on real databases: a message's effects once, whoever comes at the same time and whatever fails."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from tests.integration.sql.conftest import started
from tests.support.databases import mariadb_server
from tests.support.handled import HandledMessage, forwarded
from tests.support.shop import Order, Tables, async_engine, beside, conflict_that_rolls_back, is_waiting, new_id, words
from tests.support.waiting import wait_until
from txlayer.adapters.sql import AsyncInbox, Inbox, message_key
from txlayer.adapters.sql.inbox import KEY_LENGTH_MAX
from txlayer.cli.main import build_app
from txlayer.errors import RollbackRequiredError, UsageError

pytestmark = [pytest.mark.sql]

GROUP = "loyalty"

loses_its_row = pytest.mark.fault(
    "consumer: the local transaction of a handler loses the inbox's row (a deadlock, a rollback), and the handler goes on"
)
each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
each_server = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    if made.dialect.name == "sqlite":

        @event.listens_for(made, "connect")
        def patience(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA busy_timeout = 300")

    Tables.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def inbox(engine: Engine) -> Inbox:
    made = Inbox(engine, group=GROUP)
    made.create_table()
    return made


def row_count(inbox: Inbox) -> int:
    with inbox._engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(inbox.table)).scalar_one()


def has_order(engine: Engine, order_id: str) -> bool:
    with Session(engine) as session:
        return session.get(Order, order_id) is not None


def handle(inbox: Inbox, message: HandledMessage, *, order_id: str | None = None) -> bool:
    """What a handler does."""
    with Session(inbox._engine) as session, session.begin():
        with inbox.once(session, message) as is_new:
            if is_new:
                session.add(Order(txn_id=order_id or new_id()))
        return is_new


@each_database
def test_a_message_that_comes_again_is_known(inbox: Inbox) -> None:
    message = forwarded(new_id(), 0)

    assert [True, False, False] == [handle(inbox, message) for _ in range(3)]


@each_database
def test_a_message_counts_as_handled_when_its_effects_are_durable(engine: Engine, inbox: Inbox) -> None:
    message, order_id = forwarded(new_id(), 0), new_id()
    with Session(engine) as session, inbox.once(session, message) as is_new:
        assert is_new
        session.add(Order(txn_id=order_id))
        session.rollback()

    assert not has_order(engine, order_id)
    assert handle(inbox, message, order_id=order_id)
    assert has_order(engine, order_id)


@each_database
def test_a_savepoint_that_holds_the_row_may_be_rolled_back_behind_the_block(engine: Engine, inbox: Inbox) -> None:
    message, order_id, other_id = forwarded(new_id(), 0), new_id(), new_id()
    with Session(engine) as session, session.begin():
        savepoint = session.begin_nested()
        with inbox.once(session, message) as is_new:
            assert is_new
            session.add(Order(txn_id=order_id))
        savepoint.rollback()  # takes row and effects
        session.add(Order(txn_id=other_id))

    assert (False, True) == (has_order(engine, order_id), has_order(engine, other_id))
    assert handle(inbox, message, order_id=order_id)


@each_database
def test_a_message_whose_handler_failed_is_new_again(engine: Engine, inbox: Inbox) -> None:
    message, order_id = forwarded(new_id(), 0), new_id()

    def fail() -> None:
        with Session(engine) as session, session.begin(), inbox.once(session, message):
            session.add(Order(txn_id=order_id))
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert not has_order(engine, order_id)
    assert handle(inbox, message)


@each_database
@pytest.mark.parametrize("is_known", [False, True])
def test_a_block_that_failed_makes_nothing_known_or_new_although_somebody_commits(
    engine: Engine, inbox: Inbox, *, is_known: bool
) -> None:
    message = forwarded(new_id(), 0)
    if is_known:
        handle(inbox, message)
    with Session(engine) as session, session.begin(), pytest.raises(ZeroDivisionError):  # noqa: SIM117 - caught inside the local transaction
        with inbox.once(session, message):
            raise ZeroDivisionError

    assert is_known is not handle(inbox, message)


@each_database
def test_the_error_of_the_block_is_told_also_when_the_database_gave_up(engine: Engine, inbox: Inbox) -> None:
    message = forwarded(new_id(), 0)
    with (
        pytest.raises(SQLAlchemyError, match="nowhere"),
        Session(engine) as session,
        session.begin(),
        inbox.once(session, message),
    ):
        session.execute(text("INSERT INTO nowhere VALUES (1)"))

    assert handle(inbox, message)


@each_server
@pytest.mark.parametrize("is_committed", [True, False])
def test_who_comes_at_the_same_time_waits_for_the_first(engine: Engine, inbox: Inbox, *, is_committed: bool) -> None:
    message = forwarded(new_id(), 0)
    with beside() as pool:
        with Session(engine) as session:
            with inbox.once(session, message) as is_new:
                assert is_new
                second = pool.submit(handle, inbox, message)
                wait_until(lambda: is_waiting(second), within=5, what="the second waits")
            (session.commit if is_committed else session.rollback)()
        assert is_committed is not second.result(20)


# --- effects without the row ------------------------------------------------------------------------------------------

LOCK = "SELECT txn_id FROM shop_order WHERE txn_id = '{}' FOR UPDATE"


@loses_its_row
@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
@pytest.mark.parametrize("is_handled_meanwhile", [False, True])
def test_what_is_done_behind_a_swallowed_deadlock_is_not_committed(
    engine: Engine, inbox: Inbox, *, is_handled_meanwhile: bool
) -> None:
    """There, a deadlock rolls everything back, the row too, and the next statement begins another transaction."""
    one, two, order_id, message = new_id(), new_id(), new_id(), forwarded(new_id(), 0)
    with Session(engine) as session, session.begin():
        session.add_all([Order(txn_id=one), Order(txn_id=two)])
    with beside() as other, Session(engine) as session, engine.connect() as rival:
        with inbox.once(session, message) as is_new:
            assert is_new
            session.execute(text(LOCK.format(one)))
            for _ in range(3):  # the database gives up the side that has changed less
                rival.execute(text(f"INSERT INTO shop_order (txn_id) VALUES ('{new_id()}')"))
            rival.execute(text(LOCK.format(two)))
            waiting = other.submit(rival.execute, text(LOCK.format(one)))
            with pytest.raises(DBAPIError, match="1213"):
                session.execute(text(LOCK.format(two)))
            waiting.result(20)
            rival.rollback()
            if is_handled_meanwhile:  # its row is there, and none of ours
                assert other.submit(handle, inbox, message).result(20)
            session.add(Order(txn_id=order_id))
        with pytest.raises(RollbackRequiredError, match="the inbox's row"):
            session.commit()

    assert not has_order(engine, order_id)
    assert is_handled_meanwhile is not handle(inbox, message)


@loses_its_row
@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
@pytest.mark.parametrize("in_savepoint", [False, True])
def test_messages_in_savepoints_are_not_handled_if_a_later_statement_rolled_all_of_them_back(
    engine: Engine, inbox: Inbox, *, in_savepoint: bool
) -> None:
    """A row that changed after the snapshot: MariaDB rolls everything back, by default from 11.6.2 on."""
    if not getattr(engine.dialect, "is_mariadb", False):
        pytest.skip("MySQL has no such setting")
    changed, order_id, last_id = new_id(), new_id(), new_id()
    first, second, last = (forwarded(new_id(), 0) for _ in range(3))
    with Session(engine) as session, session.begin():
        session.add(Order(txn_id=changed))
    with Session(engine) as session:
        session.connection().exec_driver_sql("SET SESSION innodb_snapshot_isolation = ON")
        session.rollback()
        session.execute(select(Order).where(Order.txn_id == changed)).all()
        with session.begin_nested(), inbox.once(session, first):
            session.add(Order(txn_id=order_id))
        with engine.begin() as other:
            other.execute(delete(Order).where(Order.txn_id == changed))
        block = session.begin_nested() if in_savepoint else nullcontext()
        with suppress(DBAPIError), block, inbox.once(session, second):
            session.execute(text(LOCK.format(changed)))
        with session.begin_nested(), inbox.once(session, last):
            session.add(Order(txn_id=last_id))
        with pytest.raises(RollbackRequiredError, match="the inbox's row"):
            session.commit()

    assert [False, False] == [has_order(engine, order_id), has_order(engine, last_id)]
    assert [True, True, True] == [handle(inbox, message) for message in (first, second, last)]


@loses_its_row
@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_a_lock_that_is_not_free_in_time_takes_no_other_message_along(engine: Engine, inbox: Inbox) -> None:
    assert [True, False] == handle_beside_a_lock(engine, inbox)


@loses_its_row
def test_a_message_in_a_savepoint_is_not_handled_if_a_lock_time_out_rolled_everything_back() -> None:
    with contextmanager(started)(partial(mariadb_server, "--innodb-rollback-on-timeout=ON")) as url:
        engine = create_engine(url)
        Tables.metadata.create_all(engine)
        inbox = Inbox(engine, group=GROUP)
        inbox.create_table()
        with pytest.raises(RollbackRequiredError, match="the inbox's row"):
            handle_beside_a_lock(engine, inbox)
        engine.dispose()


def handle_beside_a_lock(engine: Engine, inbox: Inbox) -> list[bool]:
    """Handle a message in a savepoint, before a statement that waits in vain for a lock; whether it has its effect, and is new."""
    locked, order_id, message = new_id(), new_id(), forwarded(new_id(), 0)
    with Session(engine) as session, session.begin():
        session.add(Order(txn_id=locked))
    with engine.begin() as rival, Session(engine) as session:
        rival.execute(text(LOCK.format(locked)))
        session.connection().exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 1")
        with session.begin_nested(), inbox.once(session, message):
            session.add(Order(txn_id=order_id))
        with pytest.raises(DBAPIError, match="1205"):
            session.execute(text(LOCK.format(locked)))
        session.commit()
    return [has_order(engine, order_id), handle(inbox, message)]


@loses_its_row
@on_sqlite
@pytest.mark.parametrize("is_raised", [False, True])
def test_what_is_done_behind_a_conflict_that_rolled_back_is_not_committed(
    engine: Engine, inbox: Inbox, *, is_raised: bool
) -> None:
    order_id, message = new_id(), forwarded(new_id(), 0)
    conflict = conflict_that_rolls_back(engine)
    with Session(engine) as session:
        with suppress(IntegrityError), inbox.once(session, message):
            try:
                session.connection().execute(conflict)
            except IntegrityError:
                if is_raised:
                    raise
        session.add(Order(txn_id=order_id))
        with pytest.raises(RollbackRequiredError, match="the inbox's row"):
            session.commit()

    assert not has_order(engine, order_id)
    assert handle(inbox, message)


def begins_by_statement(made: Engine) -> None:
    """SQLAlchemy's recipe for savepoints in SQLite: the driver is in autocommit, and a statement begins each transaction."""

    @event.listens_for(made, "connect")
    def leave_it_to_us(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(made, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


@loses_its_row
@pytest.mark.parametrize("kind", ["begun by a statement", *["never in autocommit"][: sys.version_info >= (3, 12)]])
def test_behind_a_conflict_that_rolled_back_no_statement_is_durable_at_once(tmp_path: Path, kind: str) -> None:
    settings = {"connect_args": {"autocommit": False}} if kind == "never in autocommit" else {}
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", **settings)
    if kind == "begun by a statement":
        begins_by_statement(made)
    Tables.metadata.create_all(made)
    inbox, order_id, message = Inbox(made, group=GROUP), new_id(), forwarded(new_id(), 0)
    inbox.create_table()
    conflict = conflict_that_rolls_back(made)

    with Session(made) as session, pytest.raises(RollbackRequiredError, match="the inbox's row"):  # noqa: PT012 - the commit is behind the block
        with inbox.once(session, message):
            with suppress(IntegrityError):
                session.connection().execute(conflict)
            session.add(Order(txn_id=order_id))
            session.flush()
        session.commit()

    assert not has_order(made, order_id)
    assert handle(inbox, message)
    made.dispose()


@loses_its_row
@each_database
@pytest.mark.parametrize("is_in_block", [True, False])
@pytest.mark.parametrize("with_session", [True, False], ids=["session", "connection"])
def test_what_is_done_again_after_a_rollback_is_not_committed(
    engine: Engine, inbox: Inbox, *, is_in_block: bool, with_session: bool
) -> None:
    order_id, message = new_id(), forwarded(new_id(), 0)
    add = text(f"INSERT INTO shop_order (txn_id) VALUES ('{order_id}')")
    with Session(engine) if with_session else engine.connect() as joinable:
        with pytest.raises(RollbackRequiredError, match="the inbox's row"):  # noqa: PT012 - the commit is inside or behind the block
            with inbox.once(joinable, message):
                joinable.execute(add)
                with pytest.raises(IntegrityError):
                    joinable.execute(add)
                joinable.rollback()
                joinable.execute(add)
                if is_in_block:
                    joinable.commit()
            joinable.commit()
        joinable.rollback()
        assert not has_order(engine, order_id)
        joinable.execute(add)
        joinable.commit()  # behind the block, and after a rollback, it is the user's own again

    assert handle(inbox, message)


@each_database
def test_after_a_rollback_in_the_block_reading_goes_on_and_so_does_the_next_message(
    engine: Engine, inbox: Inbox
) -> None:
    first, second, order_id = forwarded(new_id(), 0), forwarded(new_id(), 0), new_id()
    with Session(engine) as session:
        with inbox.once(session, first):
            session.rollback()
            assert session.get(Order, order_id) is None
            with inbox.once(session, second) as is_new:
                session.add(Order(txn_id=order_id))
            session.commit()
        assert is_new

    assert has_order(engine, order_id)
    assert [True, False] == [handle(inbox, first), handle(inbox, second)]


@each_database
def test_a_savepoint_for_each_message_may_be_rolled_back_with_its_row(engine: Engine, inbox: Inbox) -> None:
    taken, fine = new_id(), new_id()
    bad, good = forwarded(new_id(), 0), forwarded(new_id(), 0)
    with Session(engine) as session, session.begin():
        session.add(Order(txn_id=taken))
    with Session(engine) as session, session.begin():
        for message, order_id in ((bad, taken), (good, fine)):
            with suppress(IntegrityError), session.begin_nested(), inbox.once(session, message):
                session.add(Order(txn_id=order_id))  # written at the savepoint's end, behind the block

    assert has_order(engine, fine)
    assert [True, False] == [handle(inbox, bad), handle(inbox, good)]


@each_database
def test_a_savepoint_that_is_rolled_back_behind_a_failed_block_brings_no_row_back(inbox: Inbox) -> None:
    message = forwarded(new_id(), 0)
    with Session(inbox._engine) as session, session.begin():
        savepoint = None
        with suppress(ZeroDivisionError), inbox.once(session, message):
            savepoint = session.begin_nested()
            session.execute(text("SELECT 1"))
            raise ZeroDivisionError
        assert savepoint is not None
        savepoint.rollback()
        with pytest.raises(RollbackRequiredError, match="left a savepoint open"), inbox.once(session, message):
            pass

    assert [True, False] == [handle(inbox, message), handle(inbox, message)]


@on_sqlite
def test_a_row_in_a_savepoint_that_is_the_first_statement_is_rolled_back_with_the_rest(
    engine: Engine, inbox: Inbox
) -> None:
    message, order_id = forwarded(new_id(), 0), new_id()
    with suppress(ZeroDivisionError), Session(engine) as session, session.begin():
        with session.begin_nested(), inbox.once(session, message) as is_new:
            assert is_new
            session.add(Order(txn_id=order_id))
        raise ZeroDivisionError

    assert not has_order(engine, order_id)
    assert [True, False] == [handle(inbox, message), handle(inbox, message)]


@on_sqlite
def test_the_first_message_in_a_savepoint_of_another_engine_is_refused_and_comes_again(
    engine: Engine, inbox: Inbox, database_url: str
) -> None:
    """The inbox did not see where that savepoint began: its release would commit the row without what comes behind it."""
    other = create_engine(database_url)
    message, order_id = forwarded(new_id(), 0), new_id()

    def act(*, fails: bool) -> None:
        with Session(other) as session, session.begin():
            with session.begin_nested(), inbox.once(session, message) as is_new:
                assert is_new
                session.add(Order(txn_id=order_id))
            if fails:
                raise ZeroDivisionError

    try:
        with pytest.raises(RollbackRequiredError, match="roll back, and handle the message again"):
            act(fails=False)
        with pytest.raises(ZeroDivisionError):
            act(fails=True)
        assert not has_order(engine, order_id)
        act(fails=False)
        assert has_order(engine, order_id)
    finally:
        other.dispose()


@on_sqlite
@pytest.mark.usefixtures("inbox")
def test_a_savepoint_is_as_durable_as_before_in_autocommit(engine: Engine) -> None:
    order_id = new_id()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with connection.begin_nested():
            connection.execute(insert(Order).values(txn_id=order_id))
        connection.rollback()

    assert has_order(engine, order_id)


@loses_its_row
@each_database
@pytest.mark.parametrize("is_in_block", [True, False])
def test_what_is_done_behind_the_rows_savepoint_is_not_committed_without_it(
    engine: Engine, inbox: Inbox, *, is_in_block: bool
) -> None:
    order_id, message = new_id(), forwarded(new_id(), 0)
    with Session(engine) as session:
        savepoint = session.begin_nested()
        with pytest.raises(RollbackRequiredError, match="the inbox's row"):  # noqa: PT012 - the commit is inside or behind the block
            with inbox.once(session, message) as is_new:
                assert is_new
                savepoint.rollback()
                session.add(Order(txn_id=order_id))
                if is_in_block:
                    session.commit()
            session.commit()

    assert not has_order(engine, order_id)
    assert handle(inbox, message, order_id=order_id)


@each_database
def test_a_failed_block_takes_no_row_of_another(engine: Engine, inbox: Inbox) -> None:
    """The block's own local transaction had ended, and the message was handled by somebody else meanwhile."""
    message = forwarded(new_id(), 0)
    with engine.connect() as connection:
        with pytest.raises(ZeroDivisionError), inbox.once(connection, message):  # noqa: PT012 - the block raises
            connection.rollback()
            assert handle(inbox, message)
            raise ZeroDivisionError
        connection.commit()

    assert not handle(inbox, message)


@each_database
def test_groups_that_share_a_table_do_not_see_each_other(engine: Engine, inbox: Inbox) -> None:
    message = forwarded(new_id(), 0)

    assert handle(inbox, message)
    assert handle(Inbox(engine, group="billing"), message)


@each_database
def test_keys_differ_by_every_letter_and_blank_and_long_ones_are_hashed(engine: Engine, inbox: Inbox) -> None:
    assert inbox.table.name == "txlayer_inbox"
    unique = new_id()
    words = [f"{unique}a", f"{unique}A", f"{unique}Zürich", f"{unique}Zurich", unique * 20, unique * 21]
    # As a key whose bytes are not UTF-8 is decoded with `surrogateescape`.
    words += [f"{unique}ü\udcff", f"{unique}ü\\udcff", unique, f"{unique} ", f"{unique}  ", f" {unique}"]
    keyed = [Inbox(engine, group=GROUP, key=lambda _, word=word: word) for word in words]  # type: ignore[misc]  # one each

    assert [True] * 12 == [handle(each, HandledMessage()) for each in keyed]
    assert [False] * 12 == [handle(each, HandledMessage()) for each in keyed]


@on_sqlite
def test_an_id_that_was_prepared_and_committed_twice_is_two_messages(inbox: Inbox) -> None:
    origins = (b"3:1027|0/1|1700000000000", b"3:2051|0/1|1700000003500")
    first, second = (HandledMessage(headers=[("txl-id", b"order-1"), ("txl-origin", origin)]) for origin in origins)

    assert [True, True] == [handle(inbox, first), handle(inbox, second)]
    assert [False, False] == [handle(inbox, first), handle(inbox, second)]


@on_sqlite
def test_a_key_is_the_transaction_and_index_else_the_place(inbox: Inbox) -> None:
    assert "txn:order-1/1700000000000/2" == message_key(forwarded("order-1", 2))
    assert "at:orders/3/17" == message_key(HandledMessage())
    broken = HandledMessage(headers=[("txl-id", b"order-1"), ("txl-origin", b"?")])
    assert "at:orders/3/17" == message_key(broken)
    headers = [*forwarded("order-1", 2).headers, ("txl-dlq", b"1|")]
    assert "at:orders/3/17" == message_key(HandledMessage(headers=headers)), "several groups may give one message up"
    longest = message_key(HandledMessage(topic="t" * 249))
    assert KEY_LENGTH_MAX >= len(inbox.key_of(HandledMessage(topic="t" * 249)))
    assert longest != inbox.key_of(HandledMessage(topic="t" * 249))


def test_a_purge_on_a_pool_that_lends_one_connection_twice_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", poolclass=StaticPool)
    Tables.metadata.create_all(engine)
    inbox, order_id = Inbox(engine, group=GROUP), new_id()
    inbox.create_table()
    with Session(engine) as session:
        session.add(Order(txn_id=order_id))
        session.flush()
        with pytest.raises(UsageError, match="connection of its own"):
            inbox.purge(timedelta(days=60))
        session.rollback()

    assert not has_order(engine, order_id)
    engine.dispose()


@each_database
def test_a_connection_and_a_scoped_session_serve_too(engine: Engine, inbox: Inbox) -> None:
    first, second = forwarded(new_id(), 0), forwarded(new_id(), 0)
    with engine.connect() as connection:
        with inbox.once(connection, first) as is_new:
            assert is_new
        connection.commit()
    scoped = scoped_session(sessionmaker(engine))
    with inbox.once(scoped, second) as is_new:
        assert is_new
    scoped.commit()
    scoped.remove()

    assert [False, False] == [handle(inbox, first), handle(inbox, second)]


@on_sqlite
def test_what_cannot_be_a_local_transaction_is_refused(engine: Engine, inbox: Inbox) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    other = create_engine("sqlite://")
    with Session(other) as session, pytest.raises(UsageError, match="another database"):
        inbox.once(session, HandledMessage()).__enter__()
    other.dispose()
    with pytest.raises(UsageError, match="Session or Connection"):
        inbox.once("session", HandledMessage()).__enter__()
    with pytest.raises(UsageError, match="Engine"):
        Inbox("engine", group=GROUP)  # type: ignore[arg-type]  # the subject
    with pytest.raises(UsageError, match="group"):
        Inbox(engine, group="no group")
    with Session(autocommit) as session, pytest.raises(UsageError, match="autocommit"):
        inbox.once(session, HandledMessage()).__enter__()
    assert 0 == row_count(inbox)


# --- purge ------------------------------------------------------------------------------------------------------------


def aged(inbox: Inbox, count: int, *, days: float) -> list[HandledMessage]:
    """Messages that were handled so long ago."""
    messages = [forwarded(new_id(), 0) for _ in range(count)]
    made = datetime.now(UTC) - timedelta(days=days)
    for message in messages:
        handle(inbox, message)
    columns = inbox.table.c
    with inbox._engine.begin() as connection:
        if inbox._engine.dialect.name == "mysql":
            connection.execute(text("SET time_zone = '+00:00'"))
        for message in messages:
            key = columns.message_key == inbox.key_of(message)
            connection.execute(update(inbox.table).where(key).values(seen_at=made))
    return messages


@each_database
def test_old_rows_of_this_group_go(engine: Engine) -> None:
    inbox, other = Inbox(engine, group=new_id()), Inbox(engine, group=new_id())
    inbox.create_table()
    old, young, others = aged(inbox, 4, days=15), aged(inbox, 3, days=13), aged(other, 2, days=15)

    seen = inbox.purge(timedelta(days=14), is_dry_run=True)
    done = inbox.purge(timedelta(days=14))

    assert ((7, 4), (7, 4)) == (seen, done)
    assert [True] * 4 == [handle(inbox, message) for message in old]
    assert [False] * 3 == [handle(inbox, message) for message in young]
    assert [False] * 2 == [handle(other, message) for message in others]
    with pytest.raises(UsageError, match="age"):
        inbox.purge(timedelta(0))
    with pytest.raises(UsageError, match="age"):
        inbox.purge(timedelta(days=1_000_000))


@each_database
def test_the_old_row_of_an_empty_key_goes_as_any_other(engine: Engine) -> None:
    inbox = Inbox(engine, group=new_id(), key=lambda _message: "")
    inbox.create_table()
    aged(inbox, 1, days=15)

    assert (1, 1) == inbox.purge(timedelta(days=14))


def run(*words: str) -> None:
    """`txlayer inbox …`."""
    build_app()(["inbox", *words], standalone_mode=False)


@each_database
def test_the_commands_create_and_purge(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A command line takes no password.
    url = engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("TXLAYER_INBOX_URL", url)
    run("create")
    inbox = Inbox(engine, group=new_id())
    aged(inbox, 2, days=40)
    group = ("--group", inbox._group)

    run("purge", *group, "--older-than", "30d", "--dry-run", "--json")
    seen = json.loads(capsys.readouterr().out.splitlines()[-1])
    run("purge", *group, "--older-than", "30d")

    assert {"row_count": 2, "purged_count": 2, "is_dry_run": True} == seen
    assert "2 of 2 rows purged" in capsys.readouterr().out
    assert 0 == inbox.purge(timedelta(days=1)).row_count


# --- asyncio ----------------------------------------------------------------------------------------------------------


def in_loop(inbox: Inbox, use: Callable[[AsyncInbox, Any], Any]) -> None:
    async def main() -> None:
        async with async_engine(inbox._engine.url) as engine:
            await use(AsyncInbox(engine, group=GROUP), engine)

    asyncio.run(main())


@each_database
def test_a_message_is_handled_once_in_the_loop(inbox: Inbox) -> None:
    async def use(twin: AsyncInbox, engine: Any) -> None:
        await twin.create_table()
        message = forwarded(new_id(), 0)
        said = []
        for is_failing in (True, False, False):
            async with AsyncSession(engine) as session, session.begin():
                try:
                    async with twin.once(session, message) as is_new:
                        said.append(is_new)
                        if is_new:
                            await session.execute(insert(Order).values(txn_id=new_id()))
                        if is_failing:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    continue
        assert [True, True, False] == said
        assert 0 == (await twin.purge(timedelta(days=1), is_dry_run=True)).purged_count
        with pytest.raises(UsageError, match="AsyncSession"):
            await twin.once("session", message).__aenter__()

    in_loop(inbox, use)


@loses_its_row
@each_database
def test_what_is_done_again_after_a_rollback_is_not_committed_in_the_loop(engine: Engine, inbox: Inbox) -> None:
    names = [new_id(), new_id()]

    async def use(twin: AsyncInbox, engine: Any) -> None:
        for name, is_in_block in zip(names, (True, False), strict=True):
            async with AsyncSession(engine) as session:
                with pytest.raises(RollbackRequiredError, match="the inbox's row"):  # noqa: PT012 - the commit is inside or behind the block
                    async with twin.once(session, forwarded(name, 0)):
                        await session.rollback()
                        await session.execute(insert(Order).values(txn_id=name))
                        if is_in_block:
                            await session.commit()
                    await session.commit()

    in_loop(inbox, use)

    assert [False, False] == [has_order(engine, name) for name in names]


@on_sqlite
def test_both_inboxes_have_the_same_words(engine: Engine) -> None:
    steps = {"key_of", "see", "forget", "leave"}
    plain = {name: found for name, found in words(Inbox).items() if name not in steps}
    assert plain == words(AsyncInbox)
    with pytest.raises(UsageError, match="AsyncEngine"):
        AsyncInbox(engine, group=GROUP)  # type: ignore[arg-type]  # the subject
