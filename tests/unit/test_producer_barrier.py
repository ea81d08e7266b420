"""What the end of a joined local transaction means for the resolution: blocks, submitted ones."""

import asyncio
import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_barrier import FakeBarrier
from tests.support.producer_stage import ProducerStage
from txlayer.adapters.ports import Barrier, LocalState
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, Resolution
from txlayer.errors import BarrierRefusedError, LifecycleError, UsageError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.producer import TransactionalProducer

ORDER = Message("orders", b"k", b"v")
HALF = "txlayer.half"


OPEN, COMMITTED, ROLLED_BACK, UNCLEAR = LocalState


class ShopError(Exception):
    """The user's own."""


# (state of the local transaction, did the block fail, what the row says) → (resolution, is it the caller's mistake, calls)
ENDS = [
    (COMMITTED, False, ROLLBACK, COMMIT, False, []),
    (COMMITTED, True, ROLLBACK, COMMIT, False, []),
    (OPEN, False, COMMIT, UNKNOWN, True, []),
    (OPEN, True, COMMIT, UNKNOWN, False, []),
    (ROLLED_BACK, False, ROLLBACK, ROLLBACK, False, ["resolve"]),
    (ROLLED_BACK, True, ROLLBACK, ROLLBACK, False, ["resolve"]),
    (UNCLEAR, False, COMMIT, COMMIT, False, ["resolve"]),
    (UNCLEAR, True, COMMIT, COMMIT, False, ["resolve"]),
    (UNCLEAR, True, ROLLBACK, ROLLBACK, False, ["resolve"]),
    (UNCLEAR, True, UNKNOWN, UNKNOWN, False, ["resolve"]),
    (UNCLEAR, True, OSError("gone"), UNKNOWN, False, ["resolve"]),
    (UNCLEAR, False, OSError("gone"), UNKNOWN, False, ["resolve"]),
]
each_end = pytest.mark.parametrize(("state", "has_failed", "row", "expected", "is_misfit", "asked"), ENDS)


def ended(call: Any, *, has_failed: bool, is_misfit: bool) -> None:
    """Call it; what must be raised is."""
    try:
        call()
    except ShopError:
        assert has_failed
    except LifecycleError:
        assert is_misfit
    else:
        assert not has_failed
        assert not is_misfit


def run_async(stage: ProducerStage, barrier: FakeBarrier, use: Any) -> None:
    """Run `use(producer)` in a loop."""

    async def main() -> None:
        producer = AsyncTransactionalProducer(
            bootstrap_servers="127.0.0.1:9", group="g", connect=stage.connect, barrier=barrier
        )
        async with producer:
            await use(producer)

    asyncio.run(main())


# --- a block ----------------------------------------------------------------------------------------------------------


@each_end
@pytest.mark.parametrize(
    ("is_async", "is_submitted"), [(False, False), (False, True), (True, False)], ids=["block", "submitted", "loop"]
)
def test_the_database_decides(
    stage: ProducerStage,
    *,
    is_async: bool,
    is_submitted: bool,
    state: LocalState,
    has_failed: bool,
    row: Any,
    expected: Resolution,
    is_misfit: bool,
    asked: list[str],
) -> None:
    barrier = FakeBarrier(row=row, is_async=is_async)

    def end_local() -> None:
        barrier.joined.state = state
        if has_failed:
            raise ShopError("mine")

    def local_transaction(tx: Any) -> None:
        tx.join("session")
        end_local()

    def run() -> None:
        producer = stage.producer(barrier=barrier)
        if is_submitted:
            producer.submit(ORDER, local_transaction).result(10)
        else:
            with producer.transaction() as tx:
                tx.send("orders", value="v")
                local_transaction(tx)

    async def use(producer: AsyncTransactionalProducer) -> None:
        async with producer.transaction() as tx:
            tx.send("orders", value="v")
            await tx.join("session")
            end_local()

    call = partial(run_async, stage, barrier, use) if is_async else run
    ended(call, has_failed=has_failed, is_misfit=is_misfit)
    for producer in stage.producers:
        producer.close()

    assert [expected] == stage.resolutions()
    assert ["check", "write", *asked] == barrier.words
    assert barrier.joined.is_left


