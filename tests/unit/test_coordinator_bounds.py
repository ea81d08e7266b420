"""The coordinator's loop keeps to its bounds: batches shrink after a time-out, and topics that nobody needs are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_records import op_line
from tests.support.still_coordinator import StillCoordinator
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.publish import Publisher
from txlayer.core.ids import NONCE_LENGTH
from txlayer.core.partitions import half_partition
from txlayer.errors import BrokerUnavailableError

COUNT = 40


def keys(count: int) -> list[str]:
    """Transactions whose home is partition 0."""
    ids = (f"t-{number}" for number in range(10 * count))
    home = [i for i in ids if not half_partition(ordering_key=None, txn_id=i, partition_count=2)]
    return [f"{txn_id}/{'a' * NONCE_LENGTH}" for txn_id in home[:count]]


class SlowPublisher(Publisher):
    """A broker that takes no more than three messages within the time-out."""

    def publish(self, batches: Any, *rest: Any, **named: Any) -> dict[int, dict[str, int]]:
        if sum(len(batch.forwards) for _, batch in batches) > 3:
            raise BrokerUnavailableError("not acknowledged in time")
        return super().publish(batches, *rest, **named)


class SlowCoordinator(Coordinator):
    """A coordinator of it."""

    make_publisher = SlowPublisher


@pytest.mark.promise("P7")
@pytest.mark.promise("P11")
def test_what_a_slow_broker_does_not_take_at_once_goes_in_pieces() -> None:
    still = StillCoordinator(make=SlowCoordinator)
    lines = [op_line("C", key, still.half(key)) for key in keys(COUNT)]
    still.op(*lines)

    still.work(seconds=60)

    assert [key.partition("/")[0] for key in keys(COUNT)] == still.visible()


@pytest.mark.promise("P11")
def test_invented_topics_are_forgotten_by_a_coordinator_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.coordinator.targets.TARGETS_MAX", 8)
    still = StillCoordinator()
    for number, key in enumerate(keys(COUNT)):
        still.half(key, topic=f"invented-{number}")
    coordinator = still.coordinator

    still.work(seconds=5)

    assert len(coordinator.view().targets) <= 8
