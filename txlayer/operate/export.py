"""Transactions whole, with the bytes of their messages, as JSON."""

from __future__ import annotations

import base64
from typing import Any

from txlayer.coordinator.overview import Standing
from txlayer.core.messages import user_headers
from txlayer.core.transaction import Content
from txlayer.operate import Json
from txlayer.operate.unsettled import standing_json

FORMAT = 1
"""Version of a line: a reader refuses one that it does not know."""


def whole_json(found: Standing, contents: list[Content], *, now_ms: int) -> Json:
    """One line of an export."""
    more = found.txn.more
    return {
        "format": FORMAT,
        **standing_json(found, now_ms=now_ms),
        "born_ms": found.txn.summary().born_ms,
        "moved_ms": (more.moved_ms or None) if more is not None else None,
        "messages": [_message_json(content) for content in contents],
    }


def _message_json(content: Content) -> Json:
    record: Any = content.record
    return {
        "index": content.index,
        "topic": content.topic,
        "partition": content.options.partition,
        "timestamp_ms": content.options.timestamp_ms,
        "key": bytes_json(record.key()),
        "value": bytes_json(record.value()),
        "headers": [
            {"name": name, "value": bytes_json(value)}
            for name, value in user_headers(record.headers())
        ],
    }


def bytes_json(raw: bytes | None) -> Json | None:
    """Bytes as base64, and as text where they are UTF-8; null for null."""
    if raw is None:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return {"base64": base64.b64encode(raw).decode("ascii"), "text": text}
