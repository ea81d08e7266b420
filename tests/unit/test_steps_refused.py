"""A transaction's steps when a limit or the log refuses: what was stored, and what is said."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.producer_stage import HALF, OP, ORDER, World, finish, refuse_index, waits
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.core.messages import COMMIT, Message, Resolution
from txlayer.errors import (
    LifecycleError,
    OutcomeUnknownError,
    RefusedRecordError,
    RetriableError,
    RollbackRequiredError,
    TxLayerError,
)
from txlayer.producer import pipeline, steps
from txlayer.producer.pipeline import OpRecord, PendingStage, PendingTransaction, PipelineState
from txlayer.producer.submitted import SubmittedTransaction
from txlayer.producer.waiting import Blocking

# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P11")
def test_no_more_than_in_flight_max_are_in_flight() -> None:
    world = World(in_flight_max=2)
    first = world.prepared()
    world.launch()
    third = world.steps()

    assert waits(third)
    steps.resolve(world.engine, first, COMMIT)
    world.serve(2)
    assert isinstance(finish(third), PendingTransaction)
    assert 2 == world.engine.pipeline.in_flight_count


def test_a_place_is_waited_for_no_longer_than_the_prepare_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1.0
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: now))
    world = World(in_flight_max=1, prepare_timeout=timedelta(seconds=10))
    world.launch()
    run = world.steps()
    assert waits(run)
    now += 9
    assert waits(run)

    now += 2
    with pytest.raises(RetriableError, match="in_flight_max=1"):
        next(run)


def test_messages_that_the_client_has_no_room_for_follow_later() -> None:
    world = World()
    world.writer.room = 2
    messages = [Message("orders", b"k", str(n)) for n in range(5)]
    run = world.steps(messages)
    world.engine.learn("orders")

    assert waits(run)
    world.serve()
    assert waits(run)
    world.serve()
    txn = finish(run)
    world.serve()

    assert PendingStage.PREPARED is txn.stage
    assert [b"0", b"1", b"2", b"3", b"4"] == [r.value() for r in world.writer.of(HALF)]


@pytest.mark.parametrize(("room", "error"), [(0, RetriableError), (1, RollbackRequiredError)])
def test_room_that_never_comes_is_waited_for_no_longer_than_the_prepare_timeout(
    room: int, error: type[TxLayerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a message that is larger than the client's `queue.buffering.max.kbytes`."""
    now = 1.0
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: now))
    world = World(prepare_timeout=timedelta(seconds=10))
    world.writer.room = room
    world.engine.learn("orders")
    run = world.steps([ORDER, ORDER])
    assert waits(run)
    now += 11

    with pytest.raises(error, match="no room"):
        next(run)
    world.serve(2)
    assert room == len(world.writer.of(HALF)) == world.stage.resolutions().count(Resolution.ROLLBACK)
    assert 0 == world.engine.pipeline.in_flight_count


def test_an_op_line_that_the_client_has_no_room_for_follows_later() -> None:
    world = World()
    txn = world.prepared()
    world.writer.room = 0
    steps.resolve(world.engine, txn, COMMIT)
    world.serve()
    assert [] == world.writer.of(OP)

    world.writer.room = 1
    world.serve(2)
    assert 1 == len(world.writer.of(OP))
    assert txn.is_over


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_half_messages_that_were_all_refused_leave_nothing_behind_and_the_first_refusal_is_told() -> None:
    """The last one alone might say that the same call may be made again."""
    world = World()
    errors = [RefusedRecordError("no", topic=HALF), RetriableError("closed")]
    world.writer.refuse = lambda _record: errors.pop(0)
    txn = world.launch([ORDER, ORDER])
    world.serve()

    with pytest.raises(RefusedRecordError):
        finish(steps.stored(world.engine, txn))
    world.serve()
    assert [] == world.writer.stored
    assert 0 == world.engine.pipeline.in_flight_count


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RefusedRecordError("no"), RefusedRecordError),
        (OutcomeUnknownError("late", step="half"), OutcomeUnknownError),
        (RetriableError("closed"), RollbackRequiredError),
    ],
)
def test_what_is_stored_of_a_transaction_that_lost_a_part_is_rolled_back(
    error: TxLayerError, raised: type[TxLayerError]
) -> None:
    world = World()
    world.writer.refuse = refuse_index(1, error)
    txn = world.launch([ORDER, ORDER, ORDER])
    world.serve()

    with pytest.raises(raised):
        finish(steps.stored(world.engine, txn))
    world.serve()
    (op,) = world.writer.ops()
    assert (Resolution.ROLLBACK, 1) == (op.resolution, op.last_offset)
    assert PendingStage.FAILED is txn.stage
    assert 0 == world.engine.pipeline.in_flight_count


