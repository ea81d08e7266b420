"""What tests of an answering producer look at: its member, its answers, its counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_log import ProducerLog
from tests.support.fake_member import FakeMember
from tests.support.waiting import wait_until
from txlayer.core import codec
from txlayer.core.messages import COMMIT, Message, OpMessage, Resolution
from txlayer.producer import responder
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import ResponderStats

PATIENCE_S = 10.0
ORDER = Message("orders", b"k", b"v")


def quick_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerLog]:
    """A log whose responders try again soon; its producers are closed in the end."""
    monkeypatch.setattr(responder, "RETRY_S", 0.01)
    made = ProducerLog()
    yield made
    made.writer.hold(False)
    for producer in made.producers:
        producer.close()


def commit(_: CheckRequest) -> Resolution:
    """A handler that knows."""
    return COMMIT


def member(log: ProducerLog, number: int = 0) -> FakeMember:
    """The member of the producer's `number`-th reader."""
    wait_until(lambda: len(log.connections.members) > number, within=PATIENCE_S, what="a member")
    return log.connections.members[number]


def answers(log: ProducerLog, *, count: int) -> list[OpMessage]:
    """The first `count` op lines."""
    wait_until(
        lambda: len(log.writer.stored) and len(log.writer.op_lines()) >= count,
        within=PATIENCE_S,
        what=f"{count} answers",
    )
    found = [codec.decode_op(line) for line in log.writer.op_lines()]
    return [op for op in found if isinstance(op, OpMessage)]


def stats_of(producer: TransactionalProducer) -> ResponderStats:
    """Its counters."""
    stats = producer.responder_stats()
    assert stats is not None
    return stats
