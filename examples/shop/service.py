"""The shop as a service in a container: sells so many purchases a second until SIGTERM, and lives beside a real cluster.

    python service.py --bootstrap-servers HOST:PORT --database FILE [--per-second N] [--alive FILE] [--insecure]

It creates the topics `orders` and `loyalty` when they are missing. What is in the database is not sold again. When all is
sold it goes on answering check-backs. `--alive` names a file that is touched while the shop works, for a health check.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from reading import create_topics
from shop import LOYALTY, ORDERS, Purchase, QuickBarrier, Shop, open_database, read_purchases
from till import GROUP, open_purchases

from txlayer import AsyncTransactionalProducer
from txlayer.adapters.sql import SqlBarrier
from txlayer.errors import RetriableError

TELL_EVERY = 100
"""Purchases between two lines of output."""
TRY_AGAIN_S = 1.0
"""Pause after the broker could not take a purchase."""


async def sell(
    purchases: list[Purchase], shop: Shop, *, per_second: float, beat: Callable[[], object], closing: asyncio.Event
) -> None:
    """One purchase after the other at a steady rate, until all are sold or the shop closes; `beat` after each."""
    accepted_count = 0
    for count, purchase in enumerate(purchases, start=1):
        if await _closes_within(1 / per_second, closing):
            return
        try:
            receipt = await shop.buy(purchase)
        except RetriableError as exc:  # nothing happened: no broker, or too many open transactions
            print(f"purchase {purchase.number}: {exc}")
            if await _closes_within(TRY_AGAIN_S, closing):
                return
            continue
        accepted_count += receipt.is_accepted
        beat()
        if count % TELL_EVERY == 1:
            print(f"{count} sold, {accepted_count} accepted, the last in {receipt.took_ms:.0f} ms")
    print("all is sold")
    while not await _closes_within(1.0, closing):
        beat()


async def _closes_within(seconds: float, closing: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(closing.wait(), timeout=seconds)
    except TimeoutError:
        return False
    return True


async def run(wishes: argparse.Namespace) -> None:
    """Open, sell, and close at SIGTERM or Ctrl-C."""
    closing = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, closing.set)
    create_missing_topics(wishes.bootstrap_servers)
    database = open_database(wishes.database)
    barrier = SqlBarrier(database)
    barrier.create_table()
    purchases, _ = open_purchases(database, read_purchases())
    async with AsyncTransactionalProducer(
        bootstrap_servers=wishes.bootstrap_servers,
        group=GROUP,
        barrier=QuickBarrier(barrier),
        is_insecure_allowed=wishes.insecure,
    ) as producer:
        with database.connect() as connection:
            # An opening of its own for each start: what was cut off is sold under another transaction id.
            shop = Shop(connection, producer, opening=int(time.time()))
            await sell(purchases, shop, per_second=wishes.per_second, beat=wishes.alive.touch, closing=closing)
    database.dispose()


def create_missing_topics(bootstrap_servers: str) -> None:
    """The shop's topics, unless they are there."""
    for topic in (ORDERS, LOYALTY):
        try:
            create_topics(bootstrap_servers, [topic])
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--database", required=True, type=Path)
    parser.add_argument("--per-second", type=float, default=5.0, metavar="N")
    parser.add_argument("--alive", type=Path, default=Path(os.devnull), metavar="FILE")
    parser.add_argument("--insecure", action="store_true", help="plain text to another machine")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(run(parse(None)))
