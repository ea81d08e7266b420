"""The Protocols that services expect of a log and of a barrier; their docstrings are the guarantees.

The shapes are those of confluent-kafka, so that the hot calls (`produce`, `Record.value`) need no wrapper. Every error
that leaves a port is one of `txlayer.errors`, except what `produce` raises (`BufferError`: the queue is full, poll and
try again; anything else is the client's own).

`BrokerFacts` and the other facts are what an adapter reports of a cluster, and `operate/doctor.py` judges. None: unknown.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from txlayer.core.messages import Headers
from txlayer.core.topics import AlterSetting, Change, CreateTopic, TopicState
from txlayer.errors import TopicMismatchError, TxLayerError


class HistoryStart(NamedTuple):
    """The start of reading half and op for one transaction's history."""

    at_ms: int  # read half records appended at this time or later
    position: tuple[int, int] | None = None  # instead: half partition and offset; op from the time of that record
    # Op and check records are read from a minute earlier: their leaders' clocks may be behind that of half's.


TopicPartition = tuple[str, int]  # (topic, partition)


class RecordError(Protocol):
    """The reason why a record was not written or read: Kafka's error number and its name."""

    def code(self) -> int: ...
    def name(self) -> str: ...


class Record(Protocol):
    """A record of a topic as a reader receives it, or the report on a written one.

    Its offset is unique and increases within the partition; gaps are normal. Headers are in order. A timestamp is (kind,
    milliseconds): the append time, if the topic is configured so. A real record has no error. Its length is that of the value.
    """

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def error(self) -> RecordError | None: ...
    def __len__(self) -> int: ...


class RecordView:
    """Shows another record; a subclass says what it shows otherwise."""

    __slots__ = ("_record",)

    def __init__(self, record: Any) -> None:
        self._record = record

    def __getattr__(self, name: str) -> Any:
        if name == "_record":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._record, name)

    def __len__(self) -> int:
        return len(self._record)


DeliveryReport = Callable[[Any, Any], None]
"""Called from `poll` or `flush` with (error or None, record). It must not raise.

Without an error the record is stored, and its `offset()` is its position, or None: librdkafka treats a batch as stored when
a later one of the partition is acknowledged, and then does not learn the position.
"""


class StoredOffset(NamedTuple):
    """An offset that a group stored for one partition, with its metadata."""

    offset: int
    metadata: str


class Assignment(NamedTuple):
    """The partitions that the group assigned to this member: the whole assignment, not a difference."""

    partitions: tuple[TopicPartition, ...]
    member: Any  # opaque: the group's metadata of this generation, for `send_offsets`
    generation: int


class TopicLimits(NamedTuple):
    """The properties of a target topic that a writer must know."""

    partition_count: int
    message_bytes_max: int | None  # None: the broker did not report it
    is_append_time: bool | None = None  # the broker stamps its records; None: not reported
    is_writable: bool = True  # False: these credentials may describe it but not write to it
    closed_at_ms: int | None = None  # of half: since when the namespace accepts no new transactions
    # Partitions without a leader or, as far as reported, with too few replicas in sync.
    unavailable: frozenset[int] = frozenset()
    topic_id: str = ""  # a topic that is deleted and made anew has another


