"""Every verdict: exactly that fault is planted in real topics, and found, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import Row, SparkSession

from tests.conftest import Broker
from tests.support.planted import Field, Message, Transaction
from txlayer.core.messages import CheckKind, HalfOptions, OrderMode, Resolution, Source
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, update_ledger
from txlayer_spark.shelf import Shelf

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
NO_CHECK_FOR_A_DAY = HalfOptions(immunity_ms=24 * HOUR_MS)


class Planted:
    """A field with every fault, and the verdict that each transaction must get."""

    def __init__(self, servers: str) -> None:
        """Plant everything."""
        self.field = Field(servers)
        self.expected: dict[str, str] = {}
        self.txns: dict[str, Transaction] = {}
        # First: what stood before the log's start must be the oldest.
        self.shorten()
        self.plant_good()
        self.plant_undecided()
        self.plant_faults()
        self.plant_order()
        self.plant_attempts()

    def note(self, name: str, txn: Transaction, verdict: str) -> Transaction:
        """Remember what a transaction must be judged as."""
        self.txns[name] = txn
        self.expected[txn.txn_id] = verdict
        return txn

    def shorten(self) -> None:
        """Transactions whose half records, all or the first, the log has no more."""
        field = self.field
        two = (Message(field.orders), Message(field.stock))
        gone = self.note("gone", field.whole(*two, ordering_key=b"edge"), "out_of_window")
        edge = self.note("edge", field.whole(*two, ordering_key=b"edge"), "out_of_window")
        assert gone.partition == edge.partition
        admin = AdminClient({"bootstrap.servers": field.servers, "log_level": 0})
        start = TopicPartition(field.topic("half"), edge.partition, edge.offsets[1])
        admin.delete_records([start])[TopicPartition(start.topic, start.partition)].result(30)

    def plant_good(self) -> None:
        """What is in order."""
        field = self.field
        user = Message(field.stock, None, None, [("traceparent", b"00"), ("traceparent", None)])
        self.note("ok", field.whole(Message(field.orders), user), "ok")
        rolled_back = self.note("rolled back", field.prepare(), "rolled_back")
        field.roll_back(rolled_back, source=Source.BARRIER)
        checked = self.note("checked", field.prepare(), "ok")
        for number in (1, 2):
            field.check(checked, number)
        field.resolve((checked, Resolution.UNKNOWN), source=Source.CHECK, check_number=1)
        field.commit(checked, source=Source.CHECK, check_number=2)
        field.forward(checked)
        abandoned = self.note("abandoned", field.prepare(), "rolled_back")
        field.commit(abandoned)
        field.doubt(abandoned, "parked-committed", "too-large")
        field.resolve((abandoned, Resolution.ROLLBACK), source=Source.OPERATOR, is_abandon=True, reason="x: y")
        field.doubt(abandoned, "ended")
        large = [Message(field.orders, value=b"%d" % n) for n in range(70)]
        self.note("large", field.whole(*large), "ok")
        one_record = [field.prepare(ordering_key=b"packed") for _ in range(3)]
        field.resolve(*((txn, Resolution.COMMIT) for txn in one_record))
        for number, txn in enumerate(one_record):
            field.forward(self.note(f"packed {number}", txn, "ok"))

    def plant_undecided(self) -> None:
        """What waits for something."""
        field = self.field
        self.note("open", field.prepare(options=NO_CHECK_FOR_A_DAY), "open")
        self.note("overdue", field.prepare(), "overdue")
        held = self.note("held", field.prepare(options=NO_CHECK_FOR_A_DAY), "open")
        field.commit(held)
        field.doubt(held, "held", "topic-missing", decided_at=(1, 0))
        parked = self.note("parked", field.prepare(), "parked")
        field.check(parked, 1)
        field.doubt(parked, "open")
        field.doubt(parked, "parked", "checks-exhausted")
        refused = self.note("refused", field.prepare(), "parked")
        field.commit(refused)
        field.doubt(refused, "parked-committed", "too-large")
        wrong_place = self.note("wrong place", field.prepare(), "overdue")
        field.commit(replace(wrong_place, offsets=(wrong_place.offsets[0] + 1000,)))

    def plant_faults(self) -> None:
        """Broken promises, one each."""
        field = self.field
        two = (Message(field.orders), Message(field.stock))
        lost = self.note("lost", field.prepare(*two), "lost")
        field.commit(lost)
        twice = self.note("duplicate", field.whole(*two), "duplicate")
        field.forward(twice, 1)
        leaked = self.note("leaked", field.prepare(), "leaked")
        field.roll_back(leaked)
        field.forward(leaked)
        undecided = self.note("leaked undecided", field.prepare(), "leaked")
        field.forward(undecided)
        torn = self.note("torn", field.prepare(*two), "torn")
        field.commit(torn)
        field.forward(torn, 1)
        seed = field.whole()
        self.note("seed", seed, "ok")
        never = replace(seed, key="never-stored/00000001", offsets=(seed.offsets[0] + 5000,))
        field.forward(self.note("orphan", never, "orphan"))
        changes: dict[str, dict[str, Any]] = {
            "value": {"value": b"another"},
            "key": {"key": None},
            "headers": {"headers": [("a", b"b")]},
            "topic": {"topic": field.stock},
        }
        for name, change in changes.items():
            changed = self.note(f"corrupt {name}", field.prepare(), "corrupt")
            field.commit(changed)
            field.forward(field.moved(changed, **change))
        contrary = self.note("conflicting", field.whole(), "conflicting")
        field.roll_back(contrary, source=Source.CHECK)
        field.check(contrary, 0, CheckKind.REFUSED)

    def plant_order(self) -> None:
        """Two of one key, the wrong way round, in each order mode and with two messages; and two that may be."""
        field = self.field
        first, second = (field.prepare(ordering_key=b"in turn") for _ in range(2))
        field.commit(first, second)
        field.forward(self.note("second", second, "ok"))
        field.forward(self.note("late", first, "out_of_order"))
        prepare = HalfOptions(order=OrderMode.PREPARE)
        early, late = (field.prepare(ordering_key=b"as stored", options=prepare) for _ in range(2))
        field.commit(late, early)
        field.forward(self.note("stored second", late, "ok"))
        field.forward(self.note("stored first", early, "out_of_order"))
        parked, passing = (field.prepare(ordering_key=b"parked") for _ in range(2))
        field.commit(parked)
        field.doubt(parked, "parked-committed", "too-large")
        field.commit(passing)
        field.forward(self.note("passing", passing, "ok"))
        field.forward(self.note("was parked", parked, "ok"))
        field.doubt(parked, "ended")
        both = (Message(field.orders), Message(field.stock))
        one, other = (field.prepare(*both, ordering_key=b"two messages") for _ in range(2))
        field.commit(one, other)
        field.forward(self.note("second of two messages", other, "ok"))
        field.forward(self.note("late with two messages", one, "out_of_order"))
        other_partition = [field.prepare(ordering_key=b"apart") for _ in range(2)]
        field.commit(*other_partition)
        for number, txn in enumerate(reversed(other_partition)):
            field.forward(self.note(f"apart {number}", txn, "ok"), partition=number)

    def plant_attempts(self) -> None:
        """One id, two attempts; and half records that the broker kept twice."""
        field = self.field
        died = field.prepare(Message(field.orders), Message(field.stock), key="again/0000000a", indices=[0])
        self.note("attempts", field.whole(key="again/0000000b"), "ok and overdue")
        assert died.txn_id == "again"
        field.whole(key="both/0000000a")
        self.note("both", field.whole(key="both/0000000b"), "duplicate")
        field.prepare(key="copied/0000000a")
        self.note("copied", field.whole(key="copied/0000000a"), "ok")


@pytest.fixture(scope="module")
def planted(broker: Broker) -> Planted:
    """Everything planted, once."""
    return Planted(broker.bootstrap_servers)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The ledger of the field an hour later, by id."""
    root = tmp_path_factory.mktemp("verdicts")
    return judge(spark, planted.field, root, later_ms=HOUR_MS)


