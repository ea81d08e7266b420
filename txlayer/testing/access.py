"""Which Kafka tests run on, in memory, from its jars, in a container or elsewhere; how a test reaches it, and unique names."""

from __future__ import annotations

import gc
import re
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txlayer.adapters.connect import (
    ConnectConsumer,
    ConnectCoordinator,
    ConnectProducer,
    connect_consumer,
    connect_coordinator,
    connect_producer,
)
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.ports import Administration
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError, ConfigError

if TYPE_CHECKING:
    from txlayer.adapters.kafka.local import LocalConfig

Remove = Callable[[Collection[str], Collection[str]], None]


def _leave(topics: Collection[str], groups: Collection[str]) -> None:
    """Nothing has to be removed where the cluster itself ends with the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAccess:
    """How to reach one Kafka; any thread may use it."""

    bootstrap_servers: str
    """What settings name as the brokers' address; nothing listens there when it is in memory."""
    connect_producer: ConnectProducer
    """What producers take as `connect`."""
    connect_coordinator: ConnectCoordinator
    connect_consumer: ConnectConsumer
    """What consumers take as `connect`."""
    make_admin: Callable[[], Administration]
    """An administrator's view, for one thread; to be closed."""
    memory: MemoryKafka | None = None
    """The cluster itself when it is in memory: its clock and its faults are there."""
    client_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_insecure_allowed: bool = False
    remove: Remove = _leave
    """Removes topics and groups of these names, as far as they are there."""


def memory_access(kafka: MemoryKafka) -> KafkaAccess:
    """The way to a cluster in memory."""
    return KafkaAccess(
        bootstrap_servers=kafka.bootstrap_servers,
        connect_producer=kafka.connect_producer,
        connect_coordinator=kafka.connect_coordinator,
        connect_consumer=kafka.connect_consumer,
        make_admin=kafka.admin,
        memory=kafka,
    )


def real_access(
    bootstrap_servers: str,
    *,
    client_settings: Mapping[str, str] | None = None,
    is_insecure_allowed: bool = False,
    is_kept: bool = True,
) -> KafkaAccess:
    """The way to real brokers; nothing is connected yet. Where they are kept, tests remove what they created.

    Raises:
        ConfigError: plain text to another machine that was not asked for, or a setting that carries a promise.
    """
    config = ClientConfig(
        bootstrap_servers=bootstrap_servers,
        client_settings=dict(client_settings or {}),
        is_insecure_allowed=is_insecure_allowed,
    )
    return KafkaAccess(
        bootstrap_servers=bootstrap_servers,
        connect_producer=connect_producer,
        connect_coordinator=connect_coordinator,
        connect_consumer=connect_consumer,
        make_admin=partial(_kafka_admin, config),
        client_settings=config.client_settings,
        is_insecure_allowed=is_insecure_allowed,
        remove=partial(_remove, config) if is_kept else _leave,
    )


def _kafka_admin(config: ClientConfig) -> Administration:
    from txlayer.adapters.kafka.admin import KafkaAdmin

    return KafkaAdmin(config)


def _remove(config: ClientConfig, topics: Collection[str], groups: Collection[str]) -> None:
    from txlayer.adapters.kafka.admin import KafkaAdmin

    with KafkaAdmin(config) as admin:
        admin.remove(topics=topics, groups=groups)


def unique_name(prefix: str) -> str:
    """A name that no other test and no earlier run has: for topics, groups, namespaces, transactional ids."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


# --- which Kafka -------------------------------------------------------------------------------------------------------

OPTION = "--txlayer-kafka"

_SERVERS = re.compile(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*|\[[0-9a-fA-F:]+\]:\d{1,5}")

WhyNot = Callable[[], str | None]  # none: it is possible here; else why it is not


class Kind(Enum):
    """Kinds of Kafka that tests may run on."""

    MEMORY = "memory"  #: inside the test's process
    LOCAL = "local"  #: a real broker from its jars
    CONTAINER = "container"  #: a real broker in a container
    GIVEN = "given"  #: brokers that already run elsewhere
    AUTO = "auto"  #: the first that is there of local, container, memory


@dataclass(frozen=True, slots=True)
class Choice:
    """A kind, and the reason for it."""

    kind: Kind
    servers: str = ""  # of a given one
    why: str = f"{OPTION} says so"

    def __str__(self) -> str:
        where = self.servers or _ADDRESSES[self.kind]
        return f"Kafka {where}: {self.why}"


_ADDRESSES = {
    Kind.MEMORY: "in memory",
    Kind.LOCAL: "from its jars",
    Kind.CONTAINER: "in a container",
    Kind.GIVEN: "at an address",
    Kind.AUTO: "that is there",
}


def parse_choice(text: str) -> Choice:
    """The choice that the option's value names."""
    named = {kind.value: kind for kind in Kind if kind is not Kind.GIVEN}
    if text in named:
        return Choice(named[text])
    if _SERVERS.fullmatch(text):
        return Choice(Kind.GIVEN, servers=text)
    raise ConfigError("no such Kafka", name=OPTION, value=text, expected=f"{', '.join(named)} or HOST:PORT")


