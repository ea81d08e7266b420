"""How far half is remembered: at least the distance, and not much more. How many settled transactions are."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.partition_log import SETTINGS
from txlayer.coordinator.recovery import empty_ledgers
from txlayer.core.ledger.remembered import DISTANCE_BYTES_MAX, DISTANCE_MAX, HalfMarks, RecentlySettled
from txlayer.core.ledger.transitions import TxnState

READS = st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 6_000_000)), min_size=1)


@given(start=st.integers(0, 9), reads=READS, behind=st.integers(0, 50_000))
def test_the_distance_is_covered_and_little_more(start: int, reads: list[tuple[int, int]], behind: int) -> None:
    marks = HalfMarks()
    marks.begin(start)
    places = [(start, 0)]
    low_water = start
    for record_count, byte_count in reads:
        places.append((places[-1][0] + record_count, places[-1][1] + byte_count))
        marks.passed(*places[-1])
        low_water = max(low_water, places[-1][0] - behind)

        found = marks.copies_from(low_water)

        assert start <= found <= low_water
        before = [b for offset, b in places if offset <= found][-1]
        up_to = next(b for offset, b in places if offset >= low_water)
        is_covered = low_water - found >= DISTANCE_MAX or up_to - before >= DISTANCE_BYTES_MAX
        assert is_covered or start == found
        # A step, and a read at either end.
        assert low_water - found <= 1.25 * DISTANCE_MAX + 2 * 10_000


def test_what_lies_before_the_marks_is_not_known() -> None:
    marks = HalfMarks()
    marks.begin(7)

    assert 5 == marks.copies_from(5)


def test_large_records_end_the_distance_early() -> None:
    marks = HalfMarks()
    marks.begin(0)
    for count in range(1, 101):
        marks.passed(count, count * 1_000_000)

    assert 100 - 25 < marks.copies_from(100) < 100 - 15


@pytest.mark.promise("P11")
@pytest.mark.parametrize(("partition_count", "kept_max"), [(4, 100_000), (64, 30_000)])
def test_what_a_process_remembers_of_settled_transactions_does_not_grow_with_its_partitions(
    partition_count: int, kept_max: int
) -> None:
    settled = empty_ledgers(range(partition_count), settings=SETTINGS, targets={}, refusals={})[0].settled

    for number in range(150_000):
        settled.add(f"t-{number}", TxnState.COMMITTED, first_offset=number)
        settled.forget_old_ones(half_next=number + 1)

        assert len(settled.newer) + len(settled.older) <= kept_max + 1
    assert all(f"t-{number}" in settled for number in range(150_000 - DISTANCE_MAX, 150_000))


@pytest.mark.parametrize("partition_count", [1, 20])
def test_a_decision_is_remembered_for_as_many_further_transactions_as_the_page_of_promises_says(
    partition_count: int,
) -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "promises.md"
    found = re.search(r"after ([0-9,]+) further transactions of the partition \(([0-9,]+) if its", page.read_text())
    assert found is not None
    promised = int(found[1 if partition_count == 1 else 2].replace(",", ""))
    settled, last = RecentlySettled(), promised + 1
    settled.share_memory(partition_count=partition_count)

    for number in range(last + promised):
        half_offset = 4 * number
        settled.add(f"t{number}", TxnState.COMMITTED, first_offset=half_offset)
        settled.forget_old_ones(half_next=half_offset + 4)
        if number >= last:
            assert TxnState.COMMITTED is settled.state_of(f"t{number - promised}")
