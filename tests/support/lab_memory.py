"""The contract suite's lab over the cluster in memory."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tests.support.broker import unique_name
from tests.support.logs import Seen, seen
from txlayer.adapters.connect import ConsumerConnections, CoordinatorConnections, ProducerConnections
from txlayer.adapters.memory import Fault, FaultPlan, MemoryKafka, ThreadWorld
from txlayer.adapters.memory.cluster import MemberMetadata
from txlayer.adapters.ports import Administration
from txlayer.config import ConsumerConfig, CoordinatorConfig, ProducerConfig

DISTANT = "distant"


class MemoryLab:
    """A cluster of its own for each test."""

    def __init__(self) -> None:
        self.faults = FaultPlan()
        self.world = ThreadWorld(faults=self.faults)
        self.kafka = MemoryKafka(self.world)

    def topic(self, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        name = unique_name("topic")
        self.kafka.create_topic(name, partitions=partitions, settings=settings)
        return name

    @property
    def servers(self) -> str:
        return self.kafka.bootstrap_servers

    def create(self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self.kafka.create_topic(name, partitions=partitions, settings=settings)

    def connect_consumer(self, config: ConsumerConfig) -> ConsumerConnections:
        return self.kafka.connect_consumer(config)

    def delete_topic(self, name: str) -> None:
        self.kafka.delete_topic(name)

    def delete_records(self, topic: str, *, before: int) -> None:
        self.kafka.delete_records(topic, 0, before=before)

    def write(self, topic: str, *values: bytes | None, partition: int = 0, key: bytes | None = None) -> list[int]:
        return [self.kafka.append(topic, value, partition=partition, key=key) for value in values]

    def write_tagged(self, topic: str, tag: bytes) -> None:
        self.kafka.append(topic, tag, key=tag, headers=[("tags", tag)])

    def read(self, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        is_committed = isolation == "read_committed"
        records = self.kafka.records(topic) if is_committed else self.kafka.records(topic, isolation="read_uncommitted")
        return [seen(record) for record in records]

    def admin(self) -> Administration:
        return self.kafka.admin()

    def coordinator(self, namespace: str, **settings: Any) -> CoordinatorConnections:
        return self.kafka.connect_coordinator(self._config(namespace, settings))

    def producer(self, **settings: Any) -> ProducerConnections:
        config = ProducerConfig(bootstrap_servers=self.kafka.bootstrap_servers, **settings)
        return self.kafka.connect_producer(config)

    def consumer(self, **settings: Any) -> ConsumerConnections:
        config = ConsumerConfig(bootstrap_servers=self.kafka.bootstrap_servers, **settings)
        return self.kafka.connect_consumer(config)

    def nobody(self, group: str) -> Any:
        return MemberMetadata(group)

    def let_pass(self, time: timedelta) -> None:
        self.world.advance(ms=time // timedelta(milliseconds=1))

    def clean(self) -> None:
        self.kafka.clean()

    def close(self) -> None:
        """Nothing is left of it."""

    # --- faults -------------------------------------------------------------------------------------------------------

    def distant(self, namespace: str, **settings: Any) -> CoordinatorConnections:
        return self.kafka.connect_coordinator(self._config(namespace, settings), client=DISTANT)

    def distant_consumer(self, **settings: Any) -> ConsumerConnections:
        config = ConsumerConfig(bootstrap_servers=self.kafka.bootstrap_servers, **settings)
        return self.kafka.connect_consumer(config, client=DISTANT)

    def lose_answer(self, request: str) -> None:
        self.faults.plan(Fault.LOSE_ANSWER, request, client=DISTANT)

    def echo(self, request: str) -> None:
        self.faults.plan(Fault.ECHO, request, client=DISTANT)

    def wait_for_echo(self) -> None:
        assert 1 == self.faults.release()

    def lost_count(self, request: str) -> int:
        seen = self.faults.seen
        return seen[Fault.LOSE_ANSWER, request] + seen[Fault.ECHO, request]

    def cut_off(self) -> None:
        self.faults.cut_off(DISTANT)

    def reconnect(self) -> None:
        self.faults.reconnect(DISTANT)

    def _config(self, namespace: str, settings: Mapping[str, Any]) -> CoordinatorConfig:
        return CoordinatorConfig(bootstrap_servers=self.kafka.bootstrap_servers, namespace=namespace, **settings)