@pytest.mark.parametrize("error", [RefusedRecordError("too large", topic="orders"), KeyboardInterrupt()])
def test_a_record_that_the_client_refuses_at_once_or_an_interrupt_rolls_the_rest_back(error: BaseException) -> None:
    world = World()
    world.engine.learn("orders")
    given: list[int] = []

    def refuse(_topic: str) -> Exception | None:
        given.append(1)
        if len(given) == 3 and not isinstance(error, Exception):
            raise error
        return error if len(given) == 3 and isinstance(error, Exception) else None

    world.writer.refuse_at_once = refuse
    with pytest.raises(type(error)):
        world.launch([ORDER] * 4)
    world.serve(2)
    (op,) = world.writer.ops()
    assert (Resolution.ROLLBACK, 1) == (op.resolution, op.last_offset)
    assert 0 == world.engine.pipeline.in_flight_count


@pytest.mark.fault("producer: is killed (`kill -9`) before Kafka acknowledges its half messages")
def test_who_goes_away_while_messages_still_wait_for_room_is_rolled_back() -> None:
    world = World()
    world.writer.room = 2
    world.engine.learn("orders")
    run = world.steps([ORDER] * 5)
    assert waits(run)

    run.close()
    world.serve(2)
    (op,) = world.writer.ops()
    assert (Resolution.ROLLBACK, 1) == (op.resolution, op.last_offset)
    assert 0 == world.engine.pipeline.in_flight_count


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_abandoned_transaction_is_unknown_once_it_is_stored(*, is_stored: bool) -> None:
    world = World()
    txn = world.prepared() if is_stored else world.launch()

    world.engine.pipeline.post(txn.abandon)
    world.serve(2)
    (op,) = world.writer.ops()
    assert Resolution.UNKNOWN is op.resolution
    assert 0 == world.engine.pipeline.in_flight_count


def test_an_abandoned_transaction_that_is_being_stored_says_nothing_before_it_is() -> None:
    world = World()
    txn = world.launch()
    world.writer.hold(True)
    world.engine.pipeline.post(txn.abandon)
    world.serve()
    world.writer.hold(False)
    world.serve(2)

    (op,) = world.writer.ops()
    assert (Resolution.UNKNOWN, 0) == (op.resolution, op.last_offset)
    assert 0 == world.engine.pipeline.in_flight_count


def test_who_goes_away_takes_no_word_back() -> None:
    world = World()
    txn = world.prepared()
    world.writer.room = 0  # its line still waits
    steps.resolve(world.engine, txn, COMMIT)

    world.engine.pipeline.post(txn.abandon)
    world.serve()
    world.writer.room = 1
    world.serve(2)
    assert [COMMIT] == [op.resolution for op in world.writer.ops()]
    assert 0 == world.engine.pipeline.in_flight_count


def test_a_refusal_is_told_although_the_rest_was_not_sent() -> None:
    world = World()
    world.writer.room = 1
    world.writer.refuse = lambda _record: RefusedRecordError("no")
    world.engine.learn("orders")
    made: list[PendingTransaction] = []

    def make(*arguments: Any) -> PendingTransaction:
        made.append(PendingTransaction(*arguments))
        return made[0]

    run = world.steps([ORDER] * 3, make=make)
    assert waits(run)
    (txn,) = made
    world.serve()
    run.close()
    world.serve()

    with pytest.raises(RefusedRecordError):
        finish(steps.stored(world.engine, txn))
    assert 0 == world.engine.pipeline.in_flight_count


def test_why_a_transaction_was_lost_is_told_although_its_rollback_was_lost_too() -> None:
    world = World()
    world.writer.refuse = refuse_index(1, RefusedRecordError("no"))
    txn = world.launch([ORDER, ORDER])
    world.serve()
    world.writer.refuse = lambda _record: RefusedRecordError("no", topic=OP)
    world.serve()

    with pytest.raises(RefusedRecordError):
        finish(steps.stored(world.engine, txn))
    assert 0 == world.engine.pipeline.in_flight_count


