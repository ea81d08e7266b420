"""A consumer that ends waits for what runs, and begins nothing of what a thread was handed beside it."""

from itertools import count

from tests.unit.test_take_over_reading import EARLY, GROUP, AtOnce, World
from txlayer.consumer.pools import Caller, Chunk


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
    world = World(make_pool=Late)
    pool: Late = world.pool
    for n in range(3):
        world.kafka.append(EARLY[0], b"%d" % n, key=b"k%d" % n)
    turns = count()

    def should_stop() -> bool:
        world.leases.gained = {EARLY: 1} if next(turns) == 1 else {}
        pool.is_awake = bool(pool.chunks)
        return pool.is_awake

    world.engine.run(should_stop=should_stop)

    assert ([], []) == (pool.chunks, world.handled)
    assert 0 == world.kafka.stored_offsets(GROUP)[EARLY].offset
