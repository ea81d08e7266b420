"""A transaction's life, driven by hand: no thread, no waiting. Reports come when the test serves a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.fake_log import PLENTY, FakeConnections, FakeRecord, FakeWriter
from txlayer.adapters.ports import TopicLimits
from txlayer.config import ProducerConfig
from txlayer.core import codec
from txlayer.core.messages import COMMIT, HalfHeader, Message, OpMessage, Resolution
from txlayer.errors import (
    ForbiddenTopicError,
    LifecycleError,
    OutcomeUnknownError,
    RefusedRecordError,
    RetriableError,
    RollbackRequiredError,
    TxLayerError,
)
from txlayer.producer import steps
from txlayer.producer.engine import Engine, assemble
from txlayer.producer.flight import Flight, Stage
from txlayer.producer.identity import ANYWHERE
from txlayer.producer.pipeline import State
from txlayer.producer.submitted import SubmittedTransaction
from txlayer.producer.waiting import Blocking, Steps

KEY = "order-1/00000001"
ORDER = Message("orders", b"k", b"v")
HALF, OP = "txlayer.half", "txlayer.op"


class World:
    """An engine without its thread, over a log in memory."""

    def __init__(self, **settings: Any) -> None:
        config = ProducerConfig(**settings)
        self.connections = FakeConnections(config)
        topics = self.connections.topics
        self.engine: Engine = assemble(
            config, self.connections, topics[HALF], topics[OP], group="g", serializer=None
        )

    @property
    def writer(self) -> FakeWriter:
        return self.connections.writer

    def serve(self) -> None:
        self.engine.pipeline.serve(0)

    def launch(
        self, messages: Sequence[Message] = (ORDER,), make: Any = Flight, key: str = KEY
    ) -> Flight:
        flight = finish(steps.launch(self.engine, make, messages, ANYWHERE, key))
        assert isinstance(flight, Flight)
        return flight

    def prepared(self, messages: Sequence[Message] = (ORDER,), key: str = KEY) -> Flight:
        flight = self.launch(messages, key=key)
        self.serve()
        finish(steps.stored(self.engine, flight))
        return flight


def finish(run: Steps[Any]) -> Any:
    """Run steps that never have to wait for a report; blocking calls are made on the spot."""
    answer: Any = None
    try:
        while True:
            wait = run.send(answer)
            assert isinstance(wait, Blocking), "the steps wait for a report"
            answer = wait.call()
    except StopIteration as stop:
        return stop.value


def waits(run: Steps[Any]) -> bool:
    """True when the steps' next wish is to wait, and nothing woke them yet."""
    wait = next(run)
    assert not isinstance(wait, Blocking)
    return wait(lambda: None)


def ops_of(world: World) -> list[OpMessage]:
    lines = [codec.decode_op(line) for line in world.writer.op_lines()]
    assert all(isinstance(line, OpMessage) for line in lines)
    return lines  # type: ignore[return-value] # just asserted


def refuse_index(number: int, error: TxLayerError) -> Any:
    def refuse(record: FakeRecord) -> TxLayerError | None:
        raw = codec.half_header_of(record.headers)
        header = None if raw is None else codec.decode_half_header(raw)
        return error if isinstance(header, HalfHeader) and header.index == number else None

    return refuse


# --- the good way -----------------------------------------------------------------------------------------------------


