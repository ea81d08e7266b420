"""Encodes and decodes the keys, values and headers of txlayer's records. `core/dead_letters.py` has the headers of dead letters.

Decoders do not raise on malformed bytes: they return `Undecodable`. docs/explanation/protocol.md specifies the formats,
with test vectors for other languages.
"""

import re
from collections.abc import Container, Iterable
from sys import intern
from typing import Any
from urllib.parse import quote, unquote

from txlayer.core.messages import (
    GROUP_LENGTH_MAX,
    NO_OPTIONS,
    NONCE_LENGTH,
    TAGS_HEADER,
    TXN_ID_LENGTH_MAX,
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    Headers,
    OpMessage,
    OrderMode,
    Origin,
    ParkReason,
    QuestionDetails,
    Resolution,
    Source,
    Undecodable,
    UnresolvedAction,
    is_topic_name,
    user_headers,
)

VERSION = "1"  # version of every record that this release writes
NEXT_VERSION = "2"
"""Version that the next release may write: the fields that this release knows, and further fields behind them, which it ignores.

So old and new processes can read each other's records during a rolling upgrade. A release that must change more first reads
the new format; only the release after it writes it.
"""

TIMED_VERSION = "3"
"""Version of half records and summaries that hold a time: a release that does not know times keeps them, and forwards nothing early."""
PARTITION_MAX = 2**31 - 1  # Kafka's maximum for a partition number; the client raises for a higher one
HEADER_BYTES = 6  # upper bound of the overhead of a record's header with lengths below 2 MB
WHOLE_MAX = 2**63 - 1  # Kafka's maximum for offsets and times

WHOLE_LENGTH_MAX = 19
KEY_LENGTH_MAX = TXN_ID_LENGTH_MAX + 1 + NONCE_LENGTH
KEY_HASH = re.compile(r"[0-9a-f]{16}")


def is_key(key: str) -> bool:
    """True if `key` has the form id/nonce."""
    return NONCE_LENGTH + 1 < len(key) <= KEY_LENGTH_MAX and key[-NONCE_LENGTH - 1] == "/" and key.count("/") == 1


def _is_group(group: str) -> bool:
    return 0 < len(group) <= GROUP_LENGTH_MAX


def whole(text: str) -> int:
    """Parse a whole number of at most 63 bits; ValueError: the text is not such a number."""
    # int() alone also accepts signs, blanks, underscores and digits of other scripts; txlayer writes none of them.
    if not (text.isascii() and text.isdigit()) or len(text) > WHOLE_LENGTH_MAX:
        raise ValueError(f"{text[:20]!r} is no whole number")
    number = int(text)
    if number > WHOLE_MAX:
        raise ValueError(f"{text!r} is no whole number")
    return number


def checked_key_hash(text: str) -> str:
    """Return the hash of an ordering key if it is well formed; ValueError: it is not."""
    if KEY_HASH.fullmatch(text) is None:
        raise ValueError(f"{text[:20]!r} is no key hash")
    return text


def known_fields(fields: list[str], count: int) -> list[str] | None:
    """The `count` fields of a record that this release knows. None: the version is unknown, or the number of fields is wrong."""
    if fields[0] == VERSION:
        return fields if len(fields) == count else None
    return fields[:count] if fields[0] == NEXT_VERSION and len(fields) >= count else None


def malformed(what: str, fields: list[str], count: int) -> Undecodable:
    """The reason why `known_fields` returned None for `fields`."""
    if fields[0] not in (VERSION, NEXT_VERSION):
        return Undecodable(f"{what}: unknown version {fields[0][:20]!r}")
    return Undecodable(f"{what}: {len(fields)} fields where {count} are due")


