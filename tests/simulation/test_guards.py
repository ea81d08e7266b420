"""Each guard: the same world is clean with it and red without it; the list in the documentation is the list here."""

from pathlib import Path

import pytest

from tests.selftest.test_check_judge import PLANTED as PLANTED_CHECKS
from tests.selftest.test_run_checker import PLANTED
from tests.simulation.consumers.guards import CONSUMER_GUARDS
from tests.simulation.guards import GUARDS, LOCAL_GUARDS, SECOND_LINES, Guard, LocalGuard, SecondLine
from tests.simulation.plan import make_plan
from tests.simulation.play import play
from tests.simulation.seek import with_it, without
from tests.support.checker import Kind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "guards.md"
SECOND_LINE_SEEDS = range(200, 220)


@pytest.mark.fault("coordinator: two coordinators use one transactional id")
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_world_is_clean_with_a_guard_and_red_without(guard: Guard) -> None:
    plan = guard.plan(guard.seed)

    clean = play(plan, variant=with_it(guard))
    red = play(plan, variant=without(guard))

    assert [] == clean.findings
    assert guard.kinds & {finding.kind for finding in red.findings}, (
        f"{red.findings[:3]}; python -m tests.simulation.seek looks for another seed"
    )


@pytest.mark.slow
@pytest.mark.parametrize("line", SECOND_LINES, ids=lambda line: line.name)
def test_behind_some_guards_another_one_stands(line: SecondLine) -> None:
    for seed in SECOND_LINE_SEEDS:
        assert [] == play(make_plan(seed), variant=line.without).findings, seed


@pytest.mark.parametrize("guard", LOCAL_GUARDS, ids=lambda guard: guard.name)
def test_a_local_transaction_is_clean_with_a_guard_and_red_without(guard: LocalGuard) -> None:
    assert frozenset() == guard.history(guard.with_it)
    assert guard.kinds == guard.history(guard.without)


def test_every_kind_of_finding_has_been_seen_red() -> None:
    by_guards = {kind for guard in GUARDS for kind in guard.kinds}
    by_guards |= {kind for guard in CONSUMER_GUARDS for kind in guard.kinds}
    planted = {kind for kind, _ in (PLANTED | PLANTED_CHECKS).values()}

    assert set(Kind) == by_guards | planted


def test_the_documentation_lists_the_guards_as_they_are() -> None:
    rows = rows_of("")

    assert [row_of(guard) for guard in GUARDS] == rows[: len(GUARDS)]
    second_lines = [second_row_of(line) for line in SECOND_LINES]
    assert second_lines == rows[len(GUARDS) : len(GUARDS) + len(second_lines)]
    assert [local_row_of(guard) for guard in LOCAL_GUARDS] == rows[len(GUARDS) + len(second_lines) :]


def rows_of(part: str) -> list[str]:
    """The rows of the tables below the heading `part` of the page, or of those above it when it is ""; without their heads."""
    before, _, behind = PAGE.read_text("utf-8").partition("\n## Consumers\n")
    lines = (behind if part else before).splitlines()
    is_head = [line.startswith("| guard |") for line in lines]
    return [
        line
        for line, head in zip(lines, is_head, strict=True)
        if line.startswith("| ") and "---" not in line and not head
    ]


def row_of(guard: Guard) -> str:
    kinds = ", ".join(sorted(kind.value for kind in guard.kinds))
    return f"| {guard.name} | {guard.promise} | `{guard.place}` | {kinds} | {guard.seed} |"


def second_row_of(line: SecondLine) -> str:
    return f"| {line.name} | `{line.place}` | {line.why} |"


def local_row_of(guard: LocalGuard) -> str:
    kinds = ", ".join(sorted(kind.value for kind in guard.kinds))
    return f"| {guard.name} | {guard.promise} | `{guard.place}` | {kinds} |"
