"""What follows from what a handler said: handled, tried again, or given up. Never sleeping, drawing or counting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, final

from txlayer.core.messages import Origin
from txlayer.errors import ConfigError

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


_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_JITTER = 0.5
"""The share of a back-off that is drawn: many that failed together do not come back together, nor at once."""
_SPREAD, _SPREAD_END = 0x9E3779B1, 1 << 32
"""Multiples of the first, modulo the second, lie far apart: a draw for each offset without dice."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a message is tried, how long to wait in between, and what becomes of its key in the end.

    Raises:
        ConfigError: a value makes no sense.
    """

    attempt_count_max: int = 16
    """Attempts in all; with the back-off below they take about an hour, longer than most outages of a dependency."""
    backoff_first_ms: int = _SECOND_MS
    """Before the second attempt."""
    backoff_max_ms: int = 5 * _MINUTE_MS
    """Never longer, so that a dependency that is back is noticed soon."""
    backoff_factor: float = 2.0
    """Each back-off is so many times the one before."""
    after_exhausted: AfterExhausted = AfterExhausted.GO_ON

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("attempt_count_max", self.attempt_count_max >= 1, "at least 1"),
            ("backoff_first_ms", self.backoff_first_ms >= 0, "at least 0"),
            ("backoff_max_ms", self.backoff_max_ms >= self.backoff_first_ms, "backoff_first_ms or more"),
            ("backoff_factor", self.backoff_factor >= 1, "at least 1"),
            ("after_exhausted", isinstance(self.after_exhausted, AfterExhausted), "a member of AfterExhausted"),
        ):  # fmt: skip
            if not is_right:
                raise ConfigError(name=name, value=getattr(self, name), expected=expected)


class Handled(NamedTuple):
    """The message is done with."""


class TryAgain(NamedTuple):
    """Another attempt, not before that time and not before this one's count is stored."""

    not_before_ms: int


class GiveUp(NamedTuple):
    """The message becomes a dead letter, or the answer to its replay is that it failed again."""

    reason: DeadLetterReason


Verdict = Handled | TryAgain | GiveUp


def decide(
    result: HandlerResult, *, attempt_count: int, policy: RetryPolicy, now_ms: int, draw: float
) -> Verdict:
    """What follows from `result` of the attempt with that number (from 1); an exception is a `Retry`.

    | result | attempts left | none left |
    | --- | --- | --- |
    | nothing, `Ack` | handled | handled |
    | `Retry` | tried again after its delay, else after the back-off | given up: attempts exhausted |
    | `Reject` | given up: rejected | given up: rejected |

    `draw` is uniform in [0, 1).
    """
    if result is None or isinstance(result, Ack):
        return Handled()
    if isinstance(result, Reject):
        return GiveUp(DeadLetterReason.REJECTED)
    if attempt_count >= policy.attempt_count_max:
        return GiveUp(DeadLetterReason.ATTEMPTS_EXHAUSTED)
    delay_ms = result.delay_ms
    if delay_ms is None:
        delay_ms = backoff_ms(attempt_count, policy=policy, draw=draw)
    return TryAgain(now_ms + max(0, delay_ms))


def backoff_ms(attempt_count: int, *, policy: RetryPolicy, draw: float) -> int:
    """How long to wait after the attempt with that number (from 1): exponential, from half of it to the whole."""
    return int(_whole_ms(attempt_count, policy) * (1 - _JITTER + _JITTER * draw))


def resume_at_ms(
    attempt_count: int, *, first_at_s: int, offset: int, taken_over_ms: int, policy: RetryPolicy
) -> int:
    """When a message that failed so often under an earlier holder may be tried again.

    When its last attempt ended is not stored, in which second the first one began. So its back-off is waited for anew
    from the take-over: a restart never asks a failing dependency for everything at once. But not beyond the
    time at which it would have been due at the latest if nobody had taken over: who restarts again and again puts nothing off for
    ever. The jitter comes from `offset`, without dice.
    """
    draw = (offset * _SPREAD % _SPREAD_END) / _SPREAD_END
    anew_ms = taken_over_ms + backoff_ms(attempt_count, policy=policy, draw=draw)
    at_the_latest_ms = (first_at_s + 1) * 1000 + _all_backoffs_ms(attempt_count, policy)
    return min(anew_ms, at_the_latest_ms)


def _all_backoffs_ms(attempt_count: int, policy: RetryPolicy) -> int:
    """Of attempts 1 to `attempt_count` together; a sum, because stored counts may be large and a factor hardly more than 1."""
    first_ms, factor = policy.backoff_first_ms, policy.backoff_factor
    if factor == 1 or first_ms == 0:
        return first_ms * attempt_count
    steps_to_max = math.ceil(math.log(policy.backoff_max_ms / first_ms) / math.log(factor))
    growing_count = min(attempt_count, steps_to_max)
    growing_ms = first_ms * (factor**growing_count - 1) / (factor - 1)
    return int(round(growing_ms, 3)) + policy.backoff_max_ms * (attempt_count - growing_count)


def _whole_ms(attempt_count: int, policy: RetryPolicy) -> float:
    if policy.backoff_first_ms == 0:
        return 0
    try:
        whole_ms = policy.backoff_first_ms * policy.backoff_factor ** (attempt_count - 1)
    except OverflowError:  # a float ends at 2^1024
        return policy.backoff_max_ms
    return min(whole_ms, policy.backoff_max_ms)
