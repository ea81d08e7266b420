"""Keys and values as handlers get them: calls a user's deserializers as Confluent's own consumer calls its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txlayer.consumer.received import DecodedMessage, SerializedField

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
