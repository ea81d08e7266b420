"""Looks for the seeds of the page of guards anew, after plans or txlayer changed so that the old ones show nothing any more.

python -m tests.simulation.consumers.seek [part of a guard's name] [seeds to try]
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.simulation.consumers.guards import CONSUMER_GUARDS, PLANS
from tests.simulation.consumers.plan import ConsumerPlan, make_consumer_plan
from tests.simulation.consumers.play import play_consumers
from tests.simulation.consumers.society import ConsumerVariant
from tests.simulation.guards import Guard
from tests.simulation.seek import main
from tests.support.checker import Finding


def without(guard: Guard[ConsumerVariant]) -> ConsumerVariant:
    """Consumers without the guard."""
    return replace(guard.without, settings={**guard.settings, **guard.without.settings})


def with_it(guard: Guard[ConsumerVariant]) -> ConsumerVariant:
    """The real ones, in the same settings."""
    return ConsumerVariant(settings=guard.settings)


def plan_of(guard: Guard[ConsumerVariant], seed: int) -> ConsumerPlan:
    """The world of a seed in which it is shown."""
    return PLANS.get(guard.name, make_consumer_plan)(seed)


def red_seeds(guard: Guard[ConsumerVariant], seeds: Sequence[int]) -> Iterator[tuple[int, Finding]]:
    """Seeds of worlds that are clean with the guard and have one of its findings without."""
    for seed in seeds:
        plan = plan_of(guard, seed)
        played = play_consumers(plan, variant=without(guard))
        wrong = [f for f in played.findings if f.kind in guard.kinds]
        if wrong and play_consumers(plan, variant=with_it(guard)).is_clean:
            yield seed, wrong[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CONSUMER_GUARDS, red_seeds))
