"""A Kafka cluster in memory, for tests of services and for the simulation (docs/howto/memory-kafka.md). Never: a broker's process."""

from txlayer.adapters.error_codes import Code
from txlayer.adapters.memory.faults import Fault, FaultPlan
from txlayer.adapters.memory.kafka import MemoryKafka
from txlayer.adapters.memory.refusal import ClientCrashedError, NoAnswerError, RefusedError
from txlayer.adapters.memory.world import ThreadWorld, World

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
