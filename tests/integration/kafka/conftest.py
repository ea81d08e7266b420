"""A namespace of the test's own, or of the file's, on the real broker, and who works in it."""

from collections.abc import Iterator

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import unique_name
from tests.support.crafted import Crafted
from tests.support.operating import Tx, quick_coordinator
from tests.support.planted_letters import Planted
from tests.support.producers import made_for
from tests.support.raw import RawWriter
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.namespace import Namespace
from txlayer.config import ClientConfig
from txlayer.producer.producer import TransactionalProducer
from txlayer.testing.stage import RunningCoordinator


@pytest.fixture
def config(broker: Broker) -> ClientConfig:
    """A namespace of the test's own."""
    return ClientConfig(bootstrap_servers=broker.bootstrap_servers, namespace=unique_name("ns"))


@pytest.fixture
def admin(config: ClientConfig) -> Iterator[KafkaAdmin]:
    """The administrator's view."""
    with KafkaAdmin(config) as opened:
        yield opened


@pytest.fixture
def namespace(admin: KafkaAdmin, config: ClientConfig) -> Namespace:
    """The namespace on the cluster, not created yet."""
    return Namespace(admin, topics=config.topics)


@pytest.fixture(scope="module")
def arena(broker: Broker) -> Arena:
    """One namespace for the file; its tests use ids of their own."""
    return make_arena(broker.bootstrap_servers)


@pytest.fixture
def producer(arena: Arena) -> Iterator[TransactionalProducer]:
    """Its members are in the file's namespace."""
    with made_for(arena) as opened:
        yield opened


@pytest.fixture(scope="module")
def coordinator(arena: Arena) -> Iterator[RunningCoordinator]:
    """It runs while all tests of the file do, and hurries."""
    with quick_coordinator(arena) as running:
        yield running


@pytest.fixture
def crafted(arena: Arena, coordinator: RunningCoordinator) -> Crafted:
    """Records made by hand, which the coordinator reads."""
    assert coordinator.failure is None
    return Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)


@pytest.fixture
def raw(arena: Arena, coordinator: RunningCoordinator) -> RawWriter:
    """Writes to the namespace while the coordinator runs."""
    assert coordinator.failure is None
    return RawWriter(arena)


@pytest.fixture
def operator(arena: Arena, capsys: pytest.CaptureFixture[str]) -> Tx:
    """Who calls `txlayer tx`."""
    return Tx(arena, capsys)


@pytest.fixture
def planted(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Planted:
    """A consumer group's dead letters, and `txlayer dlq` on them."""
    return Planted(broker.bootstrap_servers, capsys)
