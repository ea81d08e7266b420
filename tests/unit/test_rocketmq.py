"""RocketMQ's words: what the listener returns is what is said, and what it raises comes out."""

from typing import Any

import pytest

from tests.support.producer_stage import ProducerStage, question
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, Resolution
from txlayer.errors import UsageError
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.rocketmq import PreparedMessage, TransactionMQProducer

ORDER = Message("orders", b"k", b"v", [("h", b"1")], "TagA")


class Listener:
    """Says what the test says."""

    def __init__(self, said: Any = COMMIT) -> None:
        self.said = said
        self.executed: list[tuple[PreparedMessage, Any]] = []

    def execute_local_transaction(self, prepared: PreparedMessage, arg: Any) -> Any:
        self.executed.append((prepared, arg))
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def check_local_transaction(self, request: CheckRequest) -> Resolution:
        return ROLLBACK if request.txn_id == "gone" else COMMIT


def producer_of(stage: ProducerStage, listener: Any, **settings: Any) -> TransactionMQProducer:
    made = TransactionMQProducer(
        listener=listener, bootstrap_servers="127.0.0.1:9", group="g", connect=stage.connect, **settings
    )
    stage.producers.append(made)
    return made


@pytest.mark.parametrize(
    ("said", "expected"), [(COMMIT, COMMIT), (ROLLBACK, ROLLBACK), (UNKNOWN, UNKNOWN), (None, UNKNOWN)]
)
def test_what_the_listener_returns_is_said(stage: ProducerStage, said: Any, expected: Any) -> None:
    listener = Listener(said)

    result = producer_of(stage, listener).send_message_in_transaction(ORDER, 7, txn_id="order-7")

    ((prepared, arg),) = listener.executed
    assert (expected, "order-7") == (result.resolution, result.txn_id)
    assert [expected] == stage.resolutions()
    assert (PreparedMessage("order-7", result.nonce, ORDER), 7) == (prepared, arg)


@pytest.mark.parametrize(
    ("said", "error", "text"), [(KeyError("shop"), KeyError, "shop"), ("COMMIT_MESSAGE", UsageError, "COMMIT_MESSAGE")]
)
def test_what_it_raises_comes_out_and_another_word_is_a_mistake_and_both_are_unknown(
    stage: ProducerStage, said: Any, error: type[Exception], text: str
) -> None:
    producer = producer_of(stage, Listener(said))

    with pytest.raises(error, match=text):
        producer.send_message_in_transaction(ORDER)

    wait_until(lambda: [UNKNOWN] == stage.resolutions(), within=10, what="unknown")


def test_the_listener_answers_checks(stage: ProducerStage) -> None:
    producer_of(stage, Listener()).start()

    stage.ask(question("gone"), question("there"))

    wait_until(lambda: {COMMIT, ROLLBACK} == set(stage.resolutions()), within=10, what="both answers")


def test_what_is_no_listener_is_refused(stage: ProducerStage) -> None:
    with pytest.raises(UsageError, match="execute_local_transaction"):
        producer_of(stage, object())
    with pytest.raises(UsageError, match="check="):
        producer_of(stage, Listener(), check=lambda _: COMMIT)
