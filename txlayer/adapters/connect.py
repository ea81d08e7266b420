"""Settings → clients of a cluster, importing the Kafka client late. Never: anything but this choice.

Services take such a function as an argument, so that tests and notebooks can plug in another log.
"""

from __future__ import annotations

from collections.abc import Callable

from txlayer.adapters.ports import ConsumerConnections, CoordinatorConnections, ProducerConnections
from txlayer.config import ConsumerConfig, CoordinatorConfig, ProducerConfig

ConnectProducer = Callable[[ProducerConfig], ProducerConnections]
ConnectCoordinator = Callable[[CoordinatorConfig], CoordinatorConnections]
ConnectConsumer = Callable[[ConsumerConfig], ConsumerConnections]


def connect_producer(config: ProducerConfig) -> ProducerConnections:
    """What a producer needs of a real Kafka; nothing is connected before it is asked for."""
    from txlayer.adapters.kafka.connections import KafkaProducerConnections

    return KafkaProducerConnections(config)


def connect_coordinator(
    config: CoordinatorConfig, *, is_one_shot: bool = False
) -> CoordinatorConnections:
    """What a coordinator needs of a real Kafka; nothing is connected before it is asked for.

    A coordinator asks again, so a question waits for 3 s; with `is_one_shot` it waits as long as any command does.
    """
    from txlayer.adapters.kafka.connections import KafkaCoordinatorConnections

    return KafkaCoordinatorConnections(config, is_one_shot=is_one_shot)


def connect_consumer(config: ConsumerConfig) -> ConsumerConnections:
    """What a consumer needs of a real Kafka; nothing is connected before it is asked for."""
    from txlayer.adapters.kafka.connections import KafkaConsumerConnections

    return KafkaConsumerConnections(config)
