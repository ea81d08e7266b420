"""Looks for the seeds of the page of guards anew, after plans or txlayer changed so that the old ones show nothing any more.

python -m tests.simulation.seek [part of a guard's name] [seeds to try]
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.consumers.guards import CONSUMER_GUARDS
from tests.simulation.explore import say
from tests.simulation.guards import GUARDS, Guard
from tests.simulation.restarts import play_plan
from tests.support.checker import Finding


def found_without(guard: Guard[Any], seed: int) -> list[Finding]:
    """What is wrong in the world of a seed without the guard."""
    settings = {**guard.settings, **guard.without.settings}
    return play_plan(guard.plan(seed), variant=replace(guard.without, settings=settings)).findings


def found_with(guard: Guard[Any], seed: int) -> list[Finding]:
    """What is wrong in the same world with the real processes, in the same settings."""
    return play_plan(guard.plan(seed), variant=type(guard.without)(settings=guard.settings)).findings


def red_seeds(guard: Guard[Any], seeds: Sequence[int]) -> Iterator[tuple[int, Finding]]:
    """Seeds of worlds that are clean with the guard and have one of its findings without."""
    for seed in seeds:
        wrong = [finding for finding in found_without(guard, seed) if finding.kind in guard.kinds]
        if wrong and not found_with(guard, seed):
            yield seed, wrong[0]


def main(arguments: Sequence[str]) -> int:
    """The command; 1 when a guard has no seed."""
    part = arguments[0] if arguments else ""
    seeds = range(int(arguments[1]) if len(arguments) > 1 else 1_500)
    guards: list[Guard[Any]] = [*GUARDS, *CONSUMER_GUARDS]
    is_complete = True
    for guard in guards:
        if part in guard.name:
            seed, finding = next(red_seeds(guard, seeds), (-1, None))
            is_complete = is_complete and seed >= 0
            say(f"{seed:6}  {guard.name}: {finding and f'{finding.kind.value} {finding.detail}'}")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
