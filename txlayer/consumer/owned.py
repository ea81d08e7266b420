"""A queue that this consumer works off: its lease, its order, its figures. Never deciding any of it."""

from __future__ import annotations

from collections import deque
from typing import Any

from txlayer.adapters.ports import TopicPartition
from txlayer.consumer.context import Lease
from txlayer.consumer.handlers import Route
from txlayer.consumer.stats import Tally
from txlayer.core.dead_letters import replay_topic
from txlayer.core.handling import ReplayRecord
from txlayer.core.key_queues import KeyQueues
from txlayer.core.messages import Undecodable

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


class Owned:
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
        tally: Tally,
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
