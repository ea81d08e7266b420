"""One world with everybody in it: cluster, coordinators, producers, databases, onlookers. Never: choosing what happens."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tests.simulation.attendance import Attendance
from tests.simulation.background import SimulatedBackground
from tests.simulation.checked import policies_of
from tests.simulation.databases import BarrierCheck, Database
from tests.simulation.plan import LATE_TARGET, NAMESPACE, SMALL_TARGET, TARGETS, Answers, GroupPlan, Plan
from tests.simulation.processes import Process
from tests.simulation.stage import Stage
from tests.support.history import Absence, Sample
from tests.support.logs import Seen
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.memory import MemoryKafka, ThreadWorld
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.ports import StoredOffset
from txlayer.config import CoordinatorConfig, SystemTopics
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.recovery import check_policies
from txlayer.core import codec
from txlayer.core.messages import ROLLBACK, HalfHeader, Resolution
from txlayer.core.topics import CreateTopic
from txlayer.operate.topics import Drain, look
from txlayer.producer.engine import Engine, assemble
from txlayer.runtime.environment import Environment

if TYPE_CHECKING:
    from tests.simulation.memory import Memory

TOPICS = SystemTopics(NAMESPACE)
REAL_TOPICS = (*TARGETS, LATE_TARGET, SMALL_TARGET)
REAL_SETTINGS = {"message.timestamp.type": "LogAppendTime"}
SMALL_BYTES = "1500"

SESSION_S = 1.5
KAFKA_TRANSACTION_S = 2.0


_CARELESS = frozenset({Answers.NAIVE, Answers.TORN})
"""Their answers may contradict the database."""
_LONG_S = 100.0


def _same(connections: CoordinatorConnections) -> CoordinatorConnections:
    return connections


@dataclass(frozen=True, slots=True)
class Variant:
    """The coordinators, checks, producers and drains of a world: the real ones, or with one part replaced (guards.py)."""

    make: type[Coordinator] = Coordinator
    barrier: type[BarrierCheck] = BarrierCheck
    wrap: Callable[[CoordinatorConnections], CoordinatorConnections] = _same
    produce: Callable[..., Engine] = assemble
    look: Callable[..., Drain] = look
    settings: dict[str, Any] = field(default_factory=dict)


REAL = Variant()


@cache
def _creations(partition_count: int) -> list[CreateTopic]:
    kafka = MemoryKafka(ThreadWorld(seed=1))
    namespace = Namespace(kafka.admin(), topics=TOPICS)
    changes = namespace.plan(partition_count=partition_count, replication_factor=1)
    return [change for change in changes if isinstance(change, CreateTopic)]


@cache
def _checked_config(  # one argument per setting that differs
    doubt_after_s: float,
    hold_after_s: float,
    held_age_max_s: float,
    batch_lines_max: int,
    batch_moves_max: int,
    ahead_lines_max: int,
    content_bytes_max: int,
) -> CoordinatorConfig:
    return CoordinatorConfig(
        namespace=NAMESPACE,
        doubt_after=timedelta(seconds=doubt_after_s),
        hold_after=timedelta(seconds=hold_after_s),
        held_age_max=timedelta(seconds=held_age_max_s),
        batch_lines_max=batch_lines_max,
        batch_moves_max=batch_moves_max,
        ahead_lines_max=ahead_lines_max,
        content_bytes_max=content_bytes_max,
        kafka_transaction_timeout=timedelta(seconds=KAFKA_TRANSACTION_S),
        session_timeout=timedelta(seconds=SESSION_S),
        misplaced_after=timedelta(seconds=1),
        start_timeout=timedelta(seconds=5),
    )


class Society(Stage):
    """Everybody of one world."""

    def __init__(self, plan: Plan, *, variant: Variant = REAL) -> None:
        self.plan = plan
        self.variant = variant
        super().__init__(plan.seed, plan.settings, plan.faults)
        self.config = self._config()
        self.databases: dict[str, Resolution] = {}
        self.owners: dict[str, Process] = {}
        self.groups: dict[str, GroupPlan] = {}
        """Of the transactions that a group can be asked about."""
        self._tables: dict[str, Database] = {}
        self.contradicted: set[str] = set()
        self.acknowledged: list[tuple[str, int, int]] = []
        self.witnessed: list[Seen] = []
        self.samples: list[Sample] = []
        self.busy_producers: set[str] = set()
        self.coordinators: list[Coordinator] = []
        self.running: dict[str, Coordinator] = {}
        """By slot: the newest."""
        self.memory: Memory | None = None
        self._create_topics()
        self.check_partitions = len(self.kafka.cluster.topic(TOPICS.check).partitions)
        names = [group.name for group in plan.check_back.groups] if plan.check_back else []
        self.policies = check_policies(self._planned_config())
        self._attendance = Attendance(self.world, self.kafka, names, TOPICS)

    def _config(self) -> CoordinatorConfig:
        config = self._planned_config()
        return replace(config, **self.variant.settings) if self.variant.settings else config

    def _planned_config(self) -> CoordinatorConfig:
        settings = self.plan.settings
        config = _checked_config(
            settings.doubt_after_s,
            settings.hold_after_s,
            settings.held_age_max_s,
            settings.batch_lines_max,
            settings.batch_moves_max,
            settings.ahead_lines_max,
            settings.content_bytes_max,
        )
        check_back = self.plan.check_back
        if check_back is not None:
            config = replace(config, group_policies=policies_of(check_back.groups))
        return config

    def _create_topics(self) -> None:
        kafka, settings = self.kafka, self.plan.settings
        admin = kafka.admin(client="admin")
        count = settings.partition_count
        admin.create(_creations(count))
        places = [(topic, p) for topic in (TOPICS.half, TOPICS.op) for p in range(count)]
        admin.store_offsets(TOPICS.coordinator_group, {p: StoredOffset(0, "") for p in places})
        for topic in (*TARGETS, SMALL_TARGET):
            kafka.create_topic(topic, partitions=settings.target_partitions, settings=REAL_SETTINGS)

    # --- the script ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Everybody starts, and what is planned by time is on its way."""
        from tests.simulation.actors import ProducerProcess
        from tests.simulation.doors import turn
        from tests.simulation.people import Onlooker, act, write_garbage
        from tests.simulation.responders import ResponderProcess
        from tests.simulation.unkind import begin_unkindness

        world, plan = self.world, self.plan
        if plan.unkind is not None:
            begin_unkindness(self, plan.unkind)
        for number, at_s in enumerate(plan.coordinators):
            self.keep_running(f"c{number}", self._coordinator, after_s=at_s)
        for number, transactions in enumerate(plan.producers):
            ProducerProcess(self, number, transactions).start()
        if plan.check_back is not None:
            number = 0
            for group in plan.check_back.groups:
                for at_s in group.responders:
                    ResponderProcess(self, number, group).start(after_s=at_s)
                    number += 1
            for planned in plan.check_back.acts:
                world.after(planned.at_s, partial(act, self, planned))
        Onlooker(self).start()
        for garbage in plan.garbage:
            world.after(garbage.at_s, partial(write_garbage, self, garbage))
        self.plan_faults(plan.faults)
        for door in plan.doors:
            world.after(door.at_s, partial(turn, self, door))
        world.after(plan.settings.late_target_s, self._create_late_target)
        world.after(plan.settings.small_target_s, self._shrink_target)

    def heal(self) -> None:
        """No more faults, everybody alive."""
        self.heal_cluster(TARGETS)

    # --- check-back ---------------------------------------------------------------------------------------------------

    def group_of_producer(self, number: int) -> GroupPlan | None:
        """The group whose responders may be asked about its transactions."""
        check_back = self.plan.check_back
        return None if check_back is None else check_back.groups[check_back.membership[number]]

    def database_of(self, group: GroupPlan) -> Database:
        """The one that a group's producers and responders share."""
        return self._tables.setdefault(group.name, Database(self.world))

    def barrier_of(self, group: GroupPlan) -> BarrierCheck:
        """How its responders use the barrier."""
        database = self.database_of(group)
        return self.variant.barrier(database, self.world, failing_share=group.failing_share)

    def local(self, *, is_final: bool = False) -> dict[str, Resolution]:
        """What became of the local transactions; with `is_final` whoever wrote nothing into a barrier never will."""
        found = dict(self.databases)
        for key, group in self.groups.items():
            if group.answers is Answers.BARRIER:
                said = self.database_of(group).said_of(key)
                if said is not None or is_final:
                    found[key] = said or ROLLBACK
        return found

    def judged_local(self) -> dict[str, Resolution]:
        """The same of those with whom nobody disagreed who did not ask the database."""
        return {
            key: said
            for key, said in self.local().items()
            if key not in self.contradicted and (key not in self.groups or self.groups[key].answers not in _CARELESS)
        }

    def must_end(self) -> set[str]:
        """Keys that check-back brings to an end in a healed world: somebody answers, or the age ends it."""
        return {
            key for key, group in self.groups.items() if group.responders or group.age_max_s < _LONG_S
        } & self._halves()

    def _halves(self) -> set[str]:
        headers = (codec.half_header_of(r.headers()) for r in self.records(TOPICS.half))
        decoded = (codec.decode_half_header(header or b"") for header in headers)
        return {h.key for h in decoded if isinstance(h, HalfHeader) and not h.index}

    def look_who_answers(self) -> None:
        """Note which groups have members."""
        self._attendance.look()

    @property
    def absences(self) -> list[Absence]:
        """When which group surely had none."""
        return self._attendance.absences()

    # --- processes ----------------------------------------------------------------------------------------------------

    def _coordinator(self, process: Process) -> Callable[[], None]:
        world = self.world
        environment = Environment(
            clock=world.monotonic,
            wall_clock=world.wall_clock,
            sleep=world.pause,
            draw_name=lambda: f"{world.random.getrandbits(128):032x}",
            keep_for_long=_nothing,
            background=SimulatedBackground(world, process),  # type: ignore[arg-type]  # a list is a sequence of calls
        )
        connections = self.kafka.connect_coordinator(self.config, client=process.name)
        coordinator = self.variant.make(self.config, self.variant.wrap(connections), environment=environment)
        self.coordinators.append(coordinator)
        self.running[process.slot] = coordinator
        return lambda: coordinator.run(should_stop=lambda: process.is_stopping)

    # --- targets ------------------------------------------------------------------------------------------------------

    def _create_late_target(self) -> None:
        if not self._is_up(self._create_late_target):
            return
        self.kafka.create_topic(LATE_TARGET, settings=REAL_SETTINGS)
        self.world.note(LATE_TARGET, "created", "")
        self.world.acted("Produce")

    def _shrink_target(self) -> None:
        if self.plan.settings.small_target_s < self.plan.until_s and self._is_up(self._shrink_target):
            self.kafka.cluster.alter_topic(SMALL_TARGET, {"max.message.bytes": SMALL_BYTES})
            self.world.note(SMALL_TARGET, "shrinks", "")

    def _is_up(self, again: Callable[[], None]) -> bool:
        if not self.kafka.cluster.is_up:
            self.world.after(0.3, again)
        return self.kafka.cluster.is_up


def _nothing() -> None:
    pass
