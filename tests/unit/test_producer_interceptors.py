"""Interceptors of a producer: what they see of each transaction, and what happens when they raise."""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.producer_stage import HALF, OP, ORDER, ProducerStage, World
from txlayer.core.messages import COMMIT, Message, Resolution
from txlayer.errors import BrokerUnavailableError, NotAuthorisedError, OutcomeUnknownError, TxLayerError, UsageError
from txlayer.producer import steps
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.engine import assemble
from txlayer.producer.interceptors import ProducerInterceptor, SentTransaction, intercepting
from txlayer.producer.pipeline import OpQueue, PendingStage, PendingTransaction
from txlayer.producer.submitted import SubmittedTransaction


class Notes(ProducerInterceptor):
    """Writes down what it is called with; raises in the hooks that the test names."""

    def __init__(
        self, name: str = "", seen: list[str] | None = None, *, raises: str = "", error: type[BaseException] = KeyError
    ) -> None:
        self.name = name
        self.error = error
        self.seen: list[str] = [] if seen is None else seen
        self.sent: list[SentTransaction] = []
        self.raises = raises

    def _note(self, hook: str, sent: SentTransaction, *said: object) -> None:
        self.seen.append(" ".join(filter(None, [self.name, hook, *map(str, said)])))
        self.sent.append(sent)
        if hook == self.raises:
            raise self.error(hook)

    def before_send(self, transaction: SentTransaction) -> None:
        self._note("before_send", transaction)

    def after_send(self, transaction: SentTransaction) -> None:
        self._note("after_send", transaction)

    def before_end(self, transaction: SentTransaction, resolution: Resolution) -> None:
        self._note("before_end", transaction, resolution.name)

    def after_end(self, transaction: SentTransaction, resolution: Resolution) -> None:
        self._note("after_end", transaction, resolution.name)

    def on_error(self, transaction: SentTransaction, error: BaseException) -> None:
        self._note("on_error", transaction, type(error).__name__)


ALL = ["before_send", "after_send", "before_end COMMIT", "after_end COMMIT"]


@pytest.mark.parametrize("how", ["block", "submit", "publish"])
def test_an_interceptor_sees_the_send_and_the_end(stage: ProducerStage, how: str) -> None:
    notes = Notes()
    with stage.producer(interceptors=[notes]) as producer:
        if how == "block":
            with producer.transaction("order-1") as tx:
                tx.send("orders", key="k", value="v", tags="big")
                tx.prepare()
        elif how == "submit":
            producer.submit(Message("orders", "k", "v", tags="big"), lambda _tx: COMMIT, txn_id="order-1").result()
        else:
            producer.publish(Message("orders", "k", "v", tags="big"), txn_id="order-1")

    assert ALL == notes.seen
    first = notes.sent[0]
    assert ("order-1", "g", (Message("orders", b"k", b"v", [("tags", b"big")]),)) == (
        first.txn_id,
        first.group,
        first.messages,
    )
    assert all(each is first for each in notes.sent)


def test_an_interceptor_sees_what_an_asyncio_producer_sends(stage: ProducerStage) -> None:
    notes = Notes()

    async def run() -> None:
        settings: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:9", "group": "g", "connect": stage.connect}
        async with AsyncTransactionalProducer(interceptors=[notes], **settings) as producer:
            await producer.publish(ORDER)
            async with producer.transaction() as tx:
                tx.send("orders", key=b"k", value=b"v")
                await tx.prepare()
                tx.rollback()
            await tx.result()

    asyncio.run(run())

    assert [*ALL, "before_send", "after_send", "before_end ROLLBACK", "after_end ROLLBACK"] == notes.seen


@pytest.mark.parametrize("hook", ["before_send", "after_send", "before_end", "after_end"])
def test_a_hook_may_submit_another_transaction(stage: ProducerStage, hook: str) -> None:
    """Most hooks run on the producer's thread while it serves reports, and others wait until that is over."""
    made: list[SubmittedTransaction] = []

    class Audited(ProducerInterceptor):
        def note(self, sent: SentTransaction, *_said: object) -> None:
            if sent.txn_id == "order-1":
                made.append(producer.submit(Message("stock", "k", "audit")))

    setattr(Audited, hook, Audited.note)
    with stage.producer(interceptors=[Audited()]) as producer:
        producer.submit(Message("orders", "k", "v"), txn_id="order-1").result(10)
        assert COMMIT is made[0].result(10).resolution


