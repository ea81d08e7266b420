"""One partition: its settings, its records, the offsets that markers take, the last stable offset.

`read_uncommitted` sees what a Kafka transaction wrote at once. `read_committed` ends at the first offset of the oldest
open transaction, and skips what was aborted. A `RefusedError` holds the code that Kafka answers; then nothing was changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from txlayer.adapters.errors import Code
from txlayer.adapters.memory.world import ClientError, RefusedError
from txlayer.core.messages import HEADERS_READ_MAX, Headers

HOUR_MS = 3_600_000

DEFAULTS: Mapping[str, str] = {  # Kafka's defaults of the settings that do something here
    "cleanup.policy": "delete",
    "delete.retention.ms": str(24 * HOUR_MS),
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": str(HOUR_MS),
    "message.timestamp.type": "CreateTime",
    "min.compaction.lag.ms": "0",
    "retention.ms": str(7 * 24 * HOUR_MS),
}

WITHOUT_EFFECT: Mapping[str, str] = {  # known, kept and shown; one broker without files has no use for them
    "compression.type": "producer",
    "min.cleanable.dirty.ratio": "0.5",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "segment.bytes": str(1 << 30),
    "segment.ms": str(7 * 24 * HOUR_MS),
    "unclean.leader.election.enable": "false",
}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What the log of a topic does with its records."""

    is_compacted: bool
    is_deleted: bool
    is_append_time: bool
    message_bytes_max: int
    retention_ms: int  # -1: for ever
    compaction_lag_ms: int
    tombstone_ms: int
    future_ms_max: int

    @staticmethod
    def of(settings: Mapping[str, str]) -> TopicSettings:
        """The settings, over Kafka's defaults."""
        values = {**DEFAULTS, **settings}
        policies = {part.strip() for part in values["cleanup.policy"].split(",")}
        if (
            not settings.keys() <= DEFAULTS.keys() | WITHOUT_EFFECT.keys()
            or not policies <= {"delete", "compact"}
            or values["message.timestamp.type"] not in ("CreateTime", "LogAppendTime")
        ):
            raise RefusedError(Code.INVALID_CONFIG)
        try:
            return TopicSettings(
                is_compacted="compact" in policies,
                is_deleted="delete" in policies,
                is_append_time=values["message.timestamp.type"] == "LogAppendTime",
                message_bytes_max=int(values["max.message.bytes"]),
                retention_ms=int(values["retention.ms"]),
                compaction_lag_ms=int(values["min.compaction.lag.ms"]),
                tombstone_ms=int(values["delete.retention.ms"]),
                future_ms_max=int(values["message.timestamp.after.max.ms"]),
            )
        except ValueError as exc:
            raise RefusedError(Code.INVALID_CONFIG) from exc


def in_effect(settings: Mapping[str, str]) -> dict[str, str]:
    """Every setting, as a broker describes them."""
    return {**DEFAULTS, **WITHOUT_EFFECT, **settings}


CREATE_TIME, APPEND_TIME = 1, 2  # kinds of a record's time, as the client numbers them

BATCH_OVERHEAD_BYTES = 61
RECORD_OVERHEAD_BYTES = 12  # a batch's own fields, and about what lengths and deltas of a record take

ANY_SEQUENCE = -1

_OFFSET = attrgetter("log_offset")


