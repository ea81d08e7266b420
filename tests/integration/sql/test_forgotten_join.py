"""A producer with a barrier whose local transaction commits without the row: the sale is refused, not committed beside its messages."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tests.support.shop import GROUP, Order, Shop, async_engine, beside, new_id
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.sql import AsyncSqlBarrier
from txlayer.core.messages import COMMIT, ROLLBACK, Message
from txlayer.errors import BarrierRefusedError, LifecycleError, OutcomeUnknownError, RollbackRequiredError
from txlayer.producer.aio import AsyncTransaction, AsyncTransactionalProducer
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.submitted import SubmittedTransaction

pytestmark = [pytest.mark.sql]

each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
without_its_row = pytest.mark.fault(
    "producer: its local transaction is rolled back, or its commit fails, and the work is repeated without the barrier's row"
)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def kafka() -> MemoryKafka:
    made = MemoryKafka()
    made.create_topic("orders")
    made.create_namespace("txlayer")
    return made


@pytest.fixture
def producer(kafka: MemoryKafka, shop: Shop) -> Iterator[TransactionalProducer]:
    with TransactionalProducer(
        bootstrap_servers=kafka.bootstrap_servers, group=GROUP, connect=kafka.connect_producer, barrier=shop.barrier
    ) as made:
        yield made


def sell(shop: Shop, txn_id: str) -> None:
    with Session(shop.engine) as session, session.begin():
        session.add(Order(txn_id=txn_id))


@each_database
@pytest.mark.promise("P8")
def test_a_local_transaction_that_did_not_join_is_not_committed(shop: Shop, producer: TransactionalProducer) -> None:
    txn_id = new_id()
    with pytest.raises(LifecycleError, match="join"), producer.transaction(txn_id) as tx:  # noqa: PT012 - the block raises
        tx.send("orders", value="v")
        tx.prepare()
        sell(shop, txn_id)

    assert not shop.has_order(txn_id)
    assert ROLLBACK is tx.result(10).resolution
    sell(shop, txn_id)  # behind the block, sessions are the user's own again
    assert shop.has_order(txn_id)


@on_sqlite
@pytest.mark.promise("P8")
def test_a_submitted_local_transaction_that_did_not_join_is_not_committed(
    shop: Shop, producer: TransactionalProducer
) -> None:
    txn_id = new_id()

    def local(_: SubmittedTransaction) -> None:
        sell(shop, txn_id)

    future = producer.submit(Message("orders", None, b"v"), local)
    with pytest.raises(LifecycleError, match="join"):
        future.result(10)

    assert not shop.has_order(txn_id)


Awaited = Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]


async def in_a_task(call: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.wait_for` does it in Python 3.11."""
    await asyncio.create_task(call)


async def at_once(call: Coroutine[Any, Any, None]) -> None:
    await call


@asynccontextmanager
async def in_a_loop(kafka: MemoryKafka, shop: Shop) -> AsyncIterator[tuple[AsyncTransactionalProducer, AsyncEngine]]:
    to_kafka: Any = {"bootstrap_servers": kafka.bootstrap_servers, "connect": kafka.connect_producer}
    async with async_engine(shop.engine.url) as engine:
        barrier = AsyncSqlBarrier(engine)
        async with AsyncTransactionalProducer(group=GROUP, barrier=barrier, **to_kafka) as producer:
            yield producer, engine


@on_sqlite
@pytest.mark.promise("P8")
@pytest.mark.parametrize("awaited", [at_once, in_a_task])
def test_a_local_transaction_of_a_task_that_did_not_join_is_not_committed(
    kafka: MemoryKafka, shop: Shop, awaited: Awaited
) -> None:
    forgotten, other = new_id(), new_id()

    async def main() -> None:
        async with in_a_loop(kafka, shop) as (producer, engine):

            async def add(txn_id: str) -> None:
                async with AsyncSession(engine) as session, session.begin():
                    session.add(Order(txn_id=txn_id))

            with pytest.raises(LifecycleError, match="join"):  # noqa: PT012 - the block is what raises
                async with producer.transaction() as tx:
                    tx.send("orders", value="v")
                    await awaited(tx.prepare())
                    await asyncio.create_task(add(other))  # another task has nothing to do with it
                    await add(forgotten)

    asyncio.run(main())

    assert [False, True] == [shop.has_order(n) for n in (forgotten, other)]


