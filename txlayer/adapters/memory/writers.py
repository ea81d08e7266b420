"""The writers of a cluster in memory: the transactional one, and the idempotent one for half and op records.

A client in memory has no thread: its records leave when it polls, flushes or commits.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, NoReturn, TypeVar

from txlayer.adapters.errors import (
    FENCED_CODES,
    GIVEN_UP_CODES,
    MOVED_COORDINATOR_CODES,
    Code,
    TranslatedWriter,
    codes,
    translate_fatal,
    translate_unwritten,
)
from txlayer.adapters.memory.cluster import RETRY_BACKOFF_S, Link, MemberMetadata
from txlayer.adapters.memory.log import (
    BATCH_OVERHEAD_BYTES,
    CREATE_TIME,
    MemoryRecord,
    OffsetUnknownRecord,
    ProducerMark,
)
from txlayer.adapters.memory.world import ClientError, ClientFailureError, NoAnswerError, RefusedError
from txlayer.adapters.ports import DeliveryReport, StoredOffset, TopicPartition
from txlayer.core.messages import Headers
from txlayer.core.partitions import murmur2
from txlayer.errors import TxLayerError

# Which codes a client keeps to itself, and which end a Kafka transaction or the client, was measured request by request
# (docs/explanation/kafka.md, Errors).
CONCURRENT_BACKOFF_S = 0.02  # the client's fixed pause while the markers of the last Kafka transaction are written

_MOVED = MOVED_COORDINATOR_CODES | codes("CONCURRENT_TRANSACTIONS REQUEST_TIMED_OUT")
INSIDE: dict[str, frozenset[Code]] = {  # codes after which the client asks again by itself
    "InitProducerId": _MOVED | {Code.UNKNOWN},
    "AddPartitionsToTxn": _MOVED | {Code.UNKNOWN_TOPIC_OR_PART},
    "Produce": codes(
        "UNKNOWN_TOPIC_OR_PART NOT_LEADER_FOR_PARTITION LEADER_NOT_AVAILABLE REQUEST_TIMED_OUT INVALID_MSG "
        "NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND KAFKA_STORAGE_ERROR"
    ),
    "AddOffsetsToTxn": _MOVED,
    "TxnOffsetCommit": _MOVED | {Code.UNKNOWN_TOPIC_OR_PART},
    "EndTxn": _MOVED,
}

_DENIED = codes("TRANSACTIONAL_ID_AUTHORIZATION_FAILED INVALID_PRODUCER_EPOCH")
_FENCED = _DENIED | {Code.PRODUCER_FENCED}
FATAL: dict[str, frozenset[Code]] = {
    "InitProducerId": _FENCED | codes("INVALID_TRANSACTION_TIMEOUT CLUSTER_AUTHORIZATION_FAILED"),
    "AddPartitionsToTxn": _FENCED | {Code.INVALID_TXN_STATE},
    "Produce": codes("OUT_OF_ORDER_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH"),
    "AddOffsetsToTxn": _DENIED | {Code.INVALID_TXN_STATE},
    "TxnOffsetCommit": codes("INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE"),
    "EndTxn": _FENCED | {Code.INVALID_TXN_STATE},
}
"""Codes after which a transactional client is of no use any more; every other code means: abort."""

ANY_PARTITION = -1

Queued = tuple[MemoryRecord, DeliveryReport | None]


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one partition that are sent together, and sent again as they are."""

    topic_partition: TopicPartition
    queued: list[Queued]
    times_out_at: float
    retry_at: float = 0.0


class SendAgainError(Exception):
    """Not done, for a reason that passes."""

    def __init__(self, after_s: float) -> None:
        super().__init__(f"again after {after_s} s")
        self.after_s = after_s


Send = Callable[[Batch, list[MemoryRecord]], int | None]
"""Makes the request; what `send_batch` returns. Raises what an exchange raises, and SendAgainError."""


