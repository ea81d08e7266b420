"""A reader that begins ten expiries ago agrees with one that read everything, whatever members that keep the rules went through."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lease_society import EXPIRY_MS, QUEUE, Society
from txlayer.core.leases import LeaseEffect, LeaseTable, LockKind, LockRecord, QueueLease

MEMBER_COUNT = 3
ACTS = ("act", "act", "act", "assign", "recreate", "crash", "send_blindly", "arrive", "release")

Step = tuple[str, int, int]
STEPS = st.tuples(
    st.sampled_from(ACTS),
    st.integers(0, MEMBER_COUNT - 1),
    st.sampled_from([0, 1_000, 10_000, 25_000, EXPIRY_MS, EXPIRY_MS + 1_000]),
)


def holder(lease: QueueLease | None) -> tuple[str, int] | None:
    return None if lease is None else (lease.holder, lease.token)


def disagreement(society: Society) -> str:
    """What a new reader and one that read everything say at the end of the log, if it is not the same."""
    if not society.log:
        return ""
    at_ms = society.log[-1].appended_ms
    start = society.begins_at()
    everything = holder(society.fold(0).holding(QUEUE, at_ms=at_ms))
    late = holder(society.fold(start).holding(QUEUE, at_ms=at_ms))
    return "" if everything == late else f"at {society.log[-1]}: {everything}, {late} from {start}"


def run(steps: list[Step], society: Society) -> str:
    """The first disagreement at any position of the log."""
    for act, place, wait_ms in steps:
        society.wait(wait_ms)
        before = len(society.log)
        getattr(society, act)(place)
        if len(society.log) > before and (found := disagreement(society)):
            return found
    return ""


@given(st.lists(STEPS, max_size=60))
@pytest.mark.promise("P10")
def test_a_reader_that_begins_ten_expiries_ago_agrees(steps: list[Step]) -> None:
    assert "" == run(steps, Society(MEMBER_COUNT))


def restless_run(seed: int, society: Society) -> str:
    """Hours of a group in which something happens all the time."""
    dice = random.Random(seed)
    waits = [0, 500, 5_000, 15_000, 25_000, EXPIRY_MS + 1_000]
    steps = [
        (dice.choice(ACTS), dice.randrange(MEMBER_COUNT), dice.choices(waits, [5, 5, 8, 8, 2, 1])[0])
        for _ in range(400)
    ]
    return run(steps, society)


def calm_run(seed: int, society: Society) -> str:
    """Hours in which a holder stays for long, and something happens now and then."""
    dice = random.Random(seed)
    steps: list[Step] = []
    for _ in range(300):
        if dice.random() < 0.05:
            steps.append((dice.choice(ACTS), dice.randrange(MEMBER_COUNT), dice.randrange(15_000)))
        steps += [("act", place, dice.randrange(10_000)) for place in range(MEMBER_COUNT)]
    return run(steps, society)


RUNS = [restless_run, calm_run]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.promise("P10")
def test_it_agrees_through_hours_of_a_group(run: Callable[[int, Society], str], seed: int) -> None:
    assert "" == run(seed, Society(MEMBER_COUNT))


# --- the guards -------------------------------------------------------------------------------------------------------


class Silent(Society):
    """Holders do not answer void claims."""

    answers_void_claims = False


class Unbelieving(LeaseTable):
    """A table that takes no other's word for a claim that it did not see win."""

    def apply(self, record: LockRecord, *, offset: int, appended_ms: int) -> LeaseEffect:
        lease = self.lease(record.queue)
        if record.kind is not LockKind.CLAIM and lease and (record.token or 0) > lease.token:
            return LeaseEffect.STALE
        return super().apply(record, offset=offset, appended_ms=appended_ms)


class Unbelieved(Society):
    """Readers believe in no renewal of a lease that they do not know."""

    table = Unbelieving


class Hasty(Society):
    """A new reader begins two expiries ago."""

    history_expiry_count = 2


@pytest.mark.parametrize("society", [Silent, Unbelieved, Hasty])
def test_without_its_guard_some_reader_does_not_agree(society: type[Society]) -> None:
    # The first two show it today.
    runs = (run(seed, society(MEMBER_COUNT)) for seed in (1, 21, *range(60)) for run in RUNS)

    assert any(runs)
