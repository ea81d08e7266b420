"""Which Kafka tests run on: what the option says, else what is available; and a broker in a container."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.jars import has_all_sizes, read_lock
from txlayer.adapters.kafka.local.runtime import bundled_java, find_java, installed_version
from txlayer.errors import BrokerUnavailableError, ConfigError

OPTION = "--txlayer-kafka"

_SERVERS = re.compile(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*|\[[0-9a-fA-F:]+\]:\d{1,5}")

WhyNot = Callable[[], str | None]
"""None: it is possible here; else why it is not."""


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
    servers: str = ""
    """Of a given one."""
    why: str = f"{OPTION} says so"

    def __str__(self) -> str:
        place = self.servers or _PLACES[self.kind]
        return f"Kafka {place}: {self.why}"


_PLACES = {
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

START_TIMEOUT_S = 120
"""Once the image is there: a container of a machine under load."""

SETTINGS = {
    # One broker: without these the first Kafka transaction waits for replicas that never come.
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    # A topic that a test did not create is a mistake of the test.
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
}


class Container(Protocol):
    """The part of testcontainers' container that is used."""

    def start(self, timeout: int = ...) -> Any:
        """Pull the image when it is missing, start, wait until it serves."""

    def stop(self) -> None:
        """Remove it with its data."""

    def get_bootstrap_server(self) -> str:
        """Where clients reach it."""


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


def make_container(image: str) -> Container:
    """One broker without ZooKeeper; not started."""
    from testcontainers.community.kafka import KafkaContainer

    made = KafkaContainer(image=image).with_kraft()
    for name, value in SETTINGS.items():
        made.with_env(name, value)
    container: Container = made
    return container


@contextmanager
def running_container(image: str = IMAGE, *, make: Callable[[str], Container] = make_container) -> Iterator[str]:
    """The address of a Kafka in a container, which is removed at the end, also when it did not start.

    Raises:
        BrokerUnavailableError: it did not start; the cause says why (no image, no Docker, too slow).
    """
    container = make(image)
    try:
        try:
            container.start(timeout=START_TIMEOUT_S)
            servers = container.get_bootstrap_server()
        except Exception as exc:
            # Docker's, testcontainers' and requests' errors have no common class.
            raise BrokerUnavailableError(f"the container of {image} did not start: {exc}") from exc
        yield servers
    finally:
        container.stop()
