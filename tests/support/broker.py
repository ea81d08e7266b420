"""Brokers and topics for tests that need the real thing."""

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stub forgets NewTopic

from tests.support.waiting import wait_until
from txlayer.adapters.kafka.client import KafkaStoringGroupReader
from txlayer.config import ClientConfig
from txlayer.testing.access import unique_name

__all__ = ["GivenBroker", "create_topic", "member_of", "unique_name"]


@dataclass(frozen=True, slots=True)
class GivenBroker:
    """A cluster that somebody else runs for the tests."""

    bootstrap_servers: str


def create_topic(
    bootstrap_servers: str,
    name: str,
    *,
    partitions: int = 1,
    replicas: int = -1,  # the cluster's default
    config: Mapping[str, str] | None = None,
) -> str:
    """Create a topic, wait until every partition has a leader, and give its name back."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    wanted = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
    admin.create_topics([wanted])[name].result(timeout=30)

    def leader_count() -> bool:
        topic = admin.list_topics(name, timeout=10).topics[name]
        return len(topic.partitions) == partitions and all(p.leader >= 0 for p in topic.partitions.values())

    wait_until(leader_count, within=30, what=f"every partition of {name} has a leader")
    return name


def member_of(config: ClientConfig, topic: str, *, instance_id: str = "") -> KafkaStoringGroupReader:
    """A consumer's client, alone in its group, which reads the topic's only partition from the start."""
    reader = KafkaStoringGroupReader(
        config, group=unique_name("group"), session_timeout_ms=6_000, instance_id=instance_id
    )
    reader.start([topic])

    def has_a_share() -> bool:
        reader.read(record_count_max=1, timeout_s=0.05)
        return reader.take_assignment() is not None

    wait_until(has_a_share, within=60, what="the group assigns the partition")
    reader.resume_at({(topic, 0): 0})
    return reader
