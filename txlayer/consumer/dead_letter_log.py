"""A group's dead letters of one topic, and what was asked and answered about them, as the topics tell. Reads only.

The replay topic is folded first and followed later, so the states are known before the dead letters stream by: nothing
but what somebody spoke of is kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from txlayer.adapters.administration import Administration
from txlayer.adapters.ports import LogReader, Record, TopicPartition
from txlayer.adapters.ranges import Range, read_ranges
from txlayer.core.dead_letters import (
    dead_letter_of,
    dead_letter_topic,
    replay_topic,
    source_topic,
)
from txlayer.core.handling import DeadLetter
from txlayer.core.letter_states import LetterHistory, PartitionStates, Said
from txlayer.core.messages import Undecodable
from txlayer.core.progress_codec import Foreign, decode
from txlayer.core.replays import decode_replay
from txlayer.errors import TopicMismatchError

PATIENCE_S = 10.0
"""Nothing came for so long: the broker does not answer any more."""


class Place(NamedTuple):
    """Where a dead letter stands: in the dead-letter topic of `topic`."""

    topic: str  # that the message came from
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}:{self.offset}"


class FoundLetter(NamedTuple):
    """A record of a dead-letter topic."""

    place: Place
    at_ms: int  # when it was written
    letter: DeadLetter | Undecodable
    record: Record
    history: LetterHistory

    @property
    def key(self) -> bytes | None:
        """The message's key."""
        return self.record.key()


class QueueStatus(NamedTuple):
    """What a group stored for one partition of a topic."""

    is_paused: bool
    parked: frozenset[bytes]  # hashes of keys
    replayed_to: int | None  # of the replay topic; requests below it were taken
    stuck: Mapping[bytes, int]  # by hash of the key: the dead letter whose replay failed


def topics_of(admin: Administration, group: str) -> list[str]:
    """The topics of which a consumer group may have dead letters, as far as the names of topics tell."""
    found = (source_topic(group, name) for name in admin.topic_names())
    return sorted(topic for topic in found if topic is not None)


