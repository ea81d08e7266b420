"""A cluster's state and what time does to it. Never: a request of a client (`broker.py`), a thread, a wait, a clock of its own.

Transactions time out, sessions end, markers land and logs are cleaned whenever somebody looks: the time is the world's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from txlayer.adapters.error_codes import Code
from txlayer.adapters.memory.groups import Group
from txlayer.adapters.memory.log import Partition
from txlayer.adapters.memory.refusal import NoAnswerError, RefusedError
from txlayer.adapters.memory.topics import TopicSettings
from txlayer.adapters.memory.transactions import KafkaTransaction, Place
from txlayer.adapters.memory.world import World
from txlayer.adapters.ports import TopicPartition

NEVER = float("inf")

CLEANING_MS = 15_000
"""How often logs are cleaned: Kafka's `log.cleaner.backoff.ms` (retention is looked at every 5 minutes there)."""

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Topic:
    """One topic."""

    __slots__ = ("name", "partitions", "replication_factor", "settings", "told")

    def __init__(self, name: str, told: Mapping[str, str], replication_factor: int) -> None:
        self.name = name
        self.told = dict(told)
        self.settings = TopicSettings.of(told)
        self.replication_factor = replication_factor
        self.partitions: list[Partition] = []


class Cluster:
    """All brokers, seen as one."""

    def __init__(
        self, world: World, *, broker_count: int, marker_delay_ms: Callable[[], float]
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[TopicPartition, Partition] = {}
        self.groups: dict[str, Group] = {}
        self.transactions: dict[str, KafkaTransaction] = {}
        self.denied: set[str] = set()
        """Topics that nobody may read, write or look at."""
        self.is_up = True
        self._world = world
        self._broker_count = broker_count
        self._marker_delay_ms = marker_delay_ms
        self._markers: list[tuple[float, KafkaTransaction, Place]] = []
        self._due_ms: float = NEVER
        self._clean_at_ms = world.now_ms() + CLEANING_MS
        self.due_at(self._clean_at_ms)

    # --- time ---------------------------------------------------------------------------------------------------------

    def catch_up(self) -> int:
        """Do what time has brought; the time."""
        now_ms = self._world.now_ms()
        if now_ms >= self._due_ms and self.is_up:
            self._catch_up(now_ms)
        return now_ms

    @property
    def due_ms(self) -> float:
        """When time brings something next."""
        return self._due_ms

    def clean(self) -> None:
        """Retention and compaction, now."""
        now_ms = self._world.now_ms()
        for partition in self.partitions.values():
            partition.clean(now_ms)

    def land_markers(self, *, count: int | None = None) -> int:
        """Write `count` of the markers that are under way, the oldest first (None: all); how many there were."""
        landing = self._markers[:count]
        del self._markers[: len(landing)]
        for _, transaction, place in landing:
            self._write_marker(transaction, place)
        return len(landing)

    @property
    def marker_count(self) -> int:
        """Markers under way."""
        return len(self._markers)

    def shut_down(self) -> None:
        """No broker answers any more; what is stored stays."""
        self.is_up = False

    def restart(self) -> None:
        """The brokers are back; sessions begin anew, as after every move of a group's coordinator."""
        now_ms = self._world.now_ms()
        for group in self.groups.values():
            for member in group.members.values():
                member.seen_ms = now_ms
        self.is_up = True

    def begin(self) -> int:
        """What every request does first: the time.

        Raises:
            NoAnswerError: the brokers are down.
        """
        if not self.is_up:
            raise NoAnswerError("no broker is up")
        now_ms = self._world.now_ms()
        if now_ms >= self._due_ms:
            self._catch_up(now_ms)
        return now_ms

    def _catch_up(self, now_ms: int) -> None:
        due: float = self._clean_at_ms
        if now_ms >= due:
            self._clean_at_ms = now_ms + CLEANING_MS
            self.clean()
        for transaction in self.transactions.values():
            if transaction.due_ms <= now_ms:
                transaction.give_up()
                self.send_markers(transaction, now_ms)
        landing = [marker for marker in self._markers if marker[0] <= now_ms]
        if landing:
            self._markers = [marker for marker in self._markers if marker[0] > now_ms]
            for _, transaction, place in landing:
                self._write_marker(transaction, place)
        self._due_ms = min(
            self._clean_at_ms,
            *(t.due_ms for t in self.transactions.values()),
            *(marker[0] for marker in self._markers),
            *(group.expire(now_ms) for group in self.groups.values()),
            NEVER,
        )

    def due_at(self, at_ms: float) -> None:
        """Something is to be done at this time."""
        self._due_ms = min(self._due_ms, at_ms)

    # --- topics -------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partition_count: int,
        replication_factor: int,
        settings: Mapping[str, str],
    ) -> None:
        """Create a topic.

        Raises:
            RefusedError: it exists, or its form is none. Nothing was created.
        """
        self.begin()
        if name in self.topics:
            raise RefusedError(Code.TOPIC_ALREADY_EXISTS)
        if TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
            raise RefusedError(Code.TOPIC_EXCEPTION)
        if partition_count < 1:
            raise RefusedError(Code.INVALID_PARTITIONS)
        if not 1 <= replication_factor <= self._broker_count:
            raise RefusedError(Code.INVALID_REPLICATION_FACTOR)
        topic = Topic(name, settings, replication_factor)
        self.topics[name] = topic
        for number in range(partition_count):
            partition = Partition(name, number, topic.settings)
            topic.partitions.append(partition)
            self.partitions[name, number] = partition
        self._rebalance_readers_of(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and every offset stored for it.

        Raises:
            RefusedError: there is none.
        """
        self.begin()
        topic = self.topic(name)
        del self.topics[name]
        for number in range(len(topic.partitions)):
            del self.partitions[name, number]
        for group in self.groups.values():
            for place in [place for place in group.stored if place[0] == name]:
                del group.stored[place]
        self._rebalance_readers_of(name)

    def alter_topic(self, name: str, settings: Mapping[str, str]) -> None:
        """Set these settings and no other.

        Raises:
            RefusedError: there is no such topic or setting. Nothing was changed.
        """
        self.begin()
        topic = self.topic(name)
        told = {**topic.told, **settings}
        topic.settings = TopicSettings.of(told)
        topic.told = told
        for partition in topic.partitions:
            partition.settings = topic.settings

    def topic(self, name: str) -> Topic:
        """One topic.

        Raises:
            RefusedError: there is none, or it is denied.
        """
        if name in self.denied:
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
        topic = self.topics.get(name)
        if topic is None:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
        return topic

    def look_at(self, name: str) -> Topic | None:
        """As an administrator asks for it; None: there is none."""
        self.begin()
        if name in self.denied:
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
        return self.topics.get(name)

    def _rebalance_readers_of(self, name: str) -> None:
        now_ms = self._world.now_ms()
        for group in self.groups.values():
            if any(name in member.topics for member in group.members.values()):
                group.look_again(now_ms)
                self.due_at(group.expire(now_ms))

    def partition(self, place: TopicPartition) -> Partition:
        """One partition that has a leader.

        Raises:
            RefusedError: it has none, is denied, or is not there.
        """
        partition = self.partitions.get(place)
        if place[0] in self.denied:
            raise RefusedError(Code.TOPIC_AUTHORIZATION_FAILED)
        if partition is None:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PART)
        if not partition.is_led:
            raise RefusedError(Code.NOT_LEADER_FOR_PARTITION)
        return partition

    # --- Kafka transactions and groups --------------------------------------------------------------------------------

    def send_markers(self, transaction: KafkaTransaction, now_ms: int) -> None:
        """Write the markers of a Kafka transaction that is decided, now or after their delays."""
        for place in transaction.places:
            delay_ms = self._marker_delay_ms()
            if delay_ms <= 0:
                self._write_marker(transaction, place)
            else:
                self._markers.append((now_ms + delay_ms, transaction, place))
                self.due_at(now_ms + delay_ms)

    def _write_marker(self, transaction: KafkaTransaction, place: Place) -> None:
        if isinstance(place, str):
            self.group(place).land_marker(transaction.producer_id, is_commit=transaction.is_commit)
        elif place in self.partitions:  # its topic may have been deleted
            self.partitions[place].end_transaction(
                transaction.producer_id, transaction.epoch, is_commit=transaction.is_commit
            )
        transaction.marked(place)

    def group(self, name: str) -> Group:
        """A group; one that never was is empty."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, self._partition_counts)
        return group

    def _partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        return {name: len(self.topics[name].partitions) for name in names if name in self.topics}
