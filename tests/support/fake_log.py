"""A log in memory behind the producer's ports: it keeps records, and reports them when a test lets it."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_member import FakeMember
from txlayer.adapters.ports import HistoryReader, TopicLimits
from txlayer.config import ProducerConfig
from txlayer.core import codec
from txlayer.core.messages import Headers, OpMessage, Resolution
from txlayer.errors import TxLayerError
from txlayer.producer.producer import TransactionalProducer

PLENTY = 1_048_588


@dataclass
class FakeRecord:
    """A record that was produced; its offset is known once it is stored."""

    topic_name: str
    value: bytes | None
    key: bytes | None
    partition: int
    headers: Headers
    on_delivery: Callable[[Any, Any], None]
    offset_number: int = -1

    def offset(self) -> int:
        """As the client's message has it."""
        return self.offset_number


class FakeWriter:
    """The `HalfWriter` of a log in memory. `is_held` keeps reports back, `refuse` decides what is not stored."""

    def __init__(self) -> None:
        self.stored: list[FakeRecord] = []
        self.refuse: Callable[[FakeRecord], TxLayerError | None] = lambda _record: None
        self.refuse_at_once: Callable[[str], Exception | None] = lambda _topic: None
        self.room = 1_000_000
        self.fatal: TxLayerError | None = None
        self.is_closed = False
        self.poll_error: Exception | None = None
        self._is_held = False
        self._queued: deque[FakeRecord] = deque()
        self._offsets: Counter[tuple[str, int]] = Counter()
        self._changed = threading.Condition()

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,  # noqa: ARG002 - the port's
        headers: Headers | None = None,
    ) -> None:
        """As the client has it."""
        error = self.refuse_at_once(topic)
        if error is not None:
            raise error
        with self._changed:
            if len(self._queued) >= self.room:
                raise BufferError("queue full")
            record = FakeRecord(topic, value, key, partition, headers or (), callback or on_delivery)
            self._queued.append(record)
            self._changed.notify_all()

    def poll(self, timeout: float) -> int:
        """Report what is queued, one after the other."""
        if self.poll_error is not None:
            raise self.poll_error
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queued) and not self._is_held, timeout)
            if self._is_held:
                return 0
            due = list(self._queued)
        return self._report(due)

    def unreported_count(self) -> int:
        """Records whose report is still to be served."""
        return len(self._queued)

    def hold(self, is_held: bool) -> None:
        """Keep reports back, or let them go."""
        with self._changed:
            self._is_held = is_held
            self._changed.notify_all()

    def error_of(self, error: Any, *, topic: str, txn_id: str) -> TxLayerError:  # noqa: ARG002 - the port's
        """Tests refuse with our own errors."""
        assert isinstance(error, TxLayerError), error
        return error

    def failure(self) -> TxLayerError | None:
        """What the test says."""
        return self.fatal

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 - the port's
        """Report the rest."""
        self._report(list(self._queued))
        self.is_closed = True

    def of(self, topic: str) -> list[FakeRecord]:
        """What is stored in one topic, in order."""
        return [r for r in self.stored if r.topic_name == topic]

    def op_lines(self, topic: str = "txlayer.op") -> list[str]:
        """Every op line, in order."""
        return [line for r in self.of(topic) for line in (r.value or b"").decode().split("\n")]

    def _report(self, due: list[FakeRecord]) -> int:
        for record in due:
            error = self.refuse(record)
            if error is None:
                place = (record.topic_name, record.partition)
                record.offset_number = self._offsets[place]
                self._offsets[place] += 1
                self.stored.append(record)
            record.on_delivery(error, record)
            with self._changed:
                self._queued.popleft()
        return len(due)


@dataclass
class FakeConnections:
    """The `ProducerConnections` of a log in memory."""

    config: ProducerConfig
    topics: dict[str, TopicLimits] = field(
        default_factory=lambda: {
            "txlayer.half": TopicLimits(4, PLENTY, is_reachable=True),
            "txlayer.op": TopicLimits(4, PLENTY, is_reachable=True),
            "txlayer.check": TopicLimits(2, PLENTY, is_reachable=True),
            "orders": TopicLimits(3, PLENTY, is_reachable=True),
            "stock": TopicLimits(3, PLENTY, is_reachable=True),
        }
    )
    writer: FakeWriter = field(default_factory=FakeWriter)
    members: list[FakeMember] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    failure: TxLayerError | None = None
    is_closed: bool = False

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the test says."""
        self.asked.append(topic)
        if self.failure is not None:
            raise self.failure
        return self.topics.get(topic)

    def make_half_writer(self, *, batch_bytes_max: int) -> FakeWriter:  # noqa: ARG002 - the port's
        """The one writer."""
        return self.writer

    def make_check_member(self, producer_group: str) -> FakeMember:
        """One more member; the first read gives it everything."""
        member = FakeMember(producer_group)
        self.members.append(member)
        return member

    def serialize(self, serializer: Any, value: Any, *, topic: str, headers: Any) -> bytes | None:  # noqa: ARG002 - the port's
        """Without a context object: tests' serializers take the topic."""
        made: bytes | None = serializer(value, topic)
        return made

    def history(self) -> HistoryReader:
        """Nobody asks."""
        raise NotImplementedError

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True


class ProducerLog:
    """A log in memory, and the producers of threads that write to it."""

    def __init__(self) -> None:
        self.connections = FakeConnections(ProducerConfig())
        self.producers: list[TransactionalProducer] = []

    @property
    def writer(self) -> FakeWriter:
        """The one that all of them share."""
        return self.connections.writer

    def producer(self, **settings: Any) -> TransactionalProducer:
        """One more producer; the test's fixture closes it."""
        made = TransactionalProducer(
            bootstrap_servers="127.0.0.1:9", group="g", connect=lambda _: self.connections, **settings
        )
        self.producers.append(made)
        return made

    def resolutions(self) -> list[Resolution]:
        """Of every op line, in order."""
        ops = [codec.decode_op(line) for line in self.writer.op_lines()]
        return [op.resolution for op in ops if isinstance(op, OpMessage)]
