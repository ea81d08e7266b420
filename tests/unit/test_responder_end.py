"""A producer that answers, and what goes wrong there; its beginning and its end."""

import logging
import threading

import pytest

from tests.support.fake_barrier import FakeBarrier
from tests.support.producer_stage import PATIENCE_S, ProducerStage, commit, question, stats_of
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, Resolution
from txlayer.errors import (
    BrokerUnavailableError,
    ConfigError,
    FencedError,
    NotAuthorisedError,
    TopicMismatchError,
    TxLayerError,
    UsageError,
)
from txlayer.producer import responder as module
from txlayer.producer.check_handlers import CheckRequest

# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [BrokerUnavailableError("gone"), NotAuthorisedError("no"), TxLayerError("x"), ValueError("y")]
)
def test_after_an_error_the_group_is_joined_anew_and_nothing_is_forgotten(
    stage: ProducerStage, error: Exception
) -> None:
    producer = stage.producer(check=commit)
    producer.start()
    first = stage.member()
    stage.ask(question("a"), partition=1)
    stage.answers(1)
    first.fail(error)

    second = stage.member(1)
    stage.ask(question("b"), member=1)
    stage.answers(2)

    assert first.is_closed
    assert 1 == second.positions["txlayer.check", 1]
    wait_until(lambda: stats_of(producer).failure is None, within=PATIENCE_S, what="it reads again")


def test_positions_that_are_gone_are_left_for_the_ends(stage: ProducerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.3)
    stage.producer(check=commit).start()
    first = stage.member()
    stage.ask(question("a"), partition=1)
    stage.answers(1)
    first.fail(ConfigError("out of range", name="stored offset"))
    wait_until(lambda: first.is_closed, within=PATIENCE_S, what="it left")
    stage.ask(question("unheard"), partition=1)

    assert 2 == stage.member(1).positions["txlayer.check", 1]


def test_an_outage_of_any_length_is_survived(stage: ProducerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_MAX_S", 0.02)
    producer = stage.producer(check=commit)
    producer.start()
    stage.failure = BrokerUnavailableError("nobody")
    stage.member().fail(BrokerUnavailableError("gone"))
    wait_until(lambda: len(stage.members) > 5, within=PATIENCE_S, what="five attempts")
    assert isinstance(stats_of(producer).failure, BrokerUnavailableError)

    stage.failure = None
    wait_until(lambda: stats_of(producer).failure is None, within=PATIENCE_S, what="it reads again")
    stage.ask(question())

    stage.answers(1)


def test_what_running_calls_say_is_written_before_the_group_is_joined_anew(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", PATIENCE_S * 6)
    begun, may_end = threading.Event(), threading.Event()

    def check(_: CheckRequest) -> Resolution:
        begun.set()
        may_end.wait(PATIENCE_S)
        return COMMIT

    stage.producer(check=check).start()
    stage.ask(question())
    assert begun.wait(PATIENCE_S)
    stage.members[0].fail(BrokerUnavailableError("gone"))
    wait_until(lambda: stage.members[0].is_closed, within=PATIENCE_S, what="it left")

    may_end.set()

    stage.answers(1)


def test_close_does_not_wait_until_the_group_may_be_joined_anew(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_S", PATIENCE_S * 6)
    producer = stage.producer(check=commit)
    producer.start()
    stage.member().fail(BrokerUnavailableError("gone"))
    wait_until(lambda: stage.members[0].is_closed, within=PATIENCE_S, what="it left")

    with caplog.at_level(logging.INFO, "txlayer.responder"):
        producer.close(timeout=1.0)

    assert "responder.ended" in [r.getMessage() for r in caplog.records]


def test_a_producer_that_failed_leaves_the_group(
    stage: ProducerStage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.producer.pipeline.LOOK_S", 0.01)
    producer = stage.producer(check=commit)
    producer.start()
    left = stage.member()

    with caplog.at_level(logging.ERROR, "txlayer"):
        stage.writer.fatal = FencedError("fatal")
        wait_until(lambda: left.is_closed, within=PATIENCE_S, what="it left")
        wait_until(lambda: not stats_of(producer).is_member, within=PATIENCE_S, what="no member")
        wait_until(
            lambda: "responder.ended" in [r.getMessage() for r in caplog.records], within=PATIENCE_S, what="it was told"
        )
    stage.producers.remove(producer)
    producer.close()


# --- beginning and end ------------------------------------------------------------------------------------------------


def test_without_a_check_topic_nothing_starts_and_it_may_be_tried_again(stage: ProducerStage) -> None:
    stage.kafka.delete_topic("txlayer.check")
    producer = stage.producer(check=commit)
    with pytest.raises(TopicMismatchError, match="txlayer topics apply"):
        producer.start()
    assert stage.is_closed
    assert stage.members[0].is_closed

    stage.kafka.create_topic("txlayer.check", partitions=2)
    producer.start()
    stage.ask(question(), member=1)

    stage.answers(1)


def test_close_leaves_the_group_and_ends_what_is_begun(stage: ProducerStage) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def check(_: CheckRequest) -> Resolution:
        begun.set()
        may_end.wait(PATIENCE_S)
        return COMMIT

    producer = stage.producer(check=check, check_workers=1)
    producer.start()
    stage.ask(question("a"), question("b"))
    assert begun.wait(PATIENCE_S)
    closing = threading.Thread(target=producer.close)
    closing.start()
    wait_until(lambda: stage.member().is_closed, within=PATIENCE_S, what="it left the group")
    assert closing.is_alive()

    may_end.set()
    closing.join(PATIENCE_S)

    assert ["a/0000000a"] == [a.key for a in stage.answers(1)]
    assert producer.responder_stats() is None


def test_close_does_not_wait_for_a_handler_that_hangs(stage: ProducerStage) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def check(_: CheckRequest) -> Resolution:
        begun.set()
        may_end.wait(PATIENCE_S * 6)
        return COMMIT

    producer = stage.producer(check=check)
    producer.start()
    stage.ask(question())
    assert begun.wait(PATIENCE_S)

    producer.close(timeout=0.1)
    may_end.set()

    assert [] == stage.resolutions()


def test_start_twice_joins_once_and_close_twice_leaves_once(stage: ProducerStage) -> None:
    producer = stage.producer(check=commit)
    producer.start()
    producer.start()
    assert 1 == len(stage.members)

    producer.close()
    producer.close()
    assert stage.members[0].is_closed


def test_what_was_done_is_logged_at_the_end(stage: ProducerStage, caplog: pytest.LogCaptureFixture) -> None:
    producer = stage.producer(check=commit)
    producer.start()
    stage.ask(question())
    stage.answers(1)

    with caplog.at_level(logging.INFO, "txlayer.responder"):
        producer.close()

    (ended,) = [r for r in caplog.records if r.getMessage() == "responder.ended"]
    assert (1, {"COMMIT": 1}, 1) == (ended.asked, ended.answered, ended.stored)  # type: ignore[attr-defined]  # extra


def test_a_handler_that_cannot_be_called_is_refused_at_once(stage: ProducerStage) -> None:
    async def later(_: CheckRequest) -> Resolution:
        return COMMIT

    for check, words in ((later, "AsyncTransactionalProducer"), ("module:name", "not callable")):
        with pytest.raises(UsageError, match=words):
            stage.producer(check=check)
    with pytest.raises(UsageError, match="generated"):
        stage.producer(check=commit, barrier=FakeBarrier())
