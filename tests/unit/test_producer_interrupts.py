"""An interrupt (Ctrl-C, a task queue's time limit) anywhere in a producer's own steps: it harms its own transaction alone."""

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

import txlayer.producer
from tests.support.producer_stage import GROUP, ORDER, PATIENCE_S, World
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message
from txlayer.producer.identity import ANYWHERE, BY_MESSAGES
from txlayer.producer.producer import Transaction, TransactionalProducer
from txlayer.producer.waiting import Bell

PRODUCER = txlayer.producer.__path__[0]
LOOKS = ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")
"""Behind these the interpreter looks for signals."""


class Interrupted:
    """Runs a call; at the `number`-th place in the code of the producer, or of `threading`, where the interpreter looks for signals it finds one."""

    def __init__(self, number: int) -> None:
        self.left = number
        self._looked: dict[FrameType, str] = {}

    def __call__(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _given: Any) -> Any:
        if frame.f_back is not None:
            self._looked[frame.f_back] = ""  # a call of Python's own: the interpreter looked in here, not behind it
        if not frame.f_code.co_filename.startswith((PRODUCER, threading.__file__)):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if frame.f_code.co_code[frame.f_lasti + 1] < 2:  # of its RESUME: not behind a `yield from` or an `await`
            self._looked[frame] = "RESUME"
        return self._step

    def _step(self, frame: FrameType, event: str, _given: Any) -> Any:
        if event == "opcode":
            has_looked = self._looked.get(frame) in LOOKS
            self._looked[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self.left -= has_looked
            if has_looked and not self.left:
                raise KeyboardInterrupt
        return self._step


def places(act: Callable[[World, Interrupted], None]) -> Iterator[World]:
    """A world for each place; `act` was interrupted there."""
    number = 0
    while True:
        number += 1
        world, interrupted = World(), Interrupted(number)
        world.engine.learn("orders")
        world.engine.identity.draw(None, 0)  # many ids at once
        try:
            act(world, interrupted)
        except KeyboardInterrupt:
            yield world
        else:
            return


def in_a_block(world: World, interrupted: Interrupted, *, room: int, is_said: bool) -> None:
    """A transaction of three messages, of which the client has room for `room` at a time."""
    world.writer.room = room
    tx = Transaction(world.engine, None, world.engine.entry)
    for _ in range(3):
        tx.send("orders", key=b"k", value=b"v")
    run = tx._prepare_steps()
    try:
        with suppress(StopIteration):
            while True:
                interrupted(partial(next, run))
                world.serve()
        if is_said:
            interrupted(tx.commit)
    except KeyboardInterrupt as exc:
        run.close()
        tx.__exit__(KeyboardInterrupt, exc, None)
        raise
    else:
        interrupted.left += 1  # before its first step it can do nothing
        interrupted(partial(tx.__exit__, None, None, None))
    finally:
        world.writer.room = 100


def submitted(world: World, interrupted: Interrupted) -> None:
    """One plain message."""
    interrupted(lambda: world.engine.launch_plain(ORDER, BY_MESSAGES, None))


def submitted_to_a_full_client(world: World, interrupted: Interrupted) -> None:
    """One plain message; the client has room for it at the second try, without a wait."""
    full = [BufferError()]
    world.writer.refuse_at_once = lambda _topic: full.pop() if full else None
    world.engine.pipeline.round_bell = Bell(lambda: True)
    producer = TransactionalProducer(bootstrap_servers="127.0.0.1:9", group=GROUP)
    producer._engine = world.engine
    try:
        interrupted(partial(producer.submit, ORDER))
    finally:
        full.clear()


ACTS: dict[str, Callable[[World, Interrupted], None]] = {
    "in a block": partial(in_a_block, room=100, is_said=False),
    "committed in a block": partial(in_a_block, room=100, is_said=True),
    "in a block, for a full client": partial(in_a_block, room=1, is_said=False),
    "submitted": submitted,
    "submitted to a full client": submitted_to_a_full_client,
}


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(
            act, id=name, marks=[pytest.mark.slow] if name in ("in a block", "in a block, for a full client") else []
        )
        for name, act in ACTS.items()
    ],
)
def test_an_interrupt_leaves_no_place_taken_and_holds_no_other_up(act: Callable[[World, Interrupted], None]) -> None:
    place_count = 0
    for world in places(act):
        place_count += 1
        world.serve(3)
        said_count = len(world.writer.ops())

        for number in range(8):  # in each partition
            txn = world.engine.launch_plain(Message("orders", b"%d" % number, b"v"), ANYWHERE, None)
            assert txn is not None
        world.serve(3)

        assert {op.resolution for op in world.writer.ops()[:said_count]} <= {COMMIT, ROLLBACK, UNKNOWN}
        assert 8 == sum(op.resolution is COMMIT for op in world.writer.ops()[said_count:])
        assert 0 == world.engine.pipeline.in_flight_count
    assert place_count > 5


def test_an_interrupt_of_who_waits_for_a_result_does_not_stop_the_producer() -> None:
    number = 0
    while True:
        number += 1
        world = World()
        world.engine.learn("orders")
        txn = world.engine.launch_plain(ORDER, BY_MESSAGES, None)
        assert txn is not None
        try:
            with suppress(TimeoutError):
                Interrupted(number)(partial(txn.result, 0))
        except KeyboardInterrupt:
            serving = threading.Thread(target=world.serve, args=(3,), daemon=True)
            serving.start()
            serving.join(PATIENCE_S)
            assert not serving.is_alive()
            assert COMMIT is txn.result(0).resolution
        else:
            return


def test_an_interrupt_at_the_gate_leaves_it_open() -> None:
    for number in range(1, 9):
        world = World()
        pipeline = world.engine.pipeline
        try:
            Interrupted(number)(pipeline.wait_at_gate)
        except KeyboardInterrupt:
            assert not pipeline.gate.locked()
        else:
            return
