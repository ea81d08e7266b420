"""How far an engine reads ahead of its handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.still_world import StillWorld
from tests.unit.test_take_over_reading import EARLY, GROUP, LATE, AtOnce, Leases, routes_to
from txlayer.adapters.memory.kafka import MemoryKafka
from txlayer.adapters.ports import TopicPartition
from txlayer.config import ConsumerConfig
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.engine import AHEAD_FACTOR, FILLED_SHARE, READ_COUNT_MAX, Engine
from txlayer.consumer.plan import ConsumerPlan
from txlayer.consumer.pools import Caller
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.runtime.environment import Environment

IN_FLIGHT_MAX = 50
RECORD_COUNT = 8 * READ_COUNT_MAX
WORKERS_OF_THREADS, WORKERS_WITHOUT_LIMIT = 10, 1_000_000


class Paused(Leases):
    """Held for a moment, then not any more: what was read stays, and no handler is called."""

    is_held = True

    def valid_until(self, queue: TopicPartition) -> float:
        return super().valid_until(queue) if self.is_held else 0.0


@pytest.mark.parametrize(
    ("key_count", "busy_count"),
    [(int(IN_FLIGHT_MAX * FILLED_SHARE), WORKERS_WITHOUT_LIMIT), (WORKERS_OF_THREADS, WORKERS_OF_THREADS)],
    ids=["all but a few slots have a key", "every thread has a key"],
)
def test_who_has_enough_to_begin_does_not_read_on_for_keys_that_may_never_come(key_count: int, busy_count: int) -> None:
    world = StillWorld()
    kafka = MemoryKafka(world)
    for topic, _ in (EARLY, LATE):
        for name in (topic, dead_letter_topic(GROUP, topic), replay_topic(GROUP, topic)):
            kafka.create_topic(name, partitions=1)
    keys: Sequence[bytes] = [b"%d" % n for n in range(key_count)]
    for n in range(RECORD_COUNT):
        kafka.append(EARLY[0], b"", key=keys[n % key_count])
    config = ConsumerConfig(bootstrap_servers=kafka.bootstrap_servers, in_flight_max=IN_FLIGHT_MAX)
    leases = Paused()

    def handle(_message: ReceivedMessage, _context: Context) -> None:
        """Nothing."""

    routes = routes_to(handle)
    pool: Any = AtOnce(Caller(routes, attempt_timeout_s=60.0, clock=world.monotonic))
    pool.busy_count = busy_count
    engine = Engine(
        config,
        ConsumerPlan(group=GROUP, topics=(EARLY[0], LATE[0]), routes=routes, start_at="earliest"),
        connections=kafka.connect_consumer(config),
        pool=pool,
        make_leases=lambda: leases,
        environment=Environment(clock=world.monotonic, sleep=lambda _: None),
    )
    engine.start()
    leases.gained = {EARLY: 1}
    while engine.stats().partitions != (EARLY,):
        engine.turn()
    leases.is_held = False

    for _ in range(20):
        engine.turn()
    waiting = engine.stats().topics[EARLY[0]].waiting
    engine.close()

    assert 0 < waiting <= AHEAD_FACTOR * IN_FLIGHT_MAX + READ_COUNT_MAX + 20
