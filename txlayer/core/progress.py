"""A consumer's progress in a partition, and its encoding as the metadata of the stored offset.

Progress: which offsets are finished, and how often the unfinished ones failed. Unfinished records are in a dict in the order
of the log: each record costs one or two look-ups, however many the partition holds, and the lowest unfinished offset is
determined only when it is stored. Offsets that were never read (Kafka transaction markers, compacted records) count as finished.

If the finished runs outgrow the metadata, the metadata list the unfinished records instead: per key the first one, because the
records of a key end in order. So a key that fails for hours takes a few bytes, however many of its records wait.

The metadata are ASCII within the broker's limit: `1|writer|flags|runs|attempts|parked`, or with more fields for failed replays,
the last fencing token, waiting keys, rejected records, and requests whose ends have no room `2|…|parked|stuck|token|waiting||rejected|s`.
The test vectors are in docs/explanation/protocol.md. Other programs may store offsets of the same group: foreign text decodes to the value `Foreign`,
never raises, and cannot keep a consumer busy for long.

Measured (CPython 3.11, one core of a busy machine): read + finish take 0.27 to 0.4 µs a record; a snapshot takes 0.04 to 0.1 ms, 3.3 ms
with 5,000 of 10,000 finished at random, 0.35 ms with 100,000 finished behind one, and 0.5 ms where 40,000 of a key wait in front of what finished;
reading those again takes 0.1 µs each.
"""

import zlib
from binascii import a2b_base64, b2a_base64
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice, pairwise
from typing import NamedTuple

from txlayer.core.codec import NEXT_VERSION, VERSION, WHOLE_MAX, known_fields, whole
from txlayer.errors import ConfigError, InvariantError

KEY_HASH_BYTES = 8
"""BLAKE2b of the key with that digest size. Two of a million keys collide once in thirty million years of parking."""
NO_KEY = bytes(KEY_HASH_BYTES)  # represents null keys, and a partition that is one chain
LONE = bytes(KEY_HASH_BYTES - 1) + b"\x01"
"""Says among waiting keys that each unfinished record without a key is named by itself."""
BITMAP = "~"  # prefix of runs encoded as a compressed bitmap; not a base64url character
BITMAP_BYTES_MAX = 32 * 1024
"""A quarter of a million offsets. Without it, 4 KiB of foreign text could unpack to 4 MiB and keep a consumer busy for seconds."""
_BLOCK_COUNT = 500
"""Unfinished records that are looked at together: those without a gap between them are told by the first and the last."""
_ZLIB_BYTES_MIN = 11
"""Minimum length of a useful zlib stream, and the maximum growth of incompressible data (under 16 KiB)."""
_FIELDS = 6
_PAUSED = "p"
_WITHOUT_ENDS = "s"
_VARINT_BITS_MAX = 63

Run = tuple[int, int]  # offsets from the first number to before the second


class Attempts(NamedTuple):
    """The stored state of a record whose handler failed."""

    ended_count: int
    first_at_s: int  # when the first one began, in whole seconds
    is_rejected: bool = False  # by its handler: it needs no next attempt


