"""Fencing tokens on real databases: a stale holder changes nothing, at any isolation level, and is told so."""

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from tests.support.shop import async_engine, beside, is_waiting, new_id
from tests.support.waiting import wait_until
from txlayer.adapters.sql import execute_fenced, execute_fenced_async, not_fenced
from txlayer.errors import LeaseLostError, UsageError

pytestmark = [pytest.mark.sql]

each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
each_server = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)

POINTS = Table(
    "points",
    MetaData(),
    Column("customer", String(64), primary_key=True),
    Column("points", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=True),
)


class Base(DeclarativeBase):
    """Of the mapped class."""


class Account(Base):
    """The same table, mapped."""

    __table__ = POINTS.to_metadata(Base.metadata)
    customer: Mapped[str]
    points: Mapped[int]
    fence: Mapped[int | None]


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    POINTS.create(made, checkfirst=True)
    yield made
    made.dispose()


def customer(engine: Engine, *, fence: int | None = 0) -> str:
    """A row."""
    name = new_id()
    with engine.begin() as connection:
        connection.execute(insert(POINTS).values(customer=name, points=0, fence=fence))
    return name


def standing(engine: Engine, name: str) -> tuple[int, int | None]:
    """(points, fence)."""
    with engine.connect() as connection:
        found = connection.execute(select(POINTS.c.points, POINTS.c.fence).where(POINTS.c.customer == name))
        points, fence = found.one()
        return points, fence


def add(engine: Engine, *names: str, token: int, points: int = 1) -> int:
    """What a handler does."""
    with Session(engine) as session, session.begin():
        return execute_fenced(
            session,
            update(POINTS).where(POINTS.c.customer.in_(names)).values(points=POINTS.c.points + points),
            fence=POINTS.c.fence,
            token=token,
        )


@each_database
@pytest.mark.promise("P10")
def test_a_stale_token_changes_nothing(engine: Engine) -> None:
    name = customer(engine)

    assert [1, 1, 1] == [add(engine, name, token=token) for token in (5, 5, 7)]
    with pytest.raises(LeaseLostError) as caught:
        add(engine, name, token=6)

    assert (6, 7) == (caught.value.token, caught.value.current_token)
    assert (3, 7) == standing(engine, name)


@each_database
@pytest.mark.promise("P10")
def test_a_newer_token_in_another_row_stops_nothing(engine: Engine) -> None:
    """Tokens of different queues cannot be compared, and rows of many queues are in one table."""
    name, _ = customer(engine), customer(engine, fence=9)

    assert 1 == add(engine, name, token=8)
    assert (1, 8) == standing(engine, name)


@each_database
def test_one_row_of_a_newer_holder_stops_all(engine: Engine) -> None:
    free, newer = customer(engine), customer(engine, fence=9)

    with pytest.raises(LeaseLostError):
        add(engine, free, newer, token=8)

    assert [(0, 0), (0, 9)] == [standing(engine, free), standing(engine, newer)]


@each_database
def test_a_row_without_a_token_is_free_and_one_that_is_not_there_changes_nothing(engine: Engine) -> None:
    name = customer(engine, fence=None)

    assert [1, 0] == [add(engine, name, token=5), add(engine, "nobody", token=5)]
    assert (1, 5) == standing(engine, name)


@each_database
def test_a_mapped_class_and_a_delete_are_fenced_too(engine: Engine) -> None:
    name = customer(engine, fence=7)
    with Session(engine) as session, session.begin():
        statement = update(Account).where(Account.customer == name).values(points=4)
        assert 1 == execute_fenced(session, statement, fence=Account.fence, token=8)
        account = session.get(Account, name)
        assert account is not None
        assert (4, 8) == (account.points, account.fence)

    gone = delete(Account).where(Account.customer == name)
    with pytest.raises(LeaseLostError), Session(engine) as session, session.begin():
        execute_fenced(session, gone, fence=Account.fence, token=7)
    with engine.begin() as connection:
        assert 1 == execute_fenced(connection, gone, fence=Account.__table__.c.fence, token=8)