def judge(spark: SparkSession, field: Field, root: Path, *, later_ms: int) -> dict[str, list[Row]]:
    """Bronze and ledger of a field as they would be found after that time."""
    import time

    bronze = BronzeSettings(root=str(root / "bronze"), namespace=field.namespace, bootstrap_servers=field.servers)
    read_new(spark, bronze, now_ms=lambda: int(time.time() * 1000) + later_ms)
    update_ledger(spark, LedgerSettings(bronze=str(root / "bronze"), root=str(root / "ledger")))
    shelf = Shelf(spark, str(root / "ledger"))
    found: dict[str, list[Row]] = {}
    for row in shelf.rows(shelf.last()).collect():
        found.setdefault(row.txn_id, []).append(row)
    return found


VERDICTS = [
    "ok",
    "rolled_back",
    "open",
    "overdue",
    "parked",
    "lost",
    "duplicate",
    "leaked",
    "torn",
    "orphan",
    "corrupt",
    "conflicting",
    "out_of_order",
    "out_of_window",
]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_planted_verdict_is_found_on_its_transactions_and_on_no_other(
    verdict: str, planted: Planted, rows: dict[str, list[Row]]
) -> None:
    wanted = {txn_id for txn_id, expected in planted.expected.items() if expected == verdict}

    found = {txn_id for txn_id, each in rows.items() if {verdict} == {row.verdict for row in each}}

    names = {txn.txn_id: name for name, txn in planted.txns.items()}
    assert wanted
    assert {names[txn_id] for txn_id in wanted} == {names.get(txn_id, txn_id) for txn_id in found}


