"""One key with a long backlog delays the others by a tenth at most: workers of equal speed over a queue, in steps."""

import heapq

import pytest

from txlayer.core.key_queue import Item, PartitionQueue, QueueSettings, Start

WORKER_COUNT = 16
BACKLOG_COUNT = 100_000
KEY_COUNT, EACH_COUNT = 1_000, 20
HOT = b"hot"


def steps_until_others_ended(backlog_count: int, *, chunk_count: int) -> int:
    """Each message takes a step of its worker, which is given chunks of so many messages at most."""
    keys = [HOT] * backlog_count + [b"%d" % (n % KEY_COUNT) for n in range(KEY_COUNT * EACH_COUNT)]
    queue: PartitionQueue[bytes] = PartitionQueue(topic=Start(0), replays=Start(0), settings=QueueSettings(), now_ms=0)
    queue.add(keys, offsets=range(len(keys)), keys=keys, sizes=[1] * len(keys), now_ms=0)
    left, step = KEY_COUNT * EACH_COUNT, 0
    busy: list[tuple[int, int, list[Item[bytes]], list[Item[bytes]]]] = []
    number = 0
    while left:
        while len(busy) < WORKER_COUNT:
            taken, lasts = queue.take_runs(chunk_count, now_ms=0)
            if not taken:
                break
            number += 1
            heapq.heappush(busy, (step + len(taken), number, taken, lasts))
        step, _, ended, lasts = heapq.heappop(busy)
        queue.handled(ended, lasts)
        left -= sum(item.record != HOT for item in ended)
    return step


@pytest.mark.parametrize("chunk_count", [1, 10, 100])
def test_a_key_with_a_backlog_of_100_000_delays_others_by_a_tenth_at_most(chunk_count: int) -> None:
    alone = steps_until_others_ended(0, chunk_count=chunk_count)
    beside = steps_until_others_ended(BACKLOG_COUNT, chunk_count=chunk_count)

    assert alone <= beside <= 1.1 * alone
