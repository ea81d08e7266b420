"""Local transactions that lose their row and go on, with a guard of `adapters/sql` and without it: on SQLite, in no world."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Connection, create_engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tests.support.checker import Kind
from tests.support.handled import forwarded
from tests.support.shop import GROUP, LOCK_WAIT, Order, Shop, make_shop
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.sql import Inbox, SqlBarrier
from txlayer.adapters.sql.inbox import Seen
from txlayer.adapters.sql.joined import JoinedTransaction, Watch
from txlayer.adapters.sql.tables import SqliteRules
from txlayer.core.messages import ROLLBACK
from txlayer.errors import RollbackRequiredError
from txlayer.producer.producer import TransactionalProducer

NOTHING: frozenset[Kind] = frozenset()

# --- without a guard --------------------------------------------------------------------------------------------------


class LenientBarrier(SqlBarrier):
    """Once a local transaction has joined, it does not watch what else its thread commits."""

    def expect_join(self, owner: object, joined: JoinedTransaction | None = None) -> None:
        """Until the first join."""
        if joined is None:
            super().expect_join(owner)
        else:
            self.forget_join(owner)


class CredulousBarrier(SqlBarrier):
    """Takes any row of the attempt for the local transaction's own, and a failed statement for one that ended nothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._watch = Watch(_Unended())

    def _has_row(self, txn_id: str, nonce: str, connection: Connection) -> bool:
        columns = self.table.c
        row = select(columns.nonce).where(columns.txn_id == txn_id, columns.nonce == nonce)
        return connection.execute(row).first() is not None


class _Unended(SqliteRules):
    def has_ended(self, *_: object) -> bool:
        return False


class LenientInbox(Inbox):
    """Does not watch the local transaction that holds its row."""

    def see(self, session: Any, message: Any) -> Seen | None:
        """Write the row, and no more."""
        seen = super().see(session, message)
        if seen is not None:
            self._watch.forget(seen.joined)
        return seen


# --- histories --------------------------------------------------------------------------------------------------------


def sell_again(barrier: type[SqlBarrier]) -> frozenset[Kind]:
    """A sale is rolled back inside its block, and done again in the same session."""
    with _shop(barrier) as shop:
        kafka = MemoryKafka()
        kafka.create_topic("orders")
        kafka.create_namespace("txlayer")
        with TransactionalProducer(
            bootstrap_servers=kafka.bootstrap_servers, group=GROUP, connect=kafka.connect_producer, barrier=shop.barrier
        ) as producer:
            tx = producer.transaction("order-1")
            with suppress(RollbackRequiredError), tx, Session(shop.engine) as session:
                tx.send("orders", value="v")
                tx.join(session)
                session.rollback()
                session.add(Order(txn_id="order-1"))
                session.commit()
            is_lost = tx.result(10).resolution is ROLLBACK and shop.has_order("order-1")
    return frozenset({Kind.LOST}) if is_lost else NOTHING


def sell_behind_a_failed_statement(barrier: type[SqlBarrier]) -> frozenset[Kind]:
    """A failed statement takes the row along, a check says rollback, and the sale goes on."""
    with _shop(barrier) as shop, Session(shop.engine) as session:
        insert = text("INSERT INTO strict_order VALUES ('order-0')")
        with shop.engine.begin() as connection:
            connection.execute(text("CREATE TABLE strict_order (id TEXT UNIQUE ON CONFLICT ROLLBACK)"))
            connection.execute(insert)
        shop.join(session, "order-1")
        with suppress(IntegrityError):
            session.connection().execute(insert)
        said = shop.check("order-1")
        session.add(Order(txn_id="order-1"))
        with suppress(RollbackRequiredError):
            session.commit()
        is_lost = said is ROLLBACK and shop.has_order("order-1")
    return frozenset({Kind.LOST}) if is_lost else NOTHING


def handle_again(inbox: type[Inbox]) -> frozenset[Kind]:
    """A handler rolls back, does its work again and commits; then the message comes a second time."""
    message = forwarded("order-1", 0)
    with _shop(SqlBarrier) as shop:
        seen = inbox(shop.engine, group=GROUP)
        seen.create_table()
        for order in ("order-1", "order-2"):
            with (
                suppress(RollbackRequiredError),
                Session(shop.engine) as session,
                seen.once(session, message) as is_new,
            ):
                if is_new:
                    session.rollback()
                    session.add(Order(txn_id=order))
                    session.commit()
        is_doubled = shop.has_order("order-1") and shop.has_order("order-2")
    return frozenset({Kind.AGAIN}) if is_doubled else NOTHING


@contextmanager
def _shop(barrier: type[SqlBarrier]) -> Iterator[Shop]:
    with TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'shop.db'}")
        shop = make_shop(engine)
        yield replace(shop, barrier=barrier(engine, lock_wait=LOCK_WAIT))
        engine.dispose()