@each_database
def test_the_condition_alone_serves_ones_own_statements(engine: Engine) -> None:
    name = customer(engine, fence=7)
    with engine.connect() as connection:
        found = [
            connection.execute(
                select(POINTS.c.customer).where(POINTS.c.customer == name, not_fenced(POINTS.c.fence, token))
            ).first()
            is not None
            for token in (6, 7, 8)
        ]

    assert [False, True, True] == found


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_without_a_token_nothing_is_executed(engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(UsageError, match="ordered"):
        execute_fenced(session, update(POINTS).values(points=1), fence=POINTS.c.fence, token=None)


@each_server
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.promise("P10")
def test_a_stale_holder_that_waits_behind_a_newer_one_is_stopped(engine: Engine, isolation: str) -> None:
    name = customer(engine)
    stale = engine.execution_options(isolation_level=isolation)
    with beside() as pool:
        with Session(engine) as session, session.begin():
            execute_fenced(
                session,
                update(POINTS).where(POINTS.c.customer == name).values(points=10),
                fence=POINTS.c.fence,
                token=8,
            )
            late = pool.submit(add, stale, name, token=7)
            wait_until(lambda: is_waiting(late), within=5, what="the stale holder waits")
        # PostgreSQL itself refuses the second change at REPEATABLE READ.
        with pytest.raises((LeaseLostError, DBAPIError)):
            late.result(20)
    assert (10, 8) == standing(engine, name)


@each_server
@pytest.mark.promise("P10")
def test_a_stale_holder_whose_snapshot_is_older_is_stopped(engine: Engine) -> None:
    name = customer(engine)
    stale = engine.execution_options(isolation_level="REPEATABLE READ")
    with Session(stale) as session:
        session.execute(select(POINTS.c.fence).where(POINTS.c.customer == name)).all()
        add(engine, name, token=8)
        with pytest.raises((LeaseLostError, DBAPIError)):
            execute_fenced(
                session,
                update(POINTS).where(POINTS.c.customer == name).values(points=10),
                fence=POINTS.c.fence,
                token=7,
            )
    assert (1, 8) == standing(engine, name)


@each_database
def test_a_stale_token_changes_nothing_in_the_loop(engine: Engine) -> None:
    name = customer(engine)
    statement = update(POINTS).where(POINTS.c.customer == name).values(points=3)

    async def main() -> None:
        async with async_engine(engine.url) as loop_engine:
            async with AsyncSession(loop_engine) as session, session.begin():
                assert 1 == await execute_fenced_async(session, statement, fence=POINTS.c.fence, token=5)
            with pytest.raises(LeaseLostError):
                async with AsyncSession(loop_engine) as session, session.begin():
                    await execute_fenced_async(session, statement, fence=POINTS.c.fence, token=4)

    asyncio.run(main())
    assert (3, 5) == standing(engine, name)


@each_database
@pytest.mark.promise("P10")
def test_a_base_carries_tokens_over_to_a_new_lock_log(engine: Engine) -> None:
    name = customer(engine)

    def write(token: int) -> None:
        with Session(engine) as session, session.begin():
            statement = update(POINTS).where(POINTS.c.customer == name)
            execute_fenced(session, statement.values(points=1), fence=POINTS.c.fence, token=token)

    old_token, frozen_token = 900, 700
    write(old_token)
    with pytest.raises(LeaseLostError):
        write(3)  # the first tokens of a new log, as they are
    with engine.connect() as connection:
        base = connection.execute(select(POINTS.c.fence).where(POINTS.c.customer == name)).scalar_one()

    write(base + 3)
    for stale in (old_token, frozen_token):
        with pytest.raises(LeaseLostError):
            write(stale)
    write(base + 8)
