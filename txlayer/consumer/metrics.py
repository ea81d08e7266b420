"""A consumer as seen from outside: metrics and health, made from counts that it keeps anyway, and the spans of its attempts.

process <topic>       one attempt: interceptors, handler; the current span while the handler runs
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from txlayer.adapters.telemetry import (
    LINKS_MAX,
    Attributes,
    Family,
    Health,
    Histogram,
    HistogramView,
    ObservedRole,
    Sample,
    Span,
    SpanRole,
    Tracing,
    age_ms,
    attributes_of,
    counter,
    current,
    gauge,
    histogram,
    stall_of,
    trace_context_of,
)
from txlayer.consumer.context import Lease, ReceivedMessage
from txlayer.consumer.pools import Job, items_of
from txlayer.core.retry import Ack, WrongResult, checked

RATE_WINDOW_S = 5.0  # rates are those of the last window that is over
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
    """Of the waiting messages, those that failed or were postponed, and wait for their next attempt."""
    parked_keys: int
    """Parked keys: their messages become dead letters until they are replayed."""
    oldest_ms: int
    """Milliseconds that the oldest message has been in memory; 0 without messages."""
    paused_partitions: int
    """Partitions that are currently not read or not handled, because of a limit, an operator's pause or a handler's."""
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
    postponed: int = 0
    """Calls of handlers that returned `Later`, or failed while the breaker was open, since the start; they are no attempts that failed."""
    failed_rate: float = 0.0
    """Failed attempts per second, recently."""
    breaker: str = ""
    """The state of its breaker: closed, open or probing; empty without one, or without a partition. Of several, that of one that is not closed."""
    breaker_is_open: bool = False
    """True unless all are closed, or it owns no partition."""
    breaker_opened: int = 0
    """How often it opened, since the start."""


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
    postponed: int = 0
    durations: Histogram = field(default_factory=partial(Histogram, ATTEMPT_S))
    by_key_group: dict[str, int] = field(default_factory=dict)
    rate: float = 0.0
    failed_rate: float = 0.0
    mean_ms: float = 0.0
    _before: tuple[float, int, int, int, float] = (0.0, 0, 0, 0, 0.0)
    """When the window began; and until then: handled, failed, attempts, and their seconds."""

    def roll(self, now: float) -> None:
        """Begin a new window if the last one is over."""
        began, handled, failed, attempts, took_s = self._before
        age_s = now - began
        if age_s < RATE_WINDOW_S:
            return
        attempts = self.attempt_count - attempts
        if began:
            self.rate = (self.handled - handled) / age_s
            self.failed_rate = (self.failed - failed) / age_s
        self.mean_ms = (self.durations.total - took_s) / attempts * 1000 if attempts else 0.0
        self._before = (now, self.handled, self.failed, self.attempt_count, self.durations.total)


_OF_TOPICS = {
    "handled": counter("txlayer_consumer_messages_handled_total", "Messages whose handler succeeded."),
    "passed_over": counter("txlayer_consumer_messages_passed_over_total", "Messages that match no handler's tags."),
    "dead_lettered": counter("txlayer_consumer_dead_letters_total", "Messages given up."),
    "attempts": counter("txlayer_consumer_attempts_total", "Calls of handlers that ended."),
    "failed": counter("txlayer_consumer_failed_attempts_total", "Calls of handlers that failed; most are tried again."),
    "timed_out": counter(
        "txlayer_consumer_timed_out_attempts_total", "Failed calls whose handler had not returned by its deadline."
    ),
    "failed_rate": gauge(
        "txlayer_consumer_failed_attempts_per_second", "Calls of handlers that failed, in the last 5 s."
    ),
    "postponed": counter(
        "txlayer_consumer_postponed_total",
        "Calls of handlers that returned Later, or failed while the breaker was open; no attempt is counted.",
    ),
    "breaker_is_open": gauge(
        "txlayer_consumer_breaker_open",
        "1: most attempts failed, and one message at a time is tried; 0: closed, or no breaker or no partition.",
    ),
    "breaker_opened": counter("txlayer_consumer_breaker_openings_total", "Times that the breaker opened."),
    "in_flight": gauge("txlayer_consumer_in_flight_messages", "Messages whose handler runs or is about to."),
    "waiting": gauge("txlayer_consumer_waiting_messages", "Messages in memory that are not in flight."),
    "retrying": gauge(
        "txlayer_consumer_retrying_messages",
        "Waiting messages that failed or were postponed, and wait for their next attempt.",
    ),
    "unread": gauge(
        "txlayer_consumer_unread_messages",
        "Messages in the log that were not read yet, by offset; markers of Kafka transactions count.",
    ),
    "parked_keys": gauge(
        "txlayer_consumer_parked_keys", "Parked keys: their messages become dead letters until they are replayed."
    ),
    "paused_partitions": gauge(
        "txlayer_consumer_paused_partitions", "Partitions that are paused, by a limit, by an operator or by a handler."
    ),
}
OF_TOPICS = {name: replace(family, labels=("topic",)) for name, family in _OF_TOPICS.items()}
"""{field of `TopicStats`: its metric}."""
ATTEMPT_SECONDS = histogram(
    "txlayer_consumer_attempt_duration_seconds",
    "Duration of handler calls. If a process got several messages together, each counts with their mean.",
    "topic",
)
OLDEST = gauge(
    "txlayer_consumer_oldest_message_seconds", "How long the oldest message in memory has been there.", "topic"
)
OF_CONSUMER: Mapping[str, Family] = {  # {field of `ConsumerStats`: its metric}
    "lost_lease_count": counter(
        "txlayer_consumer_leases_lost_total", "Leases that ended while this member handled their queue."
    ),
    "stale_count": counter(
        "txlayer_consumer_stale_results_total", "Results that were ignored because their queue was lost."
    ),
    "hung_count": gauge(
        "txlayer_consumer_hung_handlers", "Handlers that were given up at their deadline and have not returned."
    ),
    "rebalance_count": counter("txlayer_consumer_rebalances_total", "Assignments by the group."),
    "rebuild_count": counter(
        "txlayer_consumer_rebuilds_total", "Times that the consumer began again from the stored offsets."
    ),
    "replaced_count": counter(
        "txlayer_consumer_producer_replacements_total",
        "Transactional producers of dead letters that were replaced, because a call may have been sent twice or dead letters could not be written.",
    ),
}
ASSIGNED_QUEUES = gauge("txlayer_consumer_assigned_queues", "Queues that the group assigned to this member.")
HELD_QUEUES = gauge("txlayer_consumer_held_queues", "Assigned queues whose lease this member holds.")

FAMILIES = (*OF_TOPICS.values(), ATTEMPT_SECONDS, OLDEST, *OF_CONSUMER.values(), ASSIGNED_QUEUES, HELD_QUEUES)


class ObservedConsumer(ObservedRole):
    """The metrics and the health of a consumer: of its `stats`."""

    role = "consumer"

    def __init__(self, stats: Callable[[], ConsumerStats], *, group: str, **given: Any) -> None:
        super().__init__(name=group, **given)
        self._stats = stats

    def _look(self, now: float) -> tuple[Health, Iterable[Sample]]:
        stats = self._stats()
        return health_of(stats, now=now), _samples(stats)


def health_of(stats: ConsumerStats, *, now: float) -> Health:
    """Alive while the loop turns; ready while every assigned queue is held and few handlers hang. A backlog does not affect it: a consumer that works it off is ready."""
    if stats.has_ended:
        ended = f"it failed: {stats.failure}; see the log" if stats.failure else "it has ended"
        return Health(ended if stats.failure else "", ended)
    if stats.turned_at is None:
        return Health("", "it waits for a broker")
    stalled = stall_of(stats.turned_at, now)
    if stats.assigned_count is None:
        return Health(stalled, "the group has assigned nothing yet")
    if stats.hung_count and stats.hung_count >= stats.hung_count_max:
        return Health(stalled, f"{stats.hung_count} handlers hang: restart it")
    missing = stats.assigned_count - len(stats.partitions)
    waiting = f"{missing} of {stats.assigned_count} queues are not held yet"
    return Health(stalled, waiting if missing > 0 else "")


def _samples(stats: ConsumerStats) -> Iterator[Sample]:
    for topic, found in stats.topics.items():
        for field_name, family in OF_TOPICS.items():
            yield Sample(family, getattr(found, field_name), (topic,))
        yield Sample(OLDEST, found.oldest_ms / 1000, (topic,))
        yield Sample(ATTEMPT_SECONDS, found.attempt_durations or Histogram(ATTEMPT_S).view(), (topic,))
    for field_name, family in OF_CONSUMER.items():
        yield Sample(family, getattr(stats, field_name))
    yield Sample(ASSIGNED_QUEUES, stats.assigned_count or 0)
    yield Sample(HELD_QUEUES, len(stats.partitions))


# --- spans: without tracing nothing here is called --------------------------------------------------------------------


def attempt_span(tracing: Tracing, job: Job, lease: Lease) -> AbstractContextManager[Callable[[Any], None]]:
    """The current span while the handler runs; it ends with the result, or with the kind of what was raised."""
    items = items_of(job)
    messages = [ReceivedMessage(item.record) for item in items[:LINKS_MAX]]
    first = messages[0]
    more: Attributes = {
        "messaging.destination.partition.id": str(lease.partition),
        "messaging.consumer.group.name": lease.group,
        "messaging.kafka.offset": first.offset,
        "txlayer.attempt": items[0].attempt_count + 1,
    }
    attributes = attributes_of("process", "process", lease.topic, more)
    if isinstance(job, list):
        attributes["messaging.batch.message_count"] = len(items)
    if first.txn_id is not None:
        attributes["txlayer.txn_id"] = first.txn_id
    causes = [c for m in messages if (c := trace_context_of(m.headers)) is not None]
    # Several messages have several causes, and none of them is the parent.
    is_one = len(items) == 1 and len(causes) == 1
    span = tracing.start(
        f"process {lease.topic}",
        SpanRole.CONSUMER,
        attributes=attributes,
        cause=causes[0] if is_one else None,
        links=() if is_one else causes,
        age_ms=age_ms(first.timestamp_ms if (origin := first.origin) is None else origin.born_ms),
    )
    return current(span, partial(_end, span))


def _end(span: Span, result: Any) -> None:
    said = checked(result)
    if said is None or isinstance(said, Ack):
        span.end()
    else:
        span.end(error="TypeError" if isinstance(said, WrongResult) else type(said).__name__)
