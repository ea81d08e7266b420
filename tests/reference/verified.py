"""What `txlayer verify` says of a history: its own readers and judge, over an administrator and readers of records in memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from tests.reference.wire import Bounds, History, Record
from txlayer.adapters.connect import Clients
from txlayer.config import ClientConfig
from txlayer.core.topics import TopicState
from txlayer.core.verification import Verdict
from txlayer.operate.verify import Late, TraceIndex, WantedWindow, WindowReader, judgements

Place = tuple[str, int]

APPEND_TIME, WRITERS_TIME = 2, 1
#: What stays the verdict when the order of its key turns out to be wrong, too.
WORSE = {Verdict.LEAKED, Verdict.DUPLICATE, Verdict.TORN, Verdict.CORRUPT}


@dataclass(frozen=True)
class Told:
    """Verdicts by id/nonce, and the places of records on real topics that belong to nobody."""

    words: Mapping[str, str]
    orphans: frozenset[str]


def verified(
    history: History,
    *,
    now_ms: int,
    since_ms: int = 0,
    until_ms: int | None = None,
    tombstones_ms: int = 1 << 60,
    overdue_ms: int = 1 << 62,
) -> Told:
    """Read and judge what was stored between those times, as `txlayer verify --since --until` does; compaction keeps null values for so long."""
    cluster = Cluster(history, now_ms=now_ms, tombstones_ms=tombstones_ms)
    clients = SimpleNamespace(
        config=ClientConfig(bootstrap_servers="localhost:1", namespace=history.settings.namespace),
        admin=lambda: Admin(cluster),
        reader=lambda *, isolation, is_sparing: Reader(cluster, is_committed=isolation == "read_committed"),  # noqa: ARG005 - as the port
        wall_clock=lambda: now_ms / 1000,
    )
    reader = WindowReader(cast("Clients", clients))
    topics = tuple(cluster.topics - {f"{history.settings.namespace}.{t}" for t in ("half", "op", "doubt")})
    asked = WantedWindow(
        since_ms=since_ms,
        until_ms=until_ms,
        topics=topics,
        overdue_ms=overdue_ms,
        clock_error_ms=history.settings.clock_error_ms,
    )
    with TraceIndex() as shelf:
        window = reader.read(asked, shelf).window
        words: dict[str, Verdict] = {}
        orphans = set()
        for found in judgements(shelf, window):
            if isinstance(found, Late):
                key = f"{found.finding.txn_id}/{found.finding.nonce}"
                words[key] = found.before if found.before in WORSE else Verdict.OUT_OF_ORDER
            elif found.verdict is Verdict.ORPHAN:
                orphans.add("{}-{}@{}".format(*found.origin))
            elif found.nonce:
                words[f"{found.txn_id}/{found.nonce}"] = found.verdict
    return Told({key: verdict.value for key, verdict in words.items()}, frozenset(orphans))


class Cluster:
    """A history, by partition."""

    def __init__(self, history: History, *, now_ms: int, tombstones_ms: int) -> None:
        self.now_ms = now_ms
        self.tombstones_ms = tombstones_ms
        self.bounds: Mapping[Place, Bounds] = history.bounds
        self.compacted = history.settings.compacted_topics
        self.topics = {topic for topic, _ in history.bounds}
        self.records: dict[Place, list[Record]] = {place: [] for place in history.bounds}
        for record in sorted(history.records, key=lambda r: r.log_order):
            self.records[record.topic, record.partition].append(record)


class Admin:
    """What a cluster tells an administrator; the rest of the protocol is not asked."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def partition_count(self, topic: str) -> int | None:
        return len([t for t, _ in self._cluster.bounds if t == topic]) or None

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        policies = {n: "compact" if n in self._cluster.compacted else "delete" for n in names}
        kept = {"delete.retention.ms": str(self._cluster.tombstones_ms)}
        # What no history calls compacted is so young that nothing of it was.
        lags = {"compact": {}, "delete": {"min.compaction.lag.ms": str(self._cluster.tombstones_ms)}}
        return {
            name: TopicState(self.partition_count(name) or 0, 1, {"cleanup.policy": policy, **kept, **lags[policy]})
            for name, policy in policies.items()
        }

    def start_offsets(self, places: Collection[Place]) -> dict[Place, int]:
        return {place: self._cluster.bounds[place].start for place in places}

    def end_offsets(self, places: Collection[Place], *, is_committed: bool = True) -> dict[Place, int]:
        bounds = {place: self._cluster.bounds[place] for place in places}
        return {p: b.readable_end if is_committed else b.end for p, b in bounds.items()}

    def offsets_at(self, places: Collection[Place], *, at_ms: int) -> dict[Place, int]:
        """Behind the last record before that time: markers have times, too, of which nothing is known but that they are past."""
        if at_ms > self._cluster.now_ms:
            return self.end_offsets(places)
        starts = self.start_offsets(places)
        for place in places if at_ms else ():
            for record in self._cluster.records[place]:
                if record.timestamp_ms >= at_ms:
                    break
                starts[place] = record.offset + 1
        return starts

    def close(self) -> None:
        pass


class Read(NamedTuple):
    """A record as a client shows it."""

    record: Record

    def topic(self) -> str:
        return self.record.topic

    def partition(self) -> int:
        return self.record.partition

    def offset(self) -> int:
        return self.record.offset

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list(self.record.headers)

    def timestamp(self) -> tuple[int, int]:
        kind = APPEND_TIME if self.record.is_append_time else WRITERS_TIME
        return kind, self.record.timestamp_ms

    def error(self) -> None:
        return None


class EndError(NamedTuple):
    def name(self) -> str:
        return "_PARTITION_EOF"


class End(NamedTuple):
    """The end of a partition, as a client shows it."""

    place: Place
    end: int

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.end

    def error(self) -> EndError:
        return EndError()


@dataclass
class Reader:
    """Gives everything of its partitions at the next read, each with its end."""

    cluster: Cluster
    is_committed: bool
    positions: dict[Place, int] = field(default_factory=dict)

    def assign(self, positions: Mapping[Place, int]) -> None:
        self.positions = dict(positions)

    def read(self, **_limits: float) -> Sequence[Any]:
        found: list[Any] = []
        for place, start in self.positions.items():
            bounds = self.cluster.bounds[place]
            end = bounds.readable_end if self.is_committed else bounds.end
            for record in self.cluster.records[place]:
                is_seen = record.kafka == "committed" or not self.is_committed
                if start <= record.offset < end and is_seen:
                    found.append(Read(record))
            found.append(End(place, end))
        self.positions = {}
        return found

    def pause(self, partition: Place) -> None:
        pass

    def close(self) -> None:
        pass