def test_a_transaction_is_half_records_then_one_op_line() -> None:
    world = World()
    messages = [ORDER, Message("stock", None, None, headers=[("h", b"1")])]

    flight = world.launch(messages)
    world.serve()
    finish(steps.stored(world.engine, flight))
    steps.resolve(world.engine, flight, COMMIT)
    world.serve()
    result = finish(steps.result(world.engine, flight))

    first, second = world.writer.of(HALF)
    header = HalfHeader(KEY, "g", "orders", 0, 2, flight.born_ms, codec.decode_options(""))
    assert ((b"k", b"v"), [("txl", codec.encode_half_header(header))]) == (
        (first.key, first.value),
        first.headers,
    )
    header = header._replace(topic="stock", index=1)
    assert ((None, None), [("h", b"1"), ("txl", codec.encode_half_header(header))]) == (
        (second.key, second.value),
        second.headers,
    )
    (op,) = world.writer.of(OP)
    line = codec.encode_op(OpMessage(COMMIT, KEY, "g", second.offset(), flight.born_ms))
    assert (None, codec.encode_ops([line])) == (op.key, op.value)
    assert first.partition == second.partition == op.partition == result.half_partition
    assert ("order-1", "00000001", COMMIT, 1, 0) == (
        result.txn_id,
        result.nonce,
        result.resolution,
        result.last_half_offset,
        result.op_offset,
    )


def test_submit_and_the_steps_write_the_same_bytes() -> None:
    by_steps, by_submit = World(), World()
    flight = by_steps.launch(make=SubmittedTransaction)
    by_steps.serve()
    by_steps.serve()
    by_submit.engine.learn("orders")
    plain = by_submit.engine.launch_plain(ORDER, None)
    by_submit.serve()
    by_submit.serve()

    assert plain is not None
    assert flight.is_over
    assert plain.is_over
    for topic in (HALF, OP):
        (expected,), (actual,) = by_steps.writer.of(topic), by_submit.writer.of(topic)

        def neutral(text: bytes | None, made_by: Flight) -> bytes:
            plain_text = (text or b"").replace(made_by.key.encode(), b"KEY")
            return plain_text.replace(str(made_by.born_ms).encode(), b"BORN")

        assert expected.key == actual.key
        assert neutral(expected.value, flight) == neutral(actual.value, plain)
        assert [(n, neutral(v, flight)) for n, v in expected.headers] == [
            (n, neutral(v, plain)) for n, v in actual.headers
        ]


def test_the_local_transaction_waits_for_every_half_message() -> None:
    world = World()
    flight = world.launch([ORDER, ORDER])

    assert waits(steps.stored(world.engine, flight))
    assert [] == world.writer.of(HALF)
    world.serve()
    finish(steps.stored(world.engine, flight))
    assert 2 == len(world.writer.of(HALF))


def test_ready_resolutions_of_a_partition_share_one_op_record() -> None:
    world = World()
    flights = [world.launch(make=SubmittedTransaction, key=f"order-1/0000000{n}") for n in range(5)]
    world.serve()
    world.serve()

    (op,) = world.writer.of(OP)
    assert [f.key for f in flights] == [line.key for line in ops_of(world)]
    assert {op.offset()} == {f.op_offset for f in flights}


def test_an_op_record_never_holds_more_lines_than_its_limit() -> None:
    world = World()
    for _ in range(2_500):
        world.launch(make=SubmittedTransaction)
    world.serve()
    world.serve()

    counts = [len((r.value or b"").split(b"\n")) for r in world.writer.of(OP)]
    assert [1_000, 1_000, 500] == counts


def test_a_waiter_that_comes_after_the_report_does_not_wait() -> None:
    world = World()
    flight = world.launch()
    run = steps.stored(world.engine, flight)
    wait = next(run)
    world.serve()

    assert not isinstance(wait, Blocking)
    assert not wait(lambda: None)
    with pytest.raises(StopIteration):
        next(run)


def test_a_waiter_is_woken_once_when_the_round_ends() -> None:
    world = World()
    woken: list[str] = []
    flight = world.launch()
    wait = next(steps.stored(world.engine, flight))
    assert not isinstance(wait, Blocking)

    assert wait(lambda: woken.append("stored"))
    world.serve()
    world.serve()
    assert ["stored"] == woken


# --- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_is_asked_about_once() -> None:
    world = World()
    world.launch()
    world.launch()

    assert ["orders"] == world.connections.asked


