"""Consumers beside what is away: a breaker over handlers that fail, and brokers that do not answer just then."""

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.lab import Lab
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
from txlayer.errors import BrokerUnavailableError, RetriableError, UsageError

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

    async def act(*_: object) -> None:
        if not is_back:
            raise ConnectionError("away")

    def bring_back(consumer: AsyncOrderedConsumer) -> None:
        nonlocal is_back
        wait_for_probes(stage, consumer)
        is_back = True
        stage.wait_stored(KEY_COUNT)
        check(stage, consumer)

    stage.run_tasks(act, until=bring_back, retry=TWICE, breaker={stage.topic: BREAKER})


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


@OF_HANDLERS
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


START = timedelta(seconds=30)


class Wavering:
    """Connections of which some questions are not answered: `refusals` of those about a topic, and one read of a log."""

    def __init__(self, connections: Any) -> None:
        self.refusals: dict[str, int] = {}
        self.error: RetriableError = BrokerUnavailableError("as planned", waited_ms=1)
        self.refused_count = 0
        self.is_read_failing = False
        self._connections = connections

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connections, name)

    def topic_limits(self, topic: str) -> Any:
        if self.refusals.get(topic):
            self.refusals[topic] -= 1
            self.refused_count += 1
            raise self.error
        return self._connections.topic_limits(topic)

    def make_reader(self, isolation: Any) -> Any:
        return _Reader(self, self._connections.make_reader(isolation))


class _Reader:
    """A reader that may fail once."""

    def __init__(self, wavering: Wavering, reader: Any) -> None:
        self._wavering = wavering
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read(self, **arguments: Any) -> Any:
        if self._wavering.is_read_failing:
            self._wavering.is_read_failing = False
            raise BrokerUnavailableError("as planned", waited_ms=1)
        return self._reader.read(**arguments)


@pytest.fixture
def wavering(lab: Lab, stage: Stage) -> Wavering:
    return Wavering(lab.consumer(namespace=stage.namespace))


def consumer(stage: Stage, wavering: Wavering, **settings: Any) -> OrderedConsumer:
    made: OrderedConsumer = stage.consumer(connect=lambda _: wavering, **settings)
    return made


@pytest.mark.fault("consumer: brokers are away when it starts, or when it must write its leases again")
@pytest.mark.parametrize("error", [None, RetriableError("the broker said no offset")])
@pytest.mark.parametrize("which", ["topic", "locks"])
@OF_HANDLERS
def test_a_broker_that_is_away_just_when_a_consumer_starts_is_waited_for(
    stage: Stage, wavering: Wavering, which: str, error: RetriableError | None
) -> None:
    wavering.error = error or wavering.error
    topic = stage.topic if which == "topic" else f"{stage.namespace}.locks"
    wavering.refusals[topic] = 2
    stage.write(b"0")

    with consumer(stage, wavering, start_timeout=START):
        stage.journal.wait_for(1)

    assert 2 == wavering.refused_count


@OF_HANDLERS
def test_a_broker_that_stays_away_ends_the_start_when_its_time_is_over(stage: Stage, wavering: Wavering) -> None:
    wavering.refusals[stage.topic] = 1 << 30

    with pytest.raises(BrokerUnavailableError, match="as planned"):
        consumer(stage, wavering, start_timeout=timedelta(milliseconds=50)).run()


@pytest.mark.fault("consumer: brokers are away when it starts, or when it must write its leases again")
def test_a_lock_log_that_cannot_be_read_again_just_then_does_not_end_the_consumer(
    stage: Stage, wavering: Wavering
) -> None:
    stage.write(b"0")
    with consumer(stage, wavering):
        stage.journal.wait_for(1)
        # What is handled and not stored yet is handled again after a rebuild.
        place = (stage.topic, 0)

        def is_stored() -> bool:
            found = wavering.stored_offsets(stage.group, [place], is_stable=True)[place]
            return found is not None and found.offset == 1

        wait_until(is_stored, within=PATIENCE_S, what="stored progress")
        wavering.refusals[f"{stage.namespace}.locks"] = 2
        wavering.is_read_failing = True
        wait_until(lambda: wavering.refused_count == 2, within=PATIENCE_S, what="both refusals")
        stage.write(b"1")
        stage.journal.wait_for(2)

    assert [b"0", b"1"] == stage.journal.values(b"k")
