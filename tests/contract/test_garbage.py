"""P11: what a failed attempt held is freed when it has been answered for, without a look of Python's garbage collector."""

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar
from weakref import WeakSet

import pytest

from tests.contract.conftest import IN_MEMORY
from tests.support.consumers import PATIENCE_S, Gate, Stage
from tests.support.waiting import wait_until
from txlayer import Codec
from txlayer.consumer import aio
from txlayer.core.retry import RetryPolicy

pytestmark = [IN_MEMORY, pytest.mark.promise("P11")]


class Body:
    """What a handler, or a deserializer, has in hand."""

    made_count = 0
    alive: ClassVar[WeakSet[Any]] = WeakSet()

    def __init__(self) -> None:
        Body.made_count += 1
        self.alive.add(self)


@pytest.fixture(autouse=True)
def _neither_collector_nor_log_records() -> Iterator[None]:
    Body.made_count = 0
    Body.alive.clear()
    logging.disable()  # a log record that pytest keeps would keep an error's frames
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


def fail(*_: Any) -> None:
    """As a handler that has read its message, or a deserializer."""
    body = Body()
    try:
        raise KeyError("a cause")
    except KeyError as exc:
        raise ValueError(f"{body} is bad") from exc


def read_some(value: bytes | None, *_: Any) -> Body:
    """As a deserializer that cannot read each second message."""
    body = Body()
    if int(value or b"") % 2:
        raise ValueError("it cannot be decoded")
    return body


def write(stage: Stage) -> None:
    """Ten messages of five keys."""
    for number in range(10):
        stage.write(b"%d" % number, key=b"k%d" % (number % 5))


def all_are_freed(stage: Stage) -> None:
    """Wait until all messages are dead letters, or handled, and what was made is freed."""
    stage.wait_stored(10)
    assert Body.made_count >= 10
    wait_until(lambda: not Body.alive, within=5.0, what=f"{len(Body.alive)} of {Body.made_count} freed")


def test_of_a_handler_that_raises_in_a_thread(stage: Stage) -> None:
    write(stage)
    consumer = stage.plain()
    consumer.handler(fail)
    with consumer:
        all_are_freed(stage)


@pytest.mark.parametrize("deserializers", [{}, {"codec": Codec(deserializer=lambda value, *_: value)}])
def test_of_a_handler_that_raises_as_a_task(stage: Stage, deserializers: dict[str, Any]) -> None:
    write(stage)

    async def act(*_: Any) -> None:
        fail()

    stage.run_tasks(act, until=lambda _: all_are_freed(stage), **deserializers)


def test_of_a_deserializer_that_raises(stage: Stage) -> None:
    write(stage)
    consumer = stage.plain(codec=Codec(deserializer=read_some))
    consumer.handler(lambda *_: None)
    with consumer:
        all_are_freed(stage)


@pytest.mark.parametrize("act", [lambda *_: None, fail])
def test_of_a_deserializer_that_raises_for_the_rest_of_a_batch(stage: Stage, act: Any) -> None:
    for number in range(10):
        stage.write(b"%d" % number)
    consumer = stage.plain(codec=Codec(deserializer=read_some))
    consumer.batch_handler(act)
    with consumer:
        all_are_freed(stage)


def test_of_a_handler_that_raises_when_it_was_given_up(stage: Stage) -> None:
    stage.write(b"0")
    gate = Gate()

    def act(*given: Any) -> None:
        gate(*given)
        fail()

    consumer = stage.plain(attempt_timeout=timedelta(milliseconds=200), retry=RetryPolicy(attempt_count_max=1))
    consumer.handler(act)
    with consumer:
        stage.wait_stored(1)
        gate.is_open.set()
        wait_until(lambda: Body.made_count, within=PATIENCE_S, what="it came back")
        wait_until(lambda: not Body.alive, within=5.0, what="what it held is freed")


def test_of_a_task_that_raises_when_it_was_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "CANCEL_S", 0.1)
    stage.write(b"0")
    is_open = threading.Event()

    async def act(*_: Any) -> None:
        while not is_open.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        fail()

    def look(_: object) -> None:
        stage.wait_stored(1)
        is_open.set()
        wait_until(lambda: Body.made_count, within=PATIENCE_S, what="it came back")
        wait_until(lambda: not Body.alive, within=5.0, what="what it held is freed")

    retry = RetryPolicy(attempt_count_max=1)
    stage.run_tasks(act, until=look, attempt_timeout=timedelta(milliseconds=200), retry=retry)