@on_sqlite
def test_commits_of_others_and_of_what_joined_go_on(shop: Shop, producer: TransactionalProducer) -> None:
    inner, elsewhere, read = new_id(), new_id(), new_id()
    with producer.transaction() as tx:
        tx.send("orders", value="v")
        tx.prepare()
        with Session(shop.engine) as session:  # reading commits nothing
            session.execute(text("SELECT 1"))
        with beside() as pool:
            pool.submit(sell, shop, elsewhere).result(10)
        shop.check(read)
        with producer.transaction() as other:
            other.send("orders", value="w")
            with Session(shop.engine) as session, session.begin():
                other.join(session)
                session.add(Order(txn_id=inner))
        with Session(shop.engine) as session, session.begin():
            tx.join(session)

    assert [COMMIT, COMMIT] == [tx.result(10).resolution, other.result(10).resolution]
    assert shop.has_order(inner)
    assert shop.has_order(elsewhere)


@on_sqlite
def test_a_transaction_that_was_let_go_or_rolled_back_stops_nobody(shop: Shop, producer: TransactionalProducer) -> None:
    names = new_id(), new_id()
    with producer.transaction() as tx:
        tx.send("orders", value="v")
        tx.prepare()
        tx.rollback()
        sell(shop, names[0])
    abandoned = producer.transaction()
    abandoned.send("orders", value="v")
    abandoned.prepare()
    del abandoned
    gc.collect()
    sell(shop, names[1])
    with pytest.raises(OutcomeUnknownError):  # of the one that was let go
        producer.close(0.1)

    assert all(shop.has_order(name) for name in names)


# --- rolled back, and done again --------------------------------------------------------------------------------------


def again_in_the_session(_: Shop, session: Session, txn_id: str) -> None:
    session.rollback()  # as SQLAlchemy asks for
    session.add(Order(txn_id=txn_id))
    session.commit()


def again_in_another_session(shop: Shop, session: Session, txn_id: str) -> None:
    session.rollback()
    sell(shop, txn_id)


@without_its_row
@each_database
@pytest.mark.promise("P8")
@pytest.mark.parametrize("again", [again_in_the_session, again_in_another_session])
@pytest.mark.parametrize("is_prepared_first", [False, True])
def test_a_sale_that_is_done_again_after_a_rollback_is_not_committed(
    shop: Shop, producer: TransactionalProducer, again: Callable[[Shop, Session, str], None], *, is_prepared_first: bool
) -> None:
    taken, txn_id = new_id(), new_id()
    sell(shop, taken)
    with (  # noqa: PT012 - the block raises
        pytest.raises(RollbackRequiredError, match="was rolled back"),
        producer.transaction(txn_id) as tx,
    ):
        tx.send("orders", value="v")
        if is_prepared_first:
            tx.prepare()
        with Session(shop.engine) as session:
            tx.join(session)
            session.add(Order(txn_id=taken))
            with pytest.raises(IntegrityError):
                session.flush()
            again(shop, session, txn_id)

    assert not shop.has_order(txn_id)
    assert ROLLBACK is tx.result(10).resolution
    sell(shop, txn_id)  # behind the block, sessions are the user's own again


@on_sqlite
@pytest.mark.promise("P8")
@pytest.mark.parametrize("is_discarded", [False, True])
def test_a_sale_that_is_done_again_on_the_connection_is_not_committed(
    shop: Shop, producer: TransactionalProducer, *, is_discarded: bool
) -> None:
    """SQLAlchemy reports no rollback of a connection that was discarded, and connects anew under the same name."""
    txn_id = new_id()
    add = text(f"INSERT INTO shop_order (txn_id) VALUES ('{txn_id}')")
    with (  # noqa: PT012 - the block raises
        pytest.raises(RollbackRequiredError, match="was rolled back"),
        producer.transaction() as tx,
        shop.engine.connect() as connection,
    ):
        tx.send("orders", value="v")
        tx.join(connection)
        if is_discarded:
            connection.invalidate()
            with pytest.raises(PendingRollbackError):
                connection.commit()
        connection.rollback()
        connection.execute(add)
        connection.commit()

    assert not shop.has_order(txn_id)


@on_sqlite
@pytest.mark.promise("P8")
def test_a_submitted_sale_that_is_done_again_after_a_rollback_is_not_committed(
    shop: Shop, producer: TransactionalProducer
) -> None:
    txn_id = new_id()

    def local(tx: SubmittedTransaction) -> None:
        with Session(shop.engine) as session:
            tx.join(session)
            again_in_the_session(shop, session, txn_id)

    future = producer.submit(Message("orders", None, b"v"), local)
    with pytest.raises(RollbackRequiredError):
        future.result(10)

    assert not shop.has_order(txn_id)


