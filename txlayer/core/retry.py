"""Handler results and what follows from them: handled, tried again after a back-off, or given up. And the breaker: while most attempts at the
messages of a topic fail, only one message at a time is tried, and no attempt is counted: the failures are the dependency's.
"""

import math
from collections import deque
from dataclasses import InitVar, dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, final

from txlayer.core.dead_letters import DeadLetterReason
from txlayer.errors import ConfigError

DELAY_MS_MAX = 366 * 24 * 3_600_000
"""Longest delay of a `Retry` or a `Later`. Its key waits meanwhile; a longer delay is probably a wrong unit."""


class Delay(Protocol):
    """A `timedelta`; the core does not import it."""

    def total_seconds(self) -> float:
        """Its length in seconds."""


@final
@dataclass(frozen=True, slots=True)
class Ack:
    """The message is handled. A handler that returns None means the same."""


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """Try the message again. An exception means the same. `checked` checks what a handler returns."""

    delay: Delay | None = None
    """Earliest next attempt, as a `timedelta` from now; None: after the policy's back-off."""
    reason: str = ""
    delay_ms: int | None = None
    """The older form of `delay`: milliseconds. This release takes both."""


@final
@dataclass(frozen=True, slots=True)
class Reject:
    """The message will never succeed: it becomes a dead letter at once, whatever attempts are left."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class Later:
    """Not now: handle the message again after `delay`. No attempt is counted, and later messages of its key wait.

    `RetryPolicy` limits how often and for how long a message may be postponed; beyond that, the attempt has failed.
    """

    delay: Delay | None = None
    """A `timedelta`."""
    reason: str = ""
    is_of_partition: bool = False
    """True: no message of the partition begins before. `Context.suspend` makes it."""
    delay_ms: int | None = None
    """What `checked` makes of `delay`."""


HandlerResult = Ack | Retry | Reject | Later | None  # the allowed return values of a handler


@final
@dataclass(frozen=True, slots=True)
class NotBegun:
    """The message was given to no handler: it is the next one of its key again. Only txlayer's own handlers return it."""

    reason: str = ""


class WrongResult(NamedTuple):
    """The handler returned an invalid value; the attempt has failed."""

    why: str


def checked(result: Any) -> HandlerResult | NotBegun | WrongResult:
    """Convert what a handler returned, which may be anything, to plain values that never raise; the delay is in `delay_ms`."""
    kind = type(result)  # not isinstance: it would ask the object itself
    if result is None or kind is Ack:
        return None if result is None else Ack()
    try:
        if kind is Reject:
            if isinstance(result.reason, str):
                return Reject(_plain(result.reason))
            return WrongResult(f"Reject(reason=…) needs a text, not {_kind(result.reason)}")
        if kind is Retry or kind is Later:
            return _checked_delay(result, kind)
        if kind is NotBegun:
            return NotBegun()
    except BaseException as exc:  # noqa: BLE001 - objects from user code
        return WrongResult(f"a handler returned a {_name(kind)} that raises {_name(type(exc))} when it is read")
    said = f"the class {result.__name__}; an instance is needed, such as Ack()" if kind is type else _name(kind)
    return WrongResult(f"a handler returned {said}; it may return nothing, Ack, Retry, Later or Reject")


