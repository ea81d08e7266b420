"""A consumer group with its topic, its dead letters and its replay topic, on a lab's cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.contract.clients import PATIENCE_S, join, stable
from tests.support.broker import unique_name
from tests.support.lab import FaultyLab, Lab
from tests.support.logs import Seen
from tests.support.waiting import wait_until
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.adapters.ports import GroupReader, StoredOffset, TopicPartition
from txlayer.consumer.assignments import end_what_was_left
from txlayer.consumer.dead_letters import DeadLetterWriter, GivenUpMessage, OffsetsOf
from txlayer.core.dead_letters import DeadLetter, DeadLetterReason, dead_letter_topic, replay_topic
from txlayer.core.messages import Origin
from txlayer.core.topics import CreateTopic
from txlayer.runtime.kafka_transactions import stable_offsets

AT_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One group that reads one topic; a member of it holds every partition."""

    lab: Lab
    group: str
    topic: str
    connections: CoordinatorConnections
    reader: GroupReader
    member: Any

    @property
    def dead_letters(self) -> str:
        """Its dead-letter topic."""
        return dead_letter_topic(self.group, self.topic)

    @property
    def replays(self) -> str:
        """Its replay topic."""
        return replay_topic(self.group, self.topic)

    def writer(self, name: str = "", **settings: Any) -> DeadLetterWriter:
        """A dead-letter writer with a name of its own."""
        return DeadLetterWriter(self.connections, group=self.group, name=name or unique_name("writer"), **settings)

    def given_up(self, offset: int, *, partition: int = 0, **record: Any) -> GivenUpMessage:
        """The message that stood at this offset, rejected by its handler."""
        origin = Origin(self.topic, partition, offset)
        letter = DeadLetter(
            DeadLetterReason.REJECTED, origin, AT_MS, 1, AT_MS, AT_MS, "", "no such customer", self.group
        )
        value = record.get("value", f"message {offset}".encode())
        read = MemoryRecord(
            self.topic,
            partition,
            record.get("key", b"key"),
            value,
            record.get("headers"),
            (1, AT_MS),
            log_offset=offset,
        )
        return GivenUpMessage(read, letter)

    def stored_after_fencing(
        self, *partitions: TopicPartition, former_writers: Sequence[str] = ()
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a successor finds stored: writers that metadata name are fenced before."""
        return stable_offsets(
            self.connections,
            self.group,
            partitions,
            writers_of=metadata_of,
            fence=partial(end_what_was_left, self.connections),
            former_writers=former_writers,
        )

    def behind(self, offset: int, *, metadata: str = "", partition: int = 0) -> OffsetsOf:
        """What is stored with a dead letter: the offset behind it."""
        return lambda _places: {(self.topic, partition): StoredOffset(offset + 1, metadata)}

    def stored(self, partition: int = 0) -> StoredOffset | None:
        """What is stored for good."""
        return stable(self.connections, self.group, (self.topic, partition))

    def seen(self) -> list[Seen]:
        """The dead letters that a `read_committed` reader sees."""
        return self.lab.read(self.dead_letters)

    def wait_for(self, *values: bytes) -> None:
        """Wait until these dead letters are visible, and no other: markers are written behind the answer."""
        wait_until(
            lambda: [each.value for each in self.seen()] == list(values),
            within=PATIENCE_S,
            what=f"{values} visible, not {self.seen()}",
        )


def make_stage(
    lab: Lab,
    *,
    connections: CoordinatorConnections | None = None,
    namespace: str = "",
    partitions: int = 1,
    settings: Mapping[str, str] | None = None,
    with_dead_letters: bool = True,
) -> Stage:
    """Create topics, and join; `settings` are the dead-letter topic's."""
    namespace = namespace or unique_name("ns")
    group, topic = f"{namespace}.coordinator", lab.topic(partitions=partitions)
    names = [replay_topic(group, topic)]
    names += [dead_letter_topic(group, topic)] if with_dead_letters else []
    wanted = [CreateTopic(n, partitions, 1, settings or {}, why="a test's own") for n in names]
    admin = lab.admin()
    assert sorted(names) == sorted(admin.create(wanted))
    made = connections or lab.coordinator(namespace)
    reader, share = join(made, topic)
    return Stage(lab, group, topic, made, reader, share.member)


def make_distant_stage(lab: FaultyLab) -> Stage:
    """One whose way to the cluster can be harmed."""
    namespace = unique_name("ns")
    return make_stage(lab, connections=lab.distant(namespace), namespace=namespace)


def metadata_of(offsets: Mapping[Any, StoredOffset | None]) -> set[str]:
    """The metadata of stored offsets: the names of their writers, in these tests."""
    return {stored.metadata for stored in offsets.values() if stored is not None}
