"""Dead letters: their reasons and records, the names of their topics, the header `txl-dlq`, requests, and their states.

Decoders do not raise on malformed bytes: they return `Undecodable`. docs/explanation/protocol.md specifies the formats,
with test vectors.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from urllib.parse import quote, unquote

from txlayer.core.codec import NEXT_VERSION, PARTITION_MAX, VERSION, known_fields, malformed, whole
from txlayer.core.messages import (
    DLQ_SUFFIX,
    GROUP_LENGTH_MAX,
    REPLAY_SUFFIX,
    TXN_ID_LENGTH_MAX,
    Headers,
    Origin,
    Undecodable,
    is_topic_name,
)


class DeadLetterReason(Enum):
    """Why a consumer gave a message up; a closed list."""

    ATTEMPTS_EXHAUSTED = "attempts-exhausted"  #: its handler failed `attempt_count_max` times
    REJECTED = "rejected"  #: its handler returned `Reject`
    UNDECODABLE = "undecodable"  #: the deserializer could not read it
    KEY_PARKED = "key-parked"  #: an earlier message of its key is a dead letter, and the policy parks the key


class DeadLetter(NamedTuple):
    """The header `txl-dlq` of a message that was given up."""

    reason: DeadLetterReason
    origin: Origin  # topic, partition and offset of the message
    origin_ms: int  # timestamp of the original record
    attempt_count: int
    first_ms: int  # when its first attempt began
    last_ms: int  # when its last attempt ended
    error_type: str
    error_message: str  # shortened
    consumer_group: str
    # Of the message without content these two are in the header, too; of others they come from the message's own headers.
    txn_id: str = ""  # of the transaction that sent the message
    producer_group: str = ""  # if its producer has `is_group_named`


class ReplayKind(Enum):
    """Kinds of records in a replay topic."""

    REPLAY = "R"  #: handle this dead letter again
    DROP = "D"  #: give up this dead letter for good
    PAUSE = "P"  #: stop handling this partition
    RESUME = "U"  #: continue handling this partition
    RESULT = "E"  #: the result of a request; written by the partition's owner


class ReplayOutcome(Enum):
    """The result of a request."""

    HANDLED = "handled"  #: the handler succeeded
    FAILED = "failed"  #: the handler failed as often as allowed, or rejected it; the dead letter stays
    DROPPED = "dropped"  #: as requested
    MISSING = "missing"  #: there is no dead letter at that offset, or no longer
    UNKNOWN = "unknown"  #: no handler takes the message, it has no content, or this version does not know the form of the request


class ReplayRecord(NamedTuple):
    """A record of a replay topic."""

    kind: ReplayKind
    request_id: str
    dead_letter_offset: int | None  # None for a pause or a resume
    outcome: ReplayOutcome | None = None  # of a result
    text: str = ""  # "operator: reason", or a result's detail
    replaced_by: int | None = None  # of a drop: the dead letter that takes its place, an operator's copy


DLQ_HEADER = "txl-dlq"  # on a dead letter: the reason, the origin, the number of attempts, the consumer group
DLQ_CUT_HEADER = "txl-dlq-cut"
"""On a dead letter that its topic refused whole: its size in bytes at its origin. Value and headers are left out."""
MESSAGE_LENGTH_MAX = 500
"""Characters of an error's message: a sentence and a position. It may contain users' values, so not more."""
TYPE_LENGTH_MAX = 200  # characters of an error's type
EDITED = "edited"  # the error type of an operator's copy with another value

_FIELDS, _SENT_FIELDS = 12, 14
_REASONS = {reason.value: reason for reason in DeadLetterReason}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


# --- names ------------------------------------------------------------------------------------------------------------


def dead_letter_topic(group: str, topic: str) -> str:
    """The topic of a consumer group's dead letters of `topic`; each is in the partition that it came from."""
    return f"{group}.{topic}{DLQ_SUFFIX}"


def writer_name(group: str, name: str) -> str:
    """A transactional id for a group's dead letters: group names cannot contain `:`, so no prefix right of another group covers it."""
    return f"{group}:{name}"


