"""Kafka transactions of one transactional id, one after the other, none of them torn; and the rules of when their producer is replaced
by a successor with its id.

The successor has a new epoch: the broker fences every request of the old one. A producer is replaced before its next Kafka
transaction begins, if

* it may have stale requests (`may_have_stale_requests`);
* it was idle for `IDLE_S_MAX`. Only `KafkaTransactions` does this: a coordinator stores offsets all the time;
* it has larger batches than its topics take by now, or smaller ones. Only the coordinator's `Publisher` does this.

One error replaces it within its Kafka transaction, which is then written again: `error_replaces_producer`. Only the `Publisher`
asks this. After any other error a producer is given up, with its name: the outcome of its Kafka transaction is unknown. A coordinator builds its state again from
the stored offsets. A consumer takes its queues over again. If no offset was sent and the error does not end it, it only takes a
writer of another name (`Assignments.replace_writer`). Producers of half and op records are not transactional: after a fatal error (`FencedError`) the
user makes a new one, and `run_responder` does so itself.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, NamedTuple, Protocol

from txlayer.adapters.errors import REFUSED_RECORD_CODES, TOO_LARGE_REASONS
from txlayer.adapters.ports import DeliveryReport, StoredOffset, TopicPartition, TransactionalWriter
from txlayer.adapters.telemetry import Log
from txlayer.core.messages import Headers
from txlayer.errors import (
    BrokerUnavailableError,
    FencedError,
    LifecycleError,
    MemberFencedError,
    RefusedRecordError,
    RetriableError,
    TxLayerError,
)
from txlayer.runtime.environment import REAL, Background

logger = Log("txlayer.kafka")

SMALL_BATCH_BYTES = 16_384
"""Size of a produce batch: far below most topics' largest message, because the broker checks batches like messages."""
ALONE = 1
"""As the size of a batch: each record is one, for a topic whose largest message is smaller than `SMALL_BATCH_BYTES`."""
TIMEOUT_S = 10.0
"""Time-out of a Kafka transaction: the broker aborts a hanging one, and the partitions' readers wait until then."""
COMMIT_PATIENCE_S = 10.0  # how long beyond its own time-out an unanswered commit is repeated
STABLE_PATIENCE_S = 60.0
"""How long offsets may stay pending after their writers were fenced: longer than any Kafka transaction's time-out."""
RECYCLE_AFTER_S = 0.07  # 0.7 x retry.backoff.ms: a slower send_offsets or commit may have been sent twice
IDLE_S_MAX = 3_600.0
"""An idle producer is replaced after this: brokers forget its id after a day, and then refuse its records."""


def may_have_stale_requests(*, offsets_s: float, commit_s: float, recycle_after_s: float) -> bool:
    """True if send_offsets or commit took so long that it may have been sent twice, and the copy is still under way.

    librdkafka silently re-sends EndTxn and TxnOffsetCommit, and a late one may land in a later Kafka transaction of the same
    producer (KAFKA-17754). A re-send takes at least 0.8 of `retry.backoff.ms`.
    """
    return max(offsets_s, commit_s) > recycle_after_s


def error_replaces_producer(error: TxLayerError, *, idle_s: float, timeout_s: float) -> bool:
    """True if a successor may write the same again: a producer that was idle for `idle_s` was fenced before its commit.

    A late request opens a Kafka transaction that no client ends; the broker gives that up after its time-out, and fences. It is no sign
    of a second owner, which the group would know: an error of the group (`MemberFencedError`) is another thing.
    """
    return isinstance(error, FencedError) and not isinstance(error, MemberFencedError) and idle_s >= timeout_s


class WriterConnections(Protocol):
    """Makes writers."""

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> TransactionalWriter:
        """A writer for a transactional id, not initialised yet."""


class OffsetConnections(Protocol):
    """Reads the offsets that a group stored."""

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """The offsets that a group stored; with `is_stable` the answer waits for pending transactional offsets."""


class Entry(NamedTuple):
    """One record to write."""

    topic: str
    partition: int  # -1: by the key
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


class Fence(NamedTuple):
    """The offsets that a Kafka transaction stores for a consumer group, and the membership that permits it."""

    offsets: Mapping[TopicPartition, StoredOffset]
    member: Any


