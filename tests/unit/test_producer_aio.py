"""`AsyncTransactionalProducer` over a log in memory: the same words, awaited, with few wake-ups of the loop."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from tests.support.producer_stage import ProducerStage
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message
from txlayer.errors import (
    BrokerUnavailableError,
    ForbiddenTopicError,
    LifecycleError,
    OutcomeUnknownError,
    RetriableError,
)
from txlayer.producer.aio import AsyncTransaction, AsyncTransactionalProducer
from txlayer.producer.pipeline import PipelineState
from txlayer.producer.producer import Transaction, TransactionalProducer

ORDER = Message("orders", b"k", b"v")
HALF, OP = "txlayer.half", "txlayer.op"


class Opened:
    """A cluster in memory and one producer."""

    def __init__(self, **settings: Any) -> None:
        self.stage = ProducerStage()
        self.writer = self.stage.writer
        self.resolutions = self.stage.resolutions
        self.producer = AsyncTransactionalProducer(
            bootstrap_servers="127.0.0.1:9", group="g", connect=self.stage.connect, **settings
        )


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[Opened]:
    log = Opened(**settings)
    try:
        yield log
    finally:
        log.writer.hold(False)
        await log.producer.close()


async def until(condition: Callable[[], bool]) -> None:
    """`wait_until` beside the loop, which goes on."""
    wait = partial(wait_until, condition, within=10, what="it comes true")
    await asyncio.get_running_loop().run_in_executor(None, wait)


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 20))

    run.__name__ = test.__name__
    return run


@in_a_loop
async def test_a_cancelled_task_leaves_the_resolution_unknown() -> None:
    async with opened() as log:
        await log.producer.publish(ORDER)
        log.writer.hold(True)

        async def work() -> None:
            async with log.producer.transaction("order-2") as tx:
                tx.send("orders", value="v")
                await tx.prepare()

        task = asyncio.create_task(work())
        await until(lambda: log.writer.unreported_count() > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        log.writer.hold(False)
        await log.producer.close()
        assert [COMMIT, UNKNOWN] == log.resolutions()


@in_a_loop
async def test_a_thousand_tasks_ask_about_a_topic_once_and_wake_the_loop_few_times() -> None:
    async with opened(in_flight_max=300) as log:
        loop = asyncio.get_running_loop()
        await log.producer.start()
        wakes = 0
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(callback: Any, *args: Any, **more: Any) -> Any:
            nonlocal wakes
            wakes += "_serve" in repr(callback)
            return call_soon_threadsafe(callback, *args, **more)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment] # to count, nothing else

        async def work() -> None:
            async with log.producer.transaction() as tx:
                tx.send("orders", value="v")
                await tx.prepare()

        await asyncio.gather(*(work() for _ in range(1_000)))
        await log.producer.close()
        assert [COMMIT] * 1_000 == log.resolutions()
        assert 1 == log.stage.asked.count("orders")
        assert 500 > wakes


@in_a_loop
async def test_what_tasks_say_in_one_turn_of_the_loop_goes_out_together() -> None:
    async with opened() as log:
        ready = asyncio.Event()

        async def work() -> None:
            async with log.producer.transaction("order-1") as tx:
                tx.send("orders", value="v")
                await tx.prepare()
                await ready.wait()

        tasks = [asyncio.create_task(work()) for _ in range(20)]
        await until(lambda: len(log.writer.of(HALF)) == 20 and not log.writer.unreported_count())
        ready.set()
        await asyncio.gather(*tasks)
        await log.producer.close()
        assert 20 == len(log.resolutions())
        assert 1 == len(log.writer.of(OP))


@in_a_loop
async def test_publish_commits_messages_without_a_local_transaction() -> None:
    async with opened() as log:
        result = await log.producer.publish([ORDER, ORDER], txn_id="order-1")
        assert ("order-1", COMMIT, 1) == (result.txn_id, result.resolution, result.last_half_offset)
        results = await asyncio.gather(*(log.producer.publish(ORDER) for _ in range(20)))
        assert [COMMIT] * 20 == [r.resolution for r in results]


@in_a_loop
async def test_a_full_producer_waits_or_refuses() -> None:
    async with opened(in_flight_max=1) as log:
        log.writer.hold(True)
        first = asyncio.create_task(log.producer.publish(ORDER))
        await until(lambda: log.writer.unreported_count() == 1)
        with pytest.raises(RetriableError):
            await log.producer.publish(ORDER, block=False)
        second = asyncio.create_task(log.producer.publish(ORDER))
        await asyncio.sleep(0)
        log.writer.hold(False)
        assert COMMIT is (await first).resolution
        assert COMMIT is (await second).resolution


@in_a_loop
async def test_a_topic_that_does_not_exist_is_refused_in_the_task() -> None:
    async with opened() as log:
        with pytest.raises(ForbiddenTopicError, match="no such topic"):
            await log.producer.publish(Message("ordres"))
        assert [] == log.writer.stored


@in_a_loop
async def test_a_thread_may_say_the_resolution() -> None:
    async with opened() as log:
        async with log.producer.transaction() as tx:
            tx.send("orders", value="v")
            await tx.prepare()
            await asyncio.to_thread(tx.rollback)
        assert ROLLBACK is (await tx.result(10)).resolution


@in_a_loop
async def test_tasks_that_wait_at_a_producer_whose_thread_broke_are_told() -> None:
    log = Opened()
    producer = log.producer
    await producer.publish(ORDER)
    log.writer.hold(True)
    task = asyncio.create_task(producer.publish(ORDER))
    await until(lambda: log.writer.unreported_count() > 0)
    log.writer.poll_error = RuntimeError("a bug")
    with pytest.raises(OutcomeUnknownError):
        await task
    await until(lambda: log.writer.is_closed)
    with suppress(OutcomeUnknownError):  # its slot may be given back by now, or not
        await producer.close()


@in_a_loop
async def test_tasks_whose_start_fails_together_share_the_next_one() -> None:
    async with opened() as log:
        log.stage.failure = BrokerUnavailableError("nobody")

        async def start_again() -> None:
            with pytest.raises(BrokerUnavailableError):
                await log.producer.start()
            log.stage.failure = None
            await log.producer.start()

        await asyncio.gather(start_again(), start_again())

        # One that failed, and one that both share: another one would never be closed.
        assert 2 == log.stage.asked.count(HALF)


@in_a_loop
async def test_a_close_that_is_cancelled_goes_on() -> None:
    async with opened() as log:
        await log.producer.start()
        log.writer.hold(True)
        sending = asyncio.create_task(log.producer.publish(ORDER))
        await until(lambda: log.writer.unreported_count() == 1)
        closing = asyncio.ensure_future(log.producer.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        log.writer.hold(False)
        await sending

        await log.producer.close()  # waits for the one that goes on

        assert log.stage.is_closed


@in_a_loop
async def test_a_close_while_no_broker_answers_the_start_leaves_the_error_to_the_start() -> None:
    async with opened() as log:
        log.stage.failure = BrokerUnavailableError("nobody")
        starting = asyncio.ensure_future(log.producer.start())
        await asyncio.sleep(0)
        await log.producer.close()
        await log.producer.close()

        with pytest.raises(BrokerUnavailableError, match="nobody"):
            await starting


@in_a_loop
async def test_the_end_of_a_forked_process_leaves_its_parents_clients_alone() -> None:
    async with opened() as log:
        await log.producer.start()
        started = log.producer._ready
        assert started is not None
        started.engine.pipeline.state = PipelineState.FORKED
        await log.producer.close()  # as at the end of an `async with` block that the fork was in
        started.close_at_exit()
        assert not log.stage.is_closed
        started.engine.pipeline.state = PipelineState.OPEN
        assert COMMIT is (await log.producer.publish(ORDER)).resolution


@in_a_loop
async def test_the_loop_goes_on_while_a_client_that_asks_a_dead_broker_is_closed() -> None:
    log, closed_by = Opened(), list[int]()
    await log.producer.start()
    log.stage.close = lambda: closed_by.append(threading.get_ident())  # type: ignore[method-assign]  # to see who calls it

    await log.producer.close()

    assert 1 == len(closed_by)
    assert threading.get_ident() not in closed_by


def test_another_loop_is_refused() -> None:
    producer = Opened().producer
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(producer.publish(ORDER))
        with pytest.raises(LifecycleError, match="another event loop"):
            second.run(producer.publish(ORDER))
        first.run(producer.close())


def test_asyncio_has_no_public_word_that_threads_lack() -> None:
    for asynchronous, threaded in (
        (AsyncTransactionalProducer, TransactionalProducer),
        (AsyncTransaction, Transaction),
    ):
        words = {name for name in dir(asynchronous) if not name.startswith("_")}
        assert set() == words - set(dir(threaded))
        for word in words:
            ours = getattr(asynchronous, word)
            if callable(ours):
                theirs = inspect.signature(getattr(threaded, word)).parameters
                assert set() == set(inspect.signature(ours).parameters) - set(theirs)