def test_every_transaction_has_one_row_and_every_attempt_one(planted: Planted, rows: dict[str, list[Row]]) -> None:
    assert set(planted.expected) == set(rows)
    assert {"again": 2, "both": 2} == {txn_id: len(each) for txn_id, each in rows.items() if len(each) > 1}
    assert {("0000000a", "overdue"), ("0000000b", "ok")} == {(row.nonce, row.verdict) for row in rows["again"]}


def test_a_row_tells_a_transactions_life(planted: Planted, rows: dict[str, list[Row]]) -> None:
    txn = planted.txns["checked"]
    (row,) = rows[txn.txn_id]

    assert ("shop", [planted.field.orders], 1, txn.partition) == (
        row.producer_group,
        row.topics,
        row.message_count,
        row.half_partition,
    )
    assert (txn.offsets[0], txn.offsets[-1]) == (row.first_offset, row.last_offset)
    assert ("COMMIT", "check", 2, 1, 1) == (
        row.resolution,
        row.decided_by,
        row.checked_count,
        row.unknown_count,
        row.visible_count,
    )
    assert row.born_at <= row.first_checked_at <= row.last_checked_at <= row.decided_at
    assert row.decided_at <= row.forwarded_at
    assert row.total_ms >= row.decide_ms + row.forward_ms
    (abandoned,) = rows[planted.txns["abandoned"].txn_id]
    assert (True, "") == (abandoned.is_settled_by_hand, abandoned.doubt_state)
    assert abandoned.parked_at is not None
    (keyed,) = rows[planted.txns["packed 1"].txn_id]
    assert (planted.txns["packed 1"].options.key_hash, "commit", 1) == (keyed.key_hash, keyed.order, keyed.decided_line)
    (refused,) = rows[planted.txns["refused"].txn_id]
    assert ("parked-committed", "too-large") == (refused.doubt_state, refused.doubt_reason)


def test_what_is_on_its_way_is_not_lost_yet(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    field = Field(broker.bootstrap_servers)
    txn = field.prepare(Message(field.orders), Message(field.stock))
    field.commit(txn)
    field.forward(txn, 1)

    (row,) = judge(spark, field, tmp_path, later_ms=0)[txn.txn_id]

    assert "open" == row.verdict
