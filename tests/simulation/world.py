"""A world under one seed: time, dice, and who runs when. Never: a rule of Kafka or of txlayer.

Each process is a few greenlets. One runs until it waits or asks the cluster something; then the next event in time goes
on. A request is an event of its own, so it arrives whatever becomes of its client.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.network import Call, Network, Raised
from tests.simulation.plan import Fault
from tests.simulation.processes import Actor, Process
from txlayer.adapters.memory import ClientCrashedError, MemoryKafka
from txlayer.adapters.memory.log import MemoryRecord, Partition

T = TypeVar("T")

START_MS = 1_700_000_000_000
"""The brokers' clock when a world begins."""

EVENT_COUNT_MAX = 40_000
"""A world with more events never comes to rest."""

FREE_CALLS_MAX = 20
"""Calls without a wait after which the process loses its turn: no loop holds the world still."""

LATE_S_MAX = 0.15
"""Longer waits end when they should: a busy machine is late by so much."""

HEALED_LATENESS = 6.0
"""Who only waits for the end looks less often."""

CHANGING = frozenset({"Produce", "EndTxn", "InitProducerId", "JoinGroup", "LeaveGroup", "OffsetCommit"})
"""Requests after which somebody who waits may go on."""


class EndlessError(AssertionError):
    """The world does not come to rest."""


Event = tuple[float, int, Callable[[Any], None], Any]


