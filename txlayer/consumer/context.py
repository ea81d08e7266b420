"""What a handler may know about its call, and the lease that it runs under. Never calling a handler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from txlayer.core.codec import ID_HEADER, ORIGIN_HEADER, decode_origin
from txlayer.core.ids import TXN_ID_LENGTH_MAX
from txlayer.core.messages import TAGS_HEADER, Headers, Undecodable, user_headers
from txlayer.core.trace_context import trace_context_of


class TransactionOrigin(NamedTuple):
    """Where the half message of a forwarded message stands."""

    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # within its transaction; hides tuple.index, which nobody needs
    count: int  # type: ignore[assignment]  # messages of its transaction; likewise
    born_ms: int


class ReceivedMessage:
    """One message of a topic. Nothing is copied before it is asked for."""

    __slots__ = ("_record",)

    def __init__(self, record: Any) -> None:
        self._record = record

    def __repr__(self) -> str:
        # Never key or value: they are the user's, and this may end in a log.
        return f"<ReceivedMessage {self.topic}-{self.partition}@{self.offset}>"

    @property
    def topic(self) -> str:
        """Its topic."""
        topic: str = self._record.topic()
        return topic

    @property
    def partition(self) -> int:
        """Its partition."""
        partition: int = self._record.partition()
        return partition

    @property
    def offset(self) -> int:
        """Its offset; unique and growing within the partition."""
        offset: int = self._record.offset()
        return offset

    @property
    def key(self) -> Any:
        """What the key's deserializer made of it; bytes or None without one."""
        return self._record.key()

    @property
    def raw_key(self) -> bytes | None:
        """Its key as it was sent; order, retries and dead letters go by it."""
        key: bytes | None = self._record.key()
        return key

    @property
    def value(self) -> Any:
        """What the deserializer made of it; bytes or None without one."""
        return self._record.value()

    @property
    def raw_value(self) -> bytes | None:
        """Its value as it was sent."""
        value: bytes | None = self._record.value()
        return value

    @property
    def headers(self) -> Headers:
        """All headers, in order, txlayer's own among them."""
        return self._record.headers() or []

    @property
    def user_headers(self) -> list[tuple[str, bytes | None]]:
        """The headers without txlayer's own, for those who pass a message on."""
        return user_headers(self._record.headers())

    @property
    def timestamp_ms(self) -> int:
        """Its timestamp, in milliseconds since 1970."""
        timestamp: int = self._record.timestamp()[1]
        return timestamp

    @property
    def tags(self) -> str | None:
        """Its tags as its producer gave them."""
        raw = header_of(self._record, TAGS_HEADER)
        return None if raw is None else raw.decode(errors="replace")

    @property
    def txn_id(self) -> str | None:
        """The transaction that it was sent in; None: it was not forwarded by txlayer."""
        raw = header_of(self._record, ID_HEADER)
        return None if raw is None else raw.decode(errors="replace")

    @property
    def origin(self) -> TransactionOrigin | None:
        """Where its half message stands; None: it was not forwarded by txlayer."""
        raw = header_of(self._record, ORIGIN_HEADER)
        found = None if raw is None else decode_origin(raw)
        return (
            None if found is None or isinstance(found, Undecodable) else TransactionOrigin(*found)
        )


class SerializedField(ReceivedMessage):
    """A message as a deserializer gets it: with the field that is to be read it tells all that Confluent's `SerializationContext` does.

    Attributes:
        field: "key" or "value".
    """

    __slots__ = ("field",)

    def __init__(self, record: Any, field: Literal["key", "value"]) -> None:
        self._record = record
        self.field = field


class DecodedMessage(ReceivedMessage):
    """One whose key or value a deserializer read."""

    __slots__ = ("_key", "_value")

    def __init__(self, record: Any, key: Any, value: Any) -> None:
        self._record = record
        self._key = key
        self._value = value

    @property
    def key(self) -> Any:
        """What the key's deserializer made of it."""
        return self._key

    @property
    def value(self) -> Any:
        """What the deserializer made of it."""
        return self._value


def header_of(record: Any, name: str) -> bytes | None:
    """A header's value, the last of its name; None: there is none."""
    for found, value in reversed(record.headers() or ()):
        if found == name:
            return bytes(value) if value is not None else None
    return None


FOR_EVER = float("inf")
_new = object.__new__


class Lease:
    """A queue as this process holds it, from its assignment until it goes. The engine writes, everybody reads.

    `valid_until` is of the monotonic clock: no handler starts later. `lost` is set when the queue is somebody else's,
    or nobody's: what is queued is not started then, and what a running handler does counts for nothing.
    """

    __slots__ = ("group", "lost", "partition", "token", "topic", "valid_until")

    def __init__(self, group: str, topic: str, partition: int, *, token: int | None = None) -> None:
        self.group = group
        self.topic = topic
        self.partition = partition
        self.token = token
        self.valid_until = FOR_EVER
        self.lost = threading.Event()


