"""Looks for the seeds of the page of guards anew, after plans or txlayer changed so that the old ones show nothing any more.

python -m tests.simulation.seek [part of a guard's name] [seeds to try]
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.explore import say
from tests.simulation.guards import GUARDS, Guard
from tests.simulation.play import play
from tests.simulation.society import Variant
from tests.support.checker import Finding


def without(guard: Guard[Variant]) -> Variant:
    """Coordinators without the guard."""
    settings = {**guard.settings, **guard.without.settings}
    return replace(guard.without, settings=settings)


def with_it(guard: Guard[Variant]) -> Variant:
    """The real ones, in the same settings."""
    return Variant(settings=guard.settings)


def red_seeds(guard: Guard[Variant], seeds: Sequence[int]) -> Iterator[tuple[int, Finding]]:
    """Seeds of worlds that are clean with the guard and have one of its findings without."""
    for seed in seeds:
        plan = guard.plan(seed)
        wrong = [f for f in play(plan, variant=without(guard)).findings if f.kind in guard.kinds]
        if wrong and play(plan, variant=with_it(guard)).is_clean:
            yield seed, wrong[0]


def main(
    arguments: Sequence[str],
    guards: Sequence[Any] = GUARDS,
    seek: Callable[[Any, Sequence[int]], Iterator[tuple[int, Finding]]] = red_seeds,
) -> int:
    """The command; 1 when a guard has no seed."""
    part = arguments[0] if arguments else ""
    seeds = range(int(arguments[1]) if len(arguments) > 1 else 1_500)
    is_complete = True
    for guard in guards:
        if part in guard.name:
            seed, finding = next(seek(guard, seeds), (-1, None))
            is_complete = is_complete and seed >= 0
            say(f"{seed:6}  {guard.name}: {finding and f'{finding.kind.value} {finding.detail}'}")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
