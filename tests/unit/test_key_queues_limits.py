"""Fair picking and limits of a queue, and what went wrong in other consumers."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.queue_stage import FAILED, PARK, REJECTED, REPLAY, TOPIC, QueueStage
from txlayer.core.attempts import RetryPolicy
from txlayer.core.handling import AfterExhausted, DeadLetterReason, ReplayKind, ReplayOutcome
from txlayer.core.items import Item, Order, QueueSettings
from txlayer.errors import ConfigError, InvariantError

A, B = b"a", b"b"
AT_ONCE = RetryPolicy(attempt_count_max=1_000, backoff_first_ms=0, backoff_max_ms=0)


def many(count: int) -> list[bytes]:
    """So many keys."""
    return [str(n).encode() for n in range(count)]


# --- fair picking -----------------------------------------------------------------------------------------------------


def test_a_slow_key_starves_nobody() -> None:
    stage = QueueStage([A] * 1_000 + many(50) * 2)
    (slow,) = stage.take(1)

    seen = []
    while items := stage.take(7):
        seen += items
        stage.queue.handled(items)

    assert "0" == slow.record
    assert list(range(1_000, 1_100)) == sorted(item.offset for item in seen)


def test_a_key_with_many_records_has_one_turn_at_a_time() -> None:
    stage = QueueStage([A] * 100 + [B])

    turns = []
    for _ in range(3):
        (item,) = stage.take(1)
        turns.append(item.record)
        stage.queue.handled([item])

    assert ["0", "100", "1"] == turns


def test_retries_and_fresh_records_take_turns() -> None:
    stage = QueueStage(many(200), QueueSettings(policy=AT_ONCE))
    for item in stage.take(100):
        stage.fail(item)
    stage.store()

    turns = [stage.take(1)[0].attempt_count for _ in range(10)]

    assert [0, 1] * 5 in (turns, turns[::-1])


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
    assert 1 == stage.queue.figures().retry_count


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


def full_stage() -> tuple[QueueStage, list[Item[str]]]:
    """A queue that no more ends have room in, and what is in flight there."""
    settings = QueueSettings(
        policy=AT_ONCE, order=Order.NONE, metadata_bytes_max=540, parked_keys_max=1
    )
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
    assert stage.queue.is_full
    assert [] == stage.taken()
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
    assert stage.queue.is_full
    assert [] == stage.taken(0)

    stage.request(ReplayKind.DROP, 0)
    assert ["dead letter 0"] == stage.write_due()

    assert ["1"] == stage.write_due()
    assert not stage.queue.is_full
    assert ["2"] == stage.taken()


def test_without_order_no_key_can_be_parked() -> None:
    with pytest.raises(ConfigError, match="after_exhausted"):
        QueueSettings(policy=PARK, order=Order.NONE)
    with pytest.raises(ConfigError, match="parked_keys_max"):
        QueueSettings(parked_keys_max=0)


# --- replay -----------------------------------------------------------------------------------------------------------


def test_after_a_failed_replay_later_ones_of_a_parked_key_are_not_tried() -> None:
    stage = QueueStage([A, A], QueueSettings(policy=PARK))
    stage.fail(stage.take()[0], REJECTED)
    stage.store()
    stage.write_due()
    stage.request(ReplayKind.REPLAY, 0)
    stage.request(ReplayKind.REPLAY, 1)

    stage.fail(stage.take()[0], REJECTED)
    stage.store()
    stage.write_due()
    assert [] == stage.take()
    stage.write_due()

    assert [(0, ReplayOutcome.FAILED), (1, ReplayOutcome.FAILED)] == stage.answers
    stage.request(ReplayKind.REPLAY, 0)
    stage.request(ReplayKind.REPLAY, 1)
    for expected in ("dead letter 0", "dead letter 1"):
        (item,) = stage.take()
        assert expected == item.record
        stage.queue.handled([item])
        stage.write_due()
    assert 0 == stage.queue.figures().parked_count


def test_a_parked_keys_new_messages_wait_beside_a_running_replay() -> None:
    stage = QueueStage([A, A], QueueSettings(policy=PARK))
    stage.fail(stage.take()[0], REJECTED)
    stage.store()
    stage.write_due()
    stage.request(ReplayKind.REPLAY, 0)
    (first,) = stage.take()
    stage.append(A, A)
    assert [] == stage.write_due()

    stage.queue.handled([first])
    assert ["dead letter 0", *["2", "3"]] == [*stage.write_due(), *stage.write_due()]

    assert [0, 1, 2, 3] == [at for _, at, _ in stage.dead_letters]


def test_a_replay_of_a_key_that_is_not_parked_waits_in_its_line() -> None:
    stage = QueueStage([A, A, A], QueueSettings(policy=RetryPolicy(attempt_count_max=1)))
    stage.fail(stage.take()[0])
    stage.store()
    stage.write_due()
    stage.request(ReplayKind.REPLAY, 0)

    order = []
    while items := stage.take():
        order += [item.record for item in items]
        stage.queue.handled(items)
        stage.write_due()

    assert ["1", "2", "dead letter 0"] == order


def test_a_paused_partition_hands_nothing_out_until_it_is_resumed_also_after_a_restart() -> None:
    stage = QueueStage([A])
    stage.request(ReplayKind.PAUSE)
    stage.write_due()
    assert [] == stage.take()
    stage.restart()
    assert stage.queue.is_paused
    assert [] == stage.take()

    stage.request(ReplayKind.RESUME)
    stage.write_due()

    assert ["0"] == stage.taken()
    assert [(None, ReplayOutcome.HANDLED)] * 2 == stage.answers


def test_an_answered_request_is_not_asked_again() -> None:
    stage = QueueStage([A])
    stage.request(ReplayKind.REPLAY, 5)
    stage.write_due()
    stage.restart()

    assert [] == stage.write_due()
    assert [(5, ReplayOutcome.MISSING)] == stage.answers


# --- bugs of others ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("P9")
def test_no_record_is_lost_when_the_partition_is_revoked_or_the_consumer_closed() -> None:
    stage = QueueStage([A, A, B, b"c"])
    items = stage.take()
    stage.queue.drop_queued()
    assert [] == stage.take()

    stage.queue.handled(items[:1])  # it ends in time; the others do not
    stage.store()
    assert [] == stage.take()

    stage.restart()
    assert ["1", "2", "3"] == sorted(stage.taken())


@pytest.mark.promise("P9")
def test_a_record_put_back_or_tried_again_is_not_overtaken_by_its_key() -> None:
    stage = QueueStage([A, A, A], QueueSettings(policy=AT_ONCE))

    for _ in range(3):
        items = stage.take()
        assert ["0"] == [item.record for item in items]
        stage.queue.put_back(items)
        (item,) = stage.take()
        stage.fail(item)
        stage.append(A)
        stage.store()

    assert ["0"] == stage.taken()


@pytest.mark.promise("P9")
def test_a_record_that_fails_for_ever_is_tried_so_often_and_is_one_record_all_the_time() -> None:
    stage = QueueStage([A], QueueSettings(policy=RetryPolicy()))
    attempts = 0
    while items := stage.take():
        attempts += 1
        stage.fail(items[0])
        assert 1 == stage.queue.count
        stage.store()
        assert len(stage.stored[TOPIC][1]) < 30
        stage.advance(3_600_000)

    assert 16 == attempts
    assert ["0"] == stage.write_due()


@pytest.mark.promise("P9")
def test_attempts_are_bounded_though_their_dead_letter_cannot_be_written() -> None:
    stage = QueueStage([A], QueueSettings(policy=RetryPolicy(attempt_count_max=3)))
    attempts = 0
    for _ in range(10):
        for item in stage.take():
            attempts += 1
            stage.fail(item)
        stage.store()
        stage.queue.take_due(9)  # the Kafka transaction fails, and everything starts over
        stage.restart()

    assert 3 == attempts
    assert ["0"] == stage.write_due()
    assert [(A, 0, DeadLetterReason.ATTEMPTS_EXHAUSTED)] == stage.dead_letters


@pytest.mark.promise("P11")
def test_metadata_never_overflow_when_a_thousand_keys_fail_at_once() -> None:
    stage = QueueStage(many(1_000), QueueSettings(policy=AT_ONCE))
    for item in stage.take():
        stage.fail(item)

    seen: set[str] = set()
    for _ in range(40):
        stage.store()
        assert len(stage.stored[TOPIC][1]) <= 4_096
        items = stage.take()
        seen.update(item.record for item in items)
        stage.queue.handled(items)

    assert 1_000 == len(seen)
    assert (1_000, "1|||||") == stage.stored[TOPIC]


def test_an_end_that_comes_twice_is_refused() -> None:
    stage = QueueStage([A])
    items = stage.take()
    stage.queue.handled(items)

    with pytest.raises(InvariantError):
        stage.queue.handled(items)


def test_hundreds_of_thousands_of_one_key_can_be_thrown_away() -> None:
    stage = QueueStage([A] * 100_000)
    stage.queue.handled(stage.take())

    stage.restart()

    assert 100_000 == stage.queue.count


def test_a_batch_that_failed_comes_back_one_by_one_each_with_its_attempt() -> None:
    stage = QueueStage([A, A, A], QueueSettings(policy=AT_ONCE))
    (batch,) = stage.queue.take_batches(5, records_max=2, now_ms=0)
    stage.queue.failed(batch, FAILED, now_ms=0, draw=0.0)
    stage.store()

    told = []
    for _ in range(3):
        ((item,),) = stage.queue.take_batches(5, records_max=2, now_ms=stage.now_ms)
        told.append((item.record, item.attempt_count))
        stage.queue.handled([item])

    assert [("0", 1), ("1", 1), ("2", 0)] == told


def test_a_rejected_batch_is_written_in_one_kafka_transaction() -> None:
    stage = QueueStage([A, A, A])
    (batch,) = stage.queue.take_batches(5, records_max=2, now_ms=0)
    stage.queue.failed(batch, REJECTED, now_ms=0, draw=0.0)
    stage.store()

    assert ["0", "1"] == stage.write_due()
    assert ["2"] == stage.taken()


def test_only_the_part_of_a_batch_that_is_begun_is_in_flight() -> None:
    stage = QueueStage([A, A, A])
    (batch,) = stage.queue.take_batches(5, records_max=3, now_ms=0)

    begun = stage.queue.shorten(batch, 2)
    assert 2 == stage.queue.in_flight_count
    stage.queue.handled(begun)

    assert ["2"] == stage.taken()


def test_what_nobody_can_read_becomes_a_dead_letter_at_once() -> None:
    stage = QueueStage([A, A])
    stage.queue.undecodable(stage.take()[0], FAILED, now_ms=1_000)

    assert ["0"] == stage.write_due()
    assert [(A, 0, DeadLetterReason.UNDECODABLE)] == stage.dead_letters
    assert ["1"] == stage.taken()


def test_the_writers_name_and_markers_reach_the_stored_offset() -> None:
    stage = QueueStage([A])
    stage.queue.writer = "loyalty.dlq.7"
    stage.queue.handled(stage.take())
    stage.queue.reach(TOPIC, 3)
    assert stage.queue.is_changed(TOPIC)
    assert not stage.queue.is_changed(REPLAY)
    stage.store()

    assert {TOPIC: (3, "1|loyalty.dlq.7||||"), REPLAY: (0, "1|||||")} == stage.stored
    assert "loyalty.dlq.7" == stage.queue.writer
    assert "Item(topic 0, chain b'a', None)" == repr(Item("0", 0, A, 1))
    assert AfterExhausted.GO_ON is QueueSettings().policy.after_exhausted
