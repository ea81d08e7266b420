"""A few thousand inputs for every reader of bytes; `make fuzz` feeds a million."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutation import CORPUS, corpus_of, mutated
from tests.fuzz.run import feed
from tests.fuzz.targets import TARGETS, Target
from tests.support.seed import SEED, say

BRIEF_COUNT = 20_000


@pytest.mark.fault(
    "data: garbage: no header, an unknown version, not UTF-8, no id, a thousand headers",
    "data: null values, control characters, or impossible topic names",
)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_stops_a_target(target: Target) -> None:
    shares = sum(each.share for each in TARGETS)
    count = BRIEF_COUNT * target.share // shares + len(corpus_of(target.name))

    fed = feed(target, input_count=count, seed=SEED, is_kept=False)

    say(fed)
    assert [] == fed.findings
    assert fed.accepted_count
    assert fed.accepted_count < fed.input_count


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_bytes_that_hypothesis_draws_stop_a_target(target: Target) -> None:
    corpus = corpus_of(target.name)

    @given(st.binary(max_size=80) | st.randoms(use_true_random=False).map(lambda r: near(corpus, r)))
    def try_out(raw: bytes) -> None:
        target.check(raw)

    try_out()


def near(corpus: list[bytes], dice: Random) -> bytes:
    """A mutation, by hypothesis's dice."""
    return mutated(corpus, dice)


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {target.name for target in TARGETS} == {path.name for path in CORPUS.iterdir()}


def test_a_finding_is_told_with_its_input(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(raw: bytes) -> bool:
        raise LookupError(raw)

    fed = feed(Target("origin", refuse), input_count=1, seed=1, is_kept=False)

    assert 1 == len(fed.findings)
    assert repr(corpus_of("origin")[0]) in capsys.readouterr().out
