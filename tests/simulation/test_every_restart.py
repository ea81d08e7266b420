"""Every history also runs with a restart: the first coordinator dies behind each of its Kafka transactions in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.plan import Fault, Harm, Plan, make_plan
from tests.simulation.play import play
from tests.simulation.unkind import make_unkind_plan

NUMBER_MAX = 40
AWAY_S = 0.3


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.parametrize("seed", [5, 108])
@pytest.mark.parametrize("make", [make_plan, make_unkind_plan])
def test_a_coordinator_may_die_behind_any_of_its_kafka_transactions(
    make: Callable[[int], Plan], seed: int
) -> None:
    plan = make(seed)
    restart_count = 0

    for number in range(1, NUMBER_MAX):
        death = Fault(Harm.DIE_AFTER, "c0", "EndTxn", number, seconds=AWAY_S)
        played = play(replace(plan, faults=(*plan.faults, death)))
        assert [] == played.findings, f"EndTxn {number}"
        if not played.happened[Harm.DIE_AFTER.value]:
            break
        restart_count += 1

    assert restart_count >= 3
