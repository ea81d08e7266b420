"""The shop: its database, its one business rule, and `Shop.buy`, the transaction that this demo is about.

Nothing here knows that coordinators die. That is the point.
"""

from __future__ import annotations

import gzip
import json
import time
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    select,
)

from txlayer import AsyncTransactionalProducer

DATABASE_FILE = "shop.db"
DATA_FILE = Path(__file__).parent / "data" / "CDNOW_master.txt.gz"

ORDERS = "orders"
LOYALTY = "loyalty"

CDS_PER_MONTH_MAX = 10
"""The rule: nobody gets more CDs in one calendar month. Only the database can say whether a purchase breaks it."""

SCHEMA = MetaData()
PURCHASES = Table(
    "purchases",
    SCHEMA,
    Column("position", Integer, primary_key=True),  # counts up: the order in which rows were stored
    Column("number", Integer, nullable=False, unique=True),
    Column("customer", String(5), nullable=False),
    Column("day", String(8), nullable=False),
    Column("month", String(6), nullable=False),
    Column("cds", Integer, nullable=False),
    Column("cents", Integer, nullable=False),
    Index("purchases_of_a_month", "customer", "month"),
)

# Built once: building a statement takes longer than running it.
_STORE = insert(PURCHASES)
_CDS_OF_THE_MONTH = select(func.sum(PURCHASES.c.cds)).where(
    PURCHASES.c.customer == bindparam("customer"), PURCHASES.c.month == bindparam("month")
)


class Purchase(NamedTuple):
    """One line of the data; `number` is the line's."""

    number: int
    customer: str
    day: str
    cds: int
    cents: int

    @property
    def month(self) -> str:
        """Year and month, such as 199701."""
        return self.day[:6]

    def order(self) -> bytes:
        """The message for whoever packs the parcels."""
        return json.dumps(self._asdict()).encode()

    def loyalty(self) -> bytes:
        """The message for the loyalty programme: one point for each dollar."""
        points = {"number": self.number, "customer": self.customer, "points": self.cents // 100}
        return json.dumps(points).encode()


class Receipt(NamedTuple):
    """How a purchase went."""

    is_accepted: bool
    took_ms: float
    """From `prepare` until the decision was acknowledged, with the local transaction in between."""


class PurchaseRefusedError(Exception):
    """The shop does not sell that; nothing of it is in the database."""


class Shop:
    """Sells. Many tasks may call `buy`, for different customers."""

    def __init__(self, database: Connection, producer: AsyncTransactionalProducer) -> None:
        self._database = database
        self._producer = producer

    async def buy(self, purchase: Purchase) -> Receipt:
        """Store a purchase and tell two topics about it: all of it or, when the rule is broken, nothing."""
        started = time.perf_counter()
        async with self._producer.transaction(
            txn_id=f"purchase-{purchase.number}", ordering_key=purchase.customer
        ) as tx:
            tx.send(ORDERS, key=purchase.customer, value=purchase.order())
            tx.send(LOYALTY, key=purchase.customer, value=purchase.loyalty())
            await tx.prepare()  # both messages are stored now, and nobody can read them yet
            try:
                # Nothing is awaited in here: SQLite writes for one at a time, and answers sooner than a thread would.
                with self._database.begin():
                    store(self._database, purchase)
                is_accepted = True
            except PurchaseRefusedError:
                tx.rollback()
                is_accepted = False
        # The decision is on its way. A shop that need not know when it has arrived leaves this line out.
        await tx.result()
        return Receipt(is_accepted, (time.perf_counter() - started) * 1000)


def store(database: Connection, purchase: Purchase) -> None:
    """Write a purchase into the database.

    Raises:
        PurchaseRefusedError: it breaks the rule. The row is written: the caller rolls back.
    """
    database.execute(_STORE, purchase._asdict() | {"month": purchase.month})
    cds = database.scalar(
        _CDS_OF_THE_MONTH, {"customer": purchase.customer, "month": purchase.month}
    )
    if cds > CDS_PER_MONTH_MAX:
        raise PurchaseRefusedError


def open_database(file: Path) -> Engine:
    """The shop's SQLite database, with its table."""
    engine = create_engine(f"sqlite:///{file}")
    event.listen(engine, "connect", _set_up_connection)
    SCHEMA.create_all(engine)
    return engine


def read_purchases(count_max: int | None = None) -> list[Purchase]:
    """The first `count_max` lines of the file, or all, in the order of their days."""
    with gzip.open(DATA_FILE, "rt", encoding="ascii") as lines:
        next(lines)  # headings
        purchases = [
            Purchase(number, customer, day, int(cds), cents=int(dollars.replace(".", "")))
            for number, line in enumerate(islice(lines, count_max), start=1)
            for customer, day, cds, dollars in [line.split()]
        ]
    # Sorting is stable: two purchases of one customer on one day keep their order.
    return sorted(purchases, key=lambda purchase: purchase.day)


def _set_up_connection(connection: object, _record: object) -> None:
    # Readers do not stop the writer, and a commit does not wait for the disk: it survives the death of the process,
    # which is what this demo is about, but perhaps not a power cut.
    cursor = connection.cursor()  # type: ignore[attr-defined]  # the driver's own
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