def replay_topic(group: str, topic: str) -> str:
    """The topic of requests about those dead letters, in the dead letters' partitions."""
    return f"{group}.{topic}{REPLAY_SUFFIX}"


def source_topic(group: str, name: str) -> str | None:
    """The topic whose dead letters of `group` would be in a topic of this name; None: the name has another form.

    Names may contain dots, so another group's topic can have this form, too: the group in its dead letters decides.
    """
    head = f"{group}."
    topic = name[len(head) : -len(DLQ_SUFFIX)]
    return topic if name.startswith(head) and name.endswith(DLQ_SUFFIX) and topic else None


def namesakes(group: str, topic: str) -> list[tuple[str, str]]:
    """Every other group and topic whose dead letters, and requests about them, would be in the same topics."""
    parts = f"{group}.{topic}".split(".")
    pairs = [(".".join(parts[:n]), ".".join(parts[n:])) for n in range(1, len(parts))]
    return [(g, t) for g, t in pairs if g and t and (g, t) != (group, topic)]


def is_request_id(text: str) -> bool:
    """True for 1 to 64 letters, digits, `.`, `_` or `-`."""
    return _REQUEST_ID.fullmatch(text) is not None


# --- txl-dlq ----------------------------------------------------------------------------------------------------------


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """The value of the header `txl-dlq`, ASCII; the error's type and message are truncated to their limits."""
    origin = letter.origin
    error_type = _quoted(letter.error_type[:TYPE_LENGTH_MAX])
    message = quote(letter.error_message[:MESSAGE_LENGTH_MAX], safe=" ", errors="replace")
    version, sender = VERSION, ""
    if letter.txn_id or letter.producer_group:
        txn_id, group = letter.txn_id[:TXN_ID_LENGTH_MAX], letter.producer_group[:GROUP_LENGTH_MAX]
        version, sender = NEXT_VERSION, f"|{_quoted(txn_id)}|{_quoted(group)}"
    return (
        f"{version}|{letter.reason.value}|{origin.topic}|{origin.partition}|{origin.offset}|{letter.origin_ms}|"
        f"{letter.attempt_count}|{letter.first_ms}|{letter.last_ms}|{error_type}|{message}|"
        f"{_quoted(letter.consumer_group)}{sender}"
    ).encode("ascii")


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def decode_dead_letter(raw: bytes) -> DeadLetter | Undecodable:
    try:
        fields = raw.decode("ascii").split("|")
        known = known_fields(fields, _FIELDS)
        if known is None:
            return malformed("dead letter", fields, _FIELDS)
        _, word, topic, partition, offset, origin_ms, attempts, first, last, kind, message, group = known
        reason = _REASONS.get(word)
        if reason is None or not is_topic_name(topic) or not group:
            return Undecodable("dead letter: reason, topic or group out of form")
        if whole(partition) > PARTITION_MAX:
            return Undecodable("dead letter: no such partition")
        return DeadLetter(
            reason,
            Origin(topic, int(partition), whole(offset)),
            whole(origin_ms),
            whole(attempts),
            whole(first),
            whole(last),
            unquote(kind)[:TYPE_LENGTH_MAX],
            unquote(message)[:MESSAGE_LENGTH_MAX],
            unquote(group),
            *map(unquote, fields[_FIELDS:_SENT_FIELDS] if len(fields) >= _SENT_FIELDS else ()),
        )
    except ValueError as exc:
        return Undecodable(f"dead letter: {exc}")


def dead_letter_of(headers: Headers | None) -> DeadLetter | Undecodable:
    # The last one counts: the writer puts it behind the user's headers, whatever their names.
    for name, value in reversed(headers or ()):
        if name == DLQ_HEADER:
            return decode_dead_letter(value or b"")
    return Undecodable(f"no header {DLQ_HEADER}")


def is_cut(headers: Headers | None, value: bytes | None) -> bool:
    """True if a record of a dead-letter topic has no content: its topic refused it whole.

    Such a record has no value and two headers, both from txlayer, of which the first one is a number. A message with its own
    header `txl-dlq-cut` has a value, or that header is no number.
    """
    given = headers or ()
    return (
        value is None and [name for name, _ in given] == [DLQ_CUT_HEADER, DLQ_HEADER] and (given[0][1] or b"").isdigit()
    )


