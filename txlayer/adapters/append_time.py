"""When the broker appended a record: the one clock that a log has. Never another's word for it."""

from __future__ import annotations

from typing import Any

from txlayer.errors import TopicMismatchError

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
