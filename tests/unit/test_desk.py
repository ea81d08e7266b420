"""The desk of a consumer whose program takes messages itself, when the time of what lies there ends."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, Lease, ReceivedMessage
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.pools import Caller, Chunk, ThreadPool
from txlayer.consumer.process_pool import SentRecord
from txlayer.consumer.pull import MARGIN_S, Desk
from txlayer.core.key_queue import Item
from txlayer.core.retry import NotBegun, Retry
from txlayer.errors import LifecycleError

LATE = Retry(reason="no answer in time")


def context_of(lease: Lease, *, attempt_timeout_s: float = 300.0) -> Context:
    message = ReceivedMessage(SentRecord(("orders", 0, 0), None, b"", None, (0, 0)))
    return Context(message, 1, time.monotonic() + attempt_timeout_s, lease)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("is_lost", [False, True])
def test_what_nobody_took_before_the_end_of_its_lease_had_no_attempt_and_is_not_handed_out(is_lost: bool) -> None:
    desk, lease = Desk(), Lease("g", "orders", 0, token=1)
    lease.valid_until = time.monotonic() + MARGIN_S  # it was not renewed for long
    context = context_of(lease)

    result = desk.hand_over(context.message, context)
    if is_lost:
        lease.lost.set()

    assert NotBegun() == result
    assert desk.take(0, has_ended=bool) is None


@pytest.mark.promise("P9")
def test_a_task_whose_lease_is_lost_ends_and_its_message_is_answered_too_late() -> None:
    async def work() -> object:
        desk, lease = Desk(), Lease("g", "orders", 0, token=1)
        context = context_of(lease)
        handler = asyncio.create_task(desk.hand_over_async(context.message, context))
        pulled = await desk.take_async(None, has_ended=bool)
        assert pulled is not None
        lease.lost.set()
        desk.give_back()
        with pytest.raises(LifecycleError, match="its time is over"):
            pulled.ack()
        await asyncio.wait([handler], timeout=10)
        return handler.result()

    assert NotBegun() == asyncio.run(work())


def test_a_program_that_blocks_its_loop_answers_too_late() -> None:
    async def work() -> object:
        desk = Desk()
        context = context_of(Lease("g", "orders", 0, token=1), attempt_timeout_s=0.1)
        handler = asyncio.create_task(desk.hand_over_async(context.message, context))
        pulled = await desk.take_async(None, has_ended=bool)
        assert pulled is not None
        while context.remaining_s > 0:
            """It computes."""
        with pytest.raises(LifecycleError, match="its time is over"):
            pulled.ack()
        return await handler

    assert LATE == asyncio.run(work())


@pytest.mark.parametrize(("is_lost", "said"), [(False, LATE), (True, NotBegun())])
def test_what_is_answered_before_its_thread_sees_the_end_of_its_time_says_why_it_failed(
    is_lost: bool, said: Retry | NotBegun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.consumer.pull.LOOK_S", 60)
    desk, lease = Desk(), Lease("g", "orders", 0, token=1)
    context = context_of(lease)
    with ThreadPoolExecutor(1) as threads:
        handler = threads.submit(desk.hand_over, context.message, context)
        pulled = desk.take(10, has_ended=bool)
        assert pulled is not None
        if is_lost:
            lease.lost.set()
        else:
            lease.valid_until = 0.0
        with pytest.raises(LifecycleError, match="its time is over"):
            pulled.ack()
        assert said == handler.result(10)


def test_a_program_that_blocks_its_loop_gets_no_message_whose_time_is_half_over() -> None:
    async def work() -> object:
        desk = Desk()
        context = context_of(Lease("g", "orders", 0, token=1), attempt_timeout_s=0.02)
        handler = asyncio.create_task(desk.hand_over_async(context.message, context))
        await asyncio.sleep(0)
        while time.monotonic() < desk._waiting[0].give_back_at:
            """It computes."""
        assert await desk.take_async(0, has_ended=bool) is None
        return await handler

    assert NotBegun() == asyncio.run(work())


@pytest.mark.promise("P9")
def test_a_thread_that_was_kept_from_running_loses_no_attempt_of_a_message_that_nobody_took() -> None:
    desk, timeout_s = Desk(), 0.3
    handlers = HandlerSet(is_async=False)
    handlers.add(desk.hand_over, topics=(), tags="*", retry=None)
    caller = Caller(handlers.routes(("orders",)), attempt_timeout_s=timeout_s)
    pool = ThreadPool(caller.run, worker_count=1, attempt_timeout_s=timeout_s, hung_max=4, is_idle=desk.is_idle)
    record = SentRecord(("orders", 0, 0), None, b"", None, (0, 0))
    chunk = Chunk(None, Lease("g", "orders", 0), [Item(record, 0, None, 1)])
    pool.submit(chunk)
    wait_until(lambda: bool(desk._waiting), within=10, what="it waits to be taken")
    with desk._lock:  # keeps its thread, as code in C that holds the interpreter's lock does
        wait_until(lambda: time.monotonic() > chunk.begun_at + timeout_s, within=10, what="its time is over")
        assert [] == pool.take()

    pool.wait(10)
    ((failed,),) = [outcome.failed for outcome in pool.take()]
    pool.close(10)

    assert (NotBegun(), 0) == (failed.result, pool.hung_count)


def test_a_worker_is_idle_unless_its_message_is_taken_and_not_answered() -> None:
    async def work() -> list[bool]:
        desk = Desk()
        context = context_of(Lease("g", "orders", 0, token=1))
        handler = asyncio.create_task(desk.hand_over_async(context.message, context))
        found = [desk.is_idle(handler)]
        await asyncio.sleep(0)
        found.append(desk.is_idle(handler))
        pulled = await desk.take_async(None, has_ended=bool)
        assert pulled is not None
        found.append(desk.is_idle(handler))
        pulled.ack()
        found.append(desk.is_idle(handler))
        await handler
        await asyncio.sleep(0)
        return [*found, desk.is_idle(handler)]

    assert [False, True, False, True, False] == asyncio.run(work())


@pytest.mark.promise("P9")
def test_a_task_whose_lease_was_not_renewed_begins_anew_and_its_message_is_not_handed_out() -> None:
    async def work() -> object:
        desk, lease = Desk(), Lease("g", "orders", 0, token=1)
        context = context_of(lease)
        handler = asyncio.create_task(desk.hand_over_async(context.message, context))
        await asyncio.sleep(0)
        lease.valid_until = 0.0
        assert desk.is_idle(handler)
        assert await desk.take_async(0, has_ended=bool) is None
        return await handler

    assert NotBegun() == asyncio.run(work())
