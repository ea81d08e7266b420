"""A ledger against the naive model: whatever it goes through, it comes to what the two logs say.

After every append the history compares all fates, what became visible and in which order, what stands on doubt, the
positions, the memory, and what a restart at this very place would build.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import partition_history
from tests.support.core_records import options
from tests.support.partition_driver import Fact
from tests.support.partition_history import STEPS, History, Steps, _snapshot, made_up_steps
from tests.support.partition_log import Appended, PartitionLog
from tests.support.small_batches import SmallBatches
from txlayer.coordinator.recovery import Recovery
from txlayer.core.ledger.batch import Batch, Positions
from txlayer.core.ledger.doubt import DoubtIndex
from txlayer.core.ledger.forward_order import ForwardOrder
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transaction import SUMMARY_NAMES_MAX, Transaction
from txlayer.core.messages import OrderMode
from txlayer.errors import TxLayerError

NUMBERS = st.integers(0, 99)
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), NUMBERS, NUMBERS), min_size=20, max_size=100)

# Each of these once found something.
ABANDONED_WHILE_IT_WAS_BEING_HELD = [
    ("bad half", 0, 0),
    ("begin", 0, 1),
    ("half", 0, 0),
    ("half", 0, 0),
    ("op", 0, 0),
    ("op", 0, 27),
    ("target", 1, 1),
    ("op", 0, 1),
    ("turn", 1, 0),
    ("tick", 19, 0),
]
MENDED_AND_NOBODY_HEARD_OF_IT = [("begin", 1, 1), ("op", 0, 1), ("target", 1, 1), ("turn", 1, 0)]
SECOND_COPY_ABOVE_THE_LOW_WATER_MARK = [
    ("begin", 0, 0),
    ("op", 0, 0),
    ("begin", 0, 0),
    ("ghost", 0, 0),
    ("begin", 37, 0),
    ("half", 0, 0),
    ("op", 2, 0),
    ("begin", 0, 0),
    ("begin", 2, 0),
    ("twin", 2, 0),
    ("op", 2, 0),
]
SECOND_COPIES_IN_A_CHAIN = [
    ("begin", 0, 71),
    ("begin", 0, 0),
    ("op", 0, 0),
    ("begin", 1, 0),
    ("twin", 1, 0),
    ("half", 0, 0),
    ("begin", 0, 0),
    ("op", 3, 26),
    ("twin", 1, 0),
    ("op", 1, 0),
]
SECOND_COPY_BELOW_A_LATER_RECORD = [
    ("begin", 0, 0),
    ("begin", 0, 5),
    ("begin", 0, 0),
    ("twin", 1, 0),
    ("turn", 1, 0),
    ("tick", 2, 2),
    ("half", 0, 0),
    ("tick", 0, 0),
    ("turn", 1, 0),
    ("op", 1, 7),
    ("crash", 0, 0),
    ("turn", 1, 0),
]


@pytest.mark.promise("P1", "P2", "P3", "P4", "P5", "P6", "P11")
@given(HISTORIES)
@example(ABANDONED_WHILE_IT_WAS_BEING_HELD)
@example(MENDED_AND_NOBODY_HEARD_OF_IT)
@example(SECOND_COPY_ABOVE_THE_LOW_WATER_MARK)
@example(SECOND_COPIES_IN_A_CHAIN)
@example(SECOND_COPY_BELOW_A_LATER_RECORD)
def test_a_ledger_comes_to_what_the_logs_say_whatever_it_went_through(steps: Steps) -> None:
    History().play(steps)


@pytest.mark.promise("P1", "P2")
@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (0, 80),
        *(pytest.param(seed, 150, marks=pytest.mark.slow) for seed in (0, 1, 2)),
        *(pytest.param(seed, 150, marks=pytest.mark.nightly) for seed in range(3, 12)),
    ],
)
@pytest.mark.parametrize("names_max", [SUMMARY_NAMES_MAX, 0])
def test_a_history_comes_to_the_same_with_a_restart_behind_any_append(
    seed: int, count: int, names_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.transaction.SUMMARY_NAMES_MAX", names_max)
    steps = made_up_steps(2_000 + seed, count=count)
    whole = History()
    whole.play(steps)
    append_count = len(whole.driver.log.appended)

    for position in range(append_count):
        restarted = History(is_restart_tried=False, restart_at=position)
        restarted.play(steps)
        assert restarted.driver.crash_count > 0

    assert append_count > 5


class InPieces(History):
    """A history whose batches are small: the naive model comes to the same a few batches earlier."""

    def _judge(self, facts: list[Fact], appended: Appended) -> None:
        ledger, log = self.driver.ledger, self.driver.log
        self.naive.happened(facts, half_next=appended.positions.half_next)
        again = log.rebuild(targets=self.driver.book, refusals=self.driver.refusals)
        assert _snapshot(ledger) == _snapshot(again)

    def _finish(self) -> None:
        super()._finish()
        # The naive model may forward before a refusal is known.
        parked = {t.key for t in self.driver.ledger.all_unsettled()}
        assert set(self.driver.log.forwarded) == set(self.naive.forwarded) - parked
        assert len(set(self.driver.log.forwarded)) == len(self.driver.log.forwarded)


def steps_in_pieces(seed: int) -> Steps:
    """Steps under which it does not matter when one that is free is forwarded: no time, no broken topic, no abandon."""
    return [
        (what, a, b)
        for what, a, b in made_up_steps(seed, count=300)
        if what not in ("target", "tick", "twin") and (what != "op" or b % 15 < 13)
    ]


@pytest.mark.promise("P1", "P11")
@pytest.mark.parametrize("in_half_max", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_history_in_small_pieces_comes_to_the_same(
    seed: int, in_half_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in half for a decision goes to doubt one by one before it."""
    monkeypatch.setattr(partition_history, "ORDERS", (options("red", order=OrderMode.PREPARE),))
    monkeypatch.setattr("txlayer.core.ledger.ledger.BatchSize", lambda: SmallBatches(in_half_max))

    InPieces().play(steps_in_pieces(5_000 + seed))


