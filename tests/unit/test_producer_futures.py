"""What `submit` gives back is a future like those of concurrent.futures, and runs the local transaction."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.thread import BrokenThreadPool
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.support.producer_stage import ProducerStage
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, Resolution
from txlayer.errors import LifecycleError, OutcomeUnknownError, RefusedRecordError, RetriableError, UsageError
from txlayer.producer import pipeline
from txlayer.producer.submitted import SubmittedTransaction

ORDER = Message("orders", b"k", b"v")
HALF = "txlayer.half"


def test_a_future_gives_the_result_when_the_resolution_is_acknowledged(stage: ProducerStage) -> None:
    future = stage.producer().submit(ORDER)

    result = future.result(10)
    assert (future.txn_id, future.nonce, COMMIT) == (result.txn_id, result.nonce, result.resolution)
    assert (future.half_partition, 0, 0) == (result.half_partition, result.last_half_offset, result.op_offset)
    assert future.done()
    assert not future.running()
    assert future.exception() is None


def test_a_future_that_is_not_done_runs_and_cannot_be_cancelled(stage: ProducerStage) -> None:
    producer = stage.producer()
    stage.writer.hold(True)
    future = producer.submit(ORDER)

    assert future.running()
    assert not future.done()
    assert not future.cancel()
    assert not future.cancelled()
    for timeout in (0.01, timedelta(milliseconds=10)):
        with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
            future.result(timeout)
    with pytest.raises(TimeoutError):
        future.exception(0)


def test_wait_and_as_completed_take_these_futures(stage: ProducerStage) -> None:
    producer = stage.producer()
    stage.writer.hold(True)
    futures = [producer.submit(ORDER) for _ in range(20)]
    assert (set(), set(futures)) == tuple(wait(futures, timeout=0.01))
    threading.Timer(0.05, stage.writer.hold, [False]).start()

    done, _ = wait(futures, timeout=10, return_when=FIRST_COMPLETED)
    assert done
    completed: Iterator[Any] = as_completed(futures, timeout=10)  # type: ignore[arg-type] # a private type of its stub
    assert set(futures) == set(completed)
    assert set(futures) == wait(futures, timeout=10).done


def test_a_future_begins_with_all_that_a_pending_transaction_has() -> None:
    queue: Any = None
    future = SubmittedTransaction(queue, "order-1/0123abcd", 5, 1)
    plain = pipeline.PendingTransaction(queue, "order-1/0123abcd", 5, 1)

    slots = pipeline.PendingTransaction.__slots__
    assert {slot: getattr(plain, slot) for slot in slots} == {slot: getattr(future, slot) for slot in slots}


def test_asyncio_can_wrap_such_a_future(stage: ProducerStage) -> None:
    producer = stage.producer()

    async def publish() -> Any:
        return await asyncio.gather(*(asyncio.wrap_future(producer.submit(ORDER)) for _ in range(20)))

    assert [COMMIT] * 20 == [result.resolution for result in asyncio.run(publish())]


def test_asyncio_gets_the_exception_too(stage: ProducerStage) -> None:
    stage.writer.refuse = lambda _record: RefusedRecordError("no", topic=HALF)
    producer = stage.producer()

    async def publish() -> None:
        await asyncio.wrap_future(producer.submit(ORDER))

    with pytest.raises(RefusedRecordError):
        asyncio.run(publish())


def test_callbacks_are_called_once_before_and_after_the_end(stage: ProducerStage) -> None:
    producer = stage.producer()
    stage.writer.hold(True)
    called: list[Any] = []
    future = producer.submit(ORDER)
    future.add_done_callback(called.append)
    future.add_done_callback(called.append)
    assert [] == called

    stage.writer.hold(False)
    future.result(10)
    wait([future], timeout=10)
    future.add_done_callback(called.append)
    producer.close()
    assert [future] * 3 == called


def test_many_threads_may_wait_for_one_future(stage: ProducerStage) -> None:
    producer = stage.producer()
    stage.writer.hold(True)
    future = producer.submit(ORDER)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(future.result, 10) for _ in range(4)]
        stage.writer.hold(False)
        results = {w.result(10) for w in waiting}
    assert {future.result()} == results


# --- the local transaction --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"), [(COMMIT, COMMIT), (ROLLBACK, ROLLBACK), (UNKNOWN, UNKNOWN), (None, COMMIT)]
)
def test_the_local_transaction_says_the_resolution(
    stage: ProducerStage, said: Resolution | None, expected: Resolution
) -> None:
    future = stage.producer().submit(ORDER, lambda _tx: said)

    assert expected is future.result(10).resolution
    assert [expected] == stage.resolutions()


@pytest.mark.fault("coordinator: a user's code raises an exception")
def test_what_the_local_transaction_raises_is_raised_as_it_was_and_nothing_is_decided(stage: ProducerStage) -> None:
    error = KeyError("the user's own")

    def local_transaction(_tx: SubmittedTransaction) -> None:
        raise error

    future = stage.producer().submit(ORDER, local_transaction)
    assert error is future.exception(10)
    with pytest.raises(KeyError):
        future.result()
    assert [UNKNOWN] == stage.resolutions()


def test_a_local_transaction_that_says_something_else_is_unknown(stage: ProducerStage) -> None:
    future = stage.producer().submit(ORDER, lambda _tx: True)  # type: ignore[arg-type,return-value] # users' code

    with pytest.raises(UsageError, match="COMMIT, ROLLBACK or UNKNOWN"):
        future.result(10)
    assert [UNKNOWN] == stage.resolutions()


def test_the_local_transaction_knows_what_it_is_for(stage: ProducerStage) -> None:
    seen: list[Any] = []

    def local_transaction(tx: SubmittedTransaction) -> None:
        seen.append((tx.txn_id, tx.messages, tx.last_half_offset, len(stage.writer.of(HALF))))

    messages = [ORDER, Message("stock", b"k", b"w")]
    future = stage.producer().submit(messages, local_transaction, txn_id="order-1")
    future.result(10)
    assert [("order-1", messages, 1, 2)] == seen
    assert () == future.messages


def test_local_transactions_run_in_the_order_of_acknowledgements_on_one_thread(stage: ProducerStage) -> None:
    seen: list[tuple[str, str]] = []

    def local_transaction(tx: SubmittedTransaction) -> None:
        seen.append((tx.txn_id, threading.current_thread().name))

    producer = stage.producer()
    futures = [producer.submit(ORDER, local_transaction, txn_id=f"t{n}", ordering_key="c") for n in range(50)]
    wait(futures, timeout=10)
    assert [(f"t{n}", "txlayer-g") for n in range(50)] == seen


def test_an_executor_runs_local_transactions_elsewhere(stage: ProducerStage) -> None:
    names: set[str] = set()

    def local_transaction(tx: SubmittedTransaction) -> Resolution:
        names.add(threading.current_thread().name)
        return ROLLBACK if tx.txn_id == "t7" else COMMIT

    producer = stage.producer()
    with ThreadPoolExecutor(2, thread_name_prefix="local") as pool:
        futures = [producer.submit(ORDER, local_transaction, txn_id=f"t{n}", executor=pool) for n in range(20)]
        results = [future.result(10) for future in futures]
    assert all(name.startswith("local") for name in names)
    assert ["t7"] == [r.txn_id for r in results if r.resolution is ROLLBACK]


def test_an_executor_that_was_shut_down_leaves_the_resolution_unknown(stage: ProducerStage) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()

    future = stage.producer().submit(ORDER, lambda _tx: COMMIT, executor=pool)
    with pytest.raises(RuntimeError, match="shutdown"):
        future.result(10)
    assert [UNKNOWN] == stage.resolutions()


@pytest.mark.parametrize("error", [queue.Full(), RuntimeError("can't start new thread"), None])
def test_an_executor_that_refuses_work_or_gives_no_future_ends_one_transaction_and_runs_it_at_no_later_time(
    stage: ProducerStage, error: Exception | None
) -> None:
    kept: list[Callable[[], Any]] = []

    class Refusing(Executor):
        """It keeps what it has no thread for, as a `ThreadPoolExecutor`."""

        def submit(self, call: Callable[..., Any], *given: Any) -> Any:  # type: ignore[override]  # as few as the test needs
            kept.append(partial(call, *given))
            if error is not None:
                raise error

    ran: list[str] = []
    producer = stage.producer()
    future = producer.submit(ORDER, lambda tx: ran.append(tx.txn_id), executor=Refusing())
    with pytest.raises(AttributeError if error is None else type(error)):
        future.result(10)
    for call in kept:
        call()

    assert COMMIT is producer.publish(ORDER).resolution
    assert ([UNKNOWN, COMMIT], []) == (stage.resolutions(), ran)


def test_an_executor_that_drops_its_work_leaves_the_resolution_unknown(stage: ProducerStage) -> None:
    producer = stage.producer()
    begun, let_go = threading.Event(), threading.Event()

    def local_transaction(_tx: SubmittedTransaction) -> None:
        begun.set()
        assert let_go.wait(10)

    pool = ThreadPoolExecutor(1)
    first = producer.submit(ORDER, local_transaction, txn_id="t1", executor=pool)
    assert begun.wait(10)
    second = producer.submit(ORDER, local_transaction, txn_id="t2", executor=pool)
    log_has_both(stage)
    pool.shutdown(wait=False, cancel_futures=True)
    let_go.set()

    assert COMMIT is first.result(10).resolution
    with pytest.raises(LifecycleError, match="executor"):
        second.result(10)
    assert {"t1": COMMIT, "t2": UNKNOWN} == {op.key[:2]: op.resolution for op in stage.writer.ops()}


def test_an_executor_whose_threads_cannot_begin_leaves_the_resolution_unknown(stage: ProducerStage) -> None:
    let_go = threading.Event()

    def initializer() -> None:
        assert let_go.wait(10)
        raise OSError("no database")

    producer = stage.producer()
    pool = ThreadPoolExecutor(1, initializer=initializer)
    futures = [producer.submit(ORDER, lambda _tx: COMMIT, txn_id=f"t{n}", executor=pool) for n in (1, 2)]
    log_has_both(stage)
    let_go.set()

    for future in futures:
        with pytest.raises(BrokenThreadPool):
            future.result(10)
    assert [UNKNOWN, UNKNOWN] == stage.resolutions()


def log_has_both(stage: ProducerStage) -> None:
    # Its work is queued at the pool once its half message's report was served, which ends with an empty queue.
    wait_until(
        lambda: len(stage.writer.of(HALF)) == 2 and not stage.writer.unreported_count(),
        within=10,
        what="both are prepared",
    )
    gate = stage.producers[0]._engine
    assert gate is not None
    wait_until(lambda: not gate.pipeline.is_serving, within=10, what="the round is over")


def test_a_local_transaction_may_submit_but_not_wait(stage: ProducerStage) -> None:
    producer = stage.producer()
    inner: list[SubmittedTransaction] = []

    def local_transaction(tx: SubmittedTransaction) -> None:
        inner.append(producer.submit(ORDER))
        with pytest.raises(LifecycleError, match="wait for itself"):
            inner[0].result()
        with pytest.raises(LifecycleError, match="wait for itself"):
            tx.result()
        with pytest.raises(LifecycleError, match="wait for itself"):
            producer.publish(Message("orders", b"k", b"not sent"))
        with pytest.raises(LifecycleError, match="wait for it"):
            producer.close()
        with producer.transaction() as other:
            other.send("orders", value="not sent")
            with pytest.raises(LifecycleError, match="wait for itself"):
                other.prepare()
            raise KeyError

    future = producer.submit(ORDER, local_transaction)
    with pytest.raises(KeyError):
        future.result(10)
    assert COMMIT is inner[0].result(10).resolution
    assert b"not sent" not in [record.value() for record in stage.writer.of(HALF)]


@pytest.mark.parametrize(("slice_s", "sent_count"), [(-1.0, 1), (60.0, 0)])
def test_slow_local_transactions_do_not_hold_back_what_is_ready(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch, slice_s: float, sent_count: int
) -> None:
    """After a slice the first one's op line is on its way while the second one still runs."""
    monkeypatch.setattr(pipeline, "SLICE_S", slice_s)
    producer = stage.producer()
    seen: list[int] = []

    def second(_tx: SubmittedTransaction) -> None:
        seen.append(stage.writer.unreported_count())

    stage.writer.hold(True)
    futures = [producer.submit(ORDER, lambda _tx: COMMIT), producer.submit(ORDER, second)]
    stage.writer.hold(False)
    wait(futures, timeout=10)
    assert [sent_count] == seen


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_half_message_that_is_not_stored_ends_the_future_and_runs_nothing(stage: ProducerStage) -> None:
    stage.writer.refuse = lambda _record: OutcomeUnknownError("late", step="half")
    ran: list[Any] = []

    future = stage.producer().submit(ORDER, ran.append)
    assert isinstance(future.exception(10), OutcomeUnknownError)
    assert [] == ran