def original_headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    """The headers that the message had when it was given up: all but the last `txl-dlq`, which is txlayer's."""
    original = list(headers or ())
    for index in range(len(original) - 1, -1, -1):
        if original[index][0] == DLQ_HEADER:
            del original[index]
            break
    return original


# --- requests and results ---------------------------------------------------------------------------------------------

TEXT_LENGTH_MAX = 1_200  # characters of an operator's name and reason, or of a result's detail

_KINDS = {kind.value: kind for kind in ReplayKind}
_OUTCOMES = {outcome.value: outcome for outcome in ReplayOutcome}
_REQUEST_FIELDS = 5
_RESULT_FIELDS = 6
_OF_A_LETTER = frozenset({ReplayKind.REPLAY, ReplayKind.DROP})
_OF_A_QUEUE = frozenset({ReplayKind.PAUSE, ReplayKind.RESUME})


def encode_replay(record: ReplayRecord) -> bytes:
    """One line, ASCII: version|kind|request id|dead-letter offset|text; a result has its outcome before the text."""
    offset = "" if record.dead_letter_offset is None else str(record.dead_letter_offset)
    text = quote(record.text[:TEXT_LENGTH_MAX], safe=" ", errors="replace")
    outcome = "" if record.outcome is None else f"{record.outcome.value}|"
    version, copy = (VERSION, "") if record.replaced_by is None else (NEXT_VERSION, f"|{record.replaced_by}")
    return f"{version}|{record.kind.value}|{record.request_id}|{offset}|{outcome}{text}{copy}".encode("ascii")


def decode_replay(raw: bytes | None) -> ReplayRecord | Undecodable:
    try:
        fields = (raw or b"").decode("ascii").split("|")
        kind = _KINDS.get(fields[1]) if len(fields) > 1 else None
        count = _RESULT_FIELDS if kind is ReplayKind.RESULT else _REQUEST_FIELDS
        known = known_fields(fields, count)
        if known is None:
            return malformed("replay record", fields, count)
        copy = fields[count] if kind is ReplayKind.DROP and len(fields) > count else ""
        replaced_by = whole(copy) if copy else None
        fields = known
        offset = whole(fields[3]) if fields[3] else None
    except ValueError as exc:
        return Undecodable(f"replay record: {exc}")
    if kind is None or not is_request_id(fields[2]):
        return Undecodable("replay record: kind or request id out of form")
    if (kind in _OF_A_LETTER and offset is None) or (kind in _OF_A_QUEUE and offset is not None):
        return Undecodable("replay record: a dead letter's offset is missing, or where none belongs")
    text = unquote(fields[-1])[:TEXT_LENGTH_MAX]
    if kind is not ReplayKind.RESULT:
        return ReplayRecord(kind, fields[2], offset, text=text, replaced_by=replaced_by)
    outcome = _OUTCOMES.get(fields[4])
    if outcome is None:
        return Undecodable("replay record: outcome out of form")
    return ReplayRecord(kind, fields[2], offset, outcome, text)


class DeadLetterState(Enum):
    """States of a dead letter."""

    OPEN = "open"  #: no request
    REQUESTED = (
        "requested"  #: an operator requested a replay or a drop, and the owner of its partition has not answered
    )
    HANDLED = "handled"  #: replayed, and its handler succeeded
    FAILED = "failed"  #: replayed, and failed again; the dead letter stays
    DROPPED = "dropped"  #: dropped at an operator's request


ENDED = frozenset({DeadLetterState.HANDLED, DeadLetterState.DROPPED})  # states in which nothing is left to do

_STATES = {
    ReplayOutcome.HANDLED: DeadLetterState.HANDLED,
    ReplayOutcome.FAILED: DeadLetterState.FAILED,
    ReplayOutcome.DROPPED: DeadLetterState.DROPPED,
}


