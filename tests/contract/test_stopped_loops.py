"""A coroutine handler that stops its event loop: what the others were not called for is charged to none of them (P9). Memory."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import IN_MEMORY
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.waiting import wait_until
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, encode_replay
from txlayer.core.retry import RetryPolicy

pytestmark = IN_MEMORY


class Stopping:
    """A consumer whose handler of the message `stop` does something else in the loop's thread."""

    def __init__(self, stage: Stage, act: Callable[[], None], **settings: Any) -> None:
        self.seen: list[tuple[bytes | None, int]] = []
        self._stage = stage
        self._consumer: AsyncOrderedConsumer = stage.plain(
            AsyncOrderedConsumer, store_interval=timedelta(milliseconds=20), **settings
        )

        self._act = act
        self._consumer.handler(self._handle)

    async def _handle(self, message: ReceivedMessage, context: Context) -> None:
        self.seen.append((message.value, context.attempt))
        if message.value == b"stop" and context.attempt == 1:
            self._act()

    def figures(self) -> Any:
        """What it tells of the topic."""
        return self._consumer.stats().topics[self._stage.topic]

    def run(self, until: Callable[[], object]) -> None:
        """Until something is so."""

        async def running() -> None:
            async with self._consumer:
                async with asyncio.timeout(PATIENCE_S):
                    while not until():  # noqa: ASYNC110 - another thread does it
                        await asyncio.sleep(0.01)

        asyncio.run(running())


def ask(stage: Stage, kind: ReplayKind) -> None:
    """Ask for a pause or its end."""
    stage.lab.write(stage.requests, encode_replay(ReplayRecord(kind, "request", None, text="me: x")))


@pytest.mark.fault("consumer: a coroutine handler, or a program that polls, blocks the event loop")
@pytest.mark.promise("P9")
def test_behind_an_answered_pause_no_coroutine_begins(stage: Stage) -> None:
    def act() -> None:
        stage.write(b"other", key=b"b")
        wait_until(lambda: stopping.figures().in_flight == 2, within=PATIENCE_S, what="it is given to the loop")
        ask(stage, ReplayKind.PAUSE)
        wait_until(lambda: stopping.figures().paused_partitions, within=PATIENCE_S, what="the pause")

    def is_resumed() -> bool:
        if stopping.seen and not seen and not stopping.figures().in_flight:
            seen.extend(stopping.seen)
            ask(stage, ReplayKind.RESUME)
        return len(stopping.seen) > 1

    seen: list[tuple[bytes | None, int]] = []
    stopping = Stopping(stage, act)
    stage.write(b"stop", key=b"a")
    stopping.run(is_resumed)

    assert [(b"stop", 1)] == seen
    assert [(b"stop", 1), (b"other", 1)] == stopping.seen


@pytest.mark.fault("consumer: a coroutine handler, or a program that polls, blocks the event loop")
@pytest.mark.promise("P9")
def test_what_waits_behind_a_stopped_loop_is_charged_with_no_attempt(stage: Stage) -> None:
    def act() -> None:
        wait_until(lambda: stopping.figures().failed, within=PATIENCE_S, what="it is given up")

    stopping = Stopping(
        stage,
        act,
        attempt_timeout=timedelta(milliseconds=100),
        retry=RetryPolicy(attempt_count_max=5, backoff_first_ms=1),
    )
    stage.write(b"stop", key=b"a")
    stage.write(b"other", key=b"b")
    stopping.run(lambda: stage.stored() == 2)

    assert [(b"other", 1), (b"stop", 1), (b"stop", 2)] == sorted(stopping.seen, key=str)
