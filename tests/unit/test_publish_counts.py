"""What a publisher counts, and what it waits for: a Kafka transaction that did not go through forwarded nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.core_records import plain_record
from tests.support.still_coordinator import AtOnce
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.publish import Publisher
from txlayer.core.ledger.batch import Batch
from txlayer.core.ledger.transaction import Content, Transaction
from txlayer.core.messages import NO_OPTIONS
from txlayer.errors import BrokerUnavailableError
from txlayer.runtime.environment import Environment


class Writer:
    """Takes everything; its acknowledgements may stay away."""

    batch_bytes_max = 1

    def __init__(self, transactional_id: str, world: World) -> None:
        self.transactional_id = transactional_id
        self._world = world

    def initialise(self, *, timeout_s: float) -> None:
        """Nothing."""

    def begin(self) -> None:
        """Nothing."""

    def produce(self, *_: Any) -> None:
        """Takes a second."""
        self._world.now += 1

    def flush(self, *, timeout_s: float) -> int:
        """How many are not acknowledged; takes two seconds."""
        del timeout_s
        self._world.now += 2
        return self._world.lost_count

    def send_offsets(self, *_: Any, timeout_s: float) -> None:
        """Takes three seconds."""
        del timeout_s
        self._world.now += 3

    def commit(self, *, timeout_s: float) -> None:
        """Takes four seconds."""
        del timeout_s
        self._world.now += 4

    def close(self) -> None:
        """Hangs if the world lets clients hang."""
        if self._world.do_closes_hang:
            raise HangsError


class HangsError(Exception):
    """Whoever called waits for ever."""


class World:
    """A clock and what becomes of records."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lost_count = 0
        self.do_closes_hang = False
        book: Any = self
        self.publisher = Publisher(
            CoordinatorConfig(),
            name="w",
            make_writer=self._make_writer,
            targets=book,
            environment=Environment(clock=lambda: self.now, background=AtOnce()),
        )
        self.batch_bytes_max = 1
        self.publisher.start()

    def check_allowed(self, topic: str, *, txn_key: str) -> None:
        """Everything may be forwarded here."""

    def partition_count_of(self, topic: str) -> int:
        """Each topic has one partition."""
        del topic
        return 1

    def _make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        del batch_bytes_max
        return Writer(transactional_id, self)


def batch() -> Batch:
    """A transaction of one message and one of three."""
    record = plain_record(key=b"k", value=b"v", headers=[("txl", b"")])
    plain = Transaction("a/0000000a", "g", "orders", 0, 0, "0", (0, 0), record)
    several = Transaction("b/0000000a", "g", "orders", 1, 0, "0", (0, 0), None)
    several.count = 3
    several.content = [Content(i, "orders", 1 + i, NO_OPTIONS, "0", record) for i in range(3)]
    return Batch(forwards=[plain, several])


def test_transactions_and_their_messages_are_counted() -> None:
    publisher = World().publisher

    publisher.publish([(0, batch())], {}, None)

    stats = publisher.stats
    assert (1, 2, 4) == (stats.kafka_transaction_count, stats.forwarded_count, stats.forwarded_record_count)


def test_what_was_not_acknowledged_is_counted_nowhere() -> None:
    world = World()
    world.lost_count = 1

    with pytest.raises(BrokerUnavailableError):
        world.publisher.publish([(0, batch())], {}, None)

    stats = world.publisher.stats
    assert (0, 0, 0, None) == (
        stats.kafka_transaction_count,
        stats.forwarded_count,
        stats.forwarded_record_count,
        stats.ended_at,
    )


def test_each_stage_of_a_kafka_transaction_is_timed() -> None:
    publisher = World().publisher

    publisher.publish([(0, batch())], {}, None)

    totals = {name: found.view().total for name, found in publisher.stats.stage_seconds.items()}
    assert {"write": 4.0, "flush": 2.0, "offsets": 3.0, "commit": 4.0} == totals
    assert (13.0, 13.0) == (publisher.stats.seconds.view().total, publisher.stats.ended_at)


def test_no_one_waits_for_the_close_of_a_producer_that_was_replaced() -> None:
    world = World()
    world.do_closes_hang = True

    for _ in range(4):  # each commit takes so long that the producer is replaced before its next turn
        world.publisher.publish([(0, batch())], {}, None)

    assert 2 == world.publisher.stats.replaced_count
