"""Each guard: the same world is clean with it and red without it; the list in the documentation is the list here."""

import re

import pytest

from tests.selftest.test_check_judge import PLANTED as PLANTED_CHECKS
from tests.selftest.test_run_checker import PLANTED
from tests.simulation.consumers.guards import CONSUMER_GUARDS
from tests.simulation.guards import (
    GUARDS,
    IS_SLOW,
    LOCAL_GUARDS,
    PAGE,
    PLANS,
    SECOND_LINES,
    WITHOUT,
    Guard,
    kinds_of,
    rows_of,
)
from tests.simulation.plan import make_plan
from tests.simulation.play import play
from tests.simulation.seek import found_with, found_without
from tests.simulation.society import Variant
from tests.support.checker import Kind

SECOND_LINE_SEEDS = range(200, 220)


@pytest.mark.fault("coordinator: two coordinators use one transactional id")
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_world_is_red_without_a_guard(guard: Guard[Variant]) -> None:
    red = found_without(guard, guard.seed)

    assert guard.kinds & {finding.kind for finding in red}, (
        f"{red[:3]}; python -m tests.simulation.seek looks for another seed"
    )


@pytest.mark.fault("coordinator: two coordinators use one transactional id")
@pytest.mark.slow  # `make check` sees that other worlds are clean
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_the_same_world_is_clean_with_the_guard(guard: Guard[Variant]) -> None:
    assert [] == found_with(guard, guard.seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SECOND_LINES)
def test_behind_some_guards_another_one_stands(name: str) -> None:
    for seed in SECOND_LINE_SEEDS:
        assert [] == play(make_plan(seed), variant=SECOND_LINES[name]).findings, seed


@pytest.mark.parametrize(
    ("name", "kinds"), [(row[0], row[3]) for row in rows_of("Guards of local transactions", column_count=4)]
)
def test_a_local_transaction_is_clean_with_a_guard_and_red_without(name: str, kinds: str) -> None:
    history, with_it, without_it = LOCAL_GUARDS[name]

    assert (frozenset(), kinds_of(kinds)) == (history(with_it), history(without_it))


def test_every_kind_of_finding_has_been_seen_red() -> None:
    by_guards = {kind for guard in GUARDS for kind in guard.kinds}
    by_guards |= {kind for guard in CONSUMER_GUARDS for kind in guard.kinds}
    planted = {kind for kind, _ in (PLANTED | PLANTED_CHECKS).values()}

    assert set(Kind) == by_guards | planted


def test_the_documentation_lists_the_guards_as_they_are() -> None:
    assert [*WITHOUT] == [guard.name for guard in GUARDS]
    assert [*SECOND_LINES] == [row[0] for row in rows_of("Second lines", column_count=3)]
    assert [*LOCAL_GUARDS] == [row[0] for row in rows_of("Guards of local transactions", column_count=4)]
    assert {*IS_SLOW, *PLANS} <= {*WITHOUT}


def test_the_page_names_files_that_are_there() -> None:
    root = PAGE.parents[2]
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE.read_text("utf-8")))

    assert [] == [name for name in named if not any((*root.glob(f"t*/**/{name}"), *root.glob(name)))]