class IdempotentWriter(Protocol):
    """Writes records of half, op and locks, and those of operators: acknowledged by all replicas, in order per partition, not duplicated by retries.

    Any thread may call `produce`. Reports come in the order of acknowledgement, only from within `poll` and `close`.
    """

    produce: Callable[..., None]
    """Queue a record: (topic, value, key, partition, on_delivery, None, timestamp_ms or 0, headers), by position.

    This is the client's own call, because it is made twice per transaction (positional arguments save half a
    microsecond). It raises the client's own errors (`error_of` translates them), and `BufferError`: the queue is
    full, nothing was queued, and there is room after the next reports.
    """
    poll: Callable[[float], int]  # serve reports for at most this many seconds; returns the number served
    unreported_count: Callable[[], int]  # number of records whose report has not been served yet

    def error_of(self, error: Any, *, topic: str, txn_id: str) -> TxLayerError:
        """Translate a delivery report's error, or an exception of `produce`.

        RefusedRecordError, NotAuthorisedError, ForbiddenTopicError, RetriableError: the record was not stored.
        OutcomeUnknownError: it may have been stored, or may be stored later.
        FencedError: no further record will be stored; close the instance.
        """

    def failure(self) -> TxLayerError | None:
        """A fatal error, after which the instance must be closed; None without one."""

    def close(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for queued records, report the rest as errors, and close."""


class TransactionalWriter(Protocol):
    """The producer of one transactional id. Not thread-safe.

    Records and offsets between `begin` and `commit` are one unit: all become visible together, or none.
    """

    transactional_id: str
    batch_bytes_max: int

    produce: Callable[..., None]  # as in `IdempotentWriter`; a refused record makes `flush` or `commit` fail

    def initialise(self, *, timeout_s: float) -> None:
        """Fence every earlier holder of the id and end what it left open.

        Raises:
            ProducerFencedError, NotAuthorisedError, BrokerUnavailableError: no Kafka transaction can begin.
        """

    def begin(self) -> None:
        """Begin a Kafka transaction."""

    def flush(self, *, timeout_s: float) -> int:
        """Wait until every record is acknowledged or refused; returns the number still waiting.

        Raises:
            TxLayerError: the writer failed for good, most often because a newer holder of the id fenced it.
        """

    def send_offsets(self, offsets: Mapping[TopicPartition, StoredOffset], member: Any, *, timeout_s: float) -> None:
        """Add the offsets to the Kafka transaction, fenced by the member's generation.

        Raises:
            MemberFencedError: the group went on without this member.
            RefusedRecordError, ForbiddenTopicError: a record before was refused; the Kafka transaction must be given up.
            BrokerUnavailableError: not answered within `timeout_s`; the client may never come back from it.
            TxLayerError: anything else; the Kafka transaction must be given up.
        """

    def poll(self) -> None:
        """Serve reports, which frees room in the queue; raises as `flush`."""

    def failure(self, exc: Exception) -> TxLayerError:
        """Translate an exception of `produce`; an exception that is not the client's is raised again."""

    def refusal(self, error: Any, *, topic: str, txn_key: str) -> Exception:
        """Translate the error of a delivery report."""

    def commit(self, *, timeout_s: float) -> None:
        """End the Kafka transaction; after it returns, a `read_committed` reader sees all of it.

        Raises:
            RetriableError: this very class: not answered yet; call again.
            TxLayerError: as `send_offsets`; it has failed.
        """

    def close(self) -> None:
        """Close the client; an open Kafka transaction is left to the next holder of the id."""


class LogReader(Protocol):
    """Reads partitions that it assigns itself, without a group."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets."""

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        """Records as they arrive; an empty list after `timeout_s`. The end of a partition is a record with error `_PARTITION_EOF`."""

    def pause(self, partition: TopicPartition) -> None:
        """Stop reading this partition."""

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        """(first offset, next offset); the latter as seen at this reader's isolation level."""

    def close(self) -> None:
        """Close the reader."""


class GroupReader(Protocol):
    """A member of a consumer group (classic protocol, range). Not thread-safe; its callbacks do not raise."""

    def start(self, topics: Sequence[str]) -> None:
        """Join the group; a later `read` delivers the assignment."""

    def take_assignment(self) -> Assignment | None:
        """The newest assignment that was not taken yet. Reading begins only with `resume_at`."""

    def take_revocation(self) -> bool:
        """True once after the group revoked its partitions (or the session was lost)."""

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read the assigned partitions from these offsets."""

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these partitions and drop their prefetched records."""

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Resume reading these partitions."""

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        """Records as they arrive, none with an error; it also serves the group.

        Raises:
            ConfigError: the stored offset is no longer in the log.
            TxLayerError: anything else that stops reading. Rebuild from the stored offsets.
        """

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        """(first offset, last stable offset)."""

    def read_to(self, partition: TopicPartition) -> int:
        """The position when reading last reached the end of an assigned partition; -1: not since `resume_at`.

        Markers and aborted records at the end count as read, although no record reports them.
        """

    def known_end(self, partition: TopicPartition) -> int | None:
        """The end of an assigned partition as of the last fetch, without a request; None if not known."""

    def close(self) -> None:
        """Leave the group."""


OnRevoke = Callable[[bool], None]
"""Called from within `read` or `close` when partitions are revoked; True: they are lost already (the session ended)."""


class StoringGroupReader(GroupReader, Protocol):
    """A member of a consumer group that stores its offsets without a Kafka transaction.

    The stores of one member take effect in the order in which they were begun; at most one is outstanding.
    """

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        """Join the group; `on_revoke` is called before the group continues without this member's partitions.

        The other members wait until it returns. `store_offsets` works in it unless the session is lost already; `read`
        must not be called. An exception of it is raised by the next `read`.
        """

    def take_reached(self) -> Mapping[TopicPartition, int]:
        """Positions at which reading reached the end of a partition since the last call: everything below was read.

        Between the last record and such a position are markers of Kafka transactions and aborted records. The positions
        belong to the assignment of the last `resume_at`.
        """

    def begin_store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Begin to store offsets, fenced by this member's generation, without waiting; `take_stored` returns the result.

        Raises:
            LifecycleError: the result of the previous store was not taken yet.
        """

    def take_stored(self) -> bool:
        """True once after the outstanding store was acknowledged.

        Raises:
            MemberFencedError: the group went on without this member; nothing was stored.
            ConfigError: the brokers allow less metadata; nothing was stored.
            TxLayerError: it may have been stored or not.
        """

    def store_offsets(self, offsets: Mapping[TopicPartition, StoredOffset], *, timeout_s: float) -> None:
        """Wait for the outstanding store, then store these offsets and wait for the acknowledgement; raises as `take_stored`.

        Raises:
            BrokerUnavailableError: not acknowledged within `timeout_s`; it may still happen. Until it is answered, `read` may raise this
                as well, and what `resume_at` says counts from the next `read` that does not.
        """


class GroupMember(NamedTuple):
    """One member of a consumer group."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class GroupState(NamedTuple):
    """A consumer group; a group that does not exist is `dead` and has no members."""

    state: str
    members: tuple[GroupMember, ...]

    @property
    def is_active(self) -> bool:
        """True while the group has, or may have, a member."""
        return bool(self.members) or self.state not in ("dead", "empty")


class Administration(Protocol):
    """The administrator's view of one cluster, for one thread at a time; it connects at the first question.

    Every question may also raise:
        BrokerUnavailableError: no answer in time; ask again. A change may have happened, so read the state.
        NotAuthorisedError: credentials or rights were refused; nothing was changed.
    """

    def stored_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool = False
    ) -> dict[TopicPartition, StoredOffset | None]:
        """The offsets that a group stored; None for a partition without one.

        With `is_stable` the answer waits for offsets of open Kafka transactions: no answer in time may mean that some are
        still pending.
        """

    def start_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still in the log, per partition."""

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: as a `read_committed` reader sees it, else the high watermark."""

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """The current limits of a topic; None if it does not exist."""

    def close(self) -> None:
        """Close the shared clients."""

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """{name: state} of those of `names` that exist, with every effective setting."""

    def topic_names(self) -> frozenset[str]:
        """The names of all visible topics."""

    def partition_count(self, topic: str) -> int | None:
        """Partition count of a topic; None if it does not exist."""

    def create(self, topics: Sequence[CreateTopic]) -> list[str]:
        """Create topics; returns the names of those that this call created.

        Raises:
            UsageError: the cluster refuses a topic's configuration; nothing was created.
        """

    def alter_settings(self, changes: Sequence[AlterSetting]) -> None:
        """Change these settings and no others.

        Raises:
            UsageError: the cluster refuses a value; changes of other topics may have happened.
        """

    def group(self, group: str) -> GroupState:
        """The members of a consumer group and what they read."""

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets for a group without members; the group need not exist.

        Raises:
            LifecycleError: the group has active members; nothing was stored.
        """

    def offsets_at(self, partitions: Collection[TopicPartition], *, at_ms: int) -> dict[TopicPartition, int]:
        """The first offset whose record is of `at_ms` or later, else the next offset, per partition."""


class LocalState(Enum):
    """The state of a local transaction, as far as this process knows."""

    OPEN = "open"  #: it may still end either way
    COMMITTED = "committed"  #: the database reported its commit
    ROLLED_BACK = "rolled back"  #: it ended without an attempt to commit
    UNCLEAR = "unclear"  #: a commit began and was not reported: only the barrier's row decides


class Joined(Protocol):
    """One local transaction that holds the barrier's row of a transaction."""

    @property
    def state(self) -> LocalState:
        """The current state, without a query."""

    def forbid_commit(self, reason: str) -> None:
        """Make the local transaction refuse its commit, because the resolution is rollback; no effect once it has ended."""

    def leave(self) -> None:
        """Stop watching for the producer; a forbidden commit stays forbidden."""


class Barrier(Protocol):
    """The user's table with one row per transaction id, where the first writer wins (P8).

    With `is_async`, the calls return awaitables.
    """

    @property
    def is_async(self) -> bool:
        """True if its calls are awaited."""

    def belongs_here(self, owner: object) -> None:
        """This thread or task is one of the owner's, as each is that calls `expect_join`. Not awaited, either."""

    def expect_join(self, owner: object, joined: Any = None) -> None:
        """From now on local transactions of the owner's threads and tasks must have joined: one that has not refuses its commit.

        With the owner's own `joined`, this begins when that is lost: rolled back, or its commit has failed. It lasts
        until `forget_join` of the same owner, or as long as the owner lives. This call is not awaited, even with `is_async`.
        """

    def forget_join(self, owner: object) -> None:
        """The owner's transaction has ended; no effect without `expect_join`."""

    def check_session(self, session: Any) -> Any:
        """Refuse a session that cannot hold the row; nothing is written.

        Raises:
            UsageError: it is not a session or connection, belongs to another database, or is in autocommit.
        """

    def write(self, session: Any, *, txn_id: str, nonce: str, group: str) -> Any:
        """Write COMMIT as a part of the session's own local transaction; returns its `Joined`.

        Raises:
            BarrierRefusedError: a check-back came first and wrote ROLLBACK. The session refuses to commit.
            UsageError: what `check_session` raises. Nothing was written.
            Exception: the database's own error, unchanged. The session refuses to commit.
        """

    def resolve(self, txn_id: str, nonce: str, *, group: str) -> Any:
        """The resolution of the first writer; without a row, this call writes ROLLBACK and returns it.

        UNKNOWN if the database does not answer. It waits for the other side's open row, for a bounded time.
        """

    def resolve_many(self, doubtful: Sequence[Any], *, group: str) -> Any:
        """`resolve` for many, in the given order; each has `txn_id`, `nonce` and `born_at_ms` (its creation time).

        A missing row of a transaction so old that a purge may have deleted it is UNKNOWN, not rolled back.
        """


LOG_APPEND_TIME = 2  # the timestamp kind that the broker sets; with any other kind the writer sets the timestamp


def append_time_of(record: Any) -> int | None:
    """Append time in milliseconds; None if the writer set the timestamp."""
    kind, timestamp_ms = record.timestamp()
    return int(timestamp_ms) if kind == LOG_APPEND_TIME else None


def no_append_time(topic: str, *, why: str) -> TopicMismatchError:
    """The error for a topic whose records have no append time."""
    return TopicMismatchError(
        f"{why}; see `txlayer topics check`",
        topic=topic,
        expected="message.timestamp.type=LogAppendTime",
        found="another",
    )


def no_such_topic(topic: str, *, create: str | None = "txlayer topics apply") -> TopicMismatchError:
    """The error for a topic that must be there; the command `create` makes it, None: it is one of the users' own."""
    mend = "name one that is there" if create is None else f"`{create}` creates it"
    return TopicMismatchError(f"no such topic; {mend}", topic=topic, found="none")


def limits_of(topic_limits: Callable[[str], TopicLimits | None], topic: str) -> TopicLimits:
    """What `topic_limits` says of a topic that must be there, else `no_such_topic`."""
    limits = topic_limits(topic)
    if limits is None:
        raise no_such_topic(topic)
    return limits


def partition_count_of(admin: Administration, topic: str, *, create: str | None = "txlayer topics apply") -> int:
    """Partition count of a topic that must be there, else `no_such_topic`; the rest as `Administration.partition_count`."""
    count = admin.partition_count(topic)
    if count is None:
        raise no_such_topic(topic, create=create)
    return count


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One broker."""

    broker_id: int
    settings: Mapping[str, str]  # empty: these credentials may not read them


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic: the namespace's own, a Kafka-internal or a real one."""

    name: str
    replicas: tuple[tuple[int, ...], ...]  # per partition: brokers, the preferred leader first
    in_sync: tuple[tuple[int, ...], ...]
    leaders: tuple[int | None, ...]
    settings: Mapping[str, str]  # empty: these credentials may not read them
    operations: frozenset[str] = frozenset()  # what these credentials may do with it

    @property
    def replication_factor(self) -> int:
        """The replication factor of the partition with the fewest replicas."""
        return min(map(len, self.replicas), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition of half, op and doubt; None: nothing is stored, or there is no record."""

    partition: int
    half_start: int
    half_end: int
    op_start: int
    op_end: int
    low_water: int | None
    op_next: int | None
    low_water_ms: int | None = None
    """When the half record at the low-water mark was stored; None: half has none from there on."""
    owner: str = ""  # client id of the coordinator that owns it; "" if there is none


class ClockFacts(NamedTuple):
    """The broker's clock minus this machine's."""

    at_least_ms: int | None  # None: unknown in this direction
    at_most_ms: int | None


NO_CLOCK = ClockFacts(None, None)


class Right(NamedTuple):
    """One operation, and whether these credentials may do it, as the broker answers."""

    role: str  # the role that needs it: coordinator, producer
    operation: str  # as named in ACLs
    kind: str  # topic, group
    resource: str
    is_allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """All facts about the cluster."""

    namespace: str
    half: str
    op: str
    now_ms: int
    brokers: tuple[BrokerFacts, ...]
    topics: tuple[TopicFacts, ...]  # the namespace's topics
    internal_topics: tuple[TopicFacts, ...] = ()
    real_topics: tuple[TopicFacts, ...] = ()
    missing_real_topics: tuple[str, ...] = ()  # named by half messages or by an option, and missing
    changes: tuple[Change, ...] = ()  # what `topics apply` would do
    partitions: tuple[PartitionFacts, ...] = ()
    group: GroupState | None = None  # the coordinators' group
    clock: ClockFacts = NO_CLOCK
    rights: tuple[Right, ...] = ()
    untold: Mapping[str, str] = field(default_factory=dict)  # {fact that could not be determined: reason}

    def topic(self, name: str) -> TopicFacts | None:
        """One of the namespace's topics."""
        return next((topic for topic in self.topics if topic.name == name), None)
