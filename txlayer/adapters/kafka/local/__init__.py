"""Real Apache Kafka on this machine, without Docker and without an installed Java."""

from txlayer.adapters.kafka.local.broker import LocalBroker
from txlayer.adapters.kafka.local.runtime import LocalConfig

__all__ = ["LocalBroker", "LocalConfig"]
