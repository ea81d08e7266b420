"""An owned queue with its lease, order and counts; and the store of offsets. And the pauses of what cannot be done now:
a dead letter to write or to read, a queue to take over.

A try blocks the engine's thread until its time-out. So the partitions that failed are tried one by one, with growing pauses,
and all of them together have one pause: however many they are, handlers begin in most of the time.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Any, NamedTuple

from txlayer.adapters.ports import StoredOffset, StoringGroupReader, TopicPartition
from txlayer.consumer.context import Lease
from txlayer.consumer.dead_letters import PauseSearch, ResultSearch
from txlayer.consumer.handlers import Route
from txlayer.consumer.metrics import TopicCounts
from txlayer.core.dead_letters import ReplayRecord, replay_topic
from txlayer.core.key_queue import ItemSource, PartitionQueue
from txlayer.core.messages import Undecodable
from txlayer.errors import BrokerUnavailableError, TxLayerError

CHUNK_COUNT_MAX = 1_000
"""Jobs of one chunk; it limits what a crash of a process repeats, and what waits behind a slow job."""
FORMER_COUNT_MAX = 10
"""Rewritten leases that running handlers may have started under; handlers of older ones end with their own lease."""
_SLOW_FACTOR = 4  # a chunk that took this many times its target delayed others: the next ones start small again


class ChunkSize:
    """The number of jobs in a chunk of the target duration, found by trying: doubled while quick, reduced when slow."""

    __slots__ = ("_target_s", "count")

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self.count = 1

    def learn(self, job_count: int, seconds: float) -> None:
        if seconds * 2 <= self._target_s:
            if job_count >= self.count:
                self.count = min(self.count * 2, CHUNK_COUNT_MAX)
        elif seconds > self._target_s * _SLOW_FACTOR:
            self.count = 1
        elif seconds > self._target_s:
            self.count = max(int(self.count * self._target_s / seconds), 1)


@dataclass(eq=False)
class OwnedPartition:
    """One queue from its take-over to its loss. Only the engine's thread uses it; the lease is shared."""

    lease: Lease
    queue: PartitionQueue[Any]
    _: KW_ONLY
    route: Route
    tally: TopicCounts
    chunk_s: InitVar[float]
    next_offsets: dict[TopicPartition, int]  # the offsets at which reading of both sources goes on
    sources: tuple[ItemSource, ...] = tuple(ItemSource)
    is_reading_paused: bool = False
    is_replay_paused: bool = False
    requests: deque[tuple[Any, ReplayRecord | Undecodable]] = field(default_factory=deque)
    """Requests that were read, but whose dead letters have no room in memory yet."""
    search: ResultSearch | None = None  # while results of requests are looked for: how far
    pause_search: PauseSearch | None = None  # since requests waited for room during an operator's pause
    reached: int = 0  # after these requests, only markers follow up to this offset
    look_at_ms: int = 0  # when to look again whether parked keys still have dead letters, if no more can be parked
    is_over: bool = False  # True if results of its handlers are discarded

    def __post_init__(self, chunk_s: float) -> None:
        self.topic, self.partition = self.topic_partition = (self.lease.topic, self.lease.partition)
        self.replay_partition = (replay_topic(self.lease.group, self.topic), self.partition)
        self.chunk_size = ChunkSize(chunk_s)
        self._former: deque[Lease] = deque(maxlen=FORMER_COUNT_MAX)

    @property
    def log_fields(self) -> dict[str, object]:
        return {"group": self.lease.group, "topic": self.topic, "partition": self.partition}

    def partition_of(self, source: ItemSource) -> TopicPartition:
        return self.topic_partition if source is ItemSource.TOPIC else self.replay_partition

    def renew(self, token: int | None) -> None:
        """Use this token, which is stored, for handlers that start from now on."""
        self._former.append(self.lease)
        self.lease = replace(self.lease, token=token)

    def extend(self, valid_until: float) -> None:
        """Set the end of the lease, also for handlers that started before it was rewritten."""
        self.lease.valid_until = valid_until
        for lease in self._former:
            lease.valid_until = valid_until

    def end(self) -> None:
        """The queue is lost or taken over again: start no handler of it, and notify the running ones."""
        self.is_over = True
        self.lease.lost.set()
        self.queue.drop_queued()
        self.requests.clear()


StoredVersions = list[tuple[OwnedPartition, ItemSource, int]]
"""The meaning of an acknowledgement: snapshots by their versions."""


