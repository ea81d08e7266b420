"""Frozen values that producers, coordinators and tools exchange, and the form of ids, nonces and names.

codec.py has the wire format. Pure: callers of `uuid7_head` and `key_tails` pass time and random digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, NewType

from txlayer.errors import ConfigError, UsageError

TxnId = NewType("TxnId", str)

TXN_ID_LENGTH_MAX = 128  # Longest id. It is part of every key and header of a transaction.
NONCE_LENGTH = 8  # length of a nonce in hexadecimal digits: enough to distinguish the attempts of one id
UUID_LENGTH = 36  # characters of a generated id

_TAIL_FORM = b"xxx-xxxx-xxxxxxxxxxxx/xxxxxxxx "
_TAIL_INDEXES = tuple(index for index, byte in enumerate(_TAIL_FORM) if byte == ord("x"))
_VARIANT_INDEX = 4
# Two of the four bits of that digit are the variant of RFC 9562, the other two are random.
_VARIANTS = bytes.maketrans(b"0123456789abcdef", b"89ab89ab89ab89ab")

_GENERATED_KEY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9a-f]{8}")

TAIL_DIGITS = len(_TAIL_INDEXES)  # random hexadecimal digits per key tail in `key_tails`

# `|` separates fields, and `/` separates id, nonce and index in keys; a blank would have to be quoted on a command line.
_TXN_ID = re.compile(r"[!-.0-{}~]{1,128}")
GROUP_LENGTH_MAX = 200
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # the form of topic names that Kafka accepts
TOPICS_BYTES_MAX = 256 * 1024
"""Total length of the real topics' names of one transaction: its summary on doubt lists them and must fit there."""
TOPICS_MAX = 10_000
"""Real topics of one transaction. Not a setting: every reader must agree on which records belong to a transaction."""
DLQ_SUFFIX, REPLAY_SUFFIX = ".dlq", ".replay"  # how names of dead-letter and of replay topics end


def is_topic_name(name: str) -> bool:
    return TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def check_topic(topic: str) -> str:
    """The name itself; UsageError: no topic can have it. With bytes in it that are no UTF-8, the Kafka client ends the process."""
    if not is_topic_name(topic):
        raise UsageError(f"{topic[:260]!r}: no topic can have this name")
    return topic


def uuid7_head(at_ms: int) -> str:
    """The first 15 characters of a UUID of version 7: the time and the version (RFC 9562, section 5.7)."""
    time_bits = at_ms & 0xFFFF_FFFF_FFFF
    return f"{time_bits >> 16:08x}-{time_bits & 0xFFFF:04x}-7"


def key_tails(random_hex: str) -> list[str]:
    """The part behind `uuid7_head` in "id/nonce", one for every 27 hexadecimal digits: 74 random bits, `/`, nonce.

    All at once, column by column, which takes a fifth of the time: a producer needs one per transaction.
    """
    count = len(random_hex) // TAIL_DIGITS
    digits = random_hex[: count * TAIL_DIGITS].encode("ascii")
    table = bytearray(_TAIL_FORM * count)
    for column, index in enumerate(_TAIL_INDEXES):
        table[index :: len(_TAIL_FORM)] = digits[column::TAIL_DIGITS]
    variants = slice(_VARIANT_INDEX, None, len(_TAIL_FORM))
    table[variants] = table[variants].translate(_VARIANTS)
    return table.decode("ascii").split()


ShortKey = bytes | str
"""A key "id/nonce" in two thirds of the memory: of a generated id, what its digits encode; of another id, the key itself.

No number: a producer could choose numbers with one hash, and strings and bytes have a secret in theirs.
"""


def short_key(key: str) -> ShortKey:
    """The short form of a key. Two keys never have the same one."""
    is_generated = _GENERATED_KEY.fullmatch(key) is not None
    return bytes.fromhex(key.replace("-", "").replace("/", "")) if is_generated else key


def full_key(short: ShortKey) -> str:
    if isinstance(short, str):
        return short
    digits = short.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}/{digits[32:]}"


def is_txn_id(txn_id: object) -> bool:
    """True for an id that a producer may write; readers accept more."""
    return isinstance(txn_id, str) and _TXN_ID.fullmatch(txn_id) is not None


