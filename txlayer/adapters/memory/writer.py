"""The `TransactionalWriter` of a cluster in memory, with the client's own states: ready, open, to be aborted, fatal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn, TypeVar

from txlayer.adapters.error_codes import FENCED_CODES, GIVEN_UP_CODES, Code
from txlayer.adapters.memory.groups import MemberMetadata
from txlayer.adapters.memory.link import CONCURRENT_BACKOFF_S, FATAL, INSIDE, RETRY_BACKOFF_S, Link
from txlayer.adapters.memory.log import MemoryRecord, ProducerMark
from txlayer.adapters.memory.outbox import Batch, Outbox, SendAgainError, send_batch
from txlayer.adapters.memory.refusal import ClientError, ClientFailureError, RefusedError
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.adapters.translation import (
    translate_refusal,
    translate_writer_error,
    unanswered_commit,
)
from txlayer.errors import TxLayerError

T = TypeVar("T")

QUEUE_MAX = 1_000_000
"""The client's `queue.buffering.max.messages` as the real writer sets it."""


class WriterState(Enum):
    """What the client allows."""

    NEW = "new"  #: only `initialise`
    READY = "ready"  #: a Kafka transaction may begin
    OPEN = "open"  #: records and offsets belong to it
    ENDING = "ending"  #: the commit was sent, and not answered yet
    ABORTABLE = "abortable"  #: it can only be given up
    FATAL = "fatal"  #: nothing
    CLOSED = "closed"  #: nothing


