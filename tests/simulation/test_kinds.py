"""Worlds with faults in which something more is drawn: times of messages, what questions carry, a namespace that is closed."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.simulation.asked import make_asked_plan
from tests.simulation.doors import make_closing_plan
from tests.simulation.looked_at import look_at
from tests.simulation.plan import Plan
from tests.simulation.timed import make_timed_plan

ONCE_RED = (5596, 21011)
"""A transaction with times waited in half behind an undecided one, and the judge took it for lost; a question that a person asked for
while the check topic took none was counted and not written."""
P1, P2, P3 = pytest.mark.promise("P1"), pytest.mark.promise("P2"), pytest.mark.promise("P3")
P5, P6, P7 = pytest.mark.promise("P5"), pytest.mark.promise("P6"), pytest.mark.promise("P7")
KINDS: dict[str, tuple[Callable[[int], Plan], Iterable[int], list[pytest.MarkDecorator], set[str]]] = {
    "scheduled messages": (make_timed_plan, ONCE_RED, [P1, P2, P3, P5, P6], {"visible"}),
    "questions that carry something": (make_asked_plan, (), [P7], {"question that carries something"}),
    "a namespace that is closed": (make_closing_plan, (), [P1, P7], {"not accepted", "namespace drained"}),
}
"""How a plan is made, further seeds, promises, and what must have happened."""


def cases() -> Iterator[Any]:
    """Each kind with few seeds, and with more."""
    for kind, (_, further, marks, _) in KINDS.items():
        yield pytest.param(kind, (*range(7), *further), marks=marks)
        yield pytest.param(kind, range(7, 40), marks=[*marks, pytest.mark.slow])


@pytest.mark.parametrize(("kind", "seeds"), [*cases()])
def test_promises_hold_in_worlds_with(kind: str, seeds: Iterable[int]) -> None:
    make, _, _, wanted = KINDS[kind]
    red, seen = look_at(make, seeds)

    assert {} == red
    assert wanted <= seen.keys()
