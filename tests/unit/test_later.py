"""What is postponed: it waits with its key, no attempt is counted, and it has limits of its own."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.queue_stage import FAILED, REJECTED, TOPIC, QueueStage, records
from txlayer.core.dead_letters import ReplayKind
from txlayer.core.key_queue import QueueOrder, QueueSettings
from txlayer.core.retry import Later, Retry, RetryPolicy, WrongResult, checked
from txlayer.errors import ConfigError

A, B = b"a", b"b"
SOON = Later(delay_ms=500)
PARTITION = Later(delay_ms=500, is_of_partition=True)


def postpone(stage: QueueStage, later: Later = SOON, **named: Any) -> str:
    """Take the next item, which its handler postpones; returns why it may not."""
    (item,) = stage.take(1)
    return stage.queue.postpone([item], later, now_ms=stage.now_ms, **named)


def stage_of(*keys: bytes, **policy: Any) -> QueueStage:
    return QueueStage(keys, QueueSettings(RetryPolicy(**policy)))


def test_no_attempt_of_what_is_postponed_is_counted_or_stored() -> None:
    stage = stage_of(A, attempt_count_max=1)
    stage.store()

    for _ in range(20):
        assert "" == postpone(stage)
        assert not stage.queue.is_changed(TOPIC)
        stage.advance(500)
    (item,) = stage.take()

    assert 0 == item.attempt_count
    stage.queue.handled([item])
    stage.store()
    assert 1 == stage.stored[TOPIC][0]


@pytest.mark.promise("P11")
def test_a_message_is_postponed_so_often_and_for_so_long_and_then_its_attempt_has_failed() -> None:
    often = stage_of(A, later_count_max=2)
    for _ in range(2):
        assert "" == postpone(often)
        often.advance(500)
    (item,) = often.take()
    why = often.queue.postpone([item], SOON, now_ms=often.now_ms)
    assert "postponed 2 times (later_count_max)" == why
    often.fail(item, FAILED)  # the queue is as it was: the attempt may be counted
    assert 1 == item.attempt_count

    long = stage_of(A, later_max=timedelta(seconds=1))
    for _ in range(2):
        assert "" == postpone(long)
        long.advance(500)
    assert "postponed for 1 s (later_max)" == postpone(long)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_of_partition", [False, True])
def test_a_longer_delay_ends_at_the_limit(is_of_partition: bool) -> None:
    stage = stage_of(A, B, later_max=timedelta(seconds=1))

    assert "" == postpone(stage, Later(delay_ms=3_600_000, is_of_partition=is_of_partition))
    stage.advance(1_000)

    assert {"0", "1"} == set(stage.taken())


def test_an_operators_pause_does_not_count() -> None:
    stage = stage_of(A, later_max=timedelta(seconds=1))
    assert "" == postpone(stage)
    stage.request(ReplayKind.PAUSE)
    stage.write_due()
    assert [] == stage.taken()
    stage.advance(3_600_000)
    stage.request(ReplayKind.RESUME)
    stage.write_due()

    assert "" == postpone(stage, Later(delay_ms=3_600_000))
    assert stage.now_ms + 1_000 == stage.queue.next_retry_at_ms
    stage.advance(1_000)
    assert "postponed for 1 s (later_max)" == postpone(stage)


def test_what_the_handler_did_not_ask_for_has_no_limit_in_number() -> None:
    stage = stage_of(A, later_count_max=1)

    for _ in range(5):
        assert "" == postpone(stage, is_asked=False)
        stage.advance(500)
    assert "" == postpone(stage)


def test_a_suspended_partition_begins_nothing_until_its_time() -> None:
    stage = stage_of(A, B)

    assert "" == postpone(stage, PARTITION)
    assert [] == stage.taken()
    stage.advance(499)
    assert [] == stage.taken()
    stage.advance(1)
    assert {"0", "1"} == set(stage.taken())


@pytest.mark.promise("P11")
def test_a_partition_in_which_nothing_succeeds_is_suspended_for_so_long_in_all() -> None:
    stage = stage_of(*(b"%d" % n for n in range(9)), later_max=timedelta(seconds=1))

    def suspend() -> str:
        """A handler that has not postponed its message before suspends the partition."""
        taken = stage.take()
        fresh = next(item for item in taken if item.more is None)
        for item in taken:
            if item is not fresh:
                stage.queue.put_back([item])
        why = stage.queue.postpone([fresh], PARTITION, now_ms=stage.now_ms)
        if why:
            stage.queue.put_back([fresh])
        return why

    for _ in range(2):
        assert "" == suspend()
        stage.advance(500)
    assert "the partition is postponed for 1 s (later_max)" == suspend()
    success = stage.take(1)
    stage.queue.handled(success)
    assert "" == suspend()


@pytest.mark.promise("P9")
def test_what_a_batch_handled_before_a_message_that_cannot_be_read_is_a_success_of_its_partition() -> None:
    stage = stage_of(A, B, B, later_max=timedelta(milliseconds=600))
    assert "" == postpone(stage, PARTITION)
    stage.advance(500)
    (batch,) = stage.queue.take_batches(1, records_max=2, now_ms=stage.now_ms)
    unread = stage.queue.end_before(batch, 1)
    stage.queue.undecodable(unread, FAILED, now_ms=stage.now_ms)
    stage.append(b"c")

    assert "" == stage.queue.postpone(stage.take(1), PARTITION, now_ms=stage.now_ms)
    assert stage.now_ms + 500 == stage.queue.suspended_until_ms


@pytest.mark.promise("P9")
def test_time_in_which_a_partition_is_not_suspended_does_not_count() -> None:
    stage = stage_of(A, B, later_max=timedelta(seconds=1))
    assert "" == postpone(stage, PARTITION)
    stage.advance(500)
    for item in stage.take():
        if item.offset == 0:
            stage.fail(item, REJECTED)
        else:
            stage.queue.put_back([item])
    stage.store()
    stage.write_due()
    stage.advance(3_600_000)  # without a message

    assert "" == postpone(stage, Later(delay_ms=3_600_000, is_of_partition=True))
    assert stage.now_ms + 500 == stage.queue.suspended_until_ms


def test_a_batch_waits_as_a_whole_and_its_first_message_comes_alone() -> None:
    stage = stage_of(A, A, A)
    (batch,) = stage.queue.take_batches(1, records_max=3, now_ms=stage.now_ms)

    assert "" == stage.queue.postpone(batch, SOON, now_ms=stage.now_ms)
    assert 0 == stage.queue.in_flight_count
    assert [] == stage.taken()
    stage.advance(500)
    batches = stage.queue.take_batches(5, records_max=3, now_ms=stage.now_ms)
    assert [["0"]] == list(map(records, batches))
    stage.queue.handled(batches[0])
    assert [["1", "2"]] == list(map(records, stage.queue.take_batches(5, records_max=3, now_ms=stage.now_ms)))


def test_in_order_of_the_partition_it_holds_back_all() -> None:
    stage = QueueStage([A, B], QueueSettings(order=QueueOrder.PARTITION))

    assert "" == postpone(stage)
    assert [] == stage.taken()


def test_an_answer_is_checked_like_a_retry() -> None:
    assert Later(delay_ms=1_500, reason="closed") == checked(Later(timedelta(seconds=1.5), "closed"))
    assert Later(delay_ms=1, is_of_partition=True) == checked(Later(timedelta(milliseconds=1), is_of_partition=True))
    for wrong, why in (
        (Later(), "needs a timedelta"),
        (Later(5), "needs a timedelta, not an object of type int"),  # type: ignore[arg-type]  # no unit
        (Later(timedelta(days=400)), "at most"),
        (Later(timedelta(1), reason=None), "needs a text"),  # type: ignore[arg-type]  # likewise
        (Later(timedelta(1), delay_ms=1), "not both"),
        (Later, "the class Later"),
    ):
        said = checked(wrong)
        assert isinstance(said, WrongResult)
        assert why in said.why


def test_limits_are_checked() -> None:
    assert 2_000 == RetryPolicy(later_max=timedelta(seconds=2)).later_max_ms
    with pytest.raises(ConfigError, match="at least 0"):
        RetryPolicy(later_count_max=-1)
    with pytest.raises(ConfigError, match="at least 0"):
        RetryPolicy(later_max_ms=-1)


def test_a_retry_is_as_before() -> None:
    assert Retry(delay_ms=1_000) == checked(Retry(timedelta(seconds=1)))
