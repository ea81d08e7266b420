"""A batch of which one message cannot be read: those behind it, which no handler was given, have had no attempt (P9)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import dead_letter_of
from txlayer.core.messages import Undecodable
from txlayer.core.retry import HandlerResult, Reject, RetryPolicy


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(MemoryLab())
    yield made
    made.close()


def reasons(stage: Stage) -> list[tuple[bytes | None, str, int]]:
    found = []
    for record in stage.lab.read(stage.letters):
        letter = dead_letter_of(record.headers)
        assert not isinstance(letter, Undecodable)
        found.append((record.value, letter.reason.value, letter.attempt_count))
    return found


def run(stage: Stage, act: Any, *, attempt_count_max: int) -> list[int]:
    """The batch handler's calls over the messages 1, one that nobody can read, and 3."""
    stage.write(b"1", b"?", b"3")
    handled: list[int] = []
    consumer: OrderedConsumer = stage.plain(
        retry=RetryPolicy(attempt_count_max=attempt_count_max, backoff_first_ms=5, backoff_max_ms=5),
        deserializer=lambda raw, _: int(raw or b""),
    )

    @consumer.batch_handler(count_max=10)
    def note(messages: list[ReceivedMessage], context: Context) -> HandlerResult:
        handled.extend(message.value for message in messages)
        result: HandlerResult = act(messages, context)
        return result

    with consumer:
        stage.wait_stored(3)
        found = consumer.stats().topics[stage.topic]
        assert (3, 3 - len(reasons(stage))) == (found.handled + found.dead_lettered, found.handled)
    return handled


@pytest.mark.promise("P9")
def test_a_rejected_part_of_a_batch_rejects_none_behind_the_message_that_nobody_can_read(stage: Stage) -> None:
    def act(messages: list[ReceivedMessage], _context: Context) -> HandlerResult:
        return Reject("the first is wrong") if messages[0].value == 1 else None

    handled = run(stage, act, attempt_count_max=4)

    assert [1, 3] == handled
    assert [(b"1", "rejected", 1), (b"?", "undecodable", 0)] == reasons(stage)


def test_what_is_handled_before_a_message_that_cannot_be_read_is_counted(stage: Stage) -> None:
    assert [1, 3] == run(stage, lambda *_: None, attempt_count_max=1)


@pytest.mark.promise("P9")
def test_a_failed_part_of_a_batch_is_no_attempt_of_those_that_no_handler_was_given(stage: Stage) -> None:
    def act(messages: list[ReceivedMessage], _context: Context) -> HandlerResult:
        if messages[0].value == 1:
            raise ValueError("the first is wrong")
        return None

    handled = run(stage, act, attempt_count_max=1)

    assert [1, 3] == handled
    assert [(b"1", "attempts-exhausted", 1), (b"?", "undecodable", 0)] == reasons(stage)


@pytest.mark.promise("P9")
def test_a_message_that_cannot_be_read_just_now_is_no_attempt_of_others_of_its_batch(stage: Stage) -> None:
    """A deserializer that unzips raises `BadGzipFile`, which is an `OSError`: it counts as an outage of a service."""
    stage.write(b"1", b"?", b"3")
    handled: list[int] = []

    def read(raw: bytes | None, _field: Any) -> int:
        if raw == b"?":
            raise OSError("not a gzipped file")
        return int(raw or b"0")

    consumer: OrderedConsumer = stage.plain(retry=RetryPolicy(attempt_count_max=1), deserializer=read)

    @consumer.batch_handler(count_max=10)
    def note(messages: list[ReceivedMessage], _context: Context) -> HandlerResult:
        handled.extend(message.value for message in messages)
        return None

    with consumer:
        stage.wait_stored(3)

    assert [1, 3] == handled
    assert [(b"?", "attempts-exhausted", 1)] == reasons(stage)
