"""A consumer's progress in a partition ↔ the metadata of its stored offset. Never which offset is finished (progress.py).

The metadata are ASCII within the broker's limit: `1|writer|flags|runs|attempts|parked`, or with up to three further fields
for failed replays, the last fencing token and keys that wait `2|…|parked|stuck|token|waiting`, with test vectors in
docs/explanation/protocol.md. Others may store offsets of the same group, so a text that is not ours is the
value `Foreign` and never an exception, and nothing that it says can keep a consumer busy for long.
"""

from __future__ import annotations

import zlib
from binascii import a2b_base64, b2a_base64
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

from txlayer.core.fields import NEXT_VERSION, VERSION, WHOLE_MAX, known_fields, whole

KEY_HASH_BYTES = 8
"""Of a key: BLAKE2b of that digest size. Two of a million keys meet once in thirty million years of parking."""
NO_KEY = bytes(KEY_HASH_BYTES)
"""Stands for null keys, and for a partition that is one chain."""
BITMAP = "~"
"""Before runs that are a compressed bitmap; not of base64url's letters."""
BITMAP_BYTES_MAX = 32 * 1024
"""A quarter of a million offsets; 4 KiB of foreign text could unpack to 4 MiB and keep a consumer busy for seconds."""
_ZLIB_BYTES_MIN = 11
"""No zlib stream of any use is shorter, and what zlib cannot compress grows by no more (under 16 KiB)."""
_FIELDS = 6
_PAUSED = "p"
_VARINT_BITS_MAX = 63

Run = tuple[int, int]
"""Offsets from the first to before the second."""


NO_KEYS: Mapping[bytes, int] = MappingProxyType({})
"""Nothing is parked, or stuck."""


class Attempts(NamedTuple):
    """What is remembered of a record whose handler failed."""

    ended_count: int
    first_at_s: int  # when the first one began, in whole seconds


class Waiting(NamedTuple):
    """Below `until` every record is finished but those of these keys, each from its offset on."""

    until: int
    keys: Mapping[bytes, int]
    """By hash of the key: offset of its first unfinished record."""


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """What the metadata of a stored offset say. That offset itself is the lowest unfinished one."""

    writer: str = ""
    """Transactional id of the dead-letter writer of who stored it; a successor initialises it first."""
    is_paused: bool = False
    """An operator paused the partition."""
    finished: tuple[Run, ...] = ()
    """Finished runs above the stored offset, ascending, apart from each other and from it."""
    attempts: Mapping[int, Attempts] = field(default_factory=dict)
    """By offset, of unfinished records."""
    parked: Mapping[bytes, int] = field(default_factory=dict)
    """By hash of the key: offset of the key's last dead letter."""
    stuck: Mapping[bytes, int] = field(default_factory=dict)
    """By hash of a parked key: offset of the dead letter whose replay failed; later ones of the key wait for it."""
    token: int | None = None
    """The highest fencing token that handlers of this queue were given; None: it is not known."""
    waiting: Waiting | None = None
    """What is unfinished, by key, where its runs would have no room."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Metadata that are not ours: start at the offset, and warn."""

    why: str


NOTHING = StoredProgress()
"""An offset stored without metadata."""


class Metadata(NamedTuple):
    """Encoded progress."""

    text: str
    is_cut: bool  # some finished runs had no room
    run_count: int = 0  # of those that had


def fixed_part(
    offset: int,
    *,
    writer: str = "",
    is_paused: bool = False,
    attempts: Mapping[int, Attempts],
    parked: Mapping[bytes, int],
    stuck: Mapping[bytes, int] = NO_KEYS,
    token: int | None = None,
    waiting: Waiting | None = None,
) -> tuple[str, str]:
    """What stands before and behind the runs; `attempts` and `waiting` of offsets from `offset` on, `stuck` of keys in `parked`."""
    assert writer.isascii(), writer
    assert "|" not in writer, writer
    flags = _PAUSED if is_paused else ""
    behind = f"|{_text(_attempts_bytes(offset, attempts))}|{_text(_parked_bytes(parked))}"
    if not stuck and token is None and waiting is None:
        return f"{VERSION}|{writer}|{flags}|", behind
    # A release that knows none of them reads this version, and passes over its further fields.
    behind += f"|{_text(_stuck_bytes(parked, stuck))}"
    if token is not None or waiting is not None:
        behind += f"|{'' if token is None else token}"
    if waiting is not None:
        behind += f"|{_text(_waiting_bytes(offset, waiting))}"
    return f"{NEXT_VERSION}|{writer}|{flags}|", behind


