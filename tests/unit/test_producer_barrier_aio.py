"""What the end of a joined local transaction means in an event loop: the same as in a thread."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.fake_barrier import FakeBarrier
from tests.support.local_ends import COMMITTED, ShopError, each_end
from tests.support.producer_stage import ProducerStage
from txlayer.adapters.ports import LocalState
from txlayer.core.messages import COMMIT, Message, Resolution
from txlayer.errors import LifecycleError, TxLayerError, UsageError
from txlayer.producer.aio import AsyncTransactionalProducer

ORDER = Message("orders", b"k", b"v")
HALF = "txlayer.half"


def run_async(barrier: FakeBarrier, use: Any) -> list[Resolution]:
    """Run `use(producer)` in a loop; what was said."""
    stage = ProducerStage()

    async def main() -> None:
        producer = AsyncTransactionalProducer(
            bootstrap_servers="127.0.0.1:9", group="g", connect=stage.connect, barrier=barrier
        )
        async with producer:
            await use(producer)

    asyncio.run(main())
    return stage.resolutions()


@each_end
@pytest.mark.parametrize("is_submitted", [False, True], ids=["block", "submitted"])
def test_the_database_decides_in_a_loop_too(
    *,
    is_submitted: bool,
    state: LocalState,
    has_failed: bool,
    row: Any,
    expected: Resolution,
    is_misfit: bool,
    asked: list[str],
) -> None:
    barrier = FakeBarrier(row=row, is_async=True)

    async def local_transaction(tx: Any) -> None:
        await tx.join("session")
        barrier.joined.state = state
        if has_failed:
            raise ShopError("mine")

    async def use(producer: AsyncTransactionalProducer) -> None:
        try:
            if is_submitted:
                await (await producer.submit(ORDER, local_transaction))
            else:
                async with producer.transaction() as tx:
                    tx.send("orders", value="v")
                    await local_transaction(tx)
        except (ShopError, LifecycleError) as exc:
            assert isinstance(exc, ShopError if has_failed else LifecycleError)  # noqa: PT017 - which one is the subject
            assert has_failed or is_misfit
        else:
            assert not has_failed
            assert not is_misfit

    assert [expected] == run_async(barrier, use)
    assert ["check", "write", *asked] == barrier.words


def test_a_cancelled_task_whose_local_transaction_is_committed_commits() -> None:
    barrier = FakeBarrier(is_async=True)

    async def use(producer: AsyncTransactionalProducer) -> None:
        joined = asyncio.Event()

        async def work() -> None:
            async with producer.transaction() as tx:
                tx.send("orders", value="v")
                await tx.join("session")
                barrier.joined.state = COMMITTED
                joined.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await joined.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert [COMMIT] == run_async(barrier, use)


def test_the_async_barrier_refuses_before_anything_is_sent() -> None:
    barrier = FakeBarrier(is_async=True, refusal=UsageError("autocommit"))

    async def use(producer: AsyncTransactionalProducer) -> None:
        with pytest.raises(TxLayerError, match="autocommit"):  # noqa: PT012 - the block is the subject
            async with producer.transaction() as tx:
                tx.send("orders", value="v")
                await tx.join("session")

    assert [] == run_async(barrier, use)
