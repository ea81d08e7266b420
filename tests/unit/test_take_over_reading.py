"""What an engine reads: how far ahead of its handlers, and while it takes a further queue over: no record of the others is lost or overtaken."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.still_world import StillWorld
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import ConsumerConfig
from txlayer.consumer.assignments import Assignments
from txlayer.consumer.context import Context, Lease, ReceivedMessage
from txlayer.consumer.engine import AHEAD_FACTOR, FILLED_SHARE, READ_COUNT_MAX, READY_FACTOR, Engine
from txlayer.consumer.handlers import HandlerSet, Route
from txlayer.consumer.ingest import Ingest
from txlayer.consumer.lease_keeper import LeaseChanges, NoLeases
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import OwnedPartition
from txlayer.consumer.plan import ConsumerPlan, starts_of
from txlayer.consumer.pools import Caller, Chunk, JobOutcome
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.core.key_queue import PartitionQueue, QueueSettings, Start
from txlayer.core.progress import NOTHING, Attempts, Progress
from txlayer.core.retry import BreakerPolicy
from txlayer.errors import MemberFencedError, RetriableError
from txlayer.runtime.environment import Environment

GROUP = "g"
EARLY, LATE = ("early", 0), ("late", 0)
TURNS = 100
"""More than any engine here needs."""


class Leases(NoLeases):
    """Each queue is gained when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gained: dict[TopicPartition, int] = {}
        self.remarks: dict[TopicPartition, str] = {}

    def turn(self) -> LeaseChanges:
        gained, self.gained = self.gained, {}
        return LeaseChanges(gained, ())

    def remark(self, queue: TopicPartition, text: str) -> None:
        self.remarks[queue] = text


class AtOnce:
    """A pool that has done a chunk before anybody asks."""

    chunk_s = 0.001
    has_runs = True
    busy_count = 10
    hung_count = 0

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._outcomes: list[JobOutcome] = []

    def start(self) -> None:
        """Nothing."""

    def free_count(self) -> int:
        return 1 - len(self._outcomes)

    def submit(self, chunk: Chunk) -> None:
        self._outcomes.append(self._caller.run(chunk))

    def take(self) -> list[JobOutcome]:
        taken, self._outcomes = self._outcomes, []
        return taken

    def wait(self, timeout_s: float) -> None:
        """Nothing runs."""

    def close(self, timeout_s: float) -> None:
        """Nothing runs."""


class Busy:
    """Connections during whose every look at stored offsets somebody writes to the early topic."""

    def __init__(self, kafka: MemoryKafka, config: ConsumerConfig) -> None:
        self._kafka = kafka
        self._connections = kafka.connect_consumer(config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connections, name)

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> Mapping[TopicPartition, StoredOffset | None]:
        if LATE in partitions:
            self._kafka.append(EARLY[0], b"meanwhile")
        return self._connections.stored_offsets(group, partitions, is_stable=is_stable)


def routes_to(function: Callable[[ReceivedMessage, Context], Any]) -> dict[str, Route]:
    """Both topics' messages meet this one."""
    handlers = HandlerSet(is_async=False)
    handlers.add(function, topics=(), tags="*", retry=None, batch_count_max=0)
    return handlers.routes([EARLY[0], LATE[0]])


