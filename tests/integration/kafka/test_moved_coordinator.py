"""Offsets while a group's coordinator is moving, as after every start of a broker: asked for and stored again."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from tests.support.mock_cluster import OFFSET_COMMIT, OFFSET_FETCH, MockCluster
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import StoredOffset
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError

MOVED = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE]
PLACES = [("half", 0), ("half", 1)]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as started:
        started.create_topic("half", partitions=2)
        yield started


def admin_of(cluster: MockCluster, *, timeout_ms: int = 10_000) -> KafkaAdmin:
    config = ClientConfig(bootstrap_servers=cluster.bootstrap_servers)
    return KafkaAdmin(config, timeout_ms=timeout_ms)


def test_stored_offsets_are_asked_for_until_the_groups_coordinator_is_found(cluster: MockCluster) -> None:
    cluster.refuse(OFFSET_FETCH, *MOVED * 2)

    with admin_of(cluster) as admin:
        assert dict.fromkeys(PLACES) == admin.stored_offsets("group", PLACES)


def test_offsets_are_stored_as_soon_as_the_groups_coordinator_is_found(cluster: MockCluster) -> None:
    wanted = dict.fromkeys(PLACES, StoredOffset(0, ""))
    cluster.refuse(OFFSET_COMMIT, *MOVED * 2)

    with admin_of(cluster) as admin:
        admin.store_offsets("group", wanted)

        assert wanted == admin.stored_offsets("group", PLACES)


def test_a_coordinator_that_is_never_found_is_told_when_the_time_is_over(cluster: MockCluster) -> None:
    cluster.refuse(OFFSET_FETCH, *[KafkaError.NOT_COORDINATOR] * 1000)
    cluster.refuse(OFFSET_COMMIT, *[KafkaError.NOT_COORDINATOR] * 1000)

    with admin_of(cluster, timeout_ms=3_000) as admin:
        with pytest.raises(BrokerUnavailableError, match="NOT_COORDINATOR"):
            admin.stored_offsets("group", PLACES)
        with pytest.raises(BrokerUnavailableError, match="NOT_COORDINATOR"):
            admin.store_offsets("group", {PLACES[0]: StoredOffset(0, "")})
