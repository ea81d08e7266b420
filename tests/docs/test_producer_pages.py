"""The programs of pages that speak of producers run as they stand, against a real broker and a running coordinator."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.commands import run_command
from tests.support.pages import programs
from txlayer import COMMIT, ROLLBACK, UNKNOWN, CheckRequest, ParkedTransaction, Resolution, TransactionalProducer
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.sql import SqlBarrier
from txlayer.cli.main import build_app
from txlayer.errors import BrokerUnavailableError, OutcomeUnknownError, RollbackRequiredError, TxLayerError, UsageError

pytestmark = pytest.mark.kafka

SERVERS = 'bootstrap_servers="127.0.0.1:9092"'


@pytest.fixture(scope="module")
def arena(broker: Broker) -> Iterator[Arena]:
    """One namespace, its coordinator running."""
    arena = make_arena(broker.bootstrap_servers)
    with arena.coordinator(session_timeout=timedelta(seconds=3), check_immunity=timedelta(milliseconds=200)):
        yield arena


def placed(program: str, arena: Arena) -> str:
    """The program, at the test's broker and in the test's namespace and topic, which nobody shares."""
    assert SERVERS in program
    there = f'bootstrap_servers="{arena.servers}", namespace="{arena.namespace}"'
    return program.replace(SERVERS, there).replace('"orders", key=', f'"{arena.targets[0]}", key=')


def run(program: str, names: dict[str, Any]) -> dict[str, Any]:
    """What the program has made of these names."""
    exec(compile(program, "page", "exec"), names)
    return names


def request(txn_id: str, number: int = 1) -> CheckRequest:
    """A question about a transaction."""
    return CheckRequest(txn_id, "0" * 8, "orders", 0, number, ("orders",))


def test_the_check_of_the_page_answers_and_its_producer_is_asked(arena: Arena) -> None:
    program, asking, own_policy, hears = programs("check-back")
    orders = {"paid": SimpleNamespace(is_paid=True), "unpaid": SimpleNamespace(is_paid=False)}

    made = run(placed(program, arena), {"orders": orders})

    check, producer = made["check"], made["producer"]
    asked = [check(request(t, n)) for t, n in (("paid", 1), ("unpaid", 1), ("new", 1), ("new", 2))]
    assert [COMMIT, ROLLBACK, UNKNOWN, ROLLBACK] == asked
    with producer:
        with producer.transaction("paid") as tx:
            tx.send(arena.targets[0], key="42", value="paid")
            tx.prepare()
            tx.unknown()
        arena.wait_until_visible("paid")
        names = {**made, "producer": producer}
        asked_about = run(asking.replace('"orders", key=', f'"{arena.targets[0]}", key='), names)
        arena.wait_until_visible(asked_about["tx"].txn_id)
        carried: dict[str, Any] = {
            "key": b"customer-7",
            "headers": (("order-id", b"4711"),),
            "query_id": "invoice 7/2026",
        }
        assert COMMIT is asked_about["check_order"](request("paid")._replace(**carried))
        tx = run(own_policy.replace('"orders", key=', f'"{arena.targets[0]}", key='), {"producer": producer})["tx"]
        arena.wait_until_visible(tx.txn_id)

    paged: list[str] = []
    database = SimpleNamespace(is_known_lost=lambda txn_id: txn_id == "lost")
    on_parked = run(hears, {"page_a_person": paged.append, "database": database, "ROLLBACK": ROLLBACK})["on_parked"]
    parked = [ParkedTransaction(txn_id, "0" * 8, "orders", "too-old", 1, 0) for txn_id in ("lost", "odd")]
    assert [ROLLBACK, None] == [on_parked(each) for each in parked]
    assert "lost waits: too-old" == paged[0]


@pytest.mark.parametrize(
    ("error", "comes_out"),
    [
        (None, False),
        (BrokerUnavailableError("away"), False),
        (OutcomeUnknownError("away"), False),
        (RollbackRequiredError("lost"), False),
        (UsageError("wrong"), True),
    ],
)
def test_the_page_of_errors_catches_those_that_it_names(error: TxLayerError | None, comes_out: bool) -> None:
    (program,) = programs("errors")

    def prepare() -> None:
        if error is not None:
            raise error

    try:
        run(program, {"tx": SimpleNamespace(prepare=prepare)})
    except UsageError:
        assert comes_out
    else:
        assert not comes_out


def test_the_page_of_scheduled_messages_cancels_a_reminder(arena: Arena) -> None:
    (program,) = programs("scheduled-messages")
    for topic in ("reminders", "mails"):
        program = program.replace(f'"{topic}"', f'"{arena.targets[1]}"')

    made = run(placed(program, arena), {})

    assert made["is_cancelled"]
    assert [b"bought"] == [record.value for record in arena.wait_until_visible("order-4711")]


def test_the_producer_of_rocketmqs_page_runs_its_local_transaction_and_commits(arena: Arena) -> None:
    first, _ = programs("from-rocketmq")
    engine = create_engine("sqlite://")
    table = Table("orders", MetaData(), Column("id", Integer), Column("txn_id", String))
    table.metadata.create_all(engine)

    class Database:
        begin = staticmethod(engine.begin)

        def has_order(self, *, txn_id: str) -> bool:
            with engine.connect() as connection:
                return bool(connection.execute(select(table).filter_by(txn_id=txn_id)).all())

    names = {"database": Database(), "insert_order": insert(table)}
    made = run(placed(first, arena), names)

    result, listener = made["result"], made["OrderListener"]()
    assert Resolution.COMMIT is result.resolution
    assert b"bought" == arena.wait_until_visible(result.txn_id)[0].value
    asked = [listener.check_local_transaction(request(t, n)) for t, n in ((result.txn_id, 1), ("none", 1), ("none", 4))]
    assert [COMMIT, UNKNOWN, ROLLBACK] == asked
    engine.dispose()


def test_the_barrier_of_rocketmqs_page_commits_both_or_neither(arena: Arena, tmp_path: Path) -> None:
    _, second = programs("from-rocketmq")
    engine = create_engine(f"sqlite:///{tmp_path}/orders.db")
    barrier = SqlBarrier(engine)
    barrier.create_table()

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.metadata.create_all(engine)
    with TransactionalProducer(
        bootstrap_servers=arena.servers, namespace=arena.namespace, group="orders", barrier=barrier
    ) as producer:
        names = {"producer": producer, "engine": engine, "Session": Session, "order": Order(id=42)}
        made = run(second.replace('"orders", key=', f'"{arena.targets[0]}", key='), names)
        assert Resolution.COMMIT is made["tx"].result().resolution
        arena.wait_until_visible(made["tx"].txn_id)

    with Session(engine) as session:
        assert [42] == list(session.scalars(select(Order.id)))
    engine.dispose()


def test_what_was_exported_is_published_again_by_the_program_of_the_page(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = programs("settle-by-hand")
    monkeypatch.chdir(tmp_path)
    with (
        TransactionalProducer(
            bootstrap_servers=arena.servers, namespace=arena.namespace, group="elsewhere"
        ) as producer,
        producer.transaction("order-1", immunity=timedelta(hours=1)) as tx,
    ):
        tx.send(arena.targets[0], key=b"\xff", value=None, headers=[("a", b"\x00"), ("b", None)])
        tx.prepare()
        tx.unknown()
    place = ("--bootstrap-servers", arena.servers, "--namespace", arena.namespace)

    exported = run_command(
        build_app(), "tx", "export", "--output", "parked.jsonl", "--open", "--group", "elsewhere", *place, capsys=capsys
    )
    assert 0 == exported[0], exported
    assert "order-1" == json.loads(Path("parked.jsonl").read_text("utf-8"))["txn_id"]
    run(placed(program, arena), {})

    (seen,) = arena.wait_until_visible("order-1-again")
    assert (b"\xff", None) == (seen.key, seen.value)
    assert [("a", b"\x00"), ("b", None)] == [h for h in seen.headers if not h[0].startswith("txl")]


def test_the_brokers_of_the_page_are_killed_and_start_again(
    local_config: LocalConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = programs("local-broker")
    assert "LocalBroker()" in program

    run(program.replace("LocalBroker()", "LocalBroker(config=config)"), {"config": local_config})

    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", capsys.readouterr().out)
