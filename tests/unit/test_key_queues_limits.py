"""Fair picking and limits of a queue, what it tells of itself, and what a limit's error names."""

import gc
import random
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.queue_stage import FAILED, PARK, REJECTED, TOPIC, QueueStage
from txlayer.consumer.metrics import RATE_WINDOW_S, TopicCounts
from txlayer.core.dead_letters import ReplayKind, ReplayRecord
from txlayer.core.key_queue import (
    Chains,
    Failure,
    Item,
    ItemExtras,
    Lanes,
    NullKeys,
    ParkedKeys,
    PartitionQueue,
    QueueOrder,
    QueueSettings,
    Start,
)
from txlayer.core.progress import Progress, StoredProgress, attempt_records_max
from txlayer.core.retry import DELAY_MS_MAX, Later, Retry, RetryPolicy
from txlayer.errors import ConfigError

A, B = b"a", b"b"
AT_ONCE = RetryPolicy(attempt_count_max=1_000, backoff_first_ms=0, backoff_max_ms=0)
WAITING = RetryPolicy(backoff_first_ms=60_000)


def many(count: int) -> list[bytes]:
    """So many keys."""
    return [str(n).encode() for n in range(count)]


@pytest.mark.fault("consumer: a key with many messages fails for hours")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("changed", [{"order": QueueOrder.NONE}, {"null_keys": NullKeys.FREE}])
def test_a_dead_letter_is_not_written_again_where_another_order_reads_what_keys_were_named(
    changed: dict[str, QueueOrder | NullKeys],
) -> None:
    dice = random.Random(3)
    drawn = (b"%d" % dice.randrange(6) if dice.random() < 0.7 else None for _ in range(3_000))
    stage = QueueStage([None, b"0", *drawn], QueueSettings(metadata_bytes_max=520, parked_keys_max=1))
    stage.take(2)  # of two keys, whose handlers take long
    while stage.known(TOPIC).waiting is None:
        stage.queue.handled(stage.take(20))
        stage.store()

    stage.settings = replace(stage.settings, **changed)  # type: ignore[arg-type]  # a field each
    stage.restart(is_reading=False)
    stage.store()
    stage.read(120)
    stage.take(2)
    for item in stage.take(20):
        stage.fail(item, REJECTED)
    stage.store()
    stage.write_all_due()
    stage.restart()
    stage.store()
    while items := stage.take():
        for item in items:
            stage.fail(item, REJECTED)
        stage.store()
        stage.write_all_due()

    counts = Counter(offset for _, offset, _ in stage.dead_letters)
    assert {1} == set(counts.values())


@pytest.mark.fault("consumer: a key with many messages fails for hours")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("null_keys", list(NullKeys))
def test_a_key_that_fails_delays_itself_alone_however_many_of_its_records_wait(null_keys: NullKeys) -> None:
    # A tenth of 20,000 records: runs of finished ones between them would not have room in the metadata.
    dice = random.Random(1)
    keys = [A, *(A if dice.random() < 0.1 else b"%d" % dice.randrange(97) for _ in range(19_999))]
    settings = QueueSettings(policy=WAITING, metadata_bytes_max=1_100, parked_keys_max=1, null_keys=null_keys)
    stage = QueueStage(keys[:1], settings)
    (failing,) = stage.take()
    stage.fail(failing)
    assert not stage.store()

    for start in range(1, len(keys), 1_000):
        stage.append(*keys[start : start + 1_000])
        while items := stage.take():
            stage.queue.handled(items)
        assert not stage.store()

    assert keys.count(A) == stage.queue.count
    stage.restart()
    assert [] == stage.take()
    assert not stage.store()
    stage.now_ms += 60_000
    again = []
    while items := stage.take():
        again += [item.offset for item in items]
        stage.queue.handled(items)
    assert [offset for offset, key in enumerate(keys) if key == A] == again
    assert not stage.store()
    assert (len(keys), "1|||||") == stage.stored[TOPIC]