class WaitingKeys(NamedTuple):
    """Below `until`, every record is finished except those of these keys, each from its offset on."""

    until: int
    keys: Mapping[bytes, int]  # offset of the key's first unfinished record, by hash of the key, or by `lone_name`

    def first(self, key: bytes | None, offset: int) -> int:
        """From where on records like this one are unfinished; `until` if none is."""
        is_lone = key is None and LONE in self.keys
        return self.keys.get(lone_name(offset) if is_lone else hash_of_key(key), self.until)


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """The decoded metadata of a stored offset. That offset itself is the lowest unfinished one."""

    writer: str = ""
    """Transactional id of the dead-letter writer of the instance that stored it; a successor initialises this id first."""
    is_paused: bool = False  # an operator paused the partition
    finished: tuple[Run, ...] = ()
    """Finished runs above the stored offset, ascending; gaps separate them from each other and from it."""
    attempts: Mapping[int, Attempts] = field(default_factory=dict)  # by offset, for unfinished records
    parked: Mapping[bytes, int] = field(default_factory=dict)
    """Offset of the key's last dead letter, by hash of the key."""
    stuck: Mapping[bytes, int] = field(default_factory=dict)
    """Offset of the dead letter whose replay failed, by hash of the parked key; later ones of the key wait for it."""
    token: int | None = None  # the highest fencing token that handlers of this queue received; None if unknown
    waiting: WaitingKeys | None = None  # the unfinished records by key, if their runs have no room
    is_without_ends: bool = False
    """Of requests: which of them have ended is not stored; their results in the same topic say it."""

    @property
    def tells_ends(self) -> bool:
        return not (self is NOTHING or self.is_without_ends)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Metadata that txlayer did not write: start at the offset, and warn."""

    why: str


NOTHING = StoredProgress()  # an offset stored without metadata


class Metadata(NamedTuple):
    """Encoded progress."""

    text: str
    is_cut: bool  # True: some finished runs had no room
    run_count: int = 0  # of the runs that had room


def fixed_part(offset: int, stored: StoredProgress, *, is_replay: bool = False) -> tuple[str, str]:
    """The fields before and behind the runs: all of `stored` but its runs.

    Offsets in `attempts` and `waiting` are `offset` or higher; keys in `stuck` are in `parked`. `is_replay`: of requests.
    """
    assert stored.writer.isascii(), stored.writer
    assert "|" not in stored.writer, stored.writer
    flags = _PAUSED if stored.is_paused else ""
    behind = f"|{_text(_attempts_bytes(offset, stored.attempts))}|{_text(_keys_bytes(stored.parked))}"
    named = "" if stored.waiting is None else _text(_waiting_bytes(offset, stored.waiting))
    token = "" if stored.token is None else f"{stored.token}"
    known = [_text(_stuck_bytes(stored.parked, stored.stuck)), token, *(["", named] if is_replay else [named, ""])]
    # A release that does not know these fields reads version 2 and ignores its additional fields.
    known += [_text(_rejected_bytes(stored.attempts)), _WITHOUT_ENDS if stored.is_without_ends else ""]
    more = "".join(f"|{each}" for each in known).rstrip("|")
    return f"{NEXT_VERSION if more else VERSION}|{stored.writer}|{flags}|", behind + more


def encode(offset: int, finished: Sequence[Run], fixed: tuple[str, str], *, bytes_max: int) -> Metadata:
    """The metadata with as many of the finished runs as fit into `bytes_max`, lowest first. `fixed` is `fixed_part(offset, …)` and must fit."""
    before, behind = fixed
    runs, run_count = _encode_runs(offset, finished, bytes_max - len(before) - len(behind))
    return Metadata(f"{before}{runs}{behind}", run_count < len(finished), run_count)


def decode(offset: int, text: str) -> StoredProgress | Foreign:
    """Decode the metadata of the stored offset `offset`. Empty metadata decode to `NOTHING`."""
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
        if len(fields) > _FIELDS + 4:
            failed |= _decode_rejected(fields[_FIELDS + 4], failed)
        if any(_is_in(at, finished) for at in failed):
            return Foreign("attempts of a finished record")
        found = _decode_keys(_bytes(parked), "parked")
        stuck = _decode_stuck(fields[_FIELDS], found) if len(fields) > _FIELDS else {}
        token = _decode_token(fields[_FIELDS + 1]) if len(fields) > _FIELDS + 1 else None
        waiting_fields = [field for field in fields[_FIELDS + 2 : _FIELDS + 4] if field]
        waiting = _decode_waiting(offset, waiting_fields[0]) if waiting_fields else None
        is_without_ends = fields[_FIELDS + 5 : _FIELDS + 6] == [_WITHOUT_ENDS]
        return StoredProgress(writer, flags == _PAUSED, finished, failed, found, stuck, token, waiting, is_without_ends)
    except ValueError as exc:  # binascii.Error is a ValueError; zlib.error is converted to one
        return Foreign(str(exc))


# --- runs -------------------------------------------------------------------------------------------------------------


def _encode_runs(offset: int, finished: Sequence[Run], room: int) -> tuple[str, int]:
    """(the field, number of runs that had room)."""
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
    """(varints of alternating unfinished and finished lengths, number of runs that had room)."""
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
    """(compressed bitmap, number of runs that had room)."""
    packed, count = _packed(offset, finished, BITMAP_BYTES_MAX)
    if count == 0 or len(packed) > room * 3 // 4:
        # As many as fit even if the bitmap cannot be compressed.
        packed, count = _packed(offset, finished, room * 3 // 4 - _ZLIB_BYTES_MIN)
    return (BITMAP + _text(packed), count) if count else ("", 0)


def _packed(offset: int, finished: Sequence[Run], bytes_max: int) -> tuple[bytes, int]:
    """Set bit i of byte i // 8, from the lowest, if `offset` + i is finished. Leaves out runs that end beyond `bytes_max`."""
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
    # As text, lowest bit first: str.find searches it at C speed, once per run and not per offset.
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
    for at, (count, first_at_s, _) in sorted(attempts.items()):
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


