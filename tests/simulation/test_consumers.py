"""Worlds of consumers with faults in which every promise that can be judged must hold, and in which everything ends."""

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.consumers.plan import make_calm_plan, make_consumer_plan
from tests.simulation.consumers.play import play_consumers
from tests.simulation.consumers.ways import make_way_plan
from tests.simulation.elsewhere import HASH_SEEDS, fingerprints_elsewhere
from tests.simulation.looked_at import look_at, look_at_new
from tests.simulation.plan import Fault, Harm
from tests.simulation.play import REST_WITHIN_S
from txlayer.core.progress import Progress

FOUND = {
    2261: "a consumer that was told to stop ended by an error when its session was over",
    23241912665: "a chunk of slow messages counted as one that hangs, and its key was handled by two at once",
    7: "with all in flight that may be, the engine asked again and again what to do, and took a whole core",
    853455104984: "where no more keys could be parked, the request that made room was not read behind one that waited for it",
    941005731: "853455104984 again, with a request about a dead letter that was never there in front",
}
"""Seeds of worlds that showed a fault, and which one: no fault comes back. (guards.py shows the first one red again.)"""

FIXED = (*range(165), 406)  # in the last one a table refuses a write
QUICK_COUNT = 20
"""Of the fixed ones, in `make check`."""
FRESH_S = 2.0

HARSH = (
    Fault(Harm.DOWN, "", at_s=1.0, seconds=3.0),
    Fault(Harm.FREEZE, "c0", at_s=0.5, seconds=4.0),
    Fault(Harm.DIE, "c0", at_s=2.0, seconds=3.0),
    Fault(Harm.CUT, "c0", at_s=1.5, seconds=3.0),
    Fault(Harm.LEADERLESS, "orders", at_s=0.2, seconds=5.0),
    Fault(Harm.LEADERLESS, "sim.locks", at_s=0.2, seconds=2.0),
)
UNUSED = {Harm.TWIN, Harm.DENY}


@pytest.mark.parametrize("seed", FOUND)
def test_a_fault_of_consumers_that_was_found_does_not_come_back(seed: int) -> None:
    played = play_consumers(make_consumer_plan(seed))

    assert [] == played.findings


def test_consumers_keep_their_promises_in_some_worlds_with_faults() -> None:
    red, _ = look_at(make_consumer_plan, range(QUICK_COUNT))

    assert {} == red, "make simulate WORLD=consumers SEED=n shows it"


@pytest.mark.fault(
    "consumer: is killed while it handles a message",
    "consumer: a handler hangs",
    "consumer: is slow, and the group rebalances",
    "consumer: is frozen for longer than its session or its lease, then goes on",
    "consumer: dies, or is cut off, while it writes a dead letter",
)
@pytest.mark.slow
@pytest.mark.promise("P9", "P10")
def test_consumers_keep_their_promises_in_worlds_with_faults() -> None:
    red, seen = look_at(make_consumer_plan, FIXED)

    assert {} == red, "make simulate WORLD=consumers SEED=n shows it"
    # There was something to judge, and the faults did happen.
    assert {
        "later attempt",
        "letter attempts-exhausted",
        "letter rejected",
        "letter key-parked",
        "replay handled",
        "replay failed",
        "replay dropped",
        "replay missing",
        "write refused",
        "result none",
    } <= seen.keys()
    assert set() == {harm.value for harm in Harm if harm not in UNUSED} - seen.keys()
    assert {
        "dies in a handler",
        "handler postpones",
        "breaker opens",
        "stale results",
        "asked: pause",
        "asked: resume",
    } <= seen.keys()
    assert seen["consumers rebuilt"] > 20


@pytest.mark.promise("P6", "P9")
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 70), marks=pytest.mark.slow)])
def test_broadcasts_programs_that_poll_and_groups_that_hear_of_dead_letters_keep_theirs(seeds: range) -> None:
    red, seen = look_at(make_way_plan, seeds)

    assert {} == red, "make simulate WORLD=ways SEED=n shows it"
    assert {"answer refused", "result given back", "later attempt", "letter rejected"} <= seen.keys()


@pytest.mark.slow
def test_consumers_keep_their_promises_in_worlds_that_nobody_has_seen() -> None:
    red = look_at_new(make_consumer_plan, make_way_plan, seconds=FRESH_S)

    assert {} == red, "make simulate WORLD=consumers or WORLD=ways SEED=n shows it"


@pytest.mark.fault("consumer: is slow, and the group rebalances")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("seeds", [range(500, 508), pytest.param(range(508, 520), marks=pytest.mark.slow)])
def test_every_message_ends_in_a_healed_world_whatever_happened_before(seeds: range) -> None:
    slowest_s = 0.0

    for seed in seeds:
        plan = make_consumer_plan(seed)
        played = play_consumers(replace(plan, faults=(*plan.faults, *HARSH)))
        assert [] == played.findings, seed
        slowest_s = max(slowest_s, played.rest_after_s)

    assert slowest_s < REST_WITHIN_S / 2


@pytest.mark.promise("P9")
@pytest.mark.parametrize("seeds", [range(600, 608), pytest.param(range(608, 700), marks=pytest.mark.slow)])
def test_when_nothing_goes_wrong_nothing_is_handled_again_that_a_handler_decided(seeds: range) -> None:
    for seed in seeds:
        for plan in (make_calm_plan(seed), *[make_way_plan(seed, make_calm_plan)] * (seed % 4 == 0)):
            assert [] == play_consumers(plan).findings, seed


@pytest.mark.fault("consumer: a key with many messages fails for hours")
@pytest.mark.slow
@pytest.mark.promise("P9")
def test_they_keep_them_where_stored_progress_names_the_keys_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # Worlds are too small for their runs to have no room.
    named_count, by_room = 0, Progress._best

    def by_key(progress: Progress, encoded: Any, ended: Any, offset: int) -> Any:
        nonlocal named_count
        waiting = progress._waiting_keys(ended, offset) if progress._waiting is None else None
        found = None if waiting is None else encoded(waiting)
        if found is None or found[0].is_cut:
            return by_room(progress, encoded, ended, offset)
        named_count += 1
        return found

    monkeypatch.setattr(Progress, "_best", by_key)

    for seed in range(60):
        assert [] == play_consumers(make_consumer_plan(seed)).findings, seed

    assert named_count > 200


@pytest.mark.slow
def test_a_seed_is_the_same_world_of_consumers_in_every_process() -> None:
    seeds = (3, 11, 70)
    here = [play_consumers(make_consumer_plan(seed)).fingerprint() for seed in seeds]

    elsewhere = fingerprints_elsewhere("consumers", seeds)

    assert [here] * len(HASH_SEEDS) == elsewhere
