"""Fetches content that was dropped from memory, in sweeps. Never a rule of the protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from txlayer.adapters.ports import LogReader, TopicPartition
from txlayer.adapters.ranges import RUN_GAP_MAX, Range, read_ranges, runs_of
from txlayer.core import codec
from txlayer.core.ids import NONCE_LENGTH
from txlayer.core.messages import HalfHeader, Undecodable
from txlayer.core.transaction import Content, Transaction
from txlayer.errors import InvariantError


class DoubtRecord:
    """A half record as its content on the doubt topic gives it back."""

    __slots__ = ("_headers", "_key", "_value")

    def __init__(self, record: Any) -> None:
        self._key, self._value, self._headers = codec.decode_content(
            value=record.value(), headers=record.headers()
        )

    def key(self) -> bytes | None:
        """The user's key."""
        return self._key

    def value(self) -> bytes | None:
        """The user's value."""
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        """The half record's headers."""
        return self._headers

    def __len__(self) -> int:
        """Bytes of the value."""
        return len(self._value or b"")


def fetch_contents(
    reader: LogReader,
    wanted: Iterable[tuple[int, Transaction, int]],
    *,
    half_topic: str,
    doubt_topic: str,
    patience_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, list[Content]]:
    """The contents of transactions whose content is not in memory, by transaction key.

    `wanted` holds (partition, transaction, how many of its contents to fetch).

    One sweep in offset order: a seek per record would cost 1.2 ms each.

    Raises:
        InvariantError: a content is not where it must be.
        BrokerUnavailableError: nobody answered.
    """
    missing: dict[str, int] = {}
    found: dict[str, dict[int, Content]] = {}
    places: dict[TopicPartition, list[tuple[int, int]]] = {}
    ends: dict[str, tuple[TopicPartition, int]] = {}  # of those on doubt: read up to here
    for partition, txn, count in wanted:
        missing[txn.key] = count
        found[txn.key] = {}
        start = txn.extra().doubt_offset if txn.is_in_doubt else txn.first_offset
        length = count if txn.is_in_doubt else txn.last_offset - txn.first_offset + 1
        topic = doubt_topic if txn.is_in_doubt else half_topic
        places.setdefault((topic, partition), []).append((start, start + length))
        if txn.is_in_doubt:
            ends[txn.key] = ((topic, partition), start + length)

    def take(record: Any) -> None:
        content = _content_of(record, is_doubt=record.topic() == doubt_topic)
        if content is not None and content[0] in missing:
            found[content[0]][content[1].index] = content[1]

    rounds = {partition: runs_of(spans) for partition, spans in places.items()}
    read = partial(
        read_ranges, reader, on_record=take, is_still_ours=lambda: None, patience_s=patience_s, clock=clock
    )  # fmt: skip
    while any(rounds.values()):
        read({partition: runs.pop(0) for partition, runs in rounds.items() if runs})
    while short := {key: ends[key] for key in ends if len(found[key]) < missing[key]}:
        further = _further(reader, short.values(), patience_s=patience_s)
        if not further:
            break
        read(further)
        for key, (place, end) in short.items():
            ends[key] = (place, max(end, further[place][1]) if place in further else end)
    for key, count in missing.items():
        if len(found[key]) < count:
            raise InvariantError(
                f"{len(found[key])} of {count} contents of {key} are where they must be"
            )
    return {key: [contents[i] for i in sorted(contents)] for key, contents in found.items()}


def _further(
    reader: LogReader, short: Iterable[tuple[TopicPartition, int]], *, patience_s: float
) -> dict[TopicPartition, Range]:
    """What to read next, where contents on doubt stand further back than their number says.

    Markers that landed between the batches of their Kafka transaction took offsets.
    """
    starts: dict[TopicPartition, int] = {}
    for place, end in short:
        starts[place] = min(starts.get(place, end), end)
    ranges = {}
    for place, start in starts.items():
        stable = reader.watermarks(place, timeout_s=patience_s)[1]
        if start < stable:
            ranges[place] = (start, min(start + RUN_GAP_MAX, stable))
    return ranges


def _content_of(record: Any, *, is_doubt: bool) -> tuple[str, Content] | None:
    if is_doubt:
        parsed = codec.parse_doubt_key(record.key())
        if parsed is None or parsed[1] is None or (record.value() is None):
            return None
        held: Any = DoubtRecord(record)
    else:
        held = record
    raw = codec.half_header_of(held.headers())
    header = codec.decode_half_header(raw) if raw is not None else None
    if not isinstance(header, HalfHeader) or len(header.key) <= NONCE_LENGTH:
        return None
    offset = record.offset()
    for name, value in held.headers():
        if is_doubt and name == codec.ORIGIN_HEADER:
            origin = codec.decode_origin(value or b"")
            offset = offset if isinstance(origin, Undecodable) else origin[1]
    return header.key, Content(
        header.index, header.topic, offset, header.options, str(header.born_ms), held
    )
