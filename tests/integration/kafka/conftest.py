"""A namespace of the test's own on the real broker, and the administrator's view of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Broker
from tests.support.broker import unique_name
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.topic_files import read_topic_files
from txlayer.config import ClientConfig


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
    return Namespace(admin, topics=config.topics, files=read_topic_files())
