"""What follows from what a handler said: handled, tried again, or given up. Never sleeping, drawing or counting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from txlayer.core.handling import Ack, AfterExhausted, DeadLetterReason, HandlerResult, Reject
from txlayer.errors import ConfigError

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
