"""A real topic of three brokers that has fewer replicas in sync than it must have."""

from datetime import timedelta

import pytest

from tests.support.arena import make_arena
from tests.support.broker import create_topic, unique_name
from tests.support.kafka_cluster import KafkaCluster
from tests.support.raw import RawWriter
from txlayer.adapters.kafka.local import LocalConfig

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

HOLD_AFTER_S = 5
TRY_S = 3


@pytest.mark.fault("broker: a topic has too few replicas in sync")
@pytest.mark.promise("P7", "P11")
def test_a_topic_with_too_few_replicas_in_sync_is_held_and_the_others_go_on(local_config: LocalConfig) -> None:
    with KafkaCluster(config=local_config) as cluster:
        arena = make_arena(cluster.bootstrap_servers, replication_factor=3)
        fragile = create_topic(arena.servers, unique_name("fragile"), replicas=3, config={"min.insync.replicas": "3"})
        raw = RawWriter(arena)
        hold_after, try_timeout = timedelta(seconds=HOLD_AFTER_S), timedelta(seconds=TRY_S)
        with arena.coordinator(hold_after=hold_after, kafka_transaction_timeout=try_timeout) as running:
            first = raw.prepare((fragile, b"k", b"v"))
            raw.commit(first)
            arena.wait_until_visible(first.txn_id, topics=[fragile], within=60)

            cluster.kill(3)
            stuck = raw.prepare((fragile, b"k", b"v"))
            raw.commit(stuck)
            arena.wait_for_doubt(stuck.key, state="held", within=90)
            good = raw.prepare((arena.targets[0], b"k", b"v"), key=raw.key_in(stuck.partition))
            raw.commit(good)
            arena.wait_until_visible(good.txn_id, within=30)
            assert "topic-unreachable" == arena.doubt().summaries[stuck.key].reason
            rebuilds = running.coordinator.counts.rebuild_count

            cluster.start(3)
            arena.wait_until_visible(stuck.txn_id, topics=[fragile], within=120)

            # Held for as long as the broker says so: nothing is tried meanwhile.
            assert rebuilds >= 1
            assert running.coordinator.counts.rebuild_count <= rebuilds + 2