class MemoryTransactionalWriter:
    """One thread uses it."""

    def __init__(
        self, link: Link, *, transactional_id: str, timeout_ms: int, batch_bytes_max: int
    ) -> None:
        self.transactional_id = transactional_id
        self.batch_bytes_max = batch_bytes_max
        self._link = link
        self._timeout_ms = timeout_ms
        self._state = WriterState.NEW
        self._error = ClientError(Code.LOCAL_STATE)
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition | str] = set()
        self._has_lost_records = False
        self._outbox = Outbox(
            link,
            send=self._send,
            on_failed=self._on_failed,
            batch_bytes_max=batch_bytes_max,
            message_timeout_s=timeout_ms / 1000 - 1,
            queue_max=QUEUE_MAX,
        )
        self.produce: Callable[..., None] = self._produce

    # --- the port -----------------------------------------------------------------------------------------------------

    def initialise(self, *, timeout_s: float) -> None:
        """Fence every earlier holder of the id and end what it left open.

        Raises:
            ProducerFencedError, NotAuthorisedError, BrokerUnavailableError: no Kafka transaction can begin.
        """
        broker = self._link.broker
        with self._errors_as_ours():
            self._require(WriterState.NEW, WriterState.READY)
            self._producer_id, self._epoch = self._persist(
                "InitProducerId",
                lambda: broker.init_producer_id(self.transactional_id, self._timeout_ms),
                timeout_s=timeout_s,
            )
            self._state = WriterState.READY

    def begin(self) -> None:
        """Begin a Kafka transaction."""
        with self._errors_as_ours():
            self._require(WriterState.READY)
        self._state = WriterState.OPEN
        self._added.clear()
        self._has_lost_records = False

    def flush(self, *, timeout_s: float) -> int:
        """Wait until every record is acknowledged or refused; the number still waiting.

        Raises:
            TxLayerError: the writer failed for good, most often because a newer holder of the id fenced it.
        """
        with self._errors_as_ours():
            return self._flush(timeout_s)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, StoredOffset], member: Any, *, timeout_s: float
    ) -> None:
        """Make the offsets part of the Kafka transaction, fenced by the member's generation.

        Raises:
            MemberFencedError: the group went on without this member.
            RefusedRecordError, ForbiddenTopicError: a record before was refused; the Kafka transaction must be given up.
            BrokerUnavailableError: not answered within `timeout_s`.
            TxLayerError: anything else; the Kafka transaction must be given up.
        """
        fence: MemberMetadata = member
        who = (self.transactional_id, self._producer_id, self._epoch)
        broker, wanted = self._link.broker, dict(offsets)
        with self._errors_as_ours():
            self._require(WriterState.OPEN)
            deadline = self._link.world.monotonic() + timeout_s
            if fence.group not in self._added:
                self._persist(
                    "AddOffsetsToTxn",
                    lambda: broker.add_offsets(*who, fence.group),
                    timeout_s=timeout_s,
                )
                self._added.add(fence.group)
            self._persist(
                "TxnOffsetCommit",
                lambda: broker.commit_offsets(*who, fence, wanted),
                timeout_s=deadline - self._link.world.monotonic(),
            )

    def poll(self) -> None:
        """Make room in the queue; raises as `flush`."""
        with self._errors_as_ours():
            self._flush(0.01)

    def failure(self, exc: Exception) -> TxLayerError:
        """Our error for what `produce` raised.

        Raises:
            Exception: `exc` itself, when the client did not raise it.
        """
        if isinstance(exc, ClientFailureError):
            return self._as_ours(self._cause(exc.error))
        raise exc

    def _cause(self, error: Any) -> Any:
        has_failed = self._state in (WriterState.ABORTABLE, WriterState.FATAL)
        return self._error if has_failed and error.code() in GIVEN_UP_CODES else error

    def refusal(self, error: Any, *, topic: str, txn_key: str) -> TxLayerError:
        """Our error for a delivery report's."""
        return translate_refusal(
            self._cause(error),
            topic=topic,
            txn_key=txn_key,
            bootstrap_servers=self._link.bootstrap_servers,
            transactional_id=self.transactional_id,
        )

    def commit(self, *, timeout_s: float) -> None:
        """End the Kafka transaction; when it returns, a `read_committed` reader will see all of it.

        Raises:
            RetriableError: not answered yet; call again.
            TxLayerError: as `send_offsets`.
        """
        with self._errors_as_ours():
            try:
                self._commit(timeout_s)
            except ClientFailureError as exc:
                unanswered = unanswered_commit(exc.error)
                if unanswered is not None:
                    raise unanswered from exc
                raise

    def abort(self, *, timeout_s: float) -> None:
        """Give the open Kafka transaction up; best effort, the next holder of the id ends it for certain.

        Raises:
            TxLayerError: it did not work; the next holder of the id does it.
        """
        with self._errors_as_ours():
            self._require(WriterState.OPEN, WriterState.ABORTABLE)
            self._outbox.purge()
            self._outbox.serve()
            self._end(is_commit=False, timeout_s=timeout_s)

    def close(self) -> None:
        """Give the client back."""
        self._state, self._error = WriterState.CLOSED, ClientError(Code.LOCAL_STATE, "closed")
        self._outbox.purge()

    # --- the client ---------------------------------------------------------------------------------------------------

    def _produce(self, topic: str, *arguments: Any, **named: Any) -> None:
        if self._state is not WriterState.OPEN:
            is_fatal = self._state is WriterState.FATAL
            code = Code.LOCAL_FATAL if is_fatal else Code.LOCAL_STATE
            raise ClientFailureError(ClientError(code, is_fatal=is_fatal))
        self._outbox.put(topic, *arguments, **named)

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
        self._end(is_commit=True, timeout_s=timeout_s)

    def _end(self, *, is_commit: bool, timeout_s: float) -> None:
        # Nothing was written: the brokers never heard of it.
        if self._added:
            broker, who = (
                self._link.broker,
                (self.transactional_id, self._producer_id, self._epoch),
            )
            self._persist(
                "EndTxn",
                lambda: broker.end_transaction(*who, is_commit=is_commit),
                timeout_s=timeout_s,
            )
        self._state = WriterState.READY

    def _send(self, batch: Batch, records: list[MemoryRecord]) -> int | None:
        link, place = self._link, batch.place
        if place not in self._added:
            self._add(place)
        sequence = self._sequences.get(place, 0)
        mark = ProducerMark(self._producer_id, self._epoch, sequence, is_transactional=True)
        base = send_batch(
            link, lambda: link.broker.produce(place, records, mark, self.transactional_id)
        )
        self._sequences[place] = sequence + len(records)
        return base

    def _add(self, place: TopicPartition) -> None:
        link, request = self._link, "AddPartitionsToTxn"
        who = (self.transactional_id, self._producer_id, self._epoch)
        try:
            link.ask(request, lambda: link.broker.add_partitions(*who, [place]))
        except RefusedError as exc:
            if exc.code is Code.CONCURRENT_TRANSACTIONS:
                raise SendAgainError(CONCURRENT_BACKOFF_S) from exc
            if exc.code in INSIDE[request]:
                raise SendAgainError(RETRY_BACKOFF_S) from exc
            self._turn(exc.code, is_fatal=exc.code in FATAL[request])
            # The client gives up what it has not sent; its reports do not say why.
            raise RefusedError(Code.LOCAL_PURGE_QUEUE) from exc
        self._added.add(place)

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
        try:
            return self._link.persist(
                request, act, deadline=self._link.world.monotonic() + timeout_s
            )
        except RefusedError as exc:
            self._fail(exc.code, is_fatal=exc.code in FATAL[request])

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

    @contextmanager
    def _errors_as_ours(self) -> Iterator[None]:
        try:
            yield
        except ClientFailureError as exc:
            raise self._as_ours(exc.error) from exc

    def _as_ours(self, error: ClientError) -> TxLayerError:
        return translate_writer_error(
            error,
            bootstrap_servers=self._link.bootstrap_servers,
            transactional_id=self.transactional_id,
        )
