"""What a queue tells: how many are to be handled, its figures, when attempts ended, and what a limit's error names."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.queue_stage import FAILED, PARK, REJECTED, QueueStage
from txlayer.consumer.metrics import RATE_WINDOW_S, TopicCounts
from txlayer.core.dead_letters import ReplayKind, ReplayRecord
from txlayer.core.key_queue import Failure, Item, Lanes, PartitionQueue, QueueSettings, Start
from txlayer.core.progress import Progress, StoredProgress, attempt_records_max
from txlayer.core.retry import DELAY_MS_MAX, Retry, RetryPolicy
from txlayer.errors import ConfigError

A, B, C = b"a", b"b", b"c"
ONE_ATTEMPT = QueueSettings(policy=RetryPolicy(attempt_count_max=1))


def test_how_many_of_what_was_read_are_to_be_handled() -> None:
    stage = QueueStage([A, B])

    again = stage.queue.add(["0", "1"], offsets=[0, 1], keys=[A, B], sizes=[1, 1], now_ms=stage.now_ms)
    more = stage.queue.add(["1", "2"], offsets=[1, 2], keys=[B, C], sizes=[1, 1], now_ms=stage.now_ms)

    assert (0, 1) == (again, more)


def test_a_request_that_was_read_before_is_not_to_be_answered_again() -> None:
    stage = QueueStage([A])
    request = ReplayRecord(ReplayKind.PAUSE, "r", None)

    def add() -> bool:
        return stage.queue.add_replay(request, offset=0, key=None, record="", size_bytes=1)

    assert [True, False] == [add(), add()]


def test_new_records_go_before_retries_but_for_every_tenth_start() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.ready.extend(Item("new", number, number, 1) for number in range(100))
    lanes.again.extend(Item("again", number, number, 1) for number in range(100, 200))

    starts = [item.record for _ in range(60) for item in lanes.take(1)]

    assert (54, 6) == (starts.count("new"), starts.count("again"))
    assert ["new"] * 9 == starts[:9]


def test_attempts_that_fail_are_told_by_their_number_and_by_the_second() -> None:
    tally = TopicCounts(handled=100, failed=10)
    tally.roll(1_000.0)
    tally.handled, tally.failed = 300, 60
    tally.roll(1_000.0 + RATE_WINDOW_S)

    assert (200 / RATE_WINDOW_S, 50 / RATE_WINDOW_S, 60) == (tally.rate, tally.failed_rate, tally.failed)


def test_figures_of_what_is_ready_due_and_paused() -> None:
    stage = QueueStage([A, B, C], ONE_ATTEMPT)
    stage.fail(stage.take(1)[0])
    stage.store()
    figures = stage.queue.figures()
    assert (2, 1, False, False) == (figures.ready_count, figures.due_count, figures.is_full, figures.is_paused)

    stage.request(ReplayKind.PAUSE)
    stage.write_due()

    assert (0, True) == (stage.queue.figures().due_count, stage.queue.figures().is_paused)


def test_an_item_says_when_its_last_attempt_ended() -> None:
    stage = QueueStage([A, B])
    failed, unreadable = stage.take()
    stage.advance(5)

    stage.fail(failed)
    stage.queue.undecodable(unreadable, FAILED, now_ms=stage.now_ms)

    assert failed.more is not None
    assert unreadable.more is not None
    assert (1_005, 1_005) == (failed.more.last_ms, unreadable.more.last_ms)


def test_no_more_ends_are_taken_than_a_kafka_transaction_may_hold() -> None:
    stage = QueueStage([A, A, A, B, B, C], QueueSettings(policy=PARK))
    for item in stage.take():
        stage.fail(item, REJECTED)
    stage.store()

    assert [["0", "1"], ["3", "4"], ["5", "2"]] == [stage.write_due(2) for _ in range(3)]


def test_a_key_without_room_to_be_parked_does_not_hold_back_the_others() -> None:
    stage = QueueStage([A, B], QueueSettings(policy=PARK, parked_keys_max=1))
    for item in stage.take():
        stage.fail(item, REJECTED)
    stage.store()
    assert ["0"] == stage.write_due(1)
    stage.request(ReplayKind.DROP, 0)

    written = stage.write_due()

    assert ["dead letter 0", "1"] == [*written, *stage.write_due()]


@pytest.mark.parametrize(
    ("bytes_max", "keys_max", "expected"),
    [(100, 0, "room for 0 parked keys"), (4_096, 1_000, "room for 1000 parked keys")],
)
def test_metadata_without_room_are_refused_by_name(bytes_max: int, keys_max: int, expected: str) -> None:
    with pytest.raises(ConfigError, match="metadata_bytes_max") as caught:
        Progress(0, metadata_bytes_max=bytes_max, parked_keys_max=keys_max)

    assert ("metadata_bytes_max", bytes_max) == (caught.value.name, caught.value.value)
    assert str(caught.value.expected).startswith(expected)


def test_one_failing_record_is_the_least_that_must_have_room() -> None:
    least = next(n for n in range(1, 4_096) if _has_room(n))

    assert 1 == attempt_records_max(metadata_bytes_max=least, parked_keys_max=0)


def _has_room(bytes_max: int) -> bool:
    try:
        attempt_records_max(metadata_bytes_max=bytes_max, parked_keys_max=0)
    except ConfigError:
        return False
    return True


def test_parked_keys_that_a_smaller_setting_has_no_room_for_are_said_by_name() -> None:
    progress = Progress(0, metadata_bytes_max=540)
    parked = {bytes([n]) * 8: 1 << 40 for n in range(40)}

    with pytest.raises(ConfigError, match="at least") as caught:
        progress.snapshot(writer="", is_paused=False, parked=parked)

    assert ("metadata_bytes_max", 540) == (caught.value.name, caught.value.value)
    assert str(caught.value.expected).endswith("which is stored already")


@contextmanager
def bounded_memory(bytes_max: int) -> Iterator[None]:
    """A block after which at most so much more is in use."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before <= bytes_max