class KafkaTransactions:
    """The Kafka transactions of one transactional id. Not thread-safe.

    After an error the outcome of the last one is unknown, and every further call is refused; the next producer that
    initialises the id ends what is open.
    """

    def __init__(
        self,
        connections: WriterConnections,
        *,
        name: str,
        timeout_s: float = TIMEOUT_S,
        recycle_after_s: float = RECYCLE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        background: Background = REAL.background,
        batch_bytes_max: int = SMALL_BATCH_BYTES,
    ) -> None:
        self.name = name
        self.count = 0
        self.replaced_count = 0
        self.too_large: list[int] = []
        """Indexes of the entries that were refused for their own size when the last `write` raised `RefusedRecordError`."""
        self.has_refused_batch = False
        """True if entries were refused then that may have been one batch: with batches of `ALONE` they may be accepted."""
        self.has_sent_nothing = True
        """True if the last `write` failed before any offset was sent, or if there was none: what is open stores none and
        cannot be committed."""
        self._connections = connections
        self._timeout_s = timeout_s
        self._recycle_after_s = recycle_after_s
        self._clock = clock
        self._background = background
        self._batch_bytes_max = batch_bytes_max
        self._writer: TransactionalWriter | None = None
        self._may_have_stale_requests = False
        self._is_lost = False
        self._ended_at = 0.0

    def start(self) -> None:
        """Fence the earlier holder of the name and end what it left open; otherwise the first `write` does it.

        Raises:
            TxLayerError: the broker refused or did not answer; nothing was written, and no later call will write.
        """
        self._is_lost = True
        self._ready_writer()
        self._is_lost = False

    def write(
        self,
        entries: Sequence[Entry],
        *,
        behind: Callable[[list[int]], Sequence[Entry]] | None = None,
        fence: Callable[[list[int]], Fence | None] | None = None,
    ) -> list[int]:
        """Write the entries, those that `behind` makes of their offsets, and store what `fence` makes of all, atomically.

        Returns the offsets of all. What `behind` or `fence` raises leaves nothing written, and passes through.

        Raises:
            RefusedRecordError, ForbiddenTopicError: a topic is missing or does not accept a record.
            TxLayerError: anything else. In each case the outcome is unknown.
            LifecycleError: an earlier call failed; nothing was written.
        """
        if self._is_lost:
            raise LifecycleError(f"{self.name} failed before; start over with a new name", state="lost")
        self._is_lost = True  # until this one has ended well
        self.has_sent_nothing = self._writer is None  # nothing was written under this name so far
        writer = self._ready_writer()
        self.has_sent_nothing = True
        writer.begin()
        offsets = self._append(writer, entries)
        if behind is not None:
            offsets += self._append(writer, behind(offsets))
        fenced = None if fence is None else fence(offsets)
        self.has_sent_nothing = False
        started = self._clock()
        if fenced is not None:
            writer.send_offsets(fenced.offsets, fenced.member, timeout_s=self._timeout_s)
        sent = self._clock()
        commit(writer, timeout_s=self._timeout_s, clock=self._clock)
        self._ended_at = self._clock()
        self._may_have_stale_requests = may_have_stale_requests(
            offsets_s=sent - started, commit_s=self._ended_at - sent, recycle_after_s=self._recycle_after_s
        )
        self._is_lost = False
        self.count += 1
        return offsets

    def close(self) -> None:
        """Close the producer, after an error without waiting; an open Kafka transaction is left to the next holder of the name."""
        has_failed, self._is_lost = self._is_lost, True
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if has_failed:
            close_in_background(writer, self._background)
        else:
            close_quietly(writer)

    def _append(self, writer: TransactionalWriter, entries: Sequence[Entry]) -> list[int]:
        errors: dict[int, Any] = {}
        offsets: dict[int, int] = {}
        self.too_large, self.has_refused_batch = [], False

        def report(index: int, error: Any, record: Any) -> None:
            if error is not None:
                errors[index] = error
            elif record.offset() is not None:
                offsets[index] = record.offset()

        try:
            for index, (topic, partition, key, value, headers) in enumerate(entries):
                produce(writer, topic, value, key, partition, report=partial(report, index), headers=headers)
        except TxLayerError:
            raise
        except Exception as exc:
            error = writer.failure(exc)
            is_too_large = isinstance(error, RefusedRecordError) and error.reason in TOO_LARGE_REASONS
            self.too_large = [index] if is_too_large else []
            raise error from exc
        # Flush before the offsets: the guard measures the time of their calls, so they must not wait for anything else.
        waiting = writer.flush(timeout_s=self._timeout_s)
        # The other records of the transaction fail together with a refused one, for another reason.
        refused = [at for at in sorted(errors) if errors[at].code() in REFUSED_RECORD_CODES]
        too_large = [at for at in refused if errors[at].name() in TOO_LARGE_REASONS]
        counts = Counter(entries[at][:2] for at in too_large)
        self.too_large = [
            at for at in too_large if counts[entries[at][:2]] == 1 or _size_of(entries[at]) >= self._batch_bytes_max
        ]
        self.has_refused_batch = len(self.too_large) < len(too_large)
        for at in too_large or refused or sorted(errors):
            raise writer.refusal(errors[at], topic=entries[at].topic, txn_key="")
        raise_if_unacknowledged(waiting, waited_s=self._timeout_s)
        if len(offsets) < len(entries):
            raise RetriableError("the broker did not say at which offsets records of a Kafka transaction are stored")
        return [offsets[index] for index in range(len(entries))]

    def _ready_writer(self) -> TransactionalWriter:
        """A producer without stale requests in flight."""
        old = self._writer
        is_stale = self._clock() - self._ended_at > IDLE_S_MAX and self.count > 0
        if old is not None and not self._may_have_stale_requests and not is_stale:
            return old
        successor = self._connections.make_writer(self.name, batch_bytes_max=self._batch_bytes_max)
        self._writer = successor
        try:
            successor.initialise(timeout_s=self._timeout_s)  # from now on stale requests are fenced
        finally:
            if old is not None:
                close_in_background(old, self._background)
        self._may_have_stale_requests = False
        if old is not None:
            self.replaced_count += 1
            logger.info("producer.replaced", extra={"transactional_id": self.name})
        return successor


