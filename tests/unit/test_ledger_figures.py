"""One partition: how much one batch may take, what it says of its lines' times, and who is still known afterwards."""

from dataclasses import replace

import pytest

from tests.support.core_records import op_line, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from tests.support.partition_log import SETTINGS
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import Resolution, Source

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS
IMMUNITY_MS = 6_000


def holding(*keys: str) -> PartitionDriver:
    """A driver with these held on doubt, because their topic is missing."""
    driver = PartitionDriver(targets={"orders": MISSING, "stock": ACCEPTS})
    for key in keys:
        driver.op("C", key, driver.half(key))
    driver.turn()
    assert set(keys) == set(driver.log.on_doubt())
    return driver


# --- what a batch says ------------------------------------------------------------------------------------------------


def test_forwards_are_marked_with_the_times_at_which_their_op_records_were_appended() -> None:
    driver = PartitionDriver()
    places = [driver.half(key) for key in (A, B, C)]
    first_ms = driver.now_ms
    driver.op("C", A, places[0])
    driver.op("C", B, places[1])
    driver.now_ms += 5
    driver.op("C", C, places[2])
    driver.read()

    marks = driver.advance().marks

    assert [(0, first_ms), (2, first_ms + 5)] == marks


def test_rollbacks_and_answers_are_counted_one_by_one() -> None:
    driver = PartitionDriver()
    places = {key: driver.half(key) for key in (A, B, C)}
    driver.op_lines(
        op_line("R", A, places[A], source=Source.CHECK),
        op_line("R", B, places[B], source=Source.BARRIER),
        op_line("C", C, places[C]),
    )
    driver.read()

    batch = driver.advance()

    assert (2, {Resolution.ROLLBACK: 2}) == (batch.rollback_count, batch.answers)


# --- how much may go to doubt at once -----------------------------------------------------------------------------------


def test_what_the_batch_keeps_already_counts_among_its_moves() -> None:
    driver = PartitionDriver(targets={"orders": MISSING, "stock": ACCEPTS})
    driver.half(A, topic="stock")
    driver.half(B, topic="stock")
    held = driver.half(C)
    driver.now_ms += MINUTE_MS
    driver.op("C", C, held)
    driver.read()
    driver.advance()

    driver.tick(moves=2)

    assert {A, C} == set(driver.ledger.batch.to_doubt)


def test_a_batch_that_is_full_of_moves_lets_a_mended_topic_go_on() -> None:
    driver = holding(A)
    driver.half(B, topic="stock")
    driver.turn()
    driver.set_target("orders", ACCEPTS, is_told=False)

    driver.tick(after_ms=MINUTE_MS, moves=0)
    driver.publish()

    assert ([A], []) == (driver.log.forwarded, driver.reported(ReportKind.MOVED))


def test_a_full_batch_gives_up_nothing_that_is_held_too_long() -> None:
    driver = holding(A)

    driver.tick(after_ms=WEEK_MS, moves=0)
    assert driver.ledger.batch.is_empty
    driver.tick(moves=1)

    assert [A] == list(driver.ledger.batch.to_doubt)


def test_a_full_batch_writes_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    for n in range(4):
        key = txn_key(f"t{n}")
        driver.move_to_doubt(key)
        driver.op("R", key, n + 1)
        driver.turn()
    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 4)

    driver.tick(moves=0)
    assert driver.ledger.batch.is_empty
    driver.tick(moves=1)

    assert [A] == list(driver.ledger.batch.to_doubt)


# --- who is still known -----------------------------------------------------------------------------------------------


def test_those_that_are_open_stay_known_when_the_settled_ones_among_them_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.unsettled.SETTLED_IN_HALF_MAX", 0)
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(8)]
    places = [driver.half(key) for key in keys]
    driver.turn()
    driver.tick(after_ms=IMMUNITY_MS)  # none of them is immune any more
    young = driver.half(A)
    for key, place in zip(keys[1:], places[1:], strict=True):
        driver.op("C", key, place)
    driver.turn()

    driver.tick(after_ms=MINUTE_MS)
    driver.publish()

    assert {keys[0], A} == set(driver.log.on_doubt())
    assert young + 1 == driver.log.stored.low_water


def test_who_goes_to_doubt_while_it_is_immune_is_asked_about_when_it_is_not() -> None:
    driver = PartitionDriver(settings=replace(SETTINGS, doubt_after_ms=1_000))
    driver.half(A)
    driver.turn()
    driver.tick(after_ms=1_000, is_present=True)
    assert [] == list(driver.ledger.batch.checks)
    driver.publish()
    assert {A: TxnState.OPEN} == {key: t.state for key, t in driver.log.on_doubt().items()}
    driver.turn()  # half needs it no more

    driver.tick(after_ms=IMMUNITY_MS - 1_000, is_present=True)

    assert [A] == list(driver.ledger.batch.checks)