def test_a_full_producer_refuses_who_may_not_wait(stage: ProducerStage) -> None:
    producer = stage.producer(in_flight_max=2)
    stage.writer.hold(True)
    futures = [producer.submit(ORDER, block=False) for _ in range(2)]

    with pytest.raises(RetriableError):
        producer.submit(ORDER, block=False)
    stage.writer.hold(False)
    wait(futures, timeout=10)
    assert COMMIT is producer.submit(ORDER, block=True).result(10).resolution


def test_a_single_message_that_the_client_refuses_at_once_leaves_nothing(stage: ProducerStage) -> None:
    producer = stage.producer(in_flight_max=1)
    producer.publish(ORDER)
    stage.writer.refuse_at_once = lambda topic: RefusedRecordError("no", topic=topic)

    for _ in range(3):  # each gives its place in flight back
        with pytest.raises(RefusedRecordError):
            producer.submit(ORDER)
    stage.writer.refuse_at_once = lambda _topic: None
    assert COMMIT is producer.publish(ORDER).resolution


def test_a_future_of_a_closed_producer_ends(stage: ProducerStage) -> None:
    producer = stage.producer()
    begun, let_go = threading.Event(), threading.Event()

    def local_transaction(_tx: SubmittedTransaction) -> None:
        begun.set()
        assert let_go.wait(10)

    with ThreadPoolExecutor(1) as pool:
        future = producer.submit(ORDER, local_transaction, executor=pool)
        assert begun.wait(10)
        with pytest.raises(OutcomeUnknownError):
            producer.close(timedelta(milliseconds=10))
        assert not future.done()
        let_go.set()
        assert isinstance(future.exception(10), OutcomeUnknownError)


def test_what_a_thread_holds_in_wait_holds_back_no_other_future(stage: ProducerStage) -> None:
    # `wait` takes the conditions of its futures in the order of their ids: with one for all futures of a producer, two threads
    # took those of two producers in opposite orders, and waited for each other for ever.
    producer = stage.producer()
    mine = producer.submit(ORDER)
    assert mine.result(10)
    waiting = threading.Thread(target=wait, args=([producer.submit(ORDER)],), daemon=True)
    with mine._condition:
        waiting.start()
        waiting.join(10)
        assert not waiting.is_alive()


def test_small_system_topics_make_small_op_records(stage: ProducerStage) -> None:
    stage.set_topic("txlayer.op", partitions=4, message_bytes_max=1_700)
    producer = stage.producer()
    stage.writer.hold(True)
    futures = [producer.submit(ORDER, txn_id="order-1") for _ in range(9)]
    stage.writer.hold(False)

    for future in futures:
        future.result(10)
    assert 3 >= max(len((r.value() or b"").split(b"\n")) for r in stage.writer.of("txlayer.op"))
