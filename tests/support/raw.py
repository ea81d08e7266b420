"""Half and op records written byte by byte with a plain client: also such as no producer of ours would write."""

import random
import time
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from tests.support.arena import Arena
from tests.support.load import new_key
from tests.support.logs import Headers, ends
from tests.support.topic_records import Record, RecordWriter
from txlayer.core import codec, partitions
from txlayer.core.messages import NO_OPTIONS, HalfHeader, HalfOptions, OpMessage, Resolution

GROUP = "tests"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction whose half records are acknowledged."""

    key: str
    partition: int
    offsets: tuple[int, ...]

    @property
    def txn_id(self) -> str:
        """The id without the nonce."""
        return self.key.partition("/")[0]

    def line(self, resolution: Resolution, *, offset: int | None = None) -> str:
        """Its op line; `offset` instead of that of its last half record."""
        last = self.offsets[-1] if offset is None else offset
        return codec.encode_op(OpMessage(resolution, self.key, GROUP, last, 0))


class RawWriter:
    """Writes to one arena; every call returns when the records are acknowledged."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._records = RecordWriter(arena.servers)
        self._rng = random.Random()

    def key(self) -> str:
        """A fresh `id/nonce`."""
        return new_key(self._rng)

    def key_in(self, partition: int) -> str:
        """A fresh `id/nonce` that lives in this partition."""
        while True:
            key = self.key()
            if self.home_of(key) == partition:
                return key

    def home_of(self, key: str, *, ordering_key: bytes | None = None) -> int:
        """The partition where a transaction lives."""
        return partitions.half_partition(
            ordering_key=ordering_key, txn_id=key.partition("/")[0], partition_count=self._arena.partition_count
        )

    def prepare(  # each argument is a byte that a test may want to control
        self,
        *messages: tuple[str, bytes | None, bytes | None],
        key: str | None = None,
        ordering_key: bytes | None = None,
        options: HalfOptions = NO_OPTIONS,
        count: int | None = None,
        first_index: int = 0,
        born_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Prepared:
        """Store (real topic, key, value) as half records; `count` more than there are makes it incomplete."""
        key = key or self.key()
        if ordering_key is not None:
            options = options._replace(key_hash=partitions.key_hash(ordering_key))
        partition = self.home_of(key, ordering_key=ordering_key)
        records = []
        for index, (topic, message_key, value) in enumerate(messages, start=first_index):
            head = HalfHeader(
                key,
                GROUP,
                topic,
                index,
                len(messages) if count is None else count,
                int(time.time() * 1000) if born_ms is None else born_ms,
                options,
            )
            packed = codec.encode_half_header(head)
            written = [*(headers or []), (codec.HALF_HEADER, packed)]
            records.append(Record(self._arena.topics.half, value, message_key, written, partition))
        return Prepared(key, partition, tuple(self._records.write(records)))

    def half(self, partition: int, value: bytes | None, *, headers: Headers, key: bytes | None = None) -> int:
        """Any record on the half topic; its offset."""
        return self._records.write([Record(self._arena.topics.half, value, key, headers, partition)])[0]

    def op(self, partition: int, value: bytes | None) -> int:
        """Any record on the op topic; its offset."""
        return self._records.write([Record(self._arena.topics.op, value, partition=partition)])[0]

    def resolve(self, prepared: Prepared, *resolutions: Resolution) -> int:
        """Op lines in one record."""
        lines = [prepared.line(resolution) for resolution in resolutions]
        return self.op(prepared.partition, codec.encode_ops(lines))

    def commit(self, prepared: Prepared) -> int:
        """The plain case."""
        return self.resolve(prepared, Resolution.COMMIT)

    def half_end(self, partition: int) -> int:
        """The offset that the next half record of this partition will have, if nobody else writes."""
        half = self._arena.topics.half
        return ends(self._arena.servers, [half], isolation="read_uncommitted")[half, partition]


def delete_topic(servers: str, name: str) -> None:
    """Delete a topic and wait for the answer."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.delete_topics([name], operation_timeout=30)[name].result(30)
