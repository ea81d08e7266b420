"""Who of a queue may start, and when: order per key, retries, fair picking."""

import pytest

from tests.support.queue_stage import REJECTED, QueueStage
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome
from txlayer.core.key_queue import Failure, NullKeys, QueueOrder, QueueSettings
from txlayer.core.retry import Retry, RetryPolicy
from txlayer.errors import InvariantError

A, B = b"a", b"b"


def test_a_request_that_failed_waits_for_its_back_off_anew_after_a_restart() -> None:
    stage = QueueStage([A], QueueSettings(policy=RetryPolicy(backoff_first_ms=60_000)))
    stage.fail_next(REJECTED)
    stage.write_due()
    stage.request(ReplayKind.REPLAY, 0)
    stage.fail_next()

    stage.restart()

    assert [] == stage.taken()
    stage.advance(60_000)
    assert ["dead letter 0"] == stage.taken()


@pytest.mark.promise("P9")
def test_what_was_rejected_is_a_dead_letter_after_a_restart_whatever_attempts_are_left() -> None:
    """Also a request: the answer is that its replay failed."""
    stage = QueueStage([A, A], QueueSettings(policy=RetryPolicy(attempt_count_max=2)))
    stage.fail_next(REJECTED)

    stage.restart()

    assert ["0"] == stage.write_due()
    assert [(A, 0, DeadLetterReason.REJECTED)] == stage.dead_letters
    stage.queue.handled(stage.take())
    stage.request(ReplayKind.REPLAY, 0)
    stage.fail_next(REJECTED)

    stage.restart()

    assert [] == stage.taken()
    stage.write_due()
    assert [(0, ReplayOutcome.FAILED)] == stage.answers


def test_restarts_without_end_put_no_attempt_off_without_end() -> None:
    stage = QueueStage([A], QueueSettings(policy=RetryPolicy(backoff_first_ms=60_000)))
    stage.fail_next()

    restart_count = 0
    while not stage.taken():
        stage.advance(25_000)  # sooner than any back-off of a minute ends
        stage.restart()
        restart_count += 1

    assert 3 == restart_count


@pytest.mark.promise("P9")
def test_no_last_attempt_ends_before_it_began_on_a_machine_that_was_suspended() -> None:
    stage = QueueStage([A], QueueSettings(policy=RetryPolicy(attempt_count_max=1)))
    (item,) = stage.take()

    # The clock of starts went on for an hour, the one of ends did not.
    stage.fail(item, Failure(Retry(), started_ms=stage.now_ms + 3_600_000))
    stage.store()
    (dead,) = stage.queue.take_due(1)

    assert dead.more is not None
    assert dead.more.first_ms == dead.more.last_ms


def test_a_partition_is_one_chain_when_asked_for() -> None:
    stage = QueueStage([A, B, None], QueueSettings(order=QueueOrder.PARTITION))

    assert ["0"] == stage.taken()


def test_null_keys_are_in_order_or_free() -> None:
    ordered = QueueStage([None, None, A])
    free = QueueStage([None, None, A], QueueSettings(null_keys=NullKeys.FREE))

    assert ["0", "2"] == ordered.taken()
    assert ["0", "1", "2"] == free.taken()


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
