"""Frozen values that travel between producers, coordinator and tools. Never the wire format (codec.py has it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from txlayer.errors import ConfigError

Headers = Sequence[tuple[str, bytes | None]]
"""Headers of a message, in order; names may repeat."""

UserHeaders = Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None]
"""Headers as users may give them; text is UTF-8 on the wire."""

TAGS_HEADER = "tags"
"""The ordinary header that carries a message's tags; consumers filter by it."""

RESERVED_HEADER_PREFIX = "txl"
"""Headers that begin so are ours; a user's is refused."""


class Resolution(Enum):
    """What a producer, a responder or an operator says of a transaction."""

    COMMIT = "C"  #: the local transaction is durable: forward the messages
    ROLLBACK = "R"  #: the local transaction is gone: nobody may ever see the messages
    UNKNOWN = "U"  #: nobody can say yet: ask again later


COMMIT, ROLLBACK, UNKNOWN = Resolution
"""The resolutions by their plain names, for users' code."""


class Source(Enum):
    """Who wrote an op line."""

    PRODUCER = "producer"  #: the producer that ran the local transaction
    CHECK = "check"  #: a check handler that was asked
    BARRIER = "barrier"  #: the barrier's row, read on behalf of the application
    POLICY = "policy"  #: the coordinator, by a configured policy
    OPERATOR = "operator"  #: a person, with a reason


class OrderMode(Enum):
    """What orders the messages of one ordering key (P6)."""

    COMMIT = "commit"  #: the order of decisions in the op log
    PREPARE = (
        "prepare"  #: the order of half messages; a later one waits for an earlier undecided one
    )


class ParkReason(Enum):
    """Why a transaction or record stands on the doubt topic for a person or a mended topic; a closed list."""

    INCOMPLETE = "incomplete"  #: committed, but not all of its half records are there
    UNDECODABLE = "undecodable"  #: bytes that are no record of ours
    MISPLACED = "misplaced"  #: a record or op line that does not belong where it stands
    REFUSED = "refused"  #: the broker refuses one of its records, whatever is tried
    TOO_LARGE = "too-large"  #: larger than its target topic allows
    FORBIDDEN_TOPIC = "forbidden-topic"  #: its target is a system topic or not on the allow-list
    TOPIC_MISSING = "topic-missing"  #: its target topic does not exist (held until it does)
    TOPIC_DENIED = (
        "topic-denied"  #: the coordinator may not write its target topic (held until it may)
    )
    TOPIC_UNREACHABLE = "topic-unreachable"  #: its target takes nothing: no leader, too few replicas in sync, or time-outs, for `hold_after`
    HELD_TOO_LONG = "held-too-long"  #: held for `held_age_max`
    LIMIT = "limit"  #: more messages or bytes than one transaction may have
    CHECKS_EXHAUSTED = "checks-exhausted"  #: `check_max` answers said unknown
    TOO_OLD = "too-old"  #: older than `transaction_age_max`


class Message(NamedTuple):
    """What a user wants delivered. Text is UTF-8 on the wire; a null key or value is forwarded as it is."""

    topic: str
    key: bytes | str | None = None
    value: object = None  # bytes, str or None; anything else needs the producer's serializer
    headers: UserHeaders | None = None
    tags: str | None = None  # becomes the header `tags`; consumers filter by it
    partition: int | None = None  # of the real topic; None: by the key, like every Java producer
    timestamp: int | None = (
        None  # milliseconds, of the forwarded record; None: when it is forwarded
    )


class HalfHeader(NamedTuple):
    """The packed header `txl` of a half record."""

    key: str  # "id/nonce": a transaction *is* its id and the nonce of the attempt
    producer_group: str
    topic: str  # the real topic
    index: int  # type: ignore[assignment]  # 0 <= index < count; hides tuple.index, which nobody needs
    count: int  # type: ignore[assignment]  # likewise
    born_ms: int  # the producer's clock, for statistics only
    options: HalfOptions


