"""What happens in one simulated world of consumers, as plain data, so that a found fault can be shrunk. Never: playing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.simulation.plan import Fault
from txlayer.core.dead_letters import dead_letter_topic
from txlayer.core.key_queue import NullKeys, QueueOrder
from txlayer.core.retry import AfterExhausted, BreakerPolicy

if TYPE_CHECKING:
    from tests.simulation.consumers.unkind import UnkindToConsumers

NAMESPACE = "sim"
GROUP = "loyalty"
HEARERS = "undo"
"""The group that hears of the first one's dead letters."""
TOPICS = ("orders", "stock")

OWN_TAG = b"own"
"""Of messages whose handler has a breaker of its own."""

ALWAYS = 1_000
"""A message that fails so often fails for ever."""


def world_topics(count: int) -> tuple[str, ...]:
    """Every topic of a world in which `count` topics are consumed."""
    own = [f"{GROUP}.{topic}.{kind}" for topic in TOPICS[:count] for kind in ("dlq", "replay")]
    return (*TOPICS[:count], *own, f"{NAMESPACE}.locks")


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """One message, and what its handler does with it."""

    at_s: float
    topic: str
    partition: int
    key: bytes | None
    work_s: float = 0.0  # that an attempt takes
    failing_count: int = 0  # attempts that fail
    word: str = "raise"  # how: raise, retry, later, reject
    replay_failing_count: int = 0  # replays that fail
    is_deadly: bool = False  # its first attempt ends the process
    hangs: bool = False  # its first attempt never comes back
    bundle: str = ""  # "": alone; "kept", "aborted": in a Kafka transaction, with those beside it


@dataclass(frozen=True, slots=True)
class Request:
    """What an operator asks for."""

    at_s: float
    word: str  # replay, replay-all, drop, missing, pause, resume, garbage, again
    number: int  # which partition, which dead letter


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What differs from world to world without being a fault."""

    partition_count: int
    topic_count: int
    order: QueueOrder
    is_leased: bool  # False: a `ConcurrentConsumer`
    null_keys: NullKeys
    after_exhausted: AfterExhausted
    attempt_count_max: int
    backoff_s: float
    batch_count_max: int  # 0: handlers take single messages
    worker_count: int
    in_flight_max: int
    record_count_max: int
    store_interval_s: float
    metadata_bytes_max: int
    parked_keys_max: int
    attempt_timeout_s: float
    revoke_timeout_s: float
    lease_expiry_s: float
    latency_s: float
    slow_share: float
    lateness: float
    marker_delay_s: float
    skews: tuple[float, ...]
    wall_skews: tuple[float, ...]
    breaker: BreakerPolicy | None = None
    has_own_breaker: bool = False  # half of the messages go to another handler, with a breaker of its own
    is_broadcast: bool = False  # each consumer is an instance that gets every message
    keeps_position: bool = True  # False: only while its process lives
    start_at: Literal["earliest", "latest"] = "earliest"
    taker_count: int = 0  # so many loops of a program take the messages themselves; 0: handlers get them
    closes_at_once: bool = True  # a program that ends gives back what it has not answered; False: it answers first


@dataclass(frozen=True, slots=True)
class Outage:
    """For so long every handler of a topic fails."""

    topic: str
    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One world."""

    seed: int
    settings: ConsumerSettings
    consumers: tuple[float, ...]  # when each joins
    messages: tuple[PlannedMessage, ...]
    requests: tuple[Request, ...]
    faults: tuple[Fault, ...]
    until_s: float
    outages: tuple[Outage, ...] = ()
    unkind: UnkindToConsumers | None = None  # beside faults, the cluster does nothing that it need not
    is_calm: bool = False  # nothing goes wrong
    hearers: tuple[float, ...] = ()  # when each consumer joins that hears of dead letters
    heard_group: str | None = None  # of whose messages it hears; None: of all

    @property
    def topics(self) -> tuple[str, ...]:
        """What is consumed."""
        return TOPICS[: self.settings.topic_count]

    @property
    def heard_topics(self) -> tuple[str, ...]:
        """Where those who hear of dead letters find them."""
        return tuple(dead_letter_topic(GROUP, topic) for topic in self.topics) if self.hearers else ()

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Every topic of the world."""
        if self.settings.is_broadcast:
            return self.topics
        own = (f"{HEARERS}.{topic}.{kind}" for topic in self.heard_topics for kind in ("dlq", "replay"))
        return (*world_topics(self.settings.topic_count), *own)


def make_consumer_plan(seed: int) -> ConsumerPlan:
    """The plan of a seed, the same on every machine."""
    from tests.simulation.consumers.draw import ConsumerPlanner

    return ConsumerPlanner(seed).plan()


def make_calm_plan(seed: int) -> ConsumerPlan:
    """The same world if nothing goes wrong: consumers come, and leave in order."""
    from tests.simulation.consumers.draw import ConsumerPlanner

    return ConsumerPlanner(seed).calm_plan()
