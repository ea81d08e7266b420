"""What the doubt topic says of records kept aside. Never their bytes, only how many: they may be anybody's."""

from __future__ import annotations

from typing import Any, NamedTuple

from txlayer.core import codec
from txlayer.core.messages import HalfHeader, Headers, OpMessage, Origin


class Aside(NamedTuple):
    """One record of half or op, or one line of an op record, that was kept aside."""

    origin: Origin
    line: int | None  # of an op record; None: the whole record
    reason: str  # a ParkReason's value, or what a later version wrote
    why: str
    key: str  # "id/nonce" that it names; "" when it names none
    kept_ms: int  # when it came to doubt
    place: Origin  # where its bytes are on doubt
    key_bytes: int | None  # of the record; None: its key is null
    value_bytes: int | None
    header_names: tuple[str, ...]


class AsideFold:
    """Takes the records of doubt, in offset order within a partition; passes over those of transactions.

    Memory: the newest word under each key, some 1 KB.
    """

    def __init__(self) -> None:
        self._asides: dict[tuple[Origin, int | None], Aside] = {}

    def fold(self, record: Any) -> None:
        """One record of doubt; a null value ends what stood under its key."""
        parsed = codec.parse_kept_aside_key(record.key())
        if parsed is None:
            return
        if record.value() is None:
            self._asides.pop(parsed, None)
        else:
            self._asides[parsed] = _aside(parsed, record)

    def asides(self) -> list[Aside]:
        """What is kept aside now, in the order of the first word about each."""
        return list(self._asides.values())


def _aside(parsed: tuple[Origin, int | None], record: Any) -> Aside:
    origin, line = parsed
    key, value, headers = codec.decode_content(value=record.value(), headers=record.headers())
    # Ours is the last one; the record may have brought another of that name.
    own = headers.pop()[1] if headers and headers[-1][0] == codec.WHY_HEADER else None
    reason, why = codec.decode_why(own)
    return Aside(
        origin, line, reason, why,
        key=_named_by(line, value, headers),
        kept_ms=record.timestamp()[1],
        place=Origin(record.topic(), record.partition(), record.offset()),
        key_bytes=None if key is None else len(key),
        value_bytes=None if value is None else len(value),
        header_names=tuple(name for name, _ in headers),
    )  # fmt: skip


def _named_by(line: int | None, value: bytes | None, headers: Headers) -> str:
    """The transaction that a line, or a header `txl`, names where it can be read."""
    if line is not None:
        op = codec.decode_op((value or b"").decode("ascii", "replace"))
        return op.key if isinstance(op, OpMessage) else ""
    raw = codec.half_header_of(headers)
    header = None if raw is None else codec.decode_half_header(raw)
    return header.key if isinstance(header, HalfHeader) else ""
