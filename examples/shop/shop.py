"""The shop: its database, its one business rule, and `Shop.buy`, the transaction that this demo is about.

Nothing here knows that coordinators die, nor that the shop itself does. That is the point.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

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
    literal,
    select,
)
from sqlalchemy.orm import Session

from txlayer import AsyncTransactionalProducer
from txlayer.adapters.sql import SqlBarrier

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

_COLUMNS = ("number", "customer", "day", "month", "cds", "cents")
_CDS_OF_THE_MONTH = (
    select(func.coalesce(func.sum(PURCHASES.c.cds), 0))
    .where(PURCHASES.c.customer == bindparam("customer"), PURCHASES.c.month == bindparam("month"))
    .scalar_subquery()
)
# The rule and the row in one statement; built once, because building it takes longer than running it.
_STORE = insert(PURCHASES).from_select(
    _COLUMNS,
    select(*(bindparam(name, type_=PURCHASES.c[name].type) for name in _COLUMNS)).where(
        _CDS_OF_THE_MONTH + bindparam("cds", type_=Integer) <= literal(CDS_PER_MONTH_MAX)
    ),
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


class QuickBarrier:
    """The barrier of an asyncio service whose database answers sooner than a thread would: nothing here waits.

    With a server for a database it is `AsyncSqlBarrier`.
    """

    is_async = True

    def __init__(self, barrier: SqlBarrier) -> None:
        self._barrier = barrier

    def belongs_here(self, owner: object) -> None:
        """This task is one of the owner's."""
        self._barrier.belongs_here(owner)

    def expect_join(self, owner: object, joined: Any = None) -> None:
        """Local transactions of this task must join from now on."""
        self._barrier.expect_join(owner, joined)

    def forget_join(self, owner: object) -> None:
        """They need not any more."""
        self._barrier.forget_join(owner)

    async def check_session(self, session: Any) -> None:
        """Refuse what cannot hold the row."""
        self._barrier.check_session(session)

    async def write(self, session: Any, *, txn_id: str, nonce: str, group: str) -> Any:
        """Say commit, in the local transaction."""
        return self._barrier.write(session, txn_id=txn_id, nonce=nonce, group=group)

    async def resolve(self, txn_id: str, nonce: str, *, group: str) -> Any:
        """What the first writer said."""
        return self._barrier.resolve(txn_id, nonce, group=group)

    async def resolve_many(self, doubtful: Sequence[Any], *, group: str) -> Any:
        """The same for many."""
        return self._barrier.resolve_many(doubtful, group=group)


class Shop:
    """Sells. Many tasks may call `buy`, for different customers.

    `opening` counts how often the shop was opened: what it could not finish before is tried under another id.
    `on_stored` is called between a local transaction's commit and its resolution.
    """

    def __init__(
        self,
        database: Connection,
        producer: AsyncTransactionalProducer,
        *,
        opening: int = 1,
        on_stored: Callable[[], None] = lambda: None,
    ) -> None:
        # A session says that it has committed. After a bare connection's commit the barrier is read, to be sure.
        self._session = Session(database)
        self._producer = producer
        self._opening = opening
        self._on_stored = on_stored

    async def buy(self, purchase: Purchase) -> Receipt:
        """Store a purchase and tell two topics about it: all of it or, when the rule is broken, nothing."""
        started = time.perf_counter()
        # A customer's next purchase must not overtake one that is in doubt: order="prepare" makes it wait.
        async with self._producer.transaction(
            txn_id=f"purchase-{purchase.number}.{self._opening}", ordering_key=purchase.customer, order="prepare"
        ) as tx:
            tx.send(ORDERS, key=purchase.customer, value=purchase.order())
            tx.send(LOYALTY, key=purchase.customer, value=purchase.loyalty())
            await tx.prepare()  # both messages are stored now, and nobody can read them yet
            try:
                # Nothing waits in here: SQLite writes for one at a time, and answers sooner than a thread would.
                with self._session.begin():
                    await tx.join(self._session)  # the barrier's row: this local transaction decides
                    store(self._session, purchase)
                is_accepted = True
            except PurchaseRefusedError:
                tx.rollback()
                is_accepted = False
            else:
                self._on_stored()
        # The decision is on its way. A shop that need not know when it has arrived leaves this line out.
        await tx.result()
        return Receipt(is_accepted, (time.perf_counter() - started) * 1000)


def store(session: Session, purchase: Purchase) -> None:
    """Write a purchase into the database.

    Raises:
        PurchaseRefusedError: it breaks the rule. Nothing of it was written.
    """
    stored = session.connection().execute(_STORE, purchase._asdict() | {"month": purchase.month})
    if stored.rowcount == 0:
        raise PurchaseRefusedError


def open_database(file: Path) -> Engine:
    """The shop's SQLite database, with its table."""
    engine = create_engine(f"sqlite:///{file}")
    event.listen(engine, "connect", set_up_connection)
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


def set_up_connection(connection: object, _record: object) -> None:
    """For SQLAlchemy's event: readers do not stop the writer, and a commit does not wait for the disk.

    It survives the death of the process, which is what this demo is about, but perhaps not a power cut.
    """
    cursor = connection.cursor()  # type: ignore[attr-defined]  # the driver's own
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
