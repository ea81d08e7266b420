"""One partition: what op lines do to transactions, in which order, and what is kept aside."""

import pytest

from tests.support.core_records import op_line, options, txn_key
from tests.support.partition_driver import ACCEPTS, PartitionDriver
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import OrderMode

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")


# --- resolutions ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P1")
@pytest.mark.parametrize("value", [b"one book", None])
def test_a_committed_message_is_forwarded_as_it_was_written(value: bytes | None) -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A, value=value))

    driver.turn()

    (message,) = driver.log.visible
    assert (A, 0, 1, "orders", 0, b"k", value) == tuple(message)


@pytest.mark.promise("P3")
@pytest.mark.parametrize("letter", ["R", "U"])
def test_what_is_rolled_back_or_undecided_is_not_seen(letter: str) -> None:
    driver = PartitionDriver()
    driver.op(letter, A, driver.half(A))

    driver.turn()

    assert [] == driver.log.visible
    left = {key: (txn.state, txn.extras) for key, txn in driver.ledger.transactions.items()}
    assert ({A: (TxnState.OPEN, None)} if letter == "U" else {}) == left


@pytest.mark.promise("P5")
def test_all_messages_of_a_transaction_become_visible_at_once() -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "stock": ACCEPTS})
    driver.half(A, index=0, count=2)
    driver.op("C", A, driver.half(A, index=1, count=2, topic="stock"))

    driver.turn(lines=1)

    (appended,) = driver.log.appended
    assert [("orders", 0), ("stock", 1)] == [(m.topic, m.index) for m in appended.messages]


@pytest.mark.promise("P5")
def test_a_line_that_names_an_earlier_record_commits_what_was_there_then() -> None:
    # Whatever else was read meanwhile: what a line does must not depend on how far half was read.
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A, index=0, count=2))
    driver.half(A, index=1, count=2)

    driver.turn()

    assert ([], TxnState.PARKED_COMMITTED) == (driver.log.visible, driver.state(A))
    assert [0, 1] == sorted(driver.log.contents_on_doubt(A))


@pytest.mark.promise("P5")
def test_an_incomplete_one_is_parked_and_goes_with_the_next_commit_once_it_is_whole() -> None:
    driver = PartitionDriver()
    driver.say("C", A, driver.half(A, index=0, count=2))
    assert ([], TxnState.PARKED_COMMITTED) == (driver.log.visible, driver.state(A))
    assert "incomplete" == driver.log.on_doubt()[A].summary().reason

    driver.say("C", A, driver.half(A, index=1, count=2))

    assert [0, 1] == [message.index for message in driver.log.visible]
    assert {} == driver.log.on_doubt()
    assert {} == driver.log.contents_on_doubt(A)


# --- one decision -----------------------------------------------------------------------------------------------------


@pytest.mark.fault("producer: is frozen, and goes on after another instance decided")
@pytest.mark.promise("P4")
@pytest.mark.parametrize(("first", "second"), ["CR", "RC", "CA"])
def test_the_first_decision_stands_and_a_contrary_one_is_reported(first: str, second: str) -> None:
    driver = PartitionDriver()
    offset = driver.half(A)
    driver.op(first, A, offset)
    driver.op(second, A, offset)

    driver.turn()

    assert (1 if first == "C" else 0) == len(driver.log.visible)
    assert [A] == driver.reported(ReportKind.CONFLICT)


@pytest.mark.promise("P2")
@pytest.mark.parametrize("repeated", ["CC", "RR", "CU", "RU", "RA"])
def test_a_repeated_resolution_changes_nothing(repeated: str) -> None:
    driver = PartitionDriver()
    offset = driver.half(A)
    driver.op_lines(*(op_line(letter, A, offset) for letter in repeated))

    driver.turn()

    assert (1 if repeated[0] == "C" else 0) == len(driver.log.visible)
    assert [A] == driver.reported(ReportKind.REPEAT)


def test_a_resolution_long_after_the_end_is_reported_as_unmatched() -> None:
    driver = PartitionDriver()
    offset = driver.half(A)
    driver.say("C", A, offset)
    driver.crash()

    driver.say("R", A, offset)

    assert ([A], 1) == (driver.reported(ReportKind.UNMATCHED), len(driver.log.visible))


@pytest.mark.promise("P4")
def test_attempts_of_one_id_are_two_transactions() -> None:
    driver = PartitionDriver()
    first, second = txn_key("a", nonce="00000001"), txn_key("a", nonce="00000002")
    driver.op("R", first, driver.half(first))
    driver.op("C", second, driver.half(second))

    driver.turn()

    assert [second] == driver.log.forwarded


@pytest.mark.threat("write `<ns>.check`")
@pytest.mark.promise("P4")
def test_a_line_that_names_no_half_record_of_its_transaction_decides_nothing() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.op("C", A, driver.half(B))

    driver.turn()

    assert ([], TxnState.OPEN) == (driver.log.visible, driver.state(A))
    assert [A] == driver.reported(ReportKind.WRONG_OFFSET)


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


# --- order of lines ---------------------------------------------------------------------------------------------------


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


def test_lines_are_applied_strictly_in_order() -> None:
    driver = PartitionDriver()
    late = driver.half(A)
    early = driver.half(B)
    driver.op("C", B, early)
    driver.op("C", A, late)

    driver.read(half=1)
    driver.advance()
    assert driver.ledger.batch.is_empty, "the first line's half record is not read"
    driver.turn()

    assert [B, A] == driver.log.forwarded


@pytest.mark.promise("P6")
def test_commits_of_one_key_become_visible_in_the_order_of_the_op_log() -> None:
    driver = PartitionDriver()
    red = options("red")
    first, second = driver.half(A, options=red), driver.half(B, options=red)
    driver.op_lines(op_line("C", B, second), op_line("C", A, first))

    driver.turn()

    assert [B, A] == driver.log.forwarded


@pytest.mark.promise("P6")
def test_in_prepare_order_a_later_one_waits_for_the_earlier_one_of_its_key_alone() -> None:
    driver = PartitionDriver()
    red, blue = options("red", order=OrderMode.PREPARE), options("blue", order=OrderMode.PREPARE)
    first = driver.half(A, options=red)
    driver.op("C", B, driver.half(B, options=red))
    driver.say("C", C, driver.half(C, options=blue))
    assert ([C], TxnState.WAITING) == (driver.log.forwarded, driver.state(B))

    driver.say("C", A, first)

    assert [C, A, B] == driver.log.forwarded