def test_join_prepares_before_the_row_and_after_the_check(stage: ProducerStage) -> None:
    barrier = FakeBarrier()
    half_counts = []
    barrier.at_check = lambda: half_counts.append(len(stage.writer.of(HALF)))
    with stage.producer(barrier=barrier).transaction() as tx:
        tx.send("orders", value="v")
        tx.join("session")
        half_counts.append(len(stage.writer.of(HALF)))
        barrier.joined.state = COMMITTED

    assert [0, 1] == half_counts
    assert ("write", "session", tx.txn_id, tx.nonce, "g") == barrier.calls[-1]


def test_what_is_prepared_may_be_joined_afterwards(stage: ProducerStage) -> None:
    barrier = FakeBarrier()
    with stage.producer(barrier=barrier).transaction() as tx:
        tx.send("orders", value="v")
        tx.prepare()
        tx.join("session")
        barrier.joined.state = COMMITTED

    assert COMMIT is tx.result(10).resolution
    assert 1 == len(stage.writer.of(HALF))


def test_a_session_that_cannot_be_joined_is_refused_before_anything_is_sent(stage: ProducerStage) -> None:
    barrier = FakeBarrier(refusal=UsageError("autocommit"))
    with (  # noqa: PT012 - the block is the subject
        pytest.raises(UsageError, match="autocommit"),
        stage.producer(barrier=barrier).transaction() as tx,
    ):
        tx.send("orders", value="v")
        tx.join("session")

    assert [] == stage.writer.stored
    assert ["check"] == barrier.words


def test_a_row_that_was_refused_rolls_back(stage: ProducerStage) -> None:
    barrier = FakeBarrier(write_error=BarrierRefusedError("first", txn_id="1", resolution="ROLLBACK"))
    with pytest.raises(BarrierRefusedError), stage.producer(barrier=barrier).transaction() as tx:  # noqa: PT012 - the block is the subject
        tx.send("orders", value="v")
        tx.join("session")

    assert ROLLBACK is tx.result(10).resolution


def test_a_barrier_that_was_not_joined_is_an_error(stage: ProducerStage) -> None:
    with (  # noqa: PT012 - the block is the subject
        pytest.raises(LifecycleError, match="join"),
        stage.producer(barrier=FakeBarrier()).transaction() as tx,
    ):
        tx.send("orders", value="v")
        tx.prepare()
    assert UNKNOWN is tx.result(10).resolution


def test_an_exception_before_join_is_settled_by_the_row_at_once(stage: ProducerStage) -> None:
    with pytest.raises(ShopError), stage.producer(barrier=FakeBarrier()).transaction() as tx:  # noqa: PT012 - the block is the subject
        tx.send("orders", value="v")
        tx.prepare()
        raise ShopError("mine")
    assert ROLLBACK is tx.result(10).resolution


def test_a_second_join_is_refused(stage: ProducerStage) -> None:
    barrier = FakeBarrier()
    with stage.producer(barrier=barrier).transaction() as tx:
        tx.send("orders", value="v")
        tx.join("session")
        with pytest.raises(LifecycleError):
            tx.join("session")
        barrier.joined.state = COMMITTED
    assert COMMIT is tx.result(10).resolution


@pytest.mark.parametrize(
    ("said", "state", "is_refused"),
    [
        ("commit", OPEN, True),
        ("commit", ROLLED_BACK, True),
        ("commit", UNCLEAR, True),
        ("commit", COMMITTED, False),
        ("rollback", COMMITTED, True),
        ("rollback", UNCLEAR, True),
        ("rollback", ROLLED_BACK, False),
        ("rollback", OPEN, False),
        ("unknown", OPEN, False),
    ],
)
def test_a_word_that_the_database_contradicts_is_refused(
    stage: ProducerStage, said: str, state: LocalState, *, is_refused: bool
) -> None:
    barrier = FakeBarrier()
    with stage.producer(barrier=barrier).transaction() as tx:
        tx.send("orders", value="v")
        tx.join("session")
        barrier.joined.state = state
        if is_refused:
            with pytest.raises(LifecycleError):
                getattr(tx, said)()
            barrier.joined.state = COMMITTED
        else:
            getattr(tx, said)()

    expected = COMMIT if is_refused else Resolution[said.upper()]
    assert expected is tx.result(10).resolution


def test_a_rollback_that_was_said_forbids_the_commit(stage: ProducerStage) -> None:
    barrier = FakeBarrier()
    with stage.producer(barrier=barrier).transaction() as tx:
        tx.send("orders", value="v")
        tx.join("session")
        tx.rollback()

    assert 1 == len(barrier.joined.forbidden)