HALF_HEADER = "txl"  # the only header of a half record; it packs all fields
HALF_HEADER_BYTES_MAX = 2_048
"""A longer one is out of form. Ours have 1,920 at most; doubt keeps the header of a content that it does not take whole."""
ID_HEADER = "txl-id"  # on a forwarded record: the transaction id
ORIGIN_HEADER = "txl-origin"  # on a forwarded record: half partition:offset|index/count|born
GROUP_HEADER = "txl-group"  # on a forwarded record whose half record asks for it: the producer group
KEY_HEADER = "txl-key"  # on a doubt content: the user's key; absent if the key is null
NULL_HEADER = "txl-null"  # on a doubt content whose user's value is null (on doubt, a null value would be a tombstone)
CUT_HEADER = "txl-cut"  # on a doubt content that doubt did not take whole: the reason, and its size in half in bytes
TAGS_PART_HEADER, QUERY_HEADER, CONTENT_HEADER = "txl-tags", "txl-query", "txl-content"
"""On a question, beside `txl-key` and headers of the user's: the first message's tags, the user's id, the first message's value."""
LEFT_OUT_HEADER = "txl-left-out"
"""On a question: the parts that it should carry and does not, as in `check_with`, with commas between."""
WHY_HEADER = "txl-why"  # on a doubt record that holds a quarantined record: the reason and the explanation
END_HEADER = "txl-end"
"""On the null value of a summary whose transaction was abandoned after its commit: A, as in the op line. If messages were forwarded
before, the time follows below which they all are."""

_ORIGIN = "origin"
_RESOLUTIONS = {r.value: r for r in Resolution}
_ABANDON = "A"
_SOURCES = {s.value: s for s in Source}
_ORDERS = {o.value: o for o in OrderMode}
_UNRESOLVED = {u.value: u for u in UnresolvedAction}
_GROUP_NAMED = "g1"
_NUMBERS = {"i": "immunity_ms", "n": "partition", "t": "timestamp_ms", "m": "key_murmur"}
"""The options of a half message that are numbers, by their letters and in their order; `d`, the time, comes before all others."""
_HALF_FIELDS = 7
_OP_FIELDS, _TIMED_OP_FIELDS = 9, 10
_WITH_TIME = frozenset({Resolution.COMMIT.value, Resolution.UNKNOWN.value})
_CHECK_FIELDS = 9
_CHECK_KINDS = {k.value: k for k in CheckKind}
_SUMMARY_FIELDS, _TIMED_SUMMARY_FIELDS = 17, 18
_GROWING = "+"  # behind the state: one that is not known, to a release that does not know it
_WHY_LENGTH_MAX = 500
_END = re.compile(rb"A[0-9]{0,19}")
_CUT_BYTES = re.compile(rb" ([0-9]{1,18}) bytes")


# --- half -------------------------------------------------------------------------------------------------------------


def encode_options(options: HalfOptions) -> str:
    """Encode options as one letter and a value each, separated by commas; "" if none is set."""
    # First: `half_header` looks for it.
    parts = [] if options.deliver_at_ms is None else [f"d{options.deliver_at_ms}"]
    if options.key_hash is not None:
        parts.append("k" + options.key_hash)
    if options.order is OrderMode.PREPARE:
        parts.append("op")
    for letter, name in _NUMBERS.items():
        if (number := getattr(options, name)) is not None:
            parts.append(f"{letter}{number}")
    if options.check_with:
        parts.append("a" + options.check_with)
    if options.query_id is not None:
        parts.append("q" + quote(options.query_id, safe=""))
    if options.unresolved is not None:
        parts.append("u" + options.unresolved.value)
    if options.is_group_named:
        parts.append(_GROUP_NAMED)
    return ",".join(parts)


def encode_half_header(header: HalfHeader) -> bytes:
    """The value of the header `txl`: version|id/nonce|group|topic|index/count|born|options, ASCII."""
    return half_header(*header[:-1], encode_options(header.options))


def half_header(key: str, group: str, topic: str, index: int, count: int, born_ms: int, options: str) -> bytes:
    """`encode_half_header` without a `HalfHeader`, for the producer, which calls it once per message."""
    version = TIMED_VERSION if options[:1] == "d" else VERSION
    return f"{version}|{key}|{group}|{topic}|{index}/{count}|{born_ms}|{options}".encode("ascii")


def decode_options(text: str) -> HalfOptions:
    """Decode options. Letters of later versions are ignored. ValueError: a value is not a number (callers turn it into `Undecodable`)."""
    if not text:
        return NO_OPTIONS
    found: dict[str, Any] = {}
    for part in text.split(","):
        letter, value = part[:1], part[1:]
        if letter == "k":
            found["key_hash"] = checked_key_hash(value)
        elif letter == "o":
            found["order"] = OrderMode.PREPARE if value == "p" else OrderMode.COMMIT
        elif letter == "u":
            found["unresolved"] = _UNRESOLVED.get(value)
        elif letter == "g":
            found["is_group_named"] = part == _GROUP_NAMED
        elif letter == "d":
            found["deliver_at_ms"] = whole(value)
        elif letter in _NUMBERS:
            found[_NUMBERS[letter]] = whole(value)
        elif letter == "a":
            found["check_with"] = intern(value) if len(value) <= CHECK_WITH_LENGTH_MAX else ""
        elif letter == "q":
            found["query_id"] = unquote(value) if len(value) <= QUERY_ID_LENGTH_MAX else None
    if found.get("partition", 0) > PARTITION_MAX:
        raise ValueError("no such partition")
    return HalfOptions(**found)


