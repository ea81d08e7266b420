"""Messages that a program takes itself: the same order, attempts, deadlines and progress as with handlers."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, QUICK, MakeStage, Stage, numbers
from tests.support.waiting import pause, wait_until
from txlayer import JSON, AsyncOrderedConsumer, BreakerPolicy, ConcurrentConsumer, Context, Interceptor, OrderedConsumer
from txlayer.adapters.connect import ConsumerConnections
from txlayer.config import ConsumerConfig
from txlayer.consumer.aio import CANCEL_S
from txlayer.consumer.context import ReceivedMessage
from txlayer.consumer.metrics import TopicStats
from txlayer.consumer.pull import PulledMessage
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, encode_replay
from txlayer.errors import LifecycleError, UsageError

PATIENCE = timedelta(seconds=PATIENCE_S)
SHORT = timedelta(milliseconds=100)


def pulled(consumer: Any) -> PulledMessage:
    """The next message, which must come."""
    message: PulledMessage | None = consumer.poll(PATIENCE)
    assert message is not None
    return message


@pytest.mark.promise("P9")
def test_messages_are_taken_in_order_and_the_next_of_a_key_after_the_answer(stage: Stage) -> None:
    stage.write(b"0", b"1", key=b"a")
    stage.write(b"2", key=b"b")
    with stage.plain(OrderedConsumer) as consumer:
        first, other = sorted((pulled(consumer) for _ in range(2)), key=lambda m: m.offset)
        assert [b"0", b"2"] == [first.value, other.value]
        assert consumer.poll(SHORT) is None
        other.ack()
        first.ack()
        second = pulled(consumer)
        assert (b"1", 1) == (second.value, second.context.attempt)
        assert second.context.token is not None
        second.ack()
        stage.wait_stored(3)
        assert 3 == consumer.stats().topics[stage.topic].handled

    with stage.plain(OrderedConsumer) as consumer:
        assert consumer.poll(timedelta(seconds=1)) is None  # what was answered is not handed out again


def test_every_answer_has_the_effect_of_a_handlers(stage: Stage) -> None:
    stage.write(b"bad", b"next")
    with stage.plain(OrderedConsumer, retry=QUICK) as consumer:
        pulled(consumer).retry(reason="not yet")
        message = pulled(consumer)
        assert (b"bad", 2) == (message.value, message.context.attempt)
        message.later(SHORT, "closed")
        message = pulled(consumer)
        assert (b"bad", 2) == (message.value, message.context.attempt)
        message.reject("never")
        stage.wait_for_letters([b"bad"])
        pulled(consumer).ack()
        stage.wait_stored(2)


@OF_HANDLERS
def test_an_answer_is_given_once_and_checked(stage: Stage) -> None:
    stage.write(b"0")
    with stage.plain(OrderedConsumer) as consumer:
        message = pulled(consumer)
        with pytest.raises(UsageError, match="needs a timedelta"):
            message.retry(5)  # type: ignore[arg-type]  # no unit
        message.ack()
        with pytest.raises(LifecycleError, match="answered before"):
            message.ack()


@OF_HANDLERS
def test_without_an_answer_in_time_its_attempt_has_failed(stage: Stage) -> None:
    stage.write(b"0")
    with stage.plain(OrderedConsumer, retry=QUICK, attempt_timeout=timedelta(seconds=1)) as consumer:
        message = pulled(consumer)
        again = pulled(consumer)
        assert (1, 2) == (message.context.attempt, again.context.attempt)
        with pytest.raises(LifecycleError, match="its time is over"):
            message.ack()
        again.ack()
        stage.wait_stored(1)
        assert 0 == consumer.stats().hung_count


@OF_HANDLERS
def test_a_message_that_was_not_taken_has_had_no_attempt(stage: Stage) -> None:
    stage.write(b"0")
    with stage.plain(OrderedConsumer, retry=QUICK, attempt_timeout=timedelta(seconds=0.6)) as consumer:
        wait_until(lambda: consumer.stats().topics[stage.topic].in_flight, within=PATIENCE_S, what="it waits")
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1.5, within=PATIENCE_S, what="twice its time")
        message = pulled(consumer)
        assert 1 == message.context.attempt
        assert message.context.remaining_s > 0.25
        message.ack()
        stage.wait_stored(1)
        found = consumer.stats().topics[stage.topic]
        assert (1, 0, 0) == (found.attempts, found.failed, found.postponed)


def test_what_was_not_taken_holds_up_no_end(stage: Stage) -> None:
    for n in range(5):
        stage.write(b"%d" % n, key=b"k%d" % n)
    with stage.plain(OrderedConsumer) as consumer:
        done = pulled(consumer)
        done.ack()
        wait_until(lambda: consumer.stats().topics[stage.topic].handled, within=PATIENCE_S, what="it is handled")
        left = pulled(consumer)
        began = time.monotonic()
    assert time.monotonic() - began < PATIENCE_S / 2
    with pytest.raises(LifecycleError, match="its time is over"):
        left.ack()

    with stage.plain(OrderedConsumer) as consumer:
        messages = [pulled(consumer) for _ in range(4)]
        assert set(numbers(5)) - {done.value} == {message.value for message in messages}
        assert {1} == {message.context.attempt for message in messages}


@pytest.mark.promise("P9")
@OF_HANDLERS
def test_when_the_group_shares_anew_what_is_open_is_handed_out_again(make_stage: MakeStage) -> None:
    stage = make_stage(partitions=2)
    for partition in range(2):
        stage.write(b"%d first" % partition, b"%d next" % partition, key=b"k%d" % partition, partition=partition)
    short = {"revoke_timeout": timedelta(seconds=0.5), "store_interval": timedelta(milliseconds=20)}
    with stage.plain(OrderedConsumer, **short) as one:
        kept = pulled(one)  # the other partition's first message waits to be taken
        with stage.plain(OrderedConsumer, **short) as two:
            wait_until(
                lambda: [1, 1] == [len(each.stats().partitions) for each in (one, two)],
                within=PATIENCE_S,
                what="each has a partition",
            )
            wait_until(kept.answer.done, within=PATIENCE_S, what="its handler has ended")
            with pytest.raises(LifecycleError, match="its time is over"):
                kept.ack()
            values: list[bytes | None] = []
            for consumer in (one, two):
                for _ in range(2):
                    message = pulled(consumer)
                    assert 1 == message.context.attempt
                    values.append(message.value)
                    message.ack()
            stage.wait_stored(2)
            stage.wait_stored(2, partition=1)

    assert [b"0 first", b"0 next", b"1 first", b"1 next"] == sorted(value or b"" for value in values)


@pytest.mark.promise("P9")
@OF_HANDLERS
def test_an_answer_that_comes_while_a_queue_is_given_back_counts_or_raises(stage: Stage) -> None:
    """The rebalance no longer waits for it, and stores what has ended: by then it is too late for any answer."""
    stage.write(*numbers(3))
    is_storing, has_answered = threading.Event(), threading.Event()

    def connect(config: ConsumerConfig) -> ConsumerConnections:
        made = stage.lab.connect_consumer(config)
        make = made.make_group_reader

        def make_group_reader(group: str) -> Any:
            reader = make(group)
            store = reader.store_offsets

            def store_while_answered(offsets: Any, *, timeout_s: float) -> None:
                if messages and not has_answered.is_set():
                    is_storing.set()
                    assert has_answered.wait(PATIENCE_S)
                store(offsets, timeout_s=timeout_s)

            reader.store_offsets = store_while_answered  # type: ignore[method-assign]  # to answer meanwhile
            return reader

        made.make_group_reader = make_group_reader  # type: ignore[method-assign]  # likewise
        return made

    messages: list[PulledMessage] = []
    short = {"revoke_timeout": timedelta(seconds=0.1), "store_interval": timedelta(hours=1)}
    with stage.plain(OrderedConsumer, connect=connect, **short) as one:
        pulled(one).ack()
        stage.wait_stored(1)
        pulled(one).ack()  # stored at the rebalance: the interval is long
        messages.append(pulled(one))
        with stage.plain(OrderedConsumer, **short) as two:
            assert is_storing.wait(PATIENCE_S)
            try:
                messages[0].ack()
                counts = True
            except LifecycleError:
                counts = False
            has_answered.set()
            wait_until(
                lambda: one.stats().rebalance_count > 1 and one.stats().partitions + two.stats().partitions,
                within=PATIENCE_S,
                what="one of them has the partition again",
            )
            owner = one if one.stats().partitions else two
            again = owner.poll(timedelta(seconds=0.5) if counts else PATIENCE)

    assert counts is (again is None)


def test_who_waits_for_a_message_returns_at_the_end(stage: Stage) -> None:
    results: list[PulledMessage | None] = []
    consumer = stage.plain(OrderedConsumer)
    consumer.start()
    thread = threading.Thread(target=lambda: results.append(consumer.poll()))
    thread.start()
    consumer.close()
    thread.join(PATIENCE_S)

    assert [None] == results


def test_a_program_iterates_over_messages(stage: Stage) -> None:
    stage.write(*numbers(5), key=b"a")
    values: list[bytes | None] = []

    async def work() -> None:
        async with stage.plain(AsyncOrderedConsumer) as consumer:
            assert await consumer.poll(PATIENCE) is not None
            values.append(b"0")
        async with stage.plain(AsyncOrderedConsumer) as consumer:
            async for message in consumer:
                values.append(message.value)
                message.ack()
                if message.value == b"4":
                    break
            await asyncio.to_thread(stage.wait_stored, 5)
            assert await consumer.poll(SHORT) is None

    asyncio.run(work())

    assert [b"0", *numbers(5)] == values


@pytest.mark.slow
@OF_HANDLERS
def test_a_task_that_is_not_taken_has_had_no_attempt(stage: Stage) -> None:
    stage.write(b"0")

    async def work() -> None:
        async with stage.plain(AsyncOrderedConsumer, attempt_timeout=timedelta(seconds=1)) as consumer:
            await asyncio.sleep(2.5)
            message = await consumer.poll(PATIENCE)
            assert 1 == message.context.attempt
            again = await consumer.poll(PATIENCE)
            assert 2 == again.context.attempt
            with pytest.raises(LifecycleError, match="its time is over"):
                message.ack()
            again.ack()
            await asyncio.to_thread(stage.wait_stored, 1)

    asyncio.run(work())


@pytest.mark.slow
@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: a coroutine handler, or a program that polls, blocks the event loop")
@OF_HANDLERS
@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_program_that_blocks_its_loop_beyond_the_deadline_loses_no_answer_and_no_attempt(
    stage: Stage, *, is_given_up: bool
) -> None:
    keys = [b"a", b"b", b"c"]
    for key in keys:
        stage.write(key, key=key)

    async def work() -> None:
        async with stage.plain(AsyncOrderedConsumer, retry=QUICK, attempt_timeout=timedelta(seconds=2)) as consumer:
            first = await consumer.poll(PATIENCE)
            first.ack()  # in time; the task that waits for it cannot run before the deadline
            pause(2 + (2 * CANCEL_S if is_given_up else CANCEL_S / 2))  # it blocks the loop
            others = [await consumer.poll(PATIENCE) for _ in keys[1:]]
            assert keys == sorted(message.value for message in (first, *others))
            assert [1, 1] == [message.context.attempt for message in others]
            for message in others:
                message.ack()
            await asyncio.to_thread(stage.wait_stored, 3)
            found = consumer.stats().topics[stage.topic]
            assert (3, 3, 0, 0) == (found.handled, found.attempts, found.failed, consumer.stats().hung_count)

    asyncio.run(work())


@pytest.mark.promise("P9")
@OF_HANDLERS
def test_when_the_group_shares_anew_an_open_message_of_a_task_is_handed_out_again(stage: Stage) -> None:
    stage.write(b"0")
    short = {"revoke_timeout": timedelta(seconds=0.1), "store_interval": timedelta(milliseconds=20)}

    async def work() -> None:
        async with stage.plain(AsyncOrderedConsumer, **short) as one:
            kept = await one.poll(PATIENCE)
            async with stage.plain(AsyncOrderedConsumer, **short) as two:
                await asyncio.to_thread(
                    wait_until,
                    lambda: one.stats().rebalance_count > 1 and one.stats().partitions + two.stats().partitions,
                    within=PATIENCE_S,
                    what="one of them has the partition again",
                )
                with pytest.raises(LifecycleError, match="its time is over"):
                    kept.ack()
                again = await (one if one.stats().partitions else two).poll(PATIENCE)
                assert (b"0", 1) == (again.value, again.context.attempt)
                again.ack()
                await asyncio.to_thread(stage.wait_stored, 1)

    asyncio.run(work())


@pytest.mark.promise("P9")
@OF_HANDLERS
def test_an_answer_counts_although_its_program_blocks_its_loop_while_the_group_shares_anew(stage: Stage) -> None:
    stage.write(b"0", key=b"a")
    stage.write(b"1", key=b"b")
    short = {"revoke_timeout": timedelta(seconds=0.5), "store_interval": timedelta(milliseconds=20)}

    async def work() -> None:
        async with stage.plain(AsyncOrderedConsumer, **short) as one:
            first, second = [await one.poll(PATIENCE) for _ in range(2)]
            with stage.plain(OrderedConsumer, **short) as two:
                first.ack()
                second.reject("as planned")
                # On the loop: none of its tasks goes on meanwhile.
                wait_until(lambda: one.stats().rebalance_count > 1, within=PATIENCE_S, what="the group shares anew")
                await asyncio.to_thread(stage.wait_stored, 2)
                assert await one.poll(SHORT) is None
                assert await asyncio.to_thread(two.poll, SHORT) is None

    asyncio.run(work())
    assert [b"1"] == stage.letter_values()


class Counting(Interceptor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def before(self, message: ReceivedMessage, context: Context) -> None:
        self.seen.append(f"before {message.value} {context.attempt}")

    def after(self, message: ReceivedMessage, context: Context, result: Any) -> None:
        del message, context
        self.seen.append(f"after {type(result).__name__}")


@OF_HANDLERS
def test_codecs_and_interceptors_work_as_around_a_handler(stage: Stage) -> None:
    stage.write(b"no json", b'{"cents": 42}')
    counting = Counting()
    with stage.plain(ConcurrentConsumer, codec=JSON, interceptors=[counting]) as consumer:
        message = pulled(consumer)
        assert ({"cents": 42}, b'{"cents": 42}') == (message.value, message.raw_value)
        message.ack()
        stage.wait_for_letters([b"no json"])
        stage.wait_stored(2)

    assert ["before {'cents': 42} 1", "after Ack"] == counting.seen


@OF_HANDLERS
def test_only_a_started_consumer_without_handlers_is_polled(stage: Stage) -> None:
    consumer = stage.plain(OrderedConsumer)
    with pytest.raises(LifecycleError, match="after `start"):
        consumer.poll()
    with pytest.raises(UsageError, match="no handler for"):
        consumer.run()
    with pytest.raises(UsageError, match="no handler for"):
        stage.plain(OrderedConsumer, workers="processes").start()
    with stage.consumer() as consumer, pytest.raises(LifecycleError, match="without handlers"):
        consumer.poll()


@pytest.mark.promise("P9")
@OF_HANDLERS
def test_while_a_breaker_is_open_what_was_ready_before_is_not_handed_out(stage: Stage) -> None:
    for n in range(4):
        stage.write(b"%d" % n, key=b"k%d" % n)
    breaker = BreakerPolicy(attempt_count_min=1, probe_interval=timedelta(days=1))
    with stage.plain(OrderedConsumer, breaker=breaker, worker_count=4) as consumer:
        figures = stage_figures(stage, consumer)
        wait_until(lambda: figures().in_flight == 4, within=PATIENCE_S, what="all are ready")
        pulled(consumer).retry(reason="the service is away")
        wait_until(lambda: figures().breaker_is_open and not figures().in_flight, within=PATIENCE_S, what="it is open")
        assert consumer.poll(SHORT) is None
        assert (1, 0, 1) == (figures().attempts, figures().failed, figures().postponed)


@OF_HANDLERS
def test_behind_the_answer_to_a_pause_nothing_is_handed_out(stage: Stage) -> None:
    for n in range(4):
        stage.write(b"%d" % n, key=b"k%d" % n)
    with stage.plain(OrderedConsumer, worker_count=4) as consumer:
        figures = stage_figures(stage, consumer)
        wait_until(lambda: figures().in_flight == 4, within=PATIENCE_S, what="all are ready")
        pause = encode_replay(ReplayRecord(ReplayKind.PAUSE, "ticket-1", None, text="zoe: migration"))
        stage.lab.write(stage.requests, pause, key=None)
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2, within=PATIENCE_S, what="the answer")
        wait_until(lambda: not figures().in_flight, within=PATIENCE_S, what="all wait again")
        assert consumer.poll(SHORT) is None


def stage_figures(stage: Stage, consumer: Any) -> Callable[[], TopicStats]:
    """What the consumer says of the stage's topic."""
    wait_until(lambda: stage.topic in consumer.stats().topics, within=PATIENCE_S, what="it runs")
    return lambda: consumer.stats().topics[stage.topic]
