"""A queue that this consumer works off: its lease, its order, its figures. Never deciding any of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from txlayer.adapters.ports import StoredOffset, StoringGroupReader, TopicPartition
from txlayer.consumer.context import Lease
from txlayer.consumer.handlers import Route
from txlayer.consumer.metrics import TopicCounts
from txlayer.core.dead_letters import replay_topic
from txlayer.core.key_queue import ItemSource, KeyQueues
from txlayer.core.messages import Undecodable
from txlayer.core.retry import ReplayRecord
from txlayer.errors import BrokerUnavailableError, TxLayerError

CHUNK_COUNT_MAX = 1_000
"""Jobs of one chunk: what a crash of a process repeats, and what waits behind one slow job."""
FORMER_COUNT_MAX = 10
"""Leases written again that running handlers may have begun under; those of older ones end with theirs."""
_SLOW_FACTOR = 4
"""A chunk that took so many times what it should have held others up: the next ones begin small again."""


class ChunkSize:
    """How many jobs make a chunk of the right length, found by trying: doubled while quick, cut when slow."""

    __slots__ = ("_target_s", "count")

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self.count = 1

    def learn(self, job_count: int, seconds: float) -> None:
        """A chunk of so many jobs took so long."""
        if seconds * 2 <= self._target_s:
            if job_count >= self.count:
                self.count = min(self.count * 2, CHUNK_COUNT_MAX)
        elif seconds > self._target_s * _SLOW_FACTOR:
            self.count = 1
        elif seconds > self._target_s:
            self.count = max(int(self.count * self._target_s / seconds), 1)


class OwnedPartition:
    """One queue from taking it over until it goes. Used by the engine's thread alone, but for the lease."""

    __slots__ = (
        "_former", "chunk_size", "is_over", "is_reading_paused", "is_replay_paused", "lease", "next_offsets", "partition", "place", "queues",
        "reached", "replay_place", "requests", "route", "tally", "topic",
    )  # fmt: skip

    def __init__(
        self,
        lease: Lease,
        queues: KeyQueues[Any],
        *,
        route: Route,
        tally: TopicCounts,
        chunk_s: float,
        next_offsets: dict[TopicPartition, int],
    ) -> None:
        self.lease = lease
        self.queues = queues
        self.route = route
        self.tally = tally
        self.topic = lease.topic
        self.partition = lease.partition
        self.place = (lease.topic, lease.partition)
        self.replay_place = (replay_topic(lease.group, lease.topic), lease.partition)
        self.chunk_size = ChunkSize(chunk_s)
        self.next_offsets = next_offsets
        """Of both sources: where reading goes on."""
        self.is_reading_paused = False
        self.is_replay_paused = False
        self.requests: deque[tuple[Any, ReplayRecord | Undecodable]] = deque()
        """Requests that were read, and whose dead letters have no room in memory yet."""
        self.reached = 0
        """Behind them: up to here nothing but markers follows."""
        self._former: deque[Lease] = deque(maxlen=FORMER_COUNT_MAX)
        self.is_over = False
        """True: what its handlers still say counts for nothing."""

    def renew(self, token: int | None) -> None:
        """What starts from now on has this token, which is stored."""
        old = self.lease
        self._former.append(old)
        self.lease = Lease(old.group, old.topic, old.partition, token=token)
        self.lease.valid_until, self.lease.lost = old.valid_until, old.lost

    def extend(self, valid_until: float) -> None:
        """The lease was renewed, or not: also for handlers that began before it was written again."""
        self.lease.valid_until = valid_until
        for lease in self._former:
            lease.valid_until = valid_until

    def end(self) -> None:
        """It is somebody else's, or is taken over anew: nothing of it starts, and running handlers are told."""
        self.is_over = True
        self.lease.lost.set()
        self.queues.drop_queued()


Told = list[tuple[OwnedPartition, ItemSource, int]]
"""What an acknowledgement means: snapshots by their versions."""


class OffsetStorer:
    """Used by the engine's thread."""

    def __init__(
        self,
        reader: StoringGroupReader,
        *,
        interval_s: float,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._begun: Told = []
        self._begun_at = 0.0
        self.is_under_way = False
        """True until the store that was begun is acknowledged, also when its acknowledgement says nothing any more."""

    @property
    def next_at(self) -> float:
        """When the next store may begin."""
        return self._begun_at + self._interval_s

    def look(self) -> None:
        """Take the acknowledgement: whose attempts are counted now may go on.

        Raises:
            TxLayerError: the store failed, or nobody answered; it is not known what is stored.
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
            tell(begun)
        elif self._clock() - self._begun_at > self._timeout_s:
            self.is_under_way = False
            raise BrokerUnavailableError(
                "offsets were not stored in time", waited_ms=int(self._timeout_s * 1000)
            )

    def wait(self, serve: Callable[[], None]) -> None:
        """Until nothing is under way: who asked meanwhile what is stored would be told what is older than that.

        `serve` is called again and again; it waits a little, and may raise.

        Raises:
            TxLayerError: as `look`.
        """
        while self.is_under_way:
            serve()
            self.look()

    def begin(self, queues: Iterable[OwnedPartition]) -> None:
        """Begin to store what changed, when it is time and nothing is under way."""
        now = self._clock()
        if self.is_under_way or now < self._begun_at + self._interval_s:
            return
        offsets, told = snapshots(queues, only_changed=True)
        if offsets:
            self._begun, self._begun_at = told, now
            self._reader.begin_store(offsets)
            self.is_under_way = True

    def store_now(self, queues: Iterable[OwnedPartition], *, timeout_s: float) -> None:
        """Store everything of these queues, and wait; what was begun before is older, and lands before.

        Raises:
            TxLayerError: it is not known what is stored.
        """
        self._begun = []
        offsets, told = snapshots(queues, only_changed=False)
        if offsets:
            self.is_under_way = False
            self._reader.store_offsets(offsets, timeout_s=timeout_s)
            tell(told)

    def forget(self) -> None:
        """The queues are gone; an acknowledgement says nothing any more, but is waited for."""
        self._begun = []

    def end(self) -> None:
        """The group took everything back: its generation fences what is under way."""
        self.forget()
        self.is_under_way = False


def snapshots(
    queues: Iterable[OwnedPartition], *, only_changed: bool
) -> tuple[dict[TopicPartition, StoredOffset], Told]:
    """What is to be stored of both sources of each queue, and what its acknowledgement means."""
    offsets: dict[TopicPartition, StoredOffset] = {}
    told: Told = []
    for owned in queues:
        for source, place in (
            (ItemSource.TOPIC, owned.place),
            (ItemSource.REPLAY, owned.replay_place),
        ):
            if only_changed and not owned.queues.is_changed(source):
                continue
            snapshot = owned.queues.snapshot(source)
            offsets[place] = StoredOffset(snapshot.offset, snapshot.metadata)
            told.append((owned, source, snapshot.version))
    return offsets, told


def tell(told: Told) -> None:
    """These snapshots are stored."""
    for owned, source, version in told:
        owned.queues.stored(source, version)
