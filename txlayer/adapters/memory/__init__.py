"""A Kafka cluster in memory, for tests of services and for the simulation (docs/howto/memory-kafka.md)."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Literal, NamedTuple, TypeVar

from txlayer.adapters.connect import Clients, ConsumerConnections, CoordinatorConnections, ProducerConnections
from txlayer.adapters.errors import Code, translate_error
from txlayer.adapters.memory.cluster import Cluster, Link
from txlayer.adapters.memory.log import CREATE_TIME, MemoryRecord
from txlayer.adapters.memory.readers import MemoryAdmin, MemoryGroupReader, MemoryLogReader, MemoryStoringGroupReader
from txlayer.adapters.memory.world import (
    ClientCrashedError,
    ClientError,
    Fault,
    FaultPlan,
    NoAnswerError,
    RefusedError,
    ThreadWorld,
    World,
)
from txlayer.adapters.memory.writers import MemoryIdempotentWriter, MemoryTransactionalWriter
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import ClientConfig, ConsumerConfig, CoordinatorConfig, ProducerConfig, SystemTopics
from txlayer.core.messages import Headers
from txlayer.core.topics import CreateTopic
from txlayer.errors import ForbiddenTopicError

__all__ = [
    "ClientCrashedError",
    "Code",
    "Fault",
    "FaultPlan",
    "MemoryKafka",
    "NoAnswerError",
    "RefusedError",
    "ThreadWorld",
    "World",
]


class ValueContext(NamedTuple):
    """What a confluent-kafka serializer receives about a value (its `SerializationContext`)."""

    topic: str
    field: str
    headers: list[tuple[str, bytes | None]]


def memory_clients(link: Link, config: ClientConfig) -> Clients:
    """Clients of a cluster in memory; `config` is what a service was given."""
    world = link.world
    return Clients(
        config=config,
        admin=partial(MemoryAdmin, link),
        shared_questions=lambda *, timeout_ms, patience_ms=0: MemoryAdmin(
            link, timeout_ms=max(timeout_ms, patience_ms)
        ),
        reader=partial(MemoryLogReader, link),
        writer=partial(MemoryTransactionalWriter, link),
        idempotent_writer=partial(MemoryIdempotentWriter, link),
        group_reader=partial(MemoryGroupReader, link),
        storing_group_reader=partial(MemoryStoringGroupReader, link),
        serialize=_serialize,
        clock=world.monotonic,
        wall_clock=lambda: world.now_ms() / 1000,
    )


def _serialize(serializer: Any, value: Any, *, topic: str, headers: list[tuple[str, bytes | None]]) -> bytes | None:
    written: bytes | None = serializer(value, ValueContext(topic, "value", headers))
    return written


T = TypeVar("T")

Isolation = Literal["read_committed", "read_uncommitted"]


class MemoryKafka:
    """A Kafka cluster in memory that keeps Kafka's promises, and no kinder ones.

    Any thread may use it in a `ThreadWorld`, which is the default.

    Args:
        world: time, dice, network.
        marker_delay_ms: asked for each marker how much later than the end of its Kafka transaction it is written;
            `float("inf")`: not before `land_markers`.
    """

    def __init__(self, world: World | None = None, *, marker_delay_ms: Callable[[], float] = lambda: 0.0) -> None:
        self.world: World = ThreadWorld() if world is None else world
        self.cluster = Cluster(self.world, marker_delay_ms=marker_delay_ms)
        """Its state, for tests that judge a run; to change it use `do`."""
        self._numbers = count(1)

    bootstrap_servers = "127.0.0.1:0"
    """What settings may name as the brokers' address; nothing listens there."""

    # --- clients ------------------------------------------------------------------------------------------------------

    def connect_producer(self, config: ProducerConfig, *, client: str | None = None) -> ProducerConnections:
        """What `TransactionalProducer(connect=…)` takes; `client` is its name for faults (producer-1, …)."""
        return ProducerConnections(memory_clients(self._link(client, "producer"), config), config)

    def connect_coordinator(self, config: CoordinatorConfig, *, client: str | None = None) -> CoordinatorConnections:
        """What a `Coordinator` takes; `client` is its name for faults (coordinator-1, …)."""
        return CoordinatorConnections(memory_clients(self._link(client, "coordinator"), config), config)

    def connect_consumer(self, config: ConsumerConfig, *, client: str | None = None) -> ConsumerConnections:
        """What `OrderedConsumer(connect=…)` takes; `client` is its name for faults (consumer-1, …)."""
        return ConsumerConnections(memory_clients(self._link(client, "consumer"), config), config)

    def admin(self, *, client: str | None = None) -> MemoryAdmin:
        """The administrator's view."""
        return MemoryAdmin(self._link(client, "admin"))

    def do(self, act: Callable[[], T]) -> T:
        """Do something to the cluster at once, without a network; nothing else touches it meanwhile."""
        return self.world.change(act)

    def _link(self, client: str | None, role: str) -> Link:
        name = client or f"{role}-{next(self._numbers)}"
        return Link(self.world, self.cluster, client=name, bootstrap_servers=self.bootstrap_servers)

    # --- topics -------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Create a topic with settings as Kafka names them (`cleanup.policy`, `retention.ms`, `message.timestamp.type`, …).

        Raises:
            UsageError: its form is none. Nothing was created.
            ForbiddenTopicError: there is one of this name, which stays as it is.
        """
        wanted = CreateTopic(name, partitions, 1, dict(settings or {}), why="asked for")
        if not self.admin().create([wanted]):
            raise ForbiddenTopicError("it exists", topic=name, reason="TOPIC_ALREADY_EXISTS")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and every offset that was stored for it.

        Raises:
            ForbiddenTopicError: there is none.
        """
        try:
            self.do(lambda: self.cluster.delete_topic(name))
        except RefusedError as exc:
            raise ForbiddenTopicError("no such topic", topic=name, reason=exc.code.kafka_name) from exc

    def create_namespace(self, namespace: str = "txlayer", *, partitions: int | None = None) -> None:
        """The topics of a namespace and where its coordinators begin, as `txlayer topics apply` does."""
        Namespace(self.admin(), topics=SystemTopics(namespace)).apply(partition_count=partitions, replication_factor=1)

    def deny(self, topic: str, *, is_denied: bool = True) -> None:
        """No client may read, write or describe it; or every client may again."""
        denied = self.cluster.denied
        self.do(lambda: denied.add(topic) if is_denied else denied.discard(topic))

    def lead(self, topic: str, *, is_led: bool, only: int | None = None) -> None:
        """Whether its partitions, or `only` one of them, have leaders."""

        def set_all() -> None:
            for number, partition in enumerate(self.cluster.topics[topic].partitions):
                if only in (None, number):
                    partition.is_led = is_led

        self.do(set_all)

    def delete_records(self, topic: str, partition: int, *, before: int) -> None:
        """Remove records as an administrator may, or as retention does."""
        self.do(lambda: self.cluster.partitions[topic, partition].delete_before(before))

    # --- brokers ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """No broker answers any more; what is stored stays."""
        self.do(self.cluster.shut_down)

    def start(self) -> None:
        """The brokers are back."""
        self.do(self.cluster.restart)

    def land_markers(self, *, count: int | None = None) -> int:
        """Write `count` of the markers that are under way, the oldest first (None: all); how many there were."""
        return self.do(lambda: self.cluster.land_markers(count=count))

    def clean(self) -> None:
        """Retention and compaction now; by themselves they come every 15 s of the brokers' clock."""
        self.do(self.cluster.clean)

    # --- records ------------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int = 0,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> int:
        """Write one record as a plain producer does; its offset.

        Raises:
            ForbiddenTopicError, RefusedRecordError: it was not written.
        """
        record = MemoryRecord(topic, partition, key, value, headers or None, (CREATE_TIME, timestamp_ms))
        try:
            return self.do(lambda: self.cluster.produce((topic, partition), [record]))
        except RefusedError as exc:
            raise translate_error(ClientError(exc.code), topic=topic) from exc

    def records(self, topic: str, *, isolation: Isolation = "read_committed") -> list[MemoryRecord]:
        """Every record that a reader of this isolation sees now, partition by partition, in offset order.

        Raises:
            ForbiddenTopicError: there is no such topic.
        """
        is_committed = isolation == "read_committed"

        def look() -> list[MemoryRecord]:
            self.cluster.catch_up()
            found: list[MemoryRecord] = []
            for partition in self.cluster.topic(topic).partitions:
                found += partition.visible(is_committed=is_committed)
            return found

        try:
            return self.do(look)
        except RefusedError as exc:
            raise ForbiddenTopicError(topic=topic, reason=exc.code.kafka_name) from exc

    def stored_offsets(self, group: str) -> dict[TopicPartition, StoredOffset]:
        """Every offset that a group stored and that counts."""
        return self.do(lambda: {tp: offset for tp, (_, offset) in self.cluster.group(group).stored.items()})