def _size_of(entry: Entry) -> int:
    """At most as large as in a batch."""
    headers = sum(len(name) + len(value or b"") for name, value in entry.headers or ())
    return len(entry.key or b"") + len(entry.value or b"") + headers


ANY_PARTITION = -1  # the client chooses the partition, by the record's key
CLIENT_CLOCK = 0  # the client sets the record's timestamp


def produce(
    writer: TransactionalWriter,
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int = ANY_PARTITION,
    *,
    report: DeliveryReport | None = None,
    stamp_ms: int = CLIENT_CLOCK,
    headers: Sequence[tuple[str, Any]] | None = None,
) -> None:
    """Produce a record; while the client's queue is full, serve the acknowledgements that make room."""
    while True:
        try:
            return writer.produce(topic, value, key, partition, report, None, stamp_ms, headers)
        except BufferError:
            writer.poll()


def raise_if_unacknowledged(count: int, *, waited_s: float) -> None:
    """Refuse to commit a Kafka transaction of which `count` records were not acknowledged within `waited_s`.

    Raises:
        BrokerUnavailableError: `count` is not zero; nothing of the Kafka transaction counts.
    """
    if count:
        raise BrokerUnavailableError(
            f"{count} records of a Kafka transaction were not acknowledged", waited_ms=int(waited_s * 1000)
        )


def commit(writer: TransactionalWriter, *, timeout_s: float, clock: Callable[[], float]) -> None:
    """Commit, and ask again while the broker does not answer: at most `COMMIT_PATIENCE_S` beyond one time-out.

    Raises:
        TxLayerError: the broker refused, or did not answer: then it is not known whether the commit happened.
    """
    give_up_at = clock() + timeout_s + COMMIT_PATIENCE_S
    while True:
        try:
            writer.commit(timeout_s=timeout_s)
        except BrokerUnavailableError:
            raise  # it has failed: asked again it fails at once, again and again
        except RetriableError:
            if clock() >= give_up_at:
                raise
            logger.warning("commit.unanswered", extra={"transactional_id": writer.transactional_id})
        else:
            return


def stable_offsets(
    connections: OffsetConnections,
    group: str,
    partitions: Sequence[TopicPartition],
    *,
    writers_of: Callable[[Mapping[TopicPartition, StoredOffset | None]], AbstractSet[str]],
    fence: Callable[[Sequence[str]], None],
    former_writers: Collection[str] = (),
    harmless: Collection[str] = (),
    is_still_ours: Callable[[], None] = lambda: None,
    patience_s: float = STABLE_PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[TopicPartition, StoredOffset | None]:
    """Fence the writers that stored a group's offsets, then return the offsets, which no writer can change any more.

    `writers_of` reads the writers' names from stored metadata ("" for none), and `fence` ends the Kafka transactions of some names.
    `former_writers` are fenced in any case. `harmless` ones left nothing open that stores an offset, and are not fenced although
    metadata name them. `is_still_ours` is called while waiting and may raise.

    Raises:
        BrokerUnavailableError: offsets stayed pending for `patience_s`.
        TxLayerError: what `fence` and `writers_of` raise.
    """
    fenced = {*harmless, ""}

    def fence_new(names: Iterable[str]) -> None:
        new = sorted(set(names) - fenced)
        if new:
            fence(new)
            fenced.update(new)

    def ask(*, is_stable: bool) -> dict[TopicPartition, StoredOffset | None]:
        give_up_at = clock() + patience_s
        while True:
            is_still_ours()
            try:
                return connections.stored_offsets(group, partitions, is_stable=is_stable)
            except BrokerUnavailableError:
                if clock() > give_up_at:
                    raise  # otherwise pending offsets answer as a time-out

    fence_new(former_writers)
    while True:
        # This answer does not wait for pending offsets: the names of their writers are available at once.
        fence_new(writers_of(ask(is_stable=False)))
        stored = ask(is_stable=True)
        if writers_of(stored) <= fenced:  # another may have written since the names were read
            return stored


def close_quietly(writer: TransactionalWriter) -> None:
    """Close the writer; if the client fails to close, log it and discard it."""
    try:
        writer.close()
    except TxLayerError as exc:
        logger.info("producer.close", extra={"reason": str(exc)})


def close_in_background(writer: TransactionalWriter, background: Background) -> None:
    """Close the writer in the background: after a fatal error a client's close may hang (librdkafka #4674)."""
    background.start(partial(close_quietly, writer), name="txlayer-close")