def _rejected_bytes(attempts: Mapping[int, Attempts]) -> bytes:
    """The places of the rejected records among those with attempts, as bits, from the lowest of the first byte on."""
    bits = sum(attempts[at].is_rejected << place for place, at in enumerate(sorted(attempts)))
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _decode_rejected(text: str, attempts: Mapping[int, Attempts]) -> dict[int, Attempts]:
    try:
        bits = int.from_bytes(_bytes(text), "little")
    except ValueError:
        return {}  # from a later release: these are handled again
    return {
        at: told._replace(is_rejected=True) for place, (at, told) in enumerate(attempts.items()) if bits >> place & 1
    }


def _keys_bytes(keys: Mapping[bytes, int]) -> bytearray:
    """Hashes of keys, each with a number."""
    out = bytearray()
    for key_hash, number in sorted(keys.items()):
        out += key_hash
        _put(out, number)
    return out


def _decode_keys(raw: bytes, what: str) -> dict[bytes, int]:
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
    """Per stuck key: its index among the parked hashes in order, and the dead letter's offset."""
    out = bytearray()
    for index, key_hash in enumerate(sorted(parked)):
        if key_hash in stuck:
            _put(out, index)
            _put(out, stuck[key_hash])
    return out


def _decode_stuck(text: str, parked: Mapping[bytes, int]) -> dict[bytes, int]:
    hashes = sorted(parked)
    try:
        numbers = list(_varints(_bytes(text)))
        return {hashes[at]: n for at, n in zip(numbers[::2], numbers[1::2], strict=True)}
    except (ValueError, IndexError):
        return {}  # from a later release: the other fields are worth more than this one


def _decode_token(text: str) -> int | None:
    try:
        return whole(text)
    except ValueError:
        return None  # the same


def _waiting_bytes(offset: int, waiting: WaitingKeys) -> bytearray:
    """Distance of `until` from the stored offset, and per key the distance of its first unfinished record."""
    out = bytearray()
    _put(out, waiting.until - offset)
    return out + _keys_bytes({key_hash: first - offset for key_hash, first in waiting.keys.items()})


def _decode_waiting(offset: int, text: str) -> WaitingKeys | None:
    try:
        raw = _bytes(text)
        length, at = _take(raw, 0)
        keys = _decode_keys(raw[at:], "waiting")
        if offset + length > WHOLE_MAX or any(distance >= length for distance in keys.values()):
            return None
        return WaitingKeys(offset + length, {name: offset + n for name, n in keys.items()})
    except ValueError:
        return None  # the same; records that it would call finished are handled again


def _is_in(offset: int, runs: Sequence[Run]) -> bool:
    index = bisect_right(runs, (offset, WHOLE_MAX))
    return index > 0 and offset < runs[index - 1][1]


# --- numbers and text -------------------------------------------------------------------------------------------------


def hash_of_key(key: bytes | None) -> bytes:
    """Eight bytes that represent a key in stored metadata; zeros for a null key."""
    return NO_KEY if key is None else blake2b(key, digest_size=KEY_HASH_BYTES).digest()


def lone_name(offset: int) -> bytes:
    """Eight bytes that represent one record, among the hashes of keys; the first bit is set."""
    return (1 << 63 | offset).to_bytes(KEY_HASH_BYTES)