def test_an_interrupt_while_the_barrier_is_asked_still_says_unknown(stage: ProducerStage) -> None:
    barrier = FakeBarrier(row=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), stage.producer(barrier=barrier).transaction() as tx:  # noqa: PT012 - the block is the subject
        tx.send("orders", value="v")
        tx.join("session")
        barrier.joined.state = ROLLED_BACK
    assert UNKNOWN is tx.result(10).resolution


def test_a_barrier_of_the_other_kind_is_refused() -> None:
    for producer, is_async in ((TransactionalProducer, True), (AsyncTransactionalProducer, False)):
        with pytest.raises(UsageError, match="use the other"):
            producer(bootstrap_servers="127.0.0.1:9", group="g", barrier=FakeBarrier(is_async=is_async))


# --- submitted --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "state", "row", "expected", "is_misfit"),
    [
        (COMMIT, None, ROLLBACK, UNKNOWN, True),
        (None, None, ROLLBACK, UNKNOWN, True),
        (ROLLBACK, None, COMMIT, ROLLBACK, False),
        (UNKNOWN, None, COMMIT, UNKNOWN, False),
        (COMMIT, ROLLED_BACK, ROLLBACK, ROLLBACK, False),
        (ROLLBACK, OPEN, ROLLBACK, ROLLBACK, False),
        (ROLLBACK, COMMITTED, COMMIT, COMMIT, True),
        (ROLLBACK, UNCLEAR, COMMIT, COMMIT, True),
    ],
)
def test_what_a_local_transaction_returns_is_held_against_the_database(
    stage: ProducerStage,
    said: Resolution | None,
    state: LocalState | None,
    row: Resolution,
    expected: Resolution,
    *,
    is_misfit: bool,
) -> None:
    barrier = FakeBarrier(row=row)

    def local_transaction(tx: Any) -> Resolution | None:
        if state is not None:
            tx.join("session")
            barrier.joined.state = state
        return said

    future = stage.producer(barrier=barrier).submit(ORDER, local_transaction)
    ended(lambda: future.result(10), has_failed=False, is_misfit=is_misfit)

    assert [expected] == stage.resolutions()


@pytest.mark.promise("P8")
@pytest.mark.parametrize("has_failed", [False, True])
def test_an_interrupt_while_the_barrier_is_asked_decides_nothing(stage: ProducerStage, *, has_failed: bool) -> None:
    """What the local transaction returned is no word of the database; its own exception is told first."""
    barrier = FakeBarrier(row=KeyboardInterrupt())

    def local_transaction(tx: Any) -> Resolution:
        tx.join("session")
        barrier.joined.state = UNCLEAR
        if has_failed:
            raise ShopError("mine")
        return COMMIT

    future = stage.producer(barrier=barrier).submit(ORDER, local_transaction)
    with pytest.raises(ShopError if has_failed else KeyboardInterrupt):
        future.result(10)

    assert [UNKNOWN] == stage.resolutions()


def test_what_is_published_needs_no_join(stage: ProducerStage) -> None:
    producer = stage.producer(barrier=FakeBarrier())

    assert COMMIT is producer.publish(ORDER).resolution
    assert COMMIT is producer.submit([ORDER, ORDER]).result(10).resolution


# --- in a loop --------------------------------------------------------------------------------------------------------


def test_a_cancelled_task_whose_local_transaction_is_committed_commits(stage: ProducerStage) -> None:
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

    run_async(stage, barrier, use)

    assert [COMMIT] == stage.resolutions()


def test_the_async_barrier_refuses_before_anything_is_sent(stage: ProducerStage) -> None:
    barrier = FakeBarrier(is_async=True, refusal=UsageError("autocommit"))

    async def use(producer: AsyncTransactionalProducer) -> None:
        with pytest.raises(UsageError, match="autocommit"):  # noqa: PT012 - the block is the subject
            async with producer.transaction() as tx:
                tx.send("orders", value="v")
                await tx.join("session")

    run_async(stage, barrier, use)

    assert [] == stage.resolutions()


def test_the_barrier_of_the_example_has_all_that_a_producer_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples" / "shop"))
    barrier = importlib.import_module("shop").QuickBarrier

    assert [] == [name for name in vars(Barrier) if not name.startswith("_") and not hasattr(barrier, name)]