def test_a_restart_on_the_way_through_what_waited_repeats_and_forgets_nothing() -> None:
    dice = random.Random(1)
    keys = [A, *(A if dice.random() < 0.3 else b"%d" % dice.randrange(9) for _ in range(10_000))]
    stage = QueueStage(keys[:1], QueueSettings(policy=WAITING, metadata_bytes_max=1_100, parked_keys_max=1))
    stage.fail(stage.take()[0])
    stage.append(*keys[1:])
    while items := stage.take():
        stage.queue.handled(items)
    assert not stage.store()
    assert stage.known(TOPIC).waiting is not None

    again: list[int] = []
    while stage.stored[TOPIC][0] < len(keys):
        stage.restart(is_reading=False)
        stage.now_ms += 60_000
        stage.read(2_000)
        for _ in range(300):
            items = stage.take()
            again += [item.offset for item in items]
            stage.queue.handled(items)
        assert not stage.store()

    assert [offset for offset, key in enumerate(keys) if key == A] == again


def test_more_keys_that_fail_than_have_room_fill_the_metadata_until_one_ends() -> None:
    settings = QueueSettings(policy=RetryPolicy(backoff_first_ms=60_000))
    failing = many(40)
    stage = QueueStage(failing, settings)
    for item in stage.take():
        stage.fail(item)
    dice, is_full = random.Random(1), stage.store()
    while not is_full:
        stage.append(*(dice.choice(failing + [B] * 40) for _ in range(1_000)))
        while items := stage.take():
            stage.queue.handled(items)
        is_full = stage.store()

    before = stage.queue.count
    stage.restart()
    assert before == stage.queue.count


# --- fair picking -----------------------------------------------------------------------------------------------------


def test_fresh_records_go_first_and_one_start_of_ten_is_a_retry() -> None:
    stage = QueueStage(many(200), QueueSettings(policy=AT_ONCE))
    for item in stage.take(100):
        stage.fail(item)
    stage.store()

    turns = [stage.take(1)[0].attempt_count for _ in range(40)]
    assert [0] * 9 + [1] in (turns[:10], turns[1:11], turns[2:12])
    assert 4 == sum(turns)
    assert [0] * 64 + [1] * 96 == sorted(item.attempt_count for item in stage.take(1_000))


@given(st.lists(st.integers(0, 5), max_size=80), st.integers(0, 999))
def test_turns_are_those_of_a_list_of_keys(keys: list[int], seed: int) -> None:
    dice = random.Random(seed)
    stage = QueueStage([bytes([key]) for key in keys])
    waiting: dict[int, list[int]] = {}
    turns = list(dict.fromkeys(keys))
    for offset, key in enumerate(keys):
        waiting.setdefault(key, []).append(offset)

    in_flight: list[Item[str]] = []
    while turns or in_flight:
        count = dice.randrange(4)
        expected = [waiting[key].pop(0) for key in turns[:count]]
        taken = stage.take(count)
        assert expected == [item.offset for item in taken]
        del turns[:count]
        in_flight += taken
        dice.shuffle(in_flight)
        done = in_flight[: dice.randrange(4)]
        del in_flight[: len(done)]
        stage.queue.handled(done)
        turns += [keys[item.offset] for item in done if waiting[keys[item.offset]]]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_records_and_bytes_are_counted_until_their_ends() -> None:
    stage = QueueStage([A, A, B])
    assert (3, 3, 0) == (stage.queue.count, stage.queue.size_bytes, stage.queue.in_flight_count)

    items = stage.take()
    stage.fail(items[0])
    stage.queue.handled(items[1:])

    assert (2, 2, 0) == (stage.queue.count, stage.queue.size_bytes, stage.queue.in_flight_count)
    figures = stage.queue.figures()
    assert (2, 2, 0, 1) == (figures.unfinished_count, figures.size_bytes, figures.in_flight_count, figures.retry_count)


def test_the_oldest_unfinished_record_is_known() -> None:
    stage = QueueStage([A])
    stage.advance(500)
    stage.append(B)
    assert 1_000 == stage.queue.figures().oldest_added_ms

    stage.queue.handled(stage.take(1))
    stage.store()
    assert 1_500 == stage.queue.figures().oldest_added_ms
    stage.queue.handled(stage.take())
    assert None is stage.queue.figures().oldest_added_ms


def full_stage(order: QueueOrder = QueueOrder.NONE) -> tuple[QueueStage, list[Item[str]]]:
    """A queue that no more ends have room in, and what is in flight there."""
    settings = QueueSettings(policy=AT_ONCE, order=order, metadata_bytes_max=540, parked_keys_max=1)
    stage = QueueStage(many(9_000), settings)
    items = stage.take(8_000)
    dice = random.Random(7)
    dice.shuffle(items)
    done = [item for item in islice(items, 4_000) if item.offset > 2]
    stage.queue.handled(done)
    stage.store()
    gone = set(done)
    return stage, [item for item in items if item not in gone]