def decode_half_header(raw: bytes) -> HalfHeader | Undecodable:
    if len(raw) > HALF_HEADER_BYTES_MAX:
        return Undecodable(f"half header: {len(raw)} bytes, more than {HALF_HEADER_BYTES_MAX}")
    try:
        text = raw.decode("ascii")
        fields = text.split("|")
        known = known_fields(fields, _HALF_FIELDS)
        if fields[0] == TIMED_VERSION and len(fields) == _HALF_FIELDS:
            known = fields
        if known is None:
            return malformed("half", fields, _HALF_FIELDS)
        # An op record that repeats an id or group with a line feed would contain an additional line.
        if "\n" in text:
            return Undecodable("half header: line feed")
        _, key, group, topic, part, born, options = known
        index, _, count = part.partition("/")
        header = HalfHeader(key, group, topic, whole(index), whole(count), whole(born), decode_options(options))
    except (ValueError, AttributeError) as exc:
        return Undecodable(f"half header: {exc}")
    if fields[0] == TIMED_VERSION and header.options.deliver_at_ms is None:
        return malformed("half", fields, _HALF_FIELDS)
    # A topic name that Kafka refuses would stop every caller that asks the broker about it.
    if not (is_key(key) and _is_group(group) and is_topic_name(topic) and 0 <= header.index < header.count):
        return Undecodable("half header: id, group, topic or index out of form")
    return header


PlainTail = tuple[str, str, str]
"""(producer group, real topic, born) of the half header of a single message; strings that repeat are interned."""

PlainOptions = tuple[HalfOptions, int]
"""Options that contain only an ordering key, and the key's checksum, which determines the partition."""

PLAIN_TAILS_MAX = 1_000  # tails in the cache: under load, many transactions are born in one millisecond
PLAIN_OPTIONS_MAX = 10_000  # ordering keys whose options are in the cache
BORN_DIGITS_MAX = 19  # milliseconds with fewer digits fit into 64 bits
PLAIN_START = f"{VERSION}|"  # how a header begins that `PlainHeaders` may read

PLAIN_OPTIONS_LENGTH = 17
_PLAIN_OPTIONS = re.compile(f"k{KEY_HASH.pattern}")


class PlainHeaders:
    """A quicker way to read the `txl` header of a single message without options, or with an ordering key only.

    It lets through only what `decode_half_header` reads in the same way; a test compares the two. It keeps parsed ends of
    headers. All ledgers of a process may share it: what it holds depends on the known topics alone.

    Attributes:
        tails: by the text behind the key, without options. Hot paths read it.
        options: by their text. Hot paths read it.
    """

    __slots__ = ("_topics", "options", "tails")

    def __init__(self, topics: Container[str]) -> None:
        self._topics = topics
        self.tails: dict[str, PlainTail] = {}
        self.options: dict[str, PlainOptions] = {}

    def parse_tail(self, tail: str) -> PlainTail | None:
        """Parse the part of a header behind the key, for a single message without options and a known topic; else None."""
        try:
            _, group, topic, part, born, options = tail.split("|")
        except ValueError:
            return None
        if not (
            part == "0/1"
            and not options
            and topic in self._topics
            and 0 < len(group) <= GROUP_LENGTH_MAX
            and born.isdigit()
            and len(born) < BORN_DIGITS_MAX
            and "\n" not in tail
        ):
            return None
        if len(self.tails) >= PLAIN_TAILS_MAX:
            self.tails.clear()
        self.tails[tail] = plain = (intern(group), intern(topic), born)
        return plain

    def parse_options(self, asked: str) -> PlainOptions:
        """Options that contain only an ordering key, with the key's checksum; ValueError: they contain something else."""
        if not are_plain_options(asked):
            raise ValueError("options that are not plain")
        if len(self.options) >= PLAIN_OPTIONS_MAX:
            self.options.clear()
        key_hash = asked[1:]
        self.options[asked] = plain = HalfOptions(key_hash), int(key_hash[:8], 16)
        return plain


