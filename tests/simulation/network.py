"""Requests under way, and what is planned to happen to them. Never: what a request does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.plan import Fault, Harm
from tests.simulation.processes import Actor, Process
from txlayer.adapters.errors import Code
from txlayer.adapters.memory import NoAnswerError, RefusedError

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld


class Raised:
    """An answer that is an exception."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Call:
    """A request under way."""

    __slots__ = ("act", "actor", "fault", "request")

    def __init__(self, actor: Actor, request: str, act: Callable[[], Any]) -> None:
        self.actor = actor
        self.request = request
        self.act = act
        self.fault: Fault | None = None


class Network:
    """Carries requests and answers, late, twice or never."""

    def __init__(
        self, world: SimulatedWorld, *, latency_s: float, slow_share: float, faults: tuple[Fault, ...]
    ) -> None:
        self._world = world
        self._latency_s = latency_s
        self._slow_share = slow_share
        self.bytes_per_s = 0.0
        """How fast bytes are carried; 0: at once."""
        self.fetched_bytes_max: Counter[str] = Counter()
        """By slot: of the largest answer to a fetch."""
        self._cut: dict[str, float] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._carried: dict[tuple[str, str], list[int]] = {}
        self._late: dict[str, list[tuple[int, Call]]] = {}
        """By slot: what arrives after so many more of its requests."""
        self._twins: set[str] = set()
        self._copies: dict[tuple[str, int], float] = {}
        """By slot and number of its batch: how much later the broker keeps it once more."""
        self._produced: Counter[str] = Counter()
        self._faults: dict[tuple[str, str], dict[int, Fault]] = {}
        for fault in faults:
            self._faults.setdefault((fault.slot, fault.request), {})[fault.number] = fault

    def cut(self, slot: str, *, until_s: float) -> None:
        """Nothing of the slot arrives until then."""
        self._cut[slot] = until_s

    def is_cut(self, slot: str) -> bool:
        """True while nothing of the slot arrives."""
        return self._cut.get(slot, 0.0) > self._world.now

    def carried(self, slot: str, request: str) -> list[int]:
        """Which such requests of the slot were not cut off before the network was healed, if a fault of the plan is about them."""
        return self._carried.get((slot, request), [])

    def keep_twice(self, slot: str) -> None:
        """The slot's next batch of several records is kept twice."""
        self._twins.add(slot)

    def keep_late(self, slot: str, number: int, *, after_s: float) -> None:
        """The n-th batch of the slot is kept once more, so much later."""
        self._copies[slot, number] = after_s

    def heal(self) -> None:
        """No more faults."""
        self._faults.clear()
        self._cut.clear()

    def send(self, call: Call, process: Process) -> None:
        """A request leaves."""
        world = self._world
        if self._faults:
            self._meet(call, process.slot)
        if self._late:
            self._count_down(process.slot)
        if self._cut and self.is_cut(process.slot):
            world.note(process.name, call.request, "cut off")
            world.answer(call.actor, Raised(NoAnswerError("cut off")), after_s=0.02)
            return
        for key in ((process.slot, call.request), (process.slot, "")) if self._faults else ():
            if key in self._faults:
                self._carried.setdefault(key, []).append(self._counts[key])
        late_s = self._latency()
        fault = call.fault
        if fault is not None:
            world.happened[fault.harm.value] += 1
            world.note(process.name, call.request, fault.harm.value)
            if self._is_stopped(call, fault):
                return
            if fault.harm is Harm.DIE_BEFORE:
                world.after(0.0, lambda: world.kill(process, away_s=fault.seconds))
            elif fault.harm is Harm.SLOW:
                late_s += fault.seconds
        world.push(world.now + late_s, self._arrive, call)

    def _meet(self, call: Call, slot: str) -> None:
        for key in ((slot, call.request), (slot, "")):
            planned = self._faults.get(key)
            if planned is not None:
                self._counts[key] += 1
                call.fault = planned.get(self._counts[key]) or call.fault

    def _is_stopped(self, call: Call, fault: Fault) -> bool:
        world, harm = self._world, fault.harm
        if harm is Harm.REFUSE:
            world.answer(call.actor, Raised(RefusedError(Code[fault.code])), after_s=0.002)
            return True
        if harm not in (Harm.LOSE_REQUEST, Harm.LATE):
            return False
        world.answer(call.actor, Raised(NoAnswerError(harm.value)), after_s=self._notice())
        if harm is Harm.LATE:
            self._arrive_late(call, fault)
        return True

    def _arrive_late(self, call: Call, fault: Fault) -> None:
        if fault.behind:
            self._late.setdefault(call.actor.process.slot, []).append((fault.behind, call))
        else:
            self._world.after(fault.seconds, lambda: self._arrive_for_nobody(call))

    def _count_down(self, slot: str) -> None:
        late = [(left - 1, call) for left, call in self._late.pop(slot, ())]
        for _, call in (entry for entry in late if not entry[0]):
            self._world.push(self._world.now, self._arrive_for_nobody, call)
        waiting = [entry for entry in late if entry[0]]
        if waiting:
            self._late[slot] = waiting

    def _arrive(self, call: Call) -> None:
        """The cluster does it and answers."""
        world, name = self._world, call.actor.process.name
        outcome: Any
        carried_s, before = 0.0, self._stored_bytes(call)
        try:
            outcome = self._act(call)
            carried_s = self._carried_s(call, outcome, before)
        except RefusedError as exc:
            outcome = Raised(exc)
            world.trace.append((world.now, name, call.request, exc.code.kafka_name))
        except NoAnswerError as exc:
            outcome = Raised(exc)
            world.trace.append((world.now, name, call.request, "no broker"))
        else:
            world.trace.append((world.now, name, call.request, ""))
        world.acted(call.request)
        self._answer(call, outcome, carried_s=carried_s)

    def _stored_bytes(self, call: Call) -> int:
        if not self.bytes_per_s or call.request != "Produce":
            return 0
        return self._world.stored_bytes()

    def _carried_s(self, call: Call, outcome: Any, before: int) -> float:
        """How long the bytes of a request and its answer are under way."""
        if not self.bytes_per_s:
            return 0.0
        carried = 0
        if call.request == "Fetch":
            carried = sum(record.size for fetched in outcome for record in fetched.records)
            slot = call.actor.process.slot
            self.fetched_bytes_max[slot] = max(self.fetched_bytes_max[slot], carried)
        elif call.request == "Produce":
            carried = self._world.stored_bytes() - before
        return carried / self.bytes_per_s

    def _act(self, call: Call) -> Any:
        slot = call.actor.process.slot
        if self._copies and call.request == "Produce":
            self._produced[slot] += 1
            after_s = self._copies.pop((slot, self._produced[slot]), None)
            if after_s is not None:
                return self._world.produce_late(call.act, after_s=after_s)
        if call.fault is not None and call.fault.harm is Harm.TWIN:
            return self._world.produce_twice(call.act)[0]
        if slot not in self._twins or call.request != "Produce":
            return call.act()
        outcome, count = self._world.produce_twice(call.act, count_min=2)
        if count >= 2:
            self._twins.discard(slot)
        return outcome

    def _answer(self, call: Call, outcome: Any, *, carried_s: float) -> None:
        fault, world = call.fault, self._world
        after_s = self._latency() + carried_s
        if fault is not None:
            if fault.harm is Harm.DIE_AFTER:
                world.kill(call.actor.process, away_s=fault.seconds)
                return
            if fault.harm is Harm.DOUBLE:
                world.push(world.now, self._arrive_for_nobody, call)
            elif fault.harm is Harm.ECHO:
                self._arrive_late(call, fault)
            if fault.harm in (Harm.LOSE_ANSWER, Harm.ECHO):
                is_stored = call.request == "Produce" and not isinstance(outcome, Raised)
                outcome = Raised(NoAnswerError("answer lost"))
                if is_stored and fault.number % 2:
                    # It was sent again, and what came instead of its answer named no place.
                    outcome = Raised(RefusedError(Code.DUPLICATE_SEQUENCE_NUMBER))
                after_s = self._notice()
        world.answer(call.actor, outcome, after_s=after_s)

    def _arrive_for_nobody(self, call: Call) -> None:
        """It comes late, or once more."""
        said = "late"
        try:
            call.act()
        except RefusedError as exc:
            said = f"late: {exc.code.kafka_name}"
        except NoAnswerError:
            said = "late: no broker"
        self._world.note(call.actor.process.name, call.request, said)
        self._world.acted(call.request)

    def _latency(self) -> float:
        draw = self._world.random.random
        base = self._latency_s * (0.2 + draw())
        return base * 5 + draw() * 0.2 if draw() < self._slow_share else base

    def _notice(self) -> float:
        """How long it takes until a client learns that its answer will not come."""
        return self._world.random.choice((0.002, 0.01, 0.3))
