"""What consumers expect of a log: Protocols whose docstrings are guarantees. Never code.

Beside `ports.py`, whose rules hold here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from txlayer.adapters.ports import (
    GroupReader,
    HalfWriter,
    LogReader,
    StoredOffset,
    TopicLimits,
    TopicPartition,
    TransactionalWriter,
)

OnRevoke = Callable[[bool], None]
"""Told from within `read` or `close` that the partitions go; True: they are gone already (the session was lost)."""


class StoringGroupReader(GroupReader, Protocol):
    """A member of a consumer group that stores its offsets without a Kafka transaction.

    Stores of one member land in the order in which they were begun; at most one is outstanding.
    """

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        """Join the group; `on_revoke` is called before the group goes on without this member's partitions.

        Until it returns the other members wait, and unless the session is lost already `store_offsets` works in it. It
        must not read. What it raises is raised by the next `read`.
        """
        ...

    def take_reached(self) -> Mapping[TopicPartition, int]:
        """Where reading stood when it came to the end of a partition, told since the last call: below lies nothing unread.

        What lies between its last record and there are markers of Kafka transactions and aborted records. It belongs to
        the assignment of the last `resume_at`.
        """
        ...

    def begin_store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets, fenced by this member's generation, without waiting; `take_stored` tells how it ended.

        Raises:
            LifecycleError: the one before has not been told yet.
        """
        ...

    def take_stored(self) -> bool:
        """True once after the store that was begun was acknowledged.

        Raises:
            MemberFencedError: the group went on without this member; nothing was stored.
            ConfigError: the brokers allow less metadata; nothing was stored.
            TxLayerError: it may have been stored or not.
        """
        ...

    def store_offsets(
        self, offsets: Mapping[TopicPartition, StoredOffset], *, timeout_s: float
    ) -> None:
        """Wait for the store that was begun, then store these and wait for the acknowledgement; raises as `take_stored`.

        Raises:
            BrokerUnavailableError: not acknowledged within `timeout_s`; it may still happen.
        """
        ...


class ConsumerConnections(Protocol):
    """Everything a consumer asks of a cluster. One thread uses it."""

    def wait_until_reachable(self, *, topic: str, timeout_s: float) -> None:
        """Return when a broker answers a question about `topic`.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: none did within `timeout_s`, or it refused the credentials.
        """
        ...

    def make_group_reader(self, group: str) -> StoringGroupReader:
        """A member of the consumer group, not started yet."""
        ...

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> TransactionalWriter:
        """A writer, not initialised yet."""
        ...

    def make_log_writer(self, *, batch_bytes_max: int) -> HalfWriter:
        """An idempotent writer of records that stand for themselves (of locks, of requests); their partition is named."""
        ...

    def make_reader(self, isolation: str) -> LogReader:
        """A reader that assigns itself; `read_committed` or `read_uncommitted`."""
        ...

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored; with `is_stable` the answer waits for pending transactional offsets.

        Raises:
            BrokerUnavailableError: no answer in time, for instance because offsets are pending; ask again.
        """
        ...

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        ...

    def end_offsets(
        self, partitions: Sequence[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: the last stable one, or without `is_committed` the high watermark."""
        ...

    def offsets_at(
        self, partitions: Sequence[TopicPartition], *, at_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset whose record is of `at_ms` or later, else the next offset, per partition."""
        ...

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        ...

    def close(self) -> None:
        """Give back what is shared."""
        ...
