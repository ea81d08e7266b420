"""Records, and what their bytes hold, as docs/explanation/protocol.md says. Bytes out of form are None."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Record:
    """One record of any topic, also of an aborted or open Kafka transaction."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # the append time, unless is_append_time says otherwise
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    kafka: str = "committed"  # what became of its Kafka transaction: committed, aborted or open
    is_append_time: bool = True  # False on a topic that keeps the producer's timestamps

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    @property
    def log_order(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset


@dataclass(frozen=True)
class Bounds:
    """What of a partition is still there: offsets from `start` up to, and without, `end`."""

    start: int
    end: int
    #: Where the first open Kafka transaction begins. None: no Kafka transaction is open.
    stable_end: int | None = None

    @property
    def readable_end(self) -> int:
        return self.end if self.stable_end is None else self.stable_end


@dataclass(frozen=True)
class Settings:
    """What the records do not say."""

    namespace: str = "txlayer"
    #: Topics of which compaction may have removed records, doubt among them.
    compacted_topics: frozenset[str] = frozenset()
    #: The partition counts that a topic had before it grew.
    former_partition_counts: Mapping[str, frozenset[int]] = field(default_factory=dict)
    #: Transactions of which is known from elsewhere that they were parked; doubt need not have shown it.
    parked: frozenset[str] = frozenset()
    #: When the records were read. None: everything is old enough to be judged.
    now_ms: int | None = None
    #: What is younger than this may still be on its way.
    grace_ms: int = 0
    overdue_after_ms: int | None = None
    #: Partitions of half with older records that were not read, so young that an undecided one among them need not be on doubt.
    hiding_waits: frozenset[int] = frozenset()
    #: By how much the clocks of two brokers may differ.
    clock_error_ms: int = 0
    #: A judge who does not know which partition a key leads to: what retention took from one, or an open Kafka transaction hides there,
    #: may be any message of the topic, and where a message that is held will be is not known.
    is_topic_wide: bool = False


@dataclass(frozen=True)
class History:
    """Every record that is still in the log, and the bounds of every partition that was read."""

    records: Sequence[Record]
    bounds: Mapping[tuple[str, int], Bounds]
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class HalfMessage:
    """One message as half, or a content on doubt, holds it."""

    txn_key: str
    producer_group: str
    topic: str
    index: int
    count: int
    born_ms: int
    options: Mapping[str, str]
    partition: int
    offset: int | None  # None: known from doubt alone
    stored_at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers  # with txl
    is_cut: bool = False  # a content that doubt did not take whole
    origin_offset: int | None = None  # where it was in half, as a content on doubt says

    @property
    def time_ms(self) -> int:
        """Before it no consumer may see the message; 0: with the decision."""
        return int(self.options.get("d", "0"))

    @property
    def claim(self) -> tuple[str, int, int, int]:
        """What the forwarded record says of it, beside its half offset."""
        return self.txn_key.split("/")[0], self.index, self.count, self.born_ms

    @property
    def user_headers(self) -> list[tuple[str, bytes | None]]:
        return [header for header in self.headers if not header[0].startswith("txl")]

    @property
    def stored(self) -> tuple[object, ...]:
        return self.key, self.value, tuple(self.user_headers), [v for n, v in self.headers if n == "txl"][-1:]


@dataclass(frozen=True)
class Line:
    """One line of an op record."""

    resolution: str
    txn_key: str
    producer_group: str
    last_offset: int
    source: str
    record: Record
    number: int
    time_ms: int | None = None  # of a release, or of another time

    @property
    def position(self) -> tuple[int, int]:
        return self.record.offset, self.number

    @property
    def place(self) -> str:
        return f"{self.record.place}:{self.number}"


@dataclass(frozen=True)
class Origin:
    """What the header txl-origin says."""

    partition: int
    offset: int
    index: int
    count: int
    born_ms: int


@dataclass(frozen=True)
class Summary:
    """The summary of a transaction on doubt."""

    state: str
    reason: str
    producer_group: str
    first_offset: int
    last_offset: int
    copy_offsets: tuple[int, ...]
    seen: int
    count: int
    appended_ms: int
    is_prepare_order: bool
    key_hash: str

    @property
    def may_be_parked(self) -> bool:
        """Parked, or in a state of a later release."""
        return self.state.startswith("parked") or self.state not in STATES


_KEY = r"[^|/\n]{1,128}/[^|/\n]{8}"  # more than a writer may write
_GROUP = r"[^|\n]{1,200}"
_TOPIC = r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"
NUMBER_MAX = 2**63 - 1
HALF_HEADER_BYTES_MAX = 2_048
_OPTIONS = {"k": r"[0-9a-f]{16}", "o": ".*", "i": r"\d+", "n": r"\d+", "t": r"\d+", "m": r"\d+", "d": r"\d+"}
PARTITION_MAX = 2**31 - 1
STATES = ("open", "waiting", "scheduled", "held", "parked", "parked-committed")


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _are_numbers(*texts: str) -> bool:
    return all(_fits(r"\d+", text) and int(text) <= NUMBER_MAX for text in texts)


def _fields(value: bytes | None, count: int, *, timed_counts: tuple[int, ...] = ()) -> list[str] | None:
    """The fields of a line; a line of version 2 may have more, which are passed over. Version 3 has one of `timed_counts`."""
    try:
        fields = (value or b"").decode("ascii").split("|")
    except UnicodeDecodeError:
        return None
    if timed_counts and fields[0] == "3":
        return fields if len(fields) in timed_counts and "\n" not in "".join(fields) else None
    is_in_form = len(fields) == count if fields[0] == "1" else fields[0] == "2" and len(fields) > count - 1
    return fields[:count] if is_in_form and "\n" not in "".join(fields[:count]) else None


def _options(text: str) -> dict[str, str] | None:
    options: dict[str, str] = {}
    for item in text.split(","):
        if item[:1] in _OPTIONS:
            if not _fits(_OPTIONS[item[0]], item[1:]) or (item[0] in "intmd" and not _are_numbers(item[1:])):
                return None
            if item[0] == "n" and int(item[1:]) > PARTITION_MAX:
                return None
            options[item[0]] = item[1:]
    if options.get("o") != "p":
        options.pop("o", None)
    return options


def parse_half(record: Record) -> HalfMessage | None:
    """A half record, or None when it is out of form."""
    ours = [value for name, value in record.headers if name == "txl"]
    if not ours:
        return None
    fields = _fields(ours[-1], 7, timed_counts=(7,))
    if fields is None or len(ours[-1] or b"") > HALF_HEADER_BYTES_MAX or b"\n" in (ours[-1] or b""):
        return None
    _, key, group, topic, numbers, born, option_text = fields
    index, slash, count = numbers.partition("/")
    options = _options(option_text)
    if options is not None and fields[0] == "3" and "d" not in options:
        return None
    if options is None or not slash or not _are_numbers(index, count, born) or int(index) >= int(count):
        return None
    if not (_fits(_KEY, key) and _fits(_GROUP, group) and _fits(_TOPIC, topic)):
        return None
    return HalfMessage(
        txn_key=key,
        producer_group=group,
        topic=topic,
        index=int(index),
        count=int(count),
        born_ms=int(born),
        options=options,
        partition=record.partition,
        offset=record.offset,
        stored_at_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def parse_line(text: bytes, record: Record, number: int) -> Line | None:
    """One line of an op record, or None when it is out of form."""
    fields = _fields(text, 9)
    if fields is None:
        return None
    _, resolution, key, group, offset, born, source, check_number, _ = fields
    if resolution not in ("C", "R", "U", "A") or not (_fits(_KEY, key) and _fits(_GROUP, group)):
        return None
    if not _are_numbers(offset, born, check_number or "0"):
        return None
    if source not in ("producer", "check", "barrier", "policy", "operator"):
        return None
    *_, time = [*text.decode("ascii").split("|"), ""][:10]
    is_timed = text[:1] == b"2" and resolution in ("C", "U") and _fits(r"\d+", time)
    if is_timed and not _are_numbers(time):
        return None
    time_ms = int(time) if is_timed else None
    return Line(resolution, key, group, int(offset), source, record, number, time_ms)


def parse_summary(value: bytes | None) -> Summary | None:
    fields = _fields(value, 17, timed_counts=(18, 19))
    if fields is None:
        return None
    _, state, reason, group, first, last, seen, count, appended, born, key_hash, order, *more = fields
    last, *copies = last.split("+")
    if order not in ("commit", "prepare") or not _fits(_GROUP, group):
        return None
    if not _are_numbers(first, last, *copies, seen, count, appended, born, more[2]):
        return None
    copy_offsets = tuple(int(copy) for copy in copies)
    return Summary(
        state.removesuffix("+"),  # contents may follow without a new summary
        reason,
        group,
        int(first),
        int(last),
        copy_offsets,
        int(seen),
        int(count),
        int(appended),
        order == "prepare",
        key_hash,
    )


def parse_content(record: Record) -> HalfMessage | None:
    """The half message that a content on doubt holds, without its half offset."""
    if record.value is None:
        return None
    names = ("txl-key", "txl-null", "txl-origin", "txl-cut")
    extra = {name: value for name, value in record.headers if name in names}
    half = parse_half(
        Record(
            record.topic,
            record.partition,
            0,
            record.timestamp_ms,
            extra.get("txl-key"),
            None if extra.get("txl-null") == b"1" else record.value,
            [(name, value) for name, value in record.headers if name not in extra],
        )
    )
    origin = parse_origin(extra.get("txl-origin"))
    return half and replace(
        half, offset=None, is_cut="txl-cut" in extra, origin_offset=None if origin is None else origin.offset
    )


def parse_origin(value: bytes | None) -> Origin | None:
    match = re.fullmatch(rb"(\d+):(\d+)\|(\d+)/(\d+)\|(\d+)", value or b"")
    if match is None or any(int(number) > NUMBER_MAX for number in match.groups()):
        return None
    origin = Origin(*(int(number) for number in match.groups()))
    return origin if origin.index < origin.count else None


def murmur2(data: bytes) -> int:
    """Kafka's murmur2, made positive."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF
