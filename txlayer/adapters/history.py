"""Reads what half, op, doubt and check say about one transaction id. Never: what it means (`core/history.py` does)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from txlayer.adapters.administration import Administration
from txlayer.adapters.error_codes import Code
from txlayer.adapters.history_port import HistoryStart
from txlayer.adapters.ports import LogReader, Record, TopicPartition
from txlayer.adapters.translation import translate_error
from txlayer.config import ClientConfig, SystemTopics
from txlayer.core import codec
from txlayer.core.history import HistoryFold, TransactionHistory
from txlayer.core.messages import HalfHeader, Undecodable, nonce_of, txn_id_of
from txlayer.errors import BrokerUnavailableError, TopicMismatchError

_READ_COUNT_MAX = 5_000
_LOOK_S = 0.5
_QUIET_S = 10.0
"""No record and no end of a partition for so long: the broker does not answer any more."""


class HalfPlace(NamedTuple):
    """Whose half record stands at a place."""

    txn_id: str
    nonce: str
    index: int  # type: ignore[assignment]  # of the message; hides tuple.index, which nobody needs
    appended_ms: int


class LogHistoryReader:
    """The `HistoryReader` over any log. Each call makes clients of its own, so any thread may call it."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        make_admin: Callable[[], Administration],
        make_reader: Callable[[], LogReader],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._make_admin = make_admin
        self._make_reader = make_reader
        self._clock = clock
        self._wall_clock = wall_clock

    def read(
        self,
        txn_id: str,
        *,
        start: HistoryStart,
        partitions: Sequence[int] | None = None,
        with_checks: bool = False,
    ) -> list[TransactionHistory]:
        """Every nonce of `txn_id` that has a record in half or op since `start`, or stands on doubt; oldest first.

        The logs are read up to their ends as they are now (read_committed); doubt is read as a whole, and the check
        topic, as far as it goes back, only `with_checks`.

        Raises:
            TopicMismatchError: the namespace's topics do not exist.
            BrokerUnavailableError, NotAuthorisedError: they cannot be read.
        """
        with closing(self._make_admin()) as admin:
            positions, ends, at_ms = self._ranges(admin, start, partitions)
            if with_checks:
                self._add_checks(admin, positions, ends, at_ms=at_ms)
        fold = HistoryFold(txn_id)
        with closing(self._make_reader()) as reader:
            for record in self._records(reader, positions, ends):
                _fold(fold, record, self._config.topics)
        return fold.histories()

    def half_at(self, partition: int, offset: int) -> HalfPlace | str:
        """Whose half record stands there; a sentence about what is there instead.

        Raises:
            TopicMismatchError: the namespace's topics do not exist.
            BrokerUnavailableError, NotAuthorisedError: they cannot be read.
        """
        topic = self._config.topics.half
        half = (topic, partition)
        with closing(self._make_admin()) as admin:
            count = self._partition_count(admin)
            if partition >= count:
                return f"{topic} has the partitions 0 to {count - 1}, not {partition}"
            first, end = admin.start_offsets([half])[half], admin.end_offsets([half])[half]
        if not first <= offset < end:
            return (
                f"{topic}-{partition} holds the offsets from {first} to before {end}, not {offset}"
            )
        with closing(self._make_reader()) as reader:
            for record in self._records(reader, {half: offset}, {half: offset + 1}):
                return _place(record, f"{topic}-{partition}@{offset}")
        return f"{topic}-{partition}@{offset} is a marker of a Kafka transaction, or was aborted"

    def half_places(self, partition: int, keys: Collection[str], *, at_ms: int) -> dict[str, int]:
        """As in `HistoryReader`."""
        half = (self._config.topics.half, partition)
        with closing(self._make_admin()) as admin:
            self._partition_count(admin)
            first, ends = admin.start_offsets([half]), admin.end_offsets([half])
            since = admin.offsets_at([half], at_ms=at_ms)
        found = self._places_of(keys, since, ends)
        if len(found) < len(keys) and since != first:  # somebody's clock is ahead
            found = self._places_of(keys, first, ends)
        return found

    def _places_of(
        self,
        keys: Collection[str],
        positions: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
    ) -> dict[str, int]:
        found: dict[str, int] = {}
        with closing(self._make_reader()) as reader:
            for record in self._records(reader, positions, ends):
                raw = codec.half_header_of(record.headers())
                header = None if raw is None else codec.decode_half_header(raw)
                if isinstance(header, HalfHeader) and header.key in keys:
                    found[header.key] = record.offset()
        return found

    def _partition_count(self, admin: Administration) -> int:
        count = admin.partition_count(self._config.topics.half)
        if count is None:
            raise TopicMismatchError(
                "no such topic; `txlayer topics apply` creates it",
                topic=self._config.topics.half,
                found="none",
            )
        return count

    def _ranges(
        self, admin: Administration, start: HistoryStart, partitions: Sequence[int] | None
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], int]:
        topics = self._config.topics
        count = self._partition_count(admin)
        numbers = range(count) if partitions is None else partitions
        if start.position is not None:
            numbers = [start.position[0]]
        halves = [(topics.half, number) for number in numbers]
        ops = [(topics.op, number) for number in numbers]
        doubts = [(topics.doubt, number) for number in numbers]
        first = admin.start_offsets([*halves, *ops, *doubts])
        ends = admin.end_offsets([*halves, *ops, *doubts])
        at_ms = start.at_ms
        positions = dict(first)
        if start.position is not None:
            half, offset = halves[0], start.position[1]
            positions[half] = max(first[half], offset)
            at_ms = self._appended_ms(half, positions[half], ends[half])
        else:
            positions.update(admin.offsets_at(halves, at_ms=at_ms))
        positions.update(admin.offsets_at(ops, at_ms=at_ms))
        return positions, ends, at_ms

    def _add_checks(
        self,
        admin: Administration,
        positions: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
        *,
        at_ms: int,
    ) -> None:
        """The check topic, too, as far as it goes back; a namespace of an earlier version has none."""
        topic = self._config.topics.check
        checks = [(topic, number) for number in range(admin.partition_count(topic) or 0)]
        if checks:
            positions.update(admin.offsets_at(checks, at_ms=at_ms))
            ends.update(admin.end_offsets(checks))

    def _appended_ms(self, half: TopicPartition, offset: int, end: int) -> int:
        """When the half record at `offset` was stored: its op lines are not older."""
        with closing(self._make_reader()) as reader:
            for record in self._records(reader, {half: offset}, {half: end}):
                return record.timestamp()[1]
        return int(self._wall_clock() * 1000)

    def _records(
        self,
        reader: LogReader,
        positions: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
    ) -> Iterator[Record]:
        """Everything from `positions` to before `ends`, in offset order within a partition."""
        missing = {p: end for p, end in ends.items() if positions[p] < end}
        reader.assign({p: positions[p] for p in missing})
        quiet_since = self._clock()
        while missing:
            records = reader.read(record_count_max=_READ_COUNT_MAX, timeout_s=_LOOK_S)
            if records:
                quiet_since = self._clock()
            elif self._clock() - quiet_since > _QUIET_S:
                raise BrokerUnavailableError(
                    f"the broker stopped answering; {len(missing)} partitions are not read to their ends",
                    bootstrap_servers=self._config.bootstrap_servers,
                    waited_ms=int(_QUIET_S * 1000),
                )
            for record in records:
                partition = (record.topic(), record.partition())
                error = record.error()
                if error is not None:
                    if error.code() != Code.LOCAL_PARTITION_EOF:
                        raise translate_error(error, topic=partition[0], operation="read")
                    missing.pop(
                        partition, None
                    )  # markers of Kafka transactions stand before the end
                    continue
                end = missing.get(partition)
                if end is not None and record.offset() < end:
                    yield record
                if end is None or record.offset() >= end - 1:
                    missing.pop(partition, None)


def _fold(fold: HistoryFold, record: Record, topics: SystemTopics) -> None:
    partition, offset, at_ms = record.partition(), record.offset(), record.timestamp()[1]
    topic, value = record.topic(), record.value()
    if topic == topics.half:
        headers = record.headers()
        fold.half(partition=partition, offset=offset, appended_ms=at_ms, headers=headers)
    elif topic == topics.op:
        fold.op(partition=partition, offset=offset, appended_ms=at_ms, value=value)
    elif topic == topics.check:
        fold.check(partition=partition, offset=offset, appended_ms=at_ms, value=value)
    else:
        fold.doubt(partition=partition, appended_ms=at_ms, key=record.key(), value=value)


def _place(record: Record, where: str) -> HalfPlace | str:
    raw = codec.half_header_of(record.headers())
    header = Undecodable("it has no header txl") if raw is None else codec.decode_half_header(raw)
    if isinstance(header, Undecodable):
        return f"{where} is no half message: {header.why}"
    return HalfPlace(
        txn_id_of(header.key), nonce_of(header.key), header.index, record.timestamp()[1]
    )
