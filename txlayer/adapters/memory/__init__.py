"""A Kafka cluster in memory, for tests of services and for the simulation (docs/howto/memory-kafka.md)."""

from txlayer.adapters.errors import Code
from txlayer.adapters.memory.kafka import MemoryKafka
from txlayer.adapters.memory.world import (
    ClientCrashedError,
    Fault,
    FaultPlan,
    NoAnswerError,
    RefusedError,
    ThreadWorld,
    World,
)

__all__ = [
    "ClientCrashedError",
    "Code",
    "Fault",
    "FaultPlan",
    "MemoryKafka",
    "NoAnswerError",
    "RefusedError",
    "ThreadWorld",
    "World",
]
