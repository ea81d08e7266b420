"""A shop on 69,659 real purchases: database and Kafka stay equal while coordinators are killed.

Starts a real Kafka and two coordinators, sells every purchase of the public CDNOW data set (each one a row in SQLite
and two messages, or nothing), kills each coordinator once with SIGKILL on the way, and compares the database with both
topics at the end. Exit code 0: equal; 1: something differs; 2: it could not run. Begin reading in shop.py.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bad_day import BadDay
from compare import compare
from confluent_kafka import KafkaException
from coordinators import Coordinators, CoordinatorTroubleError, apply_topics
from reading import Watcher, create_topics
from shop import (
    DATABASE_FILE,
    LOYALTY,
    ORDERS,
    Purchase,
    Receipt,
    Shop,
    open_database,
    read_purchases,
)
from show import Percentiles, Report, Show

from txlayer import AsyncTransactionalProducer
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.errors import TxLayerError

TILL_COUNT = 200
"""Customers served at the same time: what they wait for, acknowledgements, comes for many of them at once."""
MANY_IN_ONE_REQUEST = {"linger.ms": "5"}
"""Kafka's own setting: messages wait so long for company. The broker shares two cores with everything else here."""
PURCHASES_MIN = 1_000
"""Fewer are over before a coordinator can be killed in the middle."""
TICK_S = 0.1
SETTLING_MAX_S = 60.0
"""The group notices a dead coordinator after 6 s; the rest is catching up."""


@dataclass
class Sales:
    """How the purchases went, so far."""

    accepted_count: int = 0
    refused_count: int = 0
    took_ms: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Purchases that are over."""
        return len(self.took_ms)

    def add(self, receipt: Receipt) -> None:
        """One more is over."""
        self.accepted_count += receipt.is_accepted
        self.refused_count += not receipt.is_accepted
        self.took_ms.append(receipt.took_ms)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo as the command line says; the exit code."""
    wishes = parse(arguments)
    purchases = read_purchases(wishes.purchases)
    signal.signal(signal.SIGTERM, _stop)
    show = Show(as_json=wishes.json)
    folder = wishes.keep or Path(tempfile.mkdtemp(prefix="txlayer-demo-"))
    is_wanted = wishes.keep is not None
    try:
        report = run(purchases, folder=folder, seed=wishes.seed, show=show)
        show.result(report)
        is_wanted = is_wanted or not report.is_good
    except (TxLayerError, CoordinatorTroubleError, KafkaException, TimeoutError) as exc:
        show.tell(f"[red]error:[/] {exc}")
        is_wanted = True
        return 2
    except KeyboardInterrupt:
        show.tell("stopped")
        return 130
    else:
        return 0 if report.is_good else 1
    finally:
        if is_wanted:
            show.tell(f"database, logs and Kafka's data are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; what cannot be is said and ends the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--purchases",
        type=int,
        metavar="N",
        help=f"only the first N of the file, at least {PURCHASES_MIN}",
    )
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10_000), metavar="N",
        help="decides when who is killed; drawn and shown when it is not given",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="an empty or new folder for database, logs and Kafka's data",
    )
    wishes = parser.parse_args(arguments)
    if wishes.purchases is not None and wishes.purchases < PURCHASES_MIN:
        parser.error(
            f"--purchases: at least {PURCHASES_MIN}, or they are over before anything can be killed"
        )
    if wishes.keep is not None:
        wishes.keep.mkdir(parents=True, exist_ok=True)
        if any(wishes.keep.iterdir()):
            parser.error(f"--keep: {wishes.keep} is not empty")
    return wishes


def run(purchases: list[Purchase], *, folder: Path, seed: int, show: Show) -> Report:
    """The whole demo; everything that it starts has ended when it returns or raises."""
    database_file = folder / DATABASE_FILE
    # Not performance=True: within a minute the second compiler takes more time than it saves.
    with LocalBroker(data=folder / "kafka", config=LocalConfig.from_environ(os.environ)) as broker:
        servers = broker.bootstrap_servers
        show.tell(f"Kafka is ready at {servers}")
        apply_topics(servers)
        create_topics(servers, [ORDERS, LOYALTY])
        with Coordinators(bootstrap_servers=servers, log_folder=folder) as coordinators:
            coordinators.wait_until_ready()
            show.tell(
                f"two coordinators are ready; the shop opens, {TILL_COUNT} customers at a time"
            )
            bad_day = BadDay(coordinators, purchase_count=len(purchases), seed=seed, tell=show.tell)
            with Watcher(servers, ORDERS) as watcher, show.progress(len(purchases)) as on_progress:

                def tick(sales: Sales) -> None:
                    seen = watcher.visible_count
                    on_progress(sales.accepted_count, sales.refused_count, seen)
                    bad_day.go_on(sold_count=sales.count, visible_count=seen)

                opened = time.monotonic()
                sales = asyncio.run(
                    sell(purchases, servers=servers, database_file=database_file, tick=tick)
                )
                closed = time.monotonic()
                settling_s = settle(coordinators, watcher, sales=sales, tick=tick)
            coordinators.stop()
        # Nobody forwards any more: what the topics hold now is all that they will ever hold.
        comparison = compare(database_file, bootstrap_servers=servers, purchases=purchases)
    return Report(
        purchase_count=len(purchases),
        seed=seed,
        kills=bad_day.kills,
        selling_s=closed - opened,
        settling_s=settling_s,
        whole_s=show.elapsed_s,
        buying=Percentiles.of(sales.took_ms),
        forwarding=Percentiles.of(comparison.forward_ms),
        comparison=comparison,
    )


async def sell(
    purchases: list[Purchase],
    *,
    servers: str,
    database_file: Path,
    tick: Callable[[Sales], None],
) -> Sales:
    """Serve all customers, each at one till only, so that nobody buys two things at the same time."""
    tills: list[list[Purchase]] = [[] for _ in range(TILL_COUNT)]
    for purchase in purchases:
        tills[int(purchase.customer) % TILL_COUNT].append(purchase)
    sales = Sales()
    database = open_database(database_file)
    async with AsyncTransactionalProducer(
        bootstrap_servers=servers, group="shop", client_settings=MANY_IN_ONE_REQUEST
    ) as producer:
        with database.connect() as connection:
            shop = Shop(connection, producer)

            async def serve(queue: list[Purchase]) -> None:
                for purchase in queue:
                    sales.add(await shop.buy(purchase))

            serving = asyncio.gather(*map(serve, tills))
            try:
                while not serving.done():
                    tick(sales)
                    await asyncio.wait([serving], timeout=TICK_S)
                await serving
            finally:
                serving.cancel()
                # Whatever ended the loop is raised; here the tills are only waited for.
                await asyncio.gather(serving, return_exceptions=True)
    database.dispose()
    return sales


def settle(
    coordinators: Coordinators, watcher: Watcher, *, sales: Sales, tick: Callable[[Sales], None]
) -> float | None:
    """Seconds until every decision has been carried out; None when that takes too long."""
    closed = time.monotonic()
    while time.monotonic() - closed < SETTLING_MAX_S:
        tick(sales)
        # Asking the coordinators' group starts a program: look first whether it can be over.
        if watcher.visible_count >= sales.accepted_count and coordinators.have_settled():
            return time.monotonic() - closed
        time.sleep(TICK_S)
    return None


def _stop(_number: int, _frame: object) -> None:
    # As Ctrl-C, which a running event loop ends its tasks for.
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
