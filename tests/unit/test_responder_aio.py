"""The asyncio producer that answers: coroutine functions on its loop, plain ones beside it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fake_barrier import FakeBarrier
from tests.support.producer_stage import PATIENCE_S, ProducerStage, limit, question, refusal
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, CheckRecord, Message, Resolution
from txlayer.errors import OpenTransactionLimitError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.questions import RefusedResolution


class Answerer:
    """An asyncio producer on a log in memory."""

    def __init__(self, **settings: Any) -> None:
        self.stage = ProducerStage()
        self.producer = AsyncTransactionalProducer(
            bootstrap_servers="127.0.0.1:9", group="g", connect=self.stage.connect, **settings
        )

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop run until it is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what it looks at belongs to another thread
                await asyncio.sleep(0.005)

    async def ask(self, *checks: CheckRecord) -> None:
        """Beside the loop, which goes on."""
        await asyncio.to_thread(self.stage.ask, *checks)

    async def answered(self, count: int) -> list[Resolution]:
        """The first `count` answers."""
        await self.until(lambda: self.stage.writer.stored and len(self.stage.resolutions()) >= count)
        return self.stage.resolutions()


def test_a_coroutine_function_runs_on_the_loop() -> None:
    threads: list[threading.Thread] = []

    async def check(_: CheckRequest) -> Resolution:
        threads.append(threading.current_thread())
        await asyncio.sleep(0)
        return COMMIT

    async def run() -> None:
        answerer = Answerer(check=check)
        assert answerer.producer.responder_stats() is None
        async with answerer.producer:
            await answerer.ask(question("a"), question("b"))
            assert [COMMIT, COMMIT] == await answerer.answered(2)
            stats = answerer.producer.responder_stats()
            assert stats is not None
            assert {COMMIT: 2} == stats.answered

    asyncio.run(run())
    assert {threading.main_thread()} == set(threads)


def test_a_plain_function_does_not_block_the_loop() -> None:
    may_end = threading.Event()

    def check(_: CheckRequest) -> Resolution:
        may_end.wait(PATIENCE_S)
        return ROLLBACK

    async def run() -> None:
        answerer = Answerer(check=check)
        async with answerer.producer:
            await answerer.ask(question())
            await asyncio.sleep(0.05)
            may_end.set()
            assert [ROLLBACK] == await answerer.answered(1)

    asyncio.run(run())


def test_a_function_that_hides_a_coroutine_is_unknown() -> None:
    async def later(_: CheckRequest) -> Resolution:
        return COMMIT

    def hidden(request: CheckRequest) -> Any:
        return later(request)

    async def run() -> None:
        answerer = Answerer(check=hidden)
        async with answerer.producer:
            await answerer.ask(question())
            assert [UNKNOWN] == await answerer.answered(1)

    asyncio.run(run())


def test_an_asynchronous_barrier_is_awaited() -> None:
    async def run() -> None:
        barrier = FakeBarrier(row=ROLLBACK, is_async=True)
        answerer = Answerer(barrier=barrier)
        async with answerer.producer:
            await answerer.ask(question("a"), question("b"))
            assert [ROLLBACK] * 2 == await answerer.answered(2)
        assert ["resolve_many"] == barrier.words

    asyncio.run(run())


def test_close_waits_for_the_task_that_answers() -> None:
    begun = threading.Event()

    async def check(_: CheckRequest) -> Resolution:
        begun.set()
        await asyncio.sleep(0.2)
        return COMMIT

    async def run() -> None:
        answerer = Answerer(check=check)
        await answerer.producer.start()
        await answerer.ask(question())
        await answerer.until(begun.is_set)
        await answerer.producer.close()
        assert [COMMIT] == answerer.stage.resolutions()

    asyncio.run(run())


def test_limits_and_refusals_reach_the_loop() -> None:
    told: list[tuple[RefusedResolution, threading.Thread]] = []

    async def run() -> None:
        answerer = Answerer(
            check=lambda _: COMMIT, on_refused=lambda refused: told.append((refused, threading.current_thread()))
        )
        order = Message("orders", b"k", b"v")
        async with answerer.producer as producer:
            await answerer.ask(limit("on"), refusal("late"))
            await answerer.until(lambda: told)
            await asyncio.sleep(0.02)
            for enter in (producer.publish(order), producer.submit(order)):
                with pytest.raises(OpenTransactionLimitError):
                    await enter
            with pytest.raises(OpenTransactionLimitError):
                producer.transaction()

    asyncio.run(run())
    ((refused, thread),) = told
    assert ("late", threading.main_thread()) == (refused.txn_id, thread)