class DeadLetterLog:
    """The dead letters of one group and topic. One thread uses it; it fences nobody and joins no group.

    Raises, from every call:
        TopicMismatchError: the group has no dead-letter topic or no replay topic for this topic.
        BrokerUnavailableError, NotAuthorisedError: they cannot be read.
    """

    def __init__(
        self,
        admin: Administration,
        *,
        group: str,
        topic: str,
        make_reader: Callable[[], LogReader],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.group = group
        self.topic = topic
        self.dead_letters = dead_letter_topic(group, topic)
        self.replays = replay_topic(group, topic)
        self._admin = admin
        self._make_reader = make_reader
        self._patience_s = patience_s
        self._states: dict[int, PartitionStates] = {}
        self._next: dict[TopicPartition, int] | None = None
        self._partition_count = 0

    @property
    def partition_count(self) -> int:
        """Partitions of both topics."""
        if not self._partition_count:
            counts = {name: self._count(name) for name in (self.dead_letters, self.replays)}
            if len(set(counts.values())) > 1:
                raise TopicMismatchError(
                    "a request stands in the partition of its dead letter; `txlayer topics check "
                    f"--group {self.group} --topic {self.topic}` tells more",
                    topic=self.replays, expected=f"{counts[self.dead_letters]} partitions",
                    found=f"{counts[self.replays]}",
                )  # fmt: skip
            self._partition_count = counts[self.dead_letters]
        return self._partition_count

    def follow(self) -> int:
        """Read what came to the replay topic since the last call, the first time all of it; the number of records."""
        places = [(self.replays, p) for p in range(self.partition_count)]
        if self._next is None:
            self._next = self._admin.start_offsets(places)
        ends = self._admin.end_offsets(places)
        ranges = {place: (self._next[place], ends[place]) for place in places}
        count = 0

        def take(record: Any) -> None:
            nonlocal count
            count += 1
            states = self._states.setdefault(record.partition(), PartitionStates())
            found = decode_replay(record.value())
            if isinstance(found, Undecodable):
                states.unreadable_count += 1
            else:
                states.fold(Said(record.offset(), record.timestamp()[1], found))

        self._read(ranges, take)
        self._next = ends
        return count

    def states(self, partition: int) -> PartitionStates:
        """What was said, up to the last `follow`."""
        return self._states.get(partition, PartitionStates())

    def each(
        self,
        on_letter: Callable[[FoundLetter], None],
        *,
        since_ms: int | None = None,
        partitions: Collection[int] | None = None,
    ) -> None:
        """Call `on_letter` for every dead letter there is now, in offset order per partition.

        `since_ms` leaves out those before it by their timestamps; some may be given all the same.
        """
        if self._next is None:
            self.follow()
        numbers = range(self.partition_count) if partitions is None else sorted(partitions)
        places = [(self.dead_letters, p) for p in numbers if p < self.partition_count]
        starts = self._admin.start_offsets(places)
        if since_ms is not None:
            starts = self._admin.offsets_at(places, at_ms=since_ms)
        ends = self._admin.end_offsets(places)
        self._read(
            {place: (starts[place], ends[place]) for place in places},
            lambda record: on_letter(self._found(record)),
        )

    def at(self, partition: int, offset: int) -> FoundLetter | None:
        """The dead letter that stands there."""
        found: list[FoundLetter] = []
        if self._next is None:
            self.follow()
        if 0 <= partition < self.partition_count:
            place = (self.dead_letters, partition)
            first = self._admin.start_offsets([place])[place]
            if first <= offset < self._admin.end_offsets([place])[place]:
                self._read(
                    {place: (offset, offset + 1)}, lambda record: found.append(self._found(record))
                )
        return found[0] if found else None

    def said_about(self, place: Place) -> list[Said]:
        """Everything that the replay topic says of one dead letter, in order."""
        where = (self.replays, place.partition)
        found: list[Said] = []

        def take(record: Any) -> None:
            said = decode_replay(record.value())
            if not isinstance(said, Undecodable) and said.dead_letter_offset == place.offset:
                found.append(Said(record.offset(), record.timestamp()[1], said))

        start = self._admin.start_offsets([where])[where]
        self._read({where: (start, self._admin.end_offsets([where])[where])}, take)
        return found

    def queues(self) -> dict[int, QueueStatus]:
        """What the group stored for each partition; metadata that are not ours say nothing."""
        sources = [(self.topic, p) for p in range(self.partition_count)]
        replays = [(self.replays, p) for p in range(self.partition_count)]
        stored = self._admin.stored_offsets(self.group, [*sources, *replays])
        found = {}
        for (topic, partition), replay in zip(sources, replays, strict=True):
            source, taken = stored[topic, partition], stored[replay]
            progress = None if source is None else decode(source.offset, source.metadata)
            known = None if isinstance(progress, Foreign) else progress
            found[partition] = QueueStatus(
                known is not None and known.is_paused,
                frozenset() if known is None else frozenset(known.parked),
                None if taken is None else taken.offset,
                {} if known is None else known.stuck,
            )
        return found

    def _found(self, record: Any) -> FoundLetter:
        partition, offset = record.partition(), record.offset()
        letter = dead_letter_of(record.headers())
        if isinstance(letter, DeadLetter) and (
            letter.consumer_group != self.group or letter.origin.topic != self.topic
        ):
            letter = Undecodable(
                f"a dead letter of group {letter.consumer_group} and topic {letter.origin.topic}"
            )
        history = self.states(partition).of(offset)
        place = Place(self.topic, partition, offset)
        return FoundLetter(place, record.timestamp()[1], letter, record, history)

    def _count(self, name: str) -> int:
        count = self._admin.partition_count(name)
        if count is None:
            raise TopicMismatchError(
                f"no such topic; `txlayer topics apply --group {self.group} --topic {self.topic}` creates it",
                topic=name,
                found="none",
            )
        return count

    def _read(self, ranges: dict[TopicPartition, Range], take: Callable[[Any], None]) -> None:
        with closing(self._make_reader()) as reader:
            read_ranges(reader, ranges, take, patience_s=self._patience_s)
