"""A producer with a barrier whose caller prepares and forgets to join: the sale is refused, not committed beside its messages."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.support.shop import GROUP, Order, Shop, beside, make_shop, new_id
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.sql import AsyncSqlBarrier
from txlayer.core.messages import COMMIT, ROLLBACK, Message
from txlayer.errors import LifecycleError, OutcomeUnknownError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.aio_submitted import AsyncSubmittedTransaction
from txlayer.producer.submitted import SubmittedTransaction
from txlayer.producer.sync import TransactionalProducer

pytestmark = [pytest.mark.sql]

each_database = pytest.mark.parametrize(
    "database_url", ["sqlite", "postgresql", "mariadb"], indirect=True
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
        bootstrap_servers=kafka.bootstrap_servers, group=GROUP, connect=kafka.connect_producer,
        barrier=shop.barrier,
    ) as made:  # fmt: skip
        yield made


def sell(shop: Shop, txn_id: str) -> None:
    with Session(shop.engine) as session, session.begin():
        session.add(Order(txn_id=txn_id))


@each_database
@pytest.mark.promise("P8")
def test_a_local_transaction_that_did_not_join_is_not_committed(
    shop: Shop, producer: TransactionalProducer
) -> None:
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


@pytest.mark.promise("P8")
def test_a_local_transaction_of_a_task_that_did_not_join_is_not_committed(
    kafka: MemoryKafka, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    shop = make_shop(create_engine(url))
    forgotten, submitted, other = new_id(), new_id(), new_id()

    async def main() -> None:
        engine = create_async_engine(url.replace("sqlite", "sqlite+aiosqlite"))

        async def add(txn_id: str) -> None:
            async with AsyncSession(engine) as session, session.begin():
                session.add(Order(txn_id=txn_id))

        async def local(_: AsyncSubmittedTransaction) -> None:
            await add(submitted)

        async with AsyncTransactionalProducer(
            bootstrap_servers=kafka.bootstrap_servers, group=GROUP, connect=kafka.connect_producer,
            barrier=AsyncSqlBarrier(engine),
        ) as producer:  # fmt: skip
            with pytest.raises(LifecycleError, match="join"):  # noqa: PT012 - the block is what raises
                async with producer.transaction() as tx:
                    tx.send("orders", value="v")
                    await tx.prepare()
                    await asyncio.create_task(add(other))  # another task has nothing to do with it
                    await add(forgotten)
            with pytest.raises(LifecycleError, match="join"):
                await (await producer.submit(Message("orders", None, b"v"), local))
        await engine.dispose()

    asyncio.run(main())

    assert [False, False, True] == [shop.has_order(n) for n in (forgotten, submitted, other)]
    shop.engine.dispose()


@on_sqlite
def test_commits_of_others_and_of_what_joined_go_on(
    shop: Shop, producer: TransactionalProducer
) -> None:
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
def test_a_transaction_that_was_let_go_or_rolled_back_stops_nobody(
    shop: Shop, producer: TransactionalProducer
) -> None:
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