def test_nothing_is_sent_to_a_topic_that_does_not_exist() -> None:
    world = World()

    with pytest.raises(ForbiddenTopicError):
        world.launch([ORDER, Message("ordres")])
    world.serve()
    assert [] == world.writer.stored
    assert 0 == world.engine.pipeline.in_flight_count


def test_a_topic_that_has_grown_is_asked_about_again_before_a_message_is_refused() -> None:
    world = World()
    world.launch()
    world.connections.topics["orders"] = TopicLimits(5, 2 * PLENTY, is_reachable=True)

    world.launch([Message("orders", partition=4)])
    with pytest.raises(RefusedRecordError):
        world.launch([Message("orders", partition=5)])
    assert ["orders"] * 3 == world.connections.asked


# --- limits -----------------------------------------------------------------------------------------------------------


def test_no_more_than_in_flight_max_are_in_flight() -> None:
    world = World(in_flight_max=2)
    first = world.prepared()
    world.launch()
    third = steps.launch(world.engine, Flight, [ORDER], ANYWHERE, KEY)

    assert waits(third)
    steps.resolve(world.engine, first, COMMIT)
    world.serve()
    world.serve()
    assert isinstance(finish(third), Flight)
    assert 2 == world.engine.pipeline.in_flight_count


def test_who_may_not_wait_is_told_at_once() -> None:
    world = World(in_flight_max=1)
    world.launch()

    with pytest.raises(RetriableError, match="in_flight_max=1"):
        finish(steps.launch(world.engine, Flight, [ORDER], ANYWHERE, KEY, may_wait=False))


def test_messages_that_the_client_has_no_room_for_follow_later() -> None:
    world = World()
    world.writer.room = 2
    messages = [Message("orders", b"k", str(n)) for n in range(5)]
    run = steps.launch(world.engine, Flight, messages, ANYWHERE, KEY)
    world.engine.learn("orders")

    assert waits(run)
    world.serve()
    assert waits(run)
    world.serve()
    flight = finish(run)
    world.serve()

    assert Stage.PREPARED is flight.stage
    assert [b"0", b"1", b"2", b"3", b"4"] == [r.value for r in world.writer.of(HALF)]


def test_an_op_line_that_the_client_has_no_room_for_follows_later() -> None:
    world = World()
    flight = world.prepared()
    world.writer.room = 0
    steps.resolve(world.engine, flight, COMMIT)
    world.serve()
    assert [] == world.writer.of(OP)

    world.writer.room = 1
    world.serve()
    world.serve()
    assert 1 == len(world.writer.of(OP))
    assert flight.is_over


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_half_messages_that_were_all_refused_leave_nothing_behind() -> None:
    world = World()
    world.writer.refuse = lambda _record: RefusedRecordError("no", topic=HALF)
    flight = world.launch([ORDER, ORDER])
    world.serve()

    with pytest.raises(RefusedRecordError):
        finish(steps.stored(world.engine, flight))
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
    flight = world.launch([ORDER, ORDER, ORDER])
    world.serve()

    with pytest.raises(raised):
        finish(steps.stored(world.engine, flight))
    world.serve()
    (op,) = ops_of(world)
    assert (Resolution.ROLLBACK, 1) == (op.resolution, op.last_offset)
    assert Stage.FAILED is flight.stage
    assert 0 == world.engine.pipeline.in_flight_count


def test_a_record_that_the_client_refuses_at_once_rolls_the_rest_back() -> None:
    world = World()
    world.engine.learn("orders")
    given: list[int] = []

    def refuse(topic: str) -> Exception | None:
        given.append(1)
        return RefusedRecordError("too large", topic=topic) if len(given) == 3 else None

    world.writer.refuse_at_once = refuse
    with pytest.raises(RefusedRecordError):
        world.launch([ORDER] * 4)
    world.serve()
    world.serve()
    (op,) = ops_of(world)
    assert (Resolution.ROLLBACK, 1) == (op.resolution, op.last_offset)
    assert 0 == world.engine.pipeline.in_flight_count


