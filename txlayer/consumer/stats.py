"""What a consumer did and has before it, per topic and group of keys. Never who may look at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from txlayer.adapters.meters import Histogram, HistogramView

RATE_WINDOW_S = 5.0
"""Rates are those of the last window that is over."""

ATTEMPT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # fmt: skip
"""Upper bounds for calls of handlers: from a look into memory to a long call of another service."""


class TopicStats(NamedTuple):
    """Figures of one topic, over all its partitions that this consumer owns."""

    handled: int
    """Messages whose handler succeeded, since the start."""
    failed: int
    """Attempts that failed, since the start."""
    dead_lettered: int
    """Messages given up, since the start."""
    passed_over: int
    """Messages whose tags nobody asked for, since the start."""
    rate: float
    """Messages handled a second, of late."""
    attempt_ms: float
    """Milliseconds of an attempt, mean of late."""
    in_flight: int
    """Messages whose handler runs or is about to."""
    waiting: int
    """Messages in memory that are not in flight."""
    retrying: int
    """Of them, those that failed and wait for their next attempt."""
    parked_keys: int
    """Keys whose messages go to the dead letters until they are replayed."""
    oldest_ms: int
    """How long the oldest message in memory has been there; 0: none is."""
    paused_partitions: int
    """Partitions that are not read, or not handled, for now: a limit, or an operator's word."""
    handled_by_key_group: dict[str, int]
    """Messages handled by what `key_group` said of their keys, since the start."""
    attempts: int = 0
    """Attempts that ended, since the start."""
    attempt_s: float = 0.0
    """Seconds that they took together."""
    attempt_durations: HistogramView | None = None
    """How many took how long; of those that were handed over together, each their mean."""
    unread: int = 0
    """Messages in the topic's log that were not read yet, by offset, as the last fetches told."""
    timed_out: int = 0
    """Attempts that failed because their handler had not come back by its deadline, since the start."""


class ConsumerStats(NamedTuple):
    """Figures of one consumer."""

    topics: dict[str, TopicStats]
    partitions: tuple[tuple[str, int], ...]
    """Queues that it owns now."""
    rebuild_count: int
    """How often it began anew from the stored offsets."""
    stale_count: int
    """Results that were refused, because their queue had been lost meanwhile."""
    assigned_count: int | None = None
    """Queues that the group gave to this member, held or not; None: it has not said yet."""
    rebalance_count: int = 0
    """Assignments that the group gave."""
    lost_lease_count: int = 0
    """Leases that ended while their queue was worked off."""
    replaced_count: int = 0
    """Transactional producers of dead letters that were replaced, because a call may have been sent twice."""
    turned_at: float | None = None
    """Monotonic seconds: when its loop last turned; None: not yet."""
    has_ended: bool = False
    """True: it does nothing any more."""
    failure: str = ""
    """The class of the error that ended it; empty: none did."""
    hung_count: int = 0
    """Handlers that were given up at their deadline and have not come back."""
    hung_count_max: int = 0
    """With so many it is not ready, and gives up no more; 0: it has not started."""


@dataclass(slots=True)
class Tally:
    """What is counted of a topic, on the engine's thread."""

    handled: int = 0
    failed: int = 0
    dead_lettered: int = 0
    passed_over: int = 0
    attempt_count: int = 0
    timed_out: int = 0
    durations: Histogram = field(default_factory=partial(Histogram, ATTEMPT_S))
    by_key_group: dict[str, int] = field(default_factory=dict)
    rate: float = 0.0
    mean_ms: float = 0.0
    _window_at: float = 0.0
    _window_handled: int = 0
    _window_attempts: int = 0
    _window_s: float = 0.0

    def roll(self, now: float) -> None:
        """Begin a new window when the last one is over."""
        age_s = now - self._window_at
        if age_s < RATE_WINDOW_S:
            return
        attempts = self.attempt_count - self._window_attempts
        self.rate = (self.handled - self._window_handled) / age_s if self._window_at else 0.0
        self.mean_ms = (
            (self.durations.total - self._window_s) / attempts * 1000 if attempts else 0.0
        )
        self._window_at = now
        self._window_handled, self._window_attempts = self.handled, self.attempt_count
        self._window_s = self.durations.total
