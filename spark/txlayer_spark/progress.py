"""`QueryMetrics`: Prometheus metrics of streaming queries, from the progress that Spark reports after each batch."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.streaming import listener

from txlayer.adapters.telemetry import Sample, counter, gauge, with_few_labels

RUNNING = gauge("txlayer_stream_running", "1 while the query runs, else 0.", "query")
AGE = gauge("txlayer_stream_age_seconds", "Time since Spark last reported a batch, or an idle query.", "query")
BATCHES = counter("txlayer_stream_batches_total", "Batches that were done.", "query")
ROWS = counter("txlayer_stream_rows_total", "Rows that were read.", "query")
SECONDS = gauge("txlayer_stream_batch_seconds", "How long the last batch took.", "query")
BEHIND = gauge(
    "txlayer_stream_behind_records",
    "Offsets of committed records behind the last batch: of Kafka's topics alone.",
    "query",
    "topic",
)
FAILURES = counter(
    "txlayer_stream_failures_total",
    "Ends of the query by an error; a stop in the middle of a batch may be one.",
    "query",
)
FAMILIES = (RUNNING, AGE, BATCHES, ROWS, SECONDS, BEHIND, FAILURES)

QUERY_COUNT_MAX = 50
"""How many queries are shown. A further one replaces the one that has been silent longest, stopped ones first."""


@dataclass(slots=True)
class _Query:
    """What is known of one query, by its checkpoint's id."""

    name: str
    at: float
    is_running: bool = False
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    behind: dict[str, int] = field(default_factory=dict)
    failures: int = 0


class QueryMetrics(listener.StreamingQueryListener):
    """The metrics of all queries of the sessions that it is added to (`spark.streams.addListener`).

    A query's label is its name, or else the id of its checkpoint. Any thread may ask for the samples.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._row_count = 0

    @property
    def row_count(self) -> int:
        """Rows that all queries have read together, including those that are no longer shown."""
        return self._row_count

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:  # noqa: N802 - Spark calls it so
        with self._lock:
            query = self._query(str(event.id), event.name)
            query.is_running, query.at = True, self._clock()

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:  # noqa: N802 - Spark calls it so
        # As JSON: what PySpark's own fields hold differs from release to release.
        progress: dict[str, Any] = json.loads(event.progress.json)
        rows = sum(source["numInputRows"] for source in progress["sources"])
        with self._lock:
            query = self._query(progress["id"], progress.get("name"))
            query.is_running, query.at = True, self._clock()
            query.batches += 1
            query.rows += rows
            query.seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
            query.behind = behind(progress)
            self._row_count += rows

    def onQueryIdle(self, event: listener.QueryIdleEvent) -> None:  # noqa: N802 - Spark calls it so
        with self._lock:
            query = self._query(str(event.id), None)
            query.is_running, query.at = True, self._clock()

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:  # noqa: N802 - Spark calls it so
        with self._lock:
            query = self._query(str(event.id), None)
            query.is_running = False
            query.failures += event.exception is not None

    def _query(self, key: str, name: str | None) -> _Query:
        found = self._queries.get(key)
        if found is None:
            if len(self._queries) >= QUERY_COUNT_MAX:
                self._queries.pop(min(self._queries, key=lambda k: (self._queries[k].is_running, self._queries[k].at)))
            found = self._queries[key] = _Query(key, self._clock())
        found.name = name or found.name
        return found

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            found = [replace(query) for query in self._queries.values()]
            now = self._clock()
        found.sort(key=lambda query: (query.is_running, query.at))
        # Of several checkpoints with one name, the one that runs is shown, else the newest one.
        for name, query in {query.name: query for query in found}.items():
            yield Sample(RUNNING, int(query.is_running), (name,))
            if query.is_running:
                yield Sample(AGE, now - query.at, (name,))
            yield Sample(BATCHES, query.batches, (name,))
            yield Sample(ROWS, query.rows, (name,))
            yield Sample(SECONDS, query.seconds, (name,))
            for topic, count in with_few_labels(query.behind).items():
                yield Sample(BEHIND, count, (name, topic))
            yield Sample(FAILURES, query.failures, (name,))


def behind(progress: dict[str, Any]) -> dict[str, int]:
    """{topic: offsets of committed records behind a batch}, from the progress of a query.

    Spark asks for ends as the source reads: of a source that reads committed records this is the last stable offset.
    """
    found: Counter[str] = Counter()
    for source in progress["sources"]:
        if not source["description"].startswith("Kafka"):
            continue
        read_to = source.get("endOffset") or {}
        for topic, ends in (source.get("latestOffset") or {}).items():
            read = read_to.get(topic, {})
            count = sum(max(at - read.get(partition, 0), 0) for partition, at in ends.items())
            # If two sources of one query read a topic, it counts once.
            found[topic] = max(found[topic], count)
    return dict(found)
