"""Requests to replay that were read and wait for room: nothing behind them counts as read before they have ended."""

from __future__ import annotations

from typing import Any, cast

from txlayer.adapters.memory.log import MemoryRecord
from txlayer.consumer.context import Lease
from txlayer.consumer.engine import Ingest
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import OwnedPartition
from txlayer.core.key_queue import ItemSource


class Queues:
    """What counts as read, in order; there is room."""

    replay_bytes = replay_count = 0
    is_paused = needs_requests = is_without_room = False

    def __init__(self) -> None:
        self.reached: list[tuple[ItemSource, int]] = []

    def reach(self, source: ItemSource, offset: int) -> None:
        self.reached.append((source, offset))


def test_markers_behind_waiting_requests_count_as_read_when_these_have_ended() -> None:
    queues = Queues()
    owned = OwnedPartition(
        Lease("g", "orders", 0),
        cast("Any", queues),
        route=cast("Any", None),
        tally=TopicCounts(),
        chunk_s=1.0,
        next_offsets={("orders", 0): 0, ("g.orders.replay", 0): 0},
    )
    places = {owned.place: owned, owned.replay_place: owned}
    ingest = Ingest(group="g", letters=cast("Any", None), now_ms=lambda: 1_000)
    topic, partition = owned.replay_place
    ingest.add([MemoryRecord(topic, partition, None, b"garbage", None, (1, 0), place=2)], places)

    ingest.reach({owned.replay_place: 5}, places)
    assert [] == queues.reached

    ingest.add_waiting([owned], count_max=10, bytes_max=1_000)
    assert [(ItemSource.REPLAY, 3), (ItemSource.REPLAY, 5)] == queues.reached
