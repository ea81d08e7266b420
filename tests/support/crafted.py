"""Transactions written by hand with a plain client and the codec: every record as a test wants it, right or wrong."""

import time
from dataclasses import dataclass

from tests.support.topic_records import Record, RecordWriter
from txlayer.config import SystemTopics
from txlayer.core import codec, partitions
from txlayer.core.messages import NO_OPTIONS, HalfHeader, HalfOptions, OpMessage, Resolution, Source, txn_id_of

GROUP = "orders"


@dataclass(frozen=True, slots=True)
class Placed:
    """A transaction's half records, acknowledged."""

    key: str
    partition: int
    offsets: tuple[int, ...]
    group: str = GROUP

    @property
    def txn_id(self) -> str:
        """The id in its key."""
        return txn_id_of(self.key)


class Crafted:
    """Writes half and op records of one namespace; each call returns when they are acknowledged."""

    def __init__(self, servers: str, topics: SystemTopics, *, partition_count: int) -> None:
        self._topics = topics
        self._partition_count = partition_count
        self._records = RecordWriter(servers)

    def half(  # one argument per field of the record
        self,
        key: str,
        *targets: str,
        first: int = 0,
        count: int | None = None,
        value: bytes = b"value",
        group: str = GROUP,
        options: HalfOptions = NO_OPTIONS,
    ) -> Placed:
        """One half record per target, of the messages from `first` on; `count` says how many there should be."""
        partition = self._home(key, options)
        headers = [
            codec.encode_half_header(HalfHeader(key, group, topic, index, count or len(targets), _now_ms(), options))
            for index, topic in enumerate(targets, start=first)
        ]
        records = [
            Record(self._topics.half, value, headers=[(codec.HALF_HEADER, header)], partition=partition)
            for header in headers
        ]
        return Placed(key, partition, tuple(self._records.write(records)), group)

    def home(self, key: str, *offsets: int) -> Placed:
        """Where half records of `key` would stand; nothing is written."""
        return Placed(key, self._home(key, NO_OPTIONS), offsets)

    def op(
        self,
        placed: Placed,
        resolution: Resolution,
        *,
        source: Source = Source.PRODUCER,
        reason: str = "",
        last_offset: int | None = None,
        is_abandon: bool = False,
        check_number: int | None = None,
    ) -> int:
        """The offset of an op record with one line, of the group that the half records name."""
        offset = placed.offsets[-1] if last_offset is None else last_offset
        op = OpMessage(
            resolution, placed.key, placed.group, offset, _now_ms(), source, check_number, is_abandon, reason
        )
        value = codec.encode_ops([codec.encode_op(op)])
        return self._records.write([Record(self._topics.op, value, partition=placed.partition)])[0]

    def _home(self, key: str, options: HalfOptions) -> int:
        if options.key_hash is not None:
            return partitions.partition_of_key_hash(options.key_hash, partition_count=self._partition_count)
        return partitions.half_partition(
            ordering_key=None, txn_id=txn_id_of(key), partition_count=self._partition_count
        )


def _now_ms() -> int:
    return int(time.time() * 1000)
