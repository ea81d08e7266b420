"""Metrics and health of a consumer, made from counts that it keeps anyway."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple

from txlayer.adapters.metrics import Health, Histogram, HistogramView, Sample, counter, gauge, histogram, of_all

RATE_WINDOW_S = 5.0
"""Rates are those of the last window that is over."""

ATTEMPT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds for calls of handlers: from a look into memory to a long call of another service."""


class TopicStats(NamedTuple):
    """Figures of one topic, over all its partitions that this consumer owns."""

    handled: int
    """Messages whose handler succeeded, since the start."""
    failed: int
    """Failed attempts, since the start."""
    dead_lettered: int
    """Messages that became dead letters, since the start."""
    passed_over: int
    """Messages whose tags match no handler, since the start."""
    rate: float
    """Messages handled per second, recently."""
    attempt_ms: float
    """Mean milliseconds of an attempt, recently."""
    in_flight: int
    """Messages whose handler runs or is about to start."""
    waiting: int
    """Messages in memory that are not in flight."""
    retrying: int
    """Of the waiting messages, those that failed and wait for their next attempt."""
    parked_keys: int
    """Parked keys: their messages become dead letters until they are replayed."""
    oldest_ms: int
    """Milliseconds that the oldest message has been in memory; 0 without messages."""
    paused_partitions: int
    """Partitions that are currently not read or not handled, because of a limit or an operator's pause."""
    handled_by_key_group: dict[str, int]
    """Messages handled, by the result of `key_group`, since the start."""
    attempts: int = 0
    """Attempts that ended, since the start."""
    attempt_s: float = 0.0
    """Total seconds of these attempts."""
    attempt_durations: HistogramView | None = None
    """Histogram of attempt durations; attempts that were handed over together count with their mean."""
    unread: int = 0
    """Messages in the topic's log that were not read yet, by offset, as of the last fetches."""
    timed_out: int = 0
    """Attempts that failed because the handler had not returned by its deadline, since the start."""


class ConsumerStats(NamedTuple):
    """Figures of one consumer."""

    topics: dict[str, TopicStats]
    partitions: tuple[tuple[str, int], ...]
    """Queues that it owns now."""
    rebuild_count: int
    """Number of restarts from the stored offsets."""
    stale_count: int
    """Results that were discarded because their queue was lost in the meantime."""
    assigned_count: int | None = None
    """Queues that the group assigned to this member, held or not; None before the first assignment."""
    rebalance_count: int = 0
    """Assignments received from the group."""
    lost_lease_count: int = 0
    """Leases that ended while their queue was being processed."""
    replaced_count: int = 0
    """Transactional producers of dead letters that were replaced: a call may have been sent twice, or dead letters could not be written."""
    turned_at: float | None = None
    """Monotonic seconds of the loop's last turn; None before the first."""
    has_ended: bool = False
    """True if it has ended."""
    failure: str = ""
    """Class of the error that ended it; empty without one."""
    hung_count: int = 0
    """Handlers that were given up at their deadline and have not returned."""
    hung_count_max: int = 0
    """Limit of `hung_count` at which it is not ready and gives up no more; 0 before the start."""


@dataclass(slots=True)
class TopicCounts:
    """Counts of one topic, kept by the engine's thread."""

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
        """Begin a new window if the last one is over."""
        age_s = now - self._window_at
        if age_s < RATE_WINDOW_S:
            return
        attempts = self.attempt_count - self._window_attempts
        self.rate = (self.handled - self._window_handled) / age_s if self._window_at else 0.0
        self.mean_ms = (self.durations.total - self._window_s) / attempts * 1000 if attempts else 0.0
        self._window_at = now
        self._window_handled, self._window_attempts = self.handled, self.attempt_count
        self._window_s = self.durations.total


STALL_S = 60.0
"""A loop without a turn for this long hangs: a store of offsets is given up after 10 s, and the pause after an error is
5 s at most. Handlers run elsewhere and do not stop it."""

HANDLED = counter("txlayer_consumer_messages_handled_total", "Messages whose handler succeeded.", "topic")
PASSED_OVER = counter("txlayer_consumer_messages_passed_over_total", "Messages that match no handler's tags.", "topic")
DEAD_LETTERED = counter("txlayer_consumer_dead_letters_total", "Messages given up.", "topic")
ATTEMPTS = counter("txlayer_consumer_attempts_total", "Calls of handlers that ended.", "topic")
FAILED = counter(
    "txlayer_consumer_failed_attempts_total", "Calls of handlers that failed; most are tried again.", "topic"
)
TIMED_OUT = counter(
    "txlayer_consumer_timed_out_attempts_total", "Failed calls whose handler had not returned by its deadline.", "topic"
)
ATTEMPT_SECONDS = histogram(
    "txlayer_consumer_attempt_duration_seconds",
    "Duration of handler calls. If a process got several messages together, each counts with their mean.",
    "topic",
)
IN_FLIGHT = gauge("txlayer_consumer_in_flight_messages", "Messages whose handler runs or is about to.", "topic")
WAITING = gauge("txlayer_consumer_waiting_messages", "Messages in memory that are not in flight.", "topic")
RETRYING = gauge(
    "txlayer_consumer_retrying_messages", "Waiting messages that failed and wait for their next attempt.", "topic"
)
UNREAD = gauge(
    "txlayer_consumer_unread_messages",
    "Messages in the log that were not read yet, by offset; markers of Kafka transactions count.",
    "topic",
)
OLDEST = gauge(
    "txlayer_consumer_oldest_message_seconds", "How long the oldest message in memory has been there.", "topic"
)
PARKED_KEYS = gauge(
    "txlayer_consumer_parked_keys", "Parked keys: their messages become dead letters until they are replayed.", "topic"
)
PAUSED = gauge(
    "txlayer_consumer_paused_partitions", "Partitions that are paused, by a limit or by an operator.", "topic"
)
ASSIGNED_QUEUES = gauge("txlayer_consumer_assigned_queues", "Queues that the group assigned to this member.")
HELD_QUEUES = gauge("txlayer_consumer_held_queues", "Assigned queues whose lease this member holds.")
LEASES_LOST = counter("txlayer_consumer_leases_lost_total", "Leases that ended while this member handled their queue.")
STALE = counter("txlayer_consumer_stale_results_total", "Results that were ignored because their queue was lost.")
HUNG = gauge("txlayer_consumer_hung_handlers", "Handlers that were given up at their deadline and have not returned.")
REBALANCES = counter("txlayer_consumer_rebalances_total", "Assignments by the group.")
REBUILDS = counter("txlayer_consumer_rebuilds_total", "Times that the consumer began again from the stored offsets.")
REPLACEMENTS = counter(
    "txlayer_consumer_producer_replacements_total",
    "Transactional producers of dead letters that were replaced, because a call may have been sent twice or dead letters could not be written.",
)