def send_batch(link: Link, produce: Callable[[], int]) -> int | None:
    """The offset of a batch's first record; None: the broker has the batch already, and does not say where."""
    try:
        return link.ask("Produce", produce)
    except RefusedError as exc:
        if exc.code is not Code.DUPLICATE_SEQUENCE_NUMBER:
            raise
        return None


@dataclass(eq=False, kw_only=True)
class Outbox:
    """Any thread puts; one sends and reports, in the order of acknowledgement."""

    link: Link
    request: Send
    on_failed: Callable[[Batch | None, Code], None]
    batch_bytes_max: int
    message_timeout_s: float
    queue_max: int
    _queue: deque[Queued] = field(default_factory=deque, init=False)
    _known_counts: dict[str, int] = field(default_factory=dict, init=False)
    """What the client once learned of a topic; one that is deleted then only seems to have no leader."""
    _batches: dict[TopicPartition, deque[Batch]] = field(default_factory=dict, init=False)
    _batched_count: int = field(default=0, init=False)
    _reports: deque[tuple[DeliveryReport | None, ClientError | None, MemoryRecord]] = field(
        default_factory=deque, init=False
    )

    def put(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = ANY_PARTITION,
        callback: DeliveryReport | None = None,
        on_delivery: DeliveryReport | None = None,
        timestamp: int = 0,
        headers: Headers | Mapping[str, bytes | str | None] | None = None,
    ) -> None:
        """Queue a record, as the client's `produce` does; BufferError: the queue is full, and nothing was queued."""
        if len(self._queue) >= self.queue_max:
            raise BufferError("the queue is full")
        record = MemoryRecord(
            topic, partition, _encoded(key), _encoded(value), _headers(headers), (CREATE_TIME, timestamp)
        )
        queued = (record, callback or on_delivery)
        self.link.world.change(partial(self._queue.append, queued))

    @property
    def unreported_count(self) -> int:
        return len(self._queue) + self._batched_count + len(self._reports)

    def is_due(self) -> bool:
        if self._queue or self._reports:
            return True
        if not self._batches:
            return False
        return self._due_in_s() <= 0

    def wait(self, timeout_s: float) -> bool:
        """Let others run until something is due, at most so long; True when something is."""
        world = self.link.world
        deadline = world.monotonic() + timeout_s
        while True:
            left_s = deadline - world.monotonic()
            if world.wait(self.is_due, timeout_s=max(min(left_s, self._due_in_s()), 0.0)):
                return True
            if world.monotonic() >= deadline:
                return False

    def send(self) -> None:
        """Send what is queued and what is to be sent again; each partition in order."""
        if self._queue:
            self._form_batches()
        for tp in list(self._batches):
            batches = self._batches[tp]
            while batches and self._send_one(batches[0]):
                batches.popleft()
            if not batches:
                del self._batches[tp]

    def serve(self) -> int:
        """Call the reports that are there; how many."""
        count = 0
        reports = self._reports
        while reports:
            on_delivery, error, record = reports[0]
            try:
                if on_delivery is not None:
                    on_delivery(error, record)
            finally:
                reports.popleft()  # only now: it counts as unreported until then
            count += 1
        return count

    def purge(self) -> None:
        """Give up what is not acknowledged; the reports say so."""
        for batches in self._batches.values():
            for batch in batches:
                # The client says the same of what it never sent and of what waits to be sent again, which may be stored.
                self._report_failed(batch, Code.LOCAL_PURGE_QUEUE)
        self._batches.clear()
        while self._queue:
            record, on_delivery = self._queue.popleft()
            self._reports.append((on_delivery, ClientError(Code.LOCAL_PURGE_QUEUE), record))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _due_in_s(self) -> float:
        if not self._batches:
            return float("inf")
        now = self.link.world.monotonic()
        # A copy: another thread may ask how far it is.
        heads = [batches[0] for batches in list(self._batches.values()) if batches]
        return min((min(b.retry_at, b.times_out_at) for b in heads), default=now) - now

    def _form_batches(self) -> None:
        times_out_at = self.link.world.monotonic() + self.message_timeout_s
        sizes: dict[TopicPartition, int] = {}
        for _ in range(len(self._queue)):
            record, on_delivery = queued = self._queue[0]
            tp = self._topic_partition_of(record)
            if isinstance(tp, Code):
                self.on_failed(None, tp)
                self._reports.append((on_delivery, ClientError(tp), record))
                self._queue.popleft()
                continue
            batches = self._batches.setdefault(tp, deque())
            # Only what this round formed grows: an older batch may have been sent.
            if tp in sizes and sizes[tp] + record.size <= self.batch_bytes_max:
                batches[-1].queued.append(queued)
                sizes[tp] += record.size
            else:
                batches.append(Batch(tp, [queued], times_out_at))
                sizes[tp] = BATCH_OVERHEAD_BYTES + record.size
            self._batched_count += 1
            self._queue.popleft()

    def _topic_partition_of(self, record: MemoryRecord) -> TopicPartition | Code:
        name, partition = record.topic(), record.partition()
        topic = self.link.cluster.topics.get(name)
        if topic is not None:
            self._known_counts[name] = len(topic.partitions)
        count = self._known_counts.get(name, 0)
        if not count:
            return Code.LOCAL_UNKNOWN_TOPIC
        if partition == ANY_PARTITION:
            key = record.key()
            # murmur2_random, as the coordinator's client is set.
            partition = self.link.world.random.randrange(count) if key is None else murmur2(key) % count
            record.move_to(partition)
        elif not 0 <= partition < count:
            return Code.LOCAL_UNKNOWN_PARTITION
        return name, partition

    def _send_one(self, batch: Batch) -> bool:
        now = self.link.world.monotonic()
        if now >= batch.times_out_at:
            self._report_failed(batch, Code.LOCAL_MSG_TIMED_OUT)
            return True
        if now < batch.retry_at:
            return False
        records = [record for record, _ in batch.queued]
        try:
            base = self.request(batch, records)
        except (NoAnswerError, SendAgainError, RefusedError) as exc:
            if isinstance(exc, RefusedError) and exc.code not in INSIDE["Produce"]:
                self._report_failed(batch, exc.code)
                return True
            after_s = exc.after_s if isinstance(exc, SendAgainError) else RETRY_BACKOFF_S
            batch.retry_at = now + self.link.jittered(after_s)
            return False
        if base is None:  # the client takes the batch for stored at an unknown offset
            self._report(batch, map(OffsetUnknownRecord, records))
        else:
            # It is in the log twice when an older request arrived after all: the report names this one.
            written = enumerate(records, start=base)
            self._report(batch, [r if r.log_offset == at else r.put(at, r.timestamp()) for at, r in written])
        return True

    def _report(self, batch: Batch, records: Iterable[MemoryRecord], error: ClientError | None = None) -> None:
        for (_, on_delivery), record in zip(batch.queued, records, strict=True):
            self._reports.append((on_delivery, error, record))
        self._batched_count -= len(batch.queued)

    def _report_failed(self, batch: Batch, code: Code) -> None:
        self.on_failed(batch, code)
        self._report(batch, [record for record, _ in batch.queued], ClientError(code))


