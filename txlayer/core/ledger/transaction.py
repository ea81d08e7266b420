"""A transaction as the ledger keeps it in memory, and the real topics as the ledger sees them. Compact: there may be a million."""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from txlayer.core.codec import WHOLE_MAX, brief_check_with
from txlayer.core.ledger.transitions import SETTLED, TxnEvent, TxnState
from txlayer.core.messages import (
    NO_OPTIONS,
    TOPICS_BYTES_MAX,
    TOPICS_MAX,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OrderMode,
    ParkReason,
    UnresolvedAction,
    many_headers_bytes,
    user_headers,
)

OpPosition = tuple[int, int]  # (op offset, line within the record)

NOT_IN_DOUBT = -1

RECORD_BYTES = 64  # overhead of a record in memory or in a batch, beside its key, value and headers


class HalfRecordFit(Enum):
    """How a half record with a transaction's key relates to the transaction."""

    NEXT = "next"  # the next one: it joins
    OWN = "own"  # the record that joined under this index
    COPY = "copy"  #: a second copy of one that joined
    NONE = "none"  #: no part of it


class Content(NamedTuple):
    """One message of a transaction, with the record that holds it."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which has no caller
    topic: str
    offset: int  # of the half record
    options: HalfOptions
    born: str
    record: Any  # opaque to the core: key(), value(), headers()


HAS_TIMES = frozenset({TxnState.WAITING, TxnState.SCHEDULED, TxnState.HELD, TxnState.PARKED_COMMITTED})
"""States of a committed transaction in which some of its messages may still wait for their time."""


@dataclass(slots=True, eq=False)
class DueTimes:
    """Which messages of a transaction are due when. Their times only grow, so two bounds say what became of the earlier ones."""

    sent_to: int = 0  # messages with an earlier time are forwarded, or go with this batch
    released_to: int = 0  # those from there on with an earlier time than this are released
    left: tuple[int, ...] = ()  # times of the others, the earliest first; 0: with the decision
    # Op position of its complete commit; `TransactionExtras.decided_at` is that of its last release.
    committed_at: OpPosition | None = None
    part: tuple[int, int] = (0, 0)  # times of those that go with this batch: from, to
    said_ms: int = -1  # since the last restart, lines were written that release all times up to here

    def add(self, time_ms: int) -> None:
        """A message with this time belongs to the transaction."""
        if time_ms >= self.released_to and time_ms not in self.left:
            self.left = tuple(sorted((*self.left, time_ms)))

    def release(self, time_ms: int) -> None:
        """The first of the times that are left has come; with the last one, all that is left is released."""
        self.left = self.left[1:]
        self.released_to = time_ms + 1 if self.left else ANY_TIME

    def take_part(self) -> None:
        """What is released goes with this batch."""
        self.part = self.sent_to, self.released_to
        self.sent_to = self.released_to

    @property
    def is_due(self) -> bool:
        """True if messages are released and not forwarded."""
        return self.sent_to < self.released_to


SUMMARY_NAMES_MAX = 4_096
"""Bytes of names of real topics up to which a summary is written again for each half record that comes late: of thousands that come one by
one, each would write all names again. Beyond it, that waits for `doubt_after`, or for the last half record."""
TIMES_MAX = 64
"""Different times of one transaction's messages. Not a setting: every reader must agree on which records belong to it."""
ANY_TIME = WHOLE_MAX  # the latest time that a message can have


FEW_TOPICS = 16
"""Up to here the real topics of a transaction are a tuple, which is small; more are found and counted in one step each."""


class ManyTopics(dict[str, None]):
    """The real topics of a transaction that has many, in their order."""

    __slots__ = ("byte_count",)

    def __init__(self, topics: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(topics))
        self.byte_count = sum(map(len, self))  # of their names


def _kept_topics(topics: tuple[str, ...]) -> tuple[str, ...] | ManyTopics | None:
    """As `TransactionExtras.topics` has them."""
    if len(topics) > FEW_TOPICS:
        return ManyTopics(topics)
    return topics if len(topics) > 1 else None


