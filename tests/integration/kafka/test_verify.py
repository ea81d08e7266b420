"""`txlayer verify` on a real broker: each fault planted by a plain client is found where it stands, and nothing else."""

import json
from collections import Counter
from typing import Any

import pytest
import typer
from confluent_kafka import Producer

from tests.conftest import Broker
from tests.support.broker import unique_name
from tests.support.commands import run_command
from tests.support.planted import Field, Message, Transaction
from tests.support.planted_verdicts import Planted
from txlayer.cli.main import build_app
from txlayer.core import codec
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


def parked_without_content(field: Field) -> Transaction:
    txn = field.prepare()
    field.doubt(txn, "parked", "checks-exhausted", with_contents=False)
    return txn


BREAKS = {
    "lost": ["P1"],
    "duplicate": ["P2"],
    "leaked": ["P3"],
    "orphan": ["P3"],
    "corrupt": ["P3"],
    "torn": ["P5", "P1"],
    "out_of_order": ["P6"],
}


def test_each_planted_fault_is_found_with_its_id_place_and_promises_and_nothing_else(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = Planted(broker.bootstrap_servers)
    field = planted.field
    planted.note("in an aborted one", leaked_in_an_aborted_kafka_transaction(field), "leaked")
    planted.note("without content", parked_without_content(field), "lost")
    # Its key belongs to the other partition, which only a reader of the topics sees.
    planted.note("apart 1", planted.txns["apart 1"], "corrupt")
    expected = {txn_id: (word, BREAKS[word]) for txn_id, word in planted.expected.items() if word in BREAKS}
    expected[planted.txns["leaked"].txn_id] = ("leaked", ["P3", "P4"])

    code, said = Verify(field, capsys)()

    found = [f for f in said["findings"] if f["breaks"]]
    assert expected == {f["txn_id"]: (f["verdict"], f["breaks"]) for f in found}
    assert {f["verdict"]: True for f in found} == {
        f["verdict"]: f["topic"] in ([field.topic("half")] if f["verdict"] == "lost" else [field.orders, field.stock])
        for f in found
    }
    assert all(isinstance(f["offset"], int) for f in found)
    assert (1, {"refuted"}) == (code, {p["status"] for p in said["promises"].values()})
    told = {f["txn_id"]: f["verdict"] for f in said["findings"] if not f["breaks"]}
    assert told.items() >= {(planted.txns["conflicting"].txn_id, "conflicting")}
    others = Counter(
        word for word in planted.expected.values() if word in ("ok", "rolled_back", "parked", "conflicting")
    )
    # Of one id with two attempts one is right, and the other open.
    assert others + Counter({"ok": 1}) == Counter({word: said["verdicts"].get(word, 0) for word in others})


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
    txn = field.whole()
    field.forward(txn)
    field.whole()

    code, out, _ = run_command(app, "verify", "-b", field.servers, "-n", field.namespace, capsys=capsys)

    assert 1 == code
    assert "refuted by 1 transactions; 1 keep it" in out
    assert "proved over 2 transactions" in out
    assert txn.txn_id in out
    assert f"{field.orders}-0@1" in out
    assert f"duplicate: {ADVICE[Verdict.DUPLICATE].sentence}" in out
