"""Producer processes with their databases: the real engine, steps and pipeline, on one greenlet. Never: their threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.databases import LOOK_S, BarrierCheck, Database
from tests.simulation.people import GROUP, say_line, settle
from tests.simulation.plan import NAMESPACE, SMALL_TARGET, Answers, End, PlannedTransaction
from tests.simulation.processes import Process
from txlayer.adapters.ports import TopicLimits
from txlayer.config import ProducerConfig
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, Resolution
from txlayer.errors import NotAcceptingError, TxLayerError
from txlayer.producer import steps
from txlayer.producer.engine import Engine, OffsetLookup, look_at_entry
from txlayer.producer.identity import Entry
from txlayer.producer.pipeline import OpQueue, PendingTransaction
from txlayer.producer.waiting import Blocking

if TYPE_CHECKING:
    from tests.simulation.society import Society

SERVE_S = 1.0
"""A producer process that has nothing to do looks up this often."""
ENTRY_S = 0.3
"""So often it asks whether the namespace accepts transactions, and tries one again that was refused."""


CONFIG = ProducerConfig(
    namespace=NAMESPACE, in_flight_max=3, prepare_timeout=timedelta(seconds=2), start_timeout=timedelta(seconds=2)
)


class Pause(NamedTuple):
    """A local transaction takes its time."""

    seconds: float


class Life:
    """One transaction of a producer process, under way."""

    __slots__ = ("due_at", "is_over", "steps")

    def __init__(self, life: Generator[Any, Any, None]) -> None:
        self.steps = life
        self.due_at = 0.0
        self.is_over = False

    def wake(self) -> None:
        """What it waits for may have come."""
        self.due_at = 0.0

    def advance(self, now: float) -> None:
        """Go on until it waits."""
        answer: Any = None
        try:
            while True:
                wish = self.steps.send(answer)
                answer = None
                self.due_at = float("inf")
                while isinstance(wish, Blocking):
                    try:
                        answer = wish.call()
                    except TxLayerError as exc:
                        wish = self.steps.throw(exc)
                    else:
                        wish = self.steps.send(answer)
                        answer = None
                if isinstance(wish, Pause):
                    self.due_at = now + wish.seconds
                    return
                if wish(self.wake):
                    return
        except StopIteration:
            self.is_over = True


class ProducerProcess:
    """The real engine, steps and pipeline of a producer, driven by one greenlet; and the user's database."""

    def __init__(self, society: Society, number: int, transactions: tuple[PlannedTransaction, ...]) -> None:
        self._society = society
        self._world = society.world
        self._slot = f"p{number}"
        self._group = society.group_of_producer(number)
        self._database: Database | None = None
        if self._group is not None and self._group.answers is Answers.BARRIER:
            self._database = society.database_of(self._group)
        self._todo = deque(transactions)
        self._begun: dict[str, PlannedTransaction] = {}
        self._attempt = 0
        self._ask: Callable[[], TopicLimits | None]
        self._knows_closed = False
        """By the last answer, whatever the engine makes of it."""
        self._process = Process("", "")
        self._engine: Engine

    def start(self, *, after_s: float = 0.0) -> None:
        """A new incarnation."""
        self._society.busy_producers.add(self._slot)
        self._process = self._society.new_process(self._slot)
        self._process.on_death = self._on_death
        self._world.start(self._process, self._run, after_s=after_s)

    def _on_death(self, away_s: float) -> None:
        self.start(after_s=0.0 if self._society.is_healing else away_s)

    def _run(self) -> None:
        try:
            self._produce()
            self._society.busy_producers.discard(self._slot)
        except TxLayerError as exc:
            self._world.note(self._process.name, "ends", str(exc))
            if not self._process.is_dead:
                self._process.on_death = None
                self.start(after_s=0.5)

    def _produce(self) -> None:
        society, world = self._society, self._world
        config = CONFIG
        connections = society.kafka.connect_producer(config, client=self._process.name)
        topics = config.topics
        half, op = connections.topic_limits(topics.half), connections.topic_limits(topics.op)
        assert half is not None
        assert op is not None
        self._engine = engine = society.variant.produce(
            config, connections, half, op, serializer=None, group=GROUP if self._group is None else self._group.name
        )
        engine.pipeline.offset_lookup = OffsetLookup(
            connections.history,
            post=engine.pipeline.post,
            patience_s=-1.0,
            start=lambda look: look(),
            clock=lambda: world.now,
        )
        if society.plan.doors:
            self._ask = partial(connections.topic_limits, topics.half)
            engine.hear_closed(half.closed_at_ms)
            self._knows_closed = half.closed_at_ms is not None
            world.begin_in_background(self._process, partial(self._watch_entry, engine))
        # What a message for them needs is known from before: they came late, or shrank.
        engine.encoder.learn("late", TopicLimits(1, None))
        target_partitions = society.plan.settings.target_partitions
        engine.encoder.learn(SMALL_TARGET, TopicLimits(target_partitions, None))
        self._ask_what_became_of_the_others()
        lives: list[Life] = []
        while self._todo or lives or engine.pipeline.in_flight_count:
            now = world.now
            while self._todo and self._todo[0].at_s <= now:
                lives.append(Life(self._live(self._todo.popleft())))
            for life in lives:
                if life.due_at <= now:
                    life.advance(now)
            lives = [life for life in lives if not life.is_over]
            due = [life.due_at for life in lives] + [t.at_s for t in list(self._todo)[:1]]
            timeout_s = min([*due, now + SERVE_S]) - world.now
            engine.pipeline.serve(max(timeout_s, 0.001))
            fatal = engine.pipeline._writer.failure()
            if fatal is not None:
                raise fatal

    def _watch_entry(self, engine: Engine) -> None:
        while True:
            self._world.pause(ENTRY_S)
            look_at_entry(self._limits, engine.hear_half)

    def _limits(self) -> TopicLimits | None:
        """What the broker says, which is known from then on."""
        limits = self._ask()
        self._knows_closed = limits is not None and limits.closed_at_ms is not None
        return limits

    # --- one transaction ----------------------------------------------------------------------------------------------

    def _live(self, planned: PlannedTransaction) -> Generator[Any, Any, None]:
        engine, society, databases = self._engine, self._society, self._society.databases
        key = self._begin(planned)
        entry = yield from self._enter(planned, key)
        messages = _messages(planned, key, now_s=self._world.now_ms() / 1000)
        try:
            txn = yield from steps.launch(engine, self._make_flight, messages, entry, key)
            if planned.end is End.SENT:
                self._die_soon()
            yield from steps.stored(engine, txn)
        except TxLayerError as exc:
            self._world.note(self._process.name, "gives up", f"{key}: {type(exc).__name__}")
            if self._database is None:
                databases[key] = ROLLBACK
            return
        partition = txn.half_partition
        society.acknowledged.append((society.config.topics.half, partition, txn.last_half_offset))
        self._world.note(self._process.name, "prepared", f"{key} at {partition}:{txn.last_half_offset}")
        self._others_say(planned, key, partition, txn.last_half_offset)
        if planned.end is End.PREPARED:
            self._world.die(away_s=0.5)
        if self._database is None:
            said = yield from self._work(planned, key)
        else:
            said = yield from self._work_with_barrier(self._database, planned, key)
        if said is None:
            return
        if planned.end is End.LOCAL:
            self._world.die(away_s=0.5)
        if planned.is_silent:
            steps.resolve(engine, txn, UNKNOWN)
            return
        steps.resolve(engine, txn, said)
        if planned.end is End.RESOLVED:
            self._world.die(away_s=0.5)
        try:
            result = yield from steps.result(engine, txn)
        except TxLayerError:
            return
        if result.op_offset >= 0:  # else nobody told where it is
            society.acknowledged.append((society.config.topics.op, partition, result.op_offset))
        self._world.note(self._process.name, said.name, f"{key} at op {result.op_offset}")
        if planned.end is End.SAID:
            self._world.die(away_s=0.5)

    def _enter(self, planned: PlannedTransaction, key: str) -> Generator[Any, Any, Entry]:
        """Its options, as soon as the namespace accepts it."""
        immunity = None if planned.immunity_s is None else timedelta(seconds=planned.immunity_s)
        entry: Entry | None = None
        while entry is None:
            try:
                entry = self._engine.enter(
                    ordering_key=planned.ordering_key,
                    order=planned.order,
                    immunity=immunity,
                    unresolved=planned.unresolved,
                    check_with=planned.check_with,
                    query_id=f"{key} of {planned.txn_id}" if "query_id" in planned.check_with else None,
                )
            except NotAcceptingError:
                self._world.happened["not accepted"] += 1
                yield Pause(ENTRY_S)
        if self._knows_closed:
            self._world.failures.append(f"{self._process.name}: enters {key}, and knows that the namespace is closed")
        return entry

    def _work(self, planned: PlannedTransaction, key: str) -> Generator[Any, Any, Resolution | None]:
        """The local transaction; None: it is over already."""
        if planned.end is End.BEGUN:
            self._world.die(away_s=0.5)
        if planned.work_s:
            yield Pause(planned.work_s)
        if self._society.databases.setdefault(key, planned.local) is not planned.local:
            return None  # somebody said rollback while this process slept
        return planned.local

    def _work_with_barrier(
        self, database: Database, planned: PlannedTransaction, key: str
    ) -> Generator[Any, Any, Resolution | None]:
        """The local transaction, whose first statement writes the row; UNKNOWN when the row does not tell either."""
        while database.is_held(planned.txn_id):
            yield Pause(LOOK_S)
        if database.said_of(key) is not None:
            return ROLLBACK  # whoever came before, this attempt may not commit any more
        row = database.insert(key, COMMIT, self._process)
        if planned.end is End.BEGUN:
            self._world.die(away_s=0.5)
        if planned.work_s:
            yield Pause(planned.work_s)
        if planned.local is ROLLBACK:
            database.roll_back(row)
            return ROLLBACK
        is_lost = planned.is_unclear and self._world.random.random() < 0.5
        if not is_lost and database.commit(row) and not planned.is_unclear:
            return COMMIT
        # The connection broke in the commit, which happened or not; or the database had ended the transaction.
        if is_lost:
            database.roll_back(row)
        resolution: Resolution = yield Blocking(partial(self._read_back, database, key))
        return resolution

    def _read_back(self, database: Database, key: str) -> Resolution:
        check = BarrierCheck(database, self._world, failing_share=0.1)
        return check.resolve(key, self._process)

    def _die_soon(self) -> None:
        world, process = self._world, self._process
        after_s = world.random.random() * 4 * self._society.plan.settings.latency_s
        world.after(after_s, partial(world.kill, process, away_s=0.5))

    def _begin(self, planned: PlannedTransaction) -> str:
        """The key of another attempt."""
        society = self._society
        self._attempt += 1
        key = f"{planned.txn_id}/{self._attempt:08x}"
        self._begun[key] = planned
        society.owners[key] = self._process
        if self._group is not None:
            society.groups[key] = self._group
        return key

    def _make_flight(self, queue: OpQueue, key: str, _born_ms: int, count: int) -> PendingTransaction:
        return PendingTransaction(queue, key, int(self._world.wall_clock() * 1000), count)

    def _others_say(self, planned: PlannedTransaction, key: str, partition: int, last_offset: int) -> None:
        for line in planned.lines:
            if line.resolution is not UNKNOWN:  # whoever says it does not ask the database
                self._society.contradicted.add(key)
            say = partial(say_line, self._society, key, partition, last_offset, line)
            self._world.after(line.after_s, say)

    def _ask_what_became_of_the_others(self) -> None:
        """A process that comes back tells of some of those that it left behind; of the others nobody says anything."""
        databases, dice = self._society.databases, self._world.random
        for key, planned in self._begun.items():
            if planned.is_retried and planned.end is not None:
                self._todo.appendleft(replace(planned, end=None, at_s=self._world.now))
            if self._database is not None:
                continue  # its rows tell
            # Whatever has not been written into the database by now never will be.
            local = databases.setdefault(key, ROLLBACK)
            if self._group is not None:
                continue
            if planned.end is not None and dice.random() < 0.5:
                self._world.after(0.05, partial(settle, self._society, key, local))
        self._begun.clear()


def _messages(planned: PlannedTransaction, key: str, *, now_s: float) -> list[Message]:
    """Its messages; those with a time count it from `now_s`, by the clock of the brokers."""
    made = [
        Message(topic, (planned.ordering_key or planned.txn_id) if has_key else None, f"{key}#{index}".ljust(size, "x"))
        for index, (topic, size, has_key) in enumerate(planned.messages)
    ]
    for index, delay_s in enumerate(planned.delays_s):
        if delay_s is not None:
            made[index] = made[index]._replace(deliver_at=datetime.fromtimestamp(now_s + delay_s, UTC))
    return made
