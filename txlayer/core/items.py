"""One record's way through a queue. Never who may start (key_queues.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from txlayer.core.attempts import GiveUp, RetryPolicy, TryAgain, Verdict, resume_at_ms
from txlayer.core.handling import (
    AfterExhausted,
    DeadLetterReason,
    Reject,
    ReplayOutcome,
    ReplayRecord,
    Retry,
)
from txlayer.core.progress import METADATA_BYTES_MAX, Snapshot
from txlayer.core.progress_codec import NOTHING, Attempts, StoredProgress
from txlayer.errors import ConfigError

R = TypeVar("R")
"""A record as the caller has it; nothing here looks into it."""

Chain = bytes | int | None
"""What is in order: a key, a null key, or (an offset) a record that waits for nobody."""


class ItemSource(Enum):
    """Where an item was read."""

    TOPIC = "topic"  #: the partition itself
    REPLAY = "replay"  #: requests to handle its dead letters again


class Order(Enum):
    """What waits for what."""

    KEY = "key"  #: records of one key
    PARTITION = "partition"  #: all records of the partition
    NONE = "none"  #: nothing


class NullKeys(Enum):
    """What records without a key wait for, where those with one go by key."""

    ORDERED = "ordered"  #: for each other, as if null were a key
    FREE = "free"  #: for nothing


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How a queue is worked off.

    Raises:
        ConfigError: parking keys is asked for where there is no order to keep, or a limit makes no sense.
    """

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    order: Order = Order.KEY
    null_keys: NullKeys = NullKeys.ORDERED
    metadata_bytes_max: int = METADATA_BYTES_MAX
    parked_keys_max: int = 64
    """Each takes 19 bytes of the stored metadata; with so many parked the partition waits for replays."""

    def __post_init__(self) -> None:
        if self.order is Order.NONE and self.policy.after_exhausted is AfterExhausted.PARK:
            raise ConfigError(
                name="after_exhausted",
                value="park",
                expected="go-on: without order no key is parked",
            )
        if self.parked_keys_max < 1:
            raise ConfigError(
                name="parked_keys_max", value=self.parked_keys_max, expected="at least 1"
            )


class Start(NamedTuple):
    """Where a source starts: the stored offset, and what its metadata say."""

    offset: int
    stored: StoredProgress = NOTHING


class Failure(NamedTuple):
    """What a handler said of an attempt that did not succeed; an exception is a `Retry`."""

    result: Retry | Reject
    started_ms: int
    error_type: str = ""
    error_message: str = ""


class Snapshots(NamedTuple):
    """The stored offsets of both sources, to be stored together."""

    topic: Snapshot
    replays: Snapshot


class QueueFigures(NamedTuple):
    """A queue, for operators."""

    unfinished_count: int
    """Records and requests that have no end yet."""
    size_bytes: int
    in_flight_count: int
    ready_count: int
    """Chains whose first item could be taken."""
    retry_count: int
    """Items that wait for their back-off, or for the count of their attempts to be stored."""
    due_count: int
    """Chains whose first item's end is to be written."""
    parked_count: int
    oldest_added_ms: int | None
    """When the oldest unfinished record of the topic was added, as of the last snapshot; None: there is none."""
    is_full: bool
    is_paused: bool


End = DeadLetterReason | ReplayOutcome
"""Why a record becomes a dead letter, or what became of a request."""


@dataclass(slots=True)
class More:
    """What few items have: failed attempts, a request to replay, an end to be written."""

    request: ReplayRecord | None = None
    attempt_count: int = 0  # attempts that have ended
    first_ms: int = 0  # when the first one began; after a restart to the second
    last_ms: int = 0  # when the last one ended
    error_type: str = ""
    error_message: str = ""
    verdict: Verdict | None = None
    end: End | None = None
    is_counted: bool = True  # False: its last attempt's count is not stored yet
    is_waiting: bool = False  # it is first, and waits for that

    def tell(self, failure: Failure, *, now_ms: int) -> None:
        """An attempt has ended so."""
        self.first_ms = self.first_ms or failure.started_ms
        self.last_ms = now_ms
        self.error_type, self.error_message = failure.error_type, failure.error_message

    def remember(
        self, attempts: Attempts, policy: RetryPolicy, *, offset: int, taken_over_ms: int
    ) -> None:
        """So it was before a restart; the last error is forgotten, and its back-off begins anew."""
        self.attempt_count = attempts.ended_count
        self.first_ms = self.last_ms = attempts.first_at_s * 1000
        if self.attempt_count >= policy.attempt_count_max:
            self.verdict = GiveUp(DeadLetterReason.ATTEMPTS_EXHAUSTED)
            return
        at_ms = resume_at_ms(
            self.attempt_count, first_at_s=attempts.first_at_s, offset=offset, taken_over_ms=taken_over_ms, policy=policy
        )  # fmt: skip
        self.verdict = TryAgain(at_ms)


class Item(Generic[R]):
    """A record between being read and its end. The queue alone changes it."""

    __slots__ = ("chain", "follower", "more", "offset", "record", "size_bytes")

    def __init__(self, record: R, offset: int, chain: Chain, size_bytes: int) -> None:
        self.record = record
        self.offset = offset
        self.chain = chain
        self.size_bytes = size_bytes
        self.follower: Item[R] | None = None  # the next of its chain
        self.more: More | None = None

    @property
    def is_replay(self) -> bool:
        """True for a request of the replay topic."""
        return self.more is not None and self.more.request is not None

    @property
    def source(self) -> ItemSource:
        """Which topic's offset it has."""
        return ItemSource.REPLAY if self.is_replay else ItemSource.TOPIC

    @property
    def attempt_count(self) -> int:
        """How many attempts have ended."""
        return 0 if self.more is None else self.more.attempt_count

    def __repr__(self) -> str:
        return f"Item({self.source.value} {self.offset}, chain {self.chain!r}, {self.more})"