@pytest.mark.promise("P11")
def test_where_no_more_ends_have_room_only_retries_and_the_lowest_record_start() -> None:
    stage, in_flight = full_stage()
    assert (True, []) == (stage.queue.is_full, stage.taken())
    failing = max(in_flight, key=lambda item: item.offset)
    stage.fail(failing)
    stage.store()
    assert [failing.record] == stage.taken()

    stage.restart()
    stage.store()
    assert stage.queue.is_full
    again = stage.take()
    assert [failing.record] == [item.record for item in again]
    stage.queue.handled(again)
    assert ["0"] == stage.taken()
    assert [] == stage.taken()


@pytest.mark.promise("P11")
def test_where_no_more_ends_have_room_the_lowest_record_starts_without_others_of_its_key() -> None:
    stage, in_flight = full_stage(QueueOrder.KEY)
    stage.append(*[stage.log[0]] * 3)
    stage.restart()
    stage.store()

    batches = stage.queue.take_batches(10, records_max=10, now_ms=stage.now_ms)

    assert in_flight
    assert [["0"]] == [[item.record for item in batch] for batch in batches]


@pytest.mark.promise("P11")
def test_a_full_partition_goes_on_when_ends_have_room_again() -> None:
    stage, in_flight = full_stage()

    stage.queue.handled(in_flight)
    stage.store()

    assert not stage.queue.is_full
    assert 1_000 == len(stage.take())


@pytest.mark.promise("P11")
def test_when_no_more_keys_can_be_parked_the_partition_waits_for_replays() -> None:
    stage = QueueStage([A, B, b"c"], QueueSettings(policy=PARK, parked_keys_max=1))
    for item in stage.take(2):
        stage.fail(item, REJECTED)
    stage.store()
    assert ["0"] == stage.write_due()
    assert [] == stage.write_due()
    assert (True, []) == (stage.queue.is_full, stage.taken())

    stage.request(ReplayKind.DROP, 0)
    assert ["dead letter 0"] == stage.write_due()

    assert ["1"] == stage.write_due()
    assert (False, ["2"]) == (stage.queue.is_full, stage.taken())


def test_without_order_no_key_can_be_parked() -> None:
    with pytest.raises(ConfigError, match="after_exhausted"):
        QueueSettings(policy=PARK, order=QueueOrder.NONE)
    with pytest.raises(ConfigError, match="parked_keys_max"):
        QueueSettings(parked_keys_max=0)


# --- more failing records than can be counted -------------------------------------------------------------------------

CROWDED = QueueSettings(policy=AT_ONCE, metadata_bytes_max=540, parked_keys_max=1)
ROOM = attempt_records_max(metadata_bytes_max=540, parked_keys_max=1)


def crowded_stage(settings: QueueSettings, failure: Failure) -> QueueStage:
    """A batch failed that is larger than the room for counts."""
    stage = QueueStage([A] * (ROOM + 2), settings)
    (batch,) = stage.queue.take_batches(1, records_max=ROOM + 2, now_ms=stage.now_ms)
    stage.queue.failed(batch, failure, now_ms=stage.now_ms, draw=0.0)
    stage.store()
    return stage