def encode(
    offset: int, finished: Sequence[Run], fixed: tuple[str, str], *, bytes_max: int
) -> Metadata:
    """The metadata with as many of the finished runs, lowest first, as `bytes_max` has room for.

    `fixed` is `fixed_part(offset, …)` and must itself fit.
    """
    before, behind = fixed
    runs, run_count = _encode_runs(offset, finished, bytes_max - len(before) - len(behind))
    return Metadata(f"{before}{runs}{behind}", run_count < len(finished), run_count)


def decode(offset: int, text: str) -> StoredProgress | Foreign:
    """What the metadata of the stored offset `offset` say; nothing when they are empty."""
    if not text:
        return NOTHING
    if not text.isascii():
        return Foreign("not ASCII")
    fields = text.split("|")
    if fields[0] not in (VERSION, NEXT_VERSION):
        return Foreign(f"unknown version {fields[0][:20]!r}")
    known = known_fields(fields, _FIELDS)
    if known is None:
        return Foreign(f"{len(fields)} fields where {_FIELDS} are due")
    _, writer, flags, runs, attempts, parked = known
    if flags not in ("", _PAUSED):
        return Foreign(f"unknown flags {flags[:20]!r}")
    try:
        finished, failed = _decode_runs(offset, runs), _decode_attempts(offset, attempts)
        if any(_is_in(at, finished) for at in failed):
            return Foreign("attempts of a finished record")
        found = _decode_parked(parked)
        stuck = _decode_stuck(fields[_FIELDS], found) if len(fields) > _FIELDS else {}
        token = _decode_token(fields[_FIELDS + 1]) if len(fields) > _FIELDS + 1 else None
        waiting = (
            _decode_waiting(offset, fields[_FIELDS + 2]) if len(fields) > _FIELDS + 2 else None
        )
        return StoredProgress(
            writer, flags == _PAUSED, finished, failed, found, stuck, token, waiting
        )
    except ValueError as exc:  # binascii.Error is one; zlib's is made one
        return Foreign(str(exc))


# --- runs -------------------------------------------------------------------------------------------------------------


def _encode_runs(offset: int, finished: Sequence[Run], room: int) -> tuple[str, int]:
    """(the field, how many runs had room)."""
    if not finished:
        return "", 0
    lengths, runs_fit = _run_lengths(offset, finished, room)
    as_runs = _text(lengths)
    if len(as_runs) <= _ZLIB_BYTES_MIN and runs_fit == len(finished):
        return as_runs, runs_fit
    as_bitmap, bits_fit = _bitmap(offset, finished, room - len(BITMAP))
    if (-bits_fit, len(as_bitmap)) < (-runs_fit, len(as_runs)):
        return as_bitmap, bits_fit
    return as_runs, runs_fit


def _run_lengths(offset: int, finished: Sequence[Run], room: int) -> tuple[bytearray, int]:
    """(varints of unfinished and finished lengths in turn, how many runs had room)."""
    bytes_max = room * 3 // 4
    out = bytearray()
    position = offset
    for count, (start, end) in enumerate(finished):
        size = len(out)
        _put(out, start - position)
        _put(out, end - start)
        if len(out) > bytes_max:
            del out[size:]
            return out, count
        position = end
    return out, len(finished)


