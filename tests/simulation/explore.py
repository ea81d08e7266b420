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
from tests.simulation.consumers.unkind import make_unkind_consumer_plan
from tests.simulation.consumers.ways import make_way_plan
from tests.simulation.doors import make_closing_plan
from tests.simulation.leaderless import make_leaderless_plan
from tests.simulation.plan import Plan, make_plan
from tests.simulation.play import Played
from tests.simulation.restarts import Restart, drawn_restarts, play_plan
from tests.simulation.shrink import shrink
from tests.simulation.trace import play_for_people
from tests.simulation.unkind import make_unkind_plan

WORLDS_AT_ONCE = 25
"""One task of a process."""
RESTARTS_MAX = 25
"""Of one world of each task: about as much work as the others."""


@dataclass(slots=True)
class Explored:
    """What came of some worlds."""

    world_count: int = 0
    restart_count: int = 0
    step_count: int = 0
    cpu_s: float = 0.0
    red: list[str] = field(default_factory=list)
    """What `make simulate` is told to play one again."""
    happened: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Explored) -> None:
        """Both together."""
        self.world_count += other.world_count
        self.restart_count += other.restart_count
        self.step_count += other.step_count
        self.cpu_s += other.cpu_s
        self.red += other.red
        self.happened += other.happened
        self.counts += other.counts

    def see(self, played: Played[Any], name: str) -> None:
        """One world."""
        self.step_count += played.step_count
        self.happened += played.happened
        self.counts += played.counts
        if not played.is_clean:
            self.red.append(name)


WORLDS: dict[str, Callable[[int], Plan | ConsumerPlan]] = {
    "coordinators": make_plan,
    "unkind": make_unkind_plan,
    "leaderless": make_leaderless_plan,
    "closing": make_closing_plan,
    "consumers": make_consumer_plan,
    "unkind-consumers": make_unkind_consumer_plan,
    "ways": make_way_plan,
}


def explore(world: str, seeds: Sequence[int]) -> Explored:
    """Play these worlds of one kind, and the first of them with a restart in each place."""
    explored = Explored()
    started = time.process_time()
    for seed in seeds:
        explored.see(play_plan(WORLDS[world](seed)), f"SEED={seed}")
        explored.world_count += 1
    for restart, played in drawn_restarts(WORLDS[world](seeds[0]), count_max=RESTARTS_MAX):
        explored.see(played, f"SEED={seeds[0]} RESTART={restart}")
        explored.restart_count += 1
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
                for name in future.result().red:
                    say(f"red: make simulate WORLD={world} {name}")
        for future in running:
            if not future.cancel():
                total.add(future.result())
    return total


def _runs(first: int) -> Iterator[list[int]]:
    while True:
        yield list(range(first, first + WORLDS_AT_ONCE))
        first += WORLDS_AT_ONCE


def show(world: str, seed: int, *, restart: Restart | None = None, is_shrunk: bool) -> int:
    """Replay one world as a table; 1 when something is wrong in it."""
    plan = WORLDS[world](seed)
    if restart is not None:
        plan = restart.put_into(plan)
    played, table = play_for_people(plan)
    if played.findings and is_shrunk:
        smaller = shrink(plan)
        table = play_for_people(smaller)[1]
        table.insert(0, f"shrunk from seed {seed}: {len(smaller.faults)} of {len(plan.faults)} faults")
    for line in table:
        say(line)
    return 1 if played.findings else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--world", choices=WORLDS, default="coordinators", help="which kind")
    parser.add_argument("--seed", type=int, help="replay this world")
    parser.add_argument(
        "--restart", type=Restart.parse, help="a death in it: process:request:number, as `red:` says it"
    )
    parser.add_argument("--whole", action="store_true", help="do not shrink a world with findings")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to explore")
    parser.add_argument("--first", type=int, help="first seed to explore; random")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return show(given.world, given.seed, restart=given.restart, is_shrunk=not given.whole)
    first = random.randrange(1 << 40) if given.first is None else given.first
    say(f"exploring {given.world} from seed {first} for {given.minutes:g} minutes")
    started = time.monotonic()
    total = explore_for(given.world, minutes=given.minutes, process_count=given.processes, first_seed=first)
    took_s = time.monotonic() - started
    count = total.world_count + total.restart_count
    say(
        f"{total.world_count} worlds, {total.restart_count} with a restart, {total.step_count / max(count, 1):.0f} steps each"
    )
    say(f"{count / took_s:.0f} worlds/s, {count / max(total.cpu_s, 0.001):.0f} per second of CPU")
    for title, counter in (("faults", total.happened), ("seen", total.counts)):
        say(f"{title}: " + ", ".join(f"{n} {name}" for name, n in counter.most_common()))
    say(f"red: {len(total.red)}")
    return 1 if total.red else 0


def say(line: str) -> None:
    """One line for whoever looks on."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
