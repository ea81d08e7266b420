"""A transaction's life, driven by hand: no thread, no waiting. Reports come when the test serves a round."""

import pytest

from tests.support.producer_stage import HALF, KEY, OP, ORDER, World, finish, waits
from txlayer.core import codec
from txlayer.core.messages import COMMIT, HalfHeader, Message, OpMessage
from txlayer.errors import RefusedRecordError
from txlayer.producer import steps
from txlayer.producer.identity import ANYWHERE
from txlayer.producer.pipeline import PendingTransaction
from txlayer.producer.submitted import SubmittedTransaction
from txlayer.producer.waiting import BarrierCall, Blocking

# --- the good way -----------------------------------------------------------------------------------------------------


def test_a_transaction_is_half_records_then_one_op_line() -> None:
    world = World()
    messages = [ORDER, Message("stock", None, None, headers=[("h", b"1")])]

    txn = world.launch(messages)
    world.serve()
    finish(steps.stored(world.engine, txn))
    steps.resolve(world.engine, txn, COMMIT)
    world.serve()
    result = finish(steps.result(world.engine, txn))

    first, second = world.writer.of(HALF)
    header = HalfHeader(KEY, "g", "orders", 0, 2, txn.born_ms, codec.decode_options(""))
    assert ((b"k", b"v"), [("txl", codec.encode_half_header(header))]) == (
        (first.key(), first.value()),
        first.headers(),
    )
    header = header._replace(topic="stock", index=1)
    assert ((None, None), [("h", b"1"), ("txl", codec.encode_half_header(header))]) == (
        (second.key(), second.value()),
        second.headers(),
    )
    (op,) = world.writer.of(OP)
    line = codec.encode_op(OpMessage(COMMIT, KEY, "g", second.offset(), txn.born_ms))
    assert (None, codec.encode_ops([line])) == (op.key(), op.value())
    assert first.partition() == second.partition() == op.partition() == result.half_partition
    assert ("order-1", "00000001", COMMIT, 1, 0) == (
        result.txn_id,
        result.nonce,
        result.resolution,
        result.last_half_offset,
        result.op_offset,
    )


def test_submit_and_the_steps_write_the_same_bytes() -> None:
    by_steps, by_submit = World(), World()
    txn = by_steps.launch(make=SubmittedTransaction)
    by_steps.serve()
    by_steps.serve()
    by_submit.engine.learn("orders")
    plain = by_submit.engine.launch_plain(ORDER, ANYWHERE, None)
    by_submit.serve()
    by_submit.serve()

    assert plain is not None
    assert txn.is_over
    assert plain.is_over
    for topic in (HALF, OP):
        (expected,), (actual,) = by_steps.writer.of(topic), by_submit.writer.of(topic)

        def neutral(text: bytes | None, made_by: PendingTransaction) -> bytes:
            plain_text = (text or b"").replace(made_by.key.encode(), b"KEY")
            return plain_text.replace(str(made_by.born_ms).encode(), b"BORN")

        assert expected.key() == actual.key()
        assert neutral(expected.value(), txn) == neutral(actual.value(), plain)
        assert [(n, neutral(v, txn)) for n, v in expected.headers() or ()] == [
            (n, neutral(v, plain)) for n, v in actual.headers() or ()
        ]


def test_ready_resolutions_of_a_partition_share_one_op_record() -> None:
    world = World()
    txns = [world.launch(make=SubmittedTransaction, key=f"order-1/0000000{n}") for n in range(5)]
    world.serve(2)

    (op,) = world.writer.of(OP)
    assert [f.key for f in txns] == [line.key for line in world.writer.ops()]
    assert {op.offset()} == {f.op_offset for f in txns}


def test_an_op_record_never_holds_more_lines_than_its_limit() -> None:
    world = World()
    for _ in range(2_500):
        world.launch(make=SubmittedTransaction)
    world.serve(2)

    counts = [len((r.value() or b"").split(b"\n")) for r in world.writer.of(OP)]
    assert [1_000, 1_000, 500] == counts


def test_a_waiter_that_comes_after_the_report_does_not_wait() -> None:
    world = World()
    txn = world.launch()
    run = steps.stored(world.engine, txn)
    wait = next(run)
    world.serve()

    assert not isinstance(wait, BarrierCall | Blocking)
    assert not wait(lambda: None)
    with pytest.raises(StopIteration):
        next(run)


def test_a_waiter_is_woken_once_and_not_for_what_it_did_not_wait_for() -> None:
    world = World()
    woken: list[str] = []
    txn = world.launch()

    assert waits(steps.stored(world.engine, txn), lambda: woken.append("stored"))
    world.serve(2)
    assert ["stored"] == woken

    steps.resolve(world.engine, txn, COMMIT)
    world.serve()
    assert txn.is_over
    assert ["stored"] == woken


def test_a_transaction_knows_its_first_half_record_and_its_last() -> None:
    """Where its history begins, and what its op line names."""
    txn = World().prepared([ORDER, ORDER, ORDER])

    assert (0, 2) == (txn.first_offset, txn.last_offset)


# --- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_that_has_grown_is_asked_about_again_before_a_message_is_refused() -> None:
    world = World()
    world.launch()
    world.stage.set_topic("orders", partitions=5)

    world.launch([Message("orders", partition=4)])
    with pytest.raises(RefusedRecordError):
        world.launch([Message("orders", partition=5)])
    assert ["orders"] * 3 == world.stage.asked
