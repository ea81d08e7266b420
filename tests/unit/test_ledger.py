"""One partition: lines that decide nothing, that end what cannot go, and that wait."""

import pytest

from tests.support.core_records import op_line, txn_key
from tests.support.partition_driver import PartitionDriver
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.transitions import TxnState

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")


@pytest.mark.promise("P4")
@pytest.mark.parametrize("resolution", ["C", "R", "U", "A"])
@pytest.mark.parametrize("is_on_doubt", [False, True])
def test_a_line_of_another_producer_group_decides_nothing(resolution: str, *, is_on_doubt: bool) -> None:
    driver = PartitionDriver()
    if is_on_doubt:
        driver.move_to_doubt(A)
    else:
        driver.half(A)
    driver.op_lines(op_line(resolution, A, 0, group="strangers"))

    driver.turn()

    assert ([], TxnState.OPEN) == (driver.log.visible, driver.state(A))
    assert [A] == driver.reported(ReportKind.WRONG_GROUP)


def test_an_abandon_ends_what_was_committed_and_cannot_go() -> None:
    driver = PartitionDriver()
    offset = driver.half(A, index=0, count=2)
    driver.op("C", A, offset)
    driver.op("R", A, offset)
    driver.op("A", A, offset)

    driver.turn()

    assert ([], [], {}) == (driver.log.visible, list(driver.ledger.transactions), driver.log.on_doubt())
    assert [A] == driver.reported(ReportKind.CONFLICT), "of the rollback alone"


def test_a_line_waits_until_its_half_record_was_read() -> None:
    driver = PartitionDriver()
    driver.op("C", B, driver.half(B))
    driver.op("C", A, driver.half(A))

    driver.read(half=1)
    driver.read(half=0)
    driver.advance()
    assert ([B], 1, False) == (
        [txn.key for txn in driver.ledger.batch.forwards],
        driver.ledger.waits_for_half,
        driver.ledger.has_more,
    )
    driver.read()
    driver.advance()

    assert [B, A] == [txn.key for txn in driver.ledger.batch.forwards]
    assert None is driver.ledger.waits_for_half
