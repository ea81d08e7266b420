"""Producers on a cluster in memory, with the faults of a client that no cluster makes: reports are held back, one record of
a batch is refused, the queue has no room, the client's thread breaks.

Topics, groups, offsets and what is stored are the cluster's own.
"""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.waiting import wait_until
from txlayer.adapters.memory import MemoryKafka, ThreadWorld
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.adapters.ports import Assignment, GroupReader, IdempotentWriter, Record, TopicLimits, TopicPartition
from txlayer.config import ProducerConfig
from txlayer.core import codec
from txlayer.core.messages import COMMIT, CheckKind, CheckRecord, HalfHeader, Message, OpMessage, Resolution
from txlayer.errors import BrokerUnavailableError, TxLayerError
from txlayer.producer import responder, steps
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.engine import Engine, assemble
from txlayer.producer.identity import ANYWHERE, Entry
from txlayer.producer.pipeline import PendingTransaction
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import ResponderStats
from txlayer.producer.waiting import BarrierCall, Blocking, Steps

HALF, OP, CHECK = "txlayer.half", "txlayer.op", "txlayer.check"
GROUP = "g"
KEY = "order-1/00000001"
ORDER = Message("orders", b"k", b"v")
PARTITION_COUNTS = {HALF: 4, OP: 4, CHECK: 2, "orders": 3, "stock": 3}
PATIENCE_S = 10.0


class StagedWriter:
    """The cluster's `IdempotentWriter`, behind a queue that a test holds back and whose records it refuses."""

    def __init__(self) -> None:
        self.stored: list[MemoryRecord] = []
        self.refuse: Callable[[MemoryRecord], TxLayerError | None] = lambda _record: None
        self.refuse_at_once: Callable[[str], Exception | None] = lambda _topic: None
        self.room = 1_000_000
        self.fatal: TxLayerError | None = None
        self.is_closed = False
        self.poll_error: Exception | None = None
        self.inner: IdempotentWriter | None = None
        self._is_held = False
        self._queued: deque[tuple[MemoryRecord, Any]] = deque()
        self._changed = threading.Condition()

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As the client has it."""
        error = self.refuse_at_once(topic)
        if error is not None:
            raise error
        with self._changed:
            if len(self._queued) >= self.room:
                raise BufferError("queue full")
            record = MemoryRecord(topic, partition, key, value, headers, (1, timestamp))
            self._queued.append((record, callback or on_delivery))
            self._changed.notify_all()

    def poll(self, timeout: float) -> int:
        """Send what is queued and report it, one after the other."""
        if self.poll_error is not None:
            raise self.poll_error
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queued) and not self._is_held, timeout)
            due_count = 0 if self._is_held else len(self._queued)
        for _ in range(due_count):
            self._send(*self._queued[0])
            self._queued.popleft()
        return due_count

    def unreported_count(self) -> int:
        """Records whose report is still to be served."""
        return len(self._queued)

    def hold(self, is_held: bool) -> None:
        """Keep reports back, or let them go."""
        with self._changed:
            self._is_held = is_held
            self._changed.notify_all()

    def error_of(self, error: Any, *, topic: str, txn_id: str) -> TxLayerError:
        """A test refuses with our own errors."""
        assert self.inner is not None
        return error if isinstance(error, TxLayerError) else self.inner.error_of(error, topic=topic, txn_id=txn_id)

    def failure(self) -> TxLayerError | None:
        """What the test says."""
        return self.fatal

    def close(self, timeout_s: float) -> None:
        """Report the rest."""
        self.hold(False)
        self.poll_error = None
        self.poll(0)
        assert self.inner is not None
        self.inner.close(timeout_s)
        self.is_closed = True

    def of(self, topic: str) -> list[MemoryRecord]:
        """What is stored in one topic, in the order of the reports."""
        return [r for r in self.stored if r.topic() == topic]

    def ops(self) -> list[OpMessage]:
        """Every op line, in order."""
        lines = [codec.decode_op(line) for r in self.of(OP) for line in (r.value() or b"").decode().split("\n")]
        assert all(isinstance(line, OpMessage) for line in lines)
        return lines  # type: ignore[return-value] # just asserted

    def _send(self, record: MemoryRecord, on_delivery: Any) -> None:
        error = self.refuse(record)
        if error is not None:
            on_delivery(error, record)
            return

        def reported(error: Any, written: Any) -> None:
            if error is None:
                self.stored.append(written)
            on_delivery(error, written)

        assert self.inner is not None
        where = (record.topic(), record.value(), record.key(), record.partition())
        self.inner.produce(*where, reported, None, record.timestamp()[1], record.headers())
        self.inner.poll(PATIENCE_S)


class StagedMember:
    """The cluster's `GroupReader`; it fails, and is revoked together with what it read, as a test says."""

    def __init__(self, inner: GroupReader) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.is_closed = False
        self.is_revoked = False
        self.deaf_count = 0
        """So many questions about watermarks are not answered."""
        self.pause, self.resume, self.start = inner.pause, inner.resume, inner.start
        self.read_to, self.known_end = inner.read_to, inner.known_end
        self._inner = inner
        self._failure: Exception | None = None

    def fail(self, error: Exception) -> None:
        """The next read raises this."""
        self._failure = error

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        """The cluster's, unless nobody answers."""
        if self.deaf_count:
            self.deaf_count -= 1
            raise BrokerUnavailableError("as planned", waited_ms=1)
        return self._inner.watermarks(partition, timeout_s=timeout_s)

    def take_assignment(self) -> Assignment | None:
        """The group's."""
        return self._inner.take_assignment()

    def take_revocation(self) -> bool:
        """The group's, or what the test said."""
        told, self.is_revoked = self.is_revoked, False
        return self._inner.take_revocation() or told

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Remember them."""
        self.positions = dict(positions)
        self._inner.resume_at(positions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Record]:
        """The group's, or what the test said."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._inner.read(record_count_max=record_count_max, timeout_s=min(timeout_s, 0.05))

    def close(self) -> None:
        """Leave."""
        self._inner.close()
        self.is_closed = True