FAMILIES = (
    HANDLED,
    PASSED_OVER,
    DEAD_LETTERED,
    ATTEMPTS,
    FAILED,
    TIMED_OUT,
    ATTEMPT_SECONDS,
    IN_FLIGHT,
    WAITING,
    RETRYING,
    UNREAD,
    OLDEST,
    PARKED_KEYS,
    PAUSED,
    ASSIGNED_QUEUES,
    HELD_QUEUES,
    LEASES_LOST,
    STALE,
    HUNG,
    REBALANCES,
    REBUILDS,
    REPLACEMENTS,
)


class ObservedConsumer:
    """The metrics and the health of a consumer. Thread-safe.

    Args:
        group: its consumer group.
        stats: the consumer's `stats`.
        version: the txlayer version.
        clock: monotonic seconds, the same clock as the consumer's.
    """

    def __init__(
        self,
        stats: Callable[[], ConsumerStats],
        *,
        group: str,
        version: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stats = stats
        self._group = group
        self._version = version
        self._clock = clock

    def health(self) -> Health:
        """Alive while the loop turns; ready while every assigned queue is held and few handlers hang."""
        return health_of(self._stats(), now=self._clock())

    def samples(self) -> Iterator[Sample]:
        """All samples."""
        stats = self._stats()
        health = health_of(stats, now=self._clock())
        return chain(
            of_all(health, role="consumer", version=self._version, name=self._group),
            chain.from_iterable(_of_topic(name, found) for name, found in stats.topics.items()),
            _of_queues(stats),
        )


def health_of(stats: ConsumerStats, *, now: float) -> Health:
    """Health at monotonic `now`. A backlog does not affect it: a consumer that works it off is ready."""
    if stats.has_ended:
        ended = f"it failed: {stats.failure}; see the log" if stats.failure else "it has ended"
        return Health(ended if stats.failure else "", ended)
    if stats.turned_at is None:
        return Health("", "it waits for a broker")
    age_s = now - stats.turned_at
    stalled = "" if age_s < STALL_S else f"the loop has not turned for {age_s:.0f} s"
    if stats.assigned_count is None:
        return Health(stalled, "the group has assigned nothing yet")
    if stats.hung_count and stats.hung_count >= stats.hung_count_max:
        return Health(stalled, f"{stats.hung_count} handlers hang: restart it")
    missing = stats.assigned_count - len(stats.partitions)
    waiting = f"{missing} of {stats.assigned_count} queues are not held yet"
    return Health(stalled, waiting if missing > 0 else "")


def _of_topic(topic: str, found: TopicStats) -> Iterator[Sample]:
    values = {
        HANDLED: found.handled,
        PASSED_OVER: found.passed_over,
        DEAD_LETTERED: found.dead_lettered,
        ATTEMPTS: found.attempts,
        FAILED: found.failed,
        TIMED_OUT: found.timed_out,
        IN_FLIGHT: found.in_flight,
        WAITING: found.waiting,
        RETRYING: found.retrying,
        UNREAD: found.unread,
        OLDEST: found.oldest_ms / 1000,
        PARKED_KEYS: found.parked_keys,
        PAUSED: found.paused_partitions,
    }
    counts = (Sample(family, value, (topic,)) for family, value in values.items())
    durations = found.attempt_durations or Histogram(ATTEMPT_S).view()
    return chain(counts, [Sample(ATTEMPT_SECONDS, durations, (topic,))])


def _of_queues(stats: ConsumerStats) -> Iterator[Sample]:
    values = {
        ASSIGNED_QUEUES: stats.assigned_count or 0,
        HELD_QUEUES: len(stats.partitions),
        LEASES_LOST: stats.lost_lease_count,
        STALE: stats.stale_count,
        HUNG: stats.hung_count,
        REBALANCES: stats.rebalance_count,
        REBUILDS: stats.rebuild_count,
        REPLACEMENTS: stats.replaced_count,
    }
    return (Sample(family, value) for family, value in values.items())