class World:
    """An engine of two topics with a partition each, whose handlers end at once unless another pool is made."""

    def __init__(
        self,
        *,
        make_pool: Callable[[Caller], Any] = AtOnce,
        leases: Leases | None = None,
        connect: Callable[[MemoryKafka, ConsumerConfig], Any] = MemoryKafka.connect_consumer,
        routes: dict[str, Route] | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are those of the plan (`breakers`, `policy`) and of the configuration."""
        self.world = world = StillWorld()
        self.kafka = MemoryKafka(world)
        for topic, _ in (EARLY, LATE):
            for name in (topic, dead_letter_topic(GROUP, topic), replay_topic(GROUP, topic)):
                self.kafka.create_topic(name, partitions=1)
        planned = {name: settings.pop(name) for name in ("breakers", "policy") if name in settings}
        config = ConsumerConfig(bootstrap_servers=self.kafka.bootstrap_servers, **settings)
        self.leases = leases or Leases()
        self.handled: list[ReceivedMessage] = []

        def handle(message: ReceivedMessage, _context: Context) -> None:
            self.handled.append(message)

        routes = routes or routes_to(handle)
        self.pool = make_pool(Caller(routes, attempt_timeout_s=60.0, clock=world.monotonic))
        self.engine = Engine(
            config,
            ConsumerPlan(group=GROUP, topics=(EARLY[0], LATE[0]), routes=routes, start_at="earliest", **planned),
            connections=connect(self.kafka, config),
            pool=self.pool,
            make_leases=lambda: self.leases,
            environment=Environment(clock=world.monotonic, sleep=lambda _: None),
        )

    def gain(self, *queues: TopicPartition) -> None:
        self.leases.gained = dict.fromkeys(queues, 1)
        while self.engine.stats().partitions != queues:
            self.engine.turn()


def test_what_was_read_before_a_further_queue_is_taken_over_is_handled_first() -> None:
    world = World(connect=Busy)
    world.engine.start()
    world.gain(EARLY)

    # The next turn reads these, and takes the other queue over.
    for n in range(3):
        world.kafka.append(EARLY[0], b"%d" % n)
    world.leases.gained = {LATE: 2}
    for _ in range(TURNS):
        world.engine.turn()
    world.engine.close()

    written = [record.value() for record in world.kafka.records(EARLY[0])]
    assert [b"0", b"1", b"2", b"meanwhile"] == written[:4]
    assert written == [message.value for message in world.handled]
    assert len(written) == world.kafka.stored_offsets(GROUP)[EARLY].offset


def record_at(offset: int) -> MemoryRecord:
    """One record of the early queue."""
    return MemoryRecord(*EARLY, b"k", b"", None, log_offset=offset)


def test_records_that_others_overtook_are_refused_and_never_count_as_ended() -> None:
    owned = OwnedPartition(
        Lease(GROUP, *EARLY, token=1),
        PartitionQueue(topic=Start(0), replays=Start(0), settings=QueueSettings(), now_ms=0),
        route=routes_to(lambda *_: None)[EARLY[0]],
        tally=TopicCounts(),
        chunk_s=0.0,
        next_offsets={EARLY: 0, (replay_topic(GROUP, EARLY[0]), 0): 0},
    )
    intake = Ingest(group=GROUP, letters=None, now_ms=lambda: 0)  # type: ignore[arg-type]  # nobody asks it
    intake.add([record_at(6)], {EARLY: owned})

    with pytest.raises(RetriableError, match="early-0 was read at 2 after everything before 7"):
        intake.add([record_at(2), record_at(3)], {EARLY: owned})


class Shortened:
    """A cluster whose replay topic begins at 5."""

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 5)


@pytest.mark.promise("P9")
def test_that_nothing_is_known_of_requests_stays_so_when_retention_took_the_first_ones() -> None:
    """The group's progress was lost, and its first owner ended before it could look for answers."""
    place = (replay_topic(GROUP, "early"), 0)
    starts = starts_of(
        cast("Any", Shortened()), {place: StoredOffset(2, "")}, group=GROUP, replays=[place], start_at=None
    )

    assert {place: Start(5, NOTHING)} == starts
    assert starts[place].stored is NOTHING


@pytest.mark.promise("P9")
def test_requests_that_were_answered_before_retention_took_an_earlier_one_are_not_handled_again() -> None:
    place = (replay_topic(GROUP, "early"), 0)
    progress = Progress(2, ends_by_key=True, is_replay=True)
    progress.read(range(2, 9), [b"waits", b"a", b"a", b"b", b"b", b"waits", b"b"])
    progress.finish([3, 4, 5, 6, 8])
    progress.failed(7, started_ms=1_000)
    taken = progress.snapshot()

    starts = starts_of(
        cast("Any", Shortened()),
        {place: StoredOffset(taken.offset, taken.metadata)},
        group=GROUP,
        replays=[place],
        start_at=None,
    )
    successor = Progress(*starts[place], ends_by_key=True, is_replay=True)

    assert (2, 5) == (taken.offset, starts[place].offset)
    assert [7] == successor.read(range(5, 9), [b"b", b"b", b"waits", b"b"])
    assert Attempts(1, 1) == successor.attempts(7)
    assert (7, False) == successor.snapshot()[::2]


IN_FLIGHT_MAX = 50
RECORD_COUNT = 8 * READ_COUNT_MAX
WORKERS_OF_THREADS, WORKERS_WITHOUT_LIMIT = 10, 1_000_000


class Paused(Leases):
    """Held for a moment, then not any more: what was read stays, and no handler is called."""

    is_held = True

    def valid_until(self, queue: TopicPartition) -> float | None:
        return super().valid_until(queue) if self.is_held else 0.0


def world_of(leases: Paused, *, busy_count: int, **more: Any) -> World:
    """An engine at work, whose pool looks for so many keys."""
    world = World(leases=leases, in_flight_max=IN_FLIGHT_MAX, **more)
    world.pool.busy_count = busy_count
    world.engine.start()
    return world


@pytest.mark.parametrize(
    ("key_count", "busy_count"),
    [(int(IN_FLIGHT_MAX * FILLED_SHARE), WORKERS_WITHOUT_LIMIT), (WORKERS_OF_THREADS, WORKERS_OF_THREADS)],
    ids=["all but a few slots have a key", "every thread has a key"],
)
def test_who_has_enough_to_begin_does_not_read_on_for_keys_that_may_never_come(key_count: int, busy_count: int) -> None:
    leases = Paused()
    world = world_of(leases, busy_count=busy_count)
    keys: Sequence[bytes] = [b"%d" % n for n in range(key_count)]
    for n in range(RECORD_COUNT):
        world.kafka.append(EARLY[0], b"", key=keys[n % key_count])
    world.gain(EARLY)
    leases.is_held = False

    for _ in range(20):
        world.engine.turn()
    waiting = world.engine.stats().topics[EARLY[0]].waiting
    world.engine.close()

    assert 0 < waiting <= AHEAD_FACTOR * IN_FLIGHT_MAX + READ_COUNT_MAX + 20


@pytest.mark.promise("P9")
@pytest.mark.parametrize("why", ["suspended", "paused", "breaker"])
def test_many_messages_that_may_not_begin_hold_up_the_reading_of_no_other_partition(why: str) -> None:
    breakers = {EARLY[0]: BreakerPolicy(probe_interval_ms=1 << 40)}
    world = world_of(Paused(), busy_count=WORKERS_OF_THREADS, breakers=breakers)
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

    assert [LATE[0]] * 1_000 == [message.topic for message in world.handled]


@pytest.mark.parametrize(
    ("has_moved", "is_assigned", "is_over"),
    [(False, True, False), (True, True, True), (False, False, True), (True, False, True)],
)
def test_a_take_over_ends_when_the_group_moved_or_took_everything(
    *, has_moved: bool, is_assigned: bool, is_over: bool
) -> None:
    stub = SimpleNamespace(
        take_rebalance=lambda: has_moved, assignment=object() if is_assigned else None, _plan=SimpleNamespace(group="g")
    )
    assignments = cast("Assignments", stub)

    if is_over:
        with pytest.raises(MemberFencedError):
            Assignments.raise_if_rebalanced(assignments)
    else:
        Assignments.raise_if_rebalanced(assignments)
