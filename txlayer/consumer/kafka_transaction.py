"""One Kafka transaction after the other by one transactional id, none of them torn. Never what is written.

The guard is the coordinator's (txlayer/coordinator/publish.py): librdkafka re-sends EndTxn and TxnOffsetCommit without
a word, and a late one lands in a later Kafka transaction of the same producer (KAFKA-17754). A re-send takes at least
0.8 of `retry.backoff.ms`, so a producer whose send_offsets or commit took longer than 0.7 of it is replaced (same id,
new epoch: every stale request is fenced) before the next Kafka transaction begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from txlayer.adapters.errors import REFUSED_RECORD_CODES
from txlayer.adapters.ports import StoredOffset, TopicPartition, TransactionalWriter
from txlayer.core.messages import Headers
from txlayer.errors import BrokerUnavailableError, LifecycleError, RetriableError, TxLayerError

logger = logging.getLogger("txlayer.consumer")

BATCH_BYTES = 16_384
"""One produce batch: far below every topic's largest message, because the broker refuses a batch as it refuses a message."""

TIMEOUT_S = 10.0
"""Of a Kafka transaction: the broker ends one that hangs, and until then its partitions' readers wait."""

RECYCLE_AFTER_S = 0.07
"""0.7 x retry.backoff.ms: a slower send_offsets or commit may have been re-sent."""

COMMIT_PATIENCE_S = 10.0
"""How much longer than its own time-out an unanswered commit is asked for again."""

IDLE_S_MAX = 3_600.0
"""An idle producer is replaced after this: brokers forget its id after a day, and refuse what it writes then."""


class WriterConnections(Protocol):
    """What makes writers."""

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> TransactionalWriter:
        """A writer for a transactional id, not initialised yet."""
        ...


class Entry(NamedTuple):
    """One record to write."""

    topic: str
    partition: int  # -1: by the key
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


class Fence(NamedTuple):
    """What a Kafka transaction stores for a consumer group, and the membership that allows it."""

    offsets: Mapping[TopicPartition, StoredOffset]
    member: Any


