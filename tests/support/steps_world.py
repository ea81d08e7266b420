"""A transaction's steps driven by hand: a world without threads, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.fake_log import FakeConnections, FakeRecord, FakeWriter
from txlayer.config import ProducerConfig
from txlayer.core import codec
from txlayer.core.messages import HalfHeader, Message, OpMessage
from txlayer.errors import TxLayerError
from txlayer.producer import steps
from txlayer.producer.engine import Engine, assemble
from txlayer.producer.identity import ANYWHERE
from txlayer.producer.pipeline import PendingTransaction
from txlayer.producer.waiting import BarrierCall, Blocking, Steps

KEY = "order-1/00000001"
ORDER = Message("orders", b"k", b"v")
HALF, OP = "txlayer.half", "txlayer.op"


class World:
    """An engine without its thread, over a log in memory."""

    def __init__(self, **settings: Any) -> None:
        config = ProducerConfig(**settings)
        self.connections = FakeConnections(config)
        topics = self.connections.topics
        self.engine: Engine = assemble(config, self.connections, topics[HALF], topics[OP], group="g", serializer=None)

    @property
    def writer(self) -> FakeWriter:
        return self.connections.writer

    def serve(self) -> None:
        self.engine.pipeline.serve(0)

    def launch(
        self, messages: Sequence[Message] = (ORDER,), make: Any = PendingTransaction, key: str = KEY
    ) -> PendingTransaction:
        flight = finish(steps.launch(self.engine, make, messages, ANYWHERE, key))
        assert isinstance(flight, PendingTransaction)
        return flight

    def prepared(self, messages: Sequence[Message] = (ORDER,), key: str = KEY) -> PendingTransaction:
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
    assert not isinstance(wait, BarrierCall | Blocking)
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
