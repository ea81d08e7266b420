"""A small application's database: orders, a barrier, and transactions with ids of their own."""

import inspect
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import URL, Engine, MetaData, String, TextClause, event, func, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from txlayer.adapters.ports import LocalState
from txlayer.adapters.sql import SqlBarrier
from txlayer.adapters.sql.joined import JoinedTransaction
from txlayer.core.messages import Resolution

GROUP = "orders"
LOCK_WAIT = timedelta(milliseconds=300)
NONCE = "0a1b2c3d"
ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+aiomysql"}


class Tables(DeclarativeBase):
    """The application's own."""

    metadata = MetaData()


class Order(Tables):
    """What a local transaction makes."""

    __tablename__ = "shop_order"
    txn_id: Mapped[str] = mapped_column(String(64), primary_key=True)


@dataclass
class Shop:
    """One database and its barrier."""

    engine: Engine
    barrier: SqlBarrier
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Which database."""
        return self.engine.dialect.name

    def at(self, isolation: str) -> Engine:
        """The engine at an isolation level."""
        return self.engine.execution_options(isolation_level=isolation)

    def join(self, session: Any, txn_id: str, nonce: str = NONCE) -> JoinedTransaction:
        """The local transaction's first statement."""
        self.barrier.check_session(session)
        return self.barrier.write(session, txn_id=txn_id, nonce=nonce, group=GROUP)

    def check(self, txn_id: str, nonce: str = NONCE) -> Resolution:
        """What a check says."""
        return self.barrier.resolve(txn_id, nonce, group=GROUP)

    def has_order(self, txn_id: str) -> bool:
        """What the database says."""
        with Session(self.engine) as session:
            return session.get(Order, txn_id) is not None

    def row_count(self) -> int:
        """Rows of the barrier."""
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(self.barrier.table)).scalar_one()

    def decision(self, joined: JoinedTransaction | None, txn_id: str) -> Resolution:
        """What a producer would say after its local transaction."""
        if joined is not None and joined.state is LocalState.COMMITTED:
            return Resolution.COMMIT
        return self.check(txn_id)


def make_shop(engine: Engine) -> Shop:
    """The tables and the barrier."""
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def patience(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA busy_timeout = 300")

    barrier = SqlBarrier(engine, lock_wait=LOCK_WAIT)
    barrier.create_table()
    Tables.metadata.create_all(engine)
    return Shop(engine, barrier)


def new_id() -> str:
    """A transaction id that nobody used."""
    return uuid.uuid4().hex


@asynccontextmanager
async def async_engine(url: str | URL) -> AsyncIterator[AsyncEngine]:
    """The database of an address, by its driver for asyncio."""
    made = make_url(url)
    engine = create_async_engine(made.set(drivername=ASYNC_DRIVERS[made.get_backend_name()]))
    try:
        yield engine
    finally:
        await engine.dispose()


def conflict_that_rolls_back(engine: Engine) -> TextClause:
    """A statement of SQLite that fails, and with which the database ends the whole transaction."""
    insert = text("INSERT INTO strict_order VALUES ('1')")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE strict_order (id TEXT UNIQUE ON CONFLICT ROLLBACK)"))
        connection.execute(insert)
    return insert


def words(kind: type) -> dict[str, list[str]]:
    """{public method of a class: names of its parameters}."""
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in inspect.getmembers(kind, callable)
        if (not name.startswith("_") or name == "__init__")
    }


@contextmanager
def beside() -> Iterator[ThreadPoolExecutor]:
    """A thread for the other side."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def is_waiting(answer: Future[Any]) -> bool:
    """True while the other side has said nothing."""
    return not answer.done()