def are_plain_options(asked: str) -> bool:
    """True for the text of no options, or of an ordering key only."""
    return not asked or _PLAIN_OPTIONS.fullmatch(asked) is not None


def half_header_of(headers: Headers | None) -> bytes | None:
    """The value of `txl` among a record's headers; None if it is absent."""
    for name, value in reversed(headers or ()):
        if name == HALF_HEADER:
            return value
    return None


def half_of(headers: Headers | None) -> HalfHeader | None:
    """The half header of a record with these headers; None: it has none that can be read."""
    raw = half_header_of(headers)
    half = None if raw is None else decode_half_header(raw)
    return half if isinstance(half, HalfHeader) else None


def begins_transaction(raw: bytes) -> bool:
    """True if the record of this half header is the first of its transaction. Only for statistics: the header is not checked."""
    fields = raw.split(b"|", 5)
    return len(fields) > 4 and fields[4].startswith(b"0/")


# --- op ---------------------------------------------------------------------------------------------------------------


def encode_op(op: OpMessage) -> str:
    """Encode one line: version|resolution|id/nonce|group|last half offset|born|source|check number|reason, ASCII; a time behind them."""
    letter = _ABANDON if op.is_abandon else op.resolution.value
    check = "" if op.check_number is None else str(op.check_number)
    reason = quote(op.reason, safe=" ", errors="replace") if op.reason else ""
    version, time = (VERSION, "") if op.time_ms is None else (NEXT_VERSION, f"|{op.time_ms}")
    return (
        f"{version}|{letter}|{op.key}|{op.producer_group}|{op.last_offset}|{op.born_ms}|{op.source.value}|"
        f"{check}|{reason}{time}"
    )


PRODUCER_COMMIT, PRODUCER_END = f"{VERSION}|{Resolution.COMMIT.value}|", f"|{Source.PRODUCER.value}||"
"""How a line of `producer_op` begins if it commits, and how it ends. The ledger's fast path looks for them."""
KEY_INDEX = len(PRODUCER_COMMIT)  # index of the transaction's key in an op line


def producer_op(letter: str, key: str, group: str, last_offset: int, born_ms: int) -> str:
    """`encode_op` of a producer's own resolution without an `OpMessage`; called once per transaction."""
    return f"{VERSION}|{letter}|{key}|{group}|{last_offset}|{born_ms}{PRODUCER_END}"


