"""What is known of one run of consumers, simulated or real, for its judge. Never: how it was found out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.logs import Seen
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.core.dead_letters import DeadLetter
from txlayer.core.key_queue import NullKeys, QueueOrder


@dataclass(slots=True)
class BreakerTimes:
    """When the breaker of one topic in one process opened and closed."""

    later_max_ms: float
    """So long it may spare one message."""
    changes: list[tuple[float, bool]] = field(default_factory=list)  # (when, True: it opened)
    heard: list[tuple[float, bool]] | None = None
    """The same, when its workers could hear of it; None: at once."""

    def is_heard_open(self, at_ms: float) -> bool:
        """Its workers know that it is open."""
        return bool(self.was_open(at_ms)) and (self.heard is None or bool(self._was_open(self.heard, at_ms)))

    def was_open(self, at_ms: float) -> bool | None:
        """None: it changed at that moment."""
        return self._was_open(self.changes, at_ms)

    def _was_open(self, changes: Sequence[tuple[float, bool]], at_ms: float) -> bool | None:
        found = False
        for changed_ms, is_open in changes:
            if changed_ms == at_ms:
                return None
            if changed_ms > at_ms:
                break
            found = is_open
        return found


@dataclass(slots=True, eq=False)
class HandlerCall:
    """One message in one call of a handler."""

    process: str
    writer: str  # the dead-letter writer of whoever owned the queue
    tenure: int  # one from a take-over of the queue until it is given up
    topic: str
    partition: int
    offset: int  # of the message
    key: bytes | None
    attempt: int
    token: int | None
    began_ms: float
    batch: int = 0  # the same for all messages of one call
    request_offset: int | None = None  # of a replay: its request
    letter_offset: int | None = None  # of a replay: its dead letter
    ended_ms: float | None = None  # None: its process died, or it runs still
    result: str = ""  # handled, raise, retry, later, postponed, reject, given back
    given_up_ms: float | None = None  # its attempt counts as failed from then on, whatever it says
    taken_ms: float | None = None  # its consumer learned that it failed; known if there is a breaker
    breaker: BreakerTimes | None = None
    maybe_postponed_ms: float | None = (
        None  # its message was first postponed in its tenure, perhaps; the judge finds it
    )
    postponed_ms: float | None = None  # the same, for sure
    ready_ms: float | None = None  # from when on a program could take it: its time began then
    heard: DeadLetter | None = None  # what it was told of a dead letter

    @property
    def is_handled(self) -> bool:
        """It succeeded, and nobody had given it up."""
        return self.result == "handled" and self.given_up_ms is None

    @property
    def counts(self) -> set[int]:
        """What it adds to the attempts of its message, if it failed: 1 or 0, or either where only the order within a moment tells."""
        if self.result == "given back":
            return {0}
        is_given_up, breaker = self.given_up_ms is not None, self.breaker
        found = {int(self.result != "postponed" or is_given_up)}
        if breaker is None or self.taken_ms is None or (self.result == "reject" and not is_given_up):
            return found
        was_open = breaker.was_open(self.taken_ms)
        if was_open:
            found = {0}
        elif was_open is None:
            found.add(0)
        # Clocks run at different rates.
        if self.taken_ms - (self.postponed_ms or self.taken_ms) > breaker.later_max_ms * 1.2:
            return {1}
        may_be_over = self.taken_ms - (self.maybe_postponed_ms or self.taken_ms) > breaker.later_max_ms * 0.8
        return found | {1} if may_be_over else found

    @property
    def over_ms(self) -> float | None:
        """When its attempt was over for the consumer; None: it is not."""
        return self.ended_ms if self.given_up_ms is None else self.given_up_ms


class Stored(NamedTuple):
    """The group stored this, seen at that moment."""

    at_ms: float
    place: TopicPartition
    stored: StoredOffset


class Effect(NamedTuple):
    """A handler's write to a table that compares fencing tokens."""

    at_ms: float
    process: str
    row: tuple[str, int, bytes | None]  # topic, partition, key
    offset: int
    token: int
    is_accepted: bool
    is_replay: bool


class Learned(NamedTuple):
    """A process read a record of the lock log."""

    at_ms: float
    process: str
    partition: int
    offset: int


class ConsumerLogs(NamedTuple):
    """What was read, with read_committed, in offset order per partition."""

    topics: Sequence[Seen]
    letters: Sequence[Seen]
    replays: Sequence[Seen]
    locks: Sequence[Seen]


@dataclass(slots=True)
class ConsumerHistory:
    """One run of one group."""

    logs: ConsumerLogs
    group: str
    topics: tuple[str, ...]
    partition_count: int
    order: QueueOrder
    null_keys: NullKeys
    is_parking: bool
    attempt_count_max: int
    lease_expiry_ms: int
    attempt_timeout_ms: float = 300_000.0
    is_leased: bool = True
    is_calm: bool = False
    """Nothing went wrong: consumers came, and left in order."""
    is_broadcast: bool = False
    """One instance, without dead letters: a message whose last attempt failed, or that was rejected, has ended."""
    is_over: bool = False
    """The group ended with its process, whatever was left."""
    begins_behind: Mapping[TopicPartition, int] = field(default_factory=dict)
    """It began here, or behind it, where it stored its first place."""
    hears_of: tuple[str | None] | None = None
    """Its messages are dead letters, and handlers take those of this producer group; None there: those of all."""
    calls: Sequence[HandlerCall] = ()
    """In the order of their begin."""
    stored: Sequence[Stored] = ()
    """Every change that was seen, in order; the last one of each place is of the end."""
    effects: Sequence[Effect] = ()
    learned: Sequence[Learned] = ()
    holders: Mapping[str, str] = field(default_factory=dict)
    """{holder in the lock log: process}."""
    ends: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """At the end, {partition: (last stable offset, end)}."""