def _checked_delay(result: Any, kind: type[Retry | Later]) -> Retry | Later | WrongResult:
    name, delay, delay_ms = kind.__name__, result.delay, result.delay_ms
    if not isinstance(result.reason, str):
        return WrongResult(f"{name}(reason=…) needs a text, not {_kind(result.reason)}")
    if delay is not None:
        if delay_ms is not None:
            return WrongResult(f"{name} takes delay or delay_ms, not both")
        try:
            delay_ms = int(delay.total_seconds() * 1000)
        except Exception:  # noqa: BLE001 - an object from user code
            return WrongResult(f"{name}(delay=…) needs a timedelta, not {_kind(delay)}; milliseconds are delay_ms=…")
    if delay_ms is not None:
        if not isinstance(delay_ms, int) or isinstance(delay_ms, bool):
            return WrongResult(f"{name}(delay_ms=…) needs a whole number, not {_kind(delay_ms)}")
        delay_ms = int.__int__(delay_ms)  # its class may compare in another way
        if delay_ms > DELAY_MS_MAX:
            return WrongResult(f"the delay of a {name} is at most {DELAY_MS_MAX} ms")
    if kind is Retry:
        return Retry(reason=_plain(result.reason), delay_ms=delay_ms)
    if delay_ms is None:
        return WrongResult("Later(delay) needs a timedelta")
    return Later(reason=_plain(result.reason), is_of_partition=result.is_of_partition is True, delay_ms=delay_ms)


def _plain(text: str) -> str:
    """The characters of a text whose class may say something else, or raise, when it is asked."""
    return str.__str__(text)


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {_name(type(value))}"


def _name(kind: type) -> str:
    """The name of a class, without asking its own class, which may raise."""
    name: str = type.__dict__["__name__"].__get__(kind)
    return name


class AfterExhausted(Enum):
    """What happens to a key after one of its messages became a dead letter."""

    GO_ON = "go-on"  #: later messages of the key are handled
    PARK = "park"  #: later messages of the key follow it into the dead letters, until it is replayed


_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_DAY_MS = 24 * 60 * _MINUTE_MS
_JITTER = 0.5  # the random share of a back-off: messages that failed together are not tried again together, nor at once
_SPREAD, _SPREAD_END = 0x9E3779B1, 1 << 32
"""Multiples of the first, modulo the second, are far apart: a deterministic draw for each offset."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a message is tried, how long to wait between attempts, and what happens to its key in the end.

    Args:
        backoff_first: back-off before the second attempt, as a `timedelta`; it wins over `backoff_first_ms`.
        backoff_max: its upper limit, as a `timedelta`; it wins over `backoff_max_ms`.
        later_max: how long a message may be postponed, as a `timedelta`; it wins over `later_max_ms`.

    Raises:
        ConfigError: a value is out of range.
    """

    attempt_count_max: int = 16
    """Total attempts. With the default back-off they take about half an hour, and at most 39 minutes."""
    backoff_first_ms: int = _SECOND_MS
    """Back-off before the second attempt. To give it in milliseconds is the older form; this release takes both."""
    backoff_max_ms: int = 5 * _MINUTE_MS
    """Upper limit, so that a dependency's recovery is noticed soon. The same."""
    backoff_factor: float = 2.0
    """Factor between a back-off and the next one."""
    after_exhausted: AfterExhausted = AfterExhausted.GO_ON
    later_count_max: int = 1_000
    """How often a handler may return `Later` for a message; then each further one is a failed attempt. A restart forgets it."""
    later_max_ms: int = _DAY_MS
    """A message may be postponed until so long after the first time, and a partition in which nothing succeeds for so long in all. The same."""
    backoff_first: InitVar[Delay | None] = None
    backoff_max: InitVar[Delay | None] = None
    later_max: InitVar[Delay | None] = None

    def __post_init__(self, backoff_first: Delay | None, backoff_max: Delay | None, later_max: Delay | None) -> None:
        set_lengths(self, backoff_first=backoff_first, backoff_max=backoff_max, later_max=later_max)
        for name, is_right, expected in (
            ("attempt_count_max", self.attempt_count_max >= 1, "at least 1"),
            ("backoff_first_ms", self.backoff_first_ms >= 0, "at least 0"),
            ("backoff_max_ms", self.backoff_max_ms >= self.backoff_first_ms, "backoff_first_ms or more"),
            ("backoff_factor", self.backoff_factor >= 1, "at least 1"),
            ("after_exhausted", isinstance(self.after_exhausted, AfterExhausted), "a member of AfterExhausted"),
            ("later_count_max", self.later_count_max >= 0, "at least 0"),
            ("later_max_ms", self.later_max_ms >= 0, "at least 0"),
        ):
            if not is_right:
                raise ConfigError(name=name, value=getattr(self, name), expected=expected)