@dataclass(slots=True, eq=False)
class TransactionExtras:
    """Fields that only some transactions need: several messages, an offset on the doubt topic, check-backs, a decision that waits."""

    offsets: list[int] | None = None  # of the half records 0, 1, …; None: only `first_offset`
    # Offsets of records that the broker stored twice (librdkafka #4953).
    second_copies: list[int] | None = None
    topics: tuple[str, ...] | ManyTopics | None = None  # all real topics; None: only `Transaction.topic`
    doubt_offset: int = NOT_IN_DOUBT  # of the first content
    # (index, doubt offset) of contents that were written later; the others are right behind the one before them.
    further_at: tuple[tuple[int, int], ...] = ()
    is_growing: bool = False  # its newest summary says that contents behind it belong to the transaction
    due: DueTimes | None = None  # None: all of its messages go with the decision
    joined: list[Content] | None = None  # joined after the move to doubt; the next batch writes them there
    lag_ms: int = 0  # from birth to append, if `Transaction.born` was dropped
    moved_ms: int = 0  # when it moved to doubt, or was decided there
    reason: ParkReason | None = None
    decided_at: OpPosition | None = None
    checked_count: int = 0  # number of check-backs, and of the last one
    answered_count: int = 0  # check-backs answered with unknown
    asked_ms: int = 0  # when the last check-back was sent
    answered_number: int = 0  # the newest check-back that was answered


