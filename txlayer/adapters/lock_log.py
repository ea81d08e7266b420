"""The lock log of a namespace: read from ten expiries ago on, and written. `core/leases.py` decides who holds a lease."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.errors import PASSING_CODES, Code, translate_error
from txlayer.adapters.ports import (
    IdempotentWriter,
    LogReader,
    TopicPartition,
    append_time_of,
    limits_of,
    no_append_time,
)
from txlayer.adapters.readers import records_of
from txlayer.adapters.telemetry import Log
from txlayer.core.leases import HISTORY_EXPIRY_COUNT, LockRecord, decode_lock, encode_lock, lock_partition
from txlayer.core.messages import Undecodable
from txlayer.errors import RetriableError, UsageError

T = TypeVar("T")

logger = Log("txlayer.locks")

READ_COUNT_MAX = 2_000  # records per read; it limits the time of one turn of the registry when much is to be read

BATCH_BYTES_MAX = 100_000
"""Lock records have a few hundred bytes. Where the topic takes less, half of what it takes: a broker refuses a larger batch whole."""

UNREADABLE_LOGGED_MAX = 20
"""Log so many unreadable records one by one, then one each time their number doubles: a writer of the topic can add any number."""

PATIENCE_S = 10.0  # how long reading the newest record may take at start


class LockEntry(NamedTuple):
    """One lock record with its position in the log."""

    partition: int
    offset: int
    appended_ms: int
    record: LockRecord


class LockLog:
    """Reads all partitions of one lock log, each in order, and writes to it. Not thread-safe.

    After `start` no call blocks. A record that cannot be decoded, or is in the wrong partition, is skipped and counted. The first ones are logged as warnings.
    """

    def __init__(
        self,
        connections: ConsumerConnections,
        *,
        topic: str,
        expiry_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._topic = topic
        self._history_ms = HISTORY_EXPIRY_COUNT * expiry_ms
        self._clock = clock
        self._reader: LogReader | None = None
        self._writer: IdempotentWriter | None = None
        self._partition_count = 0
        self._positions: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        self._newest_ms = 0
        self._newest_seen_at = 0.0
        self._failure: Exception | None = None
        self.unreadable_count = 0

    def start(self) -> None:
        """Find where the last ten expiries begin. Waits for the broker.

        Raises:
            TopicMismatchError: the topic does not exist, or its records have no append time.
            BrokerUnavailableError, NotAuthorisedError: it cannot be read. Nothing was written.
        """
        limits = limits_of(self._connections.topic_limits, self._topic)
        self._partition_count = limits.partition_count
        self._reader = self._connections.make_reader("read_uncommitted")
        batch_bytes_max = min(BATCH_BYTES_MAX, (limits.message_bytes_max or BATCH_BYTES_MAX) // 2)
        self._writer = self._connections.make_log_writer(batch_bytes_max=batch_bytes_max)
        tps = [(self._topic, partition) for partition in range(self._partition_count)]
        ends = self._asked(lambda: self._connections.end_offsets(tps, is_committed=False))
        starts = self._asked(lambda: self._connections.start_offsets(tps))
        # Use the log's clock, not this machine's: with a wrong clock the reader would begin too late.
        newest = self._newest({p: end for p, end in ends.items() if end > starts[p]})
        for tp, at_ms in newest.items():
            since_ms = max(at_ms - self._history_ms, 0)
            found = self._asked(partial(self._connections.offsets_at, [tp], at_ms=since_ms))
            starts[tp] = max(starts[tp], min(found[tp], ends[tp]))
        self._positions = {partition: offset for (_, partition), offset in starts.items()}
        self._behind = {p: end for (_, p), end in ends.items() if end > self._positions[p]}
        self._reader.assign(starts)

    @property
    def is_caught_up(self) -> bool:
        return self._reader is not None and not self._behind

    def position(self, queue: str) -> int:
        return self._positions[self._partition_of(queue)]

    def end_offsets(self) -> dict[int, int]:
        tps = [(self._topic, partition) for partition in range(self._partition_count)]
        found = self._asked(lambda: self._connections.end_offsets(tps, is_committed=False))
        return {partition: end for (_, partition), end in found.items()}

    def wait_for(self, ends: dict[int, int]) -> None:
        """Do not report `is_caught_up` before these offsets are reached."""
        self._behind = {p: end for p, end in ends.items() if end > self._positions[p]}

    @property
    def now_ms(self) -> int:
        """A lower bound of the log's time: the newest append time seen, plus the time since."""
        return self._newest_ms + int((self._clock() - self._newest_seen_at) * 1000)

    def read(self, *, timeout_s: float = 0.0) -> list[LockEntry]:
        """The records that have arrived.

        Raises:
            TopicMismatchError: a record has no append time.
            RetriableError: records were deleted before they were read; start over.
            TxLayerError: the log cannot be read.
        """
        assert self._reader is not None
        records = self._reader.read(record_count_max=READ_COUNT_MAX, timeout_s=timeout_s)
        return [entry for record in records if (entry := self._taken(record)) is not None]

    def write(self, record: LockRecord, *, on_written: Callable[[int | None], None]) -> None:
        """Append a record; `poll` calls `on_written` with its offset, or with None if it may not be stored.

        Raises:
            TxLayerError: the writer takes no record; nothing was written.
        """
        assert self._writer is not None
        key, value = encode_lock(record)
        partition, report = self._partition_of(record.queue), partial(self._report, on_written)
        try:
            self._writer.produce(self._topic, value, key, partition, report, None, 0, None)
        except BufferError as exc:
            raise RetriableError(f"the client's queue is full: {exc}") from exc
        except Exception as exc:
            raise self._writer.error_of(exc, topic=self._topic, txn_id="") from exc

    def poll(self, timeout_s: float = 0.0) -> int:
        """Serve acknowledgements; returns their number. UsageError, FencedError: the writer can no longer write."""
        assert self._writer is not None
        count = self._writer.poll(timeout_s)
        if self._failure is not None:
            raise self._failure
        return count

    def close(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for outstanding writes, and close."""
        try:
            if self._writer is not None:
                self._writer.close(timeout_s)  # it reports what is outstanding
        finally:
            self._writer, reader, self._reader = None, self._reader, None
            if reader is not None:
                reader.close()

    def _asked(self, question: Callable[[], T]) -> T:
        assert self._writer is not None
        give_up_at = self._clock() + PATIENCE_S
        while True:
            try:
                return question()
            except RetriableError:
                # A moving or new leader answers so for a moment.
                if self._clock() > give_up_at:
                    raise
                self._writer.poll(0.1)

    def _newest(self, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        assert self._reader is not None
        ranges = {tp: (end - 1, end) for tp, end in ends.items()}
        records = records_of(self._reader, ranges, patience_s=PATIENCE_S, clock=self._clock)
        return {(record.topic(), record.partition()): self._appended_ms(record) for record in records}

    def _taken(self, record: Any) -> LockEntry | None:
        partition = record.partition()
        position = self._next_offset(record)
        self._positions[partition] = max(position, self._positions[partition])
        if position >= self._behind.get(partition, 0):
            self._behind.pop(partition, None)
        if record.error() is not None:
            return None
        appended_ms = self._appended_ms(record)
        if appended_ms > self.now_ms:
            self._newest_ms, self._newest_seen_at = appended_ms, self._clock()
        found = decode_lock(record.key(), record.value())
        if not isinstance(found, Undecodable) and self._partition_of(found.queue) != partition:
            found = Undecodable("it belongs into another partition")
        if isinstance(found, Undecodable):
            self.unreadable_count += 1
            if (count := self.unreadable_count) <= UNREADABLE_LOGGED_MAX or not count & (count - 1):
                skipped = {"partition": partition, "offset": record.offset(), "reason": found.why, "count": count}
                logger.warning("locks.unreadable", extra=skipped)
            return None
        return LockEntry(partition, record.offset(), appended_ms, found)

    def _next_offset(self, record: Any) -> int:
        """The offset after a record, or the offset of an end-of-partition record."""
        error = record.error()
        offset: int = record.offset()
        if error is None:
            return offset + 1
        if error.code() == Code.LOCAL_PARTITION_EOF:
            return offset
        if error.code() == Code.LOCAL_AUTO_OFFSET_RESET:
            raise RetriableError(f"records of {self._topic} were deleted before they were read")
        if error.code() in PASSING_CODES:
            return 0
        raise translate_error(error, topic=self._topic, resource=self._topic, operation="read")

    def _appended_ms(self, record: Any) -> int:
        appended_ms = append_time_of(record)
        if appended_ms is None:
            raise no_append_time(self._topic, why="leases end by the broker's clock alone")
        return appended_ms

    def _partition_of(self, queue: str) -> int:
        return lock_partition(queue, partition_count=self._partition_count)

    def _report(self, on_written: Callable[[int | None], None], error: Any, record: Any) -> None:
        # Called by the client: it must not raise.
        if error is None:
            on_written(record.offset())
            return
        assert self._writer is not None
        found = self._writer.error_of(error, topic=self._topic, txn_id="")
        logger.warning("locks.not_written", extra={"reason": str(found)})
        failure = self._writer.failure()
        if failure is not None or isinstance(found, UsageError):
            self._failure = failure or found
        on_written(None)
