"""A service that sells in transactions with its database until it is told to stop, for tests that end it again and again.

    python -m tests.support.selling SERVERS NAMESPACE TOPIC DATABASE JOURNAL

Whatever it was told is committed goes into the journal: "PID TRANSACTION-ID", a line each.
"""

import os
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tests.support.shop import Order, Shop, make_shop, new_id
from tests.support.waiting import HANG_S
from txlayer import TransactionalProducer
from txlayer.core.messages import COMMIT
from txlayer.errors import OutcomeUnknownError, RetriableError, RollbackRequiredError

SELLERS = "sellers"
THREAD_COUNT = 3
PAUSE_S = 0.05
SOLD_OUT_SHARE = 0.15
BUYER_COUNT = 20


class SoldOutError(Exception):
    """The local transaction is rolled back."""


class Seller:
    """Transactions one after the other, on any number of threads."""

    def __init__(self, producer: TransactionalProducer, shop: Shop, *, topic: str, journal: Path) -> None:
        self.is_over = threading.Event()
        """Nothing more is sold; check-backs are still answered."""
        self._producer = producer
        self._shop = shop
        self._topic = topic
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def work(self, rng: random.Random) -> None:
        """Until it is over; what a broker or a database that is away costs is one transaction."""
        while not self.is_over.wait(PAUSE_S):
            try:
                self._sell(rng)
            except (SoldOutError, SQLAlchemyError, RetriableError, OutcomeUnknownError, RollbackRequiredError):
                continue

    def _sell(self, rng: random.Random) -> None:
        txn_id, buyer = new_id(), f"buyer-{rng.randrange(BUYER_COUNT)}"
        with self._producer.transaction(txn_id, ordering_key=buyer) as tx:
            tx.send(self._topic, key=buyer, value=txn_id.encode())
            with Session(self._shop.engine) as session, session.begin():
                tx.join(session)
                session.add(Order(txn_id=txn_id))
                if rng.random() < SOLD_OUT_SHARE:
                    raise SoldOutError
        if tx.result().resolution is COMMIT:
            # One write: lines of several threads and processes do not mix.
            os.write(self._journal, f"{os.getpid()} {txn_id}\n".encode())


def main() -> None:
    """Sell until SIGUSR1, answer check-backs until SIGTERM."""
    may_end = threading.Event()
    servers, namespace, topic, database, journal = sys.argv[1:6]
    shop = make_shop(create_engine(database))
    with TransactionalProducer(
        bootstrap_servers=servers,
        namespace=namespace,
        group=SELLERS,
        barrier=shop.barrier,
        check_session_timeout=timedelta(seconds=2),
        start_timeout=timedelta(seconds=60),
    ) as producer:
        seller = Seller(producer, shop, topic=topic, journal=Path(journal))

        def stop(number: int, _: object) -> None:
            seller.is_over.set()
            if number == signal.SIGTERM:
                may_end.set()

        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, stop)
        with ThreadPoolExecutor(THREAD_COUNT) as pool:
            # A mistake of any thread ends the process with its traceback.
            for done in [pool.submit(seller.work, random.Random()) for _ in range(THREAD_COUNT)]:
                done.result()
        assert may_end.wait(HANG_S), "nobody ended this process"


if __name__ == "__main__":
    main()