# --- the judge judges -------------------------------------------------------------------------------------------------

SEEDS = (4, 16, *range(60))
"""The first three show all today."""

append = PartitionLog.append


def append_without_positions(log: PartitionLog, batch: Batch, _positions: Positions, *, now_ms: int) -> dict[str, int]:
    """A Kafka transaction that does not take the offsets along."""
    return append(log, batch, log.stored, now_ms=now_ms)


def append_without_ends(log: PartitionLog, batch: Batch, positions: Positions, *, now_ms: int) -> dict[str, int]:
    """A Kafka transaction that leaves what is settled on doubt."""
    batch.ends.clear()
    return append(log, batch, positions, now_ms=now_ms)


WITHOUT: dict[str, tuple[type, str, Any]] = {
    "the order of a key": (ForwardOrder, "is_free", lambda *_: True),
    "the order of a key, on the quick way": (ForwardOrder, "passes", lambda *_: True),
    "the check of a line's offset": (Transaction, "has_half_at", lambda *_: True),
    "the check that all half records are there": (Transaction, "is_complete_at", lambda *_: True),
    "a place on doubt": (Ledger, "_keep_on_doubt", lambda *_: None),
    "those who wait for one on doubt": (Ledger, "_move_those_waiting", lambda *_: None),
    "what follows when one has gone": (Ledger, "_proceed_with_free", lambda *_: None),
    "what joins on doubt": (Transaction, "joined", property(lambda _: [])),
    "the low-water mark": (Ledger, "_unsettled_in_half", lambda *_: iter(())),
    "the topics of what is on doubt": (DoubtIndex, "held_in_vain", lambda *_: []),
    "the cut of an op record that is applied in part": (
        Recovery,
        "applied_lines",
        staticmethod(lambda value, _: value),
    ),
    "tombstones": (PartitionLog, "append", append_without_ends),
    "positions in the same append": (PartitionLog, "append", append_without_positions),
}


def finds_something(seed: int) -> bool:
    """True when the history of this seed is judged wrong."""
    try:
        History().play(made_up_steps(seed, count=120))
    except (AssertionError, LookupError, TxLayerError):
        return True
    return False


@pytest.mark.parametrize("guard", WITHOUT)
def test_without_a_guard_histories_fail(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*WITHOUT[guard])

    assert any(finds_something(seed) for seed in SEEDS)
