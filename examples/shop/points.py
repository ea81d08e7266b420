"""The loyalty programme: its own database, and `Loyalty.add_points`, the handler that the demo's second half is about.

One point for each dollar of an order. Nothing here knows that the service is killed, nor that it may be given an order
again: the inbox does.
"""

from __future__ import annotations

import json
from pathlib import Path

from shop import set_up_connection
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, create_engine, event, insert

from txlayer import Context, ReceivedMessage
from txlayer.adapters.sql import Inbox

GROUP = "loyalty"
POINTS_FILE = "points.db"
MENDED_FILE = "mended"

SCHEMA = MetaData()
ENTRIES = Table(
    "entries",
    SCHEMA,
    Column("position", Integer, primary_key=True),  # counts up: the order in which they were written
    # Not unique: an order that counts twice must show.
    Column("number", Integer, nullable=False),
    Column("customer", String(5), nullable=False),
    Column("points", Integer, nullable=False),
)
_ADD = insert(ENTRIES)

FAILING_EVERY = 50
"""Every 50th order meets a hiccup: it fails once, twice or three times, as its number says."""


class HiccupError(Exception):
    """Something that works at the next attempt, or at the one after."""


class BrokenAccountError(Exception):
    """Nothing of this customer can be handled until somebody mends the account."""


class Loyalty:
    """Handles orders, one at a time: SQLite writes for one at a time anyway.

    `broken` is the customer whose orders fail while there is no file `mended`.
    """

    def __init__(self, database: Engine, *, broken: str, mended: Path) -> None:
        self._connection: Connection = database.connect()
        self._inbox = Inbox(database, group=GROUP)
        self._inbox.create_table()
        self._broken = broken
        self._mended = mended

    def add_points(self, message: ReceivedMessage, context: Context) -> bool:
        """Give a customer the points of an order, once; False: they were given before."""
        order = json.loads(message.value)
        with self._connection.begin(), self._inbox.once(self._connection, message) as is_new:
            if is_new:
                entry = {"number": order["number"], "customer": order["customer"], "points": order["cents"] // 100}
                self._connection.execute(_ADD, entry)
            # After the effects: the local transaction takes them back.
            self._fail_now_and_then(order["number"], order["customer"], attempt=context.attempt)
        return is_new

    def _fail_now_and_then(self, number: int, customer: str, *, attempt: int) -> None:
        if customer == self._broken and not self._mended.exists():
            raise BrokenAccountError(f"the account of customer {customer} is broken")
        hiccups, rest = divmod(number, FAILING_EVERY)
        if rest == 0 and attempt <= 1 + hiccups % 3:
            raise HiccupError(f"order {number}, attempt {attempt}")


def open_points(file: Path) -> Engine:
    """The loyalty programme's own SQLite database, with its table."""
    engine = create_engine(f"sqlite:///{file}")
    event.listen(engine, "connect", set_up_connection)
    SCHEMA.create_all(engine)
    return engine