class Transaction:
    """A transaction that is not settled, or was settled just now. `extras` is None for a single message in half.

    The content of a single message whose options contain at most an ordering key is its record; otherwise it is a list.
    """

    __slots__ = (
        "appended_ms",
        "born",
        "content",
        "count",
        "extras",
        "first_offset",
        "group",
        "key",
        "last_offset",
        "options",
        "replay_from",
        "seen",
        "size",
        "state",
        "topic",
    )

    def __init__(
        self,
        key: str,
        group: str,
        topic: str,
        offset: int,
        appended_ms: int,
        born: str,
        replay_from: OpPosition,
        content: Any,
        size: int = 0,
        options: HalfOptions = NO_OPTIONS,
    ) -> None:
        self.key = key
        self.state = TxnState.OPEN
        self.group = group
        self.topic = topic
        self.first_offset = offset
        self.last_offset = offset
        self.count = 1
        self.seen = 1
        self.appended_ms = appended_ms
        self.born = born  # digits; "" on doubt: then `TransactionExtras.lag_ms` is smaller
        self.replay_from = replay_from
        self.content = content
        self.size = size  # bytes of its records, in memory or not
        self.options = options  # the producer's options; equal ones share an object
        self.extras: TransactionExtras | None = None

    @property
    def key_hash(self) -> str | None:
        return self.options.key_hash

    @property
    def waits_for_undecided(self) -> bool:
        """True with `order="prepare"`."""
        return self.options.order is OrderMode.PREPARE

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    @property
    def _topics(self) -> tuple[str, ...] | ManyTopics:
        topics = None if self.extras is None else self.extras.topics
        return topics or (self.topic,)

    @property
    def topics_bytes(self) -> int:
        topics = self._topics
        return topics.byte_count if isinstance(topics, ManyTopics) else sum(map(len, topics))

    def has_room_for(self, topic: str) -> bool:
        """True if one more message may go to this real topic."""
        topics = self._topics
        is_full = len(topics) >= TOPICS_MAX or self.topics_bytes + len(topic) > TOPICS_BYTES_MAX
        return not is_full or topic in topics

    def add_topic(self, topic: str) -> None:
        topics = self._topics
        if topic in topics:
            return
        if isinstance(topics, ManyTopics):
            topics[topic] = None
            topics.byte_count += len(topic)
        else:
            self.ensure_extras().topics = _kept_topics((*topics, topic))

    @property
    def topics_left(self) -> tuple[str, ...]:
        """The real topics of those of its messages that are not forwarded and do not go with the batch, as far as its content tells."""
        due = self.due
        if due is None or not due.sent_to or not isinstance(self.content, list):
            return self.topics
        return tuple({c.topic: None for c in self.content if (c.options.deliver_at_ms or 0) >= due.sent_to})

    @property
    def lacks_topics(self) -> bool:
        """True if doubt took no summary with the names of its real topics, and its contents were not read since a restart."""
        return not self.topic and self.seen > 0

    def learn_topics(self, contents: Iterable[Content]) -> None:
        """Take the names of its real topics from all of its contents."""
        topics = tuple(dict.fromkeys(content.topic for content in contents))
        self.topic, self.ensure_extras().topics = topics[0], _kept_topics(topics)

    @property
    def is_in_doubt(self) -> bool:
        return self.extras is not None and self.extras.doubt_offset != NOT_IN_DOUBT

    @property
    def copy_count(self) -> int:
        """Number of second copies of its half records that are remembered."""
        return 0 if self.extras is None else len(self.extras.second_copies or ())

    @property
    def due(self) -> DueTimes | None:
        """When its messages are due; None: with the decision."""
        return None if self.extras is None else self.extras.due

    @property
    def joined(self) -> list[Content]:
        """Contents that joined after the move to doubt, and that the next batch writes there."""
        return (None if self.extras is None else self.extras.joined) or []

    @property
    def is_abandoned(self) -> bool:
        """True if it was abandoned after its commit."""
        is_decided = self.extras is not None and self.extras.decided_at is not None
        return is_decided and self.state is TxnState.ROLLED_BACK

    @property
    def born_ms(self) -> int:
        if self.born:
            return int(self.born)
        return self.appended_ms - (0 if self.extras is None else self.extras.lag_ms)

    def ensure_extras(self) -> TransactionExtras:
        if self.extras is None:
            self.extras = TransactionExtras()
        return self.extras

    @property
    def may_be_released(self) -> bool:
        """True if it is committed, and messages of it wait for their time."""
        due = self.due
        return due is not None and due.committed_at is not None and bool(due.left) and self.state in HAS_TIMES

    def fit_of(self, header: HalfHeader, offset: int) -> HalfRecordFit:
        """How the half record at `offset` relates to this transaction, both when half is folded and when it is read again.

        Of a transaction on doubt the records are not compared: only coordinators write there, and only the transaction's own records.
        """
        index, extras = header.index, self.extras
        if header.key != self.key or header.count != self.count or index > self.seen:
            return HalfRecordFit.NONE
        if index == self.seen:
            return HalfRecordFit.NEXT
        if self.is_in_doubt:
            return HalfRecordFit.OWN
        offsets = None if extras is None else extras.offsets
        own = self.first_offset if offsets is None else offsets[index]
        return HalfRecordFit.OWN if offset == own else HalfRecordFit.COPY

    def has_half_at(self, offset: int) -> bool:
        """True if an op line that names `offset` can belong to this transaction."""
        extras = self.extras
        if offset == self.last_offset or self.seen == 0:  # known from an op line only: no offset to compare
            return True
        if extras is None:
            return False
        offsets = extras.offsets or ()  # ascending, and one op record may name thousands of them
        place = bisect_left(offsets, offset)
        return offset in offsets[place : place + 1] or offset in (extras.second_copies or ())

    def is_of_group(self, producer_group: str) -> bool:
        """True if an op line that names `producer_group` can belong to this transaction."""
        return producer_group == self.group or not self.seen  # unknown without a half record

    def is_complete_at(self, offset: int) -> bool:
        """True if all of its half records are at or before `offset`.

        As of that offset, not as of now: the effect of an op line must not depend on how far half was read.
        """
        return self.seen == self.count > 0 and offset >= self.last_offset

    @property
    def may_grow(self) -> bool:
        """True if half records that come late need no new summary: it would name too much each time."""
        return self.seen < self.count and self.due is None and self.topics_bytes > SUMMARY_NAMES_MAX

    def forget_topics(self) -> None:
        """Keep the real topics of those of its messages that are not forwarded: only these must accept."""
        if self.due is not None:
            topics = self.topics_left
            self.topic, self.ensure_extras().topics = topics[0], _kept_topics(topics)

    def forget_joined(self) -> None:
        """The doubt topic has these, too."""
        extras = self.ensure_extras()
        extras.joined = None
        if extras.offsets is not None:
            extras.offsets = [self.first_offset, self.last_offset]

    def forget_content(self) -> None:
        """The doubt topic has it whole: keep exactly the fields that its summary has."""
        self.forget_joined()
        extras = self.ensure_extras()
        extras.further_at = ()
        if self.born:
            extras.lag_ms = self.appended_ms - int(self.born)
            self.born = ""
        self.content = None
        given = self.options
        kept = _kept_options(given.key_hash, given.order, given.immunity_ms, given.check_with, given.unresolved)
        if kept != given or given.key_hash is None:  # those of one key share an object already
            self.options = kept

    def summary(self) -> DoubtSummary:
        """The summary for the doubt topic. The transaction stays as it is, and as small."""
        extras = self.extras or TransactionExtras()
        topics = self.topics_left
        return DoubtSummary(
            key=self.key,
            state=self.state.value,
            reason="" if extras.reason is None else extras.reason.value,
            producer_group=self.group,
            first_offset=max(self.first_offset, 0),
            last_offset=max(self.last_offset, 0),
            seen=self.seen,
            count=self.count,
            appended_ms=self.appended_ms,
            born_ms=self.born_ms,
            key_hash=self.options.key_hash,
            order=self.options.order,
            immunity_ms=self.options.immunity_ms,
            decided_at=extras.decided_at,
            moved_ms=extras.moved_ms,
            topics=topics if all(topics) else (),
            checked_count=extras.checked_count,
            answered_count=extras.answered_count,
            asked_ms=extras.asked_ms,
            answered_number=extras.answered_number,
            twin_offsets=tuple(extras.second_copies or ()),
            sent_to=0 if extras.due is None else extras.due.sent_to,
            released_to=0 if extras.due is None else extras.due.released_to,
            times=() if extras.due is None else extras.due.left,
            committed_at=None if extras.due is None else extras.due.committed_at,
            unresolved=self.options.unresolved if self.state is TxnState.OPEN else None,
            is_growing=self.may_grow,
        )


