"""`txlayer verify` on a real broker: each fault planted by a plain client is found where it stands, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import typer
from confluent_kafka import Producer

from tests.conftest import Broker
from tests.support.broker import unique_name
from tests.support.commands import run_command
from tests.support.planted import Field, Message, Transaction
from txlayer.cli.main import build_app
from txlayer.core import codec
from txlayer.core.messages import HalfOptions, OrderMode
from txlayer.core.verification import ADVICE, Verdict

pytestmark = pytest.mark.kafka


@pytest.fixture
def field(broker: Broker) -> Field:
    return Field(broker.bootstrap_servers)


@pytest.fixture
def app() -> typer.Typer:
    return build_app()


class Verify:
    """The command on one namespace."""

    def __init__(self, field: Field, capsys: pytest.CaptureFixture[str]) -> None:
        self._field = field
        self._capsys = capsys

    def __call__(self, *more: str, grace: str = "0ms") -> tuple[int, dict[str, Any]]:
        code, out, err = run_command(
            build_app(),
            "verify",
            "-b",
            self._field.servers,
            "-n",
            self._field.namespace,
            "--grace",
            grace,
            "--json",
            *more,
            capsys=self._capsys,
        )
        assert "" == err
        return code, json.loads(out)


@pytest.fixture
def verify(field: Field, capsys: pytest.CaptureFixture[str]) -> Verify:
    return Verify(field, capsys)


def lost(field: Field) -> Transaction:
    txn = field.prepare()
    field.commit(txn)
    return txn


def duplicate(field: Field) -> Transaction:
    txn = field.whole()
    field.forward(txn)
    return txn


def leaked_undecided(field: Field) -> Transaction:
    txn = field.prepare()
    field.forward(txn)
    return txn


def leaked_rolled_back(field: Field) -> Transaction:
    txn = field.prepare()
    field.roll_back(txn)
    field.forward(txn)
    return txn


def leaked_in_an_aborted_kafka_transaction(field: Field) -> Transaction:
    txn = field.prepare()
    origin = codec.encode_origin(partition=txn.partition, offset=txn.offsets[0], index=0, count=1, born_ms=txn.born_ms)
    producer = Producer({"bootstrap.servers": field.servers, "transactional.id": unique_name("id"), "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    headers: list[tuple[str, str | bytes | None]] = [
        (codec.ID_HEADER, txn.txn_id.encode()),
        (codec.ORIGIN_HEADER, origin.encode()),
    ]
    producer.produce(field.orders, b"value", b"k", partition=0, headers=headers)
    producer.flush(30)
    producer.abort_transaction(30)
    return txn


def torn(field: Field) -> Transaction:
    txn = field.prepare(Message(field.orders), Message(field.stock))
    field.commit(txn)
    field.forward(txn, 0)
    return txn


def orphan(field: Field) -> Transaction:
    txn = field.prepare()
    field.roll_back(txn)
    stranger = Transaction("stranger/00000000", txn.partition, txn.messages, txn.options, txn.born_ms, txn.offsets)
    field.forward(stranger)
    return stranger


def conflicting(field: Field) -> Transaction:
    txn = field.whole()
    field.roll_back(txn)
    return txn


def out_of_order(field: Field) -> Transaction:
    first, second = (field.prepare(ordering_key=b"customer") for _ in range(2))
    field.commit(first, second)
    field.forward(second)
    field.forward(first)
    return first


def out_of_prepare_order(field: Field) -> Transaction:
    options = HalfOptions(order=OrderMode.PREPARE)
    first, second = (field.prepare(ordering_key=b"customer", options=options) for _ in range(2))
    field.commit(second, first)
    field.forward(second)
    field.forward(first)
    return first


def corrupt_value(field: Field) -> Transaction:
    txn = field.prepare()
    field.commit(txn)
    field.forward(field.moved(txn, value=b"other"))
    return txn


def corrupt_topic(field: Field) -> Transaction:
    txn = field.prepare()
    field.commit(txn)
    field.forward(field.moved(txn, topic=field.stock))
    return txn


def corrupt_headers(field: Field) -> Transaction:
    txn = field.prepare(Message(field.orders, headers=[("colour", b"red")]))
    field.commit(txn)
    field.forward(field.moved(txn, headers=[("colour", b"blue")]))
    return txn


def parked_without_content(field: Field) -> Transaction:
    txn = field.prepare()
    field.doubt(txn, "parked", "checks-exhausted", with_contents=False)
    return txn


FAULTS: dict[Callable[[Field], Transaction], tuple[str, list[str], str]] = {
    lost: ("lost", ["P1"], "half"),
    parked_without_content: ("lost", ["P1"], "half"),
    duplicate: ("duplicate", ["P2"], "orders"),
    leaked_undecided: ("leaked", ["P3"], "orders"),
    leaked_in_an_aborted_kafka_transaction: ("leaked", ["P3"], "orders"),
    leaked_rolled_back: ("leaked", ["P3", "P4"], "orders"),
    orphan: ("orphan", ["P3"], "orders"),
    corrupt_value: ("corrupt", ["P3"], "orders"),
    corrupt_topic: ("corrupt", ["P3"], "stock"),
    corrupt_headers: ("corrupt", ["P3"], "orders"),
    torn: ("torn", ["P5", "P1"], "orders"),
    out_of_order: ("out_of_order", ["P6"], "orders"),
    out_of_prepare_order: ("out_of_order", ["P6"], "orders"),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_with_its_id_and_place_and_nothing_else(
    field: Field, verify: Verify, plant: Callable[[Field], Transaction]
) -> None:
    verdict, broken, where = FAULTS[plant]
    for _ in range(5):
        field.whole(Message(field.orders), Message(field.stock))
    txn = plant(field)
    for _ in range(5):
        field.whole(ordering_key=b"another")

    code, said = verify("--topics", field.orders, "--topics", field.stock)

    (found,) = said["findings"]
    assert (verdict, txn.txn_id, broken) == (found["verdict"], found["txn_id"], found["breaks"])
    assert found["topic"].endswith(where)
    assert isinstance(found["offset"], int)
    assert 1 == code
    refuted = [name for name, p in said["promises"].items() if p["status"] == "refuted"]
    assert sorted(broken) == refuted


def test_a_window_in_which_all_is_well_is_proved(field: Field, verify: Verify) -> None:
    for number in range(20):
        field.whole(Message(field.orders), Message(field.stock), ordering_key=b"%d" % (number % 3))
    for _ in range(3):
        field.roll_back(field.prepare())
    field.prepare()

    code, said = verify()

    assert (0, []) == (code, said["findings"])
    assert {"ok": 20, "rolled_back": 3, "open": 1} == said["verdicts"]
    assert {"P1": 20, "P2": 20, "P3": 24, "P4": 23, "P5": 20, "P6": 20} == {
        name: p["proved_count"] for name, p in said["promises"].items() if p["status"] == "proved"
    }


def test_a_contrary_resolution_is_told_and_refutes_nothing(field: Field, verify: Verify) -> None:
    txn = conflicting(field)

    code, said = verify()

    assert (0, [("conflicting", txn.txn_id)]) == (code, [(f["verdict"], f["txn_id"]) for f in said["findings"]])


def test_what_is_younger_than_the_grace_is_undecidable(field: Field, verify: Verify) -> None:
    lost(field)

    code, said = verify(grace="1h")

    assert (0, {"open": 1}) == (code, said["verdicts"])
    assert "undecidable" == said["promises"]["P1"]["status"]


def test_a_topic_that_was_not_read_decides_nothing(field: Field, verify: Verify) -> None:
    txn = field.prepare(Message(field.stock))
    field.commit(txn)
    # What it shows on its topic nobody looks at.
    leaked = field.prepare(Message(field.stock))
    field.roll_back(leaked)
    field.forward(leaked)

    code, said = verify("--topics", field.orders)

    verdicts = {"out_of_window": 1, "rolled_back": 1}
    assert (0, verdicts, [field.stock]) == (code, said["verdicts"], said["unread_topics"])
    assert "undecidable" == said["promises"]["P3"]["status"]


def test_an_open_kafka_transaction_is_named(field: Field, verify: Verify) -> None:
    field.whole()
    producer = Producer({"bootstrap.servers": field.servers, "transactional.id": unique_name("id"), "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(field.orders, b"somebody's", partition=1)
    producer.flush(30)

    _, said = verify()

    producer.abort_transaction(30)
    (held,) = said["open_kafka_transactions"]
    assert (field.orders, 1) == (held["topic"], held["partition"])


def test_a_person_reads_a_line_per_promise(
    field: Field, app: typer.Typer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    txn = duplicate(field)
    field.whole()

    code, out, _ = run_command(app, "verify", "-b", field.servers, "-n", field.namespace, capsys=capsys)

    assert 1 == code
    assert "refuted by 1 transactions; 1 keep it" in out
    assert "proved over 2 transactions" in out
    assert txn.txn_id in out
    assert f"{field.orders}-0@1" in out
    assert f"duplicate: {ADVICE[Verdict.DUPLICATE].sentence}" in out


def test_a_namespace_that_is_not_there_is_a_usage_error(
    broker: Broker, app: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_command(app, "verify", "-b", broker.bootstrap_servers, "-n", unique_name("ns"), capsys=capsys)

    assert 2 == code
    assert "txlayer topics apply" in err