def settle_choice(choice: Choice, *, why_no_local: WhyNot, why_no_container: WhyNot) -> Choice:
    """The choice itself when it names a Kafka; for `auto` the first kind that works without a network.

    A real broker is worth more than one in memory, and one from jars is ready sooner than a container.
    """
    if choice.kind is not Kind.AUTO:
        return choice
    no_local = why_no_local()
    if no_local is None:
        return Choice(Kind.LOCAL, why=f"its jars and a Java are here; {OPTION}=memory is quicker")
    no_container = why_no_container()
    if no_container is None:
        return Choice(Kind.CONTAINER, why=f"Docker answers; {OPTION}=memory is quicker")
    return Choice(Kind.MEMORY, why=f"{no_local}; {no_container}")


def why_no_local(config: LocalConfig) -> str | None:
    """Why no broker can be started here without a network; None: one can."""
    from txlayer.adapters.kafka.local.runtime import (
        bundled_java,
        find_java,
        has_all_sizes,
        installed_version,
        read_lock,
    )

    try:
        find_java(config, bundled=bundled_java())
        if config.kafka_home:
            installed_version(Path(config.kafka_home).absolute() / "libs")
            return None
    except ConfigError as exc:
        return str(exc)
    lock = read_lock()
    if has_all_sizes(config.home / "jars" / lock.folder_name, lock.jars):
        return None
    return "Kafka's jars are not here: `txlayer broker fetch` brings them"


IMAGE = "confluentinc/cp-kafka:8.1.0"
"""Kafka 4.1: testcontainers starts images of this family alone. `--txlayer-kafka-image` names another."""

START_TIMEOUT_S = 120  # once the image is there: a container of a machine under load

LOG_CHARACTERS_MAX = 1200  # of each stream of a container that did not start: some twenty lines

SETTINGS = {
    # One broker: without these the first Kafka transaction waits for replicas that never come.
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    # A topic that a test did not create is a mistake of the test.
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
}


def why_no_container() -> str | None:
    """Why no container can be started here; None: one can, if its image is there or can be pulled."""
    if find_spec("testcontainers") is None:
        return 'testcontainers is not installed: pip install "txlayer[testing]"'
    with warnings.catch_warnings():
        # The client of a Docker that is not there leaves its socket to the garbage collector, which would fail the tests
        # of suites that treat warnings as errors.
        warnings.simplefilter("ignore", ResourceWarning)
        reason = _why_no_docker()
        gc.collect()
    return reason


def _why_no_docker() -> str | None:
    from docker import from_env
    from docker.errors import DockerException

    try:
        client = from_env(timeout=5)
        try:
            client.ping()
        finally:
            client.close()
    except (DockerException, OSError) as exc:
        # OSError: among them what requests raises.
        return f"no Docker answers: {exc}"
    return None


def make_container(image: str) -> Any:
    """One broker without ZooKeeper; not started."""
    from testcontainers.community.kafka import KafkaContainer

    made = KafkaContainer(image=image).with_kraft()
    for name, value in SETTINGS.items():
        made.with_env(name, value)
    return made


@contextmanager
def running_container(image: str = IMAGE, *, make: Callable[[str], Any] = make_container) -> Iterator[str]:
    """The address of a Kafka in a container, which is removed at the end. BrokerUnavailableError: it did not start; the end of its log says why."""
    container = None
    try:
        try:
            container = make(image)
            container.start(timeout=START_TIMEOUT_S)
            servers = container.get_bootstrap_server()
        except Exception as exc:
            # Docker's, testcontainers' and requests' errors have no common class.
            log = "" if container is None else _end_of_log(container)
            raise BrokerUnavailableError(f"the container of {image} did not start: {exc}{log}") from exc
        yield servers
    finally:
        if container is not None:
            container.stop()


def _end_of_log(container: Any) -> str:
    """The last characters of each stream, for the log goes with the container; nothing if it was not created."""
    from docker.errors import DockerException
    from testcontainers.core.exceptions import ContainerStartException

    try:
        streams = container.get_logs()
    except (ContainerStartException, DockerException, OSError):
        # It was not created, or Docker no longer answers, which the failure itself says.
        return ""
    ends = (stream.decode(errors="backslashreplace").rstrip()[-LOG_CHARACTERS_MAX:] for stream in streams)
    return "".join(f"\n{end}" for end in ends if end)
