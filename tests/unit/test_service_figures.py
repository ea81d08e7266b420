"""Services from outside: when they are alive and ready, what their figures say, and how histograms and labels are made."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from txlayer.adapters.telemetry import EVERYBODYS, OTHER, Health, Histogram, HistogramView, with_few_labels
from txlayer.cli import spark
from txlayer.cli.spark import ObservedAudit, RunResult
from txlayer.config import MetricsConfig, from_environ
from txlayer.consumer import metrics as consumer
from txlayer.consumer.metrics import ConsumerStats, TopicStats
from txlayer.core.messages import COMMIT, UNKNOWN
from txlayer.errors import BrokerUnavailableError, ConfigError
from txlayer.producer import responder
from txlayer.producer.questions import ResponderStats
from txlayer_spark.progress import BEHIND, QUERY_COUNT_MAX, QueryMetrics, behind

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
    failed_rate=0.25,
    postponed=13,
    breaker_is_open=True,
    breaker_opened=14,
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
    assert (5, 0.25, 13, True, 14, 2.5, 2, 1) == (
        found["txlayer_consumer_messages_handled_total"],
        found["txlayer_consumer_failed_attempts_per_second"],
        found["txlayer_consumer_postponed_total"],
        found["txlayer_consumer_breaker_open"],
        found["txlayer_consumer_breaker_openings_total"],
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


def test_a_histogram_counts_what_is_at_most_as_large_as_each_bound() -> None:
    sizes = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 7.0):
        sizes.observe(value)

    view = sizes.view()

    assert ((1.0, 2.0), (2, 3, 4), 9.5) == (view.bounds, view.counts, view.total)


def test_one_observation_may_stand_for_many() -> None:
    sizes = Histogram((1.0,))

    sizes.observe(0.5, weight=10)

    assert ((10, 10), 5.0) == (sizes.view().counts, sizes.view().total)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 5, "c": 3, "d": 1}, {"b": 5, "c": 3, "other": 2}),
        ({"other": 7, "b": 3, "c": 1}, {"other": 8, "b": 3}),
    ],
    ids=["few names", "beyond the limit", "a group that is called other"],
)
def test_the_largest_keep_their_labels_and_the_sum_stays(counts: dict[str, int], expected: dict[str, int]) -> None:
    assert expected == with_few_labels(counts, 2)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_nothing_listens_unless_a_port_is_named() -> None:
    assert MetricsConfig(metrics_port=0, metrics_host="127.0.0.1") == from_environ(MetricsConfig, {})


def test_the_command_line_wins_over_the_environment() -> None:
    environ = {"TXLAYER_METRICS_PORT": "9000", "TXLAYER_METRICS_HOST": "::1"}

    assert MetricsConfig(metrics_port=9000, metrics_host="::1") == from_environ(MetricsConfig, environ)
    assert 0 == from_environ(MetricsConfig, environ, metrics_port=0).metrics_port
    assert "0.0.0.0" == from_environ(MetricsConfig, environ, metrics_host="0.0.0.0").metrics_host


@pytest.mark.parametrize("text", ["-1", "x", "65536", "9464.5", "", "٣"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a port|a number"):
        from_environ(MetricsConfig, {"TXLAYER_METRICS_PORT": text})


def test_workers_have_ports_that_follow_each_other() -> None:
    config = MetricsConfig(metrics_port=9464)

    assert [9464, 9465, 9466] == [config.of_worker(number).metrics_port for number in range(3)]
    assert 0 == MetricsConfig().of_worker(2).metrics_port


def test_a_worker_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="65536"):
        MetricsConfig(metrics_port=65535).of_worker(1)


def test_an_audit_is_ready_after_its_first_run_and_stalled_when_no_further_one_ends() -> None:
    now = 100.0
    audit = ObservedAudit(pause_s=60, record_count=lambda: 12, name="txlayer", version="1", clock=lambda: now)

    assert ("", "the first run goes on") == audit.health()
    audit.failed()
    audit.complete(RunResult(20.0, {"ok": 7, "lost": 1}, {"orders": (3, 5)}, {"gap": 2}))
    now = 339.0
    assert ("", "") == audit.health()

    found = {(sample.family.name, sample.labels): sample.value for sample in audit.samples()}
    assert {
        ("txlayer_audit_runs_total", ("complete",)): 1,
        ("txlayer_audit_runs_total", ("failed",)): 1,
        ("txlayer_audit_run_seconds", ()): 20.0,
        ("txlayer_audit_age_seconds", ()): 239.0,
        ("txlayer_audit_records_total", ()): 12,
        ("txlayer_audit_unreadable", ("gap",)): 2,
        ("txlayer_audit_transactions", ("ok",)): 7,
        ("txlayer_audit_transactions", ("lost",)): 1,
        ("txlayer_audit_behind_records", ("orders",)): 3,
        ("txlayer_audit_hidden_records", ("orders",)): 5,
    }.items() <= found.items()

    now = 341.0
    assert "the last complete run ended 241 s ago" == audit.health().stalled


def test_a_topic_that_was_created_later_is_no_gap_that_retention_left(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = ObservedAudit(pause_s=60, record_count=lambda: 0, name="txlayer", version="1")
    nothing: Any = None
    gaps = [
        {"topic": "new", "partition": 0, "start": 0, "end": 0},
        {"topic": "old", "partition": 0, "start": 0, "end": 7},
    ]
    summary: Any = SimpleNamespace(gaps=gaps, unread_topics=[], hidden_topics=[], verdicts={"ok": 1})
    monkeypatch.setattr(spark, "unread", lambda *_: {})

    spark._run_observed(nothing, nothing, lambda _: (nothing, summary), audit)

    found = {(sample.family.name, sample.labels): sample.value for sample in audit.samples()}
    assert 1 == found["txlayer_audit_unreadable", ("gap",)]


KAFKA = "KafkaV2[Subscribe[orders,stock]]"


def source(end: Any, latest: Any, *, rows: int = 0, description: str = KAFKA) -> dict[str, Any]:
    return {"description": description, "endOffset": end, "latestOffset": latest, "numInputRows": rows}


def progress(key: str, *sources: dict[str, Any], name: str | None = None, took_ms: int = 1500) -> Any:
    said = {"id": key, "name": name, "sources": sources, "durationMs": {"triggerExecution": took_ms}}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(said)))


def started(key: str, name: str) -> Any:
    return SimpleNamespace(id=key, name=name)


def ended(key: str, exception: str | None = None) -> Any:
    return SimpleNamespace(id=key, exception=exception)


def shown(metrics: QueryMetrics) -> dict[tuple[str, ...], Any]:
    return {
        (sample.family.name.removeprefix("txlayer_stream_"), *sample.labels): sample.value
        for sample in metrics.samples()
    }


def test_batches_are_counted_and_an_end_by_an_error_is_a_failure() -> None:
    now = 100.0
    metrics = QueryMetrics(clock=lambda: now)
    metrics.onQueryStarted(started("u-1", "revenue"))
    metrics.onQueryProgress(
        progress("u-1", source({"orders": {"0": 7}}, {"orders": {"0": 9, "1": 4}, "stock": {"0": 1}}, rows=7))
    )
    metrics.onQueryProgress(progress("u-1", source({"orders": {"0": 9, "1": 4}}, None, rows=5)))
    now = 130.0

    assert {
        ("running", "revenue"): 1,
        ("age_seconds", "revenue"): 30.0,
        ("batches_total", "revenue"): 2,
        ("rows_total", "revenue"): 12,
        ("batch_seconds", "revenue"): 1.5,
        ("failures_total", "revenue"): 0,
    } == shown(metrics)

    metrics.onQueryIdle(ended("u-1"))
    assert 0.0 == shown(metrics)["age_seconds", "revenue"]

    metrics.onQueryTerminated(ended("u-1", "KAFKA_DATA_LOSS"))
    found = shown(metrics)
    assert (0, 1) == (found["running", "revenue"], found["failures_total", "revenue"])
    assert ("age_seconds", "revenue") not in found
    metrics.onQueryStarted(started("u-1", "revenue"))
    metrics.onQueryTerminated(ended("u-1"))
    assert 1 == shown(metrics)["failures_total", "revenue"]


def test_what_is_behind_is_counted_by_topic_and_of_kafka_alone() -> None:
    ends = {"orders": {"0": 9, "1": 4}, "stock": {"0": 1}}
    sources = (
        source({"orders": {"0": 7}}, ends),
        source({"orders": {"0": 9, "1": 4}}, {"orders": {"0": 9, "1": 4}}),  # of a join with itself
        source({"reservoirVersion": 3}, {"reservoirVersion": 5}, description="DeltaSource[lake]"),
        source(None, None),
    )

    assert {"orders": 6, "stock": 1} == behind({"sources": sources})


def test_queries_and_topics_beyond_the_bounds_are_not_shown_and_their_rows_are_counted() -> None:
    now = 0.0
    metrics = QueryMetrics(clock=lambda: now)
    metrics.onQueryProgress(progress("first", source({}, {f"t-{n}": {"0": 1} for n in range(60)}, rows=1)))
    for number in range(QUERY_COUNT_MAX):
        now += 1
        metrics.onQueryProgress(progress(f"u-{number}", source({}, {}, rows=1)))
        if number:
            metrics.onQueryTerminated(ended(f"u-{number}"))

    found = shown(metrics)
    assert 10 == found["behind_records", "first", OTHER]
    assert 51 == len({sample.labels[1] for sample in metrics.samples() if sample.family is BEHIND})
    # The first two run; of those that ended, the oldest is gone.
    assert {"first", *(f"u-{n}" for n in range(QUERY_COUNT_MAX) if n != 1)} == {labels[1] for labels in found}
    assert QUERY_COUNT_MAX + 1 == metrics.row_count


def test_a_query_that_was_idle_when_it_was_first_heard_of_has_its_name_later() -> None:
    metrics = QueryMetrics(clock=lambda: 0.0)
    metrics.onQueryIdle(ended("u-1"))
    metrics.onQueryProgress(progress("u-1", source({}, {}, rows=1), name="revenue"))

    assert {"revenue"} == {labels[1] for labels in shown(metrics)}


def test_of_two_checkpoints_with_one_name_the_one_that_runs_is_shown() -> None:
    metrics = QueryMetrics(clock=lambda: 0.0)
    metrics.onQueryProgress(progress("old", source({}, {}, rows=1), name="revenue"))
    metrics.onQueryProgress(progress("new", source({}, {}, rows=2), name="revenue"))
    metrics.onQueryTerminated(ended("new"))

    assert 1 == shown(metrics)["rows_total", "revenue"]
