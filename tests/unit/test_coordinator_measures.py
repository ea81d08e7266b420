"""What a coordinator counts, held to a ledger that is driven through real records."""

from tests.support.core_records import BORN_MS, op_line, options, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from txlayer.coordinator.metrics import SAMPLE_COUNT_MAX, CoordinatorCounts
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.transaction import Target
from txlayer.core.messages import COMMIT, UNKNOWN, Source

A, B = txn_key("a"), txn_key("b")


class Measured:
    """A partition whose appends are measured as the loop measures them."""

    def __init__(self, targets: dict[str, Target] | None = None) -> None:
        self.driver = PartitionDriver(targets=targets)
        self.driver.now_ms = BORN_MS
        self.counts = CoordinatorCounts()
        self._stored = self.driver.ledger.positions()

    def turn(self, *, after_ms: int = 0) -> None:
        """Read and apply all; it is in the log `after_ms` later."""
        driver = self.driver
        driver.read()
        driver.advance()
        positions, batch = driver.ledger.positions(), driver.ledger.batch
        self.counts.stored(batch, self._stored, positions, now_ms=driver.now_ms + after_ms)
        self._stored = positions
        driver.publish()

    def seconds(self, stage: str) -> tuple[int, float]:
        """(how many, how long together) of a stage."""
        view = self.counts.stage_seconds[stage].view()
        return view.counts[-1], view.total


def test_a_rollback_is_counted_once() -> None:
    measured = Measured()
    offset = measured.driver.half(A)
    measured.driver.op("R", A, offset)
    measured.driver.op("R", A, offset)

    measured.turn()

    reports = measured.counts.reports
    assert (1, 1) == (measured.counts.rollback_count, reports[ReportKind.REPEAT, ""])


def test_each_stage_takes_from_its_append_to_the_next() -> None:
    measured = Measured()
    driver = measured.driver
    driver.now_ms = BORN_MS + 20
    offset = driver.half(A)
    driver.now_ms += 300
    driver.op("C", A, offset)

    measured.turn(after_ms=7)

    assert (1, 0.02) == measured.seconds("prepare")
    assert (1, 0.3) == measured.seconds("decide")
    assert (1, 0.007) == measured.seconds("forward")
    view = measured.counts.seconds.view()
    assert (1, 0.327) == (view.counts[-1], view.total)


def test_decisions_of_one_batch_have_times_of_their_own() -> None:
    measured = Measured()
    driver = measured.driver
    first, second = driver.half(A), driver.half(B)
    driver.now_ms += 1_000
    driver.op("C", A, first)
    driver.now_ms += 1_000
    driver.op("C", B, second)

    measured.turn()

    assert (2, 3.0) == measured.seconds("decide")
    assert (2, 1.0) == measured.seconds("forward")


def test_a_producer_whose_clock_is_ahead_took_no_time() -> None:
    measured = Measured()
    measured.driver.now_ms = BORN_MS - 500
    offset = measured.driver.half(A)
    measured.driver.op("C", A, offset)

    measured.turn()

    assert (1, 0.0) == measured.seconds("prepare")


def test_of_very_many_some_are_looked_at_and_all_are_counted() -> None:
    measured = Measured()
    count = 3 * SAMPLE_COUNT_MAX + 1
    keys = [txn_key(f"t{number}") for number in range(count)]
    lines = [op_line("C", key, measured.driver.half(key)) for key in keys]
    measured.driver.op_lines(*lines)

    measured.turn(after_ms=10)

    seen, total = measured.seconds("forward")
    assert count == seen
    assert abs(total - count * 0.01) < 1e-6


def test_one_that_was_held_was_decided_when_its_line_came() -> None:
    measured = Measured(targets={"orders": MISSING})
    driver = measured.driver
    offset = driver.half(A)
    driver.now_ms += 1_000
    driver.op("C", A, offset)
    measured.turn()
    driver.now_ms += 60_000
    driver.set_target("orders", ACCEPTS)

    measured.turn()

    assert (1, 1.0) == measured.seconds("decide")
    assert (1, 60.0) == measured.seconds("forward")
    assert 1 == measured.counts.reports[ReportKind.HELD, "topic-missing"]


def test_one_that_waited_for_its_key_is_measured_without_a_place_on_doubt() -> None:
    from txlayer.core.messages import OrderMode

    measured = Measured()
    driver, red = measured.driver, options("red", order=OrderMode.PREPARE)
    first, second = driver.half(A, options=red), driver.half(B, options=red)
    driver.op("C", B, second)
    measured.turn()
    driver.now_ms += 2_000
    driver.op("C", A, first)

    measured.turn()

    assert (2, 4.0) == measured.seconds("decide")


def test_answers_to_check_backs_are_counted_by_what_they_say() -> None:
    measured = Measured()
    offset = measured.driver.half(A)
    answer = op_line("U", A, offset, source=Source.CHECK, check_number=1)
    last = op_line("C", A, offset, source=Source.BARRIER, check_number=2)
    measured.driver.op_lines(answer, last)

    measured.turn()

    assert {UNKNOWN: 1, COMMIT: 1} == measured.counts.answers


def test_records_are_counted_when_their_positions_are_stored_and_not_again_after_a_crash() -> None:
    measured = Measured()
    offset = measured.driver.half(A)
    measured.driver.half(B)
    measured.driver.op("R", A, offset)
    measured.turn()

    measured.driver.crash()
    measured.turn()

    assert (2, 1, 1) == (measured.counts.half_count, measured.counts.op_count, measured.counts.rollback_count)
