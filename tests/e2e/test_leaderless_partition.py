"""A broker that has the only replica of some partitions of half, op and doubt is away: the other partitions go on."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stub forgets NewTopic

from tests.e2e.conftest import Start
from tests.support.arena import Arena
from tests.support.broker import create_topic, unique_name
from tests.support.kafka_cluster import KafkaCluster
from tests.support.raw import Prepared, RawWriter
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.namespace import Namespace
from txlayer.config import ClientConfig, SystemTopics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

BROKERS = (1, 2, 3)
LOST = 1
KEPT_PARTITIONS = [broker - 1 for broker in BROKERS if broker != LOST]


@pytest.mark.fault("broker: a partition of half, op or doubt has no leader")
@pytest.mark.promise("P1")
@pytest.mark.promise("P11")
def test_partitions_without_a_leader_stop_no_others(local_config: LocalConfig, start_coordinator: Start) -> None:
    with KafkaCluster(config=local_config) as cluster:
        arena = make_arena(cluster)
        writer = RawWriter(arena)

        def prepare(partition: int) -> Prepared:
            return writer.prepare((arena.targets[0], b"k", b"v"), key=writer.key_in(partition))

        def wait_for_one_in_each(partitions: list[int]) -> None:
            made = [prepare(partition) for partition in partitions]
            for prepared in made:
                writer.commit(prepared)
            for prepared in made:
                arena.wait_until_visible(prepared.txn_id, within=60)

        coordinator = start_coordinator(arena, "--doubt-after", "2s")
        wait_for_one_in_each([*KEPT_PARTITIONS, LOST - 1])
        prepare(LOST - 1)  # undecided: it must be moved to doubt, which has no leader by then
        cluster.kill(LOST)
        wait_until(lambda: coordinator.events("partitions.leaderless"), within=60, what="it goes on without them")
        wait_for_one_in_each(KEPT_PARTITIONS)

        coordinator.kill()
        successor = start_coordinator(arena)
        wait_for_one_in_each(KEPT_PARTITIONS)

        cluster.start(LOST)
        wait_for_one_in_each([LOST - 1])
        arena.wait_until_applied(within=30)
        assert [] == arena.verdict().findings
        assert successor.is_running


def make_arena(cluster: KafkaCluster) -> Arena:
    """Partition 0 of half, op and doubt is on broker 1 alone, 1 on 2, 2 on 3; the real topic is on all brokers."""
    topics, servers = SystemTopics(unique_name("ns")), cluster.bootstrap_servers
    names = (topics.half, topics.op, topics.doubt)
    placed = [NewTopic(name, len(BROKERS), replica_assignment=[[broker] for broker in BROKERS]) for name in names]
    brokers = AdminClient({"bootstrap.servers": servers})
    for future in brokers.create_topics(placed).values():
        future.result()
    with KafkaAdmin(ClientConfig(bootstrap_servers=servers, namespace=topics.namespace)) as admin:
        Namespace(admin, topics=topics).apply(partition_count=len(BROKERS), replication_factor=1)
    settings = {"min.insync.replicas": "2"}
    real = create_topic(servers, unique_name("real"), partitions=2, replicas=3, config=settings)
    return Arena(servers, topics, (real,), len(BROKERS))