def _kept_options(
    key_hash: str | None,
    order: OrderMode,
    immunity_ms: int | None,
    check_with: str,
    unresolved: UnresolvedAction | None,
) -> HalfOptions:
    """What is kept in memory of the options of a transaction on doubt; equal ones without an ordering key share an object."""
    options = HalfOptions(key_hash, order, immunity_ms, check_with=brief_check_with(check_with), unresolved=unresolved)
    return options if key_hash is not None else _shared(options)


@lru_cache(maxsize=1_000)
def _shared(options: HalfOptions) -> HalfOptions:
    return NO_OPTIONS if options == NO_OPTIONS else options


def from_summary(
    summary: DoubtSummary,
    *,
    doubt_offset: int,
    size: int = 0,
    check_with: str = "",
    further_at: tuple[tuple[int, int], ...] = (),
) -> Transaction:
    """The transaction that a doubt summary describes; its content, which says `check_with`, stays on doubt. ValueError: of a later release."""
    topics = tuple(map(sys.intern, summary.topics)) or ("",)
    txn = Transaction(
        summary.key,
        sys.intern(summary.producer_group),
        topics[0],
        summary.first_offset,
        summary.appended_ms,
        "",
        (0, 0),
        None,
        size,
    )
    txn.state = TxnState(summary.state)
    if txn.state in SETTLED:
        raise ValueError(f"no summary says {summary.state}")
    txn.seen = summary.seen
    txn.count = summary.count
    extras = txn.ensure_extras()
    txn.options = _kept_options(summary.key_hash, summary.order, summary.immunity_ms, check_with, summary.unresolved)
    if summary.last_offset != summary.first_offset:
        txn.last_offset = summary.last_offset
    if summary.count != 1:
        extras.offsets = [txn.first_offset, txn.last_offset]
    extras.topics = _kept_topics(topics)
    extras.doubt_offset = doubt_offset
    extras.further_at = further_at
    extras.is_growing = summary.is_growing
    extras.lag_ms = summary.appended_ms - summary.born_ms
    extras.moved_ms = summary.moved_ms
    extras.reason = ParkReason(summary.reason) if summary.reason else None
    extras.decided_at = summary.decided_at
    extras.checked_count = summary.checked_count
    extras.answered_count = summary.answered_count
    extras.asked_ms = summary.asked_ms
    extras.answered_number = summary.answered_number
    extras.second_copies = list(summary.twin_offsets) or None
    if summary.is_timed:
        extras.due = DueTimes(summary.sent_to, summary.released_to, summary.times, summary.committed_at)
    return txn


def summary_bytes(txn: Transaction) -> int:
    """Size that a transaction's summary or a question about it counts for in a batch: both name its real topics."""
    second_copies, due = (None, None) if txn.extras is None else (txn.extras.second_copies, txn.extras.due)
    numbers = len(second_copies or ()) + (0 if due is None else 2 + len(due.left))
    return RECORD_BYTES + txn.topics_bytes + 20 * numbers


def record_size(record: Any) -> int:
    headers = sum(len(name) + len(value or b"") + 2 for name, value in record.headers() or ())
    return len(record) + len(record.key() or b"") + headers


def user_size(record: Any) -> int:
    """Size in bytes of the parts of a half record that are forwarded: the user's own."""
    headers = user_headers(record.headers())
    return len(record) + len(record.key() or b"") + sum(len(name) + len(value or b"") + 2 for name, value in headers)


def held_bytes(record: Any) -> int:
    """Size that a record counts for in memory and in a batch."""
    return RECORD_BYTES + record_size(record) + many_headers_bytes(len(record.headers() or ()))


