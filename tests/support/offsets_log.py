"""What a group stored, every time: read from Kafka's own log of it, as its brokers wrote it. Never asking a group.

Only this log tells all that was ever stored, in its order; who asks now and then misses most of it.
"""

import struct
from collections.abc import Iterable

from tests.support.consumer_history import Stored
from tests.support.logs import Seen
from txlayer.adapters.ports import StoredOffset, TopicPartition

_COMMIT_KEYS = frozenset({0, 1})
"""Versions of keys under which offsets stand; others are of groups."""
_NEWEST_LEADER, _COMPACT = 3, 4
"""From these versions of the value on there is a leader's epoch, and texts have lengths of their own kind."""


def stored_by(group: str, records: Iterable[Seen]) -> list[Stored]:
    """Everything that a group stored, in the order of the log; `records` are those of `__consumer_offsets`."""
    found: list[Stored] = []
    for record in records:
        place = _place(record.key or b"", group)
        if place is not None and record.value is not None:
            at_ms = max(record.timestamp_ms, found[-1].at_ms if found else 0)
            found.append(Stored(at_ms, place, _stored(record.value)))
    return found


def _place(key: bytes, group: str) -> TopicPartition | None:
    (version,) = struct.unpack_from(">h", key)
    if version not in _COMMIT_KEYS:
        return None
    name, at = _text(key, 2)
    topic, at = _text(key, at)
    (partition,) = struct.unpack_from(">i", key, at)
    return (topic, partition) if name == group else None


def _stored(value: bytes) -> StoredOffset:
    version, offset = struct.unpack_from(">hq", value)
    at = 14 if version >= _NEWEST_LEADER else 10
    metadata = _text(value, at)[0] if version < _COMPACT else _compact_text(value, at)
    # The C client sends the zero at the end of its text, too; who asks through it never sees that.
    return StoredOffset(offset, metadata.removesuffix("\0"))


def _compact_text(data: bytes, at: int) -> str:
    length, shift = 0, 0
    while True:
        length |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return data[at : at + length - 1].decode()


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    end = at + 2 + length
    return data[at + 2 : end].decode(), end
