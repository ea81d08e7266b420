"""What the end of a joined local transaction means for the resolution: blocks, submitted ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_barrier import FakeBarrier
from tests.support.local_ends import COMMITTED, OPEN, ROLLED_BACK, UNCLEAR, ShopError, each_end, ended
from tests.support.producer_stage import ProducerStage
from txlayer.adapters.ports import LocalState
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, Resolution
from txlayer.errors import BarrierRefusedError, LifecycleError, UsageError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.producer import TransactionalProducer

ORDER = Message("orders", b"k", b"v")
HALF = "txlayer.half"


# --- a block ----------------------------------------------------------------------------------------------------------


@each_end
def test_the_database_decides_how_a_block_ends(
    stage: ProducerStage,
    *,
    state: LocalState,
    has_failed: bool,
    row: Any,
    expected: Resolution,
    is_misfit: bool,
    asked: list[str],
) -> None:
    barrier = FakeBarrier(row=row)
    producer = stage.producer(barrier=barrier)

    def block() -> None:
        with producer.transaction() as tx:
            tx.send("orders", value="v")
            tx.join("session")
            barrier.joined.state = state
            if has_failed:
                raise ShopError("mine")

    ended(block, has_failed=has_failed, is_misfit=is_misfit)
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


def test_join_without_a_barrier_says_what_to_do(stage: ProducerStage) -> None:
    with (  # noqa: PT012 - the block is the subject
        pytest.raises(UsageError, match=r"barrier=…, or call prepare\(\)"),
        stage.producer().transaction() as tx,
    ):
        tx.send("orders", value="v")
        tx.join("session")
    assert [] == stage.writer.stored


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


@each_end
def test_the_database_decides_how_a_submitted_one_ends(
    stage: ProducerStage,
    *,
    state: LocalState,
    has_failed: bool,
    row: Any,
    expected: Resolution,
    is_misfit: bool,
    asked: list[str],
) -> None:
    barrier = FakeBarrier(row=row)
    producer = stage.producer(barrier=barrier)

    def local_transaction(tx: Any) -> None:
        tx.join("session")
        barrier.joined.state = state
        if has_failed:
            raise ShopError("mine")

    future = producer.submit(ORDER, local_transaction)
    ended(lambda: future.result(10), has_failed=has_failed, is_misfit=is_misfit)

    assert [expected] == stage.resolutions()
    assert ["check", "write", *asked] == barrier.words


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
