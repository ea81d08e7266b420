"""Messages beside others that were handed over with them: unreadable ones, and ones that take long (P9)."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import IN_MEMORY
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.process_handlers import hold
from tests.support.waiting import wait_until
from txlayer import Codec
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, dead_letter_of, decode_replay, encode_replay
from txlayer.core.messages import Undecodable
from txlayer.core.retry import HandlerResult, Reject, RetryPolicy

pytestmark = IN_MEMORY


def reasons(stage: Stage) -> list[tuple[bytes | None, str, int]]:
    found = []
    for record in stage.lab.read(stage.letters):
        letter = dead_letter_of(record.headers)
        assert not isinstance(letter, Undecodable)
        found.append((record.value, letter.reason.value, letter.attempt_count))
    return found


def run(stage: Stage, act: Any, *, attempt_count_max: int, values: tuple[bytes, ...] = (b"1", b"?", b"3")) -> list[int]:
    """The batch handler's calls over three messages, one of which cannot be read."""
    stage.write(*values)
    handled: list[int] = []
    consumer: OrderedConsumer = stage.plain(
        retry=RetryPolicy(attempt_count_max=attempt_count_max, backoff_first_ms=5, backoff_max_ms=5),
        codec=Codec(deserializer=lambda raw, _: int(raw or b"")),
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
@pytest.mark.parametrize(
    ("does_raise", "attempt_count_max", "reason"), [(False, 4, "rejected"), (True, 1, "attempts-exhausted")]
)
def test_a_rejected_or_failed_part_of_a_batch_is_no_attempt_of_those_behind_the_message_that_nobody_can_read(
    stage: Stage, attempt_count_max: int, reason: str, *, does_raise: bool
) -> None:
    def act(messages: list[ReceivedMessage], _context: Context) -> HandlerResult:
        if messages[0].value != 1:
            return None
        if does_raise:
            raise ValueError("the first is wrong")
        return Reject("the first is wrong")

    handled = run(stage, act, attempt_count_max=attempt_count_max)

    assert [1, 3] == handled
    assert [(b"1", reason, 1), (b"?", "undecodable", 0)] == reasons(stage)


@pytest.mark.parametrize("values", [(b"1", b"?", b"3"), (b"?", b"2", b"3")])
def test_what_nobody_can_read_of_a_batch_is_a_dead_letter_at_once_and_the_others_are_counted(
    stage: Stage, values: tuple[bytes, ...]
) -> None:
    handled = run(stage, lambda *_: None, attempt_count_max=1, values=values)

    assert [int(value) for value in values if value != b"?"] == handled
    assert [(b"?", "undecodable", 0)] == reasons(stage)


@pytest.mark.promise("P9")
def test_a_message_that_cannot_be_read_just_now_is_no_attempt_of_others_of_its_batch(stage: Stage) -> None:
    """A deserializer that unzips raises `BadGzipFile`, which is an `OSError`: it counts as an outage of a service."""
    stage.write(b"1", b"?", b"3")
    handled: list[int] = []

    def read(raw: bytes | None, _field: Any) -> int:
        if raw == b"?":
            raise OSError("not a gzipped file")
        return int(raw or b"0")

    consumer: OrderedConsumer = stage.plain(retry=RetryPolicy(attempt_count_max=1), codec=Codec(deserializer=read))

    @consumer.batch_handler(count_max=10)
    def note(messages: list[ReceivedMessage], _context: Context) -> HandlerResult:
        handled.extend(message.value for message in messages)
        return None

    with consumer:
        stage.wait_stored(3)

    assert [1, 3] == handled
    assert [(b"?", "attempts-exhausted", 1)] == reasons(stage)


QUICK_COUNT = 1_000
BEHIND_COUNT = 50


class Held:
    """A handler that is quick but for messages with this value: they wait for the test."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.gate = threading.Event()

    def __call__(self, message: ReceivedMessage, _context: Context) -> None:
        if message.value == b"long":
            self.begun.append(message.offset)
            assert self.gate.wait(PATIENCE_S)


@pytest.fixture
def beside_quick(stage: Stage) -> Stage:
    for n in range(QUICK_COUNT):  # so many that a thread is given dozens at once
        stage.write(b"quick", key=b"q%d" % n)
    return stage


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.gate.set()


@pytest.mark.promise("P9")
def test_a_handler_that_takes_long_keeps_no_other_key_waiting_while_workers_are_free(
    beside_quick: Stage, held: Held
) -> None:
    beside_quick.write(b"long", key=b"long")
    for n in range(BEHIND_COUNT):
        beside_quick.write(b"other", key=b"o%d" % n)
    with beside_quick.consumer(held, worker_count=4):
        beside_quick.journal.wait_for(QUICK_COUNT + 1 + BEHIND_COUNT)
        held.gate.set()


@pytest.mark.promise("P9")
def test_what_ended_is_stored_while_a_later_message_of_its_chunk_takes_long(beside_quick: Stage, held: Held) -> None:
    for n in range(BEHIND_COUNT):
        beside_quick.write(b"quick", key=b"o%d" % n)
    beside_quick.write(b"long", key=b"long")
    with beside_quick.consumer(held, worker_count=1):
        beside_quick.wait_stored(QUICK_COUNT + BEHIND_COUNT)
        held.gate.set()


@pytest.mark.slow
@pytest.mark.promise("P9")
def test_a_handler_that_takes_long_in_its_process_keeps_no_other_key_waiting_and_what_ended_is_stored(
    beside_quick: Stage, tmp_path: Path
) -> None:
    go_on = tmp_path / "go"
    consumer = beside_quick.plain(workers="processes", worker_count=2, store_interval=timedelta(milliseconds=20))
    consumer.handler(hold)
    with consumer:
        beside_quick.wait_stored(QUICK_COUNT)  # from now on dozens are handed over at once
        beside_quick.write(b"quick", key=b"before")
        beside_quick.write(bytes(go_on), b"behind", key=b"long")
        for n in range(BEHIND_COUNT):
            beside_quick.write(b"other", key=b"o%d" % n)
        try:
            wait_until(
                lambda: consumer.stats().topics[beside_quick.topic].handled == QUICK_COUNT + 1 + BEHIND_COUNT,
                within=PATIENCE_S,
                what="the other keys",
            )
            assert go_on.with_suffix(".begun").exists()
            beside_quick.wait_stored(QUICK_COUNT + 1)
        finally:
            go_on.touch()
        beside_quick.wait_stored(QUICK_COUNT + 3 + BEHIND_COUNT)


@pytest.mark.promise("P9")
def test_after_an_operators_pause_was_answered_no_further_message_is_begun(beside_quick: Stage, held: Held) -> None:
    def is_answered() -> bool:
        found = [decode_replay(record.value) for record in beside_quick.lab.read(beside_quick.requests)]
        return any(isinstance(r, ReplayRecord) and r.kind is ReplayKind.RESULT for r in found)

    pause = ReplayRecord(ReplayKind.PAUSE, "r", None, text="zoe: ticket 15")
    for n in range(BEHIND_COUNT):
        beside_quick.write(b"long", key=b"s%d" % n)
    with beside_quick.consumer(held, worker_count=1) as consumer:
        wait_until(lambda: held.begun, within=PATIENCE_S, what="the first has begun")
        beside_quick.lab.write(beside_quick.requests, encode_replay(pause), key=None, partition=0)
        wait_until(is_answered, within=PATIENCE_S, what="the pause is answered")

        held.gate.set()
        wait_until(
            lambda: consumer.stats().topics[beside_quick.topic].in_flight == 0, within=PATIENCE_S, what="nothing runs"
        )

    assert 1 == len(held.begun)