def _encoded(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _headers(headers: Headers | Mapping[str, bytes | str | None] | None) -> Headers | None:
    if not headers:
        return None
    pairs: Sequence[tuple[str, Any]]
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    return [(name, _encoded(value)) for name, value in pairs]


T = TypeVar("T")

QUEUE_MAX = 1_000_000  # the client's `queue.buffering.max.messages` as the real writer sets it


class WriterState(Enum):
    """What the client allows."""

    NEW = "new"  #: only `initialise`
    READY = "ready"  #: a Kafka transaction may begin
    OPEN = "open"  #: records and offsets belong to it
    ENDING = "ending"  #: the commit was sent, and not answered yet
    ABORTABLE = "abortable"  #: it can only be given up
    FATAL = "fatal"  #: nothing
    CLOSED = "closed"  #: nothing


class MemoryTransactionalWriter(TranslatedWriter):
    """The `TransactionalWriter` of a cluster in memory. One thread uses it."""

    def __init__(
        self,
        link: Link,
        *,
        transactional_id: str,
        timeout_ms: int,
        batch_bytes_max: int,
        compression: str = "none",  # noqa: ARG002 - the real client's
    ) -> None:
        super().__init__(
            transactional_id=transactional_id, batch_bytes_max=batch_bytes_max, bootstrap_servers=link.bootstrap_servers
        )
        self._link = link
        self._timeout_ms = timeout_ms
        self._state = WriterState.NEW
        self._error = ClientError(Code.LOCAL_STATE)
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition | str] = set()
        self._has_lost_records = False
        self._outbox = Outbox(
            link=link,
            request=self._send,
            on_failed=self._on_failed,
            batch_bytes_max=batch_bytes_max,
            message_timeout_s=timeout_ms / 1000 - 1,
            queue_max=QUEUE_MAX,
        )
        self.produce: Callable[..., None] = self._produce

    # --- the port -----------------------------------------------------------------------------------------------------

    def initialise(self, *, timeout_s: float) -> None:
        ask = partial(self._link.cluster.init_producer_id, self.transactional_id, self._timeout_ms)
        with self._errors_as_ours():
            self._require(WriterState.NEW, WriterState.READY)
            self._producer_id, self._epoch = self._persist("InitProducerId", ask, timeout_s=timeout_s)
            self._state = WriterState.READY

    def begin(self) -> None:
        with self._errors_as_ours():
            self._require(WriterState.READY)
        self._state = WriterState.OPEN
        self._added.clear()
        self._has_lost_records = False

    def flush(self, *, timeout_s: float) -> int:
        with self._errors_as_ours():
            return self._flush(timeout_s)

    def send_offsets(self, offsets: Mapping[TopicPartition, StoredOffset], member: Any, *, timeout_s: float) -> None:
        fence: MemberMetadata = member
        cluster, world, who = self._link.cluster, self._link.world, self._who
        with self._errors_as_ours():
            self._require(WriterState.OPEN)
            deadline = world.monotonic() + timeout_s
            if fence.group not in self._added:
                add = partial(cluster.add_participants, *who, [fence.group])
                self._persist("AddOffsetsToTxn", add, timeout_s=timeout_s)
                self._added.add(fence.group)
            store = partial(cluster.commit_offsets, *who, fence, dict(offsets))
            self._persist("TxnOffsetCommit", store, timeout_s=deadline - world.monotonic())

    def poll(self) -> None:
        with self._errors_as_ours():
            self._flush(0.01)

    def _cause(self, error: Any) -> Any:
        has_failed = self._state in (WriterState.ABORTABLE, WriterState.FATAL)
        return self._error if has_failed and error.code() in GIVEN_UP_CODES else error

    def commit(self, *, timeout_s: float) -> None:
        with self._errors_as_ours(is_commit=True):
            self._commit(timeout_s)

    def close(self) -> None:
        self._state, self._error = WriterState.CLOSED, ClientError(Code.LOCAL_STATE, "closed")
        self._outbox.purge()

    # --- the client ---------------------------------------------------------------------------------------------------

    def _produce(self, topic: str, *arguments: Any, **named: Any) -> None:
        if self._state is not WriterState.OPEN:
            is_fatal = self._state is WriterState.FATAL
            code = Code.LOCAL_FATAL if is_fatal else Code.LOCAL_STATE
            raise ClientFailureError(ClientError(code, is_fatal=is_fatal))
        self._outbox.put(topic, *arguments, **named)

    @property
    def _who(self) -> tuple[str, int, int]:
        return self.transactional_id, self._producer_id, self._epoch

    def _flush(self, timeout_s: float) -> int:
        world, outbox = self._link.world, self._outbox
        deadline = world.monotonic() + timeout_s
        while outbox.unreported_count:
            if self._state in (WriterState.OPEN, WriterState.ENDING):
                outbox.send()
            else:
                outbox.purge()
            outbox.serve()
            left_s = deadline - world.monotonic()
            if not outbox.unreported_count or left_s <= 0:
                break
            outbox.wait(left_s)
        if self._state is WriterState.FATAL:
            raise ClientFailureError(self._error)
        return outbox.unreported_count

    def _commit(self, timeout_s: float) -> None:
        if self._state is not WriterState.ENDING:
            self._require(WriterState.OPEN)
            deadline = self._link.world.monotonic() + timeout_s
            if self._flush(timeout_s):
                raise ClientFailureError(ClientError(Code.LOCAL_TIMED_OUT))
            self._require(WriterState.OPEN)
            if self._has_lost_records:
                self._fail(Code.LOCAL_INCONSISTENT, is_fatal=False)
            timeout_s = deadline - self._link.world.monotonic()
        self._state = WriterState.ENDING
        if self._added:  # else nothing was written: the brokers never heard of it
            end = partial(self._link.cluster.end_transaction, *self._who, is_commit=True)
            self._persist("EndTxn", end, timeout_s=timeout_s)
        self._state = WriterState.READY

    def _send(self, batch: Batch, records: list[MemoryRecord]) -> int | None:
        link, tp = self._link, batch.topic_partition
        if tp not in self._added:
            self._add(tp)
        sequence = self._sequences.get(tp, 0)
        mark = ProducerMark(self._producer_id, self._epoch, sequence, is_transactional=True)
        base = send_batch(link, lambda: link.cluster.produce(tp, records, mark, self.transactional_id))
        self._sequences[tp] = sequence + len(records)
        return base

    def _add(self, tp: TopicPartition) -> None:
        request = "AddPartitionsToTxn"
        try:
            self._link.ask(request, partial(self._link.cluster.add_participants, *self._who, [tp]))
        except RefusedError as exc:
            if exc.code is Code.CONCURRENT_TRANSACTIONS:
                raise SendAgainError(CONCURRENT_BACKOFF_S) from exc
            if exc.code in INSIDE[request]:
                raise SendAgainError(RETRY_BACKOFF_S) from exc
            self._turn(exc.code, is_fatal=exc.code in FATAL[request])
            # The client gives up what it has not sent; its reports do not say why.
            raise RefusedError(Code.LOCAL_PURGE_QUEUE) from exc
        self._added.add(tp)

    def _on_failed(self, _batch: Batch | None, code: Code) -> None:
        self._has_lost_records = True
        if self._state not in (WriterState.OPEN, WriterState.ENDING):
            return
        if code is Code.LOCAL_MSG_TIMED_OUT:
            self._turn(Code.LOCAL_TIMED_OUT, is_fatal=False)
        elif code >= 0:
            self._turn(code, is_fatal=code in FATAL["Produce"], is_report=True)

    # --- states and errors --------------------------------------------------------------------------------------------

    def _persist(self, request: str, act: Callable[[], T], *, timeout_s: float) -> T:
        """Ask again while no answer comes, or one that the client keeps to itself.

        The very same request is sent again: one that was only late arrives as well.
        """
        link, code = self._link, Code.LOCAL_TIMED_OUT
        deadline = link.world.monotonic() + timeout_s
        while True:
            try:
                return link.ask(request, act)
            except NoAnswerError:
                pass
            except RefusedError as exc:
                if exc.code not in INSIDE[request]:
                    self._fail(exc.code, is_fatal=exc.code in FATAL[request])
                if request == "InitProducerId":
                    code = exc.code  # of this request alone the client tells in the end what the last answer was
            left_s = deadline - link.world.monotonic()
            if left_s <= 0:
                raise ClientFailureError(ClientError(code))
            link.pause(min(link.jittered(RETRY_BACKOFF_S), left_s))

    def _fail(self, code: Code, *, is_fatal: bool) -> NoReturn:
        self._turn(code, is_fatal=is_fatal)
        raise ClientFailureError(self._error)

    def _turn(self, code: Code, *, is_fatal: bool, is_report: bool = False) -> None:
        """The client's state after this answer; the first reason is kept."""
        # A fence has one name to the application, but for PRODUCER_FENCED of a report.
        if code is Code.INVALID_PRODUCER_EPOCH or (code in FENCED_CODES and not is_report):
            code = Code.LOCAL_FENCED
        if self._state is WriterState.FATAL:
            return
        if not is_fatal and self._state is WriterState.ABORTABLE:
            return
        self._state = WriterState.FATAL if is_fatal else WriterState.ABORTABLE
        self._error = ClientError(code, is_fatal=is_fatal, is_abortable=not is_fatal)

    def _require(self, *states: WriterState) -> None:
        if self._state not in states:
            failed = (WriterState.ABORTABLE, WriterState.FATAL)
            error = self._error if self._state in failed else ClientError(Code.LOCAL_STATE)
            raise ClientFailureError(error)

    def _error_in(self, exc: Exception) -> ClientError | None:
        return exc.error if isinstance(exc, ClientFailureError) else None