class ProducerStage:
    """A cluster in memory and the producers on it, which share one writer; it is their `ProducerConnections` too."""

    def __init__(self) -> None:
        self.kafka = MemoryKafka(ThreadWorld(seed=1))
        for topic, count in PARTITION_COUNTS.items():
            self.kafka.create_topic(topic, partitions=count)
        self.writer = StagedWriter()
        self.members: list[StagedMember] = []
        self.asked: list[str] = []
        self.failure: TxLayerError | None = None
        self.is_closed = False
        self.producers: list[Any] = []
        self.runner: asyncio.Runner | None = None
        """If it is set, producers are those for asyncio, and their words are said in its loop."""

    def connect(self, config: ProducerConfig) -> Any:
        """What producers take as `connect`; it stands for their `ProducerConnections`."""
        self._inner = self.kafka.connect_producer(config)
        self.serialize, self.history = self._inner.serialize, self._inner.history
        return self

    def producer(self, **settings: Any) -> TransactionalProducer:
        """One more producer; the test's fixture closes it."""
        settings = {"bootstrap_servers": "127.0.0.1:9", "group": GROUP, "connect": self.connect, **settings}
        made: Any
        if self.runner is None:
            made = TransactionalProducer(**settings)
        else:
            made = OnALoop(AsyncTransactionalProducer(**settings), self.runner)
        self.producers.append(made)
        return made  # type: ignore[no-any-return]  # with the words of the one for threads

    def close_producers(self) -> None:
        """All that were made."""
        self.writer.hold(False)
        while self.producers:
            self.producers.pop().close()

    def resolutions(self) -> list[Resolution]:
        """Of every op line, in order."""
        return [op.resolution for op in self.writer.ops()]

    def set_topic(self, name: str, *, partitions: int, message_bytes_max: int = 1_048_588) -> None:
        """Another topic of this name, without records."""
        self.kafka.delete_topic(name)
        self.kafka.create_topic(name, partitions=partitions, settings={"max.message.bytes": str(message_bytes_max)})

    def close(self) -> None:
        """As a producer calls it."""
        self.is_closed = True
        self._inner.close()

    # --- the port -----------------------------------------------------------------------------------------------------

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """The cluster's, or the failure that the test said."""
        self.asked.append(topic)
        if self.failure is not None:
            raise self.failure
        return self._inner.topic_limits(topic)

    def make_half_writer(self, *, batch_bytes_max: int, linger_ms: float = 1) -> StagedWriter:
        """The one writer."""
        self.writer.inner = self._inner.make_half_writer(batch_bytes_max=batch_bytes_max, linger_ms=linger_ms)
        return self.writer

    def make_check_member(self, producer_group: str) -> StagedMember:
        """One more member."""
        self.members.append(StagedMember(self._inner.make_check_member(producer_group)))
        return self.members[-1]

    # --- questions ----------------------------------------------------------------------------------------------------

    def member(self, number: int = 0) -> StagedMember:
        """The `number`-th one, which has its share."""
        what = f"member {number} reads"
        wait_until(
            lambda: len(self.members) > number and bool(self.members[number].positions), within=PATIENCE_S, what=what
        )
        return self.members[number]

    def ask(self, *checks: CheckRecord, partition: int = 0, member: int = 0) -> None:
        """Write these to the check topic at once, when that member has its share: one read brings all of them."""
        self.member(member)

        def append() -> None:
            for check in checks:
                self.kafka.append(CHECK, codec.encode_check(check), partition=partition)

        self.kafka.do(append)

    def answers(self, count: int) -> list[OpMessage]:
        """The op lines, once there are so many."""
        wait_until(lambda: len(self.writer.ops()) >= count, within=PATIENCE_S, what=f"{count} answers")
        return self.writer.ops()


