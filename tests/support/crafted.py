"""Transactions written by hand with a plain client and the codec: every record as a test wants it, right or wrong."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.load import plain_producer
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
        self._producer = plain_producer(servers)

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
        offsets = self._write(
            self._topics.half,
            partition,
            [{"value": value, "headers": [(codec.HALF_HEADER, header)]} for header in headers],
        )
        return Placed(key, partition, offsets, group)

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
        return self._write(self._topics.op, placed.partition, [{"value": value}])[0]

    def _home(self, key: str, options: HalfOptions) -> int:
        if options.key_hash is not None:
            return partitions.partition_of_key_hash(options.key_hash, partition_count=self._partition_count)
        return partitions.half_partition(
            ordering_key=None, txn_id=txn_id_of(key), partition_count=self._partition_count
        )

    def _write(self, topic: str, partition: int, records: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        offsets: list[int] = []

        def on_delivery(error: Any, record: Any) -> None:
            assert error is None, error
            offsets.append(record.offset())

        for record in records:
            self._producer.produce(topic, partition=partition, on_delivery=on_delivery, **record)
        assert 0 == self._producer.flush(30)
        return tuple(offsets)


def _now_ms() -> int:
    return int(time.time() * 1000)