class SimulatedWorld:
    """Implements `World` of the cluster in memory."""

    def __init__(
        self, seed: int, *, latency_s: float, slow_share: float, lateness: float, faults: tuple[Fault, ...]
    ) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.step_count = 0
        self.event_count = 0
        self.busy_count = 0
        """How often somebody had to be made to wait."""
        self.trace: list[tuple[float, str, str, str]] = []
        self.happened: Counter[str] = Counter()
        self.failures: list[str] = []
        self.on_act: Callable[[], None] | None = None
        self.on_join: Callable[[], None] | None = None
        self.processes: dict[str, Process] = {}
        self._nobody = Actor(Process("", "nobody"))
        self._current = self._nobody
        self._lateness = lateness
        self._events: list[Event] = []
        self._numbers = count()
        self._waiting: dict[Actor, None] = {}
        self._hub = getcurrent()
        self._kafka: MemoryKafka | None = None
        self._due_at = float("inf")
        self.network = Network(self, latency_s=latency_s, slow_share=slow_share, faults=faults)

    def attach(self, kafka: MemoryKafka) -> None:
        """The cluster whose time this is."""
        self._kafka = kafka

    # --- the port -----------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The brokers' clock."""
        return START_MS + int(self.now * 1000)

    def monotonic(self) -> float:
        """The clock of whoever runs now."""
        return self.now * self._current.process.rate

    def wall_clock(self) -> float:
        """The wall clock of whoever runs now, right or wrong."""
        return START_MS / 1000 + self.now + self._current.process.wall_skew_s

    def wait(self, is_ready: Callable[[], bool], *, timeout_s: float) -> bool:
        """Let others run until `is_ready()` or until `timeout_s` are over."""
        actor = self._current
        if actor is self._nobody:
            return is_ready()
        process = actor.process
        if process.is_dead:
            raise ClientCrashedError(process.name)
        actor.free_calls += 1
        is_free = actor.free_calls < FREE_CALLS_MAX
        if is_free and is_ready():
            return True
        if timeout_s <= 0:
            if not is_free:
                self.busy_count += 1
                self._pause(actor, 0.001)
            return is_ready()
        late = 1.0 if timeout_s > LATE_S_MAX else 1.0 + self._lateness * self.random.random()
        deadline = self.now + timeout_s * late / process.rate
        tick_s = 0.05
        while True:
            actor.is_ready = is_ready
            self._waiting[actor] = None
            self._wake_at(min(deadline, self.now + tick_s) if timeout_s > 0.2 else deadline, actor)
            self._suspend(actor)
            if is_ready():
                return True
            if self.now >= deadline:
                return False
            tick_s = min(tick_s * 2, 0.4)

    def exchange(self, client: str, request: str, act: Callable[[], T]) -> T:
        """One request, with the faults that are planned for it."""
        actor = self._current
        if actor is self._nobody:
            return act()
        process = actor.process
        if process.is_dead:
            raise ClientCrashedError(client)
        self.step_count += 1
        actor.token += 1
        self.network.send(Call(actor, request, act), process)
        outcome: Any = self._suspend(actor)
        if isinstance(outcome, Raised):
            raise outcome.error
        return outcome  # type: ignore[no-any-return]  # what `act` returned

    def change(self, act: Callable[[], T]) -> T:
        """Do it at once."""
        return act()

    def is_running(self, client: str) -> bool:
        """True while its heartbeats arrive."""
        process = self.processes.get(client)
        if process is None:
            return True
        return (
            not process.is_dead
            and (process.frozen_until <= self.now or process.is_beating)
            and not self.network.is_cut(process.slot)
        )

    # --- the cluster --------------------------------------------------------------------------------------------------

    def answer(self, actor: Actor, outcome: Any, *, after_s: float) -> None:
        """The answer to what an actor waits for is under way."""
        self.push(self.now + after_s, self._resume, (actor, actor.token, outcome))

    def produce_twice(self, produce: Callable[[], int], *, count_min: int = 1) -> tuple[int, int]:
        """The broker keeps a batch twice (librdkafka #4953) and tells of the second copy: its offset, how many records.

        A batch of fewer than `count_min` records is kept once.
        """
        base, batches = self._produced(produce)
        for partition, batch in batches:
            if len(batch) >= count_min:
                return partition.append(batch, now_ms=self.now_ms()), len(batch)
        return base, 0

    def _produced(self, produce: Callable[[], int]) -> tuple[int, list[tuple[Partition, list[MemoryRecord]]]]:
        """The first offset of a batch, and its records: not the markers that land in the same moment."""
        assert self._kafka is not None
        partitions = self._kafka.cluster.partitions.values()
        before = [(p, p.next_offset) for p in partitions]
        base = produce()
        grown = [(p, [r for r in p._records if r.log_offset >= n]) for p, n in before if p.next_offset > n]
        return base, [(partition, batch) for partition, batch in grown if batch]

    def produce_late(self, produce: Callable[[], int], *, after_s: float) -> int:
        """The broker keeps a batch, and once more `after_s` later, behind whatever came meanwhile; the first offset."""
        base, batches = self._produced(produce)
        for partition, batch in batches:
            self.after(after_s, partial(self._keep_again, partition, batch))
        return base

    def _keep_again(self, partition: Partition, batch: list[MemoryRecord]) -> None:
        offset = partition.append(batch, now_ms=self.now_ms())
        self.happened["second copy, late"] += 1
        self.note(f"{batch[0].topic()}-{batch[0].partition()}", "keeps again", f"{len(batch)} at {offset}")
        self.acted("Produce")

    def stored_bytes(self) -> int:
        """Of all records in the cluster."""
        assert self._kafka is not None
        partitions = self._kafka.cluster.partitions.values()
        return sum(record.size for partition in partitions for record in partition._records)

    def acted(self, request: str) -> None:
        """The cluster may have changed."""
        if self.on_act is not None:
            self.on_act()
        if self.on_join is not None and request == "JoinGroup":
            self.on_join()
        if request in CHANGING:
            self.look_around()
        self._watch_time()

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, process: Process, run: Callable[[], None], *, after_s: float = 0.0) -> None:
        """A process begins."""
        self.processes[process.name] = process
        self.begin_in_background(process, run, after_s=after_s)

    def begin_in_background(self, process: Process, run: Callable[[], None], *, after_s: float = 0.0) -> None:
        """One more greenlet of a process."""
        if process.is_dead:
            raise ClientCrashedError(process.name)
        actor = Actor(process)

        def body(_: Any) -> None:
            try:
                run()
            except (GreenletExit, ClientCrashedError):
                return
            except Exception as exc:  # noqa: BLE001 - border of a process: its end is a finding
                if not process.is_dead:
                    self.failures.append(f"{process.name}: {type(exc).__name__}: {exc}")
                    self.note(process.name, "ends", f"{type(exc).__name__}: {exc}")

        actor.greenlet = greenlet(body, self._hub)
        process.actors.append(actor)
        self._wake_at(self.now + after_s, actor)

    def kill(self, process: Process, *, away_s: float = 0.0) -> None:
        """The process is gone, wherever it was; nothing that it has not sent arrives."""
        if process.is_dead:
            return
        process.is_dead = True
        self.note(process.name, "dies", "")
        for actor in process.actors:
            self._waiting.pop(actor, None)
            if not actor.greenlet.dead:
                self._current = actor
                actor.greenlet.throw(GreenletExit)
                self._current = self._nobody
        process.actors.clear()
        if process.on_death is not None:
            process.on_death(away_s)

    def die(self, *, away_s: float) -> None:
        """Whoever runs now dies here."""
        actor = self._current
        self.after(0.0, lambda: self.kill(actor.process, away_s=away_s))
        self._suspend(actor)

    def freeze(self, process: Process, *, seconds: float, is_beating: bool) -> None:
        """The process is not scheduled for so long."""
        process.frozen_until = self.now + seconds
        process.is_beating = is_beating
        self.note(process.name, "freezes", f"for {seconds} s")

    def cut(self, slot: str, *, seconds: float) -> None:
        """Nothing of the slot arrives for so long."""
        self.network.cut(slot, until_s=self.now + seconds)
        self.note(slot, "cut off", f"for {seconds} s")

    def pause(self, seconds: float) -> None:
        """Whoever runs now sleeps."""
        self._pause(self._current, seconds / self._current.process.rate)

    def heal_network(self) -> None:
        """No more faults; who is frozen goes on."""
        self.network.heal()
        self._lateness = HEALED_LATENESS
        for process in self.processes.values():
            process.frozen_until = min(process.frozen_until, self.now)

    def close(self) -> None:
        """Nobody runs any more."""
        for process in self.processes.values():
            process.on_death = None
            self.kill(process)
        self._events.clear()

    # --- time ---------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do something later, beside all processes."""
        self.push(self.now + seconds, _do, call)

    def run(self, *, until_s: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Let everything happen until then, or until `is_over`; True when it is over."""
        events = self._events
        while events and events[0][0] <= until_s:
            at, _, call, argument = heappop(events)
            self.now = max(at, self.now)
            self.event_count += 1
            if self.event_count > EVENT_COUNT_MAX:
                raise EndlessError(f"{EVENT_COUNT_MAX} events at {self.now:.3f} s")
            call(argument)
            if is_over is not None and is_over():
                return True
        self.now = max(self.now, until_s)
        return False

    def look_around(self) -> None:
        """Wake who waits for what is true now."""
        for actor in list(self._waiting):
            if actor.process.frozen_until > self.now:
                continue
            self._current = actor
            if actor.is_ready is not None and actor.is_ready():
                del self._waiting[actor]
                # From now on an older alarm means nothing.
                actor.token += 1
                self.push(self.now + self.random.random() * 0.0005, self._resume, (actor, actor.token, None))
        self._current = self._nobody
        self._watch_time()

    def note(self, actor: str, action: str, detail: str) -> None:
        """One line of the trace."""
        self.trace.append((self.now, actor, action, detail))

    def _watch_time(self) -> None:
        """Look again when time alone changes something in the cluster."""
        assert self._kafka is not None
        if not self._kafka.cluster.is_up:
            return  # whoever starts the brokers looks again
        due_s = (self._kafka.cluster.due_ms - START_MS) / 1000
        if due_s < self._due_at:
            self._due_at = max(due_s, self.now + 0.0005)
            self.push(self._due_at, self._on_due, None)

    def _on_due(self, _: None) -> None:
        assert self._kafka is not None
        self._due_at = float("inf")
        self._kafka.do(self._kafka.cluster.catch_up)
        self.look_around()

    def push(self, at: float, call: Callable[[Any], None], argument: Any) -> None:
        """Have `call` called with the argument at a time."""
        heappush(self._events, (at, next(self._numbers), call, argument))

    def _wake_at(self, at: float, actor: Actor) -> None:
        actor.token += 1
        self.push(at, self._resume, (actor, actor.token, None))

    def _pause(self, actor: Actor, seconds: float) -> None:
        if actor.process.is_dead:
            raise ClientCrashedError(actor.process.name)
        self._wake_at(self.now + seconds, actor)
        self._suspend(actor)

    def _suspend(self, actor: Actor) -> Any:
        actor.free_calls = 0
        self._current = self._nobody
        return self._hub.switch()

    def _resume(self, argument: tuple[Actor, int, Any]) -> None:
        actor, token, outcome = argument
        if actor.token != token or actor.process.is_dead:
            return
        if actor.process.frozen_until > self.now:
            self.push(actor.process.frozen_until, self._resume, argument)
            return
        self._waiting.pop(actor, None)
        self._current = actor
        actor.greenlet.switch(outcome)
        self._current = self._nobody


def _do(call: Callable[[], None]) -> None:
    call()
