"""What a handler receives: the message, the context of the attempt, and the lease that it runs under."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from txlayer.adapters.bodies import Deserializer
from txlayer.adapters.ports import Record
from txlayer.adapters.telemetry import trace_context_of
from txlayer.core.codec import GROUP_HEADER, ID_HEADER, origin_of
from txlayer.core.dead_letters import DLQ_HEADER, DeadLetter, decode_dead_letter
from txlayer.core.messages import HEADER_OBJECT_BYTES, TAGS_HEADER, Headers, user_headers
from txlayer.core.retry import Later
from txlayer.errors import UsageError


class TransactionOrigin(NamedTuple):
    """The position of the half message of a forwarded message."""

    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # within its transaction; hides tuple.index, which is not used
    count: int  # type: ignore[assignment]  # messages of its transaction; hides tuple.count
    born_ms: int


class ReceivedMessage:
    """One message of a topic. Fields are read from the record on access; nothing is copied before."""

    __slots__ = ("_record",)

    def __init__(self, record: Any) -> None:
        self._record: Record = record

    def __repr__(self) -> str:
        # Without key and value: they are the user's data, and this text may be logged.
        return f"<ReceivedMessage {self.topic}-{self.partition}@{self.offset}>"

    @property
    def topic(self) -> str:
        """Topic of the message."""
        return self._record.topic()

    @property
    def partition(self) -> int:
        """Partition of the message."""
        return self._record.partition()

    @property
    def offset(self) -> int:
        """Offset of the message; unique and increasing within the partition."""
        return self._record.offset()

    @property
    def key(self) -> Any:
        """Key as the key deserializer returned it; without one, bytes or None."""
        return self._record.key()

    @property
    def raw_key(self) -> bytes | None:
        """Key as it was sent; order, retries and dead letters go by it."""
        return self._record.key()

    @property
    def value(self) -> Any:
        """Value as the deserializer returned it; without one, bytes or None."""
        return self._record.value()

    @property
    def raw_value(self) -> bytes | None:
        """Value as it was sent."""
        return self._record.value()

    @property
    def headers(self) -> Headers:
        """All headers, in order, including txlayer's own: a list of its own at every call."""
        # The client hands out the list that it keeps: a handler that changes it would change the next attempt, and the dead letter.
        return list(self._record.headers() or ())

    @property
    def user_headers(self) -> list[tuple[str, bytes | None]]:
        """Headers without txlayer's own, for passing a message on."""
        return user_headers(self._record.headers())

    @property
    def timestamp_ms(self) -> int:
        """Timestamp in milliseconds since 1970."""
        return self._record.timestamp()[1]

    @property
    def tags(self) -> str | None:
        """Tags as the producer set them; None without tags."""
        return self._text_of(TAGS_HEADER)

    @property
    def txn_id(self) -> str | None:
        """Id of the transaction that sent the message; None if txlayer did not forward it."""
        return self._text_of(ID_HEADER)

    @property
    def origin(self) -> TransactionOrigin | None:
        """Position of the half message; None if txlayer did not forward the message."""
        found = origin_of(self._record.headers())
        return None if found is None else TransactionOrigin(*found)

    @property
    def producer_group(self) -> str | None:
        """The producer group that sent the message; None if its producer does not say so (`is_group_named`)."""
        return self._text_of(GROUP_HEADER)

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Which consumer group gave the message up, and why, if it was read from a dead-letter topic; None: it was not given up.

        Raises:
            ValueError: this release cannot read it.
        """
        raw = header_of(self._record, DLQ_HEADER)
        if raw is None:
            return None
        found = decode_dead_letter(raw)
        if isinstance(found, DeadLetter):
            txn_id, group = found.txn_id or self.txn_id or "", found.producer_group or self.producer_group or ""
            return found._replace(txn_id=txn_id, producer_group=group)
        raise ValueError(found.why)

    def _text_of(self, header: str) -> str | None:
        raw = header_of(self._record, header)
        return None if raw is None else raw.decode(errors="replace")


class SerializedField(ReceivedMessage):
    """A message with the field to read, as a deserializer receives it; it has all fields of Confluent's `SerializationContext`.

    Attributes:
        field: "key" or "value".
    """

    __slots__ = ("field",)

    def __init__(self, record: Any, field: Literal["key", "value"]) -> None:
        self._record = record
        self.field = field


class DecodedMessage(ReceivedMessage):
    """A message whose key or value was read by a deserializer."""

    __slots__ = ("_key", "_value")

    def __init__(self, record: Any, key: Any, value: Any) -> None:
        self._record = record
        self._key = key
        self._value = value

    @property
    def key(self) -> Any:
        """Key as the key deserializer returned it."""
        return self._key

    @property
    def value(self) -> Any:
        """Value as the deserializer returned it."""
        return self._value


def header_of(record: Any, name: str) -> bytes | None:
    """Value of the last header of this name; None if there is none."""
    for found, value in reversed(record.headers() or ()):
        if found == name:
            return bytes(value) if value is not None else None
    return None


def size_in_memory(record: Any, key: bytes | None) -> int:
    """Bytes of a record's value, key and headers; it counts so much of `record_bytes_max`."""
    size_bytes: int = len(record) + (len(key) if key else 0)
    for name, value in record.headers() or ():
        size_bytes += HEADER_OBJECT_BYTES + len(name) + (len(value) if value else 0)
    return size_bytes


FOR_EVER = float("inf")
_new = object.__new__


