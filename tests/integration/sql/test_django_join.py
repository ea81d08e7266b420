"""`txlayer.ext.django`: messages in Django's own transactions, with check-backs answered from the same table."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from datetime import timedelta
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.migrations.state import ProjectState
from django.db.transaction import TransactionManagementError
from sqlalchemy import create_engine, make_url

from tests.support.waiting import wait_until
from txlayer import (
    AsyncTransactionalProducer,
    BarrierRefusedError,
    LifecycleError,
    SqlBarrier,
    Transaction,
    TransactionalProducer,
    UsageError,
)
from txlayer.adapters.memory import MemoryKafka
from txlayer.ext.django import create_barrier_table, join
from txlayer.testing import Stage, memory_access

if not settings.configured:
    settings.configure(DATABASES={}, USE_TZ=True)
    django.setup()

SOON = timedelta(seconds=1)
"""The shortest immunity that leaves a slow machine the time to commit."""


class FaultError(Exception):
    """What a handler's code raises."""


class Shop:
    """One Django database, one producer, and what became visible."""

    def __init__(self, stage: Stage, url: str, alias: str) -> None:
        address = make_url(url)
        kind = {"sqlite": "sqlite3"}.get(address.get_backend_name(), address.get_backend_name())
        names = {"NAME": address.database, "USER": address.username, "PASSWORD": address.password}
        where = {"HOST": address.host, "PORT": address.port}
        given = {name: value or "" for name, value in (names | where).items()}
        configured = {"default": {"ENGINE": f"django.db.backends.{kind}", **given}}
        connections.settings[alias] = connections.configure_settings(configured)["default"]
        self.alias = alias
        self.connection = connections[alias]
        self.barrier = SqlBarrier(create_engine(url))
        self.stage = stage
        self.topic = stage.topic("orders")
        self.producer = stage.producer("shop", check=self._check, in_flight_max=2)
        self.table = create_barrier_table()
        for table in ("txlayer_barrier", "purchase"):  # of other tests on the same server
            self.execute(f"DROP TABLE IF EXISTS {table}")
        self.migrate()
        self.execute("CREATE TABLE purchase (customer VARCHAR(20) NOT NULL)")

    def _check(self, request: Any) -> Any:
        return self.barrier.resolve(request.txn_id, request.nonce, group=request.group, born_at_ms=request.born_at_ms)

    def migrate(self, *, is_undone: bool = False) -> None:
        state = ProjectState()
        with self.connection.schema_editor() as editor:
            run = self.table.database_backwards if is_undone else self.table.database_forwards
            run("shop", editor, state, state)

    def execute(self, statement: str, *values: str) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall()) if cursor.description else []

    def buy(self, customer: str) -> str:
        """As a service does it."""
        self.execute("INSERT INTO purchase VALUES (%s)", customer)
        with join(self.producer, using=self.alias, immunity=SOON) as tx:
            tx.send(self.topic, key=customer, value=customer)
        return tx.txn_id

    def buy_and_fail(self, customer: str) -> None:
        """An error after the block."""
        self.buy(customer)
        raise FaultError

    def send(
        self, also: Callable[[Transaction], object], *, table: str = "txlayer_barrier", producer: Any = None
    ) -> None:
        """One message, and something else in its block."""
        with join(producer or self.producer, using=self.alias, table=table, immunity=SOON) as tx:
            tx.send(self.topic, value="anna")
            also(tx)

    def fail(self, _tx: Transaction) -> None:
        """An error inside the block."""
        raise FaultError

    def atomic(self, **options: Any) -> Any:
        return transaction.atomic(using=self.alias, **options)

    def bought(self) -> list[str]:
        return [customer for (customer,) in self.execute("SELECT customer FROM purchase ORDER BY customer")]

    def told(self) -> list[str]:
        """What is visible, once nothing is undecided any more."""
        self.stage.wait_until_settled()
        return sorted((message.raw_value or b"").decode() for message in self.stage.messages(self.topic))

    def close(self) -> None:
        self.execute("DROP TABLE purchase")
        self.migrate(is_undone=True)
        self.connection.close()
        self.barrier._engine.dispose()
        del connections[self.alias], connections.settings[self.alias]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.sql)])
def shop(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param}_url")
    with Stage(memory_access(MemoryKafka()), settings={"check_interval": timedelta(milliseconds=100)}) as stage:
        made = Shop(stage, url, stage.unique("shop"))
        yield made
        made.close()


def test_messages_become_visible_with_djangos_commit(shop: Shop) -> None:
    with shop.atomic():
        txn_id = shop.buy("anna")
        assert shop.stage.messages(shop.topic) == []

    assert ["anna"] == shop.told() == shop.bought()
    assert [(txn_id, "shop", "C", "producer")] == shop.execute(
        "SELECT txn_id, producer_group, resolution, source FROM txlayer_barrier"
    )


@pytest.mark.promise("P8")
def test_a_rollback_takes_the_messages_along_and_keeps_no_place_in_flight(shop: Shop) -> None:
    for n in range(5):  # more than may be in flight
        with pytest.raises(FaultError), shop.atomic():
            shop.buy_and_fail(f"customer-{n}")

    assert [] == shop.told() == shop.bought()


@pytest.mark.promise("P8")
def test_a_savepoint_that_is_rolled_back_takes_its_messages_along_alone(shop: Shop) -> None:
    with shop.atomic(durable=True):
        shop.buy("anna")
        with pytest.raises(FaultError), shop.atomic():
            shop.buy_and_fail("bert")
        with shop.atomic():
            shop.buy("cleo")

    assert ["anna", "cleo"] == shop.told() == shop.bought()


