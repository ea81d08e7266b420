"""A cluster in memory in a world that stands still, and clients on it."""

from datetime import timedelta
from typing import Any

from tests.support.still_world import StillWorld
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.memory.cluster import MemberMetadata
from txlayer.adapters.memory.readers import MemoryGroupReader
from txlayer.adapters.memory.writers import MemoryIdempotentWriter, MemoryTransactionalWriter
from txlayer.adapters.ports import StoredOffset
from txlayer.config import CoordinatorConfig, ProducerConfig

GROUP = "txlayer.coordinator"
SOURCE = ("source", 0)
CONFIG = CoordinatorConfig(session_timeout=timedelta(seconds=6))


class Stage:
    """A cluster with two topics."""

    def __init__(self, **settings: Any) -> None:
        self.world = StillWorld()
        self.kafka = MemoryKafka(self.world, **settings)
        self.kafka.create_topic("orders", partitions=2)
        self.kafka.create_topic("source", partitions=2)

    def connections(self, client: str = "c") -> Any:
        return self.kafka.connect_coordinator(CONFIG, client=client)

    def writer(self, name: str = "id") -> MemoryTransactionalWriter:
        made: MemoryTransactionalWriter = self.connections().make_writer(name, batch_bytes_max=1000)
        made.initialise(timeout_s=30)
        return made

    def half_writer(self, **settings: Any) -> MemoryIdempotentWriter:
        config = ProducerConfig(**settings)
        made: Any = self.kafka.connect_producer(config, client="p")
        writer: MemoryIdempotentWriter = made.make_half_writer(batch_bytes_max=1000)
        return writer

    def member(self, client: str = "c") -> MemoryGroupReader:
        made: MemoryGroupReader = self.connections(client).make_group_reader()
        made.start(["source"])
        return made

    def values(self, isolation: Any = "read_committed") -> list[bytes | None]:
        return [r.value() for r in self.kafka.records("orders", isolation=isolation)]


def commit(writer: MemoryTransactionalWriter, value: bytes, *, offset: int = 1) -> None:
    """One Kafka transaction with a record and an offset."""
    writer.begin()
    writer.produce("orders", value, b"k", 0)
    writer.flush(timeout_s=5)
    offsets = {SOURCE: StoredOffset(offset, "")}
    writer.send_offsets(offsets, MemberMetadata(GROUP), timeout_s=5)
    writer.commit(timeout_s=5)


def serve(*readers: MemoryGroupReader) -> None:
    for _ in range(4):
        for reader in readers:
            reader.read(record_count_max=1, timeout_s=0)
