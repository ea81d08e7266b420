"""A clean end that waits for handlers for longer than a lease lasts (P9)."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.retry import RetryPolicy


@pytest.mark.promise("P9")
def test_a_coroutine_within_its_time_is_not_cancelled_while_close_waits_for_it() -> None:
    """A thirtieth of the defaults: a lease of 2 s (60 s); the handler takes 4 s (2 min), `close_timeout` is 10 s (5 min)."""
    stage = Stage(MemoryLab())
    stage.write(b"1", key=b"a")
    told: list[str] = []

    async def main() -> None:
        has_begun = asyncio.Event()
        consumer: AsyncOrderedConsumer = stage.plain(
            AsyncOrderedConsumer,
            retry=RetryPolicy(attempt_count_max=4),
            lease_renewal=timedelta(seconds=0.65),
            lease_expiry=timedelta(seconds=2),
            close_timeout=timedelta(seconds=10),
        )

        @consumer.handler
        async def handle(_message: ReceivedMessage, context: Context) -> Any:
            told.append(f"attempt {context.attempt} began")
            has_begun.set()
            try:
                await asyncio.sleep(4)
            except asyncio.CancelledError as exc:
                told.append(f"cancelled: {exc}")
                raise
            told.append("ended")

        await consumer.start()
        await has_begun.wait()
        await consumer.close()

    asyncio.run(main())
    stored = stage.stored()
    stage.close()
    assert (["attempt 1 began", "ended"], 1) == (told, stored)


def test_close_waits_until_the_last_cancelled_coroutine_has_cleaned_up() -> None:
    """Within the half second that it grants: a coroutine that cleans up for 0.2 s, begun before one that ends at once."""
    stage = Stage(MemoryLab())
    stage.write(b"1", key=b"a")
    stage.write(b"1", key=b"b")
    told: list[str] = []

    async def main() -> None:
        has_begun = asyncio.Event()
        consumer: AsyncOrderedConsumer = stage.plain(AsyncOrderedConsumer, close_timeout=timedelta(seconds=0.1))

        @consumer.handler
        async def handle(message: ReceivedMessage, _context: Context) -> Any:
            told.append("began")
            if len(told) == 2:
                has_begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                if message.key == b"a":
                    await asyncio.sleep(0.2)
                    told.append("cleaned up")

        await consumer.start()
        await has_begun.wait()
        await consumer.close()

    asyncio.run(main())
    stage.close()
    assert "cleaned up" in told