def test_before_runs_in_order_and_after_in_reverse(stage: ProducerStage) -> None:
    seen: list[str] = []
    with stage.producer(interceptors=[Notes("a", seen), Notes("b", seen)]) as producer:
        producer.publish(ORDER)

    assert ["a before_send", "b before_send", "b after_send", "a after_send"] == seen[:4]
    assert ["a before_end COMMIT", "b before_end COMMIT", "b after_end COMMIT", "a after_end COMMIT"] == seen[4:]


def test_what_before_send_raises_stops_the_send_and_frees_its_place(stage: ProducerStage) -> None:
    seen: list[str] = []
    refusing = Notes("b", seen, raises="before_send")
    with stage.producer(interceptors=[Notes("a", seen), refusing, Notes("c", seen)], in_flight_max=1) as producer:
        for _ in range(2):
            with pytest.raises(KeyError, match="before_send"):
                producer.publish(ORDER)
        refusing.raises = ""
        producer.publish(ORDER)

    assert ["a before_send", "b before_send", "b on_error KeyError", "a on_error KeyError"] == seen[:4]
    assert 1 == len(stage.writer.of(HALF))


@pytest.mark.parametrize("error", [KeyError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("hook", ["after_send", "before_end", "after_end"])
def test_what_another_hook_raises_is_logged_and_changes_nothing(
    stage: ProducerStage, hook: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes(raises=hook, error=error)
    with caplog.at_level(logging.ERROR), stage.producer(interceptors=[notes]) as producer:
        assert COMMIT is producer.publish(ORDER).resolution

    assert ALL == notes.seen
    assert ["interceptor.raised"] == [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_a_signal_raises_in_a_hook_on_the_main_thread_passes_and_the_line_is_written(
    stage: ProducerStage, error: type[BaseException]
) -> None:
    """A program whose SIGTERM handler calls `sys.exit` would go on. On the producer's thread the same is logged."""
    with stage.producer(interceptors=[Notes(raises="before_end", error=error)]) as producer:
        with producer.transaction() as tx:
            tx.send(ORDER.topic, key=ORDER.key, value=ORDER.value)
            tx.prepare()
            with pytest.raises(error):
                tx.commit()

        assert COMMIT is tx.result().resolution


class WatchedWorld(World):
    """A world whose transactions an interceptor sees."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(partial(assemble, watchers=intercepting([notes])))


def test_a_half_message_that_is_not_stored_is_an_error_and_its_rollback_an_end() -> None:
    notes = Notes()
    world = WatchedWorld(notes)
    refused = iter([None, BrokerUnavailableError("away")])
    world.writer.refuse = lambda r: next(refused, None) if r.topic() == HALF else None

    world.launch([ORDER, ORDER])
    world.serve(3)

    expected = ["before_send", "on_error BrokerUnavailableError", "before_end ROLLBACK", "after_end ROLLBACK"]
    assert expected == notes.seen


def test_a_resolution_that_may_not_be_stored_is_an_error() -> None:
    notes = Notes()
    world = WatchedWorld(notes)
    lost: TxLayerError = OutcomeUnknownError("?", txn_id="a", step="op")
    world.writer.refuse = lambda r: lost if r.topic() == OP else None
    world.engine.pipeline.resolution_timeout_s = 0

    world.launch(make=SubmittedTransaction)
    world.serve(3)

    assert [*ALL[:3], "on_error OutcomeUnknownError"] == notes.seen


def test_a_line_that_is_sent_again_ends_once() -> None:
    notes = Notes()
    world = WatchedWorld(notes)
    answers = iter([OutcomeUnknownError("?", txn_id="a", step="op")])
    world.writer.refuse = lambda r: next(answers, None) if r.topic() == OP else None

    world.launch(make=SubmittedTransaction)
    world.serve(5)

    assert ALL == notes.seen


def test_a_line_that_an_interrupt_had_written_twice_is_not_lost_once_it_is_stored() -> None:
    class Interrupted(list[PendingTransaction]):
        """A signal comes between the write of a line and its end."""

        def __delitem__(self, which: Any) -> None:
            if not interrupts:
                interrupts.append(KeyboardInterrupt())
                raise interrupts[0]
            super().__delitem__(which)

    interrupts: list[KeyboardInterrupt] = []
    notes = Notes()
    world = WatchedWorld(notes)
    answers: Iterator[TxLayerError | None] = iter([None, NotAuthorisedError("write op")])
    world.writer.refuse = lambda r: next(answers) if r.topic() == OP else None
    txn = world.prepared()
    txn.queue.waiting = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        steps.resolve(world.engine, txn, COMMIT)

    world.serve(3)

    assert next(answers, "both were sent") == "both were sent"
    assert (PendingStage.ACKNOWLEDGED, None) == (txn.stage, txn.error)
    assert 0 == world.engine.pipeline.in_flight_count
    assert (1, 0) == (notes.seen.count("after_end COMMIT"), sum("on_error" in said for said in notes.seen))


def test_what_is_no_interceptor_is_refused(stage: ProducerStage) -> None:
    with pytest.raises(UsageError, match="subclasses of ProducerInterceptor"):
        stage.producer(interceptors=[object()])


def test_a_hook_that_nothing_awaits_is_refused(stage: ProducerStage) -> None:
    class Awaited(ProducerInterceptor):
        async def after_end(self, transaction: SentTransaction, resolution: Resolution) -> None:  # type: ignore[override]  # what is refused
            raise AssertionError(transaction, resolution)

    with pytest.raises(UsageError, match="nothing awaits"):
        stage.producer(interceptors=[Awaited()])


# --- partition_selector -----------------------------------------------------------------------------------------------


def test_a_selector_chooses_the_partition_of_messages_that_name_none(stage: ProducerStage) -> None:
    asked: list[tuple[Message, int]] = []

    def select(message: Message, partition_count: int) -> int | None:
        asked.append((message, partition_count))
        return None if message.key == b"by key" else 2

    with stage.producer(partition_selector=select) as producer:
        producer.publish(Message("orders", b"k", b"v"))
        producer.publish([Message("orders", b"by key", b"v"), Message("orders", b"k", b"v", partition=1)])

    headers = [dict(record.headers() or ())["txl"] or b"" for record in stage.writer.of(HALF)]
    assert [True, False, False] == [b"n2" in raw for raw in headers]
    assert headers[2].endswith(b"n1")
    assert [(Message("orders", b"k", b"v"), 3), (Message("orders", b"by key", b"v"), 3)] == asked


@pytest.mark.parametrize(
    ("chosen", "error"), [(3, TxLayerError), (-1, TxLayerError), (True, UsageError), ("1", TxLayerError)]
)
def test_a_partition_that_is_not_there_is_refused(stage: ProducerStage, chosen: Any, error: type[Exception]) -> None:
    with stage.producer(partition_selector=lambda _message, _count: chosen) as producer, pytest.raises(error):
        producer.publish(ORDER)

    assert [] == stage.writer.of(HALF)
    with pytest.raises(UsageError, match="partition_selector"):
        stage.producer(partition_selector=3)


def test_a_resolution_that_waits_for_room_in_the_client_is_announced_once() -> None:
    announced: list[int] = []
    rooms = iter([BufferError(), BufferError(), None])

    def produce(*_given: Any) -> None:
        if (full := next(rooms)) is not None:
            raise full

    watch: Any = SimpleNamespace(ending=lambda txn: announced.append(txn.born_ms))
    pipeline: Any = SimpleNamespace(group="shop", op_topic=OP, is_watched=True, produce=produce)
    queue = OpQueue(pipeline, partition=0, line_count_max=10)
    txn = PendingTransaction(queue, "order-1/0000000a", 1, 1)
    txn.resolution, txn.watches = COMMIT, [watch]
    queue.waiting.append(txn)
    for _ in range(3):
        queue.write()

    assert ([1], []) == (announced, queue.waiting)