class Context:
    """One attempt at a message. Valid while the handler runs."""

    __slots__ = ("_deadline", "_lease", "attempt", "message")

    def __init__(
        self, message: ReceivedMessage, attempt: int, deadline: float, lease: Lease
    ) -> None:
        self.message = message
        self.attempt = attempt
        """1 for the first attempt; attempts before a restart count."""
        self._deadline = deadline
        self._lease = lease

    @property
    def deadline(self) -> float:
        """Of `time.monotonic()`: when it should have ended; later when the lease was renewed meanwhile, but for a process.

        It is the end of `attempt_timeout`, after which the attempt has failed, or of the lease, where that is sooner.
        """
        return min(self._deadline, self._lease.valid_until)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._lease.group

    @property
    def topic(self) -> str:
        """The message's topic."""
        return self.message.topic

    @property
    def partition(self) -> int:
        """The message's partition."""
        return self.message.partition

    @property
    def offset(self) -> int:
        """The message's offset."""
        return self.message.offset

    @property
    def key(self) -> bytes | None:
        """The message's key, as it was sent."""
        return self.message.raw_key

    @property
    def token(self) -> int | None:
        """The fencing token of the queue's lease: larger than that of every holder before, also in a lock log before. None without order."""
        return self._lease.token

    @property
    def lease_lost(self) -> threading.Event:
        """Set when the queue is lost: stop, somebody else may be handling the same message."""
        return self._lease.lost

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; below 0 when it is over."""
        return self.deadline - time.monotonic()

    @property
    def txn_id(self) -> str | None:
        """The transaction that the message was sent in; None: it was not forwarded by txlayer."""
        return self.message.txn_id

    @property
    def trace_id(self) -> str | None:
        """The trace that the message was sent in, for log lines; None: it carries none."""
        found = trace_context_of(self.message.headers)
        return None if found is None else found.trace_id

    @property
    def origin(self) -> TransactionOrigin | None:
        """Where its half message stands; None: it was not forwarded by txlayer."""
        return self.message.origin

    @property
    def derived_txn_id(self) -> str:
        """A transaction id for what this handler publishes: the same at every attempt, so that a repeat can be told."""
        message = self.message
        place = f"{self._lease.group}:{message.topic}:{message.partition}:{message.offset}"
        if len(place) <= TXN_ID_LENGTH_MAX:
            return place
        return f"h:{blake2b(place.encode(), digest_size=32).hexdigest()}"


def context_of(record: Any, attempt: int, deadline: float, lease: Lease) -> Context:
    """The context of a record's message.

    Calling the two classes takes twice as long, and that was a fifth of what a message costs whose handler does nothing.
    """
    message, context = _new(ReceivedMessage), _new(Context)
    message._record = record  # noqa: SLF001 - as its own constructor does
    context.message = message
    context.attempt = attempt
    context._deadline = deadline  # noqa: SLF001 - likewise
    context._lease = lease  # noqa: SLF001 - likewise
    return context


Deserializer = Callable[[bytes | None, Any], Any]
"""What makes a message's key or value of its bytes: any of confluent-kafka, or a function (bytes, `SerializedField`).

What it raises makes the message a dead letter, unless the same bytes may be read later (`is_passing`).
"""

CAUSES_MAX = 20
"""Exceptions that are looked at behind one."""

_OF_THE_RECORD = frozenset({404, 422})
"""Answers of a registry that stay as they are: there is no such schema."""


class Deserializers:
    """The deserializers of one consumer; None: keys or values stay bytes. Any number of threads may use it at a time."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value

    @property
    def is_any(self) -> bool:
        """True when there is one."""
        return self._key is not None or self._value is not None

    def read(self, record: Any) -> DecodedMessage:
        """The message, its key read before its value. What a deserializer raises comes out as it is."""
        key, value = record.key(), record.value()
        if self._key is not None:
            key = self._key(key, SerializedField(record, "key"))
        if self._value is not None:
            value = self._value(value, SerializedField(record, "value"))
        return DecodedMessage(record, key, value)


def is_passing(error: BaseException) -> bool:
    """True when it says nothing of the record: a service that was asked did not answer, or refused to.

    Told by the error and by what it was raised from: an `OSError`, a `TransportError` of httpx, or the status of an answer
    over HTTP (Confluent's `SchemaRegistryError` has it), unless that says that there is no such schema.
    """
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if cause is None:
            return False
        if isinstance(cause, OSError) or "TransportError" in (
            t.__name__ for t in type(cause).__mro__
        ):
            return True
        status = getattr(cause, "http_status_code", None) or getattr(cause, "status_code", None)
        if isinstance(status, int) and status not in _OF_THE_RECORD:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