class OffsetStorer:
    """Stores the progress of queues, with one outstanding store at a time. The engine's thread uses it.

    Unless it `is_kept`, progress is in `own` instead of on the broker.
    """

    def __init__(
        self,
        reader: StoringGroupReader,
        *,
        interval_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        is_kept: bool = True,
    ) -> None:
        self._is_kept = is_kept
        self.own: dict[TopicPartition, StoredOffset] = {}  # progress that is not kept on the broker
        self._reader = reader
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._begun: StoredVersions = []
        self._begun_at = float("-inf")
        self.is_under_way = False
        """True until the outstanding store is acknowledged, even if its acknowledgement no longer matters."""

    @property
    def next_at(self) -> float:
        return self._begun_at + self._interval_s

    def look(self) -> None:
        """Process the acknowledgement; messages whose attempts are now stored may go on.

        Raises:
            TxLayerError: the store failed or was not answered; the stored state is unknown.
        """
        if not self.is_under_way:
            return
        try:
            is_stored = self._reader.take_stored()
        except TxLayerError:
            self.is_under_way = False
            raise
        if is_stored:
            self.is_under_way = False
            begun, self._begun = self._begun, []
            mark_stored(begun)
        elif self._clock() - self._begun_at > self._timeout_s:
            self.is_under_way = False
            raise BrokerUnavailableError("offsets were not stored in time", waited_ms=int(self._timeout_s * 1000))

    def wait(self, serve: Callable[[], None]) -> None:
        """Wait until no store is in flight; the stored offsets read before that would be out of date.

        `serve` is called repeatedly; it waits a little, and may raise.

        Raises:
            TxLayerError: as `look`.
        """
        while self.is_under_way:
            serve()
            self.look()

    def begin(self, queues: Iterable[OwnedPartition]) -> None:
        """Begin to store changes, if the interval has passed and no store is in flight."""
        now = self._clock()
        if self.is_under_way or now < self._begun_at + self._interval_s:
            return
        offsets, versions = snapshots(queues, only_changed=True)
        if offsets and not self._is_kept:
            self._begun_at = now
            self._keep(offsets, versions)
        elif offsets:
            self._begun, self._begun_at = versions, now
            self._reader.begin_store(offsets)
            self.is_under_way = True

    def store_now(self, queues: Iterable[OwnedPartition], *, timeout_s: float, only_changed: bool = False) -> None:
        """Store everything of these queues, or what has changed, and wait. An outstanding older store takes effect before.

        Raises:
            TxLayerError: the stored state is unknown.
        """
        self._begun = []
        # What an outstanding store holds does not count as changed, and nobody learns any more whether it was stored.
        offsets, versions = snapshots(queues, only_changed=only_changed and not self.is_under_way)
        if offsets and not self._is_kept:
            self._keep(offsets, versions)
        elif offsets:
            self.is_under_way = False
            self._reader.store_offsets(offsets, timeout_s=timeout_s)
            mark_stored(versions)

    def _keep(self, offsets: Mapping[TopicPartition, StoredOffset], versions: StoredVersions) -> None:
        self.own.update(offsets)
        mark_stored(versions)

    def forget(self) -> None:
        """The queues are lost: an outstanding acknowledgement is waited for but has no effect."""
        self._begun = []

    def end(self) -> None:
        """The group revoked everything: its new generation fences an outstanding store."""
        self.forget()
        self.is_under_way = False


def snapshots(
    queues: Iterable[OwnedPartition], *, only_changed: bool
) -> tuple[dict[TopicPartition, StoredOffset], StoredVersions]:
    """The progress to store, for both sources of each queue, and the meaning of its acknowledgement."""
    offsets: dict[TopicPartition, StoredOffset] = {}
    versions: StoredVersions = []
    for owned in queues:
        for source in owned.sources:
            if only_changed and not owned.queue.is_changed(source):
                continue
            snapshot = owned.queue.snapshot(source)
            offsets[owned.partition_of(source)] = StoredOffset(snapshot.offset, snapshot.metadata)
            versions.append((owned, source, snapshot.version))
    return offsets, versions


def mark_stored(versions: StoredVersions) -> None:
    for owned, source, version in versions:
        owned.queue.stored(source, version)


PAUSE_FIRST_MS = 100  # shortest pause after a failed try
PAUSE_MAX_MS = 60_000
"""Longest pause between two tries of one partition, and of all that failed: other keys wait for a seventh of the time."""


class _Pause(NamedTuple):
    """The pause of one partition."""

    until_ms: int
    wait_ms: int


class FailedTries:
    """The partitions for which a try failed. Not thread-safe."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._pauses: dict[TopicPartition, _Pause] = {}  # the one whose try is the longest ago first
        self._any_from_ms = 0  # nothing is tried before
        self._failed_from_ms = 0  # nothing that failed is tried before

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._pauses

    def until_ms(self, tp: TopicPartition) -> int:
        pause = self._pauses.get(tp)
        return self._any_from_ms if pause is None else max(pause.until_ms, self._failed_from_ms)

    def first(self, tps: Collection[TopicPartition]) -> TopicPartition | None:
        """Of these, the one that failed, may be tried now, and was tried the longest ago."""
        found = (tp for tp in self._pauses if tp in tps and self.until_ms(tp) <= self._now_ms())
        return next(found, None)

    def failed(
        self, tp: TopicPartition, *, took_ms: int, is_again: bool = True, wait_max_ms: int | None = None
    ) -> None:
        """A try failed: pause as long as it took, and, if the same was tried before, twice as long as then.

        `wait_max_ms`: a shorter limit, if nothing waits for the tries.
        """
        now_ms = self._now_ms()
        before = self._pauses.pop(tp, None)
        wait_ms = max(took_ms, PAUSE_FIRST_MS)
        if before is not None and is_again:
            wait_ms = max(wait_ms, min(2 * before.wait_ms, PAUSE_MAX_MS))
        if wait_max_ms is not None:
            wait_ms = min(wait_ms, wait_max_ms)
        self._pauses[tp] = _Pause(now_ms + wait_ms, wait_ms)
        self._any_from_ms = now_ms + took_ms
        self._failed_from_ms = now_ms + wait_ms

    def passed(self, tp: TopicPartition) -> None:
        """A try succeeded. If it failed before here, the others may be well again, too: each may be tried now."""
        if self._pauses.pop(tp, None) is not None:
            now_ms = self._now_ms()
            self._failed_from_ms = now_ms
            self._pauses = {p: _Pause(now_ms, pause.wait_ms) for p, pause in self._pauses.items()}

    def keep(self, tps: Iterable[TopicPartition]) -> None:
        kept = set(tps)
        self._pauses = {tp: pause for tp, pause in self._pauses.items() if tp in kept}
