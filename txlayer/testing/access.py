"""How a test reaches one Kafka, in memory or real, and names that are unique to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

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
