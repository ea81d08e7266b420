"""Many worlds of one kind, looked at together. Never: what is in them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from random import Random

from tests.simulation.consumers.plan import ConsumerPlan
from tests.simulation.plan import Plan
from tests.simulation.restarts import play_plan
from tests.support.seed import SEED, say

Make = Callable[[int], Plan | ConsumerPlan]


@cache
def _world(make: Make, seed: int) -> tuple[list[str], Counter[str]]:
    """A process plays each world once."""
    played = play_plan(make(seed))
    return [str(finding) for finding in played.findings[:3]], played.happened + played.counts


def look_at(make: Make, seeds: Iterable[int]) -> tuple[dict[int, list[str]], Counter[str]]:
    """({seed: what is wrong in its world}, what happened and was seen in all of them)."""
    red: dict[int, list[str]] = {}
    seen: Counter[str] = Counter()
    for seed in seeds:
        found, what_happened = _world(make, seed)
        seen += what_happened
        if found:
            red[seed] = found
    return red, seen


def look_at_new(*makes: Make, seconds: float) -> dict[str, list[str]]:
    """{kind and seed: what is wrong}, from a random seed on until the time is over or something is wrong."""
    seed = first = Random(f"{SEED} {makes[0].__name__}").randrange(1 << 40)
    ends_at = time.monotonic() + seconds
    red: dict[str, list[str]] = {}
    while not red and time.monotonic() < ends_at:
        for make in makes:
            if findings := play_plan(make(seed)).findings:
                red[f"{make.__name__} {seed}"] = [str(finding) for finding in findings]
        seed += 1
    say(f"{seed - first} worlds of {', '.join(make.__name__ for make in makes)} from seed {first}")
    return red