class KafkaTransactions:
    """The Kafka transactions of one transactional id. One thread uses it.

    After an error nobody knows whether the last one happened, and every further call is refused: whoever initialises
    the id next ends what is open.
    """

    def __init__(
        self,
        connections: WriterConnections,
        *,
        name: str,
        timeout_s: float = TIMEOUT_S,
        recycle_after_s: float = RECYCLE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.count = 0
        self.replaced_count = 0
        self.refused: list[int] = []
        """Places of the entries that were refused, when the last `write` raised `RefusedRecordError`."""
        self.has_sent_nothing = False
        """True: the last `write` failed before any offset was sent, so it stores none and is never committed."""
        self._connections = connections
        self._timeout_s = timeout_s
        self._recycle_after_s = recycle_after_s
        self._clock = clock
        self._writer: TransactionalWriter | None = None
        self._may_be_haunted = False
        self._is_lost = False
        self._ended_at = 0.0

    def start(self) -> None:
        """Fence whoever had the name before, and end what it left open; the first `write` would do it too.

        Raises:
            TxLayerError: the broker refused or did not answer; nothing was written, and nothing will be.
        """
        self._is_lost = True
        self._ready_writer()
        self._is_lost = False

    def write(
        self, entries: Sequence[Entry], *, fence: Callable[[list[int]], Fence] | None = None
    ) -> list[int]:
        """Write the entries, and store what `fence` makes of their offsets, as one; the offsets.

        Raises:
            RefusedRecordError, ForbiddenTopicError: a topic is missing or does not take a record.
            TxLayerError: anything else. In each case nobody knows whether it happened.
            LifecycleError: an earlier call failed; nothing was written.
        """
        if self._is_lost:
            raise LifecycleError(
                f"{self.name} failed before; start over with a new name", state="lost"
            )
        self._is_lost = True  # until this one has ended well
        self.has_sent_nothing = self._writer is None  # nothing was ever written under this name
        writer = self._ready_writer()
        self.has_sent_nothing = True
        writer.begin()
        offsets = self._append(writer, entries)
        fenced = None if fence is None else fence(offsets)
        self.has_sent_nothing = False
        started = self._clock()
        if fenced is not None:
            writer.send_offsets(fenced.offsets, fenced.member, timeout_s=self._timeout_s)
        sent = self._clock()
        self._commit(writer)
        self._ended_at = self._clock()
        self._may_be_haunted = max(sent - started, self._ended_at - sent) > self._recycle_after_s
        self._is_lost = False
        self.count += 1
        return offsets

    def close(self) -> None:
        """Give the producer back; an open Kafka transaction is left to whoever initialises the name next."""
        self._is_lost = True
        writer, self._writer = self._writer, None
        if writer is not None:
            close_quietly(writer)

    def _append(self, writer: TransactionalWriter, entries: Sequence[Entry]) -> list[int]:
        reports = [_Report(entry.topic) for entry in entries]
        try:
            for place, ((topic, partition, key, value, headers), report) in enumerate(
                zip(entries, reports, strict=True)
            ):
                self.refused = [place]  # by the client itself, if it raises
                self._produce(writer, (topic, value, key, partition, report, None, 0, headers))
        except TxLayerError:
            raise
        except Exception as exc:
            raise writer.failure(exc) from exc
        # Before the offsets, so that their calls, whose time is the guard's only sign, wait for nothing else.
        waiting = writer.flush(timeout_s=self._timeout_s)
        failed = [place for place, report in enumerate(reports) if report.error is not None]
        # What stood beside a refused record fails with it, for another reason.
        self.refused = [at for at in failed if reports[at].error.code() in REFUSED_RECORD_CODES]
        for at in self.refused or failed:
            raise writer.refusal(reports[at].error, topic=reports[at].topic, txn_key="")
        if waiting:
            raise BrokerUnavailableError(
                f"{waiting} records of a Kafka transaction were not acknowledged",
                waited_ms=int(self._timeout_s * 1000),
            )
        offsets = [report.offset for report in reports if report.offset is not None]
        if len(offsets) < len(reports):
            raise RetriableError("nobody told where records of a Kafka transaction were stored")
        return offsets

    def _produce(self, writer: TransactionalWriter, arguments: tuple[Any, ...]) -> None:
        while True:
            try:
                return writer.produce(*arguments)
            except BufferError:
                writer.poll()  # the queue is full: let some of it be acknowledged

    def _commit(self, writer: TransactionalWriter) -> None:
        give_up_at = self._clock() + self._timeout_s + COMMIT_PATIENCE_S
        while True:
            try:
                writer.commit(timeout_s=self._timeout_s)
            except RetriableError:
                if self._clock() >= give_up_at:
                    raise
                logger.warning("commit.unanswered", extra={"transactional_id": self.name})
            else:
                return

    def _ready_writer(self) -> TransactionalWriter:
        """A producer of which no stale request can be under way."""
        old = self._writer
        is_stale = self._clock() - self._ended_at > IDLE_S_MAX and self.count > 0
        if old is not None and not self._may_be_haunted and not is_stale:
            return old
        successor = self._connections.make_writer(self.name, batch_bytes_max=BATCH_BYTES)
        self._writer = successor
        successor.initialise(timeout_s=self._timeout_s)  # from now on stale requests are fenced
        self._may_be_haunted = False
        if old is not None:
            self.replaced_count += 1
            logger.info("producer.replaced", extra={"transactional_id": self.name})
            close_quietly(old)
        return successor


class _Report:
    """What became of one record."""

    __slots__ = ("error", "offset", "topic")

    def __init__(self, topic: str) -> None:
        self.error: Any = None
        self.offset: int | None = None
        self.topic = topic

    def __call__(self, error: Any, record: Any) -> None:
        self.error = error
        if error is None:
            self.offset = record.offset()


def close_quietly(writer: TransactionalWriter) -> None:
    """Close, and say when a client would not: it is discarded all the same."""
    try:
        writer.close()
    except TxLayerError as exc:
        logger.info("producer.close", extra={"reason": str(exc)})
