"""Handlers that do not come back: their attempt fails at its deadline, and another worker goes on; over memory and real Kafka."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.waiting import wait_until
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.lease_keeper import LockRegistry
from txlayer.consumer.metrics import health_of
from txlayer.core.dead_letters import DeadLetter, DeadLetterReason, dead_letter_of
from txlayer.core.retry import RetryPolicy

SHORTLY = timedelta(milliseconds=200)
TWICE = RetryPolicy(attempt_count_max=2, backoff_first_ms=1, backoff_max_ms=1)


class Hanging:
    """A handler that waits for the test: at the first attempts of messages that begin with `hang`."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self.is_released = threading.Event()
        self.ended_count = 0

    def __call__(self, message: ReceivedMessage, context: Context) -> None:
        if (message.value or b"").startswith(b"hang") and context.attempt <= self._attempts:
            assert self.is_released.wait(PATIENCE_S)
            self.ended_count += 1


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging(attempts=1)
    yield made
    made.is_released.set()


@pytest.mark.fault("consumer: a handler hangs")
@pytest.mark.promise("P9")
def test_a_hung_handler_fails_its_attempt_and_delays_its_own_key_alone(stage: Stage, hanging: Hanging) -> None:
    stage.write(b"hang", b"behind", key=b"a")
    stage.write(b"other", key=b"b")

    with stage.consumer(hanging, worker_count=1, attempt_timeout=SHORTLY) as consumer:
        stage.wait_stored(3)
        figures = consumer.stats()

        assert [b"hang", b"hang", b"behind"] == stage.journal.values(b"a")
        assert (1, 1) == (figures.hung_count, figures.topics[stage.topic].timed_out)
        assert (3, 1) == (figures.topics[stage.topic].handled, figures.topics[stage.topic].failed)


