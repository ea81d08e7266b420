"""A till: a sale goes into the till's own database, and others are told; both or neither."""

from __future__ import annotations

import sqlite3

from txlayer import CheckRequest, Resolution, TransactionalProducer

GROUP = "till"


class OutOfStockError(Exception):
    """There is not enough of it; nothing was sold."""


class Till:
    """Sells one kind of thing. The producer is given to it, so that tests can give it theirs."""

    def __init__(self, database: str, *, producer: TransactionalProducer, topic: str) -> None:
        self._database = sqlite3.connect(database)
        self._producer = producer
        self._topic = topic

    def sell(self, sale: str, *, customer: str, count: int) -> None:
        """Sell so many.

        Raises:
            OutOfStockError: nothing was sold, and nobody is told.
        """
        with self._producer.transaction(sale, ordering_key=customer) as tx:
            tx.send(self._topic, key=customer, value=str(count))
            tx.prepare()
            try:
                with self._database:
                    self._take(sale, count)
            except OutOfStockError:
                tx.rollback()
                raise

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _take(self, sale: str, count: int) -> None:
        taken = self._database.execute("UPDATE stock SET count = count - ? WHERE count >= ?", (count, count))
        if taken.rowcount == 0:
            raise OutOfStockError
        self._database.execute("INSERT INTO sales VALUES (?, ?)", (sale, count))


def open_shop(database: str, *, stock: int) -> None:
    """Make the till's tables."""
    with sqlite3.connect(database) as opened:
        opened.execute("CREATE TABLE stock (count INTEGER)")
        opened.execute("CREATE TABLE sales (id TEXT PRIMARY KEY, count INTEGER)")
        opened.execute("INSERT INTO stock VALUES (?)", (stock,))
    opened.close()


def was_sold(database: str, request: CheckRequest) -> Resolution:
    """The answer to a check-back: only what is in the database was sold."""
    with sqlite3.connect(database) as opened:
        found = opened.execute("SELECT 1 FROM sales WHERE id = ?", (request.txn_id,)).fetchone()
    opened.close()
    return Resolution.COMMIT if found else Resolution.UNKNOWN