def test_who_goes_away_while_messages_still_wait_for_room_is_rolled_back() -> None:
    world = World()
    world.writer.room = 2
    world.engine.learn("orders")
    run = steps.launch(world.engine, Flight, [ORDER] * 5, ANYWHERE, KEY)
    assert waits(run)

    run.close()
    world.serve()
    world.serve()
    (op,) = ops_of(world)
    assert (Resolution.ROLLBACK, 1) == (op.resolution, op.last_offset)
    assert 0 == world.engine.pipeline.in_flight_count


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_abandoned_transaction_is_unknown_once_it_is_stored(*, is_stored: bool) -> None:
    world = World()
    flight = world.prepared() if is_stored else world.launch()

    world.engine.pipeline.post(flight.abandon)
    world.serve()
    world.serve()
    (op,) = ops_of(world)
    assert Resolution.UNKNOWN is op.resolution
    assert 0 == world.engine.pipeline.in_flight_count


def test_an_op_line_that_nobody_acknowledged_is_sent_again() -> None:
    world = World()
    flight = world.prepared()
    refused: list[FakeRecord] = []

    def refuse(record: FakeRecord) -> TxLayerError | None:
        if record.topic_name == OP and len(refused) < 2:
            refused.append(record)
            return OutcomeUnknownError("late", step="op")
        return None

    world.writer.refuse = refuse
    steps.resolve(world.engine, flight, COMMIT)
    for _ in range(3):
        world.serve()
    assert COMMIT is finish(steps.result(world.engine, flight)).resolution
    (op,) = world.writer.of(OP)
    assert [op.value] * 2 == [r.value for r in refused]


def test_an_op_line_that_is_refused_for_good_is_an_unknown_outcome() -> None:
    world = World()
    flight = world.prepared()
    world.writer.refuse = lambda _record: RefusedRecordError("no", topic=OP)
    steps.resolve(world.engine, flight, COMMIT)
    world.serve()

    with pytest.raises(OutcomeUnknownError) as raised:
        finish(steps.result(world.engine, flight))
    assert ("order-1", "op") == (raised.value.txn_id, raised.value.step)
    assert isinstance(raised.value.__cause__, RefusedRecordError)
    assert 0 == world.engine.pipeline.in_flight_count


def test_an_op_line_that_the_client_refuses_at_once_is_an_unknown_outcome() -> None:
    world = World()
    flight = world.prepared()
    world.writer.refuse_at_once = lambda topic: RefusedRecordError("no", topic=topic)
    steps.resolve(world.engine, flight, COMMIT)
    world.serve()

    with pytest.raises(OutcomeUnknownError):
        finish(steps.result(world.engine, flight))


def test_who_waits_at_a_producer_that_broke_is_told() -> None:
    world = World()
    flight = world.launch()
    world.engine.pipeline.state = State.FAILED

    with pytest.raises(OutcomeUnknownError):
        finish(steps.stored(world.engine, flight))


def test_a_resolution_after_the_end_is_an_unknown_outcome() -> None:
    world = World()
    flight = world.prepared()
    world.engine.pipeline.state = State.CLOSED
    steps.resolve(world.engine, flight, COMMIT)

    with pytest.raises(OutcomeUnknownError):
        finish(steps.result(world.engine, flight))
    assert [] == world.writer.of(OP)


def test_closing_refuses_what_is_new_and_waits_for_what_is_in_flight() -> None:
    world = World()
    flight = world.prepared()
    run = steps.close(world.engine, 10.0)

    assert waits(run)
    with pytest.raises(LifecycleError):
        world.launch()
    steps.resolve(world.engine, flight, COMMIT)
    world.serve()
    wait = next(run)
    assert isinstance(wait, Blocking)
    assert 0 == world.engine.pipeline.in_flight_count
