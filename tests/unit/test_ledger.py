"""One partition: what op lines do to transactions, in which order, and what is kept aside."""

from __future__ import annotations

import pytest

from tests.support.fake_records import FAR_AWAY, half_header, op_line, options, txn_key
from tests.support.partition_driver import ACCEPTS, PartitionDriver
from txlayer.core.batch import ReportKind
from txlayer.core.messages import OrderMode
from txlayer.core.transitions import TxnState

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")


def kept_aside(driver: PartitionDriver) -> list[tuple[str, int]]:
    """Where the records stood that were kept aside."""
    return [(origin.topic, origin.offset) for origin in driver.log.kept_aside]


# --- resolutions ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P1")
def test_a_committed_message_is_forwarded_as_it_was_written() -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A, value=b"one book"))

    driver.turn()

    (message,) = driver.log.visible
    assert (A, 0, 1, "orders", 0, b"k", b"one book") == tuple(message)


@pytest.mark.promise("P3")
def test_a_rolled_back_message_is_never_seen() -> None:
    driver = PartitionDriver()
    driver.op("R", A, driver.half(A))

    driver.turn()

    assert ([], {}) == (driver.log.visible, driver.ledger.transactions)


@pytest.mark.promise("P3")
def test_an_undecided_message_is_not_seen() -> None:
    driver = PartitionDriver()
    driver.op("U", A, driver.half(A))

    driver.turn()

    assert ([], TxnState.OPEN) == (driver.log.visible, driver.state(A))


def test_an_unknown_is_counted_as_an_answer() -> None:
    driver = PartitionDriver()
    offset = driver.half(A)
    driver.op("U", A, offset)
    driver.op("U", A, offset)

    driver.turn()

    assert 2 == driver.ledger.transactions[A].extra().answered_count


def test_a_null_value_is_forwarded_as_it_is() -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A, value=None))

    driver.turn()

    assert [None] == [message.value for message in driver.log.visible]


@pytest.mark.promise("P5")
def test_all_messages_of_a_transaction_become_visible_at_once() -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "stock": ACCEPTS})
    driver.half(A, index=0, count=2)
    driver.op("C", A, driver.half(A, index=1, count=2, topic="stock"))

    driver.turn(lines=1)

    (appended,) = driver.log.appended
    assert [("orders", 0), ("stock", 1)] == [(m.topic, m.index) for m in appended.messages]


@pytest.mark.promise("P5")
def test_a_commit_whose_half_records_are_not_all_there_is_parked() -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A, index=0, count=2))

    driver.turn()

    assert ([], TxnState.PARKED_COMMITTED) == (driver.log.visible, driver.state(A))
    assert "incomplete" == driver.log.on_doubt()[A].summary().reason


@pytest.mark.promise("P5")
def test_a_line_that_names_an_earlier_record_commits_what_was_there_then() -> None:
    # Whatever else was read meanwhile: what a line does must not depend on how far half was read.
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A, index=0, count=2))
    driver.half(A, index=1, count=2)

    driver.turn()

    assert ([], TxnState.PARKED_COMMITTED) == (driver.log.visible, driver.state(A))
    assert [0, 1] == sorted(driver.log.contents_on_doubt(A))


def test_an_incomplete_one_that_becomes_whole_goes_with_the_next_commit() -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A, index=0, count=2))
    driver.turn()

    driver.op("C", A, driver.half(A, index=1, count=2))
    driver.turn()

    assert [0, 1] == [message.index for message in driver.log.visible]
    assert {} == driver.log.on_doubt()
    assert {} == driver.log.contents_on_doubt(A)


# --- one decision -----------------------------------------------------------------------------------------------------


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
    driver.op("C", A, offset)
    driver.turn()
    driver.crash()

    driver.op("R", A, offset)
    driver.turn()

    assert ([A], 1) == (driver.reported(ReportKind.UNMATCHED), len(driver.log.visible))


@pytest.mark.promise("P4")
def test_attempts_of_one_id_are_two_transactions() -> None:
    driver = PartitionDriver()
    first, second = txn_key("a", nonce="00000001"), txn_key("a", nonce="00000002")
    driver.op("R", first, driver.half(first))
    driver.op("C", second, driver.half(second))

    driver.turn()

    assert [second] == driver.log.forwarded


@pytest.mark.promise("P4")
def test_a_line_that_names_no_half_record_of_its_transaction_decides_nothing() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.op("C", A, driver.half(B))

    driver.turn()

    assert ([], TxnState.OPEN) == (driver.log.visible, driver.state(A))
    assert [A] == driver.reported(ReportKind.WRONG_OFFSET)


def test_an_abandon_ends_what_was_committed_and_cannot_go() -> None:
    driver = PartitionDriver()
    offset = driver.half(A, index=0, count=2)
    driver.op("C", A, offset)
    driver.op("R", A, offset)
    driver.op("A", A, offset)

    driver.turn()

    assert ([], {}, {}) == (driver.log.visible, driver.ledger.transactions, driver.log.on_doubt())
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
    driver.op("C", C, driver.half(C, options=blue))
    driver.turn()
    assert ([C], TxnState.WAITING) == (driver.log.forwarded, driver.state(B))

    driver.op("C", A, first)
    driver.turn()

    assert [C, A, B] == driver.log.forwarded


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_batch_ends_at_the_line_where_its_limit_is() -> None:
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(5)]
    driver.op_lines(*(op_line("C", key, driver.half(key)) for key in keys))

    driver.turn(lines=2)
    assert (keys[:2], 0, 2) == (
        driver.log.forwarded,
        driver.log.stored.op_offset,
        driver.log.stored.op_line,
    )
    assert driver.ledger.has_more
    driver.turn(lines=2)
    driver.turn(lines=2)

    assert (keys, False) == (driver.log.forwarded, driver.ledger.has_more)