def records_of(txn: Transaction) -> Iterator[tuple[str, Any]]:
    """(real topic, record) of every message whose content is in memory."""
    if isinstance(txn.content, list):
        return ((c.topic, c.record) for c in txn.content)
    return iter(()) if txn.content is None else iter(((txn.topic, txn.content),))


def contents_of(txn: Transaction) -> list[Content]:
    """The contents of a transaction that are in memory, in order."""
    if txn.content is None:
        return []
    if isinstance(txn.content, list):
        return txn.content
    return [Content(0, txn.topic, txn.first_offset, txn.options, txn.born, txn.content)]


def goes_now(txn: Transaction, content: Content) -> bool:
    """True if a batch that forwards this transaction forwards this content: it forwards all, or those of its part."""
    if (due := txn.due) is None:
        return True
    start, end = due.part
    return start <= (content.options.deliver_at_ms or 0) < end + (end == ANY_TIME)  # no message has a later one


def due_contents(txn: Transaction) -> list[Content]:
    """The contents in memory that a batch forwards."""
    contents = contents_of(txn)
    return contents if txn.due is None else [content for content in contents if goes_now(txn, content)]


FORWARD_OVERHEAD_BYTES = 512
"""Allowance for txlayer's headers when a record is compared with the limit of doubt, or of its topic before it is measured."""
ANY_SIZE = 1 << 62  # greater than any transaction


class Target(NamedTuple):
    """A real topic. `refusal` is None if it accepts, else the reason why it refuses."""

    message_bytes_max: int
    quick_bytes_max: int = -1  # values up to this size are not measured with key and headers
    refusal: ParkReason | None = None
    is_for_good: bool = False  # True: park at once; False: hold until it accepts
    slow_bytes_min: int = ANY_SIZE  # transactions from this size on take too long: they are held

    def refusal_of(self, txn: Transaction) -> ParkReason | None:
        """Why the topic does not accept this transaction now; None if it does."""
        return ParkReason.TOPIC_UNREACHABLE if txn.size >= self.slow_bytes_min else self.refusal


UNKNOWN_TARGET = Target(0, -1, ParkReason.TOPIC_MISSING)


def accepting_target(message_bytes_max: int, *, slow_bytes_min: int = ANY_SIZE) -> Target:
    """A topic that exists and accepts writes, but for transactions of at least `slow_bytes_min`."""
    # Half is reserved for key and headers; the broker refuses a record that needs more, and bisection finds it.
    quick_bytes_max = min(message_bytes_max // 2 - FORWARD_OVERHEAD_BYTES, slow_bytes_min - 1)
    return Target(message_bytes_max, quick_bytes_max, slow_bytes_min=slow_bytes_min)


def hold_or_park(
    txn: Transaction,
    *,
    targets: Mapping[str, Target],
    refusal: ParkReason | None,
    messages_max: int,
    is_beyond_limit: bool,
) -> tuple[TxnEvent, ParkReason | None]:
    """At its turn, a committed and complete one goes, is held until its topics accept, or is parked for a person, with the reason.

    `refusal`: why a broker refused one of its records. `is_beyond_limit`: it has more bytes than a transaction may have.
    Which topics refuse, and since when: coordinator/targets.py. Which records: coordinator/refusals.py. Parked elsewhere: one whose half
    records are incomplete (`Ledger._next_event`), that is undecided (`Ledger._give_up`) or held (`Ledger.let_time_pass`) for too long.
    """
    if refusal is not None:
        return TxnEvent.RECORD_REFUSED, refusal
    if txn.count > messages_max or is_beyond_limit:
        return TxnEvent.RECORD_REFUSED, ParkReason.LIMIT
    found = [targets.get(topic, UNKNOWN_TARGET) for topic in txn.topics]
    for target in found:
        if target.refusal is not None and target.is_for_good:
            return TxnEvent.RECORD_REFUSED, target.refusal
    for target in found:
        if (held := target.refusal_of(txn)) is not None:
            return TxnEvent.TARGET_REFUSES, held
    # Only records that cannot fit at all. The broker measures the overhead of our headers and of the batch, and content that was
    # dropped; bisection finds a record that it refuses.
    if any(
        user_size(record) > targets.get(topic, UNKNOWN_TARGET).message_bytes_max for topic, record in records_of(txn)
    ):
        return TxnEvent.RECORD_REFUSED, ParkReason.TOO_LARGE
    return TxnEvent.GO, None