@without_its_row
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.promise("P8")
@pytest.mark.parametrize("with_session", [True, False], ids=["session", "connection"])
def test_a_sale_that_is_done_again_after_its_commit_has_failed_is_not_committed(
    shop: Shop, producer: TransactionalProducer, *, with_session: bool
) -> None:
    """A constraint that is checked at the commit, or a conflict of serializable transactions."""
    txn_id = new_id()
    if shop.kind == "sqlite":
        event.listen(shop.engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys = 1"))
        shop.engine.dispose()
    with shop.engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS late_child"))
        connection.execute(
            text(
                "CREATE TABLE late_child (txn_id VARCHAR(64) REFERENCES shop_order (txn_id) "
                "DEFERRABLE INITIALLY DEFERRED)"
            )
        )
    add = text(f"INSERT INTO shop_order (txn_id) VALUES ('{txn_id}')")
    with (  # noqa: PT012 - the block raises
        pytest.raises(RollbackRequiredError, match="was rolled back"),
        producer.transaction() as tx,
        Session(shop.engine) if with_session else shop.engine.connect() as joinable,
    ):
        tx.send("orders", value="v")
        tx.join(joinable)
        joinable.execute(text("INSERT INTO late_child VALUES ('nobody')"))
        with pytest.raises(IntegrityError):
            joinable.commit()
        joinable.rollback()
        joinable.execute(add)
        joinable.commit()

    assert not shop.has_order(txn_id)
    assert ROLLBACK is tx.result(10).resolution


@without_its_row
@on_sqlite
@pytest.mark.promise("P8")
def test_a_sale_that_is_done_again_after_a_refused_join_is_not_committed(
    shop: Shop, producer: TransactionalProducer
) -> None:
    txn_id = new_id()
    with pytest.raises(LifecycleError, match="join"), producer.transaction() as tx:  # noqa: PT012 - the block raises
        tx.send("orders", value="v")
        tx.prepare()
        assert ROLLBACK is shop.check(tx.txn_id, tx.nonce)
        with Session(shop.engine) as session:
            with suppress(BarrierRefusedError):
                tx.join(session)
            again_in_the_session(shop, session, txn_id)

    assert not shop.has_order(txn_id)
    assert ROLLBACK is tx.result(10).resolution


@without_its_row
@on_sqlite
@pytest.mark.promise("P8")
@pytest.mark.parametrize(("awaited", "sale"), [(at_once, at_once), (in_a_task, at_once), (at_once, in_a_task)])
def test_a_sale_that_a_task_does_again_after_a_rollback_is_not_committed(
    kafka: MemoryKafka, shop: Shop, awaited: Awaited, sale: Awaited
) -> None:
    sold = new_id()

    async def main() -> None:
        async with in_a_loop(kafka, shop) as (producer, engine):

            async def again(tx: AsyncTransaction) -> None:
                async with AsyncSession(engine) as session:
                    await awaited(tx.join(session))
                    await session.rollback()
                    session.add(Order(txn_id=sold))
                    await session.commit()

            with pytest.raises(RollbackRequiredError, match="was rolled back"):  # noqa: PT012 - the block is what raises
                async with producer.transaction() as tx:
                    tx.send("orders", value="v")
                    await sale(again(tx))

    asyncio.run(main())

    assert not shop.has_order(sold)


@on_sqlite
def test_what_is_committed_behind_the_sale_or_its_rollback_is_the_users_own(
    shop: Shop, producer: TransactionalProducer
) -> None:
    beside_it, behind, note = new_id(), new_id(), new_id()
    add = "INSERT INTO shop_order (txn_id) VALUES ('{}')"
    with producer.transaction() as sold, Session(shop.engine) as session:
        sold.send("orders", value="v")
        sold.join(session)
        session.commit()
        sell(shop, beside_it)
    with producer.transaction() as by_connection, shop.engine.connect() as connection:
        by_connection.send("orders", value="v")
        by_connection.join(connection)
        connection.commit()
        connection.execute(text(add.format(behind)))
        connection.commit()
    with producer.transaction() as tx, Session(shop.engine) as session:
        tx.send("orders", value="v")
        tx.join(session)
        session.rollback()
        tx.rollback()
        sell(shop, note)

    results = [each.result(10).resolution for each in (sold, by_connection, tx)]
    assert [COMMIT, COMMIT, ROLLBACK] == results
    assert all(shop.has_order(name) for name in (beside_it, behind, note))


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
@pytest.mark.promise("P8")
@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_two_phase_transaction_that_did_not_join_is_not_committed(
    shop: Shop, producer: TransactionalProducer, *, is_prepared: bool
) -> None:
    txn_id = new_id()
    with (  # noqa: PT012 - the block raises
        pytest.raises(LifecycleError, match="join"),
        producer.transaction() as tx,
        shop.engine.connect() as connection,
    ):
        tx.send("orders", value="v")
        tx.prepare()
        both = connection.begin_twophase()
        connection.execute(text(f"INSERT INTO shop_order (txn_id) VALUES ('{txn_id}')"))
        if is_prepared:
            both.prepare()
        both.commit()

    assert not shop.has_order(txn_id)
