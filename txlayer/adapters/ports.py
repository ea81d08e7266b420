"""What services expect of a log: Protocols whose docstrings are guarantees. Never code.

The shapes are those of confluent-kafka, so that the hot calls (`produce`, `Record.value`) cost no wrapper; every
error that leaves a port is one of `txlayer.errors`, except `BufferError` from `produce` (queue full: poll, try again).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from txlayer.core.messages import Headers

TopicPartition = tuple[str, int]
"""(topic, partition)."""


class RecordError(Protocol):
    """Why a record was not written or read."""

    def code(self) -> int:
        """Kafka's number of it."""
        ...

    def name(self) -> str:
        """Kafka's name of it."""
        ...


class Record(Protocol):
    """An entry of a topic as a reader gets it, or the report on one that was written."""

    def topic(self) -> str:
        """Its topic."""
        ...

    def partition(self) -> int:
        """Its partition."""
        ...

    def offset(self) -> int:
        """Its offset, unique and growing within the partition; gaps are normal."""
        ...

    def key(self) -> bytes | None:
        """Its key."""
        ...

    def value(self) -> bytes | None:
        """Its value."""
        ...

    def headers(self) -> Headers | None:
        """Its headers, in order."""
        ...

    def timestamp(self) -> tuple[int, int]:
        """(kind, milliseconds); append time where the topic says so."""
        ...

    def error(self) -> RecordError | None:
        """None for a real record."""
        ...

    def __len__(self) -> int:
        """Bytes of the value."""
        ...


DeliveryReport = Callable[[Any, Any], None]
"""Called from `poll` or `flush` with (error or None, record). It never raises."""


class StoredOffset(NamedTuple):
    """What a group stored for one partition."""

    offset: int
    metadata: str


class Assignment(NamedTuple):
    """What the group gave to this member: all of it, not a difference."""

    partitions: tuple[TopicPartition, ...]
    member: Any  # opaque: the group's metadata of this very generation, for `send_offsets`
    generation: int


class TopicLimits(NamedTuple):
    """What a writer must know of a target topic."""

    partition_count: int
    message_bytes_max: int | None  # None: the broker did not tell
    is_reachable: bool  # every partition has a leader


class HalfWriter(Protocol):
    """Writes half and op records: acknowledged by all replicas, in order per partition, never twice by a retry.

    Thread-safe. Reports come in the order of acknowledgement, from within `poll` and `flush` only.
    """

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: DeliveryReport | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Queue a record.

        Raises:
            BufferError: the queue is full; nothing was queued.
        """
        ...

    def poll(self, timeout: float) -> int:
        """Serve reports for at most `timeout` seconds; the number served."""
        ...

    def flush(self, timeout: float) -> int:
        """Wait for all that is queued; the number still queued."""
        ...

    def topic_limits(self, topic: str, *, timeout_s: float) -> TopicLimits | None:
        """What the broker says now; None: there is no such topic.

        Raises:
            BrokerUnavailableError: nobody answered within `timeout_s`.
        """
        ...

    def failure(self) -> Exception | None:
        """A fatal error (the instance must be closed), else None."""
        ...

    def close(self, timeout: float) -> None:
        """Flush for at most `timeout` seconds and end."""
        ...


class TransactionalWriter(Protocol):
    """One transactional id. Not thread-safe.

    Between `begin` and `commit` every record and the offsets are one unit: visible together or never.
    """

    transactional_id: str

    produce: Callable[..., None]
    """As in `HalfWriter`; a refused record fails `flush` or `commit`."""

    def initialise(self, *, timeout_s: float) -> None:
        """Fence every earlier holder of the id and end what it left open.

        Raises:
            ProducerFencedError, NotAuthorisedError, BrokerUnavailableError: no Kafka transaction can begin.
        """
        ...

    def begin(self) -> None:
        """Begin a Kafka transaction."""
        ...

    def flush(self, *, timeout_s: float) -> int:
        """Wait until every record is acknowledged; the number still waiting."""
        ...

    def send_offsets(
        self, offsets: Mapping[TopicPartition, StoredOffset], member: Any, *, timeout_s: float
    ) -> None:
        """Make the offsets part of the Kafka transaction, fenced by the member's generation."""
        ...

    def poll(self) -> None:
        """Make room in the queue."""
        ...

    def refusal(self, error: Any, *, topic: str, txn_key: str) -> Exception:
        """Our error for a delivery report's."""
        ...

    def commit(self, *, timeout_s: float) -> None:
        """End the Kafka transaction; when it returns, a `read_committed` reader will see all of it.

        Raises:
            RetriableError: not answered yet; call again.
        """
        ...

    def close(self) -> None:
        """Give the client back; an open Kafka transaction is left to the next holder of the id."""
        ...


class LogReader(Protocol):
    """Reads partitions that it names itself; no group."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets."""
        ...

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        """Records as they come; an empty list after `timeout_s`. End of a partition is a record whose error is `_PARTITION_EOF`."""
        ...

    def pause(self, partition: TopicPartition) -> None:
        """Stop reading this one."""
        ...

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        """(first offset, next offset), the latter as this reader's isolation sees it."""
        ...

    def close(self) -> None:
        """End."""
        ...


class GroupReader(Protocol):
    """A member of a consumer group (classic protocol, range). One thread uses it; no callback of it raises."""

    def start(self, topics: Sequence[str]) -> None:
        """Join the group; the assignment comes from within a later `read`."""
        ...

    def take_assignment(self) -> Assignment | None:
        """The newest assignment not taken yet. It assigns nothing: `resume_at` does."""
        ...

    def take_revocation(self) -> bool:
        """True once after the group took its partitions back (or the session was lost)."""
        ...

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read the assigned partitions from here."""
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these; what was fetched ahead is given up."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these again."""
        ...

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        """Records as they come, none with an error; serves the group.

        Raises:
            ConfigError: the stored offset is not in the log any more.
            TxLayerError: anything else that stops reading. Rebuild from the stored offsets.
        """
        ...

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        """(first offset, last stable offset)."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class CoordinatorConnections(Protocol):
    """Everything a coordinator asks of a cluster."""

    def wait_until_reachable(self, *, timeout_s: float) -> None:
        """Return when a broker answers.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: none did within `timeout_s`, or it refused the credentials.
        """
        ...

    def make_writer(self, transactional_id: str) -> TransactionalWriter:
        """A writer, not initialised yet."""
        ...

    def make_reader(self, isolation: str) -> LogReader:
        """A reader that assigns itself; `read_committed` or `read_uncommitted`."""
        ...

    def make_group_reader(self) -> GroupReader:
        """A member of the coordinator group, not started yet."""
        ...

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool, timeout_s: float
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored; with `is_stable` the answer waits for pending transactional offsets.

        Raises:
            BrokerUnavailableError: not answered within `timeout_s`, for instance because offsets are pending.
        """
        ...

    def topic_limits(self, topic: str, *, timeout_s: float) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        ...

    def close(self) -> None:
        """Give back what is shared."""
        ...
