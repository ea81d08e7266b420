"""The shop as a process of its own: serves all customers, tells its parent how it goes, and can be killed at any time.

    python till.py --bootstrap-servers HOST:PORT --database FILE --opening N [--purchases N] [--dies-after N]

What it sold stands in the database and in Kafka; its parent is told for the progress bar alone, one JSON line at a
time. When all is sold it goes on answering check-backs until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from shop import PURCHASES, Purchase, QuickBarrier, Receipt, Shop, open_database, read_purchases
from sqlalchemy import Engine, select

from txlayer import AsyncTransactionalProducer
from txlayer.adapters.sql import SqlBarrier

GROUP = "shop"
TILL_COUNT = 200
"""Customers served at the same time: what they wait for, acknowledgements, comes for many of them at once."""
MANY_IN_ONE_REQUEST = {"linger.ms": "20"}
"""Kafka's own setting: messages wait so long for company. The broker shares two cores with everything else here."""
TELL_S = 0.1


class Sales:
    """How it goes: told to the parent, and the moment of death counted."""

    def __init__(self, *, accepted_count: int, refused_count: int, dies_after: int | None) -> None:
        self._dies_after = dies_after
        self._stored_count = 0
        self._took_ms: list[float] = []
        self._accepted_count, self._refused_count = accepted_count, refused_count

    def stored(self) -> None:
        """A local transaction is committed, and nobody has been told: the worst moment for kill -9."""
        self._stored_count += 1
        if self._stored_count == self._dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def add(self, receipt: Receipt) -> None:
        """One more is over."""
        self._accepted_count += receipt.is_accepted
        self._refused_count += not receipt.is_accepted
        self._took_ms.append(round(receipt.took_ms, 1))

    def tell(self, **more: object) -> None:
        """One line for the parent."""
        line = {"accepted": self._accepted_count, "refused": self._refused_count, "took_ms": self._took_ms, **more}
        print(json.dumps(line), flush=True)
        self._took_ms = []


def open_purchases(database: Engine, purchases: list[Purchase]) -> tuple[list[Purchase], int]:
    """(those that may still have to be sold, how many are in the database).

    A customer's purchases up to the last one in the database are over.
    """
    with database.connect() as connection:
        stored = {number for (number,) in connection.execute(select(PURCHASES.c.number))}
    last = {p.customer: index for index, p in enumerate(purchases) if p.number in stored}
    left = [p for index, p in enumerate(purchases) if index > last.get(p.customer, -1)]
    return left, len(stored)


async def sell(purchases: list[Purchase], shop: Shop, sales: Sales) -> None:
    """Serve all customers, each at one till only, so that nobody buys two things at the same time."""
    tills: list[list[Purchase]] = [[] for _ in range(TILL_COUNT)]
    for purchase in purchases:
        tills[int(purchase.customer) % TILL_COUNT].append(purchase)

    async def serve(queue: list[Purchase]) -> None:
        for purchase in queue:
            sales.add(await shop.buy(purchase))

    serving = asyncio.gather(*map(serve, tills))
    try:
        while not serving.done():
            sales.tell()
            await asyncio.wait([serving], timeout=TELL_S)
        await serving
    finally:
        serving.cancel()
        # Whatever ended the loop is raised; here the tills are only waited for.
        await asyncio.gather(serving, return_exceptions=True)


async def run(wishes: argparse.Namespace) -> None:
    """Open, sell, answer until nobody needs it any more, and close."""
    database = open_database(wishes.database)
    barrier = SqlBarrier(database)
    barrier.create_table()
    everything = read_purchases(wishes.purchases)
    purchases, stored_count = open_purchases(database, everything)
    sales = Sales(
        accepted_count=stored_count,
        refused_count=len(everything) - len(purchases) - stored_count,
        dies_after=wishes.dies_after,
    )
    async with AsyncTransactionalProducer(
        bootstrap_servers=wishes.bootstrap_servers,
        group=GROUP,
        barrier=QuickBarrier(barrier),
        client_settings=MANY_IN_ONE_REQUEST,
    ) as producer:
        with database.connect() as connection:
            shop = Shop(connection, producer, opening=wishes.opening, on_stored=sales.stored)
            await sell(purchases, shop, sales)
        sales.tell(is_sold_out=True)
        await asyncio.to_thread(sys.stdin.read)  # check-backs are answered meanwhile
    database.dispose()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--database", required=True, type=Path)
    parser.add_argument("--opening", required=True, type=int)
    parser.add_argument("--purchases", type=int)
    parser.add_argument("--dies-after", type=int, help="SIGKILL itself after so many local commits")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
