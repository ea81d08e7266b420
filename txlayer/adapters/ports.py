"""What services expect of a log: Protocols whose docstrings are guarantees. Never code.

The shapes are those of confluent-kafka, so that the hot calls (`produce`, `Record.value`) cost no wrapper; every
error that leaves a port is one of `txlayer.errors`, except what `produce` raises (`BufferError`: queue full, poll and
try again; the rest is the client's own).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from txlayer.adapters.history_port import HistoryReader
from txlayer.core.messages import Headers
from txlayer.errors import TxLayerError

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
"""Called from `poll` or `flush` with (error or None, record). It never raises.

Without an error the record is stored, and its `offset()` is the place, or None: librdkafka takes a batch for stored when a
later one of the partition is acknowledged, and nobody tells it where.
"""


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
    is_reachable: (
        bool  # every partition has a leader and, as far as is told, enough replicas in sync
    )
    is_append_time: bool | None = None  # the broker stamps its records; None: it did not tell
    is_writable: bool = True  # False: these credentials may look at it and not write it


class HalfWriter(Protocol):
    """Writes half and op records: acknowledged by all replicas, in order per partition, never twice by a retry.

    Any thread may call `produce`. Reports come in the order of acknowledgement, from within `poll` and `close` only.
    """

    @property
    def produce(self) -> Callable[..., None]:
        """Queue a record: (topic, value, key, partition, on_delivery, None, timestamp_ms or 0, headers), by position.

        The client's own call, because it is made twice per transaction (by position, which saves half a microsecond);
        so it raises the client's own errors (`error_of` says what they mean), and `BufferError`: the queue is full,
        nothing was queued, room comes with the next reports.
        """
        ...

    @property
    def poll(self) -> Callable[[float], int]:
        """Serve reports for at most so many seconds; the number served."""
        ...

    @property
    def unreported_count(self) -> Callable[[], int]:
        """Records whose report is still to be served; one counts until its report was."""
        ...

    def error_of(self, error: Any, *, topic: str, txn_id: str) -> TxLayerError:
        """What a delivery report's error, or an exception of `produce`, means for the record.

        RefusedRecordError, NotAuthorisedError, ForbiddenTopicError, RetriableError: it was not stored.
        OutcomeUnknownError: it may have been stored, or will be.
        FencedError: nor will any other be; close the instance.
        """
        ...

    def failure(self) -> TxLayerError | None:
        """A fatal error (the instance must be closed), else None."""
        ...

    def close(self, timeout_s: float) -> None:
        """Wait for what is queued for at most `timeout_s` seconds, report the rest as errors, and end."""
        ...


class ProducerConnections(Protocol):
    """Everything a producer asks of a cluster; any thread may."""

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: no answer within the time to start, or a refusal.
        """
        ...

    def make_half_writer(self, *, batch_bytes_max: int) -> HalfWriter:
        """A writer; one batch of its records stays below `batch_bytes_max`."""
        ...

    def make_check_member(self, producer_group: str) -> GroupReader:
        """A member of the producer group's check group, not started yet: with it somebody can answer for the group."""
        ...

    def serialize(
        self,
        serializer: Any,
        value: Any,
        *,
        topic: str,
        headers: list[tuple[str, bytes | None]],
    ) -> bytes | None:
        """A value as the user's serializer writes it; it may append to `headers`. Its exception comes out as it is."""
        ...

    def history(self) -> HistoryReader:
        """What reads a transaction's traces."""
        ...

    def close(self) -> None:
        """Give back what is shared."""
        ...


class TransactionalWriter(Protocol):
    """One transactional id. Not thread-safe.

    Between `begin` and `commit` every record and the offsets are one unit: visible together or never.
    """

    transactional_id: str
    batch_bytes_max: int

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

    def failure(self, exc: Exception) -> TxLayerError:
        """Our error for what `produce` raised; an exception that is not the client's is raised again."""
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

    def read_to(self, partition: TopicPartition) -> int:
        """Where reading stood when it last came to the end of an assigned partition; -1: it has not, since `resume_at`.

        Markers and what was aborted at the end count as read: no record tells of them.
        """
        ...

    def known_end(self, partition: TopicPartition) -> int | None:
        """The end of an assigned partition as the last fetch told it; nobody is asked, nothing waits. None: not known."""
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

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> TransactionalWriter:
        """A writer, not initialised yet; the broker refuses a whole batch larger than a topic's largest message."""
        ...

    def make_reader(self, isolation: str) -> LogReader:
        """A reader that assigns itself; `read_committed` or `read_uncommitted`."""
        ...

    def make_group_reader(self) -> GroupReader:
        """A member of the coordinator group, not started yet."""
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

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        ...

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        """Those with a member, else a `TxLayerError`. Another thread than the coordinator's may ask."""
        ...

    def topic_limits_aside(self, topic: str) -> TopicLimits | None:
        """`topic_limits` for another thread than the coordinator's."""
        ...

    def close(self) -> None:
        """Give back what is shared."""
        ...