class MemoryRecord:
    """An entry of a partition; shared by all its readers, which do not change it."""

    __slots__ = (
        "_error",
        "_headers",
        "_key",
        "_partition",
        "_stamp",
        "_topic",
        "_value",
        "is_aborted",
        "log_offset",
        "size",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        stamp: tuple[int, int] = (0, 0),
        *,
        log_offset: int = -1,
        error: ClientError | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._key = key
        self._value = value
        self._headers = headers if len(headers or ()) <= HEADERS_READ_MAX else None
        self._stamp = stamp
        self._error = error
        self.log_offset = log_offset
        self.is_aborted = False
        self.size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        if headers:
            self.size += sum(len(name) + len(held or b"") + 2 for name, held in headers)

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self.log_offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._stamp

    def error(self) -> ClientError | None:
        return self._error

    def move_to(self, partition: int) -> None:
        self._partition = partition

    def put(self, offset: int, stamp: tuple[int, int]) -> MemoryRecord:
        """The record at its offset in the log: itself, or a copy when it is in the log already."""
        record = self
        if self.log_offset >= 0:
            record = MemoryRecord(self._topic, self._partition, self._key, self._value, self._headers)
        record.log_offset, record._stamp = offset, stamp
        return record

    def __len__(self) -> int:
        return len(self._value or b"")

    def __repr__(self) -> str:
        return f"<{self._topic}-{self._partition}@{self.log_offset} {self._key!r}: {self._value!r}>"


class OffsetUnknownRecord(MemoryRecord):
    """In a report: it is stored, at an offset that the client does not know."""

    __slots__ = ()

    def __init__(self, record: MemoryRecord) -> None:
        super().__init__(record.topic(), record.partition(), record.key(), record.value(), record.headers())

    def offset(self) -> None:  # type: ignore[override]  # only readers of reports meet one
        """None."""


class ProducerMark(NamedTuple):
    """The producer of a batch, and the number of its first record among all that it wrote to this partition."""

    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool


@dataclass(slots=True)
class _ProducerState:
    """What a partition remembers of one producer."""

    epoch: int
    next_sequence: int
    last_sequence: int = -1  # of the newest batch
    last_offset: int = -1


class _OpenWrites(NamedTuple):
    """What an open Kafka transaction wrote here."""

    first_offset: int
    records: list[MemoryRecord]


class Partition:
    """The log of one partition, on its leader; what is appended is replicated at once."""

    def __init__(self, settings: TopicSettings) -> None:
        self.settings = settings
        self.first_offset = 0
        self.next_offset = 0
        self.is_led = True
        self.clock_ahead_ms = 0  # by how much its leader's clock is ahead: each broker has one of its own
        self.growth = 1.0
        """How much larger a batch is stored than it was sent: a topic that compresses in its own way may find less to save."""
        self._records: list[MemoryRecord] = []
        # In the order of their first offsets, so that the oldest is the first.
        self._open: dict[int, _OpenWrites] = {}
        self._producers: dict[int, _ProducerState] = {}

    @property
    def last_stable_offset(self) -> int:
        """Where `read_committed` ends."""
        for writes in self._open.values():
            return writes.first_offset
        return self.next_offset

    def end(self, *, is_committed: bool) -> int:
        return self.last_stable_offset if is_committed else self.next_offset

    def is_open(self, producer_id: int) -> bool:
        """True while a Kafka transaction of this producer has records here and no marker."""
        return producer_id in self._open

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[MemoryRecord], *, now_ms: int, mark: ProducerMark | None = None) -> int:
        """Append a batch, whole or not at all; the offset of its first record.

        The same batch of the same producer again changes nothing.
        """
        if mark is not None:
            repeated = self._check_producer(mark)
            if repeated is not None:
                return repeated
        now_ms += self.clock_ahead_ms
        self._check_batch(records, now_ms)
        base = offset = self.next_offset
        stored = []
        is_append_time = self.settings.is_append_time
        for record in records:
            stamp = record.timestamp()
            if is_append_time or not stamp[1]:
                stamp = (APPEND_TIME if is_append_time else CREATE_TIME, now_ms)
            stored.append(record.put(offset, stamp))
            offset += 1
        self._records += stored
        self.next_offset = offset
        if mark is not None:
            state = self._producers[mark.producer_id]
            state.last_sequence, state.last_offset = mark.sequence, base
            state.next_sequence = mark.sequence + len(stored)
            if mark.is_transactional:
                self._open.setdefault(mark.producer_id, _OpenWrites(base, [])).records.extend(stored)
        return base

    def end_transaction(self, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        """Write the marker that ends a producer's Kafka transaction here; it takes one offset."""
        writes = self._open.pop(producer_id, None)
        if writes is not None and not is_commit:
            for record in writes.records:
                record.is_aborted = True
        self._state_of(producer_id, epoch)
        self.next_offset += 1

    def _check_producer(self, mark: ProducerMark) -> int | None:
        state = self._state_of(mark.producer_id, mark.epoch)
        if mark.epoch < state.epoch:
            raise RefusedError(Code.INVALID_PRODUCER_EPOCH)
        if state.next_sequence == ANY_SEQUENCE:
            return None
        if mark.sequence == state.last_sequence:
            return state.last_offset
        if mark.sequence < state.next_sequence:
            raise RefusedError(Code.DUPLICATE_SEQUENCE_NUMBER)
        if mark.sequence > state.next_sequence:
            raise RefusedError(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def _state_of(self, producer_id: int, epoch: int) -> _ProducerState:
        state = self._producers.get(producer_id)
        if state is None:
            # Of a producer that was never here, or was forgotten, any first number is right.
            state = self._producers[producer_id] = _ProducerState(epoch, ANY_SEQUENCE)
        elif state.epoch < epoch:
            state = self._producers[producer_id] = _ProducerState(epoch, 0)
        return state

    def _check_batch(self, records: Sequence[MemoryRecord], now_ms: int) -> None:
        settings = self.settings
        size = BATCH_OVERHEAD_BYTES
        latest_ms = now_ms + settings.future_ms_max
        for record in records:
            size += record.size
            if settings.is_compacted and record.key() is None:
                raise RefusedError(Code.INVALID_RECORD)
            if record.timestamp()[1] > latest_ms and not settings.is_append_time:
                raise RefusedError(Code.INVALID_TIMESTAMP)
        if size * self.growth > settings.message_bytes_max:
            raise RefusedError(Code.MSG_SIZE_TOO_LARGE)

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, position: int, *, count_max: int, is_committed: bool) -> tuple[list[MemoryRecord], int]:
        """Records from `position` on, and where to go on."""
        if not self.first_offset <= position <= self.next_offset:
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE)
        end = self.end(is_committed=is_committed)
        if position >= end:
            return [], position
        records = self._records
        low = bisect_left(records, position, key=_OFFSET)
        high = min(bisect_left(records, end, lo=low, key=_OFFSET), low + count_max)
        found = records[low:high]
        if high < len(records) and high - low == count_max and records[high].log_offset < end:
            end = found[-1].log_offset + 1 if found else position
        if is_committed:
            found = [record for record in found if not record.is_aborted]
        return found, end

    def visible(self, *, is_committed: bool) -> list[MemoryRecord]:
        return self.read(self.first_offset, count_max=len(self._records) + 1, is_committed=is_committed)[0]

    def offset_at(self, at_ms: int, *, is_committed: bool) -> int:
        """The first offset whose record is of `at_ms` or later; -1: there is none."""
        end = self.end(is_committed=is_committed)
        for record in self._records:
            if record.log_offset >= end:
                break
            if record.timestamp()[1] >= at_ms:
                return record.log_offset
        return -1

    # --- cleaning -----------------------------------------------------------------------------------------------------

    def clean(self, now_ms: int) -> None:
        """Remove what retention and compaction let go; never beyond the last stable offset.

        Kafka does both by whole segments and so later; do not rely on that.
        """
        now_ms += self.clock_ahead_ms
        settings = self.settings
        if settings.is_deleted and settings.retention_ms >= 0:
            self._expire(now_ms - settings.retention_ms)
        if settings.is_compacted:
            self._compact(now_ms)

    def delete_before(self, offset: int) -> None:
        self.first_offset = max(self.first_offset, min(offset, self.last_stable_offset))
        del self._records[: bisect_left(self._records, self.first_offset, key=_OFFSET)]

    def _expire(self, before_ms: int) -> None:
        stable = self.last_stable_offset
        first = self.first_offset
        for record in self._records:
            if record.log_offset >= stable or record.timestamp()[1] >= before_ms:
                if self.first_offset < first and record.log_offset < stable:
                    first = record.log_offset  # the markers before it go with the records that they end
                break
            first = record.log_offset + 1
        self.delete_before(first)

    def _compact(self, now_ms: int) -> None:
        stable, settings = self.last_stable_offset, self.settings
        clean_before_ms = now_ms - settings.compaction_lag_ms
        newest: dict[bytes | None, int] = {}
        dirty_count = 0
        for record in self._records:
            # The newest record of all is in a segment that is still written.
            if record.log_offset >= min(stable, self.next_offset - 1):
                break
            if record.timestamp()[1] > clean_before_ms:
                break
            dirty_count += 1
        # Also what may not be removed yet says what is out of date.
        for record in self._records:
            if record.log_offset >= stable:
                break
            if not record.is_aborted:
                newest[record.key()] = record.log_offset
        kept = [
            record
            for record in self._records[:dirty_count]
            if newest.get(record.key()) == record.log_offset
            and (record.value() is not None or record.timestamp()[1] >= now_ms - settings.tombstone_ms)
        ]
        self._records[:dirty_count] = kept
