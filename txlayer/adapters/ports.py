"""What services expect of a log: Protocols whose docstrings are guarantees. Never code.

The shapes are those of confluent-kafka, so that the hot calls (`produce`, `Record.value`) cost no wrapper; every
error that leaves a port is one of `txlayer.errors`, except what `produce` raises (`BufferError`: queue full, poll and
try again; the rest is the client's own).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from txlayer.core.history import TransactionHistory
from txlayer.core.messages import Headers
from txlayer.core.topics import AlterSetting, CreateTopic, TopicState
from txlayer.errors import TopicMismatchError, TxLayerError


class HistoryStart(NamedTuple):
    """From where half and op are read for one transaction's history."""

    at_ms: int  # records appended at this time or later
    position: tuple[int, int] | None = None  # instead: half partition and offset, op from its time


class HistoryReader(Protocol):
    """Reads what the topics say about one transaction id."""

    def read(
        self, txn_id: str, *, start: HistoryStart, partitions: Sequence[int] | None = None
    ) -> list[TransactionHistory]:
        """Every nonce of `txn_id` with a record in half or op since `start`, or on doubt; oldest first.

        `partitions` narrows the search where the ordering key is known; None: all.

        Raises:
            TopicMismatchError: the namespace's topics do not exist.
            BrokerUnavailableError, NotAuthorisedError: they cannot be read.
        """
        ...

    def half_places(
        self, partition: int, keys: Collection[str], *, at_ms: int
    ) -> Mapping[str, int]:
        """Key → offset of the transaction's last half record, of those that are there.

        Half is read from records of `at_ms` on; as a whole where that does not find all of them.

        Raises:
            TopicMismatchError, BrokerUnavailableError, NotAuthorisedError: half cannot be read.
        """
        ...


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


class GroupMember(NamedTuple):
    """One member of a consumer group."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class GroupState(NamedTuple):
    """A consumer group; one that never was is `dead` and has no member."""

    state: str
    members: tuple[GroupMember, ...]

    @property
    def is_active(self) -> bool:
        """True while somebody is, or may be, a member."""
        return bool(self.members) or self.state not in ("dead", "empty")


class Administration(Protocol):
    """The administrator's view of one cluster, for one thread at a time; it connects at the first question.

    Every question raises, beside what it names itself:
        BrokerUnavailableError: no answer in time; a change may have happened, ask for the state.
        NotAuthorisedError: credentials or rights were refused; nothing was changed.
    """

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """{name: state} of those of `names` that exist, with every setting in effect."""
        ...

    def topic_names(self) -> frozenset[str]:
        """The names of all topics that may be seen."""
        ...

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, None when there is no such topic."""
        ...

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What a writer must know of a topic, None when there is no such topic."""
        ...

    def create(self, topics: Sequence[CreateTopic]) -> list[str]:
        """Create topics; the names of those that this call created.

        Raises:
            UsageError: the cluster refuses a topic's form; nothing was created.
        """
        ...

    def alter_settings(self, changes: Sequence[AlterSetting]) -> None:
        """Set these settings and no other.

        Raises:
            UsageError: the cluster refuses a value; what was asked for other topics may have happened.
        """
        ...

    def group(self, group: str) -> GroupState:
        """Who is a member of a consumer group and reads what."""
        ...

    def stored_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool = False
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What `group` stored for each of `partitions`, None where nothing is.

        Without `is_stable` the answer does not wait for offsets of a Kafka transaction that is still open.
        """
        ...

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets for a group that nobody is a member of; it need not exist.

        Raises:
            LifecycleError: the group has active members; nothing was stored.
        """
        ...

    def start_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        ...

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: as a `read_committed` reader sees it, else the high watermark."""
        ...

    def offsets_at(
        self, partitions: Collection[TopicPartition], *, at_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset whose record is of `at_ms` or later, else the next offset, per partition."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class AdminAnswers:
    """The questions that coordinators and consumers ask of a cluster, answered by one administrator's view.

    Every question raises:
        BrokerUnavailableError: no answer in time; ask again.
        NotAuthorisedError: this principal may not ask.
    """

    def __init__(self, admin: Administration) -> None:
        self._admin = admin

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored; with `is_stable` the answer waits for pending transactional offsets."""
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
        """Give back what the administrator's view holds."""
        self._admin.close()


class LocalState(Enum):
    """What became of a local transaction, as far as this process knows."""

    OPEN = "open"  #: it may still end either way
    COMMITTED = "committed"  #: the database reported its commit
    ROLLED_BACK = "rolled back"  #: it ended, and nobody tried to commit it
    UNCLEAR = "unclear"  #: a commit began and was not reported: only the barrier's row can tell


class Joined(Protocol):
    """One local transaction that holds the barrier's row of a transaction."""

    @property
    def state(self) -> LocalState:
        """What became of it; asks nobody."""
        ...

    def forbid_commit(self, reason: str) -> None:
        """Have the local transaction refuse its commit, because a rollback was said; nothing once it has ended."""
        ...

    def leave(self) -> None:
        """The producer looks no more; a commit that was forbidden stays so."""
        ...


class Barrier(Protocol):
    """The user's table with one row per transaction id, where the first writer wins (P8).

    The calls of one for asyncio (`is_async`) return awaitables of the same.
    """

    @property
    def is_async(self) -> bool:
        """True when its calls are awaited."""
        ...

    def expect_join(self, owner: object, joined: Any = None) -> None:
        """From now on this thread's (task's) local transactions must join: one that has not refuses its commit.

        With the owner's own `joined` that begins when it is lost: rolled back, or its commit has failed.
        Until `forget_join` of the same owner, or as long as it lives. Also where the other calls are awaited, this is not.
        """
        ...

    def forget_join(self, owner: object) -> None:
        """The owner's transaction has ended; nothing if it was not expected."""
        ...

    def check_session(self, session: Any) -> Any:
        """Refuse a session that cannot hold the row; nothing is written.

        Raises:
            UsageError: it is no session or connection, or one of another database, or in autocommit.
        """
        ...

    def write(self, session: Any, *, txn_id: str, nonce: str, group: str) -> Any:
        """Say commit, as a part of the session's own local transaction: its `Joined`.

        Raises:
            BarrierRefusedError: a check-back came first and said rollback. The session refuses to commit.
            UsageError: what `check_session` raises. Nothing was written.
            Exception: the database's own, as it was. The session refuses to commit.
        """
        ...

    def resolve(self, txn_id: str, nonce: str, *, group: str) -> Any:
        """The resolution of the first writer, who is this call when nobody came before: then it is ROLLBACK.

        UNKNOWN when the database does not say. The other side's open row is waited for, for a bounded time.
        """
        ...

    def resolve_many(self, doubtful: Sequence[Any], *, group: str) -> Any:
        """`resolve` for many, in the order asked; each has `txn_id`, `nonce` and `born_at_ms` (when it was made).

        A transaction so old that its row may have been purged is UNKNOWN rather than rolled back for want of a row.
        """
        ...


LOG_APPEND_TIME = 2
"""The kind of a record's timestamp that the broker set; of every other its writer did."""


def append_time_of(record: Any) -> int | None:
    """Milliseconds; None: its writer says when it was written, and nobody else does."""
    kind, timestamp_ms = record.timestamp()
    return int(timestamp_ms) if kind == LOG_APPEND_TIME else None


def no_append_time(topic: str, *, why: str) -> TopicMismatchError:
    """The refusal of a topic whose records have no append time."""
    return TopicMismatchError(
        f"{why}; see `txlayer topics plan`",
        topic=topic,
        expected="message.timestamp.type=LogAppendTime",
        found="another",
    )
