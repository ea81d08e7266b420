"""The `ConsumerConnections` of a cluster in memory."""

from __future__ import annotations

from collections.abc import Sequence

from txlayer.adapters.memory.admin import MemoryAdmin
from txlayer.adapters.memory.connections import ANSWER_S
from txlayer.adapters.memory.half_writer import MemoryHalfWriter
from txlayer.adapters.memory.link import Link
from txlayer.adapters.memory.readers import MemoryLogReader
from txlayer.adapters.memory.storing_reader import MemoryStoringGroupReader
from txlayer.adapters.memory.writer import MemoryTransactionalWriter
from txlayer.adapters.ports import StoredOffset, TopicLimits, TopicPartition
from txlayer.config import ConsumerConfig, milliseconds


class MemoryConsumerConnections:
    """What a consumer needs of a cluster. One thread uses it."""

    def __init__(self, link: Link, config: ConsumerConfig) -> None:
        self._link = link
        self._config = config
        self._admin = MemoryAdmin(link, timeout_s=ANSWER_S)

    def wait_until_reachable(self, *, topic: str, timeout_s: float) -> None:
        """Return when a broker answers.

        Raises:
            BrokerUnavailableError: none did within `timeout_s`.
        """
        MemoryAdmin(self._link, timeout_s=timeout_s).partition_count(topic)

    def make_group_reader(self, group: str) -> MemoryStoringGroupReader:
        """A member of the consumer group, not started yet."""
        return MemoryStoringGroupReader(
            self._link,
            group=group,
            session_timeout_ms=milliseconds(self._config.session_timeout),
        )

    def make_writer(
        self, transactional_id: str, *, batch_bytes_max: int
    ) -> MemoryTransactionalWriter:
        """A writer, not initialised yet."""
        return MemoryTransactionalWriter(
            self._link,
            transactional_id=transactional_id,
            timeout_ms=milliseconds(self._config.kafka_transaction_timeout),
            batch_bytes_max=batch_bytes_max,
        )

    def make_log_writer(self, *, batch_bytes_max: int) -> MemoryHalfWriter:
        """An idempotent writer of records that stand for themselves."""
        return MemoryHalfWriter(
            self._link,
            batch_bytes_max=batch_bytes_max,
            message_timeout_s=self._config.store_timeout.total_seconds(),
        )

    def make_reader(self, isolation: str) -> MemoryLogReader:
        """A reader that assigns itself."""
        return MemoryLogReader(self._link, isolation=isolation)

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored; with `is_stable` the answer waits for pending transactional offsets.

        Raises:
            BrokerUnavailableError: no answer in time, for instance because offsets are pending; ask again.
        """
        return self._admin.stored_offsets(group, partitions, is_stable=is_stable)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        return self._admin.start_offsets(partitions)

    def end_offsets(
        self, partitions: Sequence[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: the last stable one, or without `is_committed` the high watermark."""
        return self._admin.end_offsets(partitions, is_committed=is_committed)

    def offsets_at(
        self, partitions: Sequence[TopicPartition], *, at_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset whose record is of `at_ms` or later, else the next offset, per partition."""
        return self._admin.offsets_at(partitions, at_ms=at_ms)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        return self._admin.topic_limits(topic)

    def close(self) -> None:
        """Nothing is shared."""
