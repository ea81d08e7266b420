"""What handlers answer, and what becomes of a message that a consumer gave up. Never the wire format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, final

from txlayer.core.messages import Origin

DELAY_MS_MAX = 366 * 24 * 3_600_000
"""Longest delay of a `Retry`: its key waits meanwhile, and a longer one is a wrong unit."""


class Delay(Protocol):
    """A `timedelta`, which the core does not import."""

    def total_seconds(self) -> float:
        """Its length."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Ack:
    """The message is handled; a handler that returns nothing says the same."""


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """The message is to be tried again; an exception says the same. What a handler returns is checked: `checked`."""

    delay: Delay | None = None
    """Not before this `timedelta` has passed; None: after the policy's back-off."""
    reason: str = ""
    delay_ms: int | None = None
    """The same in milliseconds, instead of `delay`."""


@final
@dataclass(frozen=True, slots=True)
class Reject:
    """The message will never succeed: a dead letter at once, whatever attempts are left."""

    reason: str


HandlerResult = Ack | Retry | Reject | None
"""What a handler may return."""


class WrongResult(NamedTuple):
    """A handler returned what it may not return; the attempt has failed."""

    why: str


def checked(result: Any) -> HandlerResult | WrongResult:
    """What a handler returned, made of plain values alone; of a `Retry` the delay is in `delay_ms`.

    A handler is the user's code: nothing that it returns raises here, or later where nobody expects it.
    """
    kind = type(result)  # not isinstance: it would ask the object itself
    if result is None or kind is Ack:
        return None if result is None else Ack()
    if kind is Reject:
        if isinstance(result.reason, str):
            return Reject(str(result.reason))
        return WrongResult(f"Reject(reason=…) needs a text, not {_kind(result.reason)}")
    if kind is Retry:
        return _checked_retry(result)
    if kind is type:
        said = f"the class {result.__name__}; an instance is needed, such as Ack()"
    else:
        said = kind.__name__
    return WrongResult(f"a handler returned {said}; it may return nothing, Ack, Retry or Reject")


def _checked_retry(result: Any) -> Retry | WrongResult:
    delay, delay_ms = result.delay, result.delay_ms
    if not isinstance(result.reason, str):
        return WrongResult(f"Retry(reason=…) needs a text, not {_kind(result.reason)}")
    if delay is not None:
        if delay_ms is not None:
            return WrongResult("Retry takes delay or delay_ms, not both")
        try:
            delay_ms = int(delay.total_seconds() * 1000)
        except Exception:  # noqa: BLE001 - an object of the user's code
            return WrongResult(
                f"Retry(delay=…) needs a timedelta, not {_kind(delay)}; milliseconds are delay_ms=…"
            )
    if delay_ms is None:
        return Retry(reason=str(result.reason))
    if not isinstance(delay_ms, int) or isinstance(delay_ms, bool):
        return WrongResult(f"Retry(delay_ms=…) needs a whole number, not {_kind(delay_ms)}")
    if delay_ms > DELAY_MS_MAX:
        return WrongResult(f"the delay of a Retry is at most {DELAY_MS_MAX} ms")
    return Retry(reason=str(result.reason), delay_ms=int(delay_ms))


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


class DeadLetterReason(Enum):
    """Why a consumer gave a message up; a closed list."""

    ATTEMPTS_EXHAUSTED = "attempts-exhausted"  #: its handler failed `attempt_count_max` times
    REJECTED = "rejected"  #: its handler said so
    UNDECODABLE = "undecodable"  #: the deserializer could not read it
    KEY_PARKED = "key-parked"  #: an earlier message of its key is a dead letter, and the policy parks the key


class AfterExhausted(Enum):
    """What becomes of a key whose message became a dead letter."""

    GO_ON = "go-on"  #: later messages of the key are handled
    PARK = (
        "park"  #: later messages of the key follow it into the dead letters, until it is replayed
    )


class DeadLetter(NamedTuple):
    """What the header `txl-dlq` says of a message that was given up."""

    reason: DeadLetterReason
    origin: Origin
    origin_ms: int  # timestamp of the original record
    attempt_count: int
    first_ms: int  # when its first attempt began
    last_ms: int  # when its last attempt ended
    error_type: str
    error_message: str  # shortened
    consumer_group: str


class ReplayKind(Enum):
    """What a record of a replay topic says."""

    REPLAY = "R"  #: handle this dead letter again
    DROP = "D"  #: never handle this dead letter
    PAUSE = "P"  #: stop handling this partition
    RESUME = "U"  #: go on with it
    RESULT = "E"  #: what became of a request; written by the partition's owner


class ReplayOutcome(Enum):
    """What became of a request."""

    HANDLED = "handled"  #: the handler succeeded
    FAILED = (
        "failed"  #: the handler failed as often as it may, or rejected it; the dead letter stays
    )
    DROPPED = "dropped"  #: as asked for
    MISSING = "missing"  #: there is no dead letter at that offset (any more)
    UNKNOWN = "unknown"  #: the request has a form that this version does not know
    REPUBLISHED = (
        "republished"  #: a copy went to another topic, and the dead letter stays as it was
    )


class ReplayRecord(NamedTuple):
    """One record of a replay topic."""

    kind: ReplayKind
    request_id: str
    dead_letter_offset: int | None  # None for a pause or a resume
    outcome: ReplayOutcome | None = None  # of a result
    text: str = ""  # "operator: reason", or a result's detail


class LockKind(Enum):
    """What a record of the lock log says."""

    CLAIM = "C"  #: a member just assigned wants the queue, or its holder writes the lease again
    RENEWAL = "N"  #: the holder is still there
    RELEASE = "R"  #: the holder, or an operator, ends the lease


class LockRecord(NamedTuple):
    """One record of the lock log; its append time and offset are the record's own."""

    kind: LockKind
    queue: str  # "group/topic/partition"
    generation: int  # of the consumer group, when the holder was assigned
    holder: str  # unique per process
    instance_id: str = ""  # of a static member
    token: int | None = None  # of the lease that is renewed, released, or written again by a claim
    reason: str = ""  # of an operator's release