def set_lengths(policy: object, **lengths: Delay | None) -> None:
    """Set the fields `…_ms` of a policy that is being made; None leaves a field as it is; ConfigError: a length is no `timedelta`."""
    for name, length in lengths.items():
        if length is None:
            continue
        try:
            length_ms = round(length.total_seconds() * 1000)
        except AttributeError:
            raise ConfigError(name=name, value=length, expected="a timedelta") from None
        object.__setattr__(policy, f"{name}_ms", length_ms)


class TryAgain(NamedTuple):
    """Another attempt, not before that time and not before the count of this one is stored."""

    not_before_ms: int


class GiveUp(NamedTuple):
    """The message becomes a dead letter, or the answer to its replay is that it failed again."""

    reason: DeadLetterReason


Verdict = TryAgain | GiveUp


def decide(result: Retry | Reject, *, attempt_count: int, policy: RetryPolicy, now_ms: int, draw: float) -> Verdict:
    """Decide what follows from `result` of the failed attempt with this number (from 1); an exception counts as `Retry`.

    | result | attempts left | none left |
    | --- | --- | --- |
    | `Retry` | tried again after its delay, else after the back-off | given up: attempts exhausted |
    | `Reject` | given up: rejected | given up: rejected |

    `draw` is uniform in [0, 1).
    """
    if isinstance(result, Reject):
        return GiveUp(DeadLetterReason.REJECTED)
    if attempt_count >= policy.attempt_count_max:
        return GiveUp(DeadLetterReason.ATTEMPTS_EXHAUSTED)
    delay_ms = result.delay_ms
    if delay_ms is None:
        delay_ms = backoff_ms(attempt_count, policy=policy, draw=draw)
    return TryAgain(now_ms + max(0, delay_ms))


def why_not_later(count: int, *, since_ms: int, now_ms: int, policy: RetryPolicy) -> str:
    """Why what was postponed `count` times since `since_ms` is not postponed once more; empty: it is."""
    if count >= policy.later_count_max:
        return f"postponed {count} times (later_count_max)"
    if now_ms - since_ms >= policy.later_max_ms:
        return f"postponed for {(now_ms - since_ms) // 1000} s (later_max)"
    return ""


def backoff_ms(attempt_count: int, *, policy: RetryPolicy, draw: float) -> int:
    """The back-off after the attempt with this number (from 1): exponential, times a random factor from one half to one."""
    return int(_whole_ms(attempt_count, policy) * (1 - _JITTER + _JITTER * draw))


def resume_at_ms(attempt_count: int, *, first_at_s: int, offset: int, taken_over_ms: int, policy: RetryPolicy) -> int:
    """When a message that failed `attempt_count` times under an earlier holder may be tried again.

    The end of its last attempt is not stored, but the second in which the first one began is. So the back-off starts anew at
    the take-over: a restart does not send everything to a failing dependency at once. But the message is due at the latest when
    it would have been due without a take-over: repeated restarts do not delay it for ever. `offset` determines the jitter, so
    that it is deterministic.
    """
    draw = (offset * _SPREAD % _SPREAD_END) / _SPREAD_END
    anew_ms = taken_over_ms + backoff_ms(attempt_count, policy=policy, draw=draw)
    at_the_latest_ms = (first_at_s + 1) * 1000 + _all_backoffs_ms(attempt_count, policy)
    return min(anew_ms, at_the_latest_ms)


def _all_backoffs_ms(attempt_count: int, policy: RetryPolicy) -> int:
    """Back-offs of attempts 1 to `attempt_count` together. A closed form: stored counts may be large and the factor close to 1."""
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