def check_txn_id(txn_id: str) -> TxnId:
    """Return the id if it is 1 to 128 printable ASCII characters without blank, `|` and `/`; UsageError: it is not. Nothing was sent."""
    if not is_txn_id(txn_id):
        raise UsageError(
            f"transaction id {str(txn_id)[:140]!r}: 1 to {TXN_ID_LENGTH_MAX} printable ASCII characters "
            "without blank, '|' and '/' are allowed"
        )
    return TxnId(txn_id)


def check_group(group: str) -> str:
    """The producer or consumer group itself; UsageError: it is not 1 to 200 letters, digits, `.`, `_` or `-`."""
    if not isinstance(group, str) or _GROUP.fullmatch(group) is None:
        raise UsageError(f"group {str(group)[:210]!r}: 1 to 200 letters, digits, '.', '_' or '-' are allowed")
    return group


Headers = Sequence[tuple[str, bytes | None]]  # headers of a message, in order; names may repeat

UserHeaders = Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None]
"""Headers as users may pass them; text is UTF-8 on the wire."""

TAGS_HEADER = "tags"  # the ordinary header that contains a message's tag; consumers filter by it
RESERVED_HEADER_PREFIX = "txl"  # prefix of txlayer's headers; a user's header with it is refused


class Resolution(Enum):
    """What a producer, a responder or an operator states about a transaction."""

    COMMIT = "C"  #: the local transaction is durable: forward the messages
    ROLLBACK = "R"  #: the local transaction is gone: consumers must not see the messages
    UNKNOWN = "U"  #: the result is not known yet: ask again later


COMMIT, ROLLBACK, UNKNOWN = Resolution  # the resolutions by their short names, for users' code


class Source(Enum):
    """The source of an op line."""

    PRODUCER = "producer"  #: the producer that ran the local transaction
    CHECK = "check"  #: a check handler that was asked
    BARRIER = "barrier"  #: the barrier's row, read on behalf of the application
    POLICY = "policy"  #: the coordinator, by a configured policy
    OPERATOR = "operator"  #: a person, with a reason


class OrderMode(Enum):
    """What determines the order of the messages of one ordering key (P6)."""

    COMMIT = "commit"  #: the order of decisions in the op log
    PREPARE = "prepare"  #: the order of half messages; a later one waits for an earlier undecided one


class UnresolvedAction(Enum):
    """What happens to a transaction that its producer group does not resolve."""

    PARK = "park"  #: it is kept for an operator
    ROLLBACK = "rollback"  #: the coordinator writes a rollback, as an ordinary op line
    COMMIT = "commit"  #: the coordinator writes a commit, as an ordinary op line; an incomplete one is parked


class ParkReason(Enum):
    """Why a transaction or record is on the doubt topic, for an operator or until a topic accepts again; a closed list."""

    INCOMPLETE = "incomplete"  #: committed, but not all of its half records are there; or a half record of a transaction that did not begin
    UNDECODABLE = "undecodable"  #: bytes that are not a txlayer record
    MISPLACED = "misplaced"  #: a record in the wrong partition, or an op line whose half record does not exist
    REFUSED = "refused"  #: the broker refuses one of its records on every try
    TOO_LARGE = "too-large"  #: larger than its target topic allows
    FORBIDDEN_TOPIC = "forbidden-topic"  #: its target is a system topic or not on the allow-list
    TOPIC_MISSING = "topic-missing"  #: its target topic does not exist (held until it does)
    TOPIC_DENIED = "topic-denied"  #: the coordinator may not write its target topic (held until it may)
    TOPIC_UNREACHABLE = "topic-unreachable"  #: its target accepts no writes: no leader, too few in-sync replicas, or timeouts, for `hold_after`
    HELD_TOO_LONG = "held-too-long"  #: held for `held_age_max`
    LIMIT = "limit"  #: more messages or bytes than one transaction may have, or than one Kafka transaction has time for
    CHECKS_EXHAUSTED = "checks-exhausted"  #: `check_max` answers said unknown
    TOO_OLD = "too-old"  #: older than `transaction_age_max`