HALF_QUEUE_MAX = 100_000  # the client's `queue.buffering.max.messages`


class MemoryIdempotentWriter:
    """The `IdempotentWriter` of a cluster in memory. Any thread may `produce`; `poll` and `close` belong to one."""

    def __init__(self, link: Link, *, batch_bytes_max: int, message_timeout_ms: int, **_sending: object) -> None:
        self._link = link
        self._outbox = Outbox(
            link=link,
            request=self._send,
            on_failed=self._on_failed,
            batch_bytes_max=batch_bytes_max,
            message_timeout_s=message_timeout_ms / 1000,
            queue_max=HALF_QUEUE_MAX,
        )
        self._producer_id = -1
        self._positions: dict[TopicPartition, tuple[int, int]] = {}  # epoch, next sequence
        self._fatal: ClientError | None = None
        self.produce: Callable[..., None] = self._outbox.put
        self.poll: Callable[[float], int] = self._poll
        self.unreported_count: Callable[[], int] = lambda: self._outbox.unreported_count

    def error_of(self, error: Any, *, topic: str, txn_id: str) -> TxLayerError:
        inner = error.error if isinstance(error, ClientFailureError) else error
        return translate_unwritten(inner, topic=topic, txn_id=txn_id)

    def failure(self) -> TxLayerError | None:
        return None if self._fatal is None else translate_fatal(self._fatal)

    def close(self, timeout_s: float) -> None:
        deadline = self._link.world.monotonic() + timeout_s
        while self._outbox.unreported_count:
            left_s = deadline - self._link.world.monotonic()
            if left_s <= 0:
                self._outbox.purge()
                self._outbox.serve()
                return
            self._poll(left_s)

    def _poll(self, timeout_s: float = -1.0) -> int:
        outbox = self._outbox
        if not outbox.wait(max(timeout_s, 0.0)):
            return 0
        if self._fatal is None:
            outbox.send()
        else:
            outbox.purge()
        return outbox.serve()

    def _send(self, batch: Batch, records: list[MemoryRecord]) -> int | None:
        link, tp = self._link, batch.topic_partition
        if self._producer_id < 0:
            self._producer_id, _ = link.ask("InitProducerId", lambda: link.cluster.init_producer_id(None, 0))
        epoch, sequence = self._positions.get(tp, (0, 0))
        mark = ProducerMark(self._producer_id, epoch, sequence, is_transactional=False)
        base = send_batch(link, lambda: link.cluster.produce(tp, records, mark))
        self._positions[tp] = (epoch, sequence + len(records))
        return base

    def _on_failed(self, batch: Batch | None, code: Code) -> None:
        if batch is None:
            return
        if code in FATAL["Produce"]:
            self._fatal = ClientError(code, is_fatal=True)
        # A new epoch: whether the broker counted the batch is unknown, and one that still arrives is another's.
        epoch, _ = self._positions.get(batch.topic_partition, (0, 0))
        self._positions[batch.topic_partition] = (epoch + 1, 0)
