"""Consumers whose brokers do not answer just then: they ask again, at the start and later; over memory and real Kafka."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.consumers import PATIENCE_S, Stage
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.config import ConsumerConfig
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.errors import BrokerUnavailableError, RetriableError

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
    config = ConsumerConfig(bootstrap_servers=lab.servers, namespace=stage.namespace)
    return Wavering(lab.connect_consumer(config))


def consumer(stage: Stage, wavering: Wavering, **settings: Any) -> OrderedConsumer:
    made: OrderedConsumer = stage.consumer(connect=lambda _: wavering, **settings)
    return made


@pytest.mark.fault("consumer: brokers are away when it starts, or when it must write its leases again")
@pytest.mark.parametrize("error", [None, RetriableError("the broker said no offset")])
@pytest.mark.parametrize("which", ["topic", "locks"])
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
