"""Every history also runs with a restart: a process dies behind each of its requests that change something, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.simulation.consumers.plan import ConsumerPlan, make_consumer_plan
from tests.simulation.consumers.play import play_consumers
from tests.simulation.plan import Fault, Harm, Plan, make_plan
from tests.simulation.play import Played, play
from tests.simulation.unkind import make_unkind_plan

pytestmark = pytest.mark.slow

P = TypeVar("P")

NUMBER_MAX = 60
AWAY_S = 0.3


def restarts(play_with: Callable[[Fault], Played[P]], slot: str, request: str) -> Iterator[Played[P]]:
    """The world with a death behind the first such request, the second, and so on to the last."""
    for number in range(1, NUMBER_MAX):
        played = play_with(Fault(Harm.DIE_AFTER, slot, request, number, seconds=AWAY_S))
        assert [] == played.findings, f"{slot}: {request} {number}"
        if not played.happened[Harm.DIE_AFTER.value]:
            return
        yield played


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.parametrize("seed", [5, 108])
@pytest.mark.parametrize("make", [make_plan, make_unkind_plan])
@pytest.mark.parametrize(("slot", "request_name"), [("c0", "EndTxn"), ("p0", "Produce")])
def test_a_coordinator_or_producer_may_die_behind_any_of_its_writes(
    make: Callable[[int], Plan], seed: int, slot: str, request_name: str
) -> None:
    plan = make(seed)

    def play_with(death: Fault) -> Played[Plan]:
        return play(replace(plan, faults=(*plan.faults, death)))

    assert len(list(restarts(play_with, slot, request_name))) >= 3


@pytest.mark.promise("P9")
@pytest.mark.promise("P10")
@pytest.mark.parametrize(("seed", "request_name"), [(5, "OffsetCommit"), (108, "OffsetCommit"), (108, "EndTxn")])
def test_a_consumer_may_die_behind_any_of_its_stores(seed: int, request_name: str) -> None:
    plan = make_consumer_plan(seed)

    def play_with(death: Fault) -> Played[ConsumerPlan]:
        return play_consumers(replace(plan, faults=(*plan.faults, death)))

    assert len(list(restarts(play_with, "c0", request_name))) >= 1
