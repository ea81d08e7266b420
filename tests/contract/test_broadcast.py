"""Broadcast: every instance gets every message from its own position, without leases and dead letters."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.broker import unique_name
from tests.support.consumers import PATIENCE_S, QUICK, Stage, numbers
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer import AfterExhausted, AsyncOrderedConsumer, Context, OrderedConsumer, ReceivedMessage, Reject, RetryPolicy
from txlayer.errors import ConfigError


class Instances:
    """A topic without dead letters, and instances that keep what they saw."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.group = unique_name("group")
        self.topic = lab.topic(partitions=2)
        self.connections = lab.consumer()

    def write(self, *values: bytes, partition: int = 0) -> None:
        self.lab.write(self.topic, *values, key=b"k", partition=partition)

    def consumer(self, kind: type[Any] = OrderedConsumer, **settings: Any) -> Any:
        return kind(
            **{
                "group": self.group,
                "topics": [self.topic],
                "is_broadcast": True,
                "retry": QUICK,
                "connect": self.lab.connect_consumer,
                "bootstrap_servers": self.lab.servers,
                "store_interval": timedelta(milliseconds=20),
                **settings,
            }
        )

    def noting(self, **settings: Any) -> tuple[Any, list[bytes | None]]:
        """An instance that keeps the values that it saw."""
        seen: list[bytes | None] = []
        consumer = self.consumer(**settings)

        @consumer.handler  # type: ignore[untyped-decorator]  # it takes any function
        def note(message: ReceivedMessage, context: Context) -> None:
            assert context.token is None
            seen.append(message.value)

        return consumer, seen

    def stored(self, group: str) -> list[int]:
        """What a group stored for both partitions; -1: nothing."""
        places = [(self.topic, 0), (self.topic, 1)]
        found = self.connections.stored_offsets(group, places, is_stable=True)
        return [-1 if (at := found[place]) is None else at.offset for place in places]


@pytest.fixture
def instances(lab: Lab) -> Instances:
    return Instances(lab)


def saw(seen: list[bytes | None], count: int) -> None:
    """Until so many were seen."""
    wait_until(lambda: len(seen) >= count, within=PATIENCE_S, what=f"{count} messages, not {len(seen)}")


def test_each_instance_gets_each_message_and_goes_on_at_its_own_position(instances: Instances) -> None:
    instances.write(b"0", b"1")
    instances.write(b"2", partition=1)
    first, of_first = instances.noting(start_at="earliest", instance_id="pod-1")
    second, of_second = instances.noting(start_at="earliest", instance_id="pod-2")
    with first, second:
        saw(of_first, 3)
        saw(of_second, 3)
        wait_until(
            lambda: instances.stored(f"{instances.group}.pod-1") == [2, 1], within=PATIENCE_S, what="its position"
        )
    instances.write(b"3")
    again, of_again = instances.noting(instance_id="pod-1")
    with again:
        saw(of_again, 1)

    assert set(of_first) == set(of_second) == set(numbers(3))
    assert 3 == len(of_first) == len(of_second)
    assert [b"3"] == of_again


def test_without_a_name_it_begins_at_the_end_and_stores_nothing(instances: Instances) -> None:
    instances.write(b"before")
    consumer, seen = instances.noting()
    with consumer:
        wait_until(lambda: len(consumer.stats().partitions) == 2, within=PATIENCE_S, what="it has both partitions")
        instances.write(b"0", b"1")
        saw(seen, 2)
        assert consumer.group.startswith(f"{instances.group}.")
    assert [b"0", b"1"] == seen
    assert [-1, -1] == instances.stored(consumer.group)


@pytest.mark.promise("P11")
@OF_HANDLERS
def test_a_message_that_fails_is_given_up_and_its_key_goes_on(
    instances: Instances, caplog: pytest.LogCaptureFixture
) -> None:
    instances.write(b"bad", b"next")
    attempts: list[int] = []
    consumer = instances.consumer(start_at="earliest", instance_id="pod-1")
    done: list[bytes | None] = []

    @consumer.handler  # type: ignore[untyped-decorator]  # it takes any function
    def handle(message: ReceivedMessage, context: Context) -> None:
        if message.value == b"bad":
            attempts.append(context.attempt)
            raise ValueError("never")
        done.append(message.value)

    with caplog.at_level(logging.ERROR, "txlayer.consumer"), consumer:
        saw(done, 1)
        wait_until(lambda: instances.stored(consumer.group) == [2, 0], within=PATIENCE_S, what="both are behind it")
        found = consumer.stats().topics[instances.topic]

    assert [1, 2, 3, 4] == attempts
    assert (1, 1, 4) == (found.handled, found.dead_lettered, found.failed)
    assert ["message.given_up"] == [record.getMessage() for record in caplog.records]


def test_what_was_rejected_before_the_end_is_given_up_and_not_handled_again(instances: Instances) -> None:
    seen: list[bytes | None] = []

    def instance(**settings: Any) -> Any:
        consumer = instances.consumer(instance_id="pod-1", start_at="earliest", **settings)

        @consumer.handler  # type: ignore[untyped-decorator]  # it takes any function
        def note(message: ReceivedMessage, _context: Context) -> Reject | None:
            seen.append(message.value)
            return Reject("as planned") if message.value == b"bad" else None

        return consumer

    with instance(store_interval=timedelta(hours=1)):
        instances.write(b"good")
        wait_until(lambda: 1 in instances.stored(f"{instances.group}.pod-1"), within=PATIENCE_S, what="a store")
        instances.write(b"bad")
        saw(seen, 2)
    with instance():
        instances.write(b"last")
        saw(seen, 3)

    assert [b"good", b"bad", b"last"] == seen


@OF_HANDLERS
def test_messages_are_polled_there_too(instances: Instances) -> None:
    instances.write(b"0")

    async def work() -> list[bytes | None]:
        async with instances.consumer(AsyncOrderedConsumer, start_at="earliest") as consumer:
            async for message in consumer:
                message.ack()
                return [message.value]
        return []

    assert [b"0"] == asyncio.run(work())


@OF_HANDLERS
def test_keys_are_not_parked(stage: Stage) -> None:
    consumer = stage.consumer(is_broadcast=True, retry=RetryPolicy(after_exhausted=AfterExhausted.PARK))
    with pytest.raises(ConfigError, match="a broadcast has no dead letters"):
        consumer.start()
