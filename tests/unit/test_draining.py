"""A consumer that ends waits for what runs, and begins nothing of what a thread was handed beside it."""

from itertools import count

from tests.support.still_world import StillWorld
from tests.unit.test_take_over_reading import EARLY, GROUP, LATE, AtOnce, Leases, routes_to
from txlayer.adapters.memory.kafka import MemoryKafka
from txlayer.config import ConsumerConfig
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.engine import Engine
from txlayer.consumer.plan import ConsumerPlan
from txlayer.consumer.pools import Caller, Chunk
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.runtime.environment import Environment


class Late(AtOnce):
    """A pool that begins a chunk when somebody waits for it, from the moment it is awake."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self.chunks: list[Chunk] = []
        self.is_awake = False

    def free_count(self) -> int:
        return 0 if self.chunks else 1

    def submit(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    def wait(self, timeout_s: float) -> None:  # noqa: ARG002 - the port's
        chunks, self.chunks = (self.chunks, []) if self.is_awake else ([], self.chunks)
        for chunk in chunks:
            super().submit(chunk)


def test_who_ends_begins_nothing_of_what_was_handed_over() -> None:
    world = StillWorld()
    kafka = MemoryKafka(world)
    for topic, _ in (EARLY, LATE):
        for name in (topic, dead_letter_topic(GROUP, topic), replay_topic(GROUP, topic)):
            kafka.create_topic(name, partitions=1)
    for n in range(3):
        kafka.append(EARLY[0], b"%d" % n, key=b"k%d" % n)
    config = ConsumerConfig(bootstrap_servers=kafka.bootstrap_servers)
    leases, values = Leases(), list[bytes | None]()

    def handle(message: ReceivedMessage, _context: Context) -> None:
        values.append(message.value)

    routes = routes_to(handle)
    pool = Late(Caller(routes, attempt_timeout_s=60.0, clock=world.monotonic))
    engine = Engine(
        config,
        ConsumerPlan(group=GROUP, topics=(EARLY[0], LATE[0]), routes=routes, start_at="earliest"),
        connections=kafka.connect_consumer(config),
        pool=pool,
        make_leases=lambda: leases,
        environment=Environment(clock=world.monotonic, sleep=lambda _: None),
    )
    turns = count()

    def should_stop() -> bool:
        leases.gained = {EARLY: 1} if next(turns) == 1 else {}
        pool.is_awake = bool(pool.chunks)
        return pool.is_awake

    engine.run(should_stop=should_stop)

    assert ([], []) == (pool.chunks, values)
    assert 0 == kafka.stored_offsets(GROUP)[EARLY].offset
