"""P9: one key with a long backlog, or that fails, hardly delays the others; also when a whole batch of it failed, and when many keys fail."""

import heapq

import pytest

from tests.support.queue_stage import FAILED, REJECTED, TOPIC, QueueStage
from txlayer.core.dead_letters import DeadLetterReason
from txlayer.core.key_queue import Item, PartitionQueue, QueueSettings, Start
from txlayer.core.progress import METADATA_BYTES_MAX, attempt_records_max

PLACES = attempt_records_max(metadata_bytes_max=METADATA_BYTES_MAX, parked_keys_max=64)
"""For counts of attempts, with the default settings."""


def fail_batches(stage: QueueStage, count: int, *, records_max: int = 1_000) -> list[Item[str]]:
    """The handler of batches fails with so many of them; returns their messages."""
    batches = stage.queue.take_batches(count, records_max=records_max, now_ms=stage.now_ms)
    for batch in batches:
        stage.queue.failed(batch, FAILED, now_ms=stage.now_ms, draw=0.5)
    return [item for batch in batches for item in batch]


def take_later(stage: QueueStage) -> list[Item[str]]:
    """What may start when the progress is stored and one back-off has passed."""
    stage.store()
    stage.advance(1_000)
    return stage.take()


@pytest.mark.fault("consumer: a whole batch of one key fails, or more keys fail than attempts can be counted for")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("batch_count", [1, 100, 1_000])
def test_a_failed_batch_of_one_key_leaves_room_for_the_attempts_of_others(batch_count: int) -> None:
    others = [b"other %d" % n for n in range(PLACES - PLACES // 2 - 1)]
    stage = QueueStage([*[b"bad"] * batch_count, *[b"worse"] * batch_count, *others], QueueSettings())
    failed = fail_batches(stage, 2)
    assert 2 * batch_count == len(failed)
    for item in stage.take():
        stage.fail(item)

    again = {item.chain for item in take_later(stage)}

    assert {b"bad", b"worse", *others} == again


@pytest.mark.promise("P9")
def test_the_attempts_of_a_batch_that_takes_half_of_the_places_survive_a_restart() -> None:
    stage = QueueStage([b"bad"] * (PLACES // 2), QueueSettings())
    fail_batches(stage, 1)
    stage.store()

    stage.restart()

    assert list(range(PLACES // 2)) == list(stage.known(TOPIC).attempts)


@pytest.mark.fault("consumer: a whole batch of one key fails, or more keys fail than attempts can be counted for")
@pytest.mark.promise("P9")
def test_no_message_of_a_large_batch_is_tried_again_before_its_attempt_is_stored() -> None:
    stage = QueueStage([b"bad"] * 2 * PLACES, QueueSettings())
    batch = fail_batches(stage, 1)

    for item in batch:
        assert [item] == take_later(stage)
        assert item.offset in stage.known(TOPIC).attempts
        stage.queue.handled([item])

    assert 0 == stage.queue.count


@pytest.mark.fault("consumer: a whole batch of one key fails, or more keys fail than attempts can be counted for")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("failing_count", [PLACES - 1, PLACES, 2 * PLACES])
def test_a_rejected_message_is_a_dead_letter_however_many_keys_fail(failing_count: int) -> None:
    stage = QueueStage([b"failing %d" % n for n in range(failing_count)], QueueSettings())
    for item in stage.take():
        stage.fail(item)
    stage.store()
    stage.append(b"bad", b"bad")
    (bad,) = stage.take()
    stage.fail(bad, REJECTED)

    stage.store()
    stage.write_due()

    assert [(b"bad", failing_count, DeadLetterReason.REJECTED)] == stage.dead_letters
    assert [failing_count + 1] == [item.offset for item in stage.take()]  # its key goes on


@pytest.mark.fault("consumer: a whole batch of one key fails, or more keys fail than attempts can be counted for")
@pytest.mark.promise("P9")
def test_a_rejected_batch_is_dead_letters_however_many_keys_fail() -> None:
    stage = QueueStage([b"failing %d" % n for n in range(PLACES)], QueueSettings())
    for item in stage.take():
        stage.fail(item)
    stage.store()
    stage.append(*[b"bad"] * 200)
    (batch,) = stage.queue.take_batches(1, records_max=200, now_ms=stage.now_ms)
    stage.queue.failed(batch, REJECTED, now_ms=stage.now_ms, draw=0.5)

    stage.store()

    assert [item.record for item in batch] == stage.write_due()


@pytest.mark.promise("P9")
def test_the_attempt_of_a_rejected_message_is_stored_before_its_dead_letter_where_it_has_room() -> None:
    stage = QueueStage([b"bad"], QueueSettings())
    (bad,) = stage.take()
    stage.fail(bad, REJECTED)
    was_due = stage.queue.has_due

    stage.store()

    assert (False, True) == (was_due, stage.queue.has_due)
    assert [0] == list(stage.known(TOPIC).attempts)


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


@pytest.mark.slow
@pytest.mark.parametrize("chunk_count", [1, 10, 100])
def test_a_key_with_a_backlog_of_100_000_delays_others_by_a_tenth_at_most(chunk_count: int) -> None:
    alone = steps_until_others_ended(0, chunk_count=chunk_count)
    beside = steps_until_others_ended(BACKLOG_COUNT, chunk_count=chunk_count)

    assert alone <= beside <= 1.1 * alone
