"""Producers for threads and for asyncio over a log in memory: what may be called when, and what leaving a block means."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.producer_stage import ProducerStage
from txlayer.core.messages import COMMIT, Message, Resolution
from txlayer.errors import (
    BrokerUnavailableError,
    ConfigError,
    ForbiddenTopicError,
    LifecycleError,
    RefusedRecordError,
    ReservedHeaderError,
    RetriableError,
    TopicMismatchError,
    UsageError,
)
from txlayer.producer.producer import TransactionalProducer

ORDER = Message("orders", b"k", b"v")
HALF, OP = "txlayer.half", "txlayer.op"


@pytest.fixture(params=["threads", "loop"], autouse=True)
def kind(request: pytest.FixtureRequest, stage: ProducerStage) -> Iterator[None]:
    """Each test runs with producers for threads, and with those for asyncio."""
    if request.param == "threads":
        yield
        return
    with asyncio.Runner() as stage.runner:
        yield
        stage.close_producers()


# --- lifecycle --------------------------------------------------------------------------------------------------------


def test_a_constructor_connects_to_nothing(stage: ProducerStage) -> None:
    stage.producer()

    assert [] == stage.asked


@pytest.mark.parametrize("settings", [{"in_flight_max": 0}, {"namespace": "a b"}, {"client_settings": {"acks": "1"}}])
def test_settings_that_cannot_be_are_refused_at_once(stage: ProducerStage, settings: Any) -> None:
    with pytest.raises(ConfigError):
        stage.producer(**settings)
    with pytest.raises(UsageError, match=r"^group "):
        TransactionalProducer(bootstrap_servers="127.0.0.1:9", group="a b")


def test_start_and_close_may_be_called_twice(stage: ProducerStage) -> None:
    producer = stage.producer()
    producer.start()
    producer.start()
    producer.close()
    producer.close()

    assert [HALF, OP] == stage.asked
    assert stage.is_closed
    assert stage.writer.is_closed


def test_a_closed_producer_refuses_everything(stage: ProducerStage) -> None:
    producer = stage.producer()
    producer.start()
    with producer.transaction() as tx:
        tx.rollback()
    producer.close()

    for call in (
        producer.start,
        lambda: producer.transaction().__enter__(),
        lambda: producer.publish(ORDER),
        lambda: producer.status("a"),
    ):
        with pytest.raises(LifecycleError, match="closed"):
            call()


def test_a_producer_closed_before_its_start_connects_to_nothing(stage: ProducerStage) -> None:
    producer = stage.producer()
    producer.close()

    with pytest.raises(LifecycleError):
        producer.start()
    assert [] == stage.asked


def test_a_start_that_failed_may_be_repeated(stage: ProducerStage) -> None:
    producer = stage.producer()
    stage.failure = BrokerUnavailableError("nobody")
    with pytest.raises(BrokerUnavailableError):
        producer.start()

    stage.failure = None
    producer.publish(ORDER)
    assert [COMMIT] == stage.resolutions()


@pytest.mark.parametrize("topic", [HALF, OP])
def test_missing_system_topics_name_the_command_that_creates_them(stage: ProducerStage, topic: str) -> None:
    stage.kafka.delete_topic(topic)

    with pytest.raises(TopicMismatchError, match="txlayer topics apply") as raised:
        stage.producer().start()
    assert topic == raised.value.topic


@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
def test_half_and_op_with_unlike_partition_counts_are_refused(stage: ProducerStage) -> None:
    stage.set_topic(OP, partitions=3)

    with pytest.raises(TopicMismatchError) as raised:
        stage.producer().start()
    assert (OP, "3") == (raised.value.topic, raised.value.found)


# --- a block ----------------------------------------------------------------------------------------------------------


def test_leaving_normally_commits(stage: ProducerStage) -> None:
    with stage.producer().transaction("order-1") as tx:
        tx.send("orders", key="k", value="v")
        tx.prepare()
        assert 1 == len(stage.writer.of(HALF))
        assert [] == stage.writer.of(OP)

    assert COMMIT is tx.result(10).resolution
    assert [COMMIT] == stage.resolutions()


def test_an_exception_passes_as_it_is_and_leaves_the_resolution_unknown(stage: ProducerStage) -> None:
    error = KeyError("the user's own")

    with pytest.raises(KeyError) as raised, stage.producer().transaction() as tx:  # noqa: PT012 - the block is the subject
        tx.send("orders", value="v")
        tx.prepare()
        raise error
    assert error is raised.value
    assert Resolution.UNKNOWN is tx.result(10).resolution


@pytest.mark.parametrize(
    ("say", "expected"),
    [("commit", Resolution.COMMIT), ("rollback", Resolution.ROLLBACK), ("unknown", Resolution.UNKNOWN)],
)
def test_what_was_said_outright_stands(stage: ProducerStage, say: str, expected: Resolution) -> None:
    with stage.producer().transaction() as tx:
        tx.send("orders", value="v")
        tx.prepare()
        getattr(tx, say)()
        assert expected is tx.resolution

    tx.result(10)
    assert [expected] == stage.resolutions()


def test_what_was_said_outright_stands_also_when_an_exception_follows(stage: ProducerStage) -> None:
    with pytest.raises(KeyError), stage.producer().transaction() as tx:  # noqa: PT012 - the block is the subject
        tx.send("orders", value="v")
        tx.prepare()
        tx.rollback()
        raise KeyError

    tx.result(10)
    assert [Resolution.ROLLBACK] == stage.resolutions()


def test_a_block_left_without_prepare_is_an_error_and_nothing_was_sent(stage: ProducerStage) -> None:
    with pytest.raises(LifecycleError, match="nothing was sent"), stage.producer().transaction() as tx:
        tx.send("orders", value="v")
    assert [] == stage.writer.stored


def test_a_rollback_before_prepare_sends_nothing(stage: ProducerStage) -> None:
    with stage.producer().transaction() as tx:
        tx.send("orders", value="v")
        tx.rollback()

    assert [] == stage.writer.stored
    with pytest.raises(LifecycleError, match="nothing was said"):
        tx.result()


def test_an_empty_transaction_is_refused(stage: ProducerStage) -> None:
    with pytest.raises(UsageError, match="empty"), stage.producer().transaction() as tx:
        tx.prepare()
    with pytest.raises(UsageError, match="empty"):
        stage.producer().publish([])
    assert [] == stage.writer.stored


def test_after_prepare_nothing_can_be_sent(stage: ProducerStage) -> None:
    with stage.producer().transaction() as tx:
        tx.send("orders", value="v")
        tx.prepare()
        with pytest.raises(LifecycleError):
            tx.send("orders", value="late")
        with pytest.raises(LifecycleError):
            tx.prepare()

    tx.result(10)
    assert 1 == len(stage.writer.of(HALF))


@pytest.mark.parametrize("say", ["commit", "unknown", "result"])
def test_before_prepare_nothing_can_be_said(stage: ProducerStage, say: str) -> None:
    with stage.producer().transaction() as tx:
        with pytest.raises(LifecycleError):
            getattr(tx, say)()
        tx.rollback()


@pytest.mark.parametrize("say", ["commit", "rollback", "unknown"])
def test_a_resolution_is_said_once(stage: ProducerStage, say: str) -> None:
    with stage.producer().transaction() as tx:
        tx.send("orders", value="v")
        tx.prepare()
        tx.commit()
        with pytest.raises(LifecycleError):
            getattr(tx, say)()

    tx.result(10)
    assert [COMMIT] == stage.resolutions()


def test_bad_messages_are_refused_where_they_are_sent(stage: ProducerStage) -> None:
    with stage.producer(transaction_messages_max=1).transaction() as tx:
        with pytest.raises(ForbiddenTopicError):
            tx.send(HALF, value="v")
        with pytest.raises(ReservedHeaderError):
            tx.send("orders", headers={"txl": b""})
        tx.send("orders", value="v")
        with pytest.raises(UsageError, match="transaction_messages_max"):
            tx.send("orders", value="v")
        tx.prepare()
    assert COMMIT is tx.result(10).resolution


def test_a_failed_prepare_that_was_caught_cannot_be_left_normally(stage: ProducerStage) -> None:
    stage.writer.refuse = lambda _record: RefusedRecordError("no", topic=HALF)

    with pytest.raises(LifecycleError, match="prepare did not succeed"):  # noqa: PT012, SIM117 - the block is the subject
        with stage.producer().transaction() as tx:
            tx.send("orders", value="v")
            with pytest.raises(RefusedRecordError):
                tx.prepare()


def test_a_prepare_that_sent_nothing_may_be_repeated_as_an_attempt_of_its_own(stage: ProducerStage) -> None:
    producer = stage.producer(in_flight_max=1)
    with producer.transaction() as first:
        first.send("orders", value="v")
        first.prepare()
        with producer.transaction("order-2", block=False) as second:
            second.send("orders", value="w")
            nonce = second.nonce
            with pytest.raises(RetriableError):
                second.prepare()
            first.commit()
            first.result(10)
            second.prepare()

    assert "order-2" == second.result(10).txn_id
    assert nonce != second.nonce


def test_a_result_is_waited_for_no_longer_than_asked(stage: ProducerStage) -> None:
    with stage.producer().transaction() as tx:
        tx.send("orders", value="v")
        tx.prepare()
        stage.writer.hold(True)

    for timeout in (0.01, timedelta(milliseconds=10)):
        with pytest.raises(TimeoutError):
            tx.result(timeout)
    stage.writer.hold(False)
    assert COMMIT is tx.result(10).resolution


def test_join_without_a_barrier_says_what_to_do(stage: ProducerStage) -> None:
    with (  # noqa: PT012 - the block is the subject
        pytest.raises(UsageError, match=r"barrier=…, or call prepare\(\)"),
        stage.producer().transaction() as tx,
    ):
        tx.send("orders", value="v")
        tx.join("session")
    assert [] == stage.writer.stored