class OnALoop:
    """A producer for asyncio, a block of it or a transaction, whose words a test says one after the other without a loop."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner, self._runner = inner, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return partial(self._say, found) if callable(found) else found

    def __enter__(self) -> Any:
        return self._say(self._inner.__aenter__)

    def __exit__(self, *error: object) -> Any:
        return self._say(self._inner.__aexit__, *error)

    def _say(self, word: Callable[..., Any], *given: Any, **named: Any) -> Any:
        said = word(*given, **named)
        if inspect.isawaitable(said):
            said = self._runner.run(_awaited(said))
        return OnALoop(said, self._runner) if hasattr(said, "__aenter__") else said


async def _awaited(said: Any) -> Any:
    return await said


class World:
    """An engine without its thread, on a cluster in memory: reports come when a test serves a round."""

    def __init__(self, make: Any = assemble, **settings: Any) -> None:
        self.config = config = ProducerConfig(**settings)
        self.stage: ProducerStage = ProducerStage().connect(config)
        half, op = (self.stage.topic_limits(topic) for topic in (HALF, OP))
        assert half is not None
        assert op is not None
        self.stage.asked.clear()
        self.engine: Engine = make(config, self.stage, half, op, group=GROUP, serializer=None)

    @property
    def writer(self) -> StagedWriter:
        """Where its records go."""
        return self.stage.writer

    def serve(self, round_count: int = 1) -> None:
        """So many rounds of reports."""
        for _ in range(round_count):
            self.engine.pipeline.serve(0)

    def steps(
        self, messages: Sequence[Message] = (ORDER,), *, make: Any = PendingTransaction, key: str = KEY, **how: Any
    ) -> Steps[PendingTransaction]:
        """The steps of `launch`, not begun."""
        return steps.launch(self.engine, make, messages, Entry(None, ANYWHERE, "", **{"may_wait": True, **how}), key)

    def launch(
        self, messages: Sequence[Message] = (ORDER,), make: Any = PendingTransaction, key: str = KEY
    ) -> PendingTransaction:
        """Its half messages are queued."""
        txn = finish(self.steps(messages, make=make, key=key))
        assert isinstance(txn, PendingTransaction)
        return txn

    def prepared(self, messages: Sequence[Message] = (ORDER,), key: str = KEY) -> PendingTransaction:
        """Its half messages are stored."""
        txn = self.launch(messages, key=key)
        self.serve()
        finish(steps.stored(self.engine, txn))
        return txn


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


def waits(run: Steps[Any], waker: Callable[[], None] = lambda: None) -> bool:
    """True when the steps' next wish is to wait, and nothing woke them yet."""
    wait = next(run)
    assert not isinstance(wait, BarrierCall | Blocking)
    return wait(waker)


def refuse_index(number: int, error: TxLayerError) -> Callable[[MemoryRecord], TxLayerError | None]:
    """Refuse the half record of this index."""

    def refuse(record: MemoryRecord) -> TxLayerError | None:
        raw = codec.half_header_of(record.headers())
        header = None if raw is None else codec.decode_half_header(raw)
        return error if isinstance(header, HalfHeader) and header.index == number else None

    return refuse


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerStage]:
    """A cluster whose producers are closed in the end; a responder tries again soon."""
    monkeypatch.setattr(responder, "RETRY_S", 0.01)
    made = ProducerStage()
    yield made
    made.close_producers()


def commit(_: CheckRequest) -> Resolution:
    """A handler that knows."""
    return COMMIT


def stats_of(producer: TransactionalProducer) -> ResponderStats:
    """Its counters."""
    stats = producer.responder_stats()
    assert stats is not None
    return stats


def question(
    name: str = "a", *, number: int = 1, group: str = GROUP, partition: int = 3, nonce: str = "0000000a"
) -> CheckRecord:
    """A question about the transaction `name`, whose half records are in `partition`."""
    return CheckRecord(
        CheckKind.QUESTION, f"{name}/{nonce}", group, partition, 17, 1_700_000_000_000, number, "orders,stock"
    )


def limit(text: str, *, group: str = GROUP, partition: int = 3, count: int = 10) -> CheckRecord:
    """A limit that is switched on or off."""
    return CheckRecord(CheckKind.LIMIT, "", group, partition, number=count, text=text)


def refusal(name: str = "a", *, group: str = GROUP) -> CheckRecord:
    """A resolution that came too late."""
    return CheckRecord(CheckKind.REFUSED, f"{name}/0000000a", group, 3, 17, 0, text="COMMIT by producer")


def parking(name: str = "a", *, group: str = GROUP, number: int = 1) -> CheckRecord:
    """A notice of a parked transaction."""
    return CheckRecord(CheckKind.PARKED, f"{name}/0000000a", group, 3, 17, 1_700_000_000_000, number, "too-old")


def heard(*checks: CheckRecord | bytes, partition: int = 0) -> list[Record]:
    """Them as records of one partition of the check topic."""
    values = [c if isinstance(c, bytes) else codec.encode_check(c) for c in checks]
    return [MemoryRecord(CHECK, partition, None, value, None, (1, 0), log_offset=0) for value in values]
