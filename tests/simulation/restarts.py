"""Every history also runs with a restart: a process dies behind each of its requests in turn, whatever else goes wrong."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

from tests.simulation.consumers.plan import ConsumerPlan
from tests.simulation.consumers.play import play_consumers
from tests.simulation.network import Network
from tests.simulation.plan import Fault, Harm, Plan
from tests.simulation.play import Played, play

AWAY_S = 0.3
SLOTS = ("c0", "c1", "c2", "h0", "p0", "p1", "r0", "r1")
"""Coordinators or consumers, those who hear of dead letters, producers, responders; a world need not have all of them."""
NEVER = -1
"""Such a request is only counted."""
EACH = ""
"""Requests of every kind."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A death behind the n-th request of a kind of one process, from 1."""

    slot: str
    request: str
    number: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From what `str` makes of it."""
        slot, request, number = text.split(":")
        return cls(slot, request, int(number))

    def __str__(self) -> str:
        return f"{self.slot}:{self.request}:{self.number}"

    def put_into(self, plan: Any) -> Any:
        """The plan of a world, with this death."""
        death = Fault(Harm.DIE_AFTER, self.slot, self.request, self.number, seconds=AWAY_S)
        return replace(plan, faults=(*plan.faults, death))


def play_plan(plan: Plan | ConsumerPlan, **how: Any) -> Played[Any]:
    """A world of either kind, as `play` or `play_consumers` plays it."""
    return play_consumers(plan, **how) if isinstance(plan, ConsumerPlan) else play(plan, **how)


def places(plan: Plan | ConsumerPlan, slots: Iterable[str], request: str) -> dict[str, list[int]]:
    """{slot: which requests of this kind leave it before the world is healed}; up to a death all worlds of the plan are the same."""
    for slot in slots:
        plan = Restart(slot, request, NEVER).put_into(plan)
    networks: list[Network] = []
    play_plan(plan, look=lambda society: networks.append(society.world.network))
    carried = {slot: networks[0].carried(slot, request) for slot in slots}
    return {slot: numbers for slot, numbers in carried.items() if numbers}


def restarts(plan: Plan | ConsumerPlan, slot: str, request: str) -> Iterator[tuple[Restart, Played[Any]]]:
    """The worlds with a death behind the first such request, the second, and so on to the last."""
    for number in places(plan, [slot], request).get(slot, []):
        restart = Restart(slot, request, number)
        yield restart, play_plan(restart.put_into(plan))


def drawn_restarts(plan: Plan | ConsumerPlan, *, count_max: int) -> Iterator[tuple[Restart, Played[Any]]]:
    """The worlds with a death behind each request of one process that the seed draws, of at most so many of them."""
    random = Random(plan.seed)
    found = places(plan, SLOTS, EACH)
    slot = random.choice(sorted(found))
    numbers = found[slot]
    for number in sorted(random.sample(numbers, min(count_max, len(numbers)))):
        restart = Restart(slot, EACH, number)
        yield restart, play_plan(restart.put_into(plan))
