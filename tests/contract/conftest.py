"""One suite, two logs: memory always, real Kafka where there is a broker. Where they differ, memory is wrong."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.broker import unique_name
from tests.support.consumers import MakeStage, Stage
from tests.support.faultproxy import FaultProxy
from tests.support.kafka_cluster import KafkaCluster
from tests.support.lab import FaultyLab, Lab
from tests.support.lab_kafka import KafkaLab
from tests.support.lab_memory import MemoryLab
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.adapters.memory import MemoryKafka
from txlayer.consumer import engine, lease_keeper, pools
from txlayer.coordinator import loop
from txlayer.producer import responder
from txlayer.testing import KafkaAccess, memory_access, real_access

LOGS = ["memory", pytest.param("kafka", marks=pytest.mark.kafka)]
AT_NIGHT = ["memory", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.nightly])]
OF_HANDLERS = pytest.mark.parametrize("lab", AT_NIGHT, indirect=True)
"""Marks tests of what becomes of a message in our own code, whichever cluster it comes from: on Kafka they run at night."""
OF_USERS_CODE = pytest.mark.parametrize("kafka", AT_NIGHT, indirect=True)
"""The same for tests whose cluster is the fixture `kafka`."""
IN_MEMORY = pytest.mark.parametrize("lab", ["memory"], indirect=True)
"""Marks tests of our own code whose cluster does what real Kafka cannot be made to do."""


SOONER = [
    (loop, "TICK_S", 0.05),
    (loop, "RELEASE_TICK_S", 0.02),
    (loop, "IDLE_WAIT_S", 0.02),
    (engine, "IDLE_WAIT_S", 0.02),
    (lease_keeper, "LOOK_S", 0.02),
    (pools, "START_PAUSE_S", 0.1),
    (responder, "IDLE_READ_S", 0.02),
]
"""Who has nothing to do looks again so soon in memory, where most of a test's time would be such pauses."""


@pytest.fixture(autouse=True)
def looking_sooner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in memory waits for less; beside a broker, all pauses are as they are."""
    if request.node.get_closest_marker("kafka") is None:
        for module, name, seconds in SOONER:
            monkeypatch.setattr(module, name, seconds)


@pytest.fixture(params=LOGS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A cluster to work on."""
    made: Lab
    if request.param == "memory":
        made = MemoryLab()
    else:
        broker: Broker = request.getfixturevalue("broker")
        made = KafkaLab(broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def namespace() -> str:
    """A name that no other test has."""
    return unique_name("ns")


@pytest.fixture
def connections(lab: Lab, namespace: str) -> CoordinatorConnections:
    """Those of a coordinator of that namespace."""
    return lab.coordinator(namespace)


@pytest.fixture
def topic(lab: Lab) -> str:
    """One partition, for one test."""
    return lab.topic()


@pytest.fixture(params=LOGS)
def kafka(request: pytest.FixtureRequest) -> KafkaAccess:
    """A cluster for a user's tests of a service."""
    if request.param == "memory":
        return memory_access(MemoryKafka())
    return real_access(request.getfixturevalue("broker").bootstrap_servers, is_kept=False)


@pytest.fixture(params=LOGS)
def faulty_lab(request: pytest.FixtureRequest) -> Iterator[FaultyLab]:
    """A cluster and a way to it that can be harmed."""
    made: FaultyLab
    made = MemoryLab() if request.param == "memory" else request.getfixturevalue("proxied_lab")
    yield made
    made.close()


@pytest.fixture
def proxied_lab(proxied_broker: tuple[KafkaCluster, FaultProxy]) -> KafkaLab:
    """The real one behind a proxy."""
    broker, proxy = proxied_broker
    return KafkaLab(broker.bootstrap_servers, proxy=proxy, distant_servers=broker.proxied_servers(listener=1))


@pytest.fixture(scope="session")
def proxied_broker(
    broker: Broker,  # noqa: ARG001 - it skips where no broker can run
    local_config: LocalConfig,
) -> Iterator[tuple[KafkaCluster, FaultProxy]]:
    """A broker with a second listener, whose clients come through a proxy."""
    (port,) = free_ports(1)
    with (
        KafkaCluster(brokers=1, config=local_config, proxied_listeners=[[port]]) as started,
        FaultProxy(started.upstream(listener=1), port=port) as proxy,
    ):
        yield started, proxy


@pytest.fixture
def make_stage(lab: Lab) -> Iterator[MakeStage]:
    """Stages with settings of the test's own."""
    made: list[Stage] = []

    def make(**settings: Any) -> Stage:
        made.append(Stage(lab, **settings))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """One with the default settings."""
    return make_stage()
