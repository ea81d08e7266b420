"""What went wrong in other consumers: lost at a revocation, out of order, retried for ever, forgotten, too long."""

import pytest

from tests.support.queue_stage import QueueStage
from txlayer.core.dead_letters import DeadLetterReason
from txlayer.core.key_queue import QueueSettings
from txlayer.core.retry import RetryPolicy
from txlayer.errors import InvariantError

A, B = b"a", b"b"
AT_ONCE = RetryPolicy(attempt_count_max=1_000, backoff_first_ms=0, backoff_max_ms=0)


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
        stage.advance(600_000)

    assert 3 == attempts
    assert ["0"] == stage.write_due()
    assert [(A, 0, DeadLetterReason.ATTEMPTS_EXHAUSTED)] == stage.dead_letters


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
