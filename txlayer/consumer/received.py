"""A message as a handler gets it: a light cover over the record, which is decoded when it is asked for. Never a rule."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from txlayer.core.codec import ID_HEADER, ORIGIN_HEADER, decode_origin
from txlayer.core.messages import TAGS_HEADER, Headers, Undecodable, user_headers


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