def _put(out: bytearray, number: int) -> None:
    """Append a varint: seven bits a byte, lowest first; the eighth bit means that more bytes follow (LEB128)."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _take(raw: bytes, at: int) -> tuple[int, int]:
    """(varint at that index, index behind it)."""
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
    return b2a_base64(raw, newline=False).rstrip(b"=").replace(b"+", b"-").replace(b"/", b"_").decode("ascii")


def _bytes(text: str) -> bytes:
    if "+" in text or "/" in text or "=" in text:
        raise ValueError("not base64url")
    padded = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
    return a2b_base64(padded, strict_mode=True)


METADATA_BYTES_MAX = 4096
"""The broker's `offset.metadata.max.bytes`. The broker refuses longer metadata, and then no offset could be stored."""
_NEARLY_FULL = 7 / 8
"""Above this share no new record may start: records in flight will end, too, and their ends need room."""
_RUNS_SHARE = 1 / 4  # share that is reserved for runs, however many records fail and keys are parked
_WRITER_BYTES_MAX = 255  # with the separators between the fields; longer than any name that txlayer uses
_ATTEMPTS_BYTES_MAX = 12
"""Per record in base64url: 4 bytes of offset, 1 of count, 4 of seconds; a few more only if the values are very far apart."""
PARKED_BYTES_MAX = 19  # per parked key in base64url: 8 bytes of hash, 6 of offset
STUCK_BYTES_MAX = 11  # per failed replay in base64url: 2 bytes of index, 6 of offset
_STUCK_SHARE = 1 / 8  # maximum share of the runs' room for failed replays: many at once are rare
_WAITING_SHARE = 1 / 8  # Share for keys with waiting records. They use half of it, so that they always have room.
_WAITING_BYTES_MAX = 18  # per waiting key in base64url: 8 bytes of hash, at most 5 of distance

_FAR: Run = (WHOLE_MAX, WHOLE_MAX + 1)


class Snapshot(NamedTuple):
    """The offset and metadata to store now."""

    offset: int  # the lowest unfinished offset
    metadata: str
    is_full: (
        bool  # True: start no new record except the lowest unfinished one; its retries continue. Never of requests.
    )
    version: int  # pass it to `stored()`; it grows with every snapshot


