"""Every verdict: exactly that fault is planted in real topics, and found, and nothing else is."""

import pytest
from pyspark.sql import Row, SparkSession

from tests.conftest import Broker
from tests.support.planted import Field, Message
from tests.support.planted_verdicts import Planted
from tests.support.spark_audit import Audit

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def planted(broker: Broker) -> Planted:
    """Everything planted, once."""
    return Planted(broker.bootstrap_servers)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The ledger of the field an hour later, by id."""
    audit = Audit(spark, planted.field, tmp_path_factory.mktemp("verdicts"))
    audit.read()
    found: dict[str, list[Row]] = {}
    for row in audit.judge():
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


def test_what_is_on_its_way_is_not_lost_yet(field: Field, audit: Audit) -> None:
    txn = field.prepare(Message(field.orders), Message(field.stock))
    field.commit(txn)
    field.forward(txn, 1)

    assert {txn.txn_id: "open"} == audit.verdicts(later_ms=0)
