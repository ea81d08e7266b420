"""Kafka in a container, by testcontainers. Never: an image of our own."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

from txlayer.errors import BrokerUnavailableError

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
    """What is asked of testcontainers."""

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
        # of whoever takes warnings for errors.
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
def running_container(
    image: str = IMAGE, *, make: Callable[[str], Container] = make_container
) -> Iterator[str]:
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
