"""Transactions whole, with the bytes of their messages, as JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from txlayer.adapters.ports import CoordinatorConnections
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.contents import fetch_contents
from txlayer.coordinator.recovery import STABLE_PATIENCE_S
from txlayer.core.messages import user_headers
from txlayer.core.transaction import Content
from txlayer.operate import Json
from txlayer.operate.overview import UnsettledTransaction
from txlayer.operate.unsettled import unsettled_json

FORMAT = 1
"""Version of a line: a reader refuses one that it does not know."""


def whole_json(found: UnsettledTransaction, contents: list[Content], *, now_ms: int) -> Json:
    """One line of an export."""
    more = found.txn.more
    return {
        "format": FORMAT,
        **unsettled_json(found, now_ms=now_ms),
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


FETCH_COUNT = 100
"""Transactions whose contents are in memory at once."""


def read_with_contents(
    config: CoordinatorConfig,
    connections: CoordinatorConnections,
    found: Sequence[UnsettledTransaction],
) -> Iterator[tuple[UnsettledTransaction, list[Content]]]:
    """Each with its messages in the order of their index, in the order of `found`.

    What is settled meanwhile is given all the same: its records stay for as long as the topics keep them (a day on doubt).

    Raises:
        InvariantError: a content is not there any more; those before it were given.
        BrokerUnavailableError, NotAuthorisedError: they cannot be read.
    """
    with closing(connections.make_reader("read_committed")) as reader:
        for start in range(0, len(found), FETCH_COUNT):
            part = found[start : start + FETCH_COUNT]
            # Nobody has a half record of one that stands on an op line's word alone.
            wanted = [(s.partition, s.txn, s.txn.seen) for s in part if s.txn.seen]
            contents = fetch_contents(
                reader,
                wanted,
                half_topic=config.topics.half,
                doubt_topic=config.topics.doubt,
                patience_s=STABLE_PATIENCE_S,
            )
            for each in part:
                yield each, contents.get((each.partition, each.txn.key), [])
