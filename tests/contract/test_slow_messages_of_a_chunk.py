"""A message that takes long, handed over with many quick ones: it holds up no other key, and what ended is stored (P9)."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.consumers import PATIENCE_S, Stage
from tests.support.lab_memory import MemoryLab
from tests.support.process_handlers import hold
from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, decode_replay, encode_replay

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
def stage() -> Iterator[Stage]:
    made = Stage(MemoryLab())
    for n in range(QUICK_COUNT):  # so many that a thread is given dozens at once
        made.write(b"quick", key=b"q%d" % n)
    yield made
    made.close()


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.gate.set()


@pytest.mark.promise("P9")
def test_a_handler_that_takes_long_keeps_no_other_key_waiting_while_workers_are_free(stage: Stage, held: Held) -> None:
    stage.write(b"long", key=b"long")
    for n in range(BEHIND_COUNT):
        stage.write(b"other", key=b"o%d" % n)
    with stage.consumer(held, worker_count=4):
        stage.journal.wait_for(QUICK_COUNT + 1 + BEHIND_COUNT)
        held.gate.set()


@pytest.mark.promise("P9")
def test_what_ended_is_stored_while_a_later_message_of_its_chunk_takes_long(stage: Stage, held: Held) -> None:
    for n in range(BEHIND_COUNT):
        stage.write(b"quick", key=b"o%d" % n)
    stage.write(b"long", key=b"long")
    with stage.consumer(held, worker_count=1):
        stage.wait_stored(QUICK_COUNT + BEHIND_COUNT)
        held.gate.set()


@pytest.mark.promise("P9")
def test_a_handler_that_takes_long_in_its_process_keeps_no_other_key_waiting_and_what_ended_is_stored(
    stage: Stage, tmp_path: Path
) -> None:
    go_on = tmp_path / "go"
    consumer = stage.plain(workers="processes", worker_count=2, store_interval=timedelta(milliseconds=20))
    consumer.handler(hold)
    with consumer:
        stage.wait_stored(QUICK_COUNT)  # from now on dozens are handed over at once
        stage.write(b"quick", key=b"before")
        stage.write(bytes(go_on), b"behind", key=b"long")
        for n in range(BEHIND_COUNT):
            stage.write(b"other", key=b"o%d" % n)
        try:
            wait_until(
                lambda: consumer.stats().topics[stage.topic].handled == QUICK_COUNT + 1 + BEHIND_COUNT,
                within=PATIENCE_S,
                what="the other keys",
            )
            assert go_on.with_suffix(".begun").exists()
            stage.wait_stored(QUICK_COUNT + 1)
        finally:
            go_on.touch()
        stage.wait_stored(QUICK_COUNT + 3 + BEHIND_COUNT)


@pytest.mark.promise("P9")
def test_after_an_operators_pause_was_answered_no_further_message_is_begun(stage: Stage, held: Held) -> None:
    def is_answered() -> bool:
        found = [decode_replay(record.value) for record in stage.lab.read(stage.requests)]
        return any(isinstance(r, ReplayRecord) and r.kind is ReplayKind.RESULT for r in found)

    pause = ReplayRecord(ReplayKind.PAUSE, "r", None, text="zoe: ticket 15")
    for n in range(BEHIND_COUNT):
        stage.write(b"long", key=b"s%d" % n)
    with stage.consumer(held, worker_count=1) as consumer:
        wait_until(lambda: held.begun, within=PATIENCE_S, what="the first has begun")
        stage.lab.write(stage.requests, encode_replay(pause), key=None, partition=0)
        wait_until(is_answered, within=PATIENCE_S, what="the pause is answered")

        held.gate.set()
        wait_until(lambda: consumer.stats().topics[stage.topic].in_flight == 0, within=PATIENCE_S, what="nothing runs")

    assert 1 == len(held.begun)
