"""What `txlayer doctor` asks a Kafka cluster beyond `KafkaAdmin`: brokers, replicas, rights, times. Never: a change, or a judgement."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets some
    AclOperation,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from txlayer.adapters.error_codes import NOT_AUTHORISED_CODES
from txlayer.adapters.kafka.admin_connection import ANSWER_TIMEOUT_MS, AdminConnection
from txlayer.adapters.kafka.client import transactional_producer
from txlayer.adapters.kafka.errors import kafka_error
from txlayer.adapters.kafka.wire import Door, Features, WireError, ask_features, ask_quotas, tls_of
from txlayer.adapters.ports import TopicPartition
from txlayer.config import ClientConfig
from txlayer.core.cluster_facts import NO_CLOCK, ClockFacts, Quota, TopicFacts
from txlayer.errors import NotAuthorisedError

_WIRE_TIMEOUT_S = 5.0
_REFUSED = frozenset(NOT_AUTHORISED_CODES)
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_TRIED_TRANSACTION_MS = 2_000


class Node(NamedTuple):
    """One broker, as clients reach it."""

    broker_id: int
    host: str
    port: int


class Described(NamedTuple):
    """A topic, and what these credentials may do with it."""

    facts: TopicFacts
    operations: frozenset[str]


class Tried(NamedTuple):
    """What became of a try."""

    is_allowed: bool | None  # None: neither allowed nor refused, no answer
    detail: str
    clock: ClockFacts


class ClusterQuestions:
    """For one thread. Every question may raise BrokerUnavailableError and NotAuthorisedError."""

    def __init__(self, config: ClientConfig, *, timeout_ms: int = ANSWER_TIMEOUT_MS) -> None:
        self._config = config
        self._connection = AdminConnection(config, timeout_ms=timeout_ms)

    def close(self) -> None:
        """Give the client back."""
        self._connection.close()

    def nodes(self) -> list[Node]:
        """The brokers that are there."""
        future = self._connection.client().describe_cluster(**self._connection.limits())
        answer = self._connection.wait(future, resource="cluster", operation="describe")
        return [Node(node.id, node.host, node.port) for node in answer.nodes]

    def broker_settings(self, broker_id: int) -> dict[str, str]:
        """Every setting in effect on one broker."""
        resource = ConfigResource(ResourceType.BROKER, str(broker_id))
        future = self._connection.client().describe_configs(
            [resource], **self._connection.limits()
        )[resource]
        entries = self._connection.wait(
            future, resource=f"broker {broker_id}", operation="describe configs"
        )
        return {name: entry.value or "" for name, entry in entries.items()}

    def features(self, node: Node) -> Features | str:
        """What a broker tells of its features; a sentence: why it did not."""
        try:
            return ask_features(self._door(node))
        except (OSError, ssl.SSLError, WireError) as exc:
            return f"{node.host}:{node.port}: {exc}"

    def quotas(self, node: Node) -> list[Quota] | str:
        """Every quota of clients; a sentence: why they cannot be told."""
        if "SASL" in self._config.client_settings.get("security.protocol", "").upper():
            return "clients sign in (SASL), and librdkafka cannot ask: kafka-configs.sh --describe --entity-type clients"
        try:
            return ask_quotas(self._door(node))
        except (OSError, ssl.SSLError, WireError) as exc:
            return f"{node.host}:{node.port}: {exc}"

    def topics(self, names: Collection[str]) -> dict[str, Described | str]:
        """{name: what it is} of those that exist; a sentence where these credentials may not know."""
        if not names:
            return {}
        futures = self._connection.client().describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, **self._connection.limits()
        )  # fmt: skip
        found: dict[str, Described | str] = {}
        for name, future in futures.items():
            try:
                answer = self._connection.wait(
                    future, resource=name, operation="describe", foreseen=_MISSING | _REFUSED
                )
            except KafkaException as exc:
                if kafka_error(exc).code() in _REFUSED:
                    found[name] = "describing it is refused to these credentials"
                continue
            found[name] = Described(self._topic_facts(answer), _names(answer.authorized_operations))
        return found

    def group_operations(self, group: str) -> frozenset[str]:
        """What these credentials may do with a consumer group; empty when even asking is refused."""
        future = self._connection.client().describe_consumer_groups(
            [group], include_authorized_operations=True, **self._connection.limits()
        )[group]
        foreseen = _REFUSED | {KafkaError.GROUP_ID_NOT_FOUND}
        try:
            answer = self._connection.wait(
                future, resource=group, operation="describe group", foreseen=foreseen
            )
        except KafkaException as exc:
            # A group that never was has no operations, and is not refused either.
            is_missing = kafka_error(exc).code() == KafkaError.GROUP_ID_NOT_FOUND
            return frozenset({"READ", "DESCRIBE"}) if is_missing else frozenset()
        return _names(answer.authorized_operations)

    def newest_ms(self, partitions: Sequence[TopicPartition]) -> int | None:
        """The newest timestamp of all records in `partitions`; None: there is none."""
        if not partitions:
            return None
        wanted = {ClientPartition(*p): OffsetSpec.max_timestamp() for p in partitions}  # type: ignore[no-untyped-call]  # the client's stub says no type
        client = self._connection.connected_client()
        futures = client.list_offsets(wanted, **self._connection.limits())
        found = [
            self._connection.wait(future, resource=p.topic, operation="list offsets").timestamp
            for p, future in futures.items()
        ]
        return max((int(at_ms) for at_ms in found if at_ms > 0), default=None)

    def try_transaction(self, transactional_id: str, *, wall_clock: Callable[[], float]) -> Tried:
        """Initialise a transactional id that nobody uses, and see when the broker wrote that down.

        What it leaves: an entry in Kafka's own list of transactional ids, which expires there.
        """
        producer: Producer = transactional_producer(
            self._config, transactional_id=transactional_id, timeout_ms=_TRIED_TRANSACTION_MS,
            batch_bytes_max=1_000_000,
        )  # fmt: skip
        before_ms = wall_clock() * 1000
        try:
            producer.init_transactions(self._connection.limits()["request_timeout"])
        except KafkaException as exc:
            error = kafka_error(exc)
            return Tried(None if error.code() not in _REFUSED else False, error.str(), NO_CLOCK)
        after_ms = wall_clock() * 1000
        at_ms = self._noted_ms()
        if at_ms is None:
            return Tried(is_allowed=True, detail="", clock=NO_CLOCK)
        clock = ClockFacts(int(at_ms - after_ms), int(at_ms - before_ms) + 1)
        return Tried(is_allowed=True, detail="", clock=clock)

    def _noted_ms(self) -> int | None:
        """When a transactional id was noted last; None where these credentials may not know."""
        name = "__transaction_state"
        try:
            described = self.topics([name]).get(name)
            if not isinstance(described, Described):
                return None
            leaders = described.facts.leaders
            return self.newest_ms([(name, p) for p, at in enumerate(leaders) if at is not None])
        except NotAuthorisedError:
            return None  # the right was found; the time is told otherwise

    def _topic_facts(self, answer: Any) -> TopicFacts:
        partitions = answer.partitions
        return TopicFacts(
            name=answer.name,
            replicas=tuple(tuple(node.id for node in p.replicas) for p in partitions),
            in_sync=tuple(tuple(node.id for node in p.isr) for p in partitions),
            leaders=tuple(
                None if p.leader is None or p.leader.id < 0 else p.leader.id for p in partitions
            ),
            settings=self._topic_settings(answer.name),
        )

    def _topic_settings(self, name: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        future = self._connection.client().describe_configs(
            [resource], **self._connection.limits()
        )[resource]
        try:
            entries = self._connection.wait(
                future, resource=name, operation="describe configs", foreseen=_REFUSED | _MISSING
            )
        except KafkaException:
            return {}
        return {key: entry.value or "" for key, entry in entries.items()}

    def _door(self, node: Node) -> Door:
        return Door(node.host, node.port, tls_of(self._config.client_settings), _WIRE_TIMEOUT_S)


def _names(operations: Collection[AclOperation] | None) -> frozenset[str]:
    return frozenset(operation.name for operation in operations or ())
