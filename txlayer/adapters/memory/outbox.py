"""Records on their way from a client to the leaders: queued, batched, sent again, reported. Never: whose Kafka transaction.

A client in memory has no thread: what is queued leaves when somebody polls, flushes or commits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from txlayer.adapters.error_codes import Code
from txlayer.adapters.memory.link import INSIDE, RETRY_BACKOFF_S, Link
from txlayer.adapters.memory.log import (
    BATCH_OVERHEAD_BYTES,
    CREATE_TIME,
    MemoryRecord,
    PlacelessRecord,
)
from txlayer.adapters.memory.refusal import ClientError, NoAnswerError, RefusedError
from txlayer.adapters.ports import DeliveryReport, TopicPartition
from txlayer.core.messages import Headers
from txlayer.core.partitions import murmur2

ANY_PARTITION = -1

Queued = tuple[MemoryRecord, DeliveryReport | None]


class Batch:
    """Records of one partition that are sent together, and sent again as they are."""

    __slots__ = ("is_sent", "place", "queued", "retry_at", "times_out_at")

    def __init__(self, place: TopicPartition, queued: list[Queued], times_out_at: float) -> None:
        self.place = place
        self.queued = queued
        self.times_out_at = times_out_at
        self.retry_at = 0.0
        self.is_sent = False


class SendAgainError(Exception):
    """Not done, for a reason that passes."""

    def __init__(self, after_s: float) -> None:
        super().__init__(f"again after {after_s} s")
        self.after_s = after_s


Send = Callable[[Batch, list[MemoryRecord]], int | None]
"""Makes the request; what `send_batch` returns. Raises what an exchange raises, and SendAgainError."""


def send_batch(link: Link, produce: Callable[[], int]) -> int | None:
    """The offset of a batch's first record; None: the broker has the batch already, and does not say where.

    Raises:
        NoAnswerError, RefusedError: the exchange failed.
    """
    try:
        return link.ask("Produce", produce)
    except RefusedError as exc:
        if exc.code is not Code.DUPLICATE_SEQUENCE_NUMBER:
            raise
        return None


class Outbox:
    """Any thread puts; one sends and reports, in the order of acknowledgement."""

    def __init__(
        self,
        link: Link,
        *,
        send: Send,
        on_failed: Callable[[Batch | None, Code], None],
        batch_bytes_max: int,
        message_timeout_s: float,
        queue_max: int,
    ) -> None:
        self._link = link
        self._send = send
        self._on_failed = on_failed
        self._batch_bytes_max = batch_bytes_max
        self._message_timeout_s = message_timeout_s
        self._queue_max = queue_max
        self._queue: deque[Queued] = deque()
        # What the client once learned of a topic; one that is deleted then only seems to have no leader.
        self._known_counts: dict[str, int] = {}
        self._batches: dict[TopicPartition, deque[Batch]] = {}
        self._batched_count = 0
        self._reports: deque[tuple[DeliveryReport | None, ClientError | None, MemoryRecord]] = (
            deque()
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
        """Queue a record, with the arguments of the Kafka client's `produce`.

        Raises:
            BufferError: the queue is full. Nothing was queued.
        """
        if len(self._queue) >= self._queue_max:
            raise BufferError("the queue is full")
        record = MemoryRecord(
            topic, partition, _encoded(key), _encoded(value), _headers(headers), (CREATE_TIME, timestamp)
        )  # fmt: skip
        queued = (record, callback or on_delivery)
        self._link.world.change(partial(self._queue.append, queued))

    @property
    def unreported_count(self) -> int:
        """Records whose report was not served yet."""
        return len(self._queue) + self._batched_count + len(self._reports)

    def is_due(self) -> bool:
        """True when `send` or `serve` has something to do."""
        if self._queue or self._reports:
            return True
        if not self._batches:
            return False
        return self._due_in_s() <= 0

    def wait(self, timeout_s: float) -> bool:
        """Let others run until something is due, at most so long; True when something is."""
        world = self._link.world
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
        for place in list(self._batches):
            batches = self._batches[place]
            while batches and self._send_one(batches[0]):
                batches.popleft()
            if not batches:
                del self._batches[place]

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
                code = Code.LOCAL_PURGE_INFLIGHT if batch.is_sent else Code.LOCAL_PURGE_QUEUE
                self._report_failed(batch, code)
        self._batches.clear()
        while self._queue:
            record, on_delivery = self._queue.popleft()
            self._reports.append((on_delivery, ClientError(Code.LOCAL_PURGE_QUEUE), record))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _due_in_s(self) -> float:
        if not self._batches:
            return float("inf")
        now = self._link.world.monotonic()
        # A copy: another thread may ask how far it is.
        heads = [batches[0] for batches in list(self._batches.values()) if batches]
        return min((min(b.retry_at, b.times_out_at) for b in heads), default=now) - now

    def _form_batches(self) -> None:
        times_out_at = self._link.world.monotonic() + self._message_timeout_s
        sizes: dict[TopicPartition, int] = {}
        for _ in range(len(self._queue)):
            record, on_delivery = queued = self._queue[0]
            place = self._place(record)
            if isinstance(place, Code):
                self._on_failed(None, place)
                self._reports.append((on_delivery, ClientError(place), record))
                self._queue.popleft()
                continue
            batches = self._batches.setdefault(place, deque())
            # Only what this round formed grows: an older batch may have been sent.
            if place in sizes and sizes[place] + record.size <= self._batch_bytes_max:
                batches[-1].queued.append(queued)
                sizes[place] += record.size
            else:
                batches.append(Batch(place, [queued], times_out_at))
                sizes[place] = BATCH_OVERHEAD_BYTES + record.size
            self._batched_count += 1
            self._queue.popleft()

    def _place(self, record: MemoryRecord) -> TopicPartition | Code:
        name, partition = record.topic(), record.partition()
        topic = self._link.cluster.topics.get(name)
        if topic is not None:
            self._known_counts[name] = len(topic.partitions)
        count = self._known_counts.get(name, 0)
        if not count:
            return Code.LOCAL_UNKNOWN_TOPIC
        if partition == ANY_PARTITION:
            key = record.key()
            # murmur2_random, as the coordinator's client is set.
            partition = (
                self._link.world.random.randrange(count) if key is None else murmur2(key) % count
            )
            record.move_to(partition)
        elif not 0 <= partition < count:
            return Code.LOCAL_UNKNOWN_PARTITION
        return name, partition

    def _send_one(self, batch: Batch) -> bool:
        """True when the batch is done with."""
        now = self._link.world.monotonic()
        if now >= batch.times_out_at:
            self._report_failed(batch, Code.LOCAL_MSG_TIMED_OUT)
            return True
        if now < batch.retry_at:
            return False
        records = [record for record, _ in batch.queued]
        try:
            batch.is_sent = True
            base = self._send(batch, records)
        except NoAnswerError:
            batch.retry_at = now + self._link.jittered(RETRY_BACKOFF_S)
            return False
        except SendAgainError as exc:
            batch.retry_at = now + self._link.jittered(exc.after_s)
            return False
        except RefusedError as exc:
            if exc.code in INSIDE["Produce"]:
                batch.retry_at = now + self._link.jittered(RETRY_BACKOFF_S)
                return False
            self._report_failed(batch, exc.code)
            return True
        if base is None:
            self._report_placeless(batch)
        else:
            self._report_written(batch, base)
        return True

    def _report_placeless(self, batch: Batch) -> None:
        # As the client does with what it takes for stored without having been told where.
        for record, on_delivery in batch.queued:
            self._reports.append((on_delivery, None, PlacelessRecord(record)))
        self._batched_count -= len(batch.queued)

    def _report_written(self, batch: Batch, base: int) -> None:
        for offset, (record, on_delivery) in enumerate(batch.queued, start=base):
            # It stands in the log twice when an older request arrived after all: the report names this one.
            written = record if record.place == offset else record.put(offset, record.timestamp())
            self._reports.append((on_delivery, None, written))
        self._batched_count -= len(batch.queued)

    def _report_failed(self, batch: Batch, code: Code) -> None:
        self._on_failed(batch, code)
        error = ClientError(code)
        for record, on_delivery in batch.queued:
            self._reports.append((on_delivery, error, record))
        self._batched_count -= len(batch.queued)


def _encoded(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _headers(headers: Headers | Mapping[str, bytes | str | None] | None) -> Headers | None:
    if not headers:
        return None
    pairs: Sequence[tuple[str, Any]]
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    return [(name, _encoded(value)) for name, value in pairs]
