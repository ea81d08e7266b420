"""A breaker in real consumers: on threads, as tasks and with batches, an outage costs no message its attempts."""

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.waiting import wait_until
from txlayer import (
    AsyncOrderedConsumer,
    BreakerPolicy,
    ConcurrentConsumer,
    Context,
    OrderedConsumer,
    ReceivedMessage,
    Retry,
    RetryPolicy,
)
from txlayer.core.retry import HandlerResult
from txlayer.errors import UsageError

BREAKER = BreakerPolicy(attempt_count_min=5, window=timedelta(seconds=20), probe_interval=timedelta(milliseconds=50))
TWICE = RetryPolicy(attempt_count_max=2, backoff_first_ms=1, backoff_max_ms=1)
KEY_COUNT = 40
PROBE_COUNT = 5


def write(stage: Stage) -> None:
    for n in range(KEY_COUNT):
        stage.write(b"%d" % n, key=b"k%d" % n)


def wait_for_probes(stage: Stage, consumer: Any) -> None:
    """Until it opened and several probes failed."""
    wait_until(
        lambda: consumer.stats().topics.get(stage.topic) and consumer.stats().topics[stage.topic].breaker_opened,
        within=PATIENCE_S,
        what="it opens",
    )
    before = consumer.stats().topics[stage.topic].postponed
    wait_until(
        lambda: consumer.stats().topics[stage.topic].postponed >= before + PROBE_COUNT,
        within=PATIENCE_S,
        what="probes fail",
    )


def check(stage: Stage, consumer: Any) -> None:
    """Everything was handled, and no attempt was lost while it was open."""
    found = consumer.stats().topics[stage.topic]
    assert ("closed", 1, KEY_COUNT, 0) == (found.breaker, found.breaker_opened, found.handled, found.dead_lettered)
    assert found.failed < BREAKER.attempt_count_min
    assert [] == stage.letter_values()


@pytest.mark.promise("P9")
def test_an_outage_costs_no_message_its_attempts(stage: Stage) -> None:
    write(stage)
    is_back = threading.Event()

    def act(_message: ReceivedMessage, _context: Context) -> None:
        if not is_back.is_set():
            raise ConnectionError("away")

    with stage.consumer(act, retry=TWICE, breaker=BREAKER, worker_count=4) as consumer:
        wait_for_probes(stage, consumer)
        is_back.set()
        stage.wait_stored(KEY_COUNT)
        check(stage, consumer)


@OF_HANDLERS
def test_a_delay_that_a_handler_asked_for_is_kept_while_it_is_open(stage: Stage) -> None:
    stage.write(b"patient", key=b"patient")
    write(stage)
    is_back = threading.Event()

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        if message.value == b"patient":
            return Retry(timedelta(days=30))
        if not is_back.is_set():
            raise ConnectionError("away")
        return None

    at_once = replace(BREAKER, attempt_count_min=1)
    with stage.consumer(act, retry=TWICE, breaker=at_once, worker_count=1) as consumer:
        wait_for_probes(stage, consumer)
        is_back.set()
        wait_until(
            lambda: consumer.stats().topics[stage.topic].handled == KEY_COUNT,
            within=PATIENCE_S,
            what="all others are handled",
        )
    assert [b"patient"] == stage.journal.values(b"patient")


@OF_HANDLERS
def test_coroutines_are_spared_too(stage: Stage) -> None:
    write(stage)
    is_back = False

    async def work() -> None:
        nonlocal is_back
        consumer = stage.plain(AsyncOrderedConsumer, retry=TWICE, breaker={stage.topic: BREAKER})

        @consumer.handler  # type: ignore[untyped-decorator]  # it takes any function
        async def handle(_message: ReceivedMessage, _context: Context) -> None:
            if not is_back:
                raise ConnectionError("away")

        async with consumer:
            await asyncio.to_thread(wait_for_probes, stage, consumer)
            is_back = True
            await asyncio.to_thread(stage.wait_stored, KEY_COUNT)
            check(stage, consumer)

    asyncio.run(work())


@OF_HANDLERS
def test_one_batch_at_a_time_is_a_probe(stage: Stage) -> None:
    write(stage)
    is_back = threading.Event()
    running = threading.Lock()
    consumer = stage.plain(ConcurrentConsumer, retry=TWICE, breaker=BREAKER, worker_count=4)
    together: list[bool] = []

    @consumer.batch_handler(count_max=3)  # type: ignore[untyped-decorator]  # it takes any function
    def handle(messages: list[ReceivedMessage], _context: Context) -> None:
        is_open = consumer.stats().topics[stage.topic].breaker_is_open
        is_alone = running.acquire(blocking=False)
        if is_open:
            together.append(not is_alone)
        try:
            if not is_back.is_set():
                raise ConnectionError(str(len(messages)))
        finally:
            if is_alone:
                running.release()

    with consumer:
        wait_for_probes(stage, consumer)
        together.clear()
        wait_until(lambda: len(together) >= PROBE_COUNT, within=PATIENCE_S, what="more probes")
        assert not any(together)
        is_back.set()
        stage.wait_stored(KEY_COUNT)
        assert KEY_COUNT == consumer.stats().topics[stage.topic].handled
    assert [] == stage.letter_values()


def test_a_breaker_is_for_topics_that_are_consumed(stage: Stage) -> None:
    with pytest.raises(UsageError, match="a breaker for other"):
        stage.consumer(breaker={"other": BREAKER})


@OF_HANDLERS
def test_a_breaker_of_one_handler_leaves_the_other_handlers_of_its_topic_alone(stage: Stage) -> None:
    tags = [f"paid-{n}" for n in range(KEY_COUNT)]
    for tag in tags:
        stage.lab.write_tagged(stage.topic, tag.encode())
    is_back = threading.Event()
    consumer = stage.plain(OrderedConsumer, retry=TWICE, worker_count=4)

    @consumer.handler(tags=" || ".join(tags), breaker=BREAKER)  # type: ignore[untyped-decorator]  # it takes any function
    def book(_message: ReceivedMessage, _context: Context) -> None:
        if not is_back.is_set():
            raise ConnectionError("away")

    @consumer.handler  # type: ignore[untyped-decorator]  # it takes any function
    def log(_message: ReceivedMessage, _context: Context) -> None:
        """It needs nothing."""

    with consumer:
        wait_for_probes(stage, consumer)
        for n in range(KEY_COUNT):
            stage.write(b"other", key=b"other%d" % n)
        wait_until(
            lambda: consumer.stats().topics[stage.topic].handled == KEY_COUNT,
            within=PATIENCE_S,
            what="the other handler's messages",
        )
        assert consumer.stats().topics[stage.topic].breaker_is_open
        is_back.set()
        stage.wait_stored(2 * KEY_COUNT)
        assert 2 * KEY_COUNT == consumer.stats().topics[stage.topic].handled
    assert [] == stage.letter_values()