def _bitmap(offset: int, finished: Sequence[Run], room: int) -> tuple[str, int]:
    """(compressed bitmap, how many runs had room)."""
    packed, count = _packed(offset, finished, BITMAP_BYTES_MAX)
    if count == 0 or len(packed) > room * 3 // 4:
        # As many as fit even if nothing can be compressed.
        packed, count = _packed(offset, finished, room * 3 // 4 - _ZLIB_BYTES_MIN)
    return (BITMAP + _text(packed), count) if count else ("", 0)


def _packed(offset: int, finished: Sequence[Run], bytes_max: int) -> tuple[bytes, int]:
    """Bit i of byte i // 8, from the lowest, is set when `offset` + i is finished; runs that end beyond are left out."""
    end_max = offset + 8 * bytes_max
    if finished[-1][1] <= end_max:
        count = len(finished)
    else:
        count = next((i for i, run in enumerate(finished) if run[1] > end_max), 0)
    if count == 0:
        return b"", 0
    bitmap = bytearray((finished[count - 1][1] - offset + 7) // 8)
    for start, end in finished[:count]:
        first, last = start - offset, end - offset - 1
        low, high = first >> 3, last >> 3
        if low == high:
            bitmap[low] |= (2 << (last & 7)) - (1 << (first & 7))
            continue
        bitmap[low] |= 256 - (1 << (first & 7))
        bitmap[low + 1 : high] = b"\xff" * (high - low - 1)
        bitmap[high] |= (2 << (last & 7)) - 1
    return zlib.compress(bitmap, 6), count


def _decode_runs(offset: int, text: str) -> tuple[Run, ...]:
    if text.startswith(BITMAP):
        return tuple(_runs_of_bitmap(offset, _unpacked(_bytes(text[len(BITMAP) :]))))
    lengths = list(_varints(_bytes(text)))
    if len(lengths) % 2 or 0 in lengths:
        raise ValueError("runs: an empty one, or one without its other half")
    if offset + sum(lengths) > WHOLE_MAX:
        raise ValueError("runs: beyond the highest offset")
    runs = []
    position = offset
    for unfinished, finished in zip(lengths[::2], lengths[1::2], strict=True):
        start = position + unfinished
        position = start + finished
        runs.append((start, position))
    return tuple(runs)


def _unpacked(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        bitmap = unpacking.decompress(packed, BITMAP_BYTES_MAX)
    except zlib.error as exc:
        raise ValueError(f"bitmap: {exc}") from exc
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError("bitmap: too long, cut off, or followed by something")
    return bitmap


def _runs_of_bitmap(offset: int, bitmap: bytes) -> Iterator[Run]:
    if not bitmap or not bitmap[-1] or bitmap[0] & 1 or offset + 8 * len(bitmap) > WHOLE_MAX:
        raise ValueError("bitmap: nothing finished at its end, or the stored offset finished")
    # As text, lowest bit first: it is searched at C speed, one look per run and not per offset.
    bits = bin(int.from_bytes(bitmap, "little"))[:1:-1]
    start = bits.find("1")
    while start >= 0:
        end = bits.find("0", start)
        yield offset + start, offset + (end if end >= 0 else len(bits))
        start = bits.find("1", end) if end >= 0 else -1


# --- attempts and parked keys -----------------------------------------------------------------------------------------


def _attempts_bytes(offset: int, attempts: Mapping[int, Attempts]) -> bytearray:
    out = bytearray()
    if not attempts:
        return out
    base = min(a.first_at_s for a in attempts.values())
    _put(out, base)
    previous = offset
    for at, (count, first_at_s) in sorted(attempts.items()):
        _put(out, at - previous)
        _put(out, count)
        _put(out, first_at_s - base)
        previous = at
    return out


def _decode_attempts(offset: int, text: str) -> dict[int, Attempts]:
    numbers = list(_varints(_bytes(text)))
    if not numbers:
        return {}
    if len(numbers) % 3 != 1 or len(numbers) == 1:
        raise ValueError("attempts: one without its numbers")
    base, found, at = numbers[0], {}, offset
    for delta, count, seconds in zip(numbers[1::3], numbers[2::3], numbers[3::3], strict=True):
        at += delta
        if at in found or count == 0 or max(at, base + seconds) > WHOLE_MAX:
            raise ValueError("attempts: twice, none, or beyond the highest number")
        found[at] = Attempts(count, base + seconds)
    return found


def _parked_bytes(parked: Mapping[bytes, int]) -> bytearray:
    out = bytearray()
    _put_keys(out, parked)
    return out


def _put_keys(out: bytearray, keys: Mapping[bytes, int]) -> None:
    for key_hash, number in sorted(keys.items()):
        out += key_hash
        _put(out, number)


def _decode_parked(text: str) -> dict[bytes, int]:
    return _decode_keys(_bytes(text), "parked")


def _decode_keys(raw: bytes, what: str) -> dict[bytes, int]:
    """Hashes of keys, each with a number."""
    found: dict[bytes, int] = {}
    at = 0
    while at < len(raw):
        key_hash = raw[at : at + KEY_HASH_BYTES]
        number, at = _take(raw, at + KEY_HASH_BYTES)
        if key_hash in found:
            raise ValueError(f"{what}: a key twice")
        found[key_hash] = number
    return found


def _stuck_bytes(parked: Mapping[bytes, int], stuck: Mapping[bytes, int]) -> bytearray:
    """Per stuck key: its place among the parked ones by hash, and the dead letter's offset."""
    out = bytearray()
    for place, key_hash in enumerate(sorted(parked)):
        if key_hash in stuck:
            _put(out, place)
            _put(out, stuck[key_hash])
    return out


def _decode_stuck(text: str, parked: Mapping[bytes, int]) -> dict[bytes, int]:
    hashes = sorted(parked)
    try:
        numbers = list(_varints(_bytes(text)))
        return {hashes[at]: n for at, n in zip(numbers[::2], numbers[1::2], strict=True)}
    except (ValueError, IndexError):
        return {}  # a later release's: what else the metadata say is worth more than this


def _decode_token(text: str) -> int | None:
    try:
        return whole(text)
    except ValueError:
        return None  # likewise


def _waiting_bytes(offset: int, waiting: Waiting) -> bytearray:
    """How far behind the stored offset it ends, and per key how far behind it the first unfinished record is."""
    out = bytearray()
    _put(out, waiting.until - offset)
    _put_keys(out, {key_hash: first - offset for key_hash, first in waiting.keys.items()})
    return out


def _decode_waiting(offset: int, text: str) -> Waiting | None:
    try:
        raw = _bytes(text)
        length, at = _take(raw, 0)
        keys = _decode_keys(raw[at:], "waiting")
        if offset + length > WHOLE_MAX or any(distance >= length for distance in keys.values()):
            return None
        return Waiting(offset + length, {name: offset + n for name, n in keys.items()})
    except ValueError:
        return None  # likewise; what it would call finished is handled again


def _is_in(offset: int, runs: Sequence[Run]) -> bool:
    place = bisect_right(runs, (offset, WHOLE_MAX))
    return place > 0 and offset < runs[place - 1][1]


# --- numbers and text -------------------------------------------------------------------------------------------------


def hash_of_key(key: bytes | None) -> bytes:
    """Eight bytes that stand for a key in stored metadata; zeros for a null key."""
    return NO_KEY if key is None else blake2b(key, digest_size=KEY_HASH_BYTES).digest()


def _put(out: bytearray, number: int) -> None:
    """Append a varint: seven bits a byte, lowest first, the eighth says that more follow (LEB128)."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _take(raw: bytes, at: int) -> tuple[int, int]:
    """(varint at that place, place behind it)."""
    number = shift = 0
    while at < len(raw) and shift < _VARINT_BITS_MAX:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return number, at
        shift += 7
    raise ValueError("a number is cut off or too long")


def _varints(raw: bytes) -> Iterator[int]:
    at = 0
    while at < len(raw):
        number, at = _take(raw, at)
        yield number


def _text(raw: bytes | bytearray) -> str:
    """base64url without padding (RFC 4648, section 5)."""
    return (
        b2a_base64(raw, newline=False)
        .rstrip(b"=")
        .replace(b"+", b"-")
        .replace(b"/", b"_")
        .decode("ascii")
    )


def _bytes(text: str) -> bytes:
    if "+" in text or "/" in text or "=" in text:
        raise ValueError("not base64url")
    padded = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
    return a2b_base64(padded, strict_mode=True)
