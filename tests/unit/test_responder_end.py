"""A producer that answers, and what goes wrong there; its beginning and its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from tests.support.answering_producer import PATIENCE_S, answers, commit, member, quick_log, stats_of
from tests.support.fake_barrier import FakeBarrier
from tests.support.fake_log import ProducerLog
from tests.support.fake_member import question
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


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerLog]:
    yield from quick_log(monkeypatch)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [BrokerUnavailableError("gone"), NotAuthorisedError("no"), TxLayerError("x"), ValueError("y")]
)
def test_after_an_error_the_group_is_joined_anew_and_nothing_is_forgotten(log: ProducerLog, error: Exception) -> None:
    producer = log.producer(check=commit)
    producer.start()
    first = member(log)
    first.say(question("a"), partition=1)
    answers(log, count=1)
    first.fail(error)

    second = member(log, 1)
    second.say(question("b"))
    answers(log, count=2)

    assert first.is_closed
    assert 1 == second.positions["txlayer.check", 1]
    wait_until(lambda: stats_of(producer).failure is None, within=PATIENCE_S, what="it reads again")


def test_positions_that_are_gone_are_left_for_the_ends(log: ProducerLog) -> None:
    log.producer(check=commit).start()
    first = member(log)
    first.say(question("a"), partition=1)
    answers(log, count=1)
    first.fail(ConfigError("out of range", name="stored offset"))

    second = member(log, 1)
    second.say(question("b"))
    answers(log, count=2)

    assert 0 == second.positions["txlayer.check", 1]


def test_an_outage_of_any_length_is_survived(log: ProducerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_MAX_S", 0.02)
    producer = log.producer(check=commit)
    producer.start()
    log.connections.failure = BrokerUnavailableError("nobody")
    member(log).fail(BrokerUnavailableError("gone"))
    wait_until(lambda: len(log.connections.members) > 5, within=PATIENCE_S, what="five attempts")
    assert isinstance(stats_of(producer).failure, BrokerUnavailableError)

    log.connections.failure = None

    def is_answered() -> bool:
        log.connections.members[-1].say(question())
        return bool(log.writer.stored)

    wait_until(is_answered, within=PATIENCE_S, what="an answer")


def test_a_producer_that_failed_leaves_the_group(
    log: ProducerLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.producer.pipeline.LOOK_S", 0.01)
    producer = log.producer(check=commit)
    producer.start()
    left = member(log)

    with caplog.at_level(logging.ERROR, "txlayer"):
        log.writer.fatal = FencedError("fatal")
        wait_until(lambda: left.is_closed, within=PATIENCE_S, what="it left")
        wait_until(lambda: not stats_of(producer).is_member, within=PATIENCE_S, what="no member")
        wait_until(
            lambda: "responder.ended" in [r.getMessage() for r in caplog.records], within=PATIENCE_S, what="it was told"
        )
    log.producers.remove(producer)
    producer.close()


# --- beginning and end ------------------------------------------------------------------------------------------------


def test_without_a_check_topic_nothing_starts_and_it_may_be_tried_again(log: ProducerLog) -> None:
    known = log.connections.topics.pop("txlayer.check")
    producer = log.producer(check=commit)
    with pytest.raises(TopicMismatchError, match="txlayer topics apply"):
        producer.start()
    assert log.connections.is_closed
    assert member(log).is_closed

    log.connections.topics["txlayer.check"] = known
    log.writer.is_closed = False
    producer.start()
    member(log, 1).say(question())

    answers(log, count=1)


def test_close_leaves_the_group_and_ends_what_is_begun(log: ProducerLog) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def check(_: CheckRequest) -> Resolution:
        begun.set()
        may_end.wait(PATIENCE_S)
        return COMMIT

    producer = log.producer(check=check, check_workers=1)
    producer.start()
    member(log).say(question("a"), question("b"))
    assert begun.wait(PATIENCE_S)
    closing = threading.Thread(target=producer.close)
    closing.start()
    wait_until(lambda: member(log).is_closed, within=PATIENCE_S, what="it left the group")
    assert closing.is_alive()

    may_end.set()
    closing.join(PATIENCE_S)

    assert ["a/0000000a"] == [a.key for a in answers(log, count=1)]
    assert producer.responder_stats() is None


def test_close_does_not_wait_for_a_handler_that_hangs(log: ProducerLog) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def check(_: CheckRequest) -> Resolution:
        begun.set()
        may_end.wait(PATIENCE_S * 6)
        return COMMIT

    producer = log.producer(check=check)
    producer.start()
    member(log).say(question())
    assert begun.wait(PATIENCE_S)

    producer.close(timeout=0.1)
    may_end.set()

    assert [] == log.resolutions()


def test_start_twice_joins_once_and_close_twice_leaves_once(log: ProducerLog) -> None:
    producer = log.producer(check=commit)
    producer.start()
    producer.start()
    assert 1 == len(log.connections.members)

    producer.close()
    producer.close()
    assert member(log).is_closed


def test_what_was_done_is_logged_at_the_end(log: ProducerLog, caplog: pytest.LogCaptureFixture) -> None:
    producer = log.producer(check=commit)
    producer.start()
    member(log).say(question())
    answers(log, count=1)

    with caplog.at_level(logging.INFO, "txlayer.responder"):
        producer.close()

    (ended,) = [r for r in caplog.records if r.getMessage() == "responder.ended"]
    assert (1, {"COMMIT": 1}, 1) == (ended.asked, ended.answered, ended.stored)  # type: ignore[attr-defined]  # extra


def test_a_handler_that_cannot_be_called_is_refused_at_once(log: ProducerLog) -> None:
    async def later(_: CheckRequest) -> Resolution:
        return COMMIT

    for check, words in ((later, "AsyncTransactionalProducer"), ("module:name", "not callable")):
        with pytest.raises(UsageError, match=words):
            log.producer(check=check)
    with pytest.raises(UsageError, match="generated"):
        log.producer(check=commit, barrier=FakeBarrier())
