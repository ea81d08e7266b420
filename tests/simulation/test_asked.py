"""Worlds with faults in which questions carry what their transactions asked for."""

from collections import Counter

import pytest

from tests.simulation.asked import make_asked_plan
from tests.simulation.play import play


@pytest.mark.promise("P7")
@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 40), marks=pytest.mark.slow)])
def test_questions_carry_what_was_asked_for_in_worlds_with_faults(seeds: range) -> None:
    red, counts = dict[int, list[str]](), Counter[str]()
    for seed in seeds:
        played = play(make_asked_plan(seed))
        counts += played.counts
        if played.findings:
            red[seed] = [str(finding) for finding in played.findings[:3]]

    assert {} == red
    assert counts["question that carries something"] > len(seeds)
