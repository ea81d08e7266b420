"""Each guard of consumers: the same world is clean with it and red without; the documentation lists them as they are."""

import pytest

from tests.simulation.consumers.guards import CONSUMER_GUARDS, CONSUMER_SECOND_LINES, IS_SLOW, PLANS, WITHOUT
from tests.simulation.consumers.plan import make_consumer_plan
from tests.simulation.consumers.play import play_consumers
from tests.simulation.consumers.society import ConsumerVariant
from tests.simulation.guards import Guard, rows_of
from tests.simulation.seek import found_with, found_without

SECOND_LINE_SEEDS = range(200, 210)


@pytest.mark.fault(
    "consumer: is frozen for longer than its session or its lease, then goes on",
    "consumer: dies, or is cut off, while it writes a dead letter",
)
@pytest.mark.parametrize("guard", CONSUMER_GUARDS, ids=lambda guard: guard.name)
def test_a_world_of_consumers_is_red_without_a_guard(guard: Guard[ConsumerVariant]) -> None:
    red = found_without(guard, guard.seed)

    assert guard.kinds & {finding.kind for finding in red}, (
        f"{red[:3]}; python -m tests.simulation.seek looks for another seed"
    )


@pytest.mark.fault(
    "consumer: is frozen for longer than its session or its lease, then goes on",
    "consumer: dies, or is cut off, while it writes a dead letter",
)
@pytest.mark.slow  # `make check` sees that other worlds are clean
@pytest.mark.parametrize("guard", CONSUMER_GUARDS, ids=lambda guard: guard.name)
def test_the_same_world_of_consumers_is_clean_with_the_guard(guard: Guard[ConsumerVariant]) -> None:
    assert [] == found_with(guard, guard.seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSUMER_SECOND_LINES)
def test_behind_some_guards_of_consumers_another_one_stands(name: str) -> None:
    for seed in SECOND_LINE_SEEDS:
        played = play_consumers(make_consumer_plan(seed), variant=CONSUMER_SECOND_LINES[name])
        assert [] == played.findings, seed


def test_the_documentation_lists_the_guards_of_consumers_as_they_are() -> None:
    assert [*WITHOUT] == [guard.name for guard in CONSUMER_GUARDS]
    assert [*CONSUMER_SECOND_LINES] == [row[0] for row in rows_of("Consumers", column_count=3)]
    assert {*IS_SLOW, *PLANS} <= {*WITHOUT}
