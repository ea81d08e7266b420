"""What every simulated world has: a cluster, processes that come again, and faults at their times. Never: who takes part."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from tests.simulation.plan import Fault, Harm
from tests.simulation.processes import Process
from tests.simulation.world import SimulatedWorld
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.memory.log import MemoryRecord, Partition
from txlayer.errors import BrokerUnavailableError, TxLayerError


class Conditions(Protocol):
    """What differs from world to world without being a fault."""

    @property
    def latency_s(self) -> float:
        """How long a request takes, about."""
        ...

    @property
    def slow_share(self) -> float:
        """Of the requests that take much longer."""
        ...

    @property
    def lateness(self) -> float:
        """By how much of its length a wait may take longer."""
        ...

    @property
    def marker_delay_s(self) -> float:
        """How late markers land, at most."""
        ...

    @property
    def skews(self) -> tuple[float, ...]:
        """Rates of the clients' clocks."""
        ...

    @property
    def wall_skews(self) -> tuple[float, ...]:
        """Seconds by which their wall clocks are wrong."""
        ...


class Stage:
    """A cluster under one seed, and the processes around it."""

    def __init__(self, seed: int, conditions: Conditions, faults: tuple[Fault, ...]) -> None:
        self._conditions = conditions
        self.world = SimulatedWorld(
            seed,
            latency_s=conditions.latency_s,
            slow_share=conditions.slow_share,
            lateness=conditions.lateness,
            faults=tuple(fault for fault in faults if fault.number),
        )
        dice = self.world.random
        delay_ms = conditions.marker_delay_s * 1000
        self.kafka = MemoryKafka(
            self.world, marker_delay_ms=(lambda: dice.random() * delay_ms) if delay_ms else lambda: 0.0
        )
        self.world.attach(self.kafka)
        self.is_healing = False
        self.cleaned: dict[tuple[str, int], list[MemoryRecord]] = {}
        """What retention and compaction took away: the judge knows it, and nobody else."""
        self._incarnations: dict[str, int] = {}
        self._alive: dict[str, Process] = {}

    # --- what ever was ------------------------------------------------------------------------------------------------

    def records(self, topic: str) -> list[MemoryRecord]:
        """Every committed record, also of those that were cleaned away, partition by partition."""
        gone = [r for place, found in self.cleaned.items() if place[0] == topic for r in found]
        if not gone:
            return self.kafka.records(topic)
        here = [*gone, *self.kafka.records(topic)]
        return sorted(here, key=lambda record: (record.partition(), record.offset()))

    @contextmanager
    def keeping(self, place: tuple[str, int]) -> Iterator[Partition]:
        """Keep what is taken from a partition meanwhile."""
        partition = self.kafka.cluster.partitions[place]
        before = partition._records[:]
        yield partition
        left = {record.log_offset for record in partition._records}
        gone = [r for r in before if r.log_offset not in left and not r.is_aborted]
        self.cleaned.setdefault(place, []).extend(gone)
        if gone:
            self.world.note(f"{place[0]}-{place[1]}", "is cleaned", f"of {len(gone)} records")

    # --- processes ----------------------------------------------------------------------------------------------------

    def new_process(self, slot: str) -> Process:
        """The next incarnation of a slot."""
        self._incarnations[slot] = number = self._incarnations.get(slot, 0) + 1
        conditions = self._conditions
        index = sum(map(ord, slot)) % len(conditions.skews)
        process = Process(
            slot,
            f"{slot}.{number}",
            rate=conditions.skews[index],
            wall_skew_s=0.0 if self.is_healing else conditions.wall_skews[index],
        )
        self._alive[slot] = process
        return process

    def keep_running(self, slot: str, make: Callable[[Process], Callable[[], Any]], *, after_s: float = 0.0) -> None:
        """One more process of a service, which makes it and runs it; whenever it ends it is started again."""
        process = self.new_process(slot)
        process.on_death = lambda away_s: self.keep_running(
            slot, make, after_s=min(away_s, 0.1) if self.is_healing else away_s
        )
        self.world.start(process, partial(self._run, process, make), after_s=after_s)

    def _run(self, process: Process, make: Callable[[Process], Callable[[], Any]]) -> None:
        world, run = self.world, make(process)
        world.note(process.name, "starts", "")
        try:
            run()
        except BrokerUnavailableError:
            world.note(process.name, "ends", "no broker")
        except TxLayerError as exc:
            world.note(process.name, "ends", str(exc))
            world.failures.append(f"{process.name}: {type(exc).__name__}: {exc}")
        else:
            world.note(process.name, "ends", "")
        if not process.is_dead:
            process.on_death = None
            self.keep_running(process.slot, make, after_s=0.05 if self.is_healing else 0.5)

    # --- faults -------------------------------------------------------------------------------------------------------

    def plan_faults(self, faults: tuple[Fault, ...]) -> None:
        """Those that have their time are on their way."""
        for fault in faults:
            if not fault.number:
                self.world.after(fault.at_s, partial(self._happen, fault))

    def heal_cluster(self, topics: tuple[str, ...]) -> None:
        """No more faults, the clocks are right, and these topics are as they should be."""
        self.is_healing = True
        for process in self._alive.values():
            process.wall_skew_s = 0.0
        self.world.note("", "heals", "")
        self.kafka.start()
        for topic in topics:
            self.kafka.deny(topic, is_denied=False)
            self.kafka.lead(topic, is_led=True)
        self.world.heal_network()
        self.world.acted("Produce")

    def _happen(self, fault: Fault) -> None:
        if self.is_healing:
            return
        world, kafka, harm = self.world, self.kafka, fault.harm
        process = self._alive.get(fault.slot)
        world.happened[harm.value] += 1
        if harm is Harm.DOWN:
            kafka.stop()
            world.note("brokers", "down", f"for {fault.seconds} s")
            self._later(fault.seconds, kafka.start, "up")
        elif harm is Harm.DENY:
            kafka.deny(fault.slot)
            world.note(fault.slot, "denied", f"for {fault.seconds} s")
            self._later(fault.seconds, partial(kafka.deny, fault.slot, is_denied=False), "allowed")
        elif harm is Harm.LEADERLESS:
            topic, _, number = fault.slot.partition("/")
            only = int(number) if number else None
            kafka.lead(topic, is_led=False, only=only)
            world.note(fault.slot, "without leader", f"for {fault.seconds} s")
            self._later(fault.seconds, partial(kafka.lead, topic, is_led=True, only=only), "led")
        elif harm is Harm.TWIN:
            world.network.keep_twice(fault.slot)
        elif process is None or process.is_dead:
            return
        elif harm is Harm.DIE:
            world.kill(process, away_s=fault.seconds)
        elif harm is Harm.FREEZE:
            world.freeze(process, seconds=fault.seconds, is_beating=fault.is_beating)
        elif harm is Harm.CUT:
            world.cut(fault.slot, seconds=fault.seconds)
        elif harm is Harm.LEAVE:
            process.is_stopping = True
        world.acted("Produce")

    def _later(self, seconds: float, act: Callable[[], None], what: str) -> None:
        def undo() -> None:
            act()
            self.world.note("", what, "")
            self.world.acted("Produce")

        self.world.after(seconds, undo)
