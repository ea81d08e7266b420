"""Producers that answer, with threads and with asyncio: over a log in memory, with a member whose records the test says."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from tests.support.fake_barrier import FakeBarrier
from tests.support.producer_stage import ORDER, PATIENCE_S, ProducerStage, commit, limit, question, refusal, stats_of
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, CheckRecord, Message, Resolution, Source
from txlayer.errors import OpenTransactionLimitError, OutcomeUnknownError, UsageError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import RefusedResolution

# --- answering --------------------------------------------------------------------------------------------------------


def test_a_producer_that_never_sends_answers_from_its_start_on(stage: ProducerStage) -> None:
    producer = stage.producer(check=commit)
    assert producer.responder_stats() is None
    producer.start()

    stage.ask(question("a", number=3, partition=2))

    (answer,) = stage.answers(1)
    assert (COMMIT, "a/0000000a", 17, Source.CHECK, 3) == (
        answer.resolution,
        answer.key,
        answer.last_offset,
        answer.source,
        answer.check_number,
    )
    assert [2] == [record.partition() for record in stage.writer.of("txlayer.op")]


def test_without_a_handler_and_a_barrier_nobody_joins_a_group(stage: ProducerStage) -> None:
    producer = stage.producer()
    producer.publish(ORDER)

    assert [] == stage.members
    assert producer.responder_stats() is None


def test_answers_of_one_partition_travel_together(stage: ProducerStage) -> None:
    producer = stage.producer(barrier=FakeBarrier(row=ROLLBACK))
    producer.start()

    stage.ask(*(question(str(n), partition=n % 2) for n in range(600)))

    found = stage.answers(600)
    assert {(ROLLBACK, Source.BARRIER)} == {(a.resolution, a.source) for a in found}
    assert len(stage.writer.of("txlayer.op")) <= 4


def test_a_barrier_is_asked_for_many_at_once(stage: ProducerStage) -> None:
    barrier = FakeBarrier(row=COMMIT)
    stage.producer(barrier=barrier).start()

    stage.ask(*(question(str(n)) for n in range(10)))

    stage.answers(10)
    assert [("resolve_many", 10, "g")] == barrier.calls


@pytest.mark.fault("check handler: the machine cannot start a thread for it")
@pytest.mark.promise("P7")
def test_a_thread_that_cannot_be_started_just_then_silences_no_responder(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Any = threading.Thread.start
    refused: list[str] = []

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name.startswith("txlayer-check") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    producer = stage.producer(barrier=FakeBarrier(row=COMMIT))
    producer.start()

    stage.ask(question("a"))
    wait_until(lambda: refused, within=PATIENCE_S, what="a thread that is refused")
    wait_until(lambda: stats_of(producer).skipped.get("stale"), within=PATIENCE_S, what="a question that is dropped")
    stage.ask(question("a", number=2))

    (answer,) = stage.answers(1)
    assert (COMMIT, 2) == (answer.resolution, answer.check_number)


def test_a_barrier_that_raises_is_unknown(stage: ProducerStage) -> None:
    stage.producer(barrier=FakeBarrier(row=ConnectionError("down"))).start()

    stage.ask(question("a"), question("b"))

    assert ["barrier: ConnectionError"] * 2 == [a.reason for a in stage.answers(2)]


def test_an_instance_whose_handler_hangs_for_good_lets_others_answer(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.producer.check_handlers.LOST_COUNT_MAX", 0)
    may_end = threading.Event()

    def check(_: CheckRequest) -> Resolution:
        may_end.wait(PATIENCE_S)
        return COMMIT

    # So long that the answer to the second question, which does not hang, is not late on a busy machine.
    settings = {"check_timeout": timedelta(milliseconds=500), "check_workers": 1}
    stage.producer(check=check, **settings).start()
    first = stage.member()
    stage.ask(question("a"))
    wait_until(lambda: first.is_closed, within=PATIENCE_S, what="it left the group")
    assert 1 == len(stage.members)

    may_end.set()
    stage.ask(question("b"), member=1)

    assert [UNKNOWN, COMMIT] == [a.resolution for a in stage.answers(2)]


@pytest.mark.fault("check handler: is slow, silent, unknown, answers garbage, or changes its answer")
def test_a_late_result_is_dropped(stage: ProducerStage) -> None:
    may_end = threading.Event()

    def check(_: CheckRequest) -> Resolution:
        may_end.wait(PATIENCE_S)
        return COMMIT

    producer = stage.producer(check=check, check_timeout=timedelta(milliseconds=50))
    producer.start()
    stage.ask(question())
    stage.answers(1)

    may_end.set()
    wait_until(lambda: stats_of(producer).late == 1, within=PATIENCE_S, what="the late result")

    assert [UNKNOWN] == stage.resolutions()


def test_a_full_client_keeps_answers_for_later(stage: ProducerStage) -> None:
    tries: list[str] = []
    stage.writer.refuse_at_once = tries.append  # and then it has no room
    stage.writer.room = 0
    stage.producer(check=commit).start()
    stage.ask(question())
    wait_until(lambda: len(tries) > 1, within=PATIENCE_S, what="it was tried again")

    stage.writer.room = 10

    assert [COMMIT] == [a.resolution for a in stage.answers(1)]


def test_an_answer_that_is_not_stored_is_counted_as_lost(stage: ProducerStage) -> None:
    stage.writer.refuse = lambda _: OutcomeUnknownError("timed out")
    producer = stage.producer(check=commit)
    producer.start()

    stage.ask(question())

    wait_until(lambda: stats_of(producer).lost == 1, within=PATIENCE_S, what="the loss")
    assert 0 == stats_of(producer).stored


def test_an_answer_that_the_client_refuses_at_once_is_lost_and_the_next_one_is_written(stage: ProducerStage) -> None:
    producer = stage.producer(check=commit)
    producer.start()
    stage.writer.refuse_at_once = lambda _topic: ValueError("as planned")
    stage.ask(question("a"))
    wait_until(lambda: stats_of(producer).lost == 1, within=PATIENCE_S, what="the loss")

    stage.writer.refuse_at_once = lambda _topic: None
    stage.ask(question("b"))

    assert ["b/0000000a"] == [answer.key for answer in stage.answers(1)]


# --- limits and refusals ----------------------------------------------------------------------------------------------


def entries(producer: TransactionalProducer) -> list[Callable[[], Any]]:
    return [
        producer.transaction,
        lambda: producer.submit(ORDER),
        lambda: producer.submit([ORDER, ORDER], txn_id="mine"),
        lambda: producer.publish(ORDER),
    ]


def test_a_limit_stops_those_who_enter_until_it_ends(stage: ProducerStage) -> None:
    producer = stage.producer(check=commit)
    with producer.transaction() as entered:
        stage.ask(limit("on", partition=2, count=7), partition=1)

        def is_limited() -> bool:
            try:
                with producer.transaction() as tx:
                    tx.rollback()
            except OpenTransactionLimitError:
                return True
            return False

        wait_until(is_limited, within=PATIENCE_S, what="the limit")
        for enter in entries(producer):
            with pytest.raises(OpenTransactionLimitError) as raised:
                enter()
            assert ("g", (2,), 7) == (raised.value.producer_group, raised.value.partitions, raised.value.open_count)
        entered.send("orders", value=b"v")
        entered.prepare()  # who is in may go on

    stage.ask(limit("off", partition=2), partition=1)
    wait_until(lambda: not is_limited(), within=PATIENCE_S, what="the end of the limit")
    producer.publish(ORDER)


@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_a_refusal_is_told_and_logged_and_a_callback_that_raises_harms_nobody(
    stage: ProducerStage, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    told: list[RefusedResolution] = []

    def on_refused(refused: RefusedResolution) -> None:
        told.append(refused)
        raise error(refused.txn_id)

    producer = stage.producer(check=commit, on_refused=on_refused)
    producer.start()
    with caplog.at_level(logging.WARNING, "txlayer.responder"):
        stage.ask(refusal("late"), question())
        stage.answers(1)

    assert [RefusedResolution("late", "0000000a", "g", 3, "COMMIT by producer")] == told
    assert "resolution.refused" in [r.getMessage() for r in caplog.records]
    assert 1 == stats_of(producer).refused


def test_a_callback_may_close_its_producer(stage: ProducerStage, caplog: pytest.LogCaptureFixture) -> None:
    closed = threading.Event()

    def on_refused(_: RefusedResolution) -> None:
        producer.close()
        closed.set()

    producer = stage.producer(check=commit, on_refused=on_refused)
    producer.start()
    stage.ask(refusal())

    assert closed.wait(PATIENCE_S)
    assert "on_refused.raised" not in [r.getMessage() for r in caplog.records]


# --- on the user's executor -------------------------------------------------------------------------------------------


def test_a_handler_runs_on_the_executor_that_the_producer_was_given(stage: ProducerStage) -> None:
    threads: list[str] = []

    def check(_: CheckRequest) -> Resolution:
        threads.append(threading.current_thread().name)
        return COMMIT

    with ThreadPoolExecutor(1, thread_name_prefix="mine") as mine:
        stage.producer(check=check, check_executor=mine).start()
        stage.ask(question("a"), question("b"))
        assert {COMMIT} == {answer.resolution for answer in stage.answers(2)}

    assert {"mine_0"} == set(threads)


async def _on_loop(_: CheckRequest) -> Resolution:
    return COMMIT


@pytest.mark.parametrize(
    ("kind", "given"), [(TransactionalProducer, {}), (AsyncTransactionalProducer, {"check": _on_loop})]
)
def test_an_executor_without_calls_for_it_is_refused(kind: Any, given: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as mine, pytest.raises(UsageError, match="check_executor"):
        kind(bootstrap_servers="127.0.0.1:9", group="g", check_executor=mine, **given)


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
            with pytest.raises(OpenTransactionLimitError):
                await producer.publish(order)
            with pytest.raises(OpenTransactionLimitError):
                producer.transaction()

    asyncio.run(run())
    ((refused, thread),) = told
    assert ("late", threading.main_thread()) == (refused.txn_id, thread)
