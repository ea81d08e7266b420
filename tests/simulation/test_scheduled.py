"""Worlds with faults in which many messages have a time: every promise that can be judged must hold."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.simulation.play import play
from tests.simulation.timed import make_timed_plan

ONCE_RED = (5596, 21011)
"""A transaction with times waited in half behind an undecided one, and the judge took it for lost; a question that a person asked for
while the check topic took none was counted and not written."""


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
@pytest.mark.promise("P5")
@pytest.mark.promise("P6")
@pytest.mark.parametrize("seeds", [(*range(15), *ONCE_RED), pytest.param(range(15, 40), marks=pytest.mark.slow)])
def test_promises_hold_in_worlds_with_scheduled_messages(seeds: Sequence[int]) -> None:
    red, counts = dict[int, list[str]](), Counter[str]()
    for seed in seeds:
        played = play(make_timed_plan(seed))
        counts += played.counts
        if played.findings:
            red[seed] = [str(finding) for finding in played.findings[:3]]

    assert {} == red
    assert counts["visible"] > len(seeds)
