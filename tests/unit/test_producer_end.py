"""Many threads, and how a producer ends."""

import os
import signal
import threading
import warnings
from contextlib import suppress
from typing import Any

import pytest

from tests.support.producer_stage import ProducerStage
from tests.support.waiting import wait_until
from txlayer import Codec
from txlayer.config import ProducerConfig
from txlayer.core.messages import COMMIT, Message, Resolution
from txlayer.errors import FencedError, LifecycleError, OutcomeUnknownError, TxLayerError
from txlayer.producer.interceptors import ProducerInterceptor, SentTransaction
from txlayer.producer.metrics import ProducerMetrics
from txlayer.producer.producer import TransactionalProducer

ORDER = Message("orders", b"k", b"v")
HALF, OP = "txlayer.half", "txlayer.op"


# --- threads and the end ----------------------------------------------------------------------------------------------


def test_a_process_that_is_forked_while_another_thread_starts_the_producer_starts_its_own(stage: ProducerStage) -> None:
    entered, may_go = threading.Event(), threading.Event()

    def connect(config: ProducerConfig) -> Any:
        entered.set()
        may_go.wait(20)
        return stage.connect(config)

    producer = stage.producer(connect=connect)
    starting = threading.Thread(target=producer.start)
    starting.start()
    entered.wait(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: this process has threads
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it, if it waits for a thread that it does not have
        entered.clear()
        may_go.set()
        with suppress(BaseException):
            producer.start()
        os._exit(0 if entered.is_set() else 1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    may_go.set()
    starting.join()


def test_threads_share_one_producer(stage: ProducerStage) -> None:
    producer = stage.producer(in_flight_max=4)

    def work() -> None:
        for _ in range(50):
            with producer.transaction() as tx:
                tx.send("orders", value="v")
                tx.prepare()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.close()
    assert 400 == len(stage.writer.of(HALF))
    assert [COMMIT] * 400 == stage.resolutions()


def test_close_waits_for_what_is_in_flight(stage: ProducerStage) -> None:
    producer = stage.producer()
    producer.start()
    stage.writer.hold(True)
    future = producer.submit(ORDER)
    closing = threading.Thread(target=producer.close)
    closing.start()
    wait_until(lambda: refuses(producer), within=5, what="new transactions are refused")

    assert not future.done()
    stage.writer.hold(False)
    closing.join(10)
    assert future.done()
    assert [COMMIT] == stage.resolutions()


def refuses(producer: TransactionalProducer) -> bool:
    try:
        producer.transaction()
    except LifecycleError:
        return True
    return False


def test_close_gives_up_after_its_time_and_says_how_many_are_left(stage: ProducerStage) -> None:
    producer = stage.producer()
    with producer.transaction() as tx:
        tx.send("orders", value="v")
        tx.prepare()
        with pytest.raises(OutcomeUnknownError, match="1 transactions were still in flight"):
            producer.close(0.05)

    with pytest.raises(OutcomeUnknownError):
        tx.result(10)
    assert [] == stage.writer.of(OP)


def test_close_does_not_wait_for_a_local_transaction_that_hangs(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.producer.pipeline.JOIN_S", 0.1)
    metrics, noted = ProducerMetrics(), list[tuple[str, str]]()

    class Notes(ProducerInterceptor):
        def on_error(self, transaction: SentTransaction, error: BaseException) -> None:
            noted.append((transaction.txn_id, type(error).__name__))

    producer, hangs, ran = stage.producer(metrics=metrics, interceptors=[Notes()]), threading.Event(), []

    def hang(_tx: object) -> Resolution:
        hangs.wait(20)
        return COMMIT

    def run(_tx: object) -> Resolution:
        ran.append(1)
        return COMMIT

    first = producer.submit(ORDER, hang)
    second = producer.submit(ORDER, run)
    wait_until(lambda: not stage.writer.unreported_count(), within=5, what="both are stored")
    try:
        with pytest.raises(OutcomeUnknownError, match="2 transactions were still in flight"):
            producer.close(0.05)

        for future in (first, second):
            with pytest.raises(OutcomeUnknownError, match="before its local transaction"):
                future.result(5)
    finally:
        hangs.set()
    wait_until(lambda: not is_running(), within=5, what="its thread ended")
    assert [] == ran
    assert [] == stage.writer.of(OP)
    assert [(future.txn_id, "OutcomeUnknownError") for future in (first, second)] == noted
    assert [2] == [sample.value for sample in metrics.samples() if sample.labels == ("g", "lost")]


def is_running() -> bool:
    return any(thread.name == "txlayer-g" for thread in threading.enumerate())


def test_who_waits_for_a_place_is_told_when_the_producer_closes(stage: ProducerStage) -> None:
    producer = stage.producer(in_flight_max=1)
    stage.writer.hold(True)
    first = producer.submit(ORDER)
    raised: list[BaseException] = []

    def wait_for_a_place() -> None:
        try:
            producer.publish(ORDER)
        except TxLayerError as exc:
            raised.append(exc)

    waiting = threading.Thread(target=wait_for_a_place)
    waiting.start()
    closing = threading.Thread(target=producer.close)
    closing.start()
    waiting.join(10)
    stage.writer.hold(False)
    closing.join(10)

    assert isinstance(raised[0], LifecycleError)
    assert first.done()


def test_a_fatal_error_of_the_client_refuses_everything_from_then_on(stage: ProducerStage) -> None:
    producer = stage.producer()
    producer.start()
    stage.writer.fatal = FencedError("the client gave up")

    wait_until(lambda: fails_fenced(producer), within=5, what="the failure is seen")
    with pytest.raises(FencedError, match="the client gave up"):
        producer.publish(ORDER)


def fails_fenced(producer: TransactionalProducer) -> bool:
    try:
        producer.transaction()
    except FencedError:
        return True
    return False


def test_who_waits_at_a_producer_whose_thread_broke_is_told(stage: ProducerStage) -> None:
    producer = stage.producer()
    producer.start()
    stage.writer.hold(True)
    stage.writer.refuse = lambda _record: OutcomeUnknownError("not sent", step="half")  # what is queued at the end
    future = producer.submit(ORDER)
    tx = producer.transaction()
    tx.send("orders", value="v")
    stage.writer.poll_error = RuntimeError("a bug")

    with pytest.raises((OutcomeUnknownError, FencedError)):
        tx.prepare()
    with pytest.raises(OutcomeUnknownError):
        future.result(10)
    wait_until(lambda: stage.writer.is_closed, within=5, what="the client is given back")
    stage.producers.clear()
    with suppress(OutcomeUnknownError):  # a slot may be given back by now, or not
        producer.close()


def test_no_local_transaction_begins_at_a_producer_whose_thread_broke(stage: ProducerStage) -> None:
    producer, ran = stage.producer(), []
    producer.start()
    stage.writer.hold(True)
    future = producer.submit(ORDER, lambda _tx: ran.append(1))
    stage.writer.poll_error = RuntimeError("a bug")

    with pytest.raises(OutcomeUnknownError, match="before its local transaction"):
        future.result(10)
    assert [] == ran
    stage.producers.clear()
    with pytest.raises(OutcomeUnknownError, match="1 transactions were still in flight"):
        producer.close()


def test_a_serializer_is_used_by_every_way_of_sending(stage: ProducerStage) -> None:
    producer = stage.producer(codec=Codec(lambda value, context: f"{context.topic}={value}".encode()))

    producer.publish(Message("orders", b"k", 7))
    producer.submit(Message("orders", b"k", b"8")).result(10)
    with producer.transaction() as tx:
        tx.send("orders", value=9)
        tx.prepare()
    values = [record.value() for record in stage.writer.of(HALF)]
    assert [b"orders=7", b"orders=b'8'", b"orders=9"] == values
