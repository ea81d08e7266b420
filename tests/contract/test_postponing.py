"""`Later` and `suspend` in consumers of all kinds: no attempt is counted, keys and partitions wait, limits are kept."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.process_handlers import postpone_while_young
from tests.support.waiting import wait_until
from txlayer import AsyncOrderedConsumer, Context, Later, OrderedConsumer, ReceivedMessage, RetryPolicy
from txlayer.core.dead_letters import DeadLetter, dead_letter_of
from txlayer.core.retry import HandlerResult

ONCE = RetryPolicy(attempt_count_max=1)
SOON = timedelta(milliseconds=5)


@pytest.mark.promise("P9")
def test_what_is_postponed_needs_no_attempt_and_its_key_waits(stage: Stage) -> None:
    stage.write(b"early", b"next", key=b"a")
    stage.write(b"other", key=b"b")

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        is_early = message.value == b"early" and len(stage.journal.values(b"a")) < 10
        return Later(SOON, "its time has not come") if is_early else None

    with stage.consumer(act, retry=ONCE) as consumer:
        stage.wait_stored(3)
        found = consumer.stats().topics[stage.topic]

    assert [b"early"] * 10 + [b"next"] == stage.journal.values(b"a")
    assert {1} == {seen.attempt for seen in stage.journal.seen}
    assert (9, 0, 3, 0) == (found.postponed, found.failed, found.handled, found.dead_lettered)
    assert [] == stage.letter_values()


@pytest.mark.promise("P11")
def test_beyond_its_limit_an_attempt_has_failed_and_says_why(stage: Stage) -> None:
    stage.write(b"never")
    policy = RetryPolicy(attempt_count_max=2, backoff_first_ms=1, backoff_max_ms=1, later_count_max=3)

    with stage.consumer(lambda *_: Later(SOON, "closed"), retry=policy):
        stage.wait_for_letters([b"never"])

    assert [1] * 4 + [2] == [seen.attempt for seen in stage.journal.seen]
    (letter,) = stage.lab.read(stage.letters)
    found = dead_letter_of(letter.headers)
    assert isinstance(found, DeadLetter)
    assert ("Later", "postponed 3 times (later_count_max): closed") == (found.error_type, found.error_message)


def test_a_handler_suspends_its_partition(stage: Stage) -> None:
    stage.write(b"first", key=b"a")
    began: dict[bytes | None, list[float]] = {b"first": [], b"second": []}
    asked = threading.Event()

    def act(message: ReceivedMessage, context: Context) -> HandlerResult:
        began[message.value].append(time.monotonic())
        if not asked.is_set():
            asked.set()
            return context.suspend(timedelta(seconds=0.4), "the service asks for a pause")
        return None

    with stage.consumer(act, retry=ONCE) as consumer:
        assert asked.wait(PATIENCE_S)
        wait_until(
            lambda: consumer.stats().topics[stage.topic].paused_partitions, within=PATIENCE_S, what="it is suspended"
        )
        stage.write(b"second", key=b"b")
        stage.wait_stored(2)
        assert 0 == consumer.stats().topics[stage.topic].paused_partitions

    waited_s = [at[-1] - began[b"first"][0] for at in began.values()]
    assert min(waited_s) > 0.398, waited_s  # the consumer counts whole milliseconds


MANY, ASKED_AT = 1_000, 925
"""So many messages that a worker is given dozens at once, and the one whose handler suspends the partition."""


def wait_until_suspended(stage: Stage, consumer: Any) -> None:
    wait_until(
        lambda: (found := consumer.stats().topics.get(stage.topic)) and found.postponed,
        within=PATIENCE_S,
        what="it is suspended",
    )


@OF_HANDLERS
def test_nothing_that_the_same_thread_holds_begins_in_a_suspended_partition(stage: Stage) -> None:
    for n in range(MANY):
        stage.write(b"%d" % n, key=b"k%d" % n)

    def act(message: ReceivedMessage, context: Context) -> HandlerResult:
        return context.suspend(timedelta(hours=1)) if message.offset == ASKED_AT else None

    with stage.consumer(act, worker_count=1) as consumer:
        wait_until_suspended(stage, consumer)
        assert b"%d" % ASKED_AT == stage.journal.seen[-1].value


@OF_HANDLERS
def test_no_task_of_the_same_handover_begins_in_a_suspended_partition(stage: Stage) -> None:
    for n in range(MANY):
        stage.write(b"%d" % n, key=b"k%d" % n)
    offsets: list[int] = []

    async def act(_: AsyncOrderedConsumer, message: ReceivedMessage, context: Context) -> HandlerResult:
        offsets.append(message.offset)
        return context.suspend(timedelta(hours=1)) if len(offsets) == ASKED_AT else None

    stage.run_tasks(act, until=lambda consumer: wait_until_suspended(stage, consumer), in_flight_max=50)

    assert ASKED_AT == len(offsets)


@OF_HANDLERS
def test_of_a_batch_the_first_comes_alone_then(stage: Stage) -> None:
    stage.write(b"0", b"1", b"2", key=b"a")
    calls: list[list[bytes | None]] = []
    consumer = stage.plain(OrderedConsumer, retry=ONCE)

    @consumer.batch_handler(count_max=10)  # type: ignore[untyped-decorator]  # it takes any function
    def handle(messages: list[ReceivedMessage], _context: Context) -> HandlerResult:
        calls.append([message.value for message in messages])
        return Later(SOON) if len(calls) == 1 else None

    with consumer:
        stage.wait_stored(3)

    assert [b"0", b"1", b"2"] == calls[0]
    assert [b"0"] == calls[1]
    assert [] == stage.letter_values()


@OF_HANDLERS
def test_coroutines_postpone_too(stage: Stage) -> None:
    stage.write(b"0", key=b"a")
    count = 0

    async def act(*_: object) -> HandlerResult:
        nonlocal count
        count += 1
        return Later(SOON) if count < 4 else None

    stage.run_tasks(act, until=lambda _: stage.wait_stored(1), retry=ONCE)

    assert 4 == count
    assert [] == stage.letter_values()


@pytest.mark.slow
@OF_HANDLERS
def test_processes_postpone_too(stage: Stage) -> None:
    stage.write(b"0", key=b"a")
    consumer = stage.plain(OrderedConsumer, retry=ONCE, workers="processes", worker_count=1)
    consumer.handler(postpone_while_young)

    with consumer:
        stage.wait_stored(1)

    assert [] == stage.letter_values()
