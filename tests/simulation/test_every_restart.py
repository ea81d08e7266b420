"""Every history also runs with a restart: a process dies behind each of its requests that change something, in turn."""

from collections.abc import Callable

import pytest

from tests.simulation.consumers.plan import ConsumerPlan, make_consumer_plan
from tests.simulation.plan import Harm, Plan, make_plan
from tests.simulation.restarts import restarts
from tests.simulation.timed import make_timed_plan
from tests.simulation.unkind import make_unkind_plan

pytestmark = pytest.mark.slow


def clean_restarts(plan: Plan | ConsumerPlan, slot: str, request: str) -> int:
    """How many there are, none of them red."""
    count = 0
    for restart, played in restarts(plan, slot, request):
        assert [] == played.findings, f"{restart}"
        assert played.happened[Harm.DIE_AFTER.value]
        count += 1
    return count


@pytest.mark.promise("P1", "P2")
@pytest.mark.parametrize("seed", [5, 108])
@pytest.mark.parametrize("make", [make_plan, make_unkind_plan])
@pytest.mark.parametrize(("slot", "request_name"), [("c0", "EndTxn"), ("p0", "Produce")])
def test_a_coordinator_or_producer_may_die_behind_any_of_its_writes(
    make: Callable[[int], Plan], seed: int, slot: str, request_name: str
) -> None:
    assert clean_restarts(make(seed), slot, request_name) >= 3


@pytest.mark.promise("P1", "P2", "P3")
@pytest.mark.parametrize("seed", [103, 219])
def test_a_coordinator_may_die_behind_any_write_while_messages_have_times(seed: int) -> None:
    assert clean_restarts(make_timed_plan(seed), "c0", "EndTxn") >= 20


@pytest.mark.fault("consumer: dies after any of its stores")
@pytest.mark.promise("P9", "P10")
@pytest.mark.parametrize(("seed", "request_name"), [(5, "OffsetCommit"), (108, "OffsetCommit"), (108, "EndTxn")])
def test_a_consumer_may_die_behind_any_of_its_stores(seed: int, request_name: str) -> None:
    assert clean_restarts(make_consumer_plan(seed), "c0", request_name) >= 1
