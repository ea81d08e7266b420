"""Requests to replay that were read and wait for room: nothing behind them counts as read before they have ended."""

from __future__ import annotations

from typing import Any, cast

from txlayer.adapters.memory.log import MemoryRecord
from txlayer.consumer.context import Lease
from txlayer.consumer.engine import Ingest
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import OwnedPartition
from txlayer.core.dead_letters import ReplayKind, ReplayOutcome, ReplayRecord, encode_replay
from txlayer.core.key_queue import ItemSource


class Queues:
    """What counts as read, in order; there is room."""

    replay_bytes = replay_count = 0
    is_paused = needs_requests = is_without_room = False

    def __init__(self, *, knows_replays: bool = True) -> None:
        self.reached: list[tuple[ItemSource, int]] = []
        self.knows_replays = knows_replays

    def learn_answered(self, _runs: object) -> None:
        self.knows_replays = True

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
    places = {owned.topic_partition: owned, owned.replay_partition: owned}
    ingest = Ingest(group="g", letters=cast("Any", None), now_ms=lambda: 1_000)
    topic, partition = owned.replay_partition
    ingest.add([MemoryRecord(topic, partition, None, b"garbage", None, (1, 0), log_offset=2)], places)

    ingest.reach({owned.replay_partition: 5}, places)
    assert [] == queues.reached

    ingest.add_waiting([owned], count_max=10, bytes_max=1_000)
    assert [(ItemSource.REPLAY, 3), (ItemSource.REPLAY, 5)] == queues.reached


class Letters:
    """Notes where results are looked for."""

    def __init__(self) -> None:
        self.looked: list[str] = []

    def answered(self, topic: str, partition: int, *, from_offset: int) -> list[tuple[int, int]]:
        del partition, from_offset
        self.looked.append(topic)
        return []


def test_results_are_looked_for_in_one_queue_at_a_time() -> None:
    """A group that lost its offsets has many queues: leases and the group are served in between."""
    letters, found = Letters(), list[OwnedPartition]()
    ingest = Ingest(group="g", letters=cast("Any", letters), now_ms=lambda: 1_000)
    for topic in ("first", "second"):
        owned = OwnedPartition(
            Lease("g", topic, 0),
            cast("Any", Queues(knows_replays=False)),
            route=cast("Any", None),
            tally=TopicCounts(),
            chunk_s=1.0,
            next_offsets={(topic, 0): 0, (f"g.{topic}.replay", 0): 0},
        )
        found.append(owned)
        result = encode_replay(ReplayRecord(ReplayKind.RESULT, "a", 7, ReplayOutcome.HANDLED))
        record = MemoryRecord(*owned.replay_partition, None, result, None, (1, 0), log_offset=2)
        ingest.add([record], {owned.replay_partition: owned})

    rounds = []
    for _ in range(3):
        ingest.add_waiting(found, count_max=10, bytes_max=1_000)
        rounds.append((list(letters.looked), [bool(owned.requests) for owned in found]))

    first, second = (owned.replay_partition[0] for owned in found)
    assert [([first], [False, True]), ([first, second], [False, False])] == rounds[:2]
    assert rounds[1] == rounds[2]
