"""One partition: two reasons to ask about one transaction meet, by the schedule and by hand."""

from __future__ import annotations

from dataclasses import replace

from tests.support.core_records import op_line
from tests.unit.test_ledger_checks import HOUR_MS, IMMUNITY_MS, INTERVAL_MS, A, ask, open_driver, questions
from txlayer.core.checks import CheckPolicy
from txlayer.core.messages import Source
from txlayer.core.transitions import TxnState


def test_two_reasons_to_ask_in_one_batch_are_one_question() -> None:
    driver = open_driver()
    driver.tick(after_ms=IMMUNITY_MS, is_present=True)
    driver.op_lines(*[op_line("U", A, 0, source=Source.OPERATOR)] * 2)
    driver.read()
    driver.advance()

    assert [1] == [check.number for check in questions(driver)]
    driver.publish()
    assert 1 == driver.log.on_doubt()[A].summary().checked_count


def test_who_is_due_in_the_batch_that_asks_by_hand_keeps_its_place() -> None:
    driver = open_driver()
    ask(driver)
    driver.op_lines(op_line("U", A, 0, source=Source.OPERATOR))
    driver.read()
    driver.advance()
    driver.tick(after_ms=HOUR_MS, is_present=True)
    assert [2] == [check.number for check in questions(driver)]
    driver.publish()

    assert [3] == ask(driver, after_ms=1)


def test_who_was_asked_by_hand_as_well_is_parked_once() -> None:
    driver = open_driver(replace(CheckPolicy(), age_max_ms=INTERVAL_MS))
    ask(driver)
    driver.op_lines(op_line("U", A, 0, source=Source.OPERATOR))
    driver.turn()

    driver.tick(after_ms=HOUR_MS, is_present=True)
    driver.publish()

    assert TxnState.PARKED.value == driver.log.on_doubt()[A].summary().state