@pytest.mark.fault("producer: its op is stored, but the answer is lost")
def test_an_op_line_that_nobody_acknowledged_is_sent_again() -> None:
    world = World()
    txn = world.prepared()
    refused: list[MemoryRecord] = []

    def refuse(record: MemoryRecord) -> TxLayerError | None:
        if record.topic() == OP and len(refused) < 2:
            refused.append(record)
            return OutcomeUnknownError("late", step="op")
        return None

    world.writer.refuse = refuse
    steps.resolve(world.engine, txn, COMMIT)
    world.serve(3)
    assert COMMIT is finish(steps.result(world.engine, txn)).resolution
    (op,) = world.writer.of(OP)
    assert [op.value()] * 2 == [r.value() for r in refused]


def test_lines_of_several_partitions_are_sent_again_each_once() -> None:
    world = World()
    keys = [f"order-{number}/00000001" for number in range(8)]
    txns = [world.prepared(key=key) for key in keys]
    refused: list[MemoryRecord] = []

    def refuse(record: MemoryRecord) -> TxLayerError | None:
        if record.topic() != OP or len(refused) >= len(keys):
            return None
        refused.append(record)
        return OutcomeUnknownError("late", step="op")

    world.writer.refuse = refuse
    for txn in txns:
        steps.resolve(world.engine, txn, COMMIT)
    world.serve(9)

    assert 1 < len({txn.half_partition for txn in txns})
    assert sorted(keys) == sorted(op.key for op in world.writer.ops())
    assert 0 == world.engine.pipeline.in_flight_count


def test_an_op_line_is_sent_again_for_no_longer_than_the_resolution_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: now))
    world = World(resolution_timeout=timedelta(seconds=60))
    txn = world.prepared()
    world.writer.refuse = lambda _record: OutcomeUnknownError("late", step="op")
    steps.resolve(world.engine, txn, COMMIT)
    for _ in range(3):
        now += 30
        assert not txn.is_over
        world.serve()

    with pytest.raises(OutcomeUnknownError):
        finish(steps.result(world.engine, txn))
    assert 0 == world.engine.pipeline.in_flight_count


def test_an_op_line_that_a_failed_producer_had_sent_is_not_waited_for() -> None:
    world = World()
    txn = world.launch(make=SubmittedTransaction)
    assert isinstance(txn, SubmittedTransaction)
    world.serve()
    world.writer.refuse = lambda _record: OutcomeUnknownError("the client failed", step="op")
    # As the thread says it, before the client gives its reports back.
    world.engine.pipeline.state = PipelineState.FAILED

    world.serve()

    with pytest.raises(OutcomeUnknownError):
        txn.result(0)


@pytest.mark.parametrize("is_place_known", [True, False])
def test_a_line_that_was_written_twice_gives_one_place_back(*, is_place_known: bool) -> None:
    """An interrupt between the client's answer and ours: the line stands in both records."""
    world = World()
    txn = world.prepared()
    record = OpRecord(txn.queue, [txn])
    txn.resolution = COMMIT
    for _ in range(2):
        record.reported(None, SimpleNamespace(offset=lambda: 7 if is_place_known else None))
    world.serve()

    assert txn.is_over
    assert 0 == world.engine.pipeline.in_flight_count


@pytest.mark.parametrize("is_at_once", [False, True])
def test_an_op_line_that_is_refused_for_good_is_an_unknown_outcome(*, is_at_once: bool) -> None:
    world = World()
    txn = world.prepared()
    if is_at_once:
        world.writer.refuse_at_once = lambda topic: RefusedRecordError("no", topic=topic)
    else:
        world.writer.refuse = lambda _record: RefusedRecordError("no", topic=OP)
    steps.resolve(world.engine, txn, COMMIT)
    world.serve()

    with pytest.raises(OutcomeUnknownError) as raised:
        finish(steps.result(world.engine, txn))
    assert ("order-1", "op") == (raised.value.txn_id, raised.value.step)
    assert isinstance(raised.value.__cause__, RefusedRecordError)
    assert 0 == world.engine.pipeline.in_flight_count


@pytest.mark.parametrize("step", ["stored", "result"])
def test_who_waits_at_a_producer_that_broke_is_told(step: str) -> None:
    world = World()
    txn = world.launch() if step == "stored" else world.prepared()
    world.writer.hold(True)
    if step == "result":
        steps.resolve(world.engine, txn, COMMIT)
    run = getattr(steps, step)(world.engine, txn)
    assert waits(run)
    world.engine.pipeline.state = PipelineState.FAILED

    with pytest.raises(OutcomeUnknownError):
        next(run)


