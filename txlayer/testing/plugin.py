"""The pytest plugin: options and fixtures over `Stage`.

pytest loads it in every run where `txlayer[testing]` is installed, so it imports nothing of txlayer before a fixture is
requested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
    from txlayer.adapters.memory import MemoryKafka
    from txlayer.testing.access import Choice, KafkaAccess
    from txlayer.testing.stage import Stage

# As it was before any test changed it.
_ENVIRON = pytest.StashKey[Mapping[str, str]]()
_SETTLED = pytest.StashKey["Choice"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("txlayer", "Kafka for tests with txlayer")
    text = "memory, local (from its jars), container (testcontainers), HOST:PORT, or auto: what is there"
    group.addoption("--txlayer-kafka", metavar="WHICH", help=text)
    group.addoption(
        "--txlayer-kafka-image",
        metavar="IMAGE",
        help="of the container: of the cp-kafka family, with its version as the tag",
    )
    group.addoption("--txlayer-insecure", action="store_true", help="plain text to another machine is allowed")
    parser.addini("txlayer_kafka", f"default of --txlayer-kafka: {text}", default="auto")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an invalid choice before any test runs."""
    config.stash[_ENVIRON] = dict(os.environ)
    if config.getoption("txlayer_kafka") is not None or config.getini("txlayer_kafka") != "auto":
        _wanted(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    settled = config.stash.get(_SETTLED, None)
    if settled is not None:
        terminalreporter.write_line(f"txlayer: {settled}")


@pytest.fixture(scope="session")
def txlayer_client_settings() -> Mapping[str, str]:
    """Librdkafka settings for the brokers of `--txlayer-kafka=HOST:PORT`: override it for TLS and SASL."""
    return {}


@pytest.fixture
def txlayer_coordinator_settings() -> Mapping[str, Any]:
    """Settings of the stage's coordinator, by their names in `CoordinatorConfig`: override it where tests need others."""
    return {}


@pytest.fixture
def txlayer_memory_kafka() -> MemoryKafka:
    """A cluster in memory for this test alone."""
    from txlayer.adapters.memory import MemoryKafka

    return MemoryKafka()


@pytest.fixture(scope="session")
def txlayer_local_kafka(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """One real broker of this run, from its jars; tests use names of their own and never stop it."""
    from txlayer.adapters.kafka.local import LocalBroker
    from txlayer.errors import TxLayerError

    broker = LocalBroker(config=_local_config(request.config))
    try:
        broker.start()
    except TxLayerError as exc:
        broker.close()
        _refuse("local", exc)
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def txlayer_container_kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of one real broker of this run, in a container."""
    from contextlib import ExitStack

    from txlayer.errors import TxLayerError
    from txlayer.testing.access import IMAGE, running_container, why_no_container

    if reason := why_no_container():
        _refuse("container", reason)
    image: str = request.config.getoption("txlayer_kafka_image") or IMAGE
    with ExitStack() as opened:
        try:
            servers = opened.enter_context(running_container(image))
        except TxLayerError as exc:
            _refuse("container", exc)
        yield servers


@pytest.fixture
def txlayer_kafka(request: pytest.FixtureRequest, txlayer_client_settings: Mapping[str, str]) -> KafkaAccess:
    """The Kafka of this run: in memory a new one for each test, else one for all."""
    from txlayer.errors import ConfigError
    from txlayer.testing.access import Kind, memory_access, real_access

    choice = _settled(request.config)
    if choice.kind is Kind.MEMORY:
        return memory_access(request.getfixturevalue("txlayer_memory_kafka"))
    if choice.kind is Kind.LOCAL:
        broker: LocalBroker = request.getfixturevalue("txlayer_local_kafka")
        return real_access(broker.bootstrap_servers, is_kept=False)
    if choice.kind is Kind.CONTAINER:
        servers: str = request.getfixturevalue("txlayer_container_kafka")
        # Docker may be another machine; what is in this container is the tests' own.
        return real_access(servers, is_insecure_allowed=True, is_kept=False)
    try:
        return real_access(
            choice.servers,
            client_settings=txlayer_client_settings,
            is_insecure_allowed=request.config.getoption("txlayer_insecure"),
        )
    except ConfigError as exc:
        _refuse(choice.servers, f"{exc}; --txlayer-insecure allows plain text")


@pytest.fixture
def txlayer_stage(txlayer_kafka: KafkaAccess, txlayer_coordinator_settings: Mapping[str, Any]) -> Iterator[Stage]:
    """A namespace of the test's own, with a coordinator that runs."""
    from txlayer.errors import BrokerUnavailableError, NotAuthorisedError
    from txlayer.testing.stage import Stage

    stage = Stage(txlayer_kafka, settings=txlayer_coordinator_settings)
    try:
        stage.start()
    except (BrokerUnavailableError, NotAuthorisedError) as exc:
        _refuse(txlayer_kafka.bootstrap_servers, exc)
    with stage:
        yield stage


def _wanted(config: pytest.Config) -> Choice:
    from txlayer.errors import ConfigError
    from txlayer.testing.access import parse_choice

    named: str = config.getoption("txlayer_kafka") or config.getini("txlayer_kafka")
    try:
        return parse_choice(named)
    except ConfigError as exc:
        raise pytest.UsageError(str(exc)) from exc


def _settled(config: pytest.Config) -> Choice:
    if _SETTLED not in config.stash:
        from txlayer.testing.access import settle_choice, why_no_container, why_no_local

        config.stash[_SETTLED] = settle_choice(
            _wanted(config), why_no_local=lambda: why_no_local(_local_config(config)), why_no_container=why_no_container
        )
    return config.stash[_SETTLED]


def _local_config(config: pytest.Config) -> LocalConfig:
    from txlayer.adapters.kafka.local import LocalConfig

    return LocalConfig.from_environ(config.stash[_ENVIRON])


def _refuse(which: str, reason: object) -> NoReturn:
    # Without the errors that led here: the reason says the last one.
    raise pytest.fail.Exception(f"--txlayer-kafka={which} is not possible here: {reason}", pytrace=False) from None
