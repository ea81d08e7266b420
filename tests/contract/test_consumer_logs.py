"""What a consumer logs of what goes wrong, each once: its own end, a handler's error, a dead letter; memory and real Kafka."""

import asyncio
import logging
from datetime import timedelta

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, QUICK, Stage
from tests.support.process_handlers import fail
from tests.support.waiting import wait_until
from txlayer import Codec
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.metrics import health_of
from txlayer.core.retry import AfterExhausted, Reject, RetryPolicy
from txlayer.errors import ConfigError, LifecycleError

LOGGER = "txlayer.consumer"
WITHIN = timedelta(seconds=PATIENCE_S)
TWICE = RetryPolicy(attempt_count_max=2, backoff_first_ms=1, backoff_max_ms=1)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    """The log lines of an event."""
    return [record for record in caplog.records if record.getMessage() == event]


def told(record: logging.LogRecord, *names: str) -> tuple[object, ...]:
    """Fields of a log line."""
    return tuple(getattr(record, name) for name in names)


# --- a consumer that fails --------------------------------------------------------------------------------------------


@OF_HANDLERS
def test_a_consumer_that_fails_in_the_background_is_logged_seen_and_raised(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = stage.consumer(start_at=None)

    consumer.start()
    with pytest.raises(ConfigError, match="start_at does not say where to begin"):
        consumer.join(WITHIN)

    assert not consumer.is_running
    assert isinstance(consumer.failure, ConfigError)
    stats = consumer.stats()
    assert "it failed: ConfigError; see the log" == health_of(stats, now=0.0).waiting
    (line,) = lines(caplog, "consumer.failed")
    assert (stage.group, logging.CRITICAL) == told(line, "group", "levelno")
    assert line.exc_info is not None
    assert line.exc_info[1] is consumer.failure
    assert line.exc_info[2] is not None
    consumer.close()  # `join` has raised it


@OF_HANDLERS
def test_close_raises_what_ended_a_consumer(stage: Stage) -> None:
    consumer = stage.consumer(start_at=None)
    consumer.start()
    wait_until(lambda: not consumer.is_running, within=PATIENCE_S, what="the end")

    with pytest.raises(ConfigError):
        consumer.close()

    assert isinstance(consumer.failure, ConfigError)


@OF_HANDLERS
def test_what_run_raises_is_not_logged_as_well(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.write(b"0")
    with pytest.raises(ConfigError) as caught:
        stage.consumer(start_at=None).run()

    assert ("start_at", []) == (caught.value.name, stage.journal.seen)
    assert [] == lines(caplog, "consumer.failed")


@OF_HANDLERS
def test_join_waits_and_ends_nothing(stage: Stage) -> None:
    consumer = stage.consumer()
    with pytest.raises(LifecycleError):
        consumer.join()

    with consumer:
        assert not consumer.join(timedelta(0))
        assert consumer.is_running

    assert consumer.join()
    assert consumer.failure is None
    assert consumer.stats().has_ended


@OF_HANDLERS
def test_an_asynchronous_consumer_that_fails_in_the_background_is_logged_and_raised(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> AsyncOrderedConsumer:
        consumer = AsyncOrderedConsumer(
            group=stage.group,
            topics=[stage.topic],
            connect=stage.lab.connect_consumer,
            bootstrap_servers=stage.lab.servers,
            namespace=stage.namespace,
        )

        @consumer.handler
        async def handle(_message: ReceivedMessage, _context: Context) -> None: ...

        await consumer.start()
        with pytest.raises(ConfigError):
            await consumer.join()
        await consumer.close()
        return consumer

    consumer = asyncio.run(asyncio.wait_for(run(), PATIENCE_S))

    assert isinstance(consumer.failure, ConfigError)
    assert 1 == len(lines(caplog, "consumer.failed"))


# --- attempts and dead letters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@OF_HANDLERS
def test_a_handlers_error_is_logged_once_an_attempt_and_its_dead_letter_once(
    stage: Stage, workers: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage.write(b"secret")
    consumer = stage.consumer(retry=TWICE, workers=workers, worker_count=1)
    consumer._handlers._handlers.clear()  # the stage's own cannot go to a process
    consumer.handler(fail)

    with consumer:
        stage.wait_for_letters([b"secret"])
        stage.wait_stored(1)

    place = (stage.topic, 0, 0)
    raised = lines(caplog, "handler.raised")
    assert [(*place, 1), (*place, 2)] == [told(r, "topic", "partition", "offset", "attempt") for r in raised]
    for line in raised:
        assert logging.WARNING == line.levelno
        text = logging.Formatter().format(line)
        assert "Traceback" in text
        assert 'raise ValueError("as planned")' in text
    (letter,) = lines(caplog, "message.dead_lettered")
    fields = told(letter, "topic", "partition", "offset", "attempt_count", "error_type", "reason", "levelno")
    assert (*place, 2, "ValueError", "attempts-exhausted", logging.ERROR) == fields
    assert (stage.letters, 0) == told(letter, "dead_letter_topic", "dead_letter_offset")
    assert "secret" not in caplog.text


@OF_HANDLERS
def test_what_a_handler_says_itself_is_no_warning_and_followers_of_a_parked_key_wake_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    stage.write(b"0", b"1")
    parking = RetryPolicy(after_exhausted=AfterExhausted.PARK)

    with stage.consumer(lambda *_: Reject("no such customer"), retry=parking):
        stage.wait_for_letters([b"0", b"1"])
        stage.wait_stored(2)

    (refused,) = lines(caplog, "handler.refused")
    assert (0, logging.INFO, "no such customer") == told(refused, "offset", "levelno", "reason")
    letters = [told(r, "offset", "reason", "levelno") for r in lines(caplog, "message.dead_lettered")]
    assert [(0, "rejected", logging.ERROR), (1, "key-parked", logging.INFO)] == letters


@OF_HANDLERS
def test_what_a_deserializer_raises_is_logged_with_its_place(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    def deserialize(raw: bytes | None, _message: ReceivedMessage) -> int:
        return int(raw or b"")

    stage.write(b"no number")
    with stage.consumer(codec=Codec(deserializer=deserialize), retry=QUICK):
        stage.wait_for_letters([b"no number"])

    (line,) = lines(caplog, "message.undecodable")
    assert 0 == line.__dict__["offset"]
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], ValueError)
