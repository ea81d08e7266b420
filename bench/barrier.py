"""A local transaction in PostgreSQL with the barrier against the same without it, in pairs; a batch of checks in SQLite.

python bench/barrier.py [--pairs 400] [--rounds 5] [--checks 100000]

The local transaction is a small shop's: an order with three lines, and the customer's balance. Both sides run on one
server that syncs every commit, one after the other, in turns, so that whatever disturbs the machine disturbs both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid
from pathlib import Path

from harness import Figure, scratch_folder, settings_line, show_figures
from sqlalchemy import Engine, ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from txlayer.adapters.ports import LocalState
from txlayer.adapters.sql import Doubtful, SqlBarrier
from txlayer.core.messages import ROLLBACK
from txlayer.producer.identity import Identity, now_ms

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.databases import postgresql_server

CUSTOMER_COUNT = 1_000
IDENTITY = Identity(partition_count=8)
LINE_COUNT = 3


class Tables(DeclarativeBase):
    """The shop's."""


class Customer(Tables):
    """Who buys."""

    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance_cents: Mapped[int]


class Order(Tables):
    """One purchase."""

    __tablename__ = "purchase"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    lines: Mapped[list[Line]] = relationship()


class Line(Tables):
    """One thing of it."""

    __tablename__ = "line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    sku: Mapped[str]
    price_cents: Mapped[int]


def buy(session: Session, number: int) -> None:
    """The local transaction's own work."""
    customer = session.get_one(Customer, number % CUSTOMER_COUNT + 1)
    customer.balance_cents -= 300
    lines = [Line(sku=f"sku-{number % 97}-{n}", price_cents=100) for n in range(LINE_COUNT)]
    session.add(Order(customer_id=customer.id, lines=lines))


def timed(engine: Engine, barrier: SqlBarrier | None, number: int) -> float:
    """Seconds of one local transaction; the session is made and closed within."""
    txn_id, nonce = IDENTITY.draw(None, now_ms()).split("/")
    begun = time.perf_counter()
    with Session(engine) as session, session.begin():
        if barrier is not None:
            barrier.check_session(session)
            joined = barrier.write(session, txn_id=txn_id, nonce=nonce, group="bench")
        buy(session, number)
    if barrier is not None:
        if joined.state is not LocalState.COMMITTED:
            raise RuntimeError(f"the local transaction is {joined.state.value}")
        joined.leave()
    return time.perf_counter() - begun


def measure_postgresql(pairs: int, rounds: int) -> float:
    """The barrier's share on top, in percent: the median of the rounds."""
    shares = []
    with postgresql_server(is_durable=True) as url:
        # One engine for each side: a barrier listens to its own.
        engine, plain_engine = create_engine(url), create_engine(url)
        barrier = SqlBarrier(engine)
        barrier.create_table()
        Tables.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add_all(Customer(id=n + 1, balance_cents=0) for n in range(CUSTOMER_COUNT))
        for number in range(pairs):
            timed(engine, barrier, number)
            timed(plain_engine, None, number)
        for round_number in range(rounds):
            plain, joined = [], []
            for number in range(pairs):
                # Who goes first changes, so that neither side always meets what the other left behind.
                order = (plain, joined) if number % 2 else (joined, plain)
                for side in order:
                    if side is joined:
                        side.append(timed(engine, barrier, number))
                    else:
                        side.append(timed(plain_engine, None, number))
            # Medians: one commit that waits for the disk longer than all the others is nobody's doing.
            share = 100 * (statistics.median(joined) / statistics.median(plain) - 1)
            shares.append(share)
            print(
                f"round {round_number + 1}: {pairs} pairs, plain {1000 * statistics.median(plain):.3f} ms, "
                f"with the barrier {1000 * statistics.median(joined):.3f} ms, {share:+.1f} %",
                flush=True,
            )
        engine.dispose()
        plain_engine.dispose()
    return statistics.median(shares)


def measure_sqlite(count: int) -> float:
    """Seconds for so many checks of transactions that nobody wrote."""
    with scratch_folder() as folder:
        engine = create_engine(f"sqlite:///{folder}/bench.db")
        barrier = SqlBarrier(engine)
        barrier.create_table()
        doubtful = [Doubtful(str(uuid.uuid4()), "0a1b2c3d") for _ in range(count)]
        begun = time.perf_counter()
        said = barrier.resolve_many(doubtful, group="bench")
        taken = time.perf_counter() - begun
        engine.dispose()
    if said != [ROLLBACK] * count:
        raise RuntimeError("not every check was answered")
    return taken


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400, help="of local transactions per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--checks", type=int, default=100_000)
    arguments = parser.parse_args()
    print(settings_line(), flush=True)
    share = measure_postgresql(arguments.pairs, arguments.rounds)
    taken = measure_sqlite(arguments.checks)
    return show_figures(
        [
            Figure("barrier on top of a local transaction, PostgreSQL", share, 15, "%", is_at_most=True),
            Figure(f"{arguments.checks:,} checks settled, SQLite", taken, 60, "s", is_at_most=True),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