class HalfOptions(NamedTuple):
    """What a producer may ask for beyond the message itself; `NO_OPTIONS` asks for nothing."""

    key_hash: str | None = None  # partitions.key_hash of the ordering key
    order: OrderMode = OrderMode.COMMIT
    immunity_ms: int | None = None  # no check-back before this age
    partition: int | None = None  # of the real topic
    timestamp_ms: int | None = None  # of the forwarded record
    key_murmur: int | None = (
        None  # murmur2 of the ordering key, where the message has no key of its own
    )


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
    is_abandon: bool = (
        False  # an operator's own word after a commit; the resolution is then ROLLBACK
    )
    reason: str = ""


class CheckKind(Enum):
    """What the coordinator tells a producer group."""

    QUESTION = "Q"  #: what became of the local transaction? The answer is an op line
    LIMIT = "L"  #: the group has too many open transactions (or not any more): `text` is on or off
    REFUSED = (
        "X"  #: a resolution of the group came too late and was refused: `text` says which, and why
    )


class CheckRecord(NamedTuple):
    """A record of the check topic: one line, like an op's. Every instance of the group reads it."""

    kind: CheckKind
    key: str  # "id/nonce"; "" for a limit
    producer_group: str
    partition: int  # of half and op: an answer goes there
    last_offset: int = 0  # of the half records there are: an answer names it
    born_ms: int = 0
    number: int = 0  # of the question; an answer carries it. For a limit: how many are open
    text: str = ""  # of a question: the real topics, comma between


class Origin(NamedTuple):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Bytes that are no record of ours; a value, so that no loop stops at them."""

    why: str
    reason: ParkReason = ParkReason.UNDECODABLE


class DoubtSummary(NamedTuple):
    """What the doubt topic says of one transaction: enough to go on after a restart."""

    key: str
    state: str  # a TxnState's value
    reason: str  # a ParkReason's value, or ""
    producer_group: str
    first_offset: int
    last_offset: int
    seen: int  # half records there are
    count: int  # type: ignore[assignment]  # half records there should be
    appended_ms: int  # of the first half record
    born_ms: int
    key_hash: str | None
    order: OrderMode
    immunity_ms: int | None
    decided_at: tuple[int, int] | None  # op position (offset, line) of the decision
    moved_ms: int  # when it came here, or was decided here
    topics: tuple[str, ...] = ()  # its real topics, each once
    checked_count: int = 0  # questions asked; the number of the last one
    answered_count: int = 0  # of them answered with unknown
    asked_ms: int = 0  # when the last one was asked
    answered_number: int = 0  # the newest question that was answered
    twin_offsets: tuple[int, ...] = ()  # second copies that the broker kept; a line may name one


def user_headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    """The headers without txlayer's own, for those who pass a message on."""
    return [
        (name, value)
        for name, value in headers or ()
        if not name.startswith(RESERVED_HEADER_PREFIX)
    ]


def txn_id_of(key: str) -> str:
    """The transaction id in "id/nonce"."""
    return key.partition("/")[0]


def nonce_of(key: str) -> str:
    """The nonce in "id/nonce"."""
    return key.partition("/")[2]


_OR = "||"
_EVERY = "*"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which tags a consumer wants. What it does not want counts as handled."""

    wanted: frozenset[bytes] | None = None
    """None: every message, also those without a tag."""

    def accepts(self, tag: bytes | None) -> bool:
        """True for a message with this tag; None: it has none."""
        return self.wanted is None or tag in self.wanted


def parse_tags(expression: str) -> TagFilter:
    """The filter that an expression says: tags with `||` between them, or `*` (or nothing) for every message.

    A message has one tag; blanks around a tag do not count; `*` stands alone.

    Raises:
        ConfigError: there is nothing on one side of a `||`, or a `*` or `|` among tags. Nothing happened.
    """
    if expression.strip() in ("", _EVERY):
        return TagFilter()
    tags = [tag.strip() for tag in expression.split(_OR)]
    if any(not tag or tag == _EVERY or "|" in tag for tag in tags):
        raise ConfigError(name="tags", value=expression, expected='"TagA || TagC", or "*"')
    return TagFilter(frozenset(tag.encode() for tag in tags))