@pytest.mark.promise("P11")
def test_a_record_that_waits_for_long_keeps_nothing_of_those_that_came_and_went() -> None:
    stage = QueueStage([A])
    stage.fail(stage.take()[0], Failure(Retry(delay_ms=DELAY_MS_MAX), started_ms=1_000))
    stage.store()

    with bounded_memory(300_000):
        for offset in range(1, 10_000):
            stage.queue.add([""], offsets=[offset], keys=[B], sizes=[1], now_ms=1_000 + offset)
            stage.queue.handled(stage.queue.take(1, now_ms=1_000 + offset))
    assert 1_000 == stage.queue.figures().oldest_added_ms

    stage.queue.add([""], offsets=[10_000], keys=[C], sizes=[1], now_ms=20_000)
    stage.now_ms += DELAY_MS_MAX
    stage.queue.handled(stage.take())
    stage.store()
    stage.queue.add([""], offsets=[10_001], keys=[C], sizes=[1], now_ms=30_000)
    stage.store()

    assert 30_000 == stage.queue.figures().oldest_added_ms


@pytest.mark.promise("P11")
def test_keys_that_were_looked_up_among_the_parked_ones_are_not_kept_whatever_their_length() -> None:
    parked = StoredProgress(parked={b"12345678": 3})
    queue: PartitionQueue[str] = PartitionQueue(
        topic=Start(0, parked), replays=Start(0), settings=QueueSettings(policy=PARK), now_ms=0
    )

    with bounded_memory(1_000_000):
        for offset in range(100):
            queue.add([""], offsets=[offset], keys=[b"%0100000d" % offset], sizes=[100_000], now_ms=0)
            queue.handled(queue.take(1, now_ms=0))