class Message(NamedTuple):
    """A message to be delivered. Text is UTF-8 on the wire; a null key or value is forwarded unchanged."""

    topic: str
    key: bytes | str | None = None
    value: object = None  # bytes, str or None; other types need the producer's codec
    headers: UserHeaders | None = None
    tags: str | None = None  # becomes the header `tags`; consumers filter by it
    partition: int | None = None  # of the real topic; None: by the key, as Java producers do
    timestamp: int | None = None  # milliseconds, of the forwarded record; None: when it is forwarded
    deliver_at: Any = None  # datetime with a time zone: no consumer sees it before; None: with the decision
    delay: Any = None  # timedelta: the same, from the time of `prepare` on


class HalfHeader(NamedTuple):
    """The packed header `txl` of a half record."""

    key: str  # "id/nonce": a transaction *is* its id and the nonce of the attempt
    producer_group: str
    topic: str  # the real topic
    index: int  # type: ignore[assignment]  # 0 <= index < count; hides tuple.index, which has no caller
    count: int  # type: ignore[assignment]  # likewise
    born_ms: int  # the producer's clock, for statistics only
    options: HalfOptions


class HalfOptions(NamedTuple):
    """Options of a half message beyond the message itself; `NO_OPTIONS` sets none."""

    key_hash: str | None = None  # partitions.key_hash of the ordering key
    order: OrderMode = OrderMode.COMMIT
    immunity_ms: int | None = None  # no check-back before this age
    partition: int | None = None  # of the real topic
    timestamp_ms: int | None = None  # of the forwarded record
    key_murmur: int | None = None  # murmur2 of the ordering key, if the message has no key of its own
    deliver_at_ms: int | None = None  # no consumer sees the message before
    check_with: str = ""  # what questions about the transaction carry, as `codec.encode_check_with` writes it
    query_id: str | None = None  # the user's own id of the transaction
    unresolved: UnresolvedAction | None = None  # instead of the group's policy; in the first half record
    is_group_named: bool = False  # the forwarded record names the producer group


NO_OPTIONS = HalfOptions()


class OpMessage(NamedTuple):
    """One line of an op record: a resolution."""

    resolution: Resolution
    key: str  # "id/nonce"
    producer_group: str
    last_offset: int  # of the transaction's last half record
    born_ms: int
    source: Source = Source.PRODUCER
    check_number: int | None = None
    is_abandon: bool = False  # a resolution after a commit; `resolution` is then ROLLBACK
    reason: str = ""
    time_ms: int | None = None  # of a COMMIT: the time that has come; of an UNKNOWN: the new time

    @property
    def is_decision(self) -> bool:
        """True if it commits or rolls back. A line with a time decides nothing."""
        return self.time_ms is None and self.resolution is not Resolution.UNKNOWN

    @property
    def is_release(self) -> bool:
        """True if it says that the time of a scheduled transaction has come. Any other commit says nothing about time."""
        return self.time_ms is not None and self.resolution is Resolution.COMMIT

    @property
    def is_reschedule(self) -> bool:
        return self.time_ms is not None and self.resolution is Resolution.UNKNOWN


class CheckKind(Enum):
    """Kinds of records from the coordinator to a producer group."""

    QUESTION = "Q"  #: what became of the local transaction? The answer is an op line
    LIMIT = "L"  #: the group has too many open transactions, or no longer has: `text` is on or off
    PARKED = "P"  #: a transaction of the group was parked: `text` is the reason. A commit or rollback settles it
    REFUSED = "X"  #: a resolution of the group came too late and was refused: `text` contains it and the reason


class CheckRecord(NamedTuple):
    """A record of the check topic: one line, like an op line. Every instance of the group reads it."""

    kind: CheckKind
    key: str  # "id/nonce"; "" for a limit
    producer_group: str
    partition: int  # of half and op: the answer is written there
    last_offset: int = 0  # of the half records; an answer names it
    born_ms: int = 0
    # Of the check-back, repeated in the answer; for a limit: the number of open transactions; how often the group heard of a parking.
    number: int = 0
    text: str = ""  # of a check-back: the real topics, comma-separated