@pytest.mark.parametrize("is_error", [True, False])
def test_a_block_that_ends_by_an_error_or_its_own_rollback_sends_nothing_and_the_rest_commits(
    shop: Shop, *, is_error: bool
) -> None:
    with shop.atomic():
        with pytest.raises(FaultError) if is_error else nullcontext():
            shop.send(shop.fail if is_error else lambda tx: tx.rollback())
        shop.buy("anna")

    assert ["anna"] == shop.told() == shop.bought()


@pytest.mark.promise("P8")
@pytest.mark.parametrize("call", [Transaction.commit, Transaction.rollback, Transaction.unknown])
def test_nothing_but_the_atomic_block_decides_what_is_stored(shop: Shop, call: Callable[[Transaction], None]) -> None:
    def decide_too_soon(tx: Transaction) -> None:
        tx.prepare()
        call(tx)

    with suppress(FaultError), shop.atomic():
        with pytest.raises(LifecycleError, match="Django's transaction decides"):
            shop.send(decide_too_soon)
        raise FaultError
    with shop.atomic():
        shop.buy("bert")
    with suppress(FaultError), shop.atomic():
        with join(shop.producer, using=shop.alias, immunity=SOON) as tx:
            tx.send(shop.topic, value="dora")
        with pytest.raises(LifecycleError, match="Django's transaction decides"):
            call(tx)
        raise FaultError

    assert ["bert"] == shop.told() == shop.bought()


@pytest.mark.promise("P8")
def test_a_check_back_that_came_first_forbids_the_commit_also_if_its_error_is_swallowed(shop: Shop) -> None:
    def check(tx: Transaction) -> None:
        insert = "INSERT INTO txlayer_barrier (txn_id, nonce, producer_group, resolution, source) "
        shop.execute(insert + "VALUES (%s, %s, 'shop', 'R', 'check')", tx.txn_id, tx.nonce)

    with shop.atomic():
        shop.execute("INSERT INTO purchase VALUES ('anna')")
        with pytest.raises(BarrierRefusedError) as raised:
            shop.send(check)

    assert isinstance(raised.value.__cause__, IntegrityError)
    assert [] == shop.told() == shop.bought()


def test_a_missing_table_forbids_the_commit(shop: Shop) -> None:
    with shop.atomic():
        shop.execute("INSERT INTO purchase VALUES ('anna')")
        with pytest.raises(DatabaseError, match="nowhere"):
            shop.send(id, table="nowhere")

    assert [] == shop.told() == shop.bought()


def test_what_cannot_be_joined_is_refused_and_nothing_is_sent(shop: Shop) -> None:
    with pytest.raises(UsageError, match="needs an open transaction"):
        shop.send(shop.fail)
    with_barrier = TransactionalProducer(group="shop", barrier=shop.barrier, **shop.stage.producer_options)
    with shop.atomic():
        with pytest.raises(UsageError, match="not AsyncTransactionalProducer"):
            shop.send(shop.fail, producer=AsyncTransactionalProducer(group="shop", **shop.stage.producer_options))
        with pytest.raises(UsageError, match="without barrier="):
            shop.send(shop.fail, producer=with_barrier)
        with pytest.raises(TransactionManagementError):
            shop.send(lambda _: transaction.set_rollback(True, using=shop.alias))

    assert [] == shop.told()


@pytest.mark.promise("P8")
@pytest.mark.parametrize("where", ["autocommit", "another one", "the outer one"])
def test_a_block_that_ends_outside_of_its_atomic_block_sends_nothing(shop: Shop, where: str) -> None:
    """As in a generator or an `ExitStack`: the database has decided by then, and nothing of it decides the messages."""
    late = ExitStack()
    with shop.atomic() if where == "the outer one" else nullcontext():
        with suppress(FaultError), shop.atomic():
            shop.execute("INSERT INTO purchase VALUES (%s)", "anna")
            late.enter_context(join(shop.producer, using=shop.alias)).send(shop.topic, value="anna")
            raise FaultError
        another = shop.atomic() if where == "another one" else nullcontext()
        with another, pytest.raises(UsageError, match="Nothing was sent"):
            late.close()

    assert [] == shop.told() == shop.bought()


@pytest.mark.promise("P8")
def test_messages_of_a_transaction_that_the_database_gave_up_stay_invisible_also_if_its_error_is_swallowed(
    shop: Shop,
) -> None:
    """PostgreSQL answers COMMIT with a rollback then, and Django does not look."""
    with shop.atomic():
        shop.buy("anna")
        with suppress(DatabaseError):
            shop.execute("SELECT * FROM nowhere")

    assert shop.told() == shop.bought()


@pytest.mark.promise("P8")
def test_a_process_that_dies_after_djangos_commit_is_asked(shop: Shop) -> None:
    """Its producer says nothing any more: the row does."""
    with shop.atomic():
        shop.buy("anna")
        ((_, ending, _),) = shop.connection.run_on_commit
        ending._tx, kept = None, ending._tx  # what a dead process does not do

    wait_until(lambda: shop.stage.messages(shop.topic), within=30, what="the check-back's answer")
    assert kept.resolution is None
    assert ["anna"] == shop.bought()
    kept.leave(FaultError())  # its place in flight
