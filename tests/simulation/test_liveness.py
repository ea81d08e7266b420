"""After all faults are over everything must come to its end, and a world that does not is told apart."""

from dataclasses import replace

import pytest

from tests.simulation.plan import Fault, Harm, make_plan
from tests.simulation.play import REST_WITHIN_S, play
from tests.simulation.shrink import shrink
from tests.simulation.society import Variant
from tests.simulation.trace import play_for_people
from tests.simulation.unguarded import PatientLedger, coordinator_with
from tests.support.checker import Kind

HARSH = (
    Fault(Harm.DOWN, "", at_s=1.0, seconds=3.0),
    Fault(Harm.FREEZE, "c0", at_s=0.5, seconds=4.0),
    Fault(Harm.DIE, "c0", at_s=2.0, seconds=3.0),
    Fault(Harm.CUT, "c0", at_s=1.5, seconds=3.0),
    Fault(Harm.DENY, "orders", at_s=0.2, seconds=5.0),
    Fault(Harm.LEADERLESS, "stock", at_s=0.2, seconds=5.0),
)


@pytest.mark.fault(
    "producer: is killed between the local commit and its op",
    "broker: all brokers are down",
    "rights: the coordinator may not write to a topic",
)
@pytest.mark.promise("P7")
@pytest.mark.parametrize("seeds", [range(500, 515), pytest.param(range(515, 540), marks=pytest.mark.slow)])
def test_a_healed_world_comes_to_rest_whatever_happened_before(seeds: range) -> None:
    slowest_s = 0.0

    for seed in seeds:
        plan = make_plan(seed)
        played = play(replace(plan, faults=(*plan.faults, *HARSH)))
        assert [] == played.findings, seed
        slowest_s = max(slowest_s, played.rest_after_s)

    assert slowest_s < REST_WITHIN_S / 2


def test_a_world_that_cannot_come_to_rest_is_red() -> None:
    stuck = Variant(make=coordinator_with(ledger=PatientLedger))

    played = play(make_plan(STUCK_SEED), variant=stuck)

    assert Kind.STUCK in {finding.kind for finding in played.findings}


@pytest.mark.slow
def test_a_found_fault_is_shrunk_to_a_short_table() -> None:
    stuck = Variant(make=coordinator_with(ledger=PatientLedger))
    plan = make_plan(STUCK_SEED)

    smaller = shrink(plan, variant=stuck, play_count_max=150)
    played, table = play_for_people(smaller, variant=stuck)

    assert len(smaller.faults) + sum(map(len, smaller.producers)) <= 3
    assert Kind.STUCK in {finding.kind for finding in played.findings}
    assert len(table) < 120
    assert any("FINDING stuck" in line for line in table)


STUCK_SEED = 11
