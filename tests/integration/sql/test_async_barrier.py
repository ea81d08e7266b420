"""The barrier for asyncio: the same answers with the asyncio drivers of every database, through a producer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from tests.support.shop import GROUP, LOCK_WAIT, NONCE, Order, async_engine, make_shop, new_id, words
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.sql import AsyncSqlBarrier, Doubtful, SqlBarrier
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution
from txlayer.errors import BarrierRefusedError, LifecycleError, UsageError
from txlayer.producer.aio import AsyncTransactionalProducer

pytestmark = [pytest.mark.sql]

each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)

Use = Callable[[AsyncTransactionalProducer, AsyncEngine, AsyncSqlBarrier], Awaitable[None]]


def run(url: str, use: Use) -> None:
    """Run `use(producer, engine, barrier)` in a loop, over Kafka in memory."""
    plain = create_engine(url)
    make_shop(plain)
    plain.dispose()

    async def main() -> None:
        kafka = MemoryKafka()
        kafka.create_topic("orders")
        kafka.create_namespace("txlayer")
        async with async_engine(url) as engine:
            barrier = AsyncSqlBarrier(engine, lock_wait=LOCK_WAIT)
            await barrier.create_table()
            async with AsyncTransactionalProducer(
                bootstrap_servers=kafka.bootstrap_servers, group=GROUP, connect=kafka.connect_producer, barrier=barrier
            ) as producer:
                await use(producer, engine, barrier)

    asyncio.run(main())


@each_database
@pytest.mark.promise("P8")
def test_a_joined_session_decides(database_url: str) -> None:
    async def use(producer: AsyncTransactionalProducer, engine: AsyncEngine, barrier: AsyncSqlBarrier) -> None:
        said = []
        for is_committed in (True, False):
            async with producer.transaction() as tx:
                tx.send("orders", value="v")
                async with AsyncSession(engine) as session:
                    await tx.join(session)
                    session.add(Order(txn_id=new_id()))
                    await (session.commit() if is_committed else session.rollback())
            said += [(await tx.result(10)).resolution, await barrier.read(tx.txn_id, tx.nonce)]
        assert [COMMIT, COMMIT, ROLLBACK, ROLLBACK] == said

    run(database_url, use)


@each_database
def test_a_joined_connection_decides(database_url: str) -> None:
    async def use(producer: AsyncTransactionalProducer, engine: AsyncEngine, barrier: AsyncSqlBarrier) -> None:
        async with producer.transaction() as tx:
            tx.send("orders", value="v")
            async with engine.begin() as connection:
                await tx.join(connection)

        assert COMMIT is (await tx.result(10)).resolution
        assert COMMIT is await barrier.read(tx.txn_id, tx.nonce)

    run(database_url, use)


@each_database
def test_checks_are_answered_in_the_loop(database_url: str) -> None:
    async def use(_producer: AsyncTransactionalProducer, engine: AsyncEngine, barrier: AsyncSqlBarrier) -> None:
        txn_id = new_id()
        async with AsyncSession(engine) as session:
            await barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)
            assert UNKNOWN is await barrier.resolve(txn_id, NONCE, group=GROUP)
            await session.rollback()
        assert await barrier.read(txn_id, NONCE) is None
        many = [Doubtful(txn_id, NONCE), Doubtful(new_id(), NONCE)]
        assert [ROLLBACK, ROLLBACK] == await barrier.resolve_many(many, group=GROUP)
        async with AsyncSession(engine) as session:
            with pytest.raises(BarrierRefusedError):
                await barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)
            await session.rollback()

    run(database_url, use)


@each_database
def test_what_cannot_be_joined_is_refused_in_the_loop(database_url: str) -> None:
    async def use(producer: AsyncTransactionalProducer, engine: AsyncEngine, barrier: AsyncSqlBarrier) -> None:
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(UsageError, match="autocommit"):  # noqa: PT012 - the block is the subject
            async with AsyncSession(autocommit) as session, producer.transaction() as tx:
                tx.send("orders", value="v")
                await tx.join(session)
        with pytest.raises(UsageError, match="AsyncSession"):
            await barrier.check_session("session")
        with pytest.raises(LifecycleError, match="still open"):  # noqa: PT012 - the block is the subject
            async with AsyncSession(engine) as session, producer.transaction() as tx:
                tx.send("orders", value="v")
                await tx.join(session)
        assert Resolution.UNKNOWN is (await tx.result(10)).resolution

    run(database_url, use)


@pytest.mark.fault("producer: a task is cancelled while the barrier's row is written")
@pytest.mark.promise("P8")
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_join_that_is_cancelled_while_its_row_is_written_is_cancelled_and_commits_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_let_go, execute = threading.Event(), aiosqlite.Cursor.execute
    is_inserting, holding = asyncio.Event(), list[asyncio.Future[Any]]()

    async def hold_inserts(cursor: Any, sql: str, *given: Any) -> Any:
        if sql.startswith("INSERT"):
            holding.append(asyncio.ensure_future(cursor._conn._execute(is_let_go.wait)))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(is_inserting.set)
        return await execute(cursor, sql, *given)

    async def use(producer: AsyncTransactionalProducer, engine: AsyncEngine, barrier: AsyncSqlBarrier) -> None:
        async def sell() -> None:
            async with producer.transaction("order-1") as tx:
                tx.send("orders", value="v")
                async with AsyncSession(engine) as session, session.begin():
                    await tx.join(session)

        monkeypatch.setattr(aiosqlite.Cursor, "execute", hold_inserts)
        selling = asyncio.ensure_future(sell())
        await is_inserting.wait()
        monkeypatch.undo()
        selling.cancel()
        asyncio.get_running_loop().call_later(0.05, is_let_go.set)
        with pytest.raises(asyncio.CancelledError):
            await selling
        assert [ROLLBACK] == await barrier.resolve_many([Doubtful("order-1", "0" * 8)], group=GROUP)

    run(database_url, use)


def test_both_barriers_have_the_same_words() -> None:
    assert words(SqlBarrier) == words(AsyncSqlBarrier)
