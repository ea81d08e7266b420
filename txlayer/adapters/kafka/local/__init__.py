"""Real Apache Kafka on this machine, without Docker and without an installed Java."""

from txlayer.adapters.kafka.local.runtime import LocalConfig
from txlayer.adapters.kafka.local.server import LocalBroker

__all__ = ["LocalBroker", "LocalConfig"]