def test_who_waits_for_room_at_a_producer_that_ended_is_told() -> None:
    world = World()
    world.writer.room = 1
    world.engine.learn("orders")
    run = world.steps([ORDER] * 3)
    assert waits(run)
    world.engine.pipeline.state = PipelineState.CLOSED

    with pytest.raises(LifecycleError):
        next(run)


def test_a_resolution_after_the_end_is_an_unknown_outcome() -> None:
    world = World()
    txn = world.prepared()
    world.engine.pipeline.state = PipelineState.CLOSED
    steps.resolve(world.engine, txn, COMMIT)

    with pytest.raises(OutcomeUnknownError):
        finish(steps.result(world.engine, txn))
    assert [] == world.writer.of(OP)


def test_who_waits_for_a_place_is_woken_when_the_producer_closes() -> None:
    world = World(in_flight_max=1)
    world.prepared()
    run, woken = world.steps(), list[bool]()
    assert waits(run, lambda: woken.append(True))

    world.engine.pipeline.begin_close()
    world.serve()

    assert woken
    with pytest.raises(LifecycleError):
        next(run)


def test_closing_refuses_what_is_new_and_waits_for_what_is_in_flight() -> None:
    world = World()
    txn = world.prepared()
    run = steps.close(world.engine, 10.0)

    assert waits(run)
    with pytest.raises(LifecycleError):
        world.launch()
    steps.resolve(world.engine, txn, COMMIT)
    world.serve()
    wait = next(run)
    assert isinstance(wait, Blocking)
    assert 0 == world.engine.pipeline.in_flight_count


# --- the end ----------------------------------------------------------------------------------------------------------


def test_in_a_child_process_nothing_is_written_and_nobody_is_told() -> None:
    world = World()
    txn = world.prepared()
    pipeline = world.engine.pipeline
    pipeline.state = PipelineState.FORKED

    steps.resolve(world.engine, txn, COMMIT)
    pipeline.end(0.0)

    assert (False, False) == (txn.is_over, world.writer.is_closed)
    assert [] == world.writer.of(OP)


def test_what_is_posted_to_a_producer_that_ended_is_done_at_once() -> None:
    world = World()
    world.engine.pipeline.state = PipelineState.CLOSED
    done: list[str] = []

    world.engine.pipeline.post(lambda: done.append("at once"))

    assert ["at once"] == done


@pytest.mark.parametrize("has_failed", [False, True])
def test_reports_that_come_while_the_client_closes_are_served(*, has_failed: bool) -> None:
    world = World()
    woken: list[str] = []
    world.writer.hold(True)
    txn = world.launch()
    assert txn.until_stored(lambda: woken.append("stored"))
    pipeline = world.engine.pipeline
    pipeline.start()
    if has_failed:
        pipeline.state = PipelineState.FAILED

    pipeline.end(0.0)

    assert PendingStage.PREPARED is txn.stage
    assert (["stored"], False) == (woken, pipeline.is_serving)
    assert (PipelineState.FAILED if has_failed else PipelineState.CLOSED) is pipeline.state


def test_a_line_that_was_to_be_sent_again_is_an_unknown_outcome_at_the_end() -> None:
    world = World()
    txn = world.prepared()
    world.writer.refuse = lambda _record: OutcomeUnknownError("late", step="op")
    steps.resolve(world.engine, txn, COMMIT)
    world.writer.room = 0
    world.serve()
    assert not txn.is_over

    world.engine.pipeline.start()
    world.engine.pipeline.end(0.0)
    with pytest.raises(OutcomeUnknownError):
        finish(steps.result(world.engine, txn))
    assert 0 == world.engine.pipeline.in_flight_count


def test_who_waits_for_a_line_that_was_never_sent_is_woken_at_the_end() -> None:
    world = World()
    woken: list[str] = []
    txn = world.prepared()
    world.writer.room = 0
    steps.resolve(world.engine, txn, COMMIT)
    assert txn.until_over(lambda: woken.append("over"))

    world.engine.pipeline.start()
    world.engine.pipeline.end(0.0)
    assert ["over"] == woken


def test_a_forked_process_asks_nothing_of_its_parents_client() -> None:
    """It has none of the client's threads: the question would wait for its time-out."""
    world = World()
    world.engine.pipeline.state = PipelineState.FORKED

    with pytest.raises(LifecycleError, match="after the fork"):
        world.launch([ORDER, ORDER])
    assert [] == world.stage.asked
