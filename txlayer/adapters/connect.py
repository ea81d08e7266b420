"""Settings → clients of a cluster, importing the Kafka client late. Never: anything but this choice.

Services take such a function as an argument, so that tests and notebooks can plug in another log.
"""

from __future__ import annotations

from collections.abc import Callable

from txlayer.adapters.ports import CoordinatorConnections, ProducerConnections
from txlayer.config import CoordinatorConfig, ProducerConfig

ConnectProducer = Callable[[ProducerConfig], ProducerConnections]
ConnectCoordinator = Callable[[CoordinatorConfig], CoordinatorConnections]


def connect_producer(config: ProducerConfig) -> ProducerConnections:
    """What a producer needs of a real Kafka; nothing is connected before it is asked for."""
    from txlayer.adapters.kafka.producer_clients import KafkaProducerConnections

    return KafkaProducerConnections(config)


def connect_coordinator(config: CoordinatorConfig) -> CoordinatorConnections:
    """What a coordinator needs of a real Kafka; nothing is connected before it is asked for."""
    from txlayer.adapters.kafka.coordinator_clients import KafkaCoordinatorConnections

    return KafkaCoordinatorConnections(config)
