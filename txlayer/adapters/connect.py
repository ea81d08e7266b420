"""Settings → Kafka, importing the client late: nothing that only imports txlayer needs one. Never anything but this choice."""

from __future__ import annotations

from txlayer.adapters.ports import CoordinatorConnections
from txlayer.config import CoordinatorConfig


def connect_coordinator(config: CoordinatorConfig) -> CoordinatorConnections:
    """What a coordinator asks of a cluster; nothing is connected yet."""
    from txlayer.adapters.kafka.coordinator_clients import KafkaCoordinatorConnections

    return KafkaCoordinatorConnections(config)
