"""What keeps a local transaction from committing beside its row, or without it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from tests.support.shop import Order, Shop, Tables, beside, conflict_that_rolls_back, new_id
from txlayer.adapters.ports import LocalState
from txlayer.core.messages import COMMIT, ROLLBACK
from txlayer.errors import BarrierRefusedError, RollbackRequiredError

pytestmark = [pytest.mark.sql]

each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)


@each_database
@pytest.mark.parametrize("with_session", [True, False], ids=["session", "connection"])
def test_who_swallows_the_refusal_cannot_commit(shop: Shop, *, with_session: bool) -> None:
    txn_id = new_id()
    assert ROLLBACK is shop.check(txn_id)
    with Session(shop.engine) if with_session else shop.engine.connect() as joinable:
        with pytest.raises(BarrierRefusedError):
            shop.join(joinable, txn_id)
        with suppress(DBAPIError):  # PostgreSQL has ended the transaction already
            joinable.execute(Tables.metadata.tables["shop_order"].insert(), {"txn_id": txn_id})
        with pytest.raises(BarrierRefusedError):
            joinable.commit()

    assert not shop.has_order(txn_id)


@each_database
def test_who_was_told_to_roll_back_cannot_commit(shop: Shop) -> None:
    txn_id = new_id()
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)
        joined.forbid_commit("said so")
        joined.leave()
        session.add(Order(txn_id=txn_id))
        with pytest.raises(RollbackRequiredError, match="said so"):
            session.commit()
        session.rollback()
        session.add(Order(txn_id=new_id()))
        session.commit()  # the next one is free

    assert not shop.has_order(txn_id)


@each_database
def test_a_failed_statement_that_left_the_row_lets_the_rest_commit(shop: Shop) -> None:
    txn_id, twice = new_id(), new_id()
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
        for _ in range(2):
            with suppress(IntegrityError), session.begin_nested():
                session.execute(text(f"INSERT INTO shop_order (txn_id) VALUES ('{twice}')"))
        session.commit()

    assert LocalState.COMMITTED is joined.state
    assert COMMIT is shop.check(txn_id)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_transaction_that_postgresql_has_given_up_is_not_taken_for_committed(shop: Shop) -> None:
    """There, COMMIT of a failed transaction is a rollback that reports no error."""
    txn_id = new_id()
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT 1/0"))
        with pytest.raises(DBAPIError):
            session.commit()

    assert joined.state is not LocalState.COMMITTED
    assert ROLLBACK is shop.check(txn_id)


def commit_is_refused(shop: Shop, session: Session, txn_id: str) -> None:
    """What the session does behind a statement that rolled everything back does not become durable."""
    session.add(Order(txn_id=txn_id))
    with pytest.raises(RollbackRequiredError, match="failed statement"):
        session.commit()
    assert not shop.has_order(txn_id)


@pytest.mark.fault(
    "producer: its local transaction is rolled back, or its commit fails, and the work is repeated without the barrier's row"
)
@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_a_deadlock_that_was_swallowed_does_not_commit_the_rest(shop: Shop) -> None:
    """There, a deadlock rolls everything back, the row too, and the next statement begins another transaction."""
    one, two, txn_id = new_id(), new_id(), new_id()
    with shop.engine.begin() as connection:
        connection.execute(Tables.metadata.tables["shop_order"].insert(), [{"txn_id": one}, {"txn_id": two}])
    lock = "SELECT txn_id FROM shop_order WHERE txn_id = '{}' FOR UPDATE"
    with beside() as other, Session(shop.engine) as session, shop.engine.connect() as rival:
        joined = shop.join(session, txn_id)
        session.execute(text(lock.format(one)))
        for _ in range(3):  # the database gives up the side that has changed less
            rival.execute(text(f"INSERT INTO shop_order (txn_id) VALUES ('{new_id()}')"))
        rival.execute(text(lock.format(two)))
        waiting = other.submit(rival.execute, text(lock.format(one)))
        with pytest.raises(DBAPIError):
            session.execute(text(lock.format(two)))
        waiting.result(20)
        rival.rollback()
        assert ROLLBACK is shop.check(txn_id)
        commit_is_refused(shop, session, txn_id)

    assert joined.state is not LocalState.COMMITTED
    assert ROLLBACK is shop.check(txn_id)


@pytest.mark.fault(
    "producer: its local transaction is rolled back, or its commit fails, and the work is repeated without the barrier's row"
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.promise("P8")
def test_the_row_of_a_check_that_came_meanwhile_is_not_taken_for_the_own(shop: Shop) -> None:
    """It has the same nonce, and says rollback."""
    txn_id, conflict = new_id(), conflict_that_rolls_back(shop.engine)
    with Session(shop.engine) as session:
        joined = shop.join(session, txn_id)
        with pytest.raises(IntegrityError):  # the database ends the whole transaction
            session.connection().execute(conflict)
        assert ROLLBACK is shop.check(txn_id)
        commit_is_refused(shop, session, txn_id)

    assert joined.state is not LocalState.COMMITTED


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_several_transactions_may_join_one_local_transaction(shop: Shop) -> None:
    ids = [new_id(), new_id()]
    with Session(shop.engine) as session:
        both = [shop.join(session, txn_id) for txn_id in ids]
        session.commit()

    assert [LocalState.COMMITTED] * 2 == [joined.state for joined in both]
    assert [COMMIT] * 2 == [shop.check(txn_id) for txn_id in ids]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_nothing_stays_behind_on_a_session_or_engine(shop: Shop) -> None:
    with Session(shop.engine) as session:
        for _ in range(50):
            shop.join(session, new_id()).leave()
            session.commit()
        calls: Callable[..., Any] = session.dispatch.after_commit
        assert 1 == len(list(calls))  # type: ignore[call-overload] # SQLAlchemy's collection of listeners
    assert isinstance(shop.engine, Engine)
    assert 1 == len(list(shop.engine.dialect.dispatch.handle_error))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_row_of_a_check_that_came_meanwhile_does_not_allow_the_commit(shop: Shop) -> None:
    txn_id = new_id()
    with shop.engine.connect() as connection:
        shop.join(connection, txn_id)
        connection.exec_driver_sql("ROLLBACK")  # takes the row along, and SQLAlchemy does not know
        assert ROLLBACK is shop.check(txn_id)
        connection.exec_driver_sql("BEGIN")
        with pytest.raises(DBAPIError):
            connection.exec_driver_sql("INSERT INTO no_table VALUES (1)")
        with pytest.raises(RollbackRequiredError):
            connection.commit()
