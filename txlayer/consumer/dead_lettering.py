"""Dead letters, results and the offsets that account for them: one Kafka transaction. Never which message is given up.

The naming rule, as the coordinator has it (txlayer/coordinator/publish.py): a writer's name is new for every assignment
and never used again, and it stands in the stored metadata before the writer writes for the first time. So whoever takes
a queue over knows the name, and ends with it what the former owner left open.

The guard: librdkafka re-sends EndTxn and TxnOffsetCommit without a word, and a late one lands in a later Kafka
transaction of the same producer (KAFKA-17754). A re-send takes at least 0.8 of `retry.backoff.ms`, so a producer whose
send_offsets or commit took longer than 0.7 of it is replaced (same id, new epoch: every stale request is fenced) before
the next Kafka transaction begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from txlayer.adapters.ports import Record, StoredOffset, TopicPartition, TransactionalWriter
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    dead_letter_topic,
    encode_dead_letter,
    original_headers,
    replay_topic,
)
from txlayer.core.handling import DeadLetter, ReplayRecord
from txlayer.core.replays import encode_replay
from txlayer.errors import (  # fmt: skip
    BrokerUnavailableError,
    InvariantError,
    LifecycleError,
    RetriableError,
    TxLayerError,
)

logger = logging.getLogger("txlayer.consumer")

BATCH_BYTES = 16_384
"""One produce batch: far below every topic's largest message, because the broker refuses a batch as it refuses a message."""

TIMEOUT_S = 10.0
"""Of a Kafka transaction: the broker ends one that hangs, and until then its partition's readers wait."""

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


class GivenUp(NamedTuple):
    """A message that becomes a dead letter: its record as it was read from its topic, and why."""

    record: Record
    letter: DeadLetter


class Answered(NamedTuple):
    """What became of a request: a record for the replay topic of `topic`."""

    topic: str
    partition: int
    key: bytes | None  # of the request
    result: ReplayRecord


OffsetsOf = Callable[[list[int]], Mapping[TopicPartition, StoredOffset]]
"""The offsets of the dead letters just written → what is stored with them. A parked key's metadata hold its last one."""


@dataclass(slots=True)
class DeadLetterStats:
    """What a writer did since it began."""

    kafka_transaction_count: int = 0
    dead_letter_count: int = 0
    replaced_count: int = 0