@pytest.mark.fault("consumer: a handler hangs")
@OF_HANDLERS
def test_what_a_hung_handler_says_later_has_no_effect(
    stage: Stage, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    stage.write(b"hang", b"behind")
    with (
        caplog.at_level(logging.WARNING, "txlayer.consumer"),
        stage.consumer(hanging, worker_count=1, attempt_timeout=SHORTLY) as consumer,
    ):
        stage.wait_stored(2)
        before = consumer.stats().topics[stage.topic]
        hanging.is_released.set()
        wait_until(lambda: consumer.stats().hung_count == 0, within=PATIENCE_S, what="its end")
        after = consumer.stats().topics[stage.topic]
        assert (before.handled, before.failed, before.attempts) == (after.handled, after.failed, after.attempts)
        stage.write(b"next")
        stage.wait_stored(3)

    said = [record.getMessage() for record in caplog.records]
    assert ["handler.timed_out", "handler.ended_late"] == said


@pytest.mark.promise("P9")
@OF_HANDLERS
def test_a_message_whose_handler_always_hangs_becomes_a_dead_letter(stage: Stage) -> None:
    hanging = Hanging(attempts=9)
    stage.write(b"hang", b"behind")
    consumer = stage.consumer(hanging, worker_count=1, attempt_timeout=SHORTLY, retry=TWICE)
    try:
        with consumer:
            stage.wait_for_letters([b"hang"])
            stage.wait_stored(2)
    finally:
        hanging.is_released.set()

    letter = dead_letter_of(stage.lab.read(stage.letters)[0].headers)
    assert isinstance(letter, DeadLetter)
    assert (DeadLetterReason.ATTEMPTS_EXHAUSTED, 2, "AttemptTimeout") == (
        letter.reason,
        letter.attempt_count,
        letter.error_type,
    )


@OF_HANDLERS
def test_with_too_many_hung_handlers_a_consumer_is_not_ready_and_gives_up_no_more(
    stage: Stage, hanging: Hanging
) -> None:
    for n in range(3):
        stage.write(b"hang", key=b"%d" % n)

    with stage.consumer(
        hanging,
        worker_count=1,
        attempt_timeout=SHORTLY,
        hung_handlers_max=2,
        retry=RetryPolicy(backoff_first_ms=60_000, backoff_max_ms=60_000),
    ) as consumer:
        wait_until(lambda: consumer.stats().hung_count == 2, within=PATIENCE_S, what="two hang")
        stage.journal.wait_for(3)
        stats = consumer.stats()
        health = health_of(stats, now=stats.turned_at or 0.0)
        assert health.waiting
        assert not health.stalled
        hanging.is_released.set()
        wait_until(lambda: consumer.stats().topics[stage.topic].handled == 1, within=PATIENCE_S, what="the third")
        wait_until(lambda: not consumer.stats().hung_count, within=PATIENCE_S, what="their end")


@OF_HANDLERS
def test_a_closing_consumer_does_not_wait_for_hung_handlers(stage: Stage, hanging: Hanging) -> None:
    stage.write(b"hang")
    consumer = stage.consumer(hanging, worker_count=1, attempt_timeout=SHORTLY)
    with consumer:
        stage.wait_stored(1)

    assert not consumer.is_running
    assert not hanging.ended_count


# --- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("consumer: a handler hangs")
@pytest.mark.promise("P9")
@OF_HANDLERS
def test_a_coroutine_that_ignores_its_cancellation_fails_its_attempt(stage: Stage) -> None:
    stage.write(b"hang", b"behind")
    seen: list[bytes | None] = []
    released = asyncio.Event()

    async def act(consumer: AsyncOrderedConsumer, message: ReceivedMessage, context: Context) -> None:
        seen.append(message.value)
        while message.value == b"hang" and context.attempt == 1 and not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(released.wait(), PATIENCE_S)
        if message.value == b"behind":
            assert 1 == consumer.stats().hung_count
            released.set()
            consumer.stop()

    stage.run_tasks(act, attempt_timeout=SHORTLY)

    assert [b"hang", b"hang", b"behind"] == seen


@pytest.mark.fault("consumer: a handler hangs")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("is_swallowed", [True, False])
@OF_HANDLERS
def test_a_coroutine_that_ends_behind_its_cancellation_has_failed_its_attempt(
    stage: Stage, *, is_swallowed: bool
) -> None:
    """What it left undone would never be done if that counted as handled."""
    stage.write(b"slow")
    attempts: list[int] = []
    swallowed = (asyncio.CancelledError,) if is_swallowed else ()

    async def act(consumer: AsyncOrderedConsumer, _message: ReceivedMessage, context: Context) -> None:
        attempts.append(context.attempt)
        if context.attempt == 2:
            consumer.stop()
            return
        with suppress(*swallowed):
            await asyncio.sleep(PATIENCE_S)

    consumer = stage.run_tasks(act, attempt_timeout=SHORTLY, retry=TWICE)
    timed_out_count = consumer.stats().topics[stage.topic].timed_out

    assert ([1, 2], 1) == (attempts, timed_out_count)


@OF_HANDLERS
def test_a_cancelled_coroutine_may_clean_up_in_peace(stage: Stage) -> None:
    stage.write(b"hang")
    ended: list[str] = []

    async def act(consumer: AsyncOrderedConsumer, _message: ReceivedMessage, _context: Context) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.append("cancelled")
            await asyncio.sleep(0.6)  # longer than the pauses between two looks
            ended.append("cleaned up")
            consumer.stop()

    stage.run_tasks(act, attempt_timeout=SHORTLY)

    assert ["cancelled", "cleaned up"] == ended[:2]


@pytest.mark.promise("P9")
@pytest.mark.parametrize("is_swallowed", [True, False])
@OF_HANDLERS
def test_a_coroutine_that_is_cancelled_when_its_lease_runs_out_loses_no_attempt(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, is_swallowed: bool
) -> None:
    """Its renewal was on its way, and is read a moment later: the queue has no other owner."""
    stage.write(b"slow")
    attempts: list[int] = []
    ends: list[float] = []
    valid_until = LockRegistry.valid_until
    monkeypatch.setattr(LockRegistry, "valid_until", lambda self, at: ends[-1] if ends else valid_until(self, at))
    swallowed = (asyncio.CancelledError,) if is_swallowed else ()

    async def act(consumer: AsyncOrderedConsumer, _message: ReceivedMessage, context: Context) -> None:
        attempts.append(context.attempt)
        if len(attempts) == 2:
            consumer.stop()
            return
        ends.append(time.monotonic() + 0.2)
        try:
            with suppress(*swallowed):
                await asyncio.sleep(PATIENCE_S)
        finally:
            ends.clear()

    stage.run_tasks(act, retry=TWICE)

    assert [1, 1] == attempts


@pytest.mark.slow
@OF_HANDLERS
def test_a_coroutine_may_take_longer_than_a_lease_that_is_renewed(stage: Stage) -> None:
    stage.write(b"slow")
    attempts: list[int] = []

    async def act(consumer: AsyncOrderedConsumer, _message: ReceivedMessage, context: Context) -> None:
        attempts.append(context.attempt)
        await asyncio.sleep(5.0)
        consumer.stop()

    stage.run_tasks(act, lease_renewal=timedelta(seconds=1), lease_expiry=timedelta(seconds=3))

    assert [1] == attempts
