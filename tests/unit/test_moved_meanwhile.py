"""Whoever takes a queue over ends at once when the group moves the partitions meanwhile: the next owner handles it, too."""

from types import SimpleNamespace
from typing import cast

import pytest

from txlayer.consumer.assignments import Assignments
from txlayer.errors import MemberFencedError


@pytest.mark.parametrize(
    ("has_moved", "is_assigned", "is_over"),
    [(False, True, False), (True, True, True), (False, False, True), (True, False, True)],
)
def test_a_take_over_ends_when_the_group_moved_or_took_everything(
    *, has_moved: bool, is_assigned: bool, is_over: bool
) -> None:
    stub = SimpleNamespace(
        take_rebalance=lambda: has_moved, assignment=object() if is_assigned else None, _plan=SimpleNamespace(group="g")
    )
    assignments = cast("Assignments", stub)

    if is_over:
        with pytest.raises(MemberFencedError):
            Assignments.raise_if_rebalanced(assignments)
    else:
        Assignments.raise_if_rebalanced(assignments)
