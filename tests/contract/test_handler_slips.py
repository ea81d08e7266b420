"""Slips of a user's code: what a handler returns by mistake, a `key_group` that raises; over memory and over real Kafka."""

import logging
from datetime import timedelta
from typing import cast

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import Stage
from tests.support.process_handlers import SLIPPING, SLIPS, ending
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import DeadLetter, dead_letter_of
from txlayer.core.retry import HandlerResult, Retry, RetryPolicy

ONCE_MORE = RetryPolicy(attempt_count_max=2, backoff_first_ms=1, backoff_max_ms=1)


def letters(stage: Stage) -> list[DeadLetter]:
    """What the dead letters say."""
    found = [dead_letter_of(record.headers) for record in stage.lab.read(stage.letters)]
    assert all(isinstance(letter, DeadLetter) for letter in found)
    return cast("list[DeadLetter]", found)


@pytest.mark.parametrize(
    ("workers", "place"),
    [
        *(("threads", place) for place in range(len(SLIPS))),
        *(pytest.param("processes", place, marks=pytest.mark.slow) for place in (0, 2, 7)),
    ],
)
@OF_HANDLERS
def test_a_wrong_result_is_a_failed_attempt_with_its_reason(stage: Stage, workers: str, place: int) -> None:
    if workers == "processes":  # the same code; three show the way between the processes
        consumer = stage.consumer(workers=workers, worker_count=1, retry=ONCE_MORE)
        consumer._handlers._handlers.clear()
        consumer.handler(SLIPPING[place])
    else:
        consumer = stage.consumer(
            lambda message, _: SLIPS[place][0] if message.value == b"slip" else None, retry=ONCE_MORE
        )
    stage.write(b"slip", b"good")

    with consumer:
        stage.wait_for_letters([b"slip"])
        stage.wait_stored(2)
        assert consumer.is_running

    (letter,) = letters(stage)
    assert (2, "TypeError") == (letter.attempt_count, letter.error_type)
    assert SLIPS[place][1] in letter.error_message


@OF_HANDLERS
def test_a_wrong_result_of_a_coroutine_is_a_failed_attempt(stage: Stage) -> None:
    stage.write(b"slip", b"good")

    async def act(consumer: AsyncOrderedConsumer, message: ReceivedMessage, _context: Context) -> HandlerResult:
        if message.value == b"slip":
            return cast("HandlerResult", SLIPS[0][0])
        consumer.stop()
        return None

    stage.run_tasks(act, retry=ONCE_MORE)

    (letter,) = letters(stage)
    assert SLIPS[0][1] in letter.error_message


@pytest.mark.promise("P9")
@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.slow), "tasks"])
@OF_HANDLERS
def test_a_handler_that_would_end_its_process_fails_its_attempt_alone(stage: Stage, kind: str) -> None:
    stage.write(b"exit")
    stage.write(b"interrupt", key=b"another")
    stage.write(b"good")

    async def act(_: AsyncOrderedConsumer, message: ReceivedMessage, context: Context) -> None:
        ending(message, context)

    def look(consumer: AsyncOrderedConsumer | OrderedConsumer) -> None:
        stage.wait_stored(3)
        assert consumer.is_running

    if kind == "tasks":
        stage.run_tasks(act, until=look, retry=ONCE_MORE)
    else:
        consumer = stage.plain(retry=ONCE_MORE, workers=kind, worker_count=1)
        consumer.handler(ending)
        with consumer:
            look(consumer)

    found = {letter.origin.offset: (letter.attempt_count, letter.error_type) for letter in letters(stage)}
    assert {0: (2, "SystemExit"), 1: (2, "KeyboardInterrupt")} == found


@OF_HANDLERS
def test_a_retry_takes_a_timedelta(stage: Stage) -> None:
    stage.write(b"0")

    def act(_message: ReceivedMessage, context: Context) -> HandlerResult:
        return Retry(timedelta(milliseconds=1)) if context.attempt == 1 else None

    never = RetryPolicy(backoff_first_ms=86_400_000, backoff_max_ms=86_400_000)
    with stage.consumer(act, retry=never):
        stage.wait_stored(1)

    assert [1, 2] == [seen.attempt for seen in stage.journal.seen]


@pytest.mark.parametrize("wrong", [KeyError, SystemExit, None])
@OF_HANDLERS
def test_a_key_group_that_fails_is_told_once_and_stops_nothing(
    stage: Stage, wrong: type[BaseException] | None, caplog: pytest.LogCaptureFixture
) -> None:
    def key_group(key: bytes | None) -> str:
        if key == b"odd" and wrong is not None:
            raise wrong(key)
        return cast("str", None) if key == b"odd" else "even"

    stage.write(b"0", b"1", key=b"odd")
    stage.write(b"2")
    with caplog.at_level(logging.ERROR, "txlayer.consumer"), stage.consumer(key_group=key_group) as consumer:
        stage.wait_stored(3)

    figures = consumer.stats().topics[stage.topic]
    assert {"(failed)": 2, "even": 1} == figures.handled_by_key_group
    assert ["key_group.failed"] == [record.getMessage() for record in caplog.records]


@OF_HANDLERS
def test_a_key_group_for_each_key_is_counted_within_a_limit(stage: Stage) -> None:
    for n in range(1_010):
        stage.write(b"0", key=b"%d" % n)

    with stage.consumer(key_group=lambda key: f"{key!r}{'k' * 1_000}") as consumer:
        stage.wait_stored(1_010)

    groups = consumer.stats().topics[stage.topic].handled_by_key_group
    assert (1_001, 10) == (len(groups), groups["(other)"])
    assert 200 == max(map(len, groups))
