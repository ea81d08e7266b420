"""A real producer hears of a parking from a real coordinator, and settles it, while an operator may be quicker; over both logs."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.waiting import wait_until
from txlayer import COMMIT, ROLLBACK, UNKNOWN, Message
from txlayer.config import CoordinatorConfig
from txlayer.core.messages import Resolution
from txlayer.errors import OutcomeUnknownError
from txlayer.operate import settle
from txlayer.operate.unsettled import Filter
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import ParkedTransaction
from txlayer.testing import KafkaAccess, Stage

PATIENCE_S = 40.0
PARKED_SOON = {"check_immunity": timedelta(milliseconds=200), "check_max": 1}


@pytest.fixture
def stage(kafka: KafkaAccess) -> Iterator[Stage]:
    with Stage(kafka, settings=PARKED_SOON) as made:
        yield made


def leave_open(stage: Stage, orders: str, *txn_ids: str) -> None:
    """An instance of the group prepares these, and ends before it says what became of them."""
    gone = TransactionalProducer(**stage.producer_options, group="shop")
    gone.start()
    for txn_id in txn_ids:
        tx = gone.transaction(txn_id=txn_id)
        tx.send(orders, key="customer-7", value=txn_id)
        tx.prepare()
    with pytest.raises(OutcomeUnknownError):
        gone.close(timeout=0)


def settle_by_hand(stage: Stage, action: settle.OperatorAction, txn_id: str) -> settle.SettlementResult:
    config = CoordinatorConfig(bootstrap_servers=stage.bootstrap_servers, namespace=stage.namespace)
    with closing(stage.kafka.connect_coordinator(config)) as connections:
        hands = settle.ManualSettlement(connections)
        order = settle.SettlementOrder(action, (txn_id,), None, False, Filter(), None, "a test")
        now_ms = int(time.time() * 1_000)
        plan = settle.plan_of(order, hands, since_ms=now_ms - 3_600_000, now_ms=now_ms)
        (outcome,) = settle.carry_out(action, hands, plan, patience_s=PATIENCE_S) or plan.known
        return outcome.result


@pytest.mark.promise("P4", "P7")
def test_a_group_settles_what_it_hears_was_parked_and_a_quicker_operator_has_the_word(stage: Stage) -> None:
    orders = stage.topic("orders")
    heard: list[str] = []
    is_settled = threading.Event()

    def on_parked(parked: ParkedTransaction) -> Resolution:
        heard.append(parked.txn_id)
        if parked.txn_id == "order-3":
            assert is_settled.wait(PATIENCE_S)
        return ROLLBACK if parked.txn_id == "order-2" else COMMIT

    stage.producer("shop", check=lambda _question: UNKNOWN, on_parked=on_parked)
    leave_open(stage, orders, "order-1", "order-2")
    wait_until(lambda: {*heard} == {"order-1", "order-2"}, within=PATIENCE_S, what=f"both parked, not {heard}")
    leave_open(stage, orders, "order-3")
    wait_until(lambda: "order-3" in heard, within=PATIENCE_S, what="the third one parked")

    result = settle_by_hand(stage, settle.OperatorAction.ROLLBACK, "order-3")
    is_settled.set()  # its commit comes too late now
    stage.producer("other").publish(Message(orders, "customer-7", "last"))

    stage.assert_published(orders, value="last")
    assert result is settle.SettlementResult.DONE
    assert [b"order-1", b"last"] == [message.value for message in stage.messages(orders)]
