"""A Kafka transaction that the broker ended because it took too long: the next ones are smaller, until they go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.simulation.unguarded import coordinator_with
from tests.support.fake_records import txn_key
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import milliseconds
from txlayer.coordinator.publish import Publisher
from txlayer.core.batch import Batch
from txlayer.errors import ProducerFencedError

COUNT = 40
AT_ONCE_MAX = 3


class Slow:
    """The stage whose clock a slow publisher moves."""

    stage: StillCoordinator


class SlowPublisher(Publisher):
    """More than three messages take longer than a Kafka transaction may; its writer is told of a fence then."""

    def publish(
        self,
        batches: Sequence[tuple[int, Batch]],
        offsets: Mapping[TopicPartition, StoredOffset],
        member: Any,
        **named: Any,
    ) -> dict[int, dict[str, int]]:
        if sum(len(batch.forwards) for _, batch in batches) > AT_ONCE_MAX:
            timeout_ms = milliseconds(Slow.stage.config.kafka_transaction_timeout)
            Slow.stage.world.advance(ms=timeout_ms + 1)
            raise ProducerFencedError("its Kafka transaction was ended", transactional_id="w")
        return super().publish(batches, offsets, member, **named)


@pytest.mark.promise("P1")
@pytest.mark.promise("P11")
def test_after_a_kafka_transaction_that_the_broker_ended_for_its_length_fewer_go_at_once() -> None:
    Slow.stage = stage = StillCoordinator(make=coordinator_with(publisher=SlowPublisher))
    keys = [txn_key(f"txn-{number}") for number in range(COUNT)]
    for key in keys:
        stage.commit(key, stage.half(key))

    stage.work(seconds=600)

    assert COUNT == len(stage.visible())
