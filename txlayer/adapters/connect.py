"""Make the clients of a cluster from settings; the Kafka client is imported on the first call.

Services take these functions as arguments, so that tests and notebooks can use another log.
"""

from __future__ import annotations

from collections.abc import Callable

from txlayer.adapters.ports import ConsumerConnections, CoordinatorConnections, ProducerConnections
from txlayer.config import ConsumerConfig, CoordinatorConfig, ProducerConfig

ConnectProducer = Callable[[ProducerConfig], ProducerConnections]
ConnectCoordinator = Callable[[CoordinatorConfig], CoordinatorConnections]
ConnectConsumer = Callable[[ConsumerConfig], ConsumerConnections]


def connect_producer(config: ProducerConfig) -> ProducerConnections:
    """A producer's calls to a real Kafka; it connects at the first question."""
    from txlayer.adapters.kafka.connections import KafkaProducerConnections

    return KafkaProducerConnections(config)


def connect_coordinator(config: CoordinatorConfig, *, is_one_shot: bool = False) -> CoordinatorConnections:
    """A coordinator's calls to a real Kafka; it connects at the first question.

    A coordinator repeats its questions, so each one waits for 3 s; with `is_one_shot` it waits as long as in a command.
    """
    from txlayer.adapters.kafka.connections import KafkaCoordinatorConnections

    return KafkaCoordinatorConnections(config, is_one_shot=is_one_shot)


def connect_consumer(config: ConsumerConfig) -> ConsumerConnections:
    """A consumer's calls to a real Kafka; it connects at the first question."""
    from txlayer.adapters.kafka.connections import KafkaConsumerConnections

    return KafkaConsumerConnections(config)
