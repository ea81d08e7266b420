"""A message that followed its parked key had no attempt, and its dead letter says so (P9, the protocol's header `txl-dlq`)."""

from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from txlayer.core.dead_letters import DeadLetterReason, dead_letter_of
from txlayer.core.messages import Undecodable
from txlayer.core.retry import AfterExhausted, Reject, RetryPolicy


def test_a_message_that_followed_its_parked_key_has_no_times_of_attempts() -> None:
    stage = Stage(MemoryLab())
    stage.write(b"1", b"2")
    policy = RetryPolicy(attempt_count_max=1, after_exhausted=AfterExhausted.PARK)
    try:
        with stage.consumer(lambda *_: Reject("as planned"), retry=policy):
            stage.wait_stored(2)
        _, second = (dead_letter_of(record.headers) for record in stage.lab.read(stage.letters))
    finally:
        stage.close()
    assert not isinstance(second, Undecodable)
    assert DeadLetterReason.KEY_PARKED is second.reason
    assert (0, 0, 0) == (second.attempt_count, second.first_ms, second.last_ms)