@dataclass(slots=True, eq=False)
class Lease:
    """The lease of one queue in this process, from the assignment to its loss. The engine writes it; any thread may read it.

    `valid_until` is monotonic seconds: no handler starts after it. `lost` is set when the queue has another owner or
    none: queued messages are then not started, and results of running handlers are discarded.
    """

    group: str
    topic: str
    partition: int
    token: int | None = None
    valid_until: float = FOR_EVER
    lost: threading.Event = field(default_factory=threading.Event)


class LeaseLost(threading.Event):
    """A lease's `lost` for handlers, who can only look at it: set by a handler, it would stop the queue."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def __repr__(self) -> str:
        return f"LeaseLost({self._event!r})"

    def is_set(self) -> bool:
        """True if the lease is lost."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost; returns False after `timeout` seconds."""
        return self._event.wait(timeout)

    def set(self) -> None:
        """Raises `UsageError`: nothing is changed."""
        raise UsageError("context.lease_lost is set by txlayer; pass an event of your own to code that sets it")

    def clear(self) -> None:
        """Raises `UsageError`, as `set`."""
        self.set()


class Context:
    """One attempt at a message. Valid while the handler runs."""

    __slots__ = ("_deadline", "_lease", "attempt", "message")

    def __init__(self, message: ReceivedMessage, attempt: int, deadline: float, lease: Lease) -> None:
        self.message = message
        self.attempt = attempt
        """1 for the first attempt; attempts before a restart count."""
        self._deadline = deadline
        self._lease = lease

    @property
    def deadline(self) -> float:
        """`time.monotonic()` by which the handler must end; renewing the lease moves it on, except in a worker process.

        It is the end of `attempt_timeout`, after which the attempt has failed, or of the lease, whichever comes first.
        """
        return min(self._deadline, self._lease.valid_until)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._lease.group

    @property
    def topic(self) -> str:
        """Topic of the message."""
        return self.message.topic

    @property
    def partition(self) -> int:
        """Partition of the message."""
        return self.message.partition

    @property
    def offset(self) -> int:
        """Offset of the message."""
        return self.message.offset

    @property
    def key(self) -> bytes | None:
        """Key of the message, as it was sent."""
        return self.message.raw_key

    @property
    def token(self) -> int | None:
        """Fencing token of the queue's lease: larger than every token before it, across lock logs. None without order."""
        return self._lease.token

    @property
    def lease_lost(self) -> threading.Event:
        """Set when the queue is lost. Stop: another process may be handling the same message."""
        return LeaseLost(self._lease.lost)

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    @property
    def txn_id(self) -> str | None:
        """Id of the transaction that sent the message; None if txlayer did not forward it."""
        return self.message.txn_id

    @property
    def trace_id(self) -> str | None:
        """Trace id of the message, for log lines; None without one."""
        found = trace_context_of(self.message.headers)
        return None if found is None else found.trace_id

    @property
    def origin(self) -> TransactionOrigin | None:
        """Position of the half message; None if txlayer did not forward the message."""
        return self.message.origin

    def suspend(self, delay: timedelta, reason: str = "") -> Later:
        """Return it from the handler: as `Later`, and no other message of the partition begins before, either.

        `return context.suspend(timedelta(seconds=30))`. Handlers that run meanwhile may end. A restart forgets it.
        """
        return Later(delay, reason, is_of_partition=True)


def context_of(record: Any, attempt: int, deadline: float, lease: Lease) -> Context:
    """The context of a record's message.

    It bypasses both constructors: calling them took twice as long, a fifth of the cost of a message with an empty
    handler.
    """
    message, context = _new(ReceivedMessage), _new(Context)
    message._record = record  # noqa: SLF001 - as its constructor does
    context.message = message
    context.attempt = attempt
    context._deadline = deadline  # noqa: SLF001 - likewise
    context._lease = lease  # noqa: SLF001 - likewise
    return context


CAUSES_MAX = 20  # length of the chain of causes that is examined
_OF_THE_RECORD = frozenset({404, 422})  # HTTP statuses of a registry that are final: there is no such schema


class Deserializers:
    """The deserializers of one consumer; None: keys or values stay bytes. Thread-safe."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value

    @property
    def is_any(self) -> bool:
        return self._key is not None or self._value is not None

    def read(self, record: Any) -> DecodedMessage:
        """The message; the key is read before the value. A deserializer's exception propagates unchanged."""
        key, value = record.key(), record.value()
        if self._key is not None:
            key = self._key(key, SerializedField(record, "key"))
        if self._value is not None:
            value = self._value(value, SerializedField(record, "value"))
        return DecodedMessage(record, key, value)


def is_passing(error: BaseException) -> bool:
    """True if the error does not come from the record: a service did not answer, or refused to.

    It looks at the error and its causes: an `OSError`, a `TransportError` of httpx, or an HTTP status (as in
    Confluent's `SchemaRegistryError`), unless the status says that there is no such schema.
    """
    cause: BaseException | None = error
    try:
        for _ in range(CAUSES_MAX):
            if cause is None:
                break
            if isinstance(cause, OSError) or "TransportError" in (t.__name__ for t in type(cause).__mro__):
                return True
            if any(status not in _OF_THE_RECORD for status in _statuses(cause)):
                return True
            cause = cause.__cause__ or cause.__context__
    except BaseException:  # noqa: BLE001 - the user's code: what raises when it is asked says nothing
        return False
    return False


def _statuses(error: BaseException) -> Iterator[int]:
    """The HTTP statuses that an error tells; an attribute that raises tells none."""
    for name in ("http_status_code", "status_code"):
        try:
            status = getattr(error, name, None)
        except BaseException:  # noqa: BLE001, S112 - the user's code, which must not cost its worker
            continue
        if isinstance(status, int):
            yield status
