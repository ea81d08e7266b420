"""Transactions laid into real topics record by record, as producers and coordinators would, and as they never should.

Everything is written with a plain client and the codec: what a test plants is there, and nothing else.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # its stub forgets NewPartitions

from tests.support.broker import create_topic, unique_name
from tests.support.logs import Headers
from tests.support.topic_records import RECORD_BYTES_MAX, Record, RecordWriter
from tests.support.waiting import wait_until
from txlayer.core import codec, partitions
from txlayer.core.messages import (
    NO_OPTIONS,
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    OrderMode,
    Resolution,
    Source,
)

PARTITIONS = 2
GROUP = "shop"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a planted transaction."""

    topic: str
    key: bytes | None = b"k"
    value: bytes | None = b"value"
    headers: Headers = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Transaction:
    """What was planted of one transaction."""

    key: str
    partition: int
    messages: tuple[Message, ...]
    options: HalfOptions
    born_ms: int
    offsets: tuple[int, ...]

    @property
    def txn_id(self) -> str:
        """The id without the nonce."""
        return self.key.partition("/")[0]


class Field:
    """A namespace with two real topics, and a hand that writes into them."""

    def __init__(self, servers: str, *, record_bytes_max: int = RECORD_BYTES_MAX) -> None:
        """Create the topics."""
        self.servers = servers
        self.namespace = unique_name("ns")
        self.partition_count = PARTITIONS
        self._count = 0
        self._kept: set[tuple[str, int]] = set()
        self._writer = RecordWriter(servers, record_bytes_max=record_bytes_max)
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        settings = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(record_bytes_max)}
        for role in ("half", "op", "doubt"):
            create_topic(servers, self.topic(role), partitions=PARTITIONS, config=settings)
        for role in ("check", "locks"):
            create_topic(servers, self.topic(role))
        self.orders, self.stock = (
            create_topic(servers, f"{self.namespace}-{name}", partitions=2, config=settings)
            for name in ("orders", "stock")
        )

    def topic(self, role: str) -> str:
        """A topic of the namespace."""
        return f"{self.namespace}.{role}"

    def prepare(
        self,
        *messages: Message,
        key: str | None = None,
        ordering_key: bytes | None = None,
        options: HalfOptions = NO_OPTIONS,
        indices: Sequence[int] | None = None,
        count: int | None = None,
        born_ms: int | None = None,
    ) -> Transaction:
        """Half records, acknowledged; `indices` are those that are written, all by default; born now, unless it is said."""
        messages = messages or (Message(self.orders),)
        self._count += 1
        key = key or f"{self.namespace[-6:]}-{self._count}/{self._count:08x}"
        if ordering_key is not None:
            options = options._replace(key_hash=partitions.key_hash(ordering_key))
        home = partitions.half_partition(
            ordering_key=ordering_key, txn_id=key.partition("/")[0], partition_count=self.partition_count
        )
        if born_ms is None:
            born_ms = int(time.time() * 1000)
        written = range(len(messages)) if indices is None else indices
        records = []
        for index in written:
            message = messages[index]
            header = HalfHeader(key, GROUP, message.topic, index, count or len(messages), born_ms, options)
            packed = (codec.HALF_HEADER, codec.encode_half_header(header))
            records.append(Record(self.topic("half"), message.value, message.key, [*message.headers, packed], home))
        offsets = self._writer.write(records)
        return Transaction(key, home, tuple(messages), options, born_ms, tuple(offsets))

    def resolve(self, *said: tuple[Transaction, Resolution], source: Source = Source.PRODUCER, **more: Any) -> int:
        """One op record with a line for each; all of one partition. Its offset."""
        lines = [
            codec.encode_op(OpMessage(resolution, txn.key, GROUP, txn.offsets[-1], txn.born_ms, source, **more))
            for txn, resolution in said
        ]
        (partition,) = {txn.partition for txn, _ in said}
        record = Record(self.topic("op"), codec.encode_ops(lines), partition=partition)
        return self._writer.write([record])[0]

    def commit(self, *transactions: Transaction, **more: Any) -> None:
        """A record of its own for each."""
        for txn in transactions:
            self.resolve((txn, Resolution.COMMIT), **more)

    def roll_back(self, *transactions: Transaction, **more: Any) -> None:
        """A record of its own for each."""
        for txn in transactions:
            self.resolve((txn, Resolution.ROLLBACK), **more)

    def forward(self, txn: Transaction, *indices: int, partition: int = 0) -> None:
        """Forwarded records of a transaction, all of them when no index is named."""
        chosen = indices or range(len(txn.messages))
        records = []
        for index in chosen:
            message = txn.messages[index]
            origin = codec.encode_origin(
                partition=txn.partition,
                offset=txn.offsets[index],
                index=index,
                count=len(txn.messages),
                born_ms=txn.born_ms,
            )
            headers: Headers = [
                *message.headers,
                (codec.ID_HEADER, txn.txn_id.encode()),
                (codec.ORIGIN_HEADER, origin.encode()),
            ]
            records.append(Record(message.topic, message.value, message.key, headers, partition))
        self._writer.write(records)

    def write(self, *records: Record) -> None:
        """Any records."""
        self._writer.write(records)

    def whole(self, *messages: Message, **more: Any) -> Transaction:
        """A transaction that went well."""
        txn = self.prepare(*messages, **more)
        self.commit(txn)
        self.forward(txn)
        return txn

    def check(self, txn: Transaction, number: int, kind: CheckKind = CheckKind.QUESTION) -> None:
        """A check-back."""
        record = CheckRecord(kind, txn.key, GROUP, txn.partition, txn.offsets[-1], txn.born_ms, number, "orders")
        self._writer.write([Record(self.topic("check"), codec.encode_check(record), codec.check_key(record))])

    def doubt(self, txn: Transaction, state: str, reason: str = "", *, with_contents: bool = True, **more: Any) -> None:
        """A summary on doubt and the contents; `ended` instead of a state writes their end."""
        summary = DoubtSummary(
            txn.key,
            state,
            reason,
            GROUP,
            txn.offsets[0],
            txn.offsets[-1],
            len(txn.offsets),
            len(txn.messages),
            txn.born_ms,
            txn.born_ms,
            None,
            OrderMode.COMMIT,
            None,
            None,
            txn.born_ms,
            (self.orders,),
        )
        is_end = state == "ended"
        value = None if is_end else codec.encode_summary(summary._replace(**more))
        topic = self.topic("doubt")
        records = [Record(topic, value, txn.key.encode(), None, txn.partition)]
        for index, message in enumerate(txn.messages if with_contents else ()):
            header = HalfHeader(txn.key, GROUP, message.topic, index, len(txn.messages), txn.born_ms, txn.options)
            packed = (codec.HALF_HEADER, codec.encode_half_header(header))
            content, headers = codec.encode_content(
                key=message.key, value=message.value, headers=[*message.headers, packed]
            )
            key = codec.content_key(txn.key, index)
            is_rest = is_end or (txn.key, index) not in self._kept
            if is_rest:
                self._kept ^= {(txn.key, index)}
                records.append(
                    Record(topic, None if is_end else content, key, None if is_end else headers, txn.partition)
                )
        self._writer.write(records)

    def take(self, *places: tuple[str, int, int]) -> None:
        """What retention does to records before those offsets: (topic, partition, offset)."""
        for done in self.admin.delete_records([TopicPartition(*place) for place in places]).values():
            done.result(30)

    def widen(self, count: int) -> None:
        """Give half, op and doubt so many partitions."""
        wanted = [NewPartitions(self.topic(role), count) for role in ("half", "op", "doubt")]
        for done in self.admin.create_partitions(wanted).values():
            done.result(30)
        self.partition_count = count

    def delete(self, topic: str) -> None:
        """End a topic."""
        self.admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in self.admin.list_topics(timeout=10).topics, within=30, what="a topic is gone")

    def moved(self, txn: Transaction, **changes: Any) -> Transaction:
        """The same with other contents: what a faulty coordinator would forward."""
        return replace(txn, messages=tuple(replace(message, **changes) for message in txn.messages))
