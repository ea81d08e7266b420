"""A Kafka transaction that the broker ended because it took too long: the next ones are smaller, until they go through."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.simulation.unguarded import coordinator_with
from tests.support.core_records import op_line, options, txn_key
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import milliseconds
from txlayer.coordinator.publish import NO_PRECAUTIONS, Precautions, Publisher
from txlayer.core.ledger.batch import Batch
from txlayer.core.messages import OrderMode
from txlayer.errors import BrokerUnavailableError, ProducerFencedError

COUNT = 40
AT_ONCE_MAX = 3
PREPARE = options("k", order=OrderMode.PREPARE)


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
        precautions: Precautions = NO_PRECAUTIONS,
    ) -> dict[int, dict[str, int]]:
        if sum(len(batch.forwards) for _, batch in batches) > AT_ONCE_MAX:
            timeout_ms = milliseconds(Slow.stage.config.kafka_transaction_timeout)
            Slow.stage.world.advance(ms=timeout_ms + 1)
            raise ProducerFencedError("its Kafka transaction was ended", transactional_id="w")
        return super().publish(batches, offsets, member, precautions)


@pytest.mark.fault("coordinator: a slow network makes a Kafka transaction exceed its time-out")
@pytest.mark.promise("P1")
@pytest.mark.promise("P11")
def test_after_a_kafka_transaction_that_the_broker_ended_for_its_length_fewer_go_at_once() -> None:
    Slow.stage = stage = StillCoordinator(make=coordinator_with(publisher=SlowPublisher))
    keys = [txn_key(f"txn-{number}") for number in range(COUNT)]
    for key in keys:
        stage.commit(key, stage.half(key))

    stage.work(seconds=600)

    assert COUNT == len(stage.visible())


class SlowForForwards(Publisher):
    """A broker that takes no more than three messages within the time-out."""

    def publish(self, batches: Any, *rest: Any, **named: Any) -> dict[int, dict[str, int]]:
        if sum(len(batch.forwards) for _, batch in batches) > AT_ONCE_MAX:
            raise BrokerUnavailableError("not acknowledged in time")
        return super().publish(batches, *rest, **named)


class SlowForMoves(Publisher):
    """A broker that takes no more than three moves to doubt within the time-out."""

    def publish(self, batches: Any, *rest: Any, **named: Any) -> dict[int, dict[str, int]]:
        moves = [keep for _, batch in batches for keep in batch.to_doubt.values() if keep.is_whole]
        if len(moves) > AT_ONCE_MAX:
            raise BrokerUnavailableError("not acknowledged in time")
        return super().publish(batches, *rest, **named)


@pytest.mark.promise("P7")
@pytest.mark.promise("P11")
def test_what_one_decision_releases_goes_in_pieces_to_a_slow_broker() -> None:
    still = StillCoordinator(make=coordinator_with(publisher=SlowForForwards))
    keys = [txn_key(f"t{number}") for number in range(10)]
    places = [still.half(key, options=PREPARE) for key in keys]
    lines = [op_line("C", key, place) for key, place in zip(keys, places, strict=True)]
    still.op(*lines[1:])  # they wait for the first one
    still.work(seconds=5)
    still.op(lines[0])

    still.work(seconds=900)

    assert [key.partition("/")[0] for key in keys] == still.visible()


@pytest.mark.promise("P7")
@pytest.mark.promise("P11")
def test_those_who_wait_for_one_that_grows_old_go_to_doubt_in_pieces() -> None:
    still = StillCoordinator(make=coordinator_with(publisher=SlowForMoves))
    keys = [txn_key(f"t{number}") for number in range(10)]
    places = [still.half(key, options=PREPARE) for key in keys]
    lines = [op_line("C", key, place) for key, place in zip(keys, places, strict=True)]
    still.op(*lines[1:])  # they wait for the first one, which nobody decides
    still.work(seconds=90)  # `doubt_after` is 60 s

    good = txn_key("good")
    still.commit(good, still.half(good))
    still.work(seconds=600)

    assert set(keys) == set(still.on_doubt())
    assert [good.partition("/")[0]] == still.visible()


class SlowForAsides(Publisher):
    """A broker that takes no more than three kept-aside records within the time-out."""

    def publish(self, batches: Any, *rest: Any, **named: Any) -> dict[int, dict[str, int]]:
        if sum(len(batch.quarantined) for _, batch in batches) > AT_ONCE_MAX:
            raise BrokerUnavailableError("not acknowledged in time")
        return super().publish(batches, *rest, **named)


@pytest.mark.promise("P7")
@pytest.mark.promise("P11")
@pytest.mark.parametrize("topic", ["half", "op"])
def test_garbage_that_a_slow_broker_does_not_take_at_once_goes_in_pieces(topic: str) -> None:
    still, good = StillCoordinator(make=coordinator_with(publisher=SlowForAsides)), txn_key("good")
    for _ in range(40):
        still.kafka.append(getattr(still.topics, topic), b"\xff", partition=0)
    still.commit(good, still.half(good))

    still.work(seconds=600)

    assert [good.partition("/")[0]] == still.visible()