class QuestionDetails(NamedTuple):
    """What a question carries of the first message, as far as the transaction asked for it."""

    key: bytes | None = None
    tags: str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    query_id: str | None = None
    content: bytes | None = None
    left_out: tuple[str, ...] = ()  # the parts that are too large for a question, or not known any more


class Origin(NamedTuple):
    """The topic, partition and offset of a record."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Bytes that are not a txlayer record. A value, so that no loop stops at them."""

    why: str
    reason: ParkReason = ParkReason.UNDECODABLE


class DoubtSummary(NamedTuple):
    """The summary of one transaction on the doubt topic: enough to continue after a restart."""

    key: str
    state: str  # a TxnState's value
    reason: str  # a ParkReason's value, or ""
    producer_group: str
    first_offset: int
    last_offset: int
    seen: int  # half records that exist
    count: int  # type: ignore[assignment]  # half records that should exist
    appended_ms: int  # of the first half record
    born_ms: int
    key_hash: str | None
    order: OrderMode
    immunity_ms: int | None
    decided_at: tuple[int, int] | None  # op position (offset, line) of the decision
    moved_ms: int  # when it moved to doubt, or was decided there
    topics: tuple[str, ...] = ()  # its real topics, each once
    checked_count: int = 0  # number of check-backs, and of the last one
    answered_count: int = 0  # check-backs answered with unknown
    asked_ms: int = 0  # when the last check-back was sent
    answered_number: int = 0  # the newest check-back that was answered
    # Second copies that the broker stored; an op line may name one.
    twin_offsets: tuple[int, ...] = ()
    sent_to: int = 0  # messages with an earlier time are forwarded
    released_to: int = 0  # those from there on with an earlier time than this are released
    times: tuple[int, ...] = ()  # of the others, the earliest first; 0: with the decision
    committed_at: tuple[int, int] | None = None  # of one with times: op position of its commit
    unresolved: UnresolvedAction | None = None  # of one that is open, if it has a policy of its own
    is_growing: bool = False  # contents that stand behind it on doubt, without a newer one, belong to the transaction

    @property
    def is_timed(self) -> bool:
        return bool(self.times or self.released_to)


HEADERS_READ_MAX = 100_000  # Kafka's client shows no header at all of a record that has more
HEADERS_MAX = 99_000
"""Headers of a message, so that it can be read wherever it goes: txlayer, traces and dead letters add some of their own."""
HEADER_OBJECT_BYTES = 170
"""Python's objects for a header of a record, beside what is in them (CPython 3.11): a record may have hundreds of thousands that are empty."""
FEW_HEADERS = 8
"""A record's first headers are a part of what is allowed for the record itself."""


def many_headers_bytes(count: int) -> int:
    """What a record's headers take in memory beside their names and values, if it has many."""
    return HEADER_OBJECT_BYTES * (count - FEW_HEADERS) if count > FEW_HEADERS else 0


def user_headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    """The headers without txlayer's own, for code that passes a message on."""
    return [(name, value) for name, value in headers or () if not name.startswith(RESERVED_HEADER_PREFIX)]


def txn_id_of(key: str) -> str:
    return key.partition("/")[0]


def nonce_of(key: str) -> str:
    return key.partition("/")[2]


_OR = "||"
_EVERY = "*"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tags that a consumer wants. Other messages count as handled."""

    wanted: frozenset[bytes] | None = None  # None: every message, with or without a tag

    def accepts(self, tag: bytes | None) -> bool:
        """True for a message with this tag; None means that it has no tag."""
        return self.wanted is None or tag in self.wanted


def parse_tags(expression: str) -> TagFilter:
    """Parse a filter: tags separated by `||`, or `*` alone (or an empty text) for every message. Blanks around a tag are ignored.

    ConfigError: one side of a `||` is empty, or a tag contains `*` or `|`. Nothing happened.
    """
    if expression.strip() in ("", _EVERY):
        return TagFilter()
    tags = [tag.strip() for tag in expression.split(_OR)]
    if any(not tag or tag == _EVERY or "|" in tag for tag in tags):
        raise ConfigError(name="tags", value=expression, expected='"TagA || TagC", or "*"')
    return TagFilter(frozenset(tag.encode() for tag in tags))