SLICE_COUNT = 10
"""Parts of a window, each counted as a whole: a breaker keeps so many numbers, however many attempts there are."""
NO_LIMIT = 1 << 62


class BreakerState(Enum):
    """What may begin."""

    CLOSED = "closed"  #: everything
    OPEN = "open"  #: nothing, until it is time for a probe
    PROBING = "probing"  #: nothing: one message is being tried


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens, and how often it lets one message through then.

    Args:
        window: over which attempts are counted, as a `timedelta`.
        probe_interval: from a probe that failed to the next one, as a `timedelta`.

    Raises:
        ConfigError: a value is out of range.
    """

    failed_share: float = 0.5
    """It opens when at least this share of the attempts of the window failed."""
    attempt_count_min: int = 20
    """With fewer attempts in the window it does not open: one message that always fails is no outage."""
    window_ms: int = 10_000
    probe_interval_ms: int = 5_000
    window: InitVar[Delay | None] = None
    probe_interval: InitVar[Delay | None] = None

    def __post_init__(self, window: Delay | None, probe_interval: Delay | None) -> None:
        set_lengths(self, window=window, probe_interval=probe_interval)
        for name, is_right, expected in (
            ("failed_share", 0 < self.failed_share <= 1, "above 0, at most 1"),
            ("attempt_count_min", self.attempt_count_min >= 1, "at least 1"),
            ("window_ms", self.window_ms >= SLICE_COUNT, f"at least {SLICE_COUNT}"),
            ("probe_interval_ms", self.probe_interval_ms >= 1, "at least 1"),
        ):
            if not is_right:
                raise ConfigError(name=name, value=getattr(self, name), expected=expected)


class Breaker:
    """The breaker of one topic. Not thread-safe. Times are milliseconds that never decrease."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self._slices: deque[tuple[int, int, int]] = deque()  # (number of the slice, attempts, failed ones)
        self._probe_at_ms = 0
        self.state = BreakerState.CLOSED
        self.opened_count = 0  # how often it went from closed to open

    @property
    def is_closed(self) -> bool:
        return self.state is BreakerState.CLOSED

    @property
    def next_at_ms(self) -> int:
        """From when on something may begin; while a probe runs, only its end says."""
        if self.state is BreakerState.PROBING:
            return NO_LIMIT
        return self._probe_at_ms if self.state is BreakerState.OPEN else 0

    def room(self, now_ms: int) -> int:
        """How many messages may begin: 1 is a probe if it is not closed; call `begin_probe` then."""
        if self.is_closed:
            return NO_LIMIT
        return int(self.next_at_ms <= now_ms)

    def begin_probe(self) -> None:
        self.state = BreakerState.PROBING

    def probed(self, *, is_well: bool | None, now_ms: int) -> None:
        """The probe has ended. None: it said nothing, because it did not begin or the message itself is bad."""
        if is_well:
            self.state = BreakerState.CLOSED
            self._slices.clear()
            return
        self.state = BreakerState.OPEN
        self._probe_at_ms = now_ms if is_well is None else now_ms + self.policy.probe_interval_ms

    def ended(self, *, count: int, failed_count: int, now_ms: int) -> None:
        """So many attempts ended, so many of them failed. What began before it opened says nothing new."""
        if not self.is_closed or not count:
            return
        policy, slices = self.policy, self._slices
        number = now_ms * SLICE_COUNT // policy.window_ms
        if slices and slices[-1][0] == number:
            _, before, failed_before = slices.pop()
            count, failed_count = count + before, failed_count + failed_before
        slices.append((number, count, failed_count))
        while slices[0][0] <= number - SLICE_COUNT:
            slices.popleft()
        ended = sum(each[1] for each in slices)
        failed = sum(each[2] for each in slices)
        if ended >= policy.attempt_count_min and failed >= policy.failed_share * ended:
            self.state = BreakerState.OPEN
            self.opened_count += 1
            self._probe_at_ms = now_ms + policy.probe_interval_ms