@pytest.mark.promise("P9")
def test_the_first_of_a_key_waits_until_its_count_has_found_room() -> None:
    stage = crowded_stage(CROWDED, FAILED)
    for _ in range(ROOM // 2):  # what one batch may take
        (item,) = stage.take()
        stage.queue.handled([item])

    assert [] == stage.take()
    stage.store()
    assert [str(ROOM // 2)] == stage.taken()


def test_what_was_rejected_with_others_is_given_up_with_them_without_room_for_its_count() -> None:
    stage = crowded_stage(CROWDED, REJECTED)

    assert ROOM + 2 == len(stage.write_due())
    assert 0 == stage.queue.count


def test_an_uncounted_message_of_a_key_that_is_parked_leaves_nothing_behind() -> None:
    stage = crowded_stage(replace(CROWDED, policy=PARK), REJECTED)

    assert ROOM + 2 == len(stage.write_due())
    assert (0, 0) == (stage.queue.figures().retry_count, stage.queue.count)


@pytest.mark.fault("consumer: more dead letters are replayed at once than fit into memory")
@pytest.mark.promise("P11")
def test_requests_are_needed_where_keys_to_be_parked_hold_all_places_for_counts() -> None:
    stage = QueueStage(many(ROOM + 2), replace(CROWDED, policy=PARK))
    first, *rejected, last = stage.take()
    stage.fail(first, REJECTED)
    stage.store()
    assert ["0"] == stage.write_due()
    for item in rejected:
        stage.fail(item, REJECTED)
    stage.fail(last, FAILED)
    stage.store()

    assert ([], []) == (stage.write_due(), stage.taken())
    assert stage.queue.needs_requests


@pytest.mark.promise("P9")
def test_one_failing_message_without_a_key_and_one_failing_key_delay_nobody_else() -> None:
    dice = random.Random(1)
    keys = [None, b"bad", *(b"bad" if dice.random() < 0.5 else b"%d" % n for n in range(10_000))]
    policy = RetryPolicy(backoff_first_ms=300_000)
    settings = QueueSettings(policy=policy, metadata_bytes_max=1_100, parked_keys_max=1, null_keys=NullKeys.FREE)
    stage = QueueStage(keys[:2], settings)
    for item in stage.take():
        stage.fail(item)
    stage.store()

    for start in range(2, len(keys), 1_000):
        stage.append(*keys[start : start + 1_000])
        while items := stage.take():
            stage.queue.handled(items)
        assert not stage.store(), f"full after {start} messages"
    stage.append(*(b"new-%d" % n for n in range(100)))
    assert 100 == len(stage.take())


@pytest.mark.fault("consumer: retention removes the dead letters of parked keys while no more keys can be parked")
@pytest.mark.promise("P9")
def test_a_parked_key_without_dead_letters_gives_its_place_to_another_one() -> None:
    settings = QueueSettings(policy=replace(PARK, attempt_count_max=1), parked_keys_max=2)
    stage = QueueStage([A, B, b"c", b"d"], settings)
    for item in stage.take():
        stage.fail(item)
    stage.store()
    assert ["0", "1"] == stage.write_due()
    assert stage.queue.is_without_room

    assert [0, 1] == [stage.queue.forget_parked(range(6)), stage.queue.forget_parked(range(1, 6))]
    assert ["2"] == stage.write_due()
    stage.store()
    stage.restart()
    stage.append(A, B)

    assert ["4"] == stage.taken()
    assert ["5"] == stage.write_due()


@pytest.mark.promise("P9")
def test_new_records_that_were_held_for_a_while_are_no_retries() -> None:
    stage = QueueStage(many(4_000), QueueSettings(metadata_bytes_max=540, parked_keys_max=1))
    first, *others = stage.take(4_000)
    dice = random.Random(7)
    waiting = [first, *(item for item in others if dice.random() < 0.5)]
    ids = set(map(id, waiting))
    stage.queue.handled([item for item in others if id(item) not in ids])
    for item in waiting:
        stage.queue.hold(item, until_ms=stage.now_ms + 5)
    assert stage.store()
    stage.advance(5)

    assert ["0"] == stage.taken(), "without room for its end no other new record starts"


C = b"c"
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
        progress.snapshot(StoredProgress(parked=parked))

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.promise("P11")
@pytest.mark.parametrize("way", ["alone", "in runs", "in batches", "as dead letters"])
def test_a_handler_that_does_not_come_back_keeps_nothing_of_those_that_came_and_went_behind_its_message(
    way: str,
) -> None:
    """Its thread holds its message for ever, and messages of the key never cease."""
    queue: PartitionQueue[bytes] = PartitionQueue(topic=Start(0), replays=Start(0), settings=QueueSettings(), now_ms=0)

    def end(now_ms: int) -> Sequence[Item[bytes]]:
        if way == "in runs":
            items, lasts = queue.take_runs(1, now_ms=now_ms)
            queue.handled(items, lasts)
            return items
        if way == "in batches":
            (items,) = queue.take_batches(1, records_max=1, now_ms=now_ms)
            queue.handled(items)
            return items
        items = queue.take(1, now_ms=now_ms)
        if way == "alone":
            queue.handled(items)
            return items
        queue.failed(items, REJECTED, now_ms=now_ms, draw=0.5)
        snapshot = queue.snapshot(TOPIC)
        queue.stored(TOPIC, snapshot.version)
        due = queue.take_due(1)
        queue.written(due, [now_ms], queue.ending(due, [now_ms]))
        return items

    queue.add([b""] * 2, offsets=[0, 1], keys=[A, A], sizes=[1, 1], now_ms=0)
    held = end(0)

    with bounded_memory(300_000):
        for offset in range(2, 1_000):
            queue.add([bytes(10_000)], offsets=[offset], keys=[A], sizes=[10_000], now_ms=offset)
            end(offset)

    assert held[0].record == b""


@pytest.mark.promise("P11")
def test_a_handler_that_does_not_come_back_keeps_nothing_of_a_queue_that_was_given_up() -> None:
    queue: PartitionQueue[bytes] = PartitionQueue(topic=Start(0), replays=Start(0), settings=QueueSettings(), now_ms=0)
    queue.add([b""], offsets=[0], keys=[A], sizes=[1], now_ms=0)
    (held,) = queue.take(1, now_ms=0)

    with bounded_memory(300_000):
        offsets = range(1, 1_000)
        queue.add(
            [bytes(10_000) for _ in offsets],
            offsets=offsets,
            keys=[*[A] * 500, *many(499)],
            sizes=[10_000] * 999,
            now_ms=0,
        )
        queue.failed([held], FAILED, now_ms=0, draw=0.5)  # its attempt was given up
        queue.drop_queued()

    assert (held.record, queue.in_flight_count) == (b"", 0)


@pytest.mark.promise("P11")
def test_a_queue_that_was_given_up_is_freed_without_the_collector_of_garbage() -> None:
    """It counts objects, not bytes: hundreds of queues, each with what is known of its offsets, would wait for it."""
    queue: PartitionQueue[bytes] = PartitionQueue(topic=Start(0), replays=Start(0), settings=QueueSettings(), now_ms=0)
    queue.add([b""] * 3, offsets=[0, 1, 2], keys=[A, A, B], sizes=[1] * 3, now_ms=0)
    queue.failed([*queue.take(1, now_ms=0)], FAILED, now_ms=0, draw=0.5)
    queue.drop_queued()

    left = weakref.ref(queue)
    with without_collector():
        del queue
        assert left() is None


@contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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


@pytest.mark.slow
@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: so many keys fail that what ended behind them has no room in the metadata")
def test_messages_of_a_parked_key_without_room_for_their_ends_become_one_dead_letter_each() -> None:
    stage = QueueStage([A], QueueSettings(policy=SLOWLY_PARKED, metadata_bytes_max=1_400, parked_keys_max=8))
    stage.fail_next(REJECTED)
    stage.write_due()
    failing, draw = many(40), random.Random(1)
    for start in range(0, 9_000, 1_000):
        stage.append(*(draw.choice([A, A, b"new-%d" % (start + n), draw.choice(failing)]) for n in range(1_000)))
        handle(stage, failing=failing)
    assert stage.queue.is_full
    before = list(stage.dead_letters)

    stage.restart()
    stage.store()
    stage.write_all_due()
    assert before == stage.dead_letters

    stage.advance(300_000)
    handle(stage, failing=())
    assert stage.queue.count == 0
    assert [at for at, key in enumerate(stage.log) if key == A] == [at for _, at, _ in stage.dead_letters]


@pytest.mark.slow
@pytest.mark.promise("P9")
def test_postponed_messages_without_room_for_their_ends_do_not_begin_and_are_handled_once() -> None:
    draw, handled = random.Random(1), Counter[int]()
    stage = QueueStage(many(8_000), QueueSettings(policy=RetryPolicy(), metadata_bytes_max=1_100, parked_keys_max=1))
    for item in stage.take(8_000):
        stage.queue.postpone([item], Later(delay_ms=1_000), now_ms=stage.now_ms)

    stage.advance(1_000)
    while items := stage.take(500):
        for item in items:
            if draw.random() < 0.5:
                stage.queue.postpone([item], Later(delay_ms=600_000), now_ms=stage.now_ms)
            else:
                stage.queue.handled([item])
                handled[item.offset] += 1
        stage.store()
    assert stage.queue.is_full

    stage.restart()
    stage.store()
    while items := stage.take(500):
        stage.queue.handled(items)
        handled.update(item.offset for item in items)
        stage.store()
    assert Counter(range(8_000)) == handled


@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: so many keys fail that what ended behind them has no room in the metadata")
def test_rejected_messages_without_room_for_count_or_end_become_one_dead_letter_each() -> None:
    """More were rejected than have places for their counts, while no dead letter could be written."""
    settings = QueueSettings(policy=RetryPolicy(), metadata_bytes_max=1_100, parked_keys_max=1)
    stage = QueueStage(many(8_000), settings)
    while items := stage.take(500):
        stage.postpone_some(items, otherwise=lambda item: stage.fail(item, REJECTED))
        stage.store()
    stage.write_all_due()
    assert stage.queue.is_full
    before = {at for _, at, _ in stage.dead_letters}

    stage.restart()

    assert before.isdisjoint(item.offset for item in stage.take(8_000))


@pytest.mark.promise("P9")
def test_a_postponed_message_without_room_for_its_end_keeps_no_request_that_may_make_room_for_a_key_unread() -> None:
    stage, lowest = stage_with_full_metadata_and_a_parked_key()
    stage.fail(lowest, REJECTED)
    assert stage.store()
    assert [] == stage.write_due()
    assert stage.queue.is_without_room

    stage.advance(600_000)
    assert [] == stage.take()

    assert stage.queue.needs_requests


@pytest.mark.slow
@pytest.mark.promise("P9")
@pytest.mark.parametrize("steps", ["ask write fail", "write ask fail", "write fail ask"])
def test_a_message_that_has_no_place_as_a_dead_letter_waits_for_the_replays_of_its_parked_key(steps: str) -> None:
    """Its key may be released by them; and they may make room for another key, which the oldest message waits for."""
    stage, lowest = stage_with_full_metadata_and_a_parked_key()
    assert stage.store()
    stage.append(A)

    for step in steps.split():
        if step == "ask":
            stage.request(ReplayKind.REPLAY, 0)
        elif step == "write":
            assert [] == stage.write_due()
        else:
            stage.fail(lowest, REJECTED)
            stage.store()
            stage.write_due(1)
    stage.write_due()
    assert stage.queue.is_without_room

    replays = [item for item in stage.take() if item.record == "dead letter 0"]
    stage.queue.handled(replays)
    stage.write_all_due()

    stage.advance(600_000)
    handle(stage, failing=())
    assert stage.queue.count == 0
    assert [(A, 0), (B, 1)] == [(key, at) for key, at, _ in stage.dead_letters]


@pytest.mark.promise("P9")
def test_messages_that_replays_passed_at_different_times_stay_in_order() -> None:
    """Of the chain 0, replay, 1, replay and a later 2: the key was parked after the first replay had come."""
    parked = ParkedKeys({}, count_max=1, stuck={})
    lanes: Lanes[str] = Lanes()
    chains = Chains(lanes=lanes, parked=parked, is_parking=True)
    messages = [Item(str(offset), offset, A, 1) for offset in range(3)]
    replays = [Item("replay", offset, A, 1) for offset in range(2)]
    for offset, replay in enumerate(replays):
        replay.more = ItemExtras(request=ReplayRecord(ReplayKind.REPLAY, "r", offset))

    def has_place(_item: Item[str]) -> bool:
        return True

    def find_no_place() -> None:
        assert [] == chains.take_due(9, bytes_max=9, place_count=0, lowest=-1, counted=())

    for item in (messages[0], replays[0], messages[1]):
        chains.line_up(item)
    parked.become({parked.key_hash(A): 7}, {})
    chains.turn(*lanes.take(1, has_place))
    find_no_place()
    chains.line_up(replays[1])
    chains.line_up(messages[2])
    chains.go_on(lanes.take(1, has_place))
    find_no_place()
    assert replays[1:] == lanes.take(9, has_place)
    parked.become({}, {})
    chains.go_on(replays[1:])

    for message in messages:
        assert [message] == lanes.take(9, has_place)
        chains.go_on([message])


def stage_with_full_metadata_and_a_parked_key() -> tuple[QueueStage, Item[str]]:
    """No more keys can be parked. Returns also the lowest record, which is being handled."""
    stage = QueueStage([A, B], QueueSettings(policy=PARK, metadata_bytes_max=400, parked_keys_max=1))
    first, lowest = stage.take()
    stage.fail(first, REJECTED)
    stage.append(*many(3_000))
    stage.postpone_some(stage.take(3_000))
    stage.store()
    stage.write_due()
    return stage, lowest


SLOWLY_PARKED = replace(PARK, backoff_first_ms=300_000)


def handle(stage: QueueStage, *, failing: Collection[bytes]) -> None:
    """Everything that may begin is handled, or fails."""
    while items := stage.take(500):
        for item in items:
            if item.chain in failing:
                stage.fail(item)
            else:
                stage.queue.handled([item])
        stage.store()
        stage.write_all_due()
