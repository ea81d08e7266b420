"""A broker is away that partitions of half, op and doubt need to have a leader, or enough replicas in sync: the others go on."""

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


@pytest.mark.fault("broker: a partition of half, op or doubt has no leader, or too few replicas in sync")
@pytest.mark.promise("P1", "P11")
@pytest.mark.parametrize("replicas", [1, 2], ids=["no-leader", "too-few-in-sync"])
def test_partitions_that_are_not_available_stop_no_others(
    local_config: LocalConfig, start_coordinator: Start, replicas: int
) -> None:
    with KafkaCluster(config=local_config) as cluster:
        arena, placed = make_arena(cluster, replicas)
        lost = [partition for partition, brokers in enumerate(placed) if LOST in brokers]
        kept = [partition for partition in range(len(placed)) if partition not in lost]
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
        wait_for_one_in_each([*kept, *lost])
        for partition in lost:
            prepare(partition)  # undecided: it must be moved to doubt, which takes nothing by then
        cluster.kill(LOST)
        wait_until(lambda: coordinator.events("partitions.unavailable"), within=60, what="it goes on without them")
        wait_for_one_in_each(kept)

        coordinator.kill()
        successor = start_coordinator(arena)
        wait_for_one_in_each(kept)

        cluster.start(LOST)
        wait_for_one_in_each(lost)
        arena.wait_until_applied(within=30)
        assert [] == arena.verdict().findings
        assert successor.is_running


def make_arena(cluster: KafkaCluster, replicas: int) -> tuple[Arena, list[list[int]]]:
    """A namespace whose half, op and doubt need all of so many replicas, and the brokers of each partition; the real topic is on all."""
    topics, servers = SystemTopics(unique_name("ns")), cluster.bootstrap_servers
    placed = [[BROKERS[(n + k) % len(BROKERS)] for k in range(replicas)] for n in range(len(BROKERS))]
    settings = {"min.insync.replicas": str(replicas)}
    names = (topics.half, topics.op, topics.doubt)
    brokers = AdminClient({"bootstrap.servers": servers})
    wanted = [NewTopic(name, len(placed), replica_assignment=placed, config=settings) for name in names]
    for future in brokers.create_topics(wanted).values():
        future.result()
    with KafkaAdmin(ClientConfig(bootstrap_servers=servers, namespace=topics.namespace)) as admin:
        Namespace(admin, topics=topics).apply(partition_count=len(placed), replication_factor=replicas)
    real_settings = {"min.insync.replicas": "2"}
    real = create_topic(servers, unique_name("real"), partitions=2, replicas=3, config=real_settings)
    return Arena(servers, topics, (real,), len(placed)), placed
