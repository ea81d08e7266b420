"""What chaos says of its own faults: every kind comes before any comes again, and who ended without being told."""

import random
from dataclasses import dataclass
from typing import Any, cast

from tests.support.fleet import Fleet
from tests.support.nemesis import Nemesis


@dataclass
class Process:
    """A coordinator's process as far as it is asked for."""

    pid: int
    exit_code: int
    """What it has ended with, or will when it is told to."""
    is_running: bool = False

    def kill(self) -> None:
        self.is_running, self.exit_code = False, -9

    def terminate(self) -> None:
        self.is_running = False

    def wait_until_listening(self) -> None:
        """It does."""

    def wait(self, *, within: float) -> int:
        assert within > 0
        return self.exit_code

    def output(self) -> str:
        return "its last words"


def nemesis(*, seed: int = 1) -> Nemesis:
    """One without a cluster."""
    made = Nemesis(
        cast("Any", None),
        proxies={},
        start_coordinator=lambda: cast("Any", Process(99, 0, is_running=True)),
        coordinator_group="",
        session_s=1,
        rng=random.Random(seed),
    )
    made._kinds = tuple((name, lambda: "") for name in made.names)
    return made


def test_every_kind_of_fault_comes_before_any_comes_again() -> None:
    made = nemesis()
    shown = []

    for _ in range(2 * len(made.names)):
        made.strike()
        shown.append(made.has_shown_all)

    assert [False] * (len(made.names) - 1) == shown[: len(made.names) - 1]
    assert all(shown[len(made.names) - 1 :])
    assert {2} == set(made.counts.values())


def test_a_seed_replays_the_order_of_the_faults() -> None:
    plans = []
    for seed in (7, 7, 8):
        made = nemesis(seed=seed)
        plans.append([made.strike().name for _ in range(30)])

    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


def test_a_coordinator_that_nobody_ended_is_told_with_its_exit_code_and_last_words() -> None:
    made, broken = nemesis(), Process(2, exit_code=70)
    made.coordinators.append(cast("Any", broken))

    assert ["pid 2 ended with 70: its last words"] == made.ended_wrongly()


def test_a_coordinator_that_was_killed_or_stopped_cleanly_has_ended_as_it_should() -> None:
    made = nemesis()
    for end in (made._kill_coordinator, made._stop_coordinator):
        made.coordinators = cast("Any", [Process(1, exit_code=0, is_running=True)])
        end()

        assert [] == [words for words in made.ended_wrongly() if "pid 1 " in words]


def test_a_stop_that_ends_with_another_code_is_told() -> None:
    made = nemesis()
    made.coordinators.append(cast("Any", Process(1, exit_code=-6, is_running=True)))

    made._stop_coordinator()

    assert "pid 1 ended with -6: its last words" in made.ended_wrongly()


# --- who else is there ------------------------------------------------------------------------------------------------


def fleet() -> Fleet:
    """Two that run."""
    numbers = iter(range(1, 100))
    return Fleet("consumer", lambda: cast("Any", Process(next(numbers), 3, is_running=True)), count=2, frozen_s_max=0.3)


def test_whoever_is_killed_has_a_successor_and_is_not_told() -> None:
    made = fleet()
    for _ in range(5):
        made.kill(random.Random(1))

    assert 7 == len(made.processes)
    assert 2 == sum(process.is_running for process in made.processes)
    assert [] == made.ended_wrongly()


def test_one_of_a_fleet_that_nobody_ended_is_told_with_its_exit_code_and_last_words() -> None:
    made = fleet()
    made.processes[0].terminate()

    assert ["consumer pid 1 ended with 3: its last words"] == made.ended_wrongly()


def test_everybody_of_a_fleet_is_killed_and_frozen_and_told_by_the_nemesis() -> None:
    broken = fleet()
    broken.processes[0].terminate()
    made = Nemesis(
        cast("Any", None),
        proxies={},
        start_coordinator=lambda: cast("Any", None),
        coordinator_group="",
        session_s=1,
        rng=random.Random(1),
        fleets=[broken],
    )

    assert {"consumer killed", "consumer frozen"} <= set(made.names)
    assert broken.ended_wrongly() == made.ended_wrongly()