@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_batch_ends_with_the_line_that_fills_it(is_keyed: bool) -> None:
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(3)]
    for key in keys:
        of = options("red") if is_keyed else options()
        driver.op("C", key, driver.half(key, value=b"x" * 100, options=of))

    driver.turn(byte_count=150)

    assert keys[:2] == driver.log.forwarded


def test_lines_from_which_nothing_follows_do_not_fill_a_batch() -> None:
    # Nothing would be appended then, and the next turn would find the batch full: it would stand still.
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(5)]
    for key in keys:
        driver.op("R", key, driver.half(key))
    driver.read()

    for _ in keys:
        assert driver.advance(lines=1).is_empty

    assert {} == driver.ledger.transactions


def test_lines_read_ahead_are_counted() -> None:
    driver = PartitionDriver()
    driver.op_lines(op_line("C", A, 0), op_line("C", B, 1))
    driver.read()
    assert 2 == driver.ledger.ahead_line_count

    driver.half(A)
    driver.half(B)
    driver.turn()

    assert 0 == driver.ledger.ahead_line_count


def test_settled_transactions_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.RECENT_COUNT_MAX", 2)
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(7)]
    for key in keys:
        driver.op("C", key, driver.half(key))
        driver.turn()

    for n, key in enumerate(keys):
        driver.op("R", key, n)
    driver.turn()

    assert keys[-4:] == driver.reported(ReportKind.CONFLICT)
    assert keys[:-4] == driver.reported(ReportKind.UNMATCHED)


# --- what is none of ours ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, b"", b"\xff"])
def test_an_op_record_that_cannot_be_read_is_kept_aside_in_its_turn(value: bytes | None) -> None:
    driver = PartitionDriver()
    driver.op_lines(op_line("C", A, driver.half(A)), op_line("C", B, driver.half(B)))
    driver.log.add_op(value, appended_ms=driver.now_ms)
    driver.op("C", C, driver.half(C))

    driver.turn(lines=1)
    assert [] == kept_aside(driver), "the lines before it come first"
    driver.turn()

    assert ([("txlayer.op", 1)], [A, B, C]) == (kept_aside(driver), driver.log.forwarded)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "garbage",
        "1|C|a|b|c|d|e|f|g",
        op_line("C", A, 0).replace("1|C", "2|C"),
        op_line("C", A, 0).replace("1|C", "1|X"),
        op_line("C", A, 0).replace("producer", "nobody"),
        op_line("C", A, 0) + "|",
        op_line("C", A, 0).replace("|0|", "|+0|"),
        op_line("C", A, FAR_AWAY).replace("1|C", "2|C"),
    ],
)
def test_a_line_that_cannot_be_read_is_kept_aside_and_the_next_one_acts(line: str) -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.op_lines(line, op_line("R", A, 0))

    driver.turn()

    assert ([("txlayer.op", 0)], {}) == (kept_aside(driver), driver.ledger.transactions)


def test_a_line_beyond_the_end_of_half_is_given_up_and_its_transaction_parked() -> None:
    driver = PartitionDriver()
    driver.op_lines(op_line("C", A, FAR_AWAY), op_line("C", B, driver.half(B)))
    driver.read()
    driver.advance()
    assert ([], FAR_AWAY) == (driver.ledger.batch.forwards, driver.ledger.waits_for_half)

    driver.give_up()
    driver.turn()

    assert ([B], TxnState.PARKED) == (driver.log.forwarded, driver.state(A))
    assert "misplaced" == driver.log.on_doubt()[A].summary().reason
    assert [("txlayer.op", 0)] == kept_aside(driver)


def test_half_records_that_come_later_join_what_was_parked() -> None:
    driver = PartitionDriver()
    driver.op("C", A, FAR_AWAY)
    driver.read()
    driver.advance()
    driver.give_up()
    driver.publish()

    driver.half(A, index=0, count=2)
    driver.turn()
    last = driver.half(A, index=1, count=2)
    driver.crash()
    driver.op("C", A, last)
    driver.turn()

    assert [0, 1] == [message.index for message in driver.log.visible]
    assert {} == driver.log.contents_on_doubt(A)


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_misplaced_line_of_a_known_transaction_is_kept_aside_alone(is_settled: bool) -> None:
    driver = PartitionDriver()
    offset = driver.half(A)
    driver.op_lines(*[op_line("R", A, offset)] * is_settled, op_line("C", A, FAR_AWAY))
    driver.read()
    driver.advance()

    driver.give_up()
    driver.turn()

    assert (None if is_settled else TxnState.OPEN) is driver.state(A)
    assert ({}, [("txlayer.op", 0)]) == (driver.log.on_doubt(), kept_aside(driver))


def test_a_misplaced_line_in_the_middle_of_a_record_is_passed_over() -> None:
    driver = PartitionDriver()
    good = driver.half(B)
    driver.op_lines(op_line("C", B, good), op_line("C", A, FAR_AWAY), op_line("U", B, good))
    driver.turn()

    driver.give_up()
    driver.turn()

    assert (1, 0, [B]) == (
        driver.log.stored.op_offset,
        driver.log.stored.op_line,
        driver.reported(ReportKind.REPEAT),
    )


def test_a_half_header_may_not_be_taken_for_another_version() -> None:
    driver = PartitionDriver()
    driver.half_raw(half_header(A).replace(b"1|", b"2|", 1))

    driver.turn()

    assert ([("txlayer.half", 0)], {}) == (kept_aside(driver), driver.ledger.transactions)
