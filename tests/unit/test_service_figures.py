"""Consumers and responders from outside: when they are alive and ready, and what their figures say."""

from typing import Any

import pytest

from txlayer.adapters.metrics import EVERYBODYS, Health, HistogramView
from txlayer.consumer import metrics as consumer
from txlayer.consumer.metrics import ConsumerStats, TopicStats
from txlayer.core.messages import COMMIT, UNKNOWN
from txlayer.errors import BrokerUnavailableError
from txlayer.producer import responder
from txlayer.producer.questions import ResponderStats

NOW = 1_000.0
TOPIC = TopicStats(
    handled=5,
    failed=2,
    dead_lettered=1,
    passed_over=3,
    rate=0.5,
    attempt_ms=4.0,
    in_flight=6,
    waiting=7,
    retrying=1,
    parked_keys=2,
    oldest_ms=2_500,
    paused_partitions=1,
    handled_by_key_group={"gold": 5},
    attempts=8,
    attempt_s=1.5,
    attempt_durations=HistogramView((0.1, 0.5), (6, 8, 8), 1.5),
    unread=11,
)


def consuming(**changed: Any) -> ConsumerStats:
    """Figures of a consumer that has two queues."""
    given: dict[str, Any] = {
        "topics": {"orders": TOPIC},
        "partitions": (("orders", 0), ("orders", 1)),
        "rebuild_count": 4,
        "stale_count": 9,
        "assigned_count": 2,
        "rebalance_count": 3,
        "lost_lease_count": 1,
        "replaced_count": 2,
        "turned_at": NOW,
    }
    return ConsumerStats(**{**given, **changed})


def answering(**changed: Any) -> ResponderStats:
    """Figures of a responder at work."""
    given: dict[str, Any] = {
        "asked": 9,
        "answered": {COMMIT: 4, UNKNOWN: 3},
        "unknown": {"TimeoutError": 2, "KeyError": 1},
        "skipped": {"stale": 2},
        "late": 1,
        "stored": 6,
        "lost": 1,
        "refused": 2,
        "own_partitions": (0, 2),
        "is_member": True,
        "failure": None,
        "turned_at": NOW,
    }
    return ResponderStats(**{**given, **changed})


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (consuming(), Health("", "")),
        (consuming(turned_at=None), Health("", "it waits for a broker")),
        (consuming(assigned_count=None), Health("", "the group has assigned nothing yet")),
        (consuming(assigned_count=0, partitions=()), Health("", "")),
        (consuming(partitions=()), Health("", "2 of 2 queues are not held yet")),
        (consuming(turned_at=NOW - 61), Health("the loop has not turned for 61 s", "")),
        (consuming(has_ended=True), Health("", "it has ended")),
        (
            consuming(has_ended=True, failure="ConfigError"),
            Health("it failed: ConfigError; see the log", "it failed: ConfigError; see the log"),
        ),
    ],
)
def test_health_of_a_consumer(stats: ConsumerStats, expected: Health) -> None:
    assert expected == consumer.health_of(stats, now=NOW)


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (answering(), Health("", "")),
        (None, Health("", "it waits for a broker")),
        (answering(turned_at=None), Health("", "it waits for a broker")),
        (answering(own_partitions=()), Health("", "")),
        (answering(is_member=False), Health("", "it is no member of its check group yet")),
        (
            answering(failure=BrokerUnavailableError(bootstrap_servers="secret")),
            Health("", "it hears nothing: BrokerUnavailableError; see the log"),
        ),
        (answering(turned_at=NOW - 60), Health("the loop has not turned for 60 s", "")),
    ],
)
def test_health_of_a_responder(stats: ResponderStats | None, expected: Health) -> None:
    assert expected == responder.health_of(stats, now=NOW)


def test_a_consumer_has_a_sample_of_every_family_and_of_no_other() -> None:
    observed = consumer.ObservedConsumer(consuming, group="g", version="1", clock=lambda: NOW)

    found = {s.family.name: s.value for s in observed.samples() if s.family not in EVERYBODYS}

    assert {family.name for family in consumer.FAMILIES} == set(found)
    assert (5, 2.5, 2, 1) == (
        found["txlayer_consumer_messages_handled_total"],
        found["txlayer_consumer_oldest_message_seconds"],
        found["txlayer_consumer_held_queues"],
        found["txlayer_consumer_leases_lost_total"],
    )
    assert TOPIC.attempt_durations == found["txlayer_consumer_attempt_duration_seconds"]


def test_key_groups_of_users_are_no_labels() -> None:
    observed = consumer.ObservedConsumer(consuming, group="g", version="1", clock=lambda: NOW)

    assert not any("gold" in sample.labels for sample in observed.samples())


def test_a_responder_has_a_sample_of_every_family_and_of_no_other() -> None:
    observed = responder.ObservedResponder(group="g", version="1", clock=lambda: NOW)
    observed.follow(answering)

    found = [s for s in observed.samples() if s.family not in EVERYBODYS]

    assert set(responder.FAMILIES) == {sample.family for sample in found}
    assert {("commit",): 4, ("rollback",): 0, ("unknown",): 3} == {
        s.labels: s.value for s in found if s.family == responder.ANSWERS
    }


def test_a_responder_whose_client_is_gone_has_no_figures_of_it() -> None:
    observed = responder.ObservedResponder(group="g", version="1", clock=lambda: NOW)
    observed.follow(answering)
    observed.follow(None)

    assert set(EVERYBODYS) == {sample.family for sample in observed.samples()}


def test_causes_beyond_the_limit_are_other() -> None:
    observed = responder.ObservedResponder(group="g", version="1", clock=lambda: NOW)
    observed.follow(lambda: answering(unknown={f"Cause{n:03}": 1 for n in range(80)}))

    causes = {s.labels[0]: s.value for s in observed.samples() if s.family == responder.UNKNOWN}

    assert (51, 30) == (len(causes), causes["other"])