class DeadLetterWriter:
    """The dead-letter writer of one assignment. One thread uses it.

    Args:
        connections: make its producer, at the first write: most consumers never write a dead letter.
        group: the consumer group.
        name: transactional id; drawn for this assignment, and stored for every partition before the first write.
    """

    def __init__(
        self,
        connections: WriterConnections,
        *,
        group: str,
        name: str,
        timeout_s: float = TIMEOUT_S,
        recycle_after_s: float = RECYCLE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.stats = DeadLetterStats()
        self._connections = connections
        self._group = group
        self._timeout_s = timeout_s
        self._recycle_after_s = recycle_after_s
        self._clock = clock
        self._writer: TransactionalWriter | None = None
        self._may_be_haunted = False
        self._is_lost = False
        self._ended_at = 0.0

    def write(
        self,
        letters: Sequence[GivenUp],
        answers: Sequence[Answered] = (),
        *,
        offsets: OffsetsOf,
        member: Any,
    ) -> list[int]:
        """Append dead letters and results, and store offsets, in one Kafka transaction; the dead letters' offsets.

        A dead letter has key, value and headers of its record, and the header `txl-dlq` behind them. It stands in the
        dead-letter topic of its origin, in the origin's partition. `offsets` is called when all are acknowledged.

        Raises:
            RefusedRecordError, ForbiddenTopicError: a topic is missing or does not take the record.
            TxLayerError: anything else. In each case nobody knows whether it happened; this writer refuses every
                further call. `end_what_was_left` with its name, then start over from the stable stored offsets: they
                tell. What was not stored then is in no dead-letter topic.
            LifecycleError: an earlier call failed; nothing was written.
        """
        if self._is_lost:
            raise LifecycleError(f"{self.name} failed before; start over with a new name", state="lost")  # fmt: skip
        self._is_lost = True  # until this one has ended well
        writer = self._ready_writer()
        writer.begin()
        places = self._append(writer, letters, answers)
        wanted = offsets(places)
        if not wanted:
            # Without offsets its records would carry no fence of the group.
            raise InvariantError("a Kafka transaction of dead letters that stores no offset")
        started = self._clock()
        writer.send_offsets(wanted, member, timeout_s=self._timeout_s)
        sent = self._clock()
        self._commit(writer)
        self._ended_at = self._clock()
        self._may_be_haunted = max(sent - started, self._ended_at - sent) > self._recycle_after_s
        self._is_lost = False
        self.stats.kafka_transaction_count += 1
        self.stats.dead_letter_count += len(letters)
        return places

    def close(self) -> None:
        """Give the producer back; an open Kafka transaction is left to `end_what_was_left`."""
        self._is_lost = True
        writer, self._writer = self._writer, None
        if writer is not None:
            close_quietly(writer)

    # --- the Kafka transaction ----------------------------------------------------------------------------------------

    def _append(
        self,
        writer: TransactionalWriter,
        letters: Sequence[GivenUp],
        answers: Sequence[Answered],
    ) -> list[int]:
        reports = [_Report() for _ in range(len(letters) + len(answers))]
        try:
            for (record, letter), report in zip(letters, reports, strict=False):
                origin = letter.origin
                headers = [
                    *original_headers(record.headers()),
                    (DLQ_HEADER, encode_dead_letter(letter)),
                ]
                topic = dead_letter_topic(self._group, origin.topic)
                self._produce(
                    writer, (topic, record.value(), record.key(), origin.partition, report, None, 0, headers)
                )  # fmt: skip
            for answer, report in zip(answers, reports[len(letters) :], strict=True):
                topic, value = replay_topic(self._group, answer.topic), encode_replay(answer.result)
                self._produce(
                    writer, (topic, value, answer.key, answer.partition, report, None, 0, None)
                )
        except TxLayerError:
            raise
        except Exception as exc:
            raise writer.failure(exc) from exc
        waiting = writer.flush(timeout_s=self._timeout_s)
        for report in reports:
            if report.error is not None:
                raise writer.refusal(report.error, topic=report.topic, txn_key="")
        if waiting:
            raise BrokerUnavailableError(
                f"{waiting} records of a Kafka transaction were not acknowledged",
                waited_ms=int(self._timeout_s * 1000),
            )
        return [report.offset for report in reports[: len(letters)]]

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

    # --- its producer -------------------------------------------------------------------------------------------------

    def _ready_writer(self) -> TransactionalWriter:
        """A producer of which no stale request can be under way."""
        is_stale = self._clock() - self._ended_at > IDLE_S_MAX
        if self._writer is not None and not self._may_be_haunted and not is_stale:
            return self._writer
        old = self._writer
        successor = self._connections.make_writer(self.name, batch_bytes_max=BATCH_BYTES)
        self._writer = successor
        successor.initialise(timeout_s=self._timeout_s)  # from now on stale requests are fenced
        if old is not None:
            self.stats.replaced_count += 1
            logger.info("producer.replaced", extra={"transactional_id": self.name})
            close_quietly(old)
        return successor


class _Report:
    """What became of one record."""

    __slots__ = ("error", "offset", "topic")

    def __init__(self) -> None:
        self.error: Any = None
        self.offset = -1
        self.topic = ""

    def __call__(self, error: Any, record: Any) -> None:
        self.error, self.topic = error, record.topic()
        if error is None:
            self.offset = record.offset()


def close_quietly(writer: TransactionalWriter) -> None:
    """Close, and say when a client would not: it is discarded all the same."""
    try:
        writer.close()
    except TxLayerError as exc:
        logger.info("producer.close", extra={"reason": str(exc)})
