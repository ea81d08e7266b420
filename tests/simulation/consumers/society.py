"""One world of consumers with everybody in it: cluster, consumers, operators, who sends. Never: choosing what happens."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, cast

from tests.simulation.background import SimulatedBackground
from tests.simulation.consumers.handling import FencedTable, Handling, SimulatedPool
from tests.simulation.consumers.plan import (
    GROUP,
    HEARERS,
    NAMESPACE,
    OWN_TAG,
    ConsumerPlan,
    ConsumerSettings,
    PlannedMessage,
)
from tests.simulation.consumers.stores import Unhurried
from tests.simulation.processes import Process
from tests.simulation.stage import Stage
from tests.simulation.world import START_MS
from tests.support.consumer_history import BreakerTimes, Effect, HandlerCall, Learned, Stored
from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.lock_log import LockEntry
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import ConsumerConfig, SystemTopics, milliseconds
from txlayer.consumer import plan as consumer_plan
from txlayer.consumer.context import ReceivedMessage
from txlayer.consumer.engine import Engine
from txlayer.consumer.handlers import HandlerSet, Route
from txlayer.consumer.lease_keeper import LeaseKeeper, LockRegistry, NoLeases
from txlayer.consumer.offsets import OwnedPartition
from txlayer.consumer.pools import Caller, Chunk, HungHandlers, Job, JobOutcome, items_of
from txlayer.consumer.pull import Desk
from txlayer.core.dead_letters import DeadLetter
from txlayer.core.retry import AfterExhausted, Breaker, RetryPolicy
from txlayer.runtime.environment import Environment

SYSTEM_TOPICS = SystemTopics(NAMESPACE)
SESSION_S = 1.5
KAFKA_TRANSACTION_S = 2.0
STORE_TIMEOUT_S = 2.0
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
LOCK_PARTITIONS = 2
HUNG_MAX = 16
GIVE_BACK_S = 1.0
"""A program that closes its consumer gives back at once what it has not answered."""
LATER_MAX_MS = 1_000
"""In worlds with breakers, so that messages which always fail come to their end there, too."""
_DAY_MS = 86_400_000


def _same(connections: ConsumerConnections) -> ConsumerConnections:
    return connections


def _never(_worker: object) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ConsumerVariant:
    """The consumers of a world: the real ones, or with one part replaced (guards.py)."""

    engine: type[Engine] = Engine
    registry: type[LockRegistry] = LockRegistry
    caller: type[Caller] = Caller
    table: type[FencedTable] = FencedTable
    hung: type[HungHandlers] = HungHandlers
    desk: type[Desk] = Desk
    wrap: Callable[[ConsumerConnections], ConsumerConnections] = _same
    settings: dict[str, Any] = field(default_factory=dict)


REAL = ConsumerVariant()


@cache
def _config(settings: ConsumerSettings) -> ConsumerConfig:
    return ConsumerConfig(
        namespace=NAMESPACE,
        in_flight_max=settings.in_flight_max,
        worker_count=settings.worker_count,
        record_count_max=settings.record_count_max,
        attempt_timeout=timedelta(seconds=settings.attempt_timeout_s),
        store_interval=timedelta(seconds=settings.store_interval_s),
        store_timeout=timedelta(seconds=STORE_TIMEOUT_S),
        metadata_bytes_max=settings.metadata_bytes_max,
        parked_keys_max=settings.parked_keys_max,
        revoke_timeout=timedelta(seconds=settings.revoke_timeout_s),
        close_timeout=timedelta(seconds=2),
        session_timeout=timedelta(seconds=SESSION_S),
        lease_renewal=timedelta(seconds=settings.lease_expiry_s / 3),
        lease_expiry=timedelta(seconds=settings.lease_expiry_s),
        kafka_transaction_timeout=timedelta(seconds=KAFKA_TRANSACTION_S),
        start_timeout=timedelta(seconds=5),
    )


class Crew:
    """One consumer group of a world, and what is known of it."""

    def __init__(self, group: str, topics: tuple[str, ...], *, begins_behind: Mapping[TopicPartition, int]) -> None:
        self.group = group
        self.topics = topics
        self.begins_behind = begins_behind
        """It may handle nothing before."""
        self.is_over = False
        """It ended with its process, and so did its place."""
        self.own: Mapping[TopicPartition, StoredOffset] | None = None
        """What it has stored if it stores nothing on the broker."""
        self.calls: list[HandlerCall] = []
        self.effects: list[Effect] = []
        self.learned: list[Learned] = []
        self.stored: list[Stored] = []
        self.holders: dict[str, str] = {}
        self.last_stored: dict[TopicPartition, StoredOffset] = {}

    @property
    def hears(self) -> bool:
        """Of dead letters."""
        return self.group == HEARERS


class ConsumerSociety(Stage):
    """Everybody of one world of consumers."""

    def __init__(self, plan: ConsumerPlan, *, variant: ConsumerVariant = REAL) -> None:
        super().__init__(plan.seed, plan.settings, plan.faults)
        self.plan = plan
        self.variant = variant
        self.config = replace(_config(plan.settings), **variant.settings)
        self.table = variant.table()
        self.crews: dict[str, Crew] = {}
        """By group."""
        self.engines: list[Engine] = []
        self._number = 0
        self._tenures: dict[int, tuple[OwnedPartition, int]] = {}  # kept, so that no id is another's
        self._deaths: set[tuple[str, int, int]] = set()
        self._failed_replays: dict[tuple[str, int, int], set[int]] = {}
        self._create_topics()
        self.world.on_act = self.look_at_offsets

    def _create_topics(self) -> None:
        for topic in self.plan.all_topics:
            count = LOCK_PARTITIONS if topic == SYSTEM_TOPICS.locks else self.plan.settings.partition_count
            self.kafka.create_topic(topic, partitions=count, settings=APPEND_TIME)

    # --- the script ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Everybody starts, and what is planned by time is on its way."""
        from tests.simulation.consumers.people import Feeder, ask
        from tests.simulation.consumers.unkind import begin_unkindness

        if self.plan.unkind is not None:
            begin_unkindness(self, self.plan.unkind)
        for name, starts in (("c", self.plan.consumers), ("h", self.plan.hearers)):
            for number, at_s in enumerate(starts):
                self.keep_running(f"{name}{number}", self._consumer, after_s=at_s)
        Feeder(self).start()
        for request in self.plan.requests:
            self.world.after(request.at_s, partial(ask, self, request))
        self.plan_faults(self.plan.faults)

    def heal(self) -> None:
        """No more faults, everybody alive, and operators who end what waits for one."""
        from tests.simulation.consumers.people import Closer

        self.heal_cluster(self.plan.all_topics)
        Closer(self).begin()

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> float:
        """The brokers' clock, finer than the brokers have it."""
        return START_MS + self.world.now * 1000

    def next_number(self) -> int:
        """One that nobody had."""
        self._number += 1
        return self._number

    def tenure(self, owned: OwnedPartition) -> int:
        """The number of a queue from its take-over until it is given up."""
        return self._tenures.setdefault(id(owned), (owned, self.next_number()))[1]

    def planned(self, message: ReceivedMessage) -> PlannedMessage:
        """What the plan says of a message."""
        return self.plan.messages[int(message.raw_value or b"0")]

    def die_once(self, topic: str, partition: int, offset: int) -> None:
        """The process of this handler ends here, the first time."""
        if (topic, partition, offset) not in self._deaths and not self.is_healing:
            self._deaths.add((topic, partition, offset))
            self.world.happened["dies in a handler"] += 1
            self.world.die(away_s=0.3)

    def calls_of(self, chunk: Chunk, job: Job) -> Iterator[HandlerCall]:
        """The newest call of each message of a job."""
        tenure = self.tenure(chunk.owner)
        for item in items_of(job):
            request_offset = item.offset if item.is_replay else None
            for call in reversed(self.crews[chunk.lease.group].calls):
                place = call.tenure, call.offset, call.request_offset
                if place == (tenure, item.record.offset(), request_offset):
                    yield call
                    break

    def gave_up(self, chunk: Chunk, job: Job) -> None:
        """The handler of this job was given up: its attempt has failed, whatever it says later."""
        for call in self.calls_of(chunk, job):
            call.given_up_ms = self.now_ms
        self.world.happened["handler given up"] += 1

    def is_away(self, topic: str) -> bool:
        """True while what the handlers of a topic need is away."""
        now, outages = self.world.now, self.plan.outages
        is_so = any(each.topic == topic and each.at_s <= now < each.at_s + each.seconds for each in outages)
        return is_so and not self.is_healing

    def _watched(self, breaker: Breaker) -> BreakerTimes:
        """When it opens and closes from now on."""
        times = BreakerTimes(LATER_MAX_MS)

        def noted(call: Callable[..., None]) -> Callable[..., None]:
            def run(**given: Any) -> None:
                was_closed = breaker.is_closed
                call(**given)
                if was_closed is not breaker.is_closed:
                    times.changes.append((self.now_ms, was_closed))
                    self.world.happened["breaker opens"] += was_closed

            return run

        watched: Any = breaker
        watched.ended, watched.probed = noted(breaker.ended), noted(breaker.probed)
        return times

    def is_replay_failing(self, call: HandlerCall, plan: PlannedMessage) -> bool:
        """So many replays of a message fail; none does in a healed world."""
        assert call.request_offset is not None
        if self.is_healing:
            return False
        failed = self._failed_replays.setdefault((call.topic, call.partition, call.offset), set())
        if call.request_offset not in failed and len(failed) >= plan.replay_failing_count:
            return False
        failed.add(call.request_offset)
        return True

    def look_at_offsets(self) -> None:
        """Note what the group has stored, also where a marker of a Kafka transaction that is decided is still on its way."""
        for crew in self.crews.values():
            found = self.stored_now(crew)
            for place, stored in found.items():
                if crew.last_stored.get(place) != stored:
                    crew.stored.append(Stored(self.now_ms, place, stored))
            crew.last_stored = found

    def stored_now(self, crew: Crew) -> dict[TopicPartition, StoredOffset]:
        """The newest append of each place wins."""
        if crew.own is not None:
            return dict(crew.own)
        cluster = self.kafka.cluster
        group = cluster.group(crew.group)
        found = dict(group.stored)
        if group.pending:
            decided = {t.producer_id for _, t, _ in cluster.markers if t.is_commit}
            for producer_id in decided & group.pending.keys():
                for place, entry in group.pending[producer_id].items():
                    if place not in found or found[place][0] < entry[0]:
                        found[place] = entry
        return {place: stored for place, (_, stored) in found.items()}

    # --- consumers ----------------------------------------------------------------------------------------------------

    def _crew(self, process: Process) -> Crew:
        """The group of a process."""
        plan, settings, begins_behind = self.plan, self.plan.settings, {}
        group, topics = GROUP, plan.topics
        if process.slot.startswith("h"):
            group, topics = HEARERS, plan.heard_topics
        elif settings.is_broadcast:
            group = f"{GROUP}.{process.slot if settings.keeps_position else process.name}"
            if settings.start_at == "latest":
                partitions = self.kafka.cluster.partitions
                begins_behind = {place: p.last_stable_offset for place, p in partitions.items()}
        return self.crews.setdefault(group, Crew(group, topics, begins_behind=begins_behind))

    def _consumer(self, process: Process) -> Callable[[], None]:
        world, crew = self.world, self._crew(process)
        desk = None if crew.hears or not self.plan.settings.taker_count else self.variant.desk()
        engine = self._engine(process, crew, desk)
        self.engines.append(engine)
        if not self.plan.settings.keeps_position:
            crew.own, keep = engine._storer.own, engine._storer._keep

            def kept(*stored: Any) -> None:
                keep(*stored)
                self.look_at_offsets()

            engine._storer._keep = kept  # type: ignore[assignment,method-assign]  # this one alone
            for other in self.crews.values():
                other.is_over |= other.group.startswith(f"{GROUP}.{process.slot}.") and other is not crew
        drain = engine._drain

        def watched_drain(timeout_s: float, **named: Any) -> None:
            began_at = world.now
            drain(timeout_s, **named)
            if desk is not None and desk._is_closed and self.plan.is_calm and world.now > began_at + GIVE_BACK_S:
                world.failures.append(
                    f"{process.name}: what was not answered was given back after {world.now - began_at}"
                )

        def should_stop() -> bool:
            if process.is_stopping and desk is not None and self.plan.settings.closes_at_once:
                desk.close()
            return process.is_stopping

        engine._drain = watched_drain  # type: ignore[method-assign]  # this one alone
        return lambda: engine.run(should_stop=should_stop)

    def _engine(self, process: Process, crew: Crew, desk: Desk | None) -> Engine:
        world, settings, variant = self.world, self.plan.settings, self.variant
        plain = self.kafka.connect_consumer(self.config, client=process.name)
        # A client is told of an end with the next fetch, and may be gone before: in half of the worlds none ever is.
        unhurried = Unhurried(plain, world, tells_end=bool(self.plan.seed % 2))
        connections = variant.wrap(cast("ConsumerConnections", unhurried))
        pool = SimulatedPool(
            self,
            process,
            worker_count=settings.worker_count,
            attempt_timeout_s=settings.attempt_timeout_s,
            hung=variant.hung(count_max=HUNG_MAX),
            is_idle=_never if desk is None else desk.is_idle,
        )
        policy = RetryPolicy(
            attempt_count_max=settings.attempt_count_max,
            backoff_first_ms=int(settings.backoff_s * 1000),
            backoff_max_ms=1_000,
            after_exhausted=AfterExhausted.GO_ON if crew.hears else settings.after_exhausted,
            later_max_ms=_DAY_MS if settings.breaker is None else LATER_MAX_MS,
        )
        handling = Handling(self, crew, process, pool)
        routes = self._routes(handling, crew, desk, policy)
        caller = variant.caller(
            routes, attempt_timeout_s=settings.attempt_timeout_s, clock=world.monotonic, wall_clock=world.wall_clock
        )

        def run(chunk: Chunk) -> JobOutcome:
            return caller.run(chunk)

        pool.serve(run)
        engine = variant.engine(
            self.config,
            consumer_plan.ConsumerPlan(
                group=crew.group,
                topics=crew.topics,
                routes=routes,
                order=settings.order,
                null_keys=settings.null_keys,
                start_at=settings.start_at,
                policy=policy,
                is_broadcast=settings.is_broadcast,
                keeps_position=settings.keeps_position,
                breakers={} if settings.breaker is None else dict.fromkeys(crew.topics, settings.breaker),
                desk=desk,
            ),
            connections=connections,
            pool=pool,
            make_leases=partial(self._leases, process, crew, connections),
            environment=Environment(
                clock=world.monotonic,
                wall_clock=world.wall_clock,
                sleep=world.pause,
                draw=world.random.random,
                draw_name=lambda: f"{world.random.getrandbits(64):016x}",
                background=SimulatedBackground(world, process),  # type: ignore[arg-type]  # a list is a sequence of calls
            ),
        )
        pool.breakers = self._watched_of(engine, crew)
        if desk is not None:
            for _ in range(settings.taker_count):
                world.begin_in_background(
                    process, partial(handling.take_messages, desk, has_ended=lambda: engine._is_ending)
                )
        return engine

    def _routes(self, handling: Handling, crew: Crew, desk: Desk | None, policy: RetryPolicy) -> dict[str, Route]:
        settings, handlers = self.plan.settings, HandlerSet(is_async=False)
        if crew.hears:
            heard = self.plan.heard_group
            handlers.add(handling.hear, topics=(), tags="*", retry=policy, body=DeadLetter, producer_group=heard)
            return handlers.routes(crew.topics)
        if desk is not None:
            handing: Any = handling.handing_over(desk)
            handlers.add(handing, topics=(), tags="*", retry=policy)
            return handlers.routes(crew.topics)
        if settings.has_own_breaker:
            handlers.add(handling.handle, topics=(), tags=OWN_TAG.decode(), retry=policy, breaker=settings.breaker)
        handlers.add(
            handling.handle_batch if settings.batch_count_max else handling.handle,
            topics=(),
            tags="*",
            retry=policy,
            batch_count_max=settings.batch_count_max,
        )
        return handlers.routes(crew.topics)

    def _watched_of(self, engine: Engine, crew: Crew) -> dict[tuple[str, bool], BreakerTimes]:
        """The times of the breakers of an engine, as its pool keeps them."""
        breakers = engine._dispatcher.breakers
        found_in = {topic: found for topic in crew.topics if (found := breakers.of_topic(topic))}
        watched = {b: self._watched(b) for b in dict.fromkeys(b for found in found_in.values() for b in found)}
        return {
            (topic, is_own): watched[found[0 if is_own else -1]]
            for topic, found in found_in.items()
            for is_own in (True, False)
        }

    def _leases(self, process: Process, crew: Crew, connections: ConsumerConnections) -> LeaseKeeper:
        if not self.plan.settings.is_leased:
            return NoLeases()
        holder = f"{process.name}/{self.next_number()}"
        crew.holders[holder] = process.name
        society = self

        class Watched(self.variant.registry):  # type: ignore[name-defined,misc]  # whichever it is
            """Tells what it has read."""

            def _fold(self, entry: LockEntry) -> None:
                crew.learned.append(Learned(society.now_ms, process.name, entry.partition, entry.offset))
                super()._fold(entry)

        return Watched(
            connections,
            group=crew.group,
            holder=holder,
            topics=SYSTEM_TOPICS,
            lease_renewal_ms=milliseconds(self.config.lease_renewal),
            lease_expiry_ms=milliseconds(self.config.lease_expiry),
            clock=self.world.monotonic,
        )

    @property
    def figures(self) -> Counter[str]:
        """What the engines counted."""
        return Counter(
            {
                "consumers rebuilt": sum(engine.rebuild_count for engine in self.engines),
                "stale results": sum(engine._dispatcher.stale_count for engine in self.engines),
            }
        )