class DeadLetterEvent(NamedTuple):
    """One record about a dead letter or a queue, and its offset."""

    offset: int
    at_ms: int
    record: ReplayRecord


@dataclass(slots=True)
class DeadLetterHistory:
    """The requests and results of one dead letter."""

    asked: dict[str, DeadLetterEvent] = field(default_factory=dict)  # request id → the newest request
    unanswered: set[str] = field(default_factory=set)
    results: dict[str, DeadLetterEvent] = field(default_factory=dict)  # request id → the newest result
    ended: ReplayOutcome | None = None  # the last outcome that concerns the letter

    @property
    def state(self) -> DeadLetterState:
        if self.unanswered:
            return DeadLetterState.REQUESTED
        return DeadLetterState.OPEN if self.ended is None else _STATES[self.ended]

    @property
    def is_to_be_replayed(self) -> bool:
        """True if the request of a replay has no answer yet."""
        return any(self.asked[request_id].record.kind is ReplayKind.REPLAY for request_id in self.unanswered)

    def fold(self, said: DeadLetterEvent) -> None:
        request_id, outcome = said.record.request_id, said.record.outcome
        if outcome is None:
            self.asked[request_id] = said
            self.unanswered.add(request_id)
            self.results.pop(request_id, None)  # it was requested again: an earlier answer no longer counts
        else:
            self.results[request_id] = said
            self.unanswered.discard(request_id)
            if outcome in _STATES:
                self.ended = outcome


UNKNOWN_LETTER = DeadLetterHistory()  # for a dead letter without requests; not to be changed


@dataclass(slots=True)
class PartitionStates:
    """The dead letters of one partition with requests, and whether its queue is paused."""

    letters: dict[int, DeadLetterHistory] = field(default_factory=dict)
    pause: DeadLetterEvent | None = None  # the newest request to pause or to resume

    def fold(self, said: DeadLetterEvent) -> None:
        """Fold the next record of this partition of the replay topic, in offset order."""
        record = said.record
        if record.kind in (ReplayKind.PAUSE, ReplayKind.RESUME):
            self.pause = said
        elif record.dead_letter_offset is not None:
            self.letters.setdefault(record.dead_letter_offset, DeadLetterHistory()).fold(said)

    def of(self, offset: int) -> DeadLetterHistory:
        return self.letters.get(offset, UNKNOWN_LETTER)


ANSWERED_COUNT_MAX = 100_000
"""Requests that `AnsweredRequests` remembers: some 25 MB. A queue adds none that is further behind its lowest unfinished one."""


class AnsweredRequests:
    """Which requests of one partition have a result. Without `with_pauses` not of a pause or a resume: they take effect again, the newest last.

    It remembers at most `count_max` requests without a result, the first ones, and as many with one, the last ones.
    """

    def __init__(self, *, with_pauses: bool = False, count_max: int = ANSWERED_COUNT_MAX) -> None:
        self._with_pauses = with_pauses
        self._open: dict[tuple[str, int | None], list[int]] = {}  # (request id, dead letter) → its requests
        self._open_count = 0
        self._answered: deque[int] = deque(maxlen=count_max)
        self._count_max = count_max

    def fold(self, offset: int, record: ReplayRecord) -> None:
        """Fold the next record, in offset order."""
        if record.dead_letter_offset is None and not self._with_pauses:
            return
        name = record.request_id, record.dead_letter_offset
        if record.outcome is not None:
            found = self._open.pop(name, [])
            if record.dead_letter_offset is None and len(found) > 1:
                # Each pause and each resume has a result of its own, in their order.
                self._open[name], found = found[1:], found[:1]
            self._open_count -= len(found)
            self._answered.extend(found)
        elif self._open_count < self._count_max:
            self._open.setdefault(name, []).append(offset)
            self._open_count += 1

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Their offsets: from the first number to before the second, ascending."""
        runs: list[tuple[int, int]] = []
        for offset in sorted(self._answered):
            if runs and runs[-1][1] == offset:
                runs[-1] = runs[-1][0], offset + 1
            else:
                runs.append((offset, offset + 1))
        return tuple(runs)