class Progress:
    """Finished and failed offsets of one partition. Not thread-safe.

    `offset` and `stored` are the start: the stored offset and its decoded metadata. `parked_keys_max` is the number of
    keys that its snapshots may contain as parked. `ends_by_key`: the records of one key end in order;
    `orders_null_keys`: records without a key do so, too. `is_replay`: the records are requests.

    Raises:
        ConfigError: `metadata_bytes_max` has no room for this number of parked keys and a few failing records.
    """

    def __init__(
        self,
        offset: int,
        stored: StoredProgress = NOTHING,
        *,
        metadata_bytes_max: int = METADATA_BYTES_MAX,
        parked_keys_max: int = 0,
        ends_by_key: bool = False,
        orders_null_keys: bool = False,
        is_replay: bool = False,
    ) -> None:
        self._metadata_bytes_max = metadata_bytes_max
        self._is_replay = is_replay
        self._ends_by_key = ends_by_key
        self._orders_null_keys = orders_null_keys
        self._attempts_max = attempt_records_max(metadata_bytes_max=metadata_bytes_max, parked_keys_max=parked_keys_max)
        self.position = offset  # every record below it was read; other offsets below it are gaps
        self._unfinished: dict[int, bytes | None] = {}  # with their keys
        self._highest = offset - 1  # highest finished offset; no run is above it
        self._waiting: WaitingKeys | None = None  # until all of its records are read again
        if stored.waiting is not None and stored.waiting.until > offset:
            self._waiting = stored.waiting
            self._highest = stored.waiting.until - 1
        has_null_key = self._waiting is not None and self._waiting.keys.keys() & {NO_KEY, LONE} == {NO_KEY}
        self._is_in_order = ends_by_key and (orders_null_keys or not has_null_key)  # as the names of `waiting` suppose
        self._names_keys = False  # True if the last snapshot did
        self._ahead = list(stored.finished)  # finished before a restart and not read again
        self._attempts = dict(stored.attempts)  # of unfinished records, and of those not read again
        self.failed_until = max(stored.attempts, default=offset - 1) + 1
        """No record from this offset on failed before a restart."""
        self._admitted = dict.fromkeys(stored.attempts)  # they have room in every snapshot
        self._uncounted: dict[int, None] = {}  # counts that are not in a snapshot yet
        self._on_the_way: deque[tuple[int, int]] = deque()  # (version, offset) of counts
        self._version = 0
        self.is_changed = False  # True if a snapshot would differ from the last one

    @property
    def unfinished_count(self) -> int:
        """Number of records that were read and have not ended."""
        return len(self._unfinished)

    @property
    def lowest(self) -> int:
        """The lowest unfinished offset: no record below it is needed again."""
        for offset in self._unfinished:
            return offset
        return self._past_ahead()

    def read(self, offsets: Sequence[int], keys: Sequence[bytes | None] | None = None) -> Sequence[int]:
        """Note that records at these ascending offsets were read. Returns those to be handled: not read before, nor ended before a restart."""
        if not offsets:
            return offsets
        last = offsets[-1]
        known = dict.fromkeys(offsets) if keys is None else dict(zip(offsets, keys, strict=True))
        if offsets[0] < self.position or self._ahead or self._waiting:
            offsets = self._fresh(known)
            known = {offset: known[offset] for offset in offsets}
        self._unfinished.update(known)
        if last >= self.position:
            self.position = last + 1
            self._pass_ahead()
        return offsets

    def reach(self, position: int) -> None:
        """The reader is at `position`: offsets below it that were never read are gaps."""
        if position > self.position:
            self.position = position
            self._pass_ahead()
            self.is_changed = True

    def ended_before(self, runs: Sequence[Run]) -> None:
        """The records of these runs, which were not read yet, have ended: nothing else is known of what ended before."""
        self._ahead = list(runs)
        for offset in [at for at in self._attempts if _is_in(at, runs)]:
            self._forget(offset)
        self.is_changed |= bool(runs)

    def finish(self, offsets: Sequence[int]) -> None:
        """Mark these records as ended; InvariantError: one was never read, or has ended before. Those before it are finished."""
        if not offsets:
            return
        unfinished = self._unfinished
        try:
            for offset in offsets:
                del unfinished[offset]
        except KeyError as exc:
            raise InvariantError(f"offset {exc} ends twice, or was never read") from exc
        highest = max(offsets)
        if highest > self._highest:
            self._highest = highest
        self.is_changed = True
        if self._attempts:
            for offset in self._attempts.keys() & offsets:
                self._forget(offset)

    def failed(self, offset: int, *, started_ms: int, is_rejected: bool = False) -> Attempts:
        """Count a failed attempt at this record. The next one may start when `stored()` returns its offset; if `is_rejected`, there is none.

        With the count it is stored that the handler rejected the record. InvariantError: it is not unfinished. Nothing is changed.
        """
        if offset not in self._unfinished:
            raise InvariantError(f"an attempt at offset {offset} ends, which is not unfinished")
        count, first_at_s, _ = self._attempts.get(offset, (0, started_ms // 1000, False))
        self._attempts[offset] = attempts = Attempts(count + 1, first_at_s, is_rejected)
        self._uncounted[offset] = None
        self.is_changed = True
        return attempts

    def attempts(self, offset: int) -> Attempts | None:
        return self._attempts.get(offset)

    @property
    def counted(self) -> Container[int]:
        """Offsets of the records whose count of attempts has room: when they end, they leave it."""
        return self._admitted if self._tells_ends else ()

    @property
    def _tells_ends(self) -> bool:
        """False: keys are named, and their records end in another order now. What ends behind the first of a key cannot be told."""
        return self._waiting is None or self._is_in_order

    def key_of(self, offset: int) -> bytes | None:
        """The key of an unfinished record; None if there is none."""
        return self._unfinished.get(offset)

    def snapshot(
        self,
        known: StoredProgress = NOTHING,
        *,
        ended: Collection[int] = (),
        behind: Collection[int] = (),
        given_up: Collection[int] = (),
        knows_ends: bool = True,
    ) -> Snapshot:
        """What to store now, as if the records at the offsets `ended` had ended, too. `known`: what is not of single records.

        A count of attempts without room waits for a later snapshot, and the record's next attempt waits with it. Counts of
        the records `behind`, which wait for another record of their key, take at most half of the room, so that a failed
        batch leaves room for other keys. Records `given_up` need no next attempt and continue without a count. Ends
        without room are not stored yet; then `is_full` is True. Of requests no end is stored then, or without `knows_ends`:
        the next owner looks for their results.

        Raises:
            ConfigError: counts and parked keys alone do not fit, because the limit of the metadata was lowered.
        """
        self._version += 1
        self._admit(behind, given_up)
        attempts = {at: self._attempts[at] for at in self._admitted if at not in ended}
        offset = next((o for o in self._unfinished if o not in ended), self._past_ahead())

        def encoded(waiting: WaitingKeys | None) -> tuple[Metadata, bool, int]:
            """The metadata, whether they are full, and the offset up to which they describe what is finished."""
            start = offset if waiting is None else waiting.until
            finished = self._runs(ended, start)
            stored = replace(known, attempts=attempts, waiting=waiting)
            fixed = fixed_part(offset, stored, is_replay=self._is_replay)
            bytes_max, fixed_bytes = self._metadata_bytes_max, sum(map(len, fixed))
            if fixed_bytes > bytes_max:
                raise ConfigError(
                    name="metadata_bytes_max",
                    value=bytes_max,
                    expected=f"at least {fixed_bytes}, which is stored already",
                )
            found = encode(offset, finished, fixed, bytes_max=bytes_max)
            is_full = found.is_cut or len(found.text) > bytes_max * _NEARLY_FULL
            return found, is_full, finished[found.run_count][0] if found.is_cut else WHOLE_MAX

        is_told = knows_ends and (self._tells_ends or not self._is_replay)
        best = self._best(encoded, ended, offset) if is_told else None
        self.is_changed = False
        if best is not None and not (self._is_replay and best[0].is_cut):
            return Snapshot(offset, best[0].text, best[1] and not self._is_replay, self._version)
        without_ends = replace(known, attempts=attempts, is_without_ends=True)
        text = "".join(fixed_part(offset, without_ends, is_replay=True)) if attempts else ""
        return Snapshot(offset, text, is_full=False, version=self._version)

    def _best(
        self, encoded: Callable[[WaitingKeys | None], tuple[Metadata, bool, int]], ended: Collection[int], offset: int
    ) -> tuple[Metadata, bool, int]:
        """Choose finished runs or waiting keys, whichever has room; if both have, the same as last time."""
        if self._waiting is not None:
            metadata, is_full, end = encoded(self._still_waiting(self._waiting, ended))
            return metadata, is_full or not self._tells_ends, end
        by_key = by_runs = None
        if self._names_keys and (waiting := self._waiting_keys(ended, offset)) is not None:
            by_key = encoded(waiting)
        if by_key is None or by_key[1]:
            by_runs = encoded(None)
            if by_runs[1] and by_key is None:
                waiting = self._waiting_keys(ended, offset)
                by_key = None if waiting is None else encoded(waiting)
        found = [each for each in (by_key, by_runs) if each is not None]
        best = max(found, key=lambda each: (each[2], not each[1]))
        self._names_keys = best is by_key
        return best

    def _waiting_keys(self, ended: Collection[int], offset: int) -> WaitingKeys | None:
        """The first unfinished record of as many keys as have room, lowest first; None if there are none."""
        if not self._ends_by_key:
            return None
        count_max = int(self._metadata_bytes_max * _WAITING_SHARE) // _WAITING_BYTES_MAX
        firsts: dict[bytes | int | None, int] = {}
        lone: list[int] = []
        highest = max(self._highest, max(ended, default=0))
        until = self.position
        for at, key in self._unfinished.items():
            chain = at if key is None and not self._orders_null_keys else key
            if at not in ended and chain not in firsts:
                # The first one alone needs two further names.
                if at > highest or len(firsts) + 2 * bool(lone or chain is at) >= count_max:
                    until = at
                    break
                firsts[chain] = at
                if chain is at:
                    lone.append(at)
        if until <= offset or not firsts:
            return None
        # A release that does not know `LONE` takes records without a key from the first of them on for unfinished.
        names = {LONE: lone[0], NO_KEY: lone[0]} if lone else {}
        for chain, first in firsts.items():
            names[lone_name(first) if isinstance(chain, int) else hash_of_key(chain)] = first
        return WaitingKeys(until, names)

    def _still_waiting(self, waiting: WaitingKeys, ended: Collection[int]) -> WaitingKeys:
        """For records that were read again since the restart, the current state; for the others, the stored one."""
        firsts: dict[bytes | None, int] = {}
        found = {}
        for at, key in self._unfinished.items():
            if at not in ended:
                firsts.setdefault(key, at)
                if key is None and LONE in waiting.keys:
                    found[lone_name(at)] = at
        found |= {hash_of_key(key): first for key, first in firsts.items()}
        keys = {name: found.get(name, max(first, self.position)) for name, first in waiting.keys.items()}
        return WaitingKeys(waiting.until, {n: at for n, at in keys.items() if at < waiting.until})

    def stored(self, version: int) -> list[int]:
        """The snapshot of that version is stored. Returns the records whose next attempt may start."""
        released = []
        while self._on_the_way and self._on_the_way[0][0] <= version:
            _, offset = self._on_the_way.popleft()
            if offset in self._attempts:
                released.append(offset)
        return released

    def _admit(self, behind: Collection[int], given_up: Collection[int]) -> None:
        """Give counts their room. They keep it: a count that was stored must not be missing later."""
        for offset in [at for at in self._attempts if self._is_gone(at)]:
            self._forget(offset)
        for offset in list(self._uncounted):
            if offset not in self._admitted:
                count_max = self._attempts_max // 2 if offset in behind else self._attempts_max
                if len(self._admitted) < count_max:
                    self._admitted[offset] = None
                elif offset not in given_up:
                    continue
            del self._uncounted[offset]
            self._on_the_way.append((self._version, offset))

    def _is_gone(self, offset: int) -> bool:
        # It failed before a restart, and the log no longer contains it.
        return offset < self.position and offset not in self._unfinished

    def _forget(self, offset: int) -> None:
        if self._attempts.pop(offset, None) is not None:
            self._admitted.pop(offset, None)
            self._uncounted.pop(offset, None)

    def _runs(self, ended: Collection[int], start: int) -> list[Run]:
        """Finished runs from `start` on; a run that begins below it is left out."""
        highest = max(self._highest, max(ended, default=0))
        left = (offset for offset in self._unfinished if offset not in ended) if ended else iter(self._unfinished)
        runs: list[Run] = []
        last: list[int] = []
        while part := list(islice(left, _BLOCK_COUNT)):
            block = last + part
            if block[-1] - block[0] >= len(block):
                gaps = ((at, after) for at, after in pairwise(block) if after > at + 1)
                runs += [(at + 1, after) for at, after in gaps if start <= at <= highest]
            last = block[-1:]
            if last[0] > highest:
                break  # records above it were read and have not ended
        else:
            if last and start <= last[0] < self.position - 1:
                runs.append((last[0] + 1, self.position))
        for first, end in self._ahead:
            if runs and runs[-1][1] == first:
                runs[-1] = (runs[-1][0], end)
            elif first >= start:
                runs.append((first, end))
        return runs

    def _past_ahead(self) -> int:
        if self._ahead and self._ahead[0][0] <= self.position:
            return self._ahead[0][1]
        return self.position

    def _fresh(self, known: Mapping[int, bytes | None]) -> list[int]:
        fresh = []
        ahead = iter(self._ahead)
        start, end = next(ahead, _FAR)
        waiting = self._waiting
        until = 0 if waiting is None else waiting.until
        for offset, key in known.items():
            if offset < until:
                is_unfinished = waiting is not None and waiting.first(key, offset) <= offset
            else:
                while offset >= end:
                    start, end = next(ahead, _FAR)
                is_unfinished = offset < start
            if is_unfinished and offset >= self.position:
                fresh.append(offset)
        return fresh

    def _pass_ahead(self) -> None:
        """Drop runs finished before the restart that are behind the reader now: they count as gaps."""
        position = self.position
        if self._waiting is not None and position >= self._waiting.until:
            self._waiting = None
            self.is_changed |= not self._is_in_order
        passed = 0
        while passed < len(self._ahead) and self._ahead[passed][0] < position:
            passed += 1
        if not passed:
            return
        end = self._ahead[passed - 1][1]
        self._highest = max(self._highest, min(end, position) - 1)
        rest = [(position, end)] if end > position else []
        self._ahead[:passed] = rest


def attempt_records_max(*, metadata_bytes_max: int, parked_keys_max: int) -> int:
    """Failing records of a partition whose attempts can be counted at the same time; others wait. ConfigError: there is no room for even one."""
    room = metadata_bytes_max * (1 - _RUNS_SHARE) - _WRITER_BYTES_MAX
    stuck = max(parked_keys_max * STUCK_BYTES_MAX - metadata_bytes_max * _STUCK_SHARE, 0)
    count = int(room - parked_keys_max * PARKED_BYTES_MAX - stuck) // _ATTEMPTS_BYTES_MAX
    if count < 1:
        raise ConfigError(
            name="metadata_bytes_max",
            value=metadata_bytes_max,
            expected=f"room for {parked_keys_max} parked keys and a failing record",
        )
    return count
