"""The `ProducerConnections` and `CoordinatorConnections` of a cluster in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from txlayer.adapters.history import LogHistoryReader
from txlayer.adapters.memory.admin import MemoryAdmin
from txlayer.adapters.memory.half_writer import MemoryHalfWriter
from txlayer.adapters.memory.link import Link
from txlayer.adapters.memory.readers import MemoryGroupReader, MemoryLogReader
from txlayer.adapters.memory.writer import MemoryTransactionalWriter
from txlayer.adapters.ports import StoredOffset, TopicLimits, TopicPartition
from txlayer.adapters.translation import RESPONDER_ADVICE
from txlayer.config import ClientConfig, CoordinatorConfig, ProducerConfig, milliseconds

ANSWER_S = 3.0
"""How long one question of a coordinator waits, as in the real adapter."""


class ValueContext(NamedTuple):
    """What a confluent-kafka serializer is told about a value (its `SerializationContext`)."""

    topic: str
    field: str
    headers: list[tuple[str, bytes | None]]


class MemoryProducerConnections:
    """What a producer needs of a cluster; any thread may use it."""

    def __init__(self, link: Link, config: ProducerConfig) -> None:
        self._link = link
        self._config = config
        self._admin = MemoryAdmin(link, timeout_s=config.start_timeout.total_seconds())

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        return self._admin.topic_limits(topic)

    def make_half_writer(self, *, batch_bytes_max: int) -> MemoryHalfWriter:
        """A writer of half and op records."""
        return MemoryHalfWriter(
            self._link,
            batch_bytes_max=batch_bytes_max,
            message_timeout_s=self._config.prepare_timeout.total_seconds(),
        )

    def make_check_member(self, producer_group: str) -> MemoryGroupReader:
        """A member of the producer group's check group, not started yet."""
        return MemoryGroupReader(
            self._link,
            group=self._config.topics.check_group(producer_group),
            session_timeout_ms=milliseconds(self._config.check_session_timeout),
            reader="the responder",
            advice=RESPONDER_ADVICE,
        )

    def serialize(
        self,
        serializer: Any,
        value: Any,
        *,
        topic: str,
        headers: list[tuple[str, bytes | None]],
    ) -> bytes | None:
        """A value as the user's serializer writes it."""
        written: bytes | None = serializer(value, ValueContext(topic, "value", headers))
        return written

    def history(self) -> LogHistoryReader:
        """What reads a transaction's traces."""
        return make_history(self._link, self._config)

    def close(self) -> None:
        """Nothing is shared."""


class MemoryCoordinatorConnections:
    """What a coordinator needs of a cluster. One thread uses it."""

    def __init__(self, link: Link, config: CoordinatorConfig) -> None:
        self._link = link
        self._config = config
        self._admin = MemoryAdmin(link, timeout_s=ANSWER_S)

    def wait_until_reachable(self, *, timeout_s: float) -> None:
        """Return when a broker answers.

        Raises:
            BrokerUnavailableError: none did within `timeout_s`.
        """
        MemoryAdmin(self._link, timeout_s=timeout_s).partition_count(self._config.topics.half)

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

    def make_reader(self, isolation: str) -> MemoryLogReader:
        """A reader that assigns itself."""
        return MemoryLogReader(self._link, isolation=isolation)

    def make_group_reader(self) -> MemoryGroupReader:
        """A member of the coordinator group, not started yet."""
        return MemoryGroupReader(
            self._link,
            group=self._config.topics.coordinator_group,
            session_timeout_ms=milliseconds(self._config.session_timeout),
        )

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

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        return self._admin.topic_limits(topic)

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        """Those consumer groups that somebody is a member of."""
        return self._admin.groups_with_members(groups)

    def topic_limits_aside(self, topic: str) -> TopicLimits | None:
        """`topic_limits`."""
        return self._admin.topic_limits(topic)

    def close(self) -> None:
        """Nothing is shared."""


def make_history(link: Link, config: ClientConfig) -> LogHistoryReader:
    """A reader of transactions' traces."""
    world = link.world
    return LogHistoryReader(
        config,
        make_admin=lambda: MemoryAdmin(link),
        make_reader=lambda: MemoryLogReader(link, isolation="read_committed"),
        clock=world.monotonic,
        wall_clock=lambda: world.now_ms() / 1000,
    )
