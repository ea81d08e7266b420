"""What `QueryMetrics` shows of the events of Spark's queries."""

import json
from types import SimpleNamespace
from typing import Any

from txlayer.adapters.metrics import OTHER
from txlayer_spark.progress import BEHIND, QUERY_COUNT_MAX, QueryMetrics, behind

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
