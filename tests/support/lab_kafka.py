"""The contract suite's labs over real Kafka: plain clients, and a proxy that does the harm."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.broker import create_topic, unique_name
from tests.support.faultproxy import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    FaultProxy,
    Rules,
)
from tests.support.logs import Seen, read_log
from tests.support.topic_records import Record, RecordWriter
from tests.support.waiting import wait_until
from txlayer.adapters.connect import (
    ConsumerConnections,
    CoordinatorConnections,
    ProducerConnections,
    connect_consumer,
    connect_coordinator,
    connect_producer,
)
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import Administration
from txlayer.config import ClientConfig, ConsumerConfig, CoordinatorConfig, ProducerConfig

PATIENCE_S = 30

API_KEYS = {
    "Produce": PRODUCE,
    "InitProducerId": INIT_PRODUCER_ID,
    "AddPartitionsToTxn": ADD_PARTITIONS,
    "AddOffsetsToTxn": ADD_OFFSETS,
    "EndTxn": END_TXN,
    "TxnOffsetCommit": TXN_OFFSET_COMMIT,
}


class Closing(Protocol):
    """What a lab gives back at its end."""

    def close(self) -> None:
        """End."""
        ...


Opened = TypeVar("Opened", KafkaAdmin, ConsumerConnections, CoordinatorConnections, ProducerConnections)


class KafkaLab:
    """Topics and groups of the test's own on a broker that others use too."""

    def __init__(self, servers: str, *, proxy: FaultProxy | None = None, distant_servers: str = "") -> None:
        self._servers = servers
        self._proxy = proxy
        self._distant_servers = distant_servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._records = RecordWriter(servers)
        self._opened: list[Closing] = []
        self._echo_count = 0

    def topic(self, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        return create_topic(self._servers, unique_name("topic"), partitions=partitions, config=settings)

    @property
    def servers(self) -> str:
        return self._servers

    def create(self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        create_topic(self._servers, name, partitions=partitions, config=settings)

    def connect_consumer(self, config: ConsumerConfig) -> ConsumerConnections:
        return connect_consumer(config)

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name], operation_timeout=PATIENCE_S)[name].result(PATIENCE_S)

        def is_gone() -> bool:
            return name not in self._admin.list_topics(timeout=PATIENCE_S).topics

        wait_until(is_gone, within=PATIENCE_S, what=f"{name} is gone")

    def delete_records(self, topic: str, *, before: int) -> None:
        place = TopicPartition(topic, 0, before)

        def is_deleted() -> bool:
            try:
                for future in self._admin.delete_records([place]).values():
                    future.result(PATIENCE_S)
            except KafkaException as exc:
                # Not every broker knows at once who leads a new partition.
                if exc.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                    raise
                return False
            return True

        wait_until(is_deleted, within=PATIENCE_S, what=f"records of {topic} are deleted")

    def write(self, topic: str, *values: bytes | None, partition: int = 0, key: bytes | None = None) -> list[int]:
        return self._records.write([Record(topic, value, key, partition=partition) for value in values])

    def write_tagged(self, topic: str, tag: bytes) -> None:
        self._records.write([Record(topic, tag, tag, [("tags", tag)])])

    def read(self, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        return read_log(self._servers, [topic], isolation=isolation)[topic]

    def admin(self) -> Administration:
        return self._kept(KafkaAdmin(ClientConfig(bootstrap_servers=self._servers)))

    def coordinator(self, namespace: str, **settings: Any) -> CoordinatorConnections:
        config = CoordinatorConfig(bootstrap_servers=self._servers, namespace=namespace, **settings)
        return self._kept(connect_coordinator(config))

    def producer(self, **settings: Any) -> ProducerConnections:
        config = ProducerConfig(bootstrap_servers=self._servers, **settings)
        return self._kept(connect_producer(config))

    def consumer(self, **settings: Any) -> ConsumerConnections:
        config = ConsumerConfig(bootstrap_servers=self._servers, **settings)
        return self._kept(connect_consumer(config))

    def nobody(self, group: str) -> Any:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": group, "log_level": 0})
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def let_pass(self, time: timedelta) -> None:
        """Real time passes by itself."""

    def clean(self) -> None:
        """The cleaner comes every 15 s."""

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        if self._proxy is not None:
            self._proxy.use()

    # --- faults -------------------------------------------------------------------------------------------------------

    @property
    def _way(self) -> FaultProxy:
        assert self._proxy is not None
        return self._proxy

    def distant(self, namespace: str, **settings: Any) -> CoordinatorConnections:
        config = CoordinatorConfig(bootstrap_servers=self._distant_servers, namespace=namespace, **settings)
        return self._kept(connect_coordinator(config))

    def distant_consumer(self, **settings: Any) -> ConsumerConnections:
        config = ConsumerConfig(bootstrap_servers=self._distant_servers, **settings)
        return self._kept(connect_consumer(config))

    def lose_answer(self, request: str) -> None:
        self._way.acted.clear()
        self._way.use(Rules(actions={API_KEYS[request]: "cut_after"}, action_count_max=1))

    def echo(self, request: str) -> None:
        self._way.acted.clear()
        self._echo_count = self._way.echoed.total()
        self._way.use(Rules(actions={API_KEYS[request]: "cut_after+echo"}, action_count_max=1))

    def wait_for_echo(self) -> None:
        self._way.release()
        wait_until(
            lambda: self._way.echoed.total() > self._echo_count, within=PATIENCE_S, what="the late request arrived"
        )

    def lost_count(self, request: str) -> int:
        return self._way.acted[API_KEYS[request]]

    def cut_off(self) -> None:
        self._way.use(Rules(is_blackhole=True))

    def reconnect(self) -> None:
        self._way.use()

    def _kept(self, opened: Opened) -> Opened:
        self._opened.append(opened)
        return opened
