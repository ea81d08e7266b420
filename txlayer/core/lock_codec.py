"""Lock records ↔ key and value: claims, renewals and releases on `<namespace>.locks`. Never: who holds what (leases.py).

Nothing here raises on bad bytes; the format, with test vectors, is written down in docs/explanation/protocol.md.
"""

from __future__ import annotations

import zlib
from urllib.parse import quote, unquote

from txlayer.core.fields import PARTITION_MAX, VERSION, known_fields, whole, wrong_form
from txlayer.core.handling import LockKind, LockRecord
from txlayer.core.ids import is_topic_name
from txlayer.core.messages import Undecodable

_FIELD_COUNT = 7
_KINDS = {kind.value: kind for kind in LockKind}
_SAFE = "/:@ "


def queue_name(group: str, topic: str, partition: int) -> str:
    """A queue as records and operators name it: group/topic/partition."""
    return f"{group}/{topic}/{partition}"


def parse_queue(name: str) -> tuple[str, str, int]:
    """(group, topic, partition); a group may hold slashes, a topic cannot.

    Raises:
        ValueError: it is no queue's name.
    """
    group, topic, partition = name.rsplit("/", 2)
    number = whole(partition)
    if not (group and is_topic_name(topic) and number <= PARTITION_MAX):
        raise ValueError(f"{name[:80]!r} is no group/topic/partition")
    return group, topic, number


def lock_partition(queue: str, *, partition_count: int) -> int:
    """The partition of `<namespace>.locks` that holds all records of a queue: zlib.crc32(key) % count."""
    return zlib.crc32(queue.encode()) % partition_count


def encode_lock(record: LockRecord) -> tuple[bytes, bytes]:
    """(key, value): the queue's name in UTF-8, and version|kind|generation|holder|instance|token|reason in ASCII."""
    token = "" if record.token is None else record.token
    value = (
        f"{VERSION}|{record.kind.value}|{record.generation}|{_quoted(record.holder)}|{_quoted(record.instance_id)}|"
        f"{token}|{_quoted(record.reason)}"
    )
    return record.queue.encode(), value.encode("ascii")


def decode_lock(key: bytes | None, value: bytes | None) -> LockRecord | Undecodable:
    """A record of the lock log; a renewal and a release name a token, a claim may."""
    if key is None or value is None:
        return Undecodable("lock: no key or no value")
    try:
        queue = key.decode()
        parse_queue(queue)
        fields = value.decode("ascii").split("|")
        known = known_fields(fields, _FIELD_COUNT)
        if known is None:
            return wrong_form("lock", fields, _FIELD_COUNT)
        _, letter, generation, holder, instance_id, token, reason = known
        record = LockRecord(
            _KINDS[letter], queue, whole(generation), unquote(holder), unquote(instance_id),
            whole(token) if token else None, unquote(reason),
        )  # fmt: skip
    except (ValueError, KeyError) as exc:
        return Undecodable(f"lock: {exc}")
    if not record.holder or (record.token is None and record.kind is not LockKind.CLAIM):
        return Undecodable("lock: no holder, or no token where one is due")
    return record


def _quoted(text: str) -> str:
    return quote(text, safe=_SAFE, errors="replace")
