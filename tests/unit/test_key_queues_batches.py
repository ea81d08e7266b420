"""Several records of one key handed out together, and what is said of a queue."""

from tests.support.queue_stage import FAILED, REJECTED, REPLAY, TOPIC, QueueStage, records
from txlayer.core.dead_letters import DeadLetterReason
from txlayer.core.key_queue import Item, QueueOrder, QueueSettings
from txlayer.core.retry import AfterExhausted, RetryPolicy

A = b"a"
AT_ONCE = RetryPolicy(attempt_count_max=1_000, backoff_first_ms=0, backoff_max_ms=0)


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


def test_without_an_order_a_batch_has_any_keys() -> None:
    stage = QueueStage([A, b"b", None, A, A], QueueSettings(policy=AT_ONCE, order=QueueOrder.NONE))
    first, second, third = stage.queue.take_batches(3, records_max=2, now_ms=0)
    assert [["0", "1"], ["2", "3"], ["4"]] == list(map(records, (first, second, third)))

    stage.queue.handled(first)
    stage.queue.failed(second, FAILED, now_ms=0, draw=0.0)
    stage.store()
    (first,) = stage.queue.take_batches(1, records_max=2, now_ms=stage.now_ms)
    alone = [first, *stage.queue.take_batches(3, records_max=2, now_ms=stage.now_ms)]
    assert [(["2"], 1), (["3"], 1)] == [(records(batch), batch[0].attempt_count) for batch in alone]
    stage.queue.put_back(third)
    for batch in (*alone, *stage.queue.take_batches(3, records_max=2, now_ms=stage.now_ms)):
        stage.queue.handled(batch)

    assert (0, 0) == (stage.queue.count, stage.queue.in_flight_count)
    assert stage.store() is False
    assert 5 == stage.stored[TOPIC][0]


def test_without_an_order_one_call_in_ten_is_a_retry_and_the_others_have_whole_batches() -> None:
    stage = QueueStage([A] * 2_001, QueueSettings(policy=AT_ONCE, order=QueueOrder.NONE))
    failing = stage.take(1)
    stage.queue.failed(failing, FAILED, now_ms=0, draw=0.0)
    stage.store()

    counts = []
    for _ in range(20):
        (batch,) = stage.queue.take_batches(1, records_max=100, now_ms=stage.now_ms)
        counts.append(len(batch))
        if batch == failing:
            stage.queue.failed(batch, FAILED, now_ms=0, draw=0.0)
            stage.store()
        else:
            stage.queue.handled(batch)

    assert ([100] * 9 + [1]) * 2 == counts


def test_without_an_order_the_rest_of_a_batch_waits_again() -> None:
    stage = QueueStage([A] * 4, QueueSettings(order=QueueOrder.NONE))
    (batch,) = stage.queue.take_batches(1, records_max=4, now_ms=0)

    unread = stage.queue.end_before(batch, 1)
    stage.queue.undecodable(unread, FAILED, now_ms=0)
    assert ["1"] == stage.write_due()
    assert 0 == stage.queue.in_flight_count
    assert ["2", "3"] == stage.taken()


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
