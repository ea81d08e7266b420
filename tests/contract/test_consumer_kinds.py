"""Consumers of other kinds, dead letters that are replayed, keys that are parked; over memory and over real Kafka."""

import asyncio
import errno
import multiprocessing.context
import os
import threading
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.process_handlers import die_always, die_once, fail_and_say_where, look
from tests.support.waiting import wait_until
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, decode_replay, encode_replay
from txlayer.core.messages import Undecodable
from txlayer.core.retry import AfterExhausted, HandlerResult, RetryPolicy
from txlayer.errors import ConfigError

PARKING = RetryPolicy(attempt_count_max=2, backoff_first_ms=5, backoff_max_ms=10, after_exhausted=AfterExhausted.PARK)


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fault("consumer: a handler process dies, and the machine cannot start another")
@pytest.mark.promise("P9")
@OF_HANDLERS
def test_a_process_that_cannot_be_started_just_then_stops_no_key_for_good(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Any = multiprocessing.context.SpawnProcess.start
    starts: list[bool] = []

    def start_or_not(process: Any) -> None:
        starts.append(len(starts) != 1)
        if not starts[-1]:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", start_or_not)
    stage.write(b"deadly")
    stage.write(b"1", key=b"other")
    consumer = stage.plain(workers="processes", worker_count=1)
    consumer.handler(die_once)

    with consumer:
        stage.wait_stored(2)

    assert [True, False, True] == starts


@pytest.mark.fault("consumer: the machine cannot start a thread for handlers")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("workers", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@OF_HANDLERS
def test_a_thread_that_cannot_be_started_just_then_ends_no_consumer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    start: Any = threading.Thread.start
    starts: list[bool] = []

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name.startswith(("txlayer-handler", "txlayer-process")):
            starts.append(len(starts) > 0)
            if not starts[-1]:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    stage.write(b"1")
    consumer = stage.plain(workers=workers, worker_count=1)
    consumer.handler(look)

    with consumer:
        stage.wait_stored(1)

    assert [False, True] == starts


@pytest.mark.parametrize("workers", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@OF_HANDLERS
def test_how_long_each_attempt_took_is_counted_by_size(stage: Stage, workers: str) -> None:
    stage.write(b"0", b"1", b"2", b"3")
    consumer = stage.plain(workers=workers, worker_count=1)
    consumer.handler(look)

    with consumer:
        stage.wait_stored(4)

    figures = consumer.stats().topics[stage.topic]
    assert figures.attempt_durations is not None
    bounds, counts, total = figures.attempt_durations
    assert (4, 4, len(bounds) + 1) == (figures.attempts, counts[-1], len(counts))
    assert figures.attempt_s == total > 0


@pytest.mark.slow
@pytest.mark.promise("P9")
@OF_HANDLERS
def test_a_message_that_always_kills_its_process_becomes_a_dead_letter_and_its_neighbours_do_not(stage: Stage) -> None:
    for n in range(10):
        stage.write(b"%d" % n, key=b"k%d" % n)
    stage.write(b"deadly")
    for n in range(10):
        stage.write(b"%d" % n, key=b"l%d" % n)
    consumer = stage.plain(workers="processes", worker_count=1)
    consumer.handler(die_always)

    with consumer:
        stage.wait_for_letters([b"deadly"])
        stage.wait_stored(21)

    figures = consumer.stats().topics[stage.topic]
    assert (20, 1) == (figures.handled, figures.dead_lettered)


@pytest.mark.slow
@OF_HANDLERS
def test_what_a_handler_in_a_process_raises_stands_in_the_dead_letter(stage: Stage) -> None:
    stage.write(b"0")
    consumer = stage.plain(workers="processes", worker_count=1)
    consumer.handler(fail_and_say_where)

    with consumer:
        stage.wait_for_letters([b"0"])

    (letter,) = stage.lab.read(stage.letters)
    told = dict(letter.headers)["txl-dlq"] or b""
    assert b"|ValueError|" in told
    assert f"0 of {stage.group} in ".encode() in told
    assert str(os.getpid()).encode() not in told


@OF_HANDLERS
def test_a_handler_that_cannot_go_to_another_process_is_a_wrong_setting(stage: Stage) -> None:
    consumer = stage.plain(workers="processes")
    consumer.handler(lambda *_: None)

    with pytest.raises(ConfigError, match="cannot go to another process"):
        consumer.start()


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_coroutines_run_side_by_side_and_in_order_by_key(stage: Stage) -> None:
    for n in range(5):
        for key in range(20):
            stage.write(b"%d" % n, key=b"k%d" % key)
    seen: dict[bytes | None, list[bytes]] = {}
    together = most = 0
    are_many = asyncio.Event()

    async def act(consumer: AsyncOrderedConsumer, message: ReceivedMessage, _: Context) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        if together >= 10:
            are_many.set()
        await are_many.wait()
        await asyncio.sleep(0)
        seen.setdefault(message.key, []).append(message.value)
        together -= 1
        if sum(map(len, seen.values())) == 100:
            consumer.stop()

    stage.run_tasks(act, in_flight_max=20)

    assert {b"k%d" % key: [b"%d" % n for n in range(5)] for key in range(20)} == seen
    assert 10 <= most <= 20
    assert 100 == stage.stored()


@OF_HANDLERS
def test_a_plain_handler_would_stop_the_loop_and_is_refused(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="event loop"):
        stage.plain(AsyncOrderedConsumer).handler(print)


# --- dead letters -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("P9")
def test_a_parked_keys_messages_follow_and_replay_restores_the_order(stage: Stage) -> None:
    stage.write(b"0", b"1", b"2", key=b"bad")
    stage.write(b"fine", key=b"good")
    is_mended: list[bool] = []

    def act(message: ReceivedMessage, _: Context) -> HandlerResult:
        if message.key == b"bad" and not is_mended:
            raise ValueError("not mended")
        return None

    with stage.consumer(act, retry=PARKING) as consumer:
        stage.wait_for_letters([b"0", b"1", b"2"])
        stage.wait_stored(4)
        is_mended.append(True)
        stage.journal.seen.clear()
        ask_for_replay(stage, b"bad", [record.offset for record in stage.lab.read(stage.letters)])
        wait_until(lambda: len(results(stage)) == 3, within=PATIENCE_S, what="three results")
        stage.write(b"3", key=b"bad")
        stage.wait_stored(5)
        assert 0 == consumer.stats().topics[stage.topic].parked_keys

    assert [b"0", b"1", b"2", b"3"] == stage.journal.values(b"bad")
    assert ["handled"] * 3 == results(stage)


def ask_for_replay(stage: Stage, key: bytes, offsets: list[int]) -> None:
    """Ask for the replay of dead letters."""
    for offset in offsets:
        record = ReplayRecord(ReplayKind.REPLAY, "request", offset, text="me: mended")
        stage.lab.write(stage.requests, encode_replay(record), key=key)


def results(stage: Stage) -> list[str]:
    """What became of requests."""
    found = [decode_replay(record.value) for record in stage.lab.read(stage.requests)]
    return [
        record.outcome.value for record in found if not isinstance(record, Undecodable) and record.outcome is not None
    ]