def encode_ops(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("ascii")


def split_ops(raw: bytes | None) -> list[str] | Undecodable:
    """The lines of an op record's value, still encoded (`decode_op` decodes each in its turn)."""
    if not raw:
        return Undecodable("op record without a value")
    try:
        return raw.decode("ascii").split("\n")
    except UnicodeDecodeError as exc:
        return Undecodable(f"op record: {exc}")


def decode_op(line: str) -> OpMessage | Undecodable:
    fields = line.split("|")
    known = known_fields(fields, _OP_FIELDS)
    if known is None:
        return malformed("op", fields, _OP_FIELDS)
    _, letter, key, group, last, born, source, check, reason = known
    # Of another line, a further field is one of a later release.
    time = fields[_OP_FIELDS] if len(fields) >= _TIMED_OP_FIELDS and letter in _WITH_TIME else ""
    is_abandon = letter == _ABANDON
    resolution = Resolution.ROLLBACK if is_abandon else _RESOLUTIONS.get(letter)
    who = _SOURCES.get(source)
    if resolution is None or who is None or not is_key(key) or not _is_group(group):
        return Undecodable("op line: resolution, source, id or group out of form")
    try:
        return OpMessage(
            resolution,
            key,
            group,
            whole(last),
            whole(born),
            who,
            whole(check) if check else None,
            is_abandon,
            unquote(reason),
            whole(time) if time.isdigit() else None,
        )
    except ValueError as exc:
        return Undecodable(f"op line: {exc}")


# --- check ------------------------------------------------------------------------------------------------------------


def encode_check(check: CheckRecord) -> bytes:
    """Encode one line: version|kind|id/nonce|group|partition|last half offset|born|number|text, ASCII."""
    text = quote(check.text, safe=" ,", errors="replace")
    return (
        f"{VERSION}|{check.kind.value}|{check.key}|{check.producer_group}|{check.partition}|"
        f"{check.last_offset}|{check.born_ms}|{check.number}|{text}"
    ).encode("ascii")


def check_key(check: CheckRecord) -> bytes:
    """The record key: the transaction id, or the group if there is no id."""
    return (check.key[: -NONCE_LENGTH - 1] or check.producer_group).encode("ascii")


def decode_check(raw: bytes | None) -> CheckRecord | Undecodable:
    try:
        fields = (raw or b"").decode("ascii").split("|")
        known = known_fields(fields, _CHECK_FIELDS)
        if known is None:
            return malformed("check", fields, _CHECK_FIELDS)
        _, letter, key, group, partition, last, born, number, text = known
        kind = _CHECK_KINDS.get(letter)
        is_key_due = bool(key) or kind is not CheckKind.LIMIT
        if kind is None or not _is_group(group) or (is_key_due and not is_key(key)):
            return Undecodable("check: kind, id or group out of form")
        where = whole(partition)
        if where > PARTITION_MAX:
            return Undecodable("check: no such partition")
        return CheckRecord(kind, key, group, where, whole(last), whole(born), whole(number), unquote(text))
    except ValueError as exc:
        return Undecodable(f"check: {exc}")


# --- what a question carries -------------------------------------------------------------------------------------------

CHECK_WITH_LENGTH_MAX = 512  # characters of the option `a`; a longer one counts as absent
QUERY_ID_LENGTH_MAX = 600  # characters of the option `q`, percent-encoded; a longer one counts as absent
DETAILS_BYTES_MAX = 4_096
"""Bytes of all that one question carries beside its line and the content; a part that does not fit is left out."""
DETAILS_CONTENT_BYTES_MAX = 16_384  # bytes of the first message's value; a larger one is left out

_PARTS = {"key": "k", "tags": "t", "query_id": "q", "content": "c"}
_HEADER_PART = "headers:"


def encode_check_with(wanted: Iterable[str]) -> str:
    """What questions carry, as the option `a` says it: `k`, `t`, `q`, `c` or `h` and a header's name, with `+` between; ValueError: it is none."""
    letters = []
    for part in wanted:
        name = part.removeprefix(_HEADER_PART)
        if part in _PARTS:
            letters.append(_PARTS[part])
        elif name and name != part:
            letters.append("h" + quote(name, safe=""))
        else:
            raise ValueError(part)
    return "+".join(dict.fromkeys(letters))


def brief_check_with(check_with: str) -> str:
    """What a coordinator keeps in memory of the option: whether questions carry something, and whether with the content."""
    return check_with and (_PARTS["content"] if _PARTS["content"] in check_with.split("+") else _PARTS["key"])


def details_bytes_max(check_with: str) -> int:
    """Bytes that a question carries at most, of a transaction with this option."""
    brief = brief_check_with(check_with)
    return (DETAILS_BYTES_MAX if brief else 0) + (DETAILS_CONTENT_BYTES_MAX if brief == _PARTS["content"] else 0)


def encode_details(record: Any) -> list[tuple[str, bytes | None]]:
    """The headers of a question about the transaction that begins with this half record, from half or from doubt.

    A null key or value is a null header. What is too large, or was not kept on doubt, is named in `txl-left-out`.
    """
    headers = record.headers()
    half = half_of(headers)
    if half is None:
        return []
    users, cut = user_headers(headers), is_cut(headers)
    found: list[tuple[str, bytes | None]] = []
    left_out: list[str] = []
    bytes_left = DETAILS_BYTES_MAX

    def carry(part: str, parts: list[tuple[str, bytes | None]], *, is_known: bool = not cut) -> None:
        nonlocal bytes_left
        size = sum(len(name.encode()) + len(value or b"") + HEADER_BYTES for name, value in parts)
        if is_known and size <= bytes_left:
            bytes_left -= size
            found.extend(parts)
        else:
            left_out.append(part)

    letters = half.options.check_with.split("+")
    for letter in letters:
        if letter == "k":
            carry("key", [(KEY_HEADER, record.key())])
        elif letter == "t":
            tags = [value for name, value in users if name == TAGS_HEADER]
            carry("tags", [(TAGS_PART_HEADER, tags[-1])] if tags else [])
        elif letter == "q" and half.options.query_id is not None:
            carry("query_id", [(QUERY_HEADER, half.options.query_id.encode(errors="replace"))], is_known=True)
        elif letter[:1] == "h":
            named = unquote(letter[1:])
            carry(f"{_HEADER_PART}{named}", [header for header in users if header[0] == named])
    if "c" in letters:
        bytes_left = DETAILS_CONTENT_BYTES_MAX + len(CONTENT_HEADER) + HEADER_BYTES
        carry("content", [(CONTENT_HEADER, record.value())])
    if left_out:
        found.append((LEFT_OUT_HEADER, ",".join(quote(part, safe=":") for part in left_out).encode("ascii")))
    return found


def decode_details(headers: Headers | None) -> QuestionDetails:
    ours = {name: value for name, value in headers or () if name in _DETAILS}
    tags, query_id, left_out = (ours.get(name) for name in (TAGS_PART_HEADER, QUERY_HEADER, LEFT_OUT_HEADER))
    return QuestionDetails(
        ours.get(KEY_HEADER),
        None if tags is None else tags.decode("utf-8", "replace"),
        tuple(header for header in user_headers(headers) if header[0] not in TRACE_HEADERS),
        None if query_id is None else query_id.decode("utf-8", "replace"),
        ours.get(CONTENT_HEADER),
        tuple(unquote(part) for part in left_out.decode("ascii", "replace").split(",")) if left_out else (),
    )


TRACE_HEADERS = frozenset({"traceparent", "tracestate"})  # on a question these are the coordinator's own
_DETAILS = frozenset({KEY_HEADER, TAGS_PART_HEADER, QUERY_HEADER, CONTENT_HEADER, LEFT_OUT_HEADER})


_ASKED = re.compile(rb"[|,][aq]")


def asked_options_of(headers: Headers | None) -> HalfOptions:
    """The options of the half record with these headers if `a` or `q` is among them; otherwise `NO_OPTIONS`, which is quick to tell."""
    raw = half_header_of(headers) or b""
    if raw.endswith(b"|") or _ASKED.search(raw, max(raw.rfind(b"|"), 0)) is None:
        return NO_OPTIONS
    half = decode_half_header(raw)
    return half.options if isinstance(half, HalfHeader) else NO_OPTIONS


# --- doubt ------------------------------------------------------------------------------------------------------------


def encode_summary(summary: DoubtSummary) -> bytes:
    """The value of the doubt record `id/nonce`: the version, then the fields in the order of `DoubtSummary`."""
    s = summary
    decided = _position(s.decided_at)
    immunity = "" if s.immunity_ms is None else str(s.immunity_ms)
    last = "+".join(map(str, (s.last_offset, *s.twin_offsets)))
    version, times = VERSION, ""
    if s.unresolved is not None:
        version, times = NEXT_VERSION, f"|{s.unresolved.value}"
    if s.is_timed:
        span = f"{s.sent_to}/{s.released_to}/{'+'.join(map(str, s.times))}/{_position(s.committed_at)}"
        version, times = TIMED_VERSION, f"|{span}{times}"
    return (
        f"{version}|{s.state}{_GROWING * s.is_growing}|{s.reason}|{s.producer_group}|{s.first_offset}|{last}|{s.seen}|{s.count}|"
        f"{s.appended_ms}|{s.born_ms}|{s.key_hash or ''}|{s.order.value}|{immunity}|{decided}|{s.moved_ms}|"
        f"{','.join(s.topics)}|{s.checked_count}/{s.answered_count}/{s.asked_ms}/{s.answered_number}{times}"
    ).encode("ascii")


def _position(position: tuple[int, int] | None) -> str:
    return "" if position is None else f"{position[0]}:{position[1]}"


def _decode_position(text: str) -> tuple[int, int] | None:
    offset, _, number = text.partition(":")
    return (whole(offset), whole(number)) if text else None


def decode_summary(key: str, raw: bytes) -> DoubtSummary | Undecodable:
    try:
        fields = raw.decode("ascii").split("|")
        known = _summary_fields(fields)
        if known is None:
            return malformed("doubt", fields, _SUMMARY_FIELDS)
        state, reason, group, first, last, *numbers, key_hash, order, immunity, decided, moved, topics, checks = known[
            1:_SUMMARY_FIELDS
        ]
        due = known[_SUMMARY_FIELDS] if len(known) > _SUMMARY_FIELDS else "0/0//"
        further = fields[_SUMMARY_FIELDS + (fields[0] == TIMED_VERSION) :]
        sent_to, released_to, times, committed = due.split("/")
        seen, count, appended, born = map(whole, numbers)
        checks_asked, unknowns, asked_ms, newest = map(whole, checks.split("/"))
        last_offset, *twins = map(whole, last.split("+"))
        return DoubtSummary(
            key,
            state.removesuffix(_GROWING),
            reason,
            group,
            whole(first),
            last_offset,
            seen,
            count,
            appended,
            born,
            checked_key_hash(key_hash) if key_hash else None,
            _ORDERS[order],
            whole(immunity) if immunity else None,
            _decode_position(decided),
            whole(moved),
            tuple(topics.split(",")) if topics else (),
            checks_asked,
            unknowns,
            asked_ms,
            newest,
            tuple(twins),
            whole(sent_to),
            whole(released_to),
            tuple(map(whole, times.split("+"))) if times else (),
            _decode_position(committed),
            _UNRESOLVED.get(further[0]) if further else None,
            state.endswith(_GROWING),
        )
    except (ValueError, KeyError) as exc:
        return Undecodable(f"doubt summary: {exc}")


SummaryGlance = tuple[str, str, str, int, int, str | None, str]
"""What a list shows of a summary: state, reason, producer group, first offset, append time, key hash, topics separated by commas."""


def glance_at_summary(raw: bytes) -> SummaryGlance | None:
    """Some fields of a summary, without a check of the others; None: it has another form. A fifth of the time of `decode_summary`, or less."""
    try:
        fields = raw.decode("ascii").split("|")
        if fields[0] != VERSION or len(fields) != _SUMMARY_FIELDS:
            found = _summary_fields(fields)
            if found is None:
                return None
            fields = found
        first, appended = fields[4], fields[8]
        # hot path: no call for numbers that are plain
        first_offset = int(first) if first.isdigit() and len(first) < WHOLE_LENGTH_MAX else whole(first)
        appended_ms = int(appended) if appended.isdigit() and len(appended) < WHOLE_LENGTH_MAX else whole(appended)
        state = fields[1].removesuffix(_GROWING)
        return state, fields[2], fields[3], first_offset, appended_ms, fields[10] or None, fields[15]
    except ValueError:
        return None


def _summary_fields(fields: list[str]) -> list[str] | None:
    if fields[0] == TIMED_VERSION and len(fields) in (_TIMED_SUMMARY_FIELDS, _TIMED_SUMMARY_FIELDS + 1):
        return fields
    return known_fields(fields, _SUMMARY_FIELDS)


def content_key(key: str, index: int) -> bytes:
    return f"{key}/{index}".encode("ascii")


def quarantine_key(origin: Origin, line: int | None = None) -> bytes:
    """The doubt key of a quarantined record, or of a quarantined line of an op record: its origin, in four segments."""
    suffix = "" if line is None else f":{line}"
    return f"{_ORIGIN}/{origin.topic}/{origin.partition}/{origin.offset}{suffix}".encode()


def parse_quarantine_key(raw: bytes | None) -> tuple[Origin, int | None] | None:
    """(origin, None) of a quarantined record, (origin, line) of a quarantined line of an op record; None for any other key."""
    try:
        word, topic, partition, position = (raw or b"").decode("ascii").split("/")
        offset, colon, line = position.partition(":")
        origin = Origin(topic, whole(partition), whole(offset))
        return (origin, whole(line) if colon else None) if word == _ORIGIN and topic else None
    except ValueError:
        return None


def parse_doubt_key(raw: bytes | None) -> tuple[str, int | None] | None:
    """("id/nonce", None) for a summary, ("id/nonce", index) for a content, None for a quarantined record."""
    if raw is None:
        return None
    try:
        text = raw.decode("ascii")
        if is_key(text):
            return text, None
        key, _, number = text.rpartition("/")
        return (key, whole(number)) if is_key(key) else None
    except ValueError:
        return None


def encode_content(
    *, key: bytes | None, value: bytes | None, headers: Headers | None, origin: str | None = None
) -> tuple[bytes, list[tuple[str, bytes | None]]]:
    """(value, headers) of a doubt content. `headers` are the half record's own, with its `txl`; `origin` is its `txl-origin`."""
    # A half record with these names does not come from a txlayer producer; readers would take them for txlayer's headers.
    ours = [header for header in headers or () if header[0] not in (KEY_HEADER, NULL_HEADER, CUT_HEADER)]
    if origin is not None:
        ours = [header for header in ours if header[0] != ORIGIN_HEADER]
        ours.append((ORIGIN_HEADER, origin.encode()))
    if key is not None:
        ours.append((KEY_HEADER, key))
    if value is None:
        ours.append((NULL_HEADER, b"1"))
    return value or b"", ours


def decode_content(
    *, value: bytes | None, headers: Headers | None
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """(key, value, headers with `txl`) of the half record that a doubt content contains."""
    key: bytes | None = None
    is_null = False
    kept: list[tuple[str, bytes | None]] = []
    for name, header in headers or ():
        if name == KEY_HEADER:
            key = header
        elif name == NULL_HEADER:
            is_null = True
        else:
            kept.append((name, header))
    return key, None if is_null else value, kept


DOUBT_REFUSES = Undecodable("doubt refuses it whole", ParkReason.TOO_LARGE)


def cut_content(
    *, value: bytes, headers: Headers, why: Undecodable = DOUBT_REFUSES
) -> tuple[bytes, list[tuple[str, bytes | None]]]:
    """(value, headers) of a doubt content that is not stored whole: its origin, and the reason why it is empty.

    `headers` are those of `encode_content` with the origin. A reader that needs the rest reads half at the origin.
    """
    size = len(value) + sum(len(name) + len(head or b"") for name, head in headers)
    own = [h for h in headers if h[0] == ORIGIN_HEADER][-1:]
    txl = [(HALF_HEADER, half_header_of(headers))]
    return b"", [*txl, *own, (CUT_HEADER, encode_why(cut_why(why, size=size)))]


def cut_why(why: Undecodable, *, size: int) -> Undecodable:
    """The explanation for a record of which only origin, reason and size are kept."""
    return Undecodable(f"{size} bytes, not kept whole: {why.why}", why.reason)


def is_cut(headers: Headers | None) -> bool:
    """True for a doubt content without its value and headers: half has them at its origin."""
    return any(name == CUT_HEADER for name, _ in headers or ())


def content_bytes(value: bytes, headers: Headers | None) -> int:
    """Size in bytes of key, value and headers of a doubt content's half record; also of one that was cut."""
    size = len(value)
    for name, head in headers or ():
        if head is not None:
            size += len(head)
            if name == CUT_HEADER and (said := _CUT_BYTES.search(head)) is not None:
                size += int(said[1])
        size += len(name) + 2
    return size


def encode_why(undecodable: Undecodable) -> bytes:
    return f"{undecodable.reason.value} {undecodable.why[:_WHY_LENGTH_MAX]}".encode()


def decode_why(raw: bytes | None) -> tuple[str, str]:
    """(reason, explanation) of the header `txl-why`. Both may be empty, and the reason may be one of a later version."""
    reason, _, why = (raw or b"").decode("utf-8", "replace").partition(" ")
    return reason, why


def abandoned_headers(sent_to: int = 0) -> list[tuple[str, bytes | None]]:
    """Headers of that null value; messages with an earlier time than `sent_to` were forwarded."""
    return [(END_HEADER, f"{_ABANDON}{sent_to or ''}".encode())]


def is_abandoned(value: bytes | None, headers: Headers | None) -> bool:
    """True for the null value of a summary whose transaction was abandoned after its commit."""
    return value is None and any(
        name == END_HEADER and _END.fullmatch(said or b"") is not None for name, said in headers or ()
    )


# --- forwarded --------------------------------------------------------------------------------------------------------


def encode_origin(*, partition: int, offset: int, index: int, count: int, born_ms: int | str) -> str:
    """The header `txl-origin` of a forwarded record; `born_ms` as a number or its digits."""
    return f"{partition}:{offset}|{index}/{count}|{born_ms}"


def decode_origin(raw: bytes) -> tuple[int, int, int, int, int] | Undecodable:
    """(half partition, half offset, index, count, born) of a forwarded record."""
    try:
        where, part, born = raw.decode("ascii").split("|")
        partition, _, offset = where.partition(":")
        index, _, count = part.partition("/")
        return whole(partition), whole(offset), whole(index), whole(count), whole(born)
    except ValueError as exc:
        return Undecodable(f"origin: {exc}")


def origin_of(headers: Headers | None) -> tuple[int, int, int, int, int] | None:
    """The last `txl-origin` among a record's headers, decoded; None: there is none that can be read."""
    raw = next((value for name, value in reversed(headers or ()) if name == ORIGIN_HEADER), None)
    origin = decode_origin(raw or b"")
    return None if isinstance(origin, Undecodable) else origin
