"""How far an engine reads ahead of its handlers."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.still_world import StillWorld
from tests.unit.test_take_over_reading import EARLY, GROUP, LATE, AtOnce, Leases, routes_to
from txlayer.adapters.memory.kafka import MemoryKafka
from txlayer.adapters.ports import TopicPartition
from txlayer.config import ConsumerConfig
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.engine import AHEAD_FACTOR, FILLED_SHARE, READ_COUNT_MAX, READY_FACTOR, Engine
from txlayer.consumer.plan import ConsumerPlan
from txlayer.consumer.pools import Caller
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.core.retry import BreakerPolicy
from txlayer.runtime.environment import Environment

IN_FLIGHT_MAX = 50
RECORD_COUNT = 8 * READ_COUNT_MAX
WORKERS_OF_THREADS, WORKERS_WITHOUT_LIMIT = 10, 1_000_000


class Paused(Leases):
    """Held for a moment, then not any more: what was read stays, and no handler is called."""

    is_held = True

    def valid_until(self, queue: TopicPartition) -> float:
        return super().valid_until(queue) if self.is_held else 0.0


class World:
    """An engine whose handlers end at once, of two topics with a partition each."""

    def __init__(self, *, busy_count: int, breakers: Mapping[str, BreakerPolicy] | None = None) -> None:
        world = StillWorld()
        self.kafka = MemoryKafka(world)
        for topic, _ in (EARLY, LATE):
            for name in (topic, dead_letter_topic(GROUP, topic), replay_topic(GROUP, topic)):
                self.kafka.create_topic(name, partitions=1)
        config = ConsumerConfig(bootstrap_servers=self.kafka.bootstrap_servers, in_flight_max=IN_FLIGHT_MAX)
        self.leases = Paused()
        self.handled: list[str] = []

        def handle(message: ReceivedMessage, _context: Context) -> None:
            self.handled.append(message.topic)

        routes = routes_to(handle)
        pool: Any = AtOnce(Caller(routes, attempt_timeout_s=60.0, clock=world.monotonic))
        pool.busy_count = busy_count
        topics = EARLY[0], LATE[0]
        self.engine = Engine(
            config,
            ConsumerPlan(group=GROUP, topics=topics, routes=routes, start_at="earliest", breakers=breakers or {}),
            connections=self.kafka.connect_consumer(config),
            pool=pool,
            make_leases=lambda: self.leases,
            environment=Environment(clock=world.monotonic, sleep=lambda _: None),
        )
        self.engine.start()

    def gain(self, *queues: TopicPartition) -> None:
        self.leases.gained = dict.fromkeys(queues, 1)
        while self.engine.stats().partitions != queues:
            self.engine.turn()


@pytest.mark.parametrize(
    ("key_count", "busy_count"),
    [(int(IN_FLIGHT_MAX * FILLED_SHARE), WORKERS_WITHOUT_LIMIT), (WORKERS_OF_THREADS, WORKERS_OF_THREADS)],
    ids=["all but a few slots have a key", "every thread has a key"],
)
def test_who_has_enough_to_begin_does_not_read_on_for_keys_that_may_never_come(key_count: int, busy_count: int) -> None:
    world = World(busy_count=busy_count)
    keys: Sequence[bytes] = [b"%d" % n for n in range(key_count)]
    for n in range(RECORD_COUNT):
        world.kafka.append(EARLY[0], b"", key=keys[n % key_count])
    world.gain(EARLY)
    world.leases.is_held = False

    for _ in range(20):
        world.engine.turn()
    waiting = world.engine.stats().topics[EARLY[0]].waiting
    world.engine.close()

    assert 0 < waiting <= AHEAD_FACTOR * IN_FLIGHT_MAX + READ_COUNT_MAX + 20


@pytest.mark.promise("P9")
@pytest.mark.parametrize("why", ["suspended", "paused", "breaker"])
def test_many_messages_that_may_not_begin_hold_up_the_reading_of_no_other_partition(why: str) -> None:
    world = World(busy_count=WORKERS_OF_THREADS, breakers={EARLY[0]: BreakerPolicy(probe_interval_ms=1 << 40)})
    world.gain(EARLY, LATE)
    stopped = world.engine._assignments.owned[EARLY].queue
    if why == "suspended":
        stopped.suspended_until_ms = 1 << 62
    elif why == "paused":
        stopped.is_paused = True
    else:
        world.engine._dispatcher.breakers.by_topic[EARLY[0]].ended(
            count=20, failed_count=20, now_ms=world.engine._now_ms()
        )
    for n in range(2 * READY_FACTOR * IN_FLIGHT_MAX):
        world.kafka.append(EARLY[0], b"", key=b"%d" % n)
    while world.engine.stats().topics[EARLY[0]].waiting < READY_FACTOR * IN_FLIGHT_MAX:
        world.engine.turn()

    for n in range(1_000):
        world.kafka.append(LATE[0], b"", key=b"%d" % n)
    for _ in range(100):
        world.engine.turn()
    world.engine.close()

    assert [LATE[0]] * 1_000 == world.handled
