"""What a batch is, and how the one bad line of a Kafka transaction is found."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_records import GROUP, plain_record, txn_key
from txlayer.core.batch_size import PASSES_TO_GROW, BatchSize, Bisection
from txlayer.core.ledger.batch import Batch, MoveToDoubt, RecordToQuarantine, Report, ReportKind
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.messages import Origin, Undecodable

TXN = Transaction(txn_key("a"), GROUP, "orders", 0, 0, "0", (0, 0), plain_record())
ASIDE = RecordToQuarantine(Origin("txlayer.half", 0, 0), plain_record(), None, 0, Undecodable("garbage"))


def test_a_fresh_batch_is_empty() -> None:
    assert Batch().is_empty


@pytest.mark.parametrize(
    "batch",
    [
        Batch(forwards=[TXN]),
        Batch(to_doubt={TXN.key: MoveToDoubt(TXN, is_whole=True)}),
        Batch(ends=[TXN]),
        Batch(quarantined=[ASIDE]),
    ],
)
def test_a_batch_with_something_to_write_is_not_empty(batch: Batch) -> None:
    assert not batch.is_empty


def test_reports_and_counts_alone_are_nothing_to_write() -> None:
    batch = Batch(reports=[Report(ReportKind.REPEAT, TXN.key, "")], line_count=5, byte_count=9)

    assert batch.is_empty


class Line:
    """Runs of op lines through a broker that refuses one of them, as the coordinator makes them."""

    def __init__(self, *, count: int, bad: int, line_count_max: int) -> None:
        self.count, self.bad, self.line_count_max = count, bad, line_count_max
        self.bisection = Bisection()
        self.done = 0
        self.failure_count = 0

    def run(self) -> int | None:
        """One Kafka transaction; the bad line's place once it is alone."""
        limit = self.line_count_max
        if self.bisection.is_active:
            limit = min(limit, self.bisection.line_count_max)
        taken = range(self.done, min(self.done + limit, self.count))
        if self.bad not in taken:
            self.bisection.passed(len(taken))
            self.done = taken.stop
            return None
        self.failure_count += 1
        return self.bad if self.bisection.failed(len(taken)) else None


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P11")
@given(st.data(), st.integers(1, 5_000), st.integers(1, 3_000))
def test_a_bad_line_is_found_within_log2_of_the_run_whatever_its_place(
    data: st.DataObject, count: int, line_count_max: int
) -> None:
    line = Line(count=count, bad=data.draw(st.integers(0, count - 1)), line_count_max=line_count_max)

    found = None
    while found is None:
        found = line.run()

    assert line.bad == found
    # The first failure says that there is one; each further one halves the run.
    assert line.failure_count <= 1 + ceil(log2(min(count, line_count_max)))


@given(st.integers(2, 5_000), st.integers(0, 4_999))
def test_everything_goes_on_at_full_speed_once_the_line_is_known(count: int, place: int) -> None:
    line = Line(count=count, bad=place % count, line_count_max=1_000)
    while line.run() is None:
        pass

    line.bisection.found()
    line.bad = -1

    assert not line.bisection.is_active
    assert line.run() is None
    assert not line.bisection.is_active


def test_suspicion_ends_when_all_suspects_went_through() -> None:
    bisection = Bisection()
    bisection.failed(8)

    for _ in range(2):
        assert 4 >= bisection.line_count_max
        bisection.passed(4)

    assert not bisection.is_active


def test_a_run_without_lines_that_fails_is_as_small_as_it_gets() -> None:
    # Time alone may forward: what was held for a topic that is mended.
    bisection = Bisection()

    assert bisection.failed(0)
    assert 1 == bisection.line_count_max


@pytest.mark.promise("P11")
def test_the_run_shrinks_even_when_one_line_brings_more_records_than_lines_were_allowed() -> None:
    # make simulate SEED=656917073739: two lines released two waiting transactions more, and were tried for ever.
    bisection = Bisection()

    allowed = [bisection.line_count_max for _ in range(3) if not bisection.failed(4)]

    assert [2, 1] == allowed[:2]
    assert bisection.failed(4)


def test_batches_shrink_until_they_go_through_and_grow_slowly() -> None:
    size = BatchSize()
    for _ in range(3):
        size.failed()
    assert (2, 1) == (size.of(16), size.of(1))

    for _ in range(PASSES_TO_GROW - 1):
        size.passed()
    assert 2 == size.of(16)
    size.passed()
    assert 4 == size.of(16)
    size.failed()
    assert 2 == size.of(16)
    for _ in range(3 * PASSES_TO_GROW):
        size.passed()
    assert 16 == size.of(16)


def test_a_batch_never_shrinks_to_nothing() -> None:
    size = BatchSize()
    for _ in range(100):
        size.failed()

    assert 1 == size.of(1)
    assert 2 == size.of(10_000)
