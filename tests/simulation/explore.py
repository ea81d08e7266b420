"""`make simulate SEED=n` and `make simulate MINUTES=n`: one world as a table, or as many worlds as there is time for."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.consumers.plan import ConsumerPlan, make_consumer_plan
from tests.simulation.consumers.play import play_consumers
from tests.simulation.consumers.shrink import shrink_consumers
from tests.simulation.consumers.trace import play_consumers_for_people
from tests.simulation.consumers.unkind import make_unkind_consumer_plan
from tests.simulation.plan import Plan, make_plan
from tests.simulation.play import Played, play
from tests.simulation.shrink import shrink
from tests.simulation.trace import play_for_people
from tests.simulation.unkind import make_unkind_plan

WORLDS_AT_ONCE = 50
"""One task of a process."""


@dataclass(slots=True)
class Explored:
    """What came of some worlds."""

    world_count: int = 0
    step_count: int = 0
    cpu_s: float = 0.0
    red_seeds: list[int] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Explored) -> None:
        """Both together."""
        self.world_count += other.world_count
        self.step_count += other.step_count
        self.cpu_s += other.cpu_s
        self.red_seeds += other.red_seeds
        self.happened += other.happened
        self.counts += other.counts


def play_coordinators(seed: int) -> Played[Plan]:
    """A world of coordinators and producers."""
    return play(make_plan(seed))


def play_unkind(seed: int) -> Played[Plan]:
    """The same in an unkind cluster."""
    return play(make_unkind_plan(seed))


def play_consumer_world(seed: int) -> Played[ConsumerPlan]:
    """A world of consumers."""
    return play_consumers(make_consumer_plan(seed))


def play_unkind_consumers(seed: int) -> Played[ConsumerPlan]:
    """The same in an unkind cluster."""
    return play_consumers(make_unkind_consumer_plan(seed))


WORLDS: dict[str, Callable[[int], Played[Any]]] = {
    "coordinators": play_coordinators,
    "unkind": play_unkind,
    "consumers": play_consumer_world,
    "unkind-consumers": play_unkind_consumers,
}


def explore(world: str, seeds: Sequence[int]) -> Explored:
    """Play these worlds of one kind."""
    explored = Explored()
    started = time.process_time()
    for seed in seeds:
        played = WORLDS[world](seed)
        explored.world_count += 1
        explored.step_count += played.step_count
        explored.happened += played.happened
        explored.counts += played.counts
        if not played.is_clean:
            explored.red_seeds.append(seed)
    gc.collect()
    explored.cpu_s = time.process_time() - started
    return explored


def explore_for(world: str, *, minutes: float, process_count: int, first_seed: int) -> Explored:
    """Play worlds until the time is over."""
    ends_at = time.monotonic() + minutes * 60
    total = Explored()
    seeds = _runs(first_seed)
    with ProcessPoolExecutor(process_count, initializer=gc.freeze) as pool:
        running: set[Future[Explored]] = set()
        while time.monotonic() < ends_at:
            while len(running) < 2 * process_count:
                running.add(pool.submit(explore, world, next(seeds)))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                total.add(future.result())
                for seed in future.result().red_seeds:
                    say(f"red: make simulate WORLD={world} SEED={seed}")
        for future in running:
            if not future.cancel():
                total.add(future.result())
    return total


def _runs(first: int) -> Iterator[list[int]]:
    while True:
        yield list(range(first, first + WORLDS_AT_ONCE))
        first += WORLDS_AT_ONCE


def show(world: str, seed: int, *, is_shrunk: bool) -> int:
    """Replay one world as a table; 1 when something is wrong in it."""
    played, table, smaller = _as_table(world, seed, is_shrunk=is_shrunk)
    if smaller is not None:
        faults = f"{len(smaller.faults)} of {len(played.plan.faults)} faults"
        table.insert(0, f"shrunk from seed {seed}: {faults}")
    for line in table:
        say(line)
    return 1 if played.findings else 0


def _as_table(world: str, seed: int, *, is_shrunk: bool) -> tuple[Played[Any], list[str], Plan | ConsumerPlan | None]:
    if world.endswith("consumers"):
        is_unkind = world.startswith("unkind")
        consumer_plan = (make_unkind_consumer_plan if is_unkind else make_consumer_plan)(seed)
        consumed, table = play_consumers_for_people(consumer_plan)
        if not (consumed.findings and is_shrunk):
            return consumed, table, None
        fewer = shrink_consumers(consumer_plan)
        return consumed, play_consumers_for_people(fewer)[1], fewer
    plan = make_unkind_plan(seed) if world == "unkind" else make_plan(seed)
    played, table = play_for_people(plan)
    if not (played.findings and is_shrunk):
        return played, table, None
    smaller = shrink(plan)
    return played, play_for_people(smaller)[1], smaller


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--world", choices=WORLDS, default="coordinators", help="which kind")
    parser.add_argument("--seed", type=int, help="replay this world")
    parser.add_argument("--whole", action="store_true", help="do not shrink a world with findings")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to explore")
    parser.add_argument("--first", type=int, help="first seed to explore; random")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return show(given.world, given.seed, is_shrunk=not given.whole)
    first = random.randrange(1 << 40) if given.first is None else given.first
    say(f"exploring {given.world} from seed {first} for {given.minutes:g} minutes")
    started = time.monotonic()
    total = explore_for(given.world, minutes=given.minutes, process_count=given.processes, first_seed=first)
    took_s = time.monotonic() - started
    say(f"{total.world_count} worlds, {total.step_count / max(total.world_count, 1):.0f} steps each")
    say(
        f"{total.world_count / took_s:.0f} worlds/s, {total.world_count / max(total.cpu_s, 0.001):.0f} per second of CPU"
    )
    for title, counter in (("faults", total.happened), ("seen", total.counts)):
        say(f"{title}: " + ", ".join(f"{n} {name}" for name, n in counter.most_common()))
    say(f"red: {len(total.red_seeds)}")
    return 1 if total.red_seeds else 0


def say(line: str) -> None:
    """One line for whoever looks on."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
