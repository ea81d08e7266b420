"""Transactions that sleep on doubt after a restart: who may, who wakes when, and what counts meanwhile."""

from __future__ import annotations

import pytest

from tests.support.core_records import GROUP, txn_key
from tests.support.partition_driver import PartitionDriver
from tests.unit.test_ledger_checks import HOUR_MS, ask, questions, settings
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.ledger.doubt import (
    DormantTransactions,
    DoubtFold,
    doubt_offset_of,
    may_be_dormant,
    transaction_of,
    with_doubt_offset,
)
from txlayer.core.messages import CheckKind, DoubtSummary, OrderMode, ParkReason

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
PLAIN = DoubtSummary(
    A, "open", "", GROUP, 3, 3, 1, 1, 1_000, 990, None, OrderMode.COMMIT, None, None, 2_000, ("orders",), 2, 1, 1_900, 1
)


def asleep(*keys: str, policy: CheckPolicy | None = None) -> PartitionDriver:
    """A partition that was just restarted, with these on doubt, asked about once."""
    driver = PartitionDriver(settings=settings(policy or CheckPolicy()))
    for key in keys:
        driver.half(key)
    driver.turn()
    ask(driver)
    driver.crash(is_new_process=True)
    return driver


def awake(driver: PartitionDriver) -> list[str]:
    return sorted(driver.ledger.transactions)


# --- who sleeps -------------------------------------------------------------------------------------------------------


def test_the_plain_sleep_and_come_back_as_they_were() -> None:
    raw = codec.encode_summary(PLAIN)

    woken = transaction_of(A, with_doubt_offset(raw, 41))

    assert may_be_dormant(raw)
    assert (PLAIN, 41) == (woken.summary(), woken.ensure_extras().doubt_offset)
    assert 41 == doubt_offset_of(with_doubt_offset(raw, 41))


@pytest.mark.parametrize(
    "other",
    [
        PLAIN._replace(state="parked", reason="too-old"),
        PLAIN._replace(state="waiting", decided_at=(7, 1)),
        PLAIN._replace(key_hash="028c7948712c936a"),
        PLAIN._replace(key_hash="028c7948712c936a", order=OrderMode.PREPARE),
        PLAIN._replace(immunity_ms=0),
        PLAIN._replace(twin_offsets=(9,)),
        PLAIN._replace(topics=()),
    ],
)
def test_whatever_is_out_of_the_ordinary_does_not_sleep(other: DoubtSummary) -> None:
    assert not may_be_dormant(codec.encode_summary(other))


def test_a_summary_out_of_form_hides_a_dormant_transaction_until_one_in_form_follows() -> None:
    fold = DoubtFold()
    fold.fold(5, f"{A}/0".encode(), b"content")
    fold.fold(6, A.encode(), codec.encode_summary(PLAIN))

    fold.fold(7, A.encode(), b"1|open||garbage")

    assert ({A: 5}, {}) == (fold.unreadable, fold.all_unsettled())

    fold.fold(8, A.encode(), codec.encode_summary(PLAIN))

    [txn] = fold.all_unsettled().values()
    assert ({}, PLAIN, 5) == (fold.unreadable, txn.summary(), txn.ensure_extras().doubt_offset)
    assert txn.size


def test_a_sleeper_that_becomes_special_stands_once_and_keeps_its_place() -> None:
    fold = DoubtFold()
    fold.fold(5, f"{A}/0".encode(), b"content")
    fold.fold(6, A.encode(), codec.encode_summary(PLAIN))

    fold.fold(7, A.encode(), codec.encode_summary(PLAIN._replace(twin_offsets=(9,))))
    special = (set(fold.dormant), fold.transactions[A].ensure_extras().doubt_offset)
    fold.fold(8, A.encode(), codec.encode_summary(PLAIN))

    assert (set(), 5) == special
    assert ({A: 5}, {}) == ({k: doubt_offset_of(s) for k, s in fold.dormant.items()}, fold.transactions)


def test_a_tombstone_ends_a_sleeper() -> None:
    fold = DoubtFold()
    fold.fold(6, A.encode(), codec.encode_summary(PLAIN))

    fold.fold(7, A.encode(), None)

    assert {} == fold.all_unsettled()


# --- who wakes --------------------------------------------------------------------------------------------------------


def test_nobody_wakes_by_a_restart_alone() -> None:
    driver = asleep(A, B, C)

    assert ([], 3, 3) == (awake(driver), driver.ledger.open_count, driver.ledger.doubt_index.count)


@pytest.mark.promise("P1")
def test_an_op_line_wakes_whom_it_names_alone() -> None:
    driver = asleep(A, B)

    driver.op("C", A, 0)
    driver.turn()

    assert ([A], []) == (driver.log.forwarded, awake(driver))
    assert [B] == [txn.key for txn in driver.ledger.all_unsettled()]
    assert 1 == driver.ledger.doubt_index.count


@pytest.mark.promise("P2")
def test_a_second_copy_of_a_sleepers_half_record_is_no_new_transaction() -> None:
    driver = asleep(A)

    copy = driver.half(A)
    driver.turn()
    driver.op("C", A, copy)
    driver.turn()

    assert [A] == driver.log.forwarded
    assert 1 == len(driver.log.visible)


def test_a_replay_wakes_nobody() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.turn()
    driver.op("U", A, 0)
    driver.turn()
    driver.half(B)
    driver.turn()
    ask(driver)

    driver.crash(is_new_process=True)

    assert [] == awake(driver)


def test_the_numbers_of_questions_go_on() -> None:
    driver = asleep(A)

    numbers = ask(driver, after_ms=30_000)

    assert [2] == numbers


def test_before_its_time_a_sleeper_is_not_asked() -> None:
    driver = asleep(A)

    driver.tick(after_ms=29_999, is_present=True)

    assert ([], []) == (questions(driver), awake(driver))


@pytest.mark.promise("P11")
def test_of_a_group_that_is_away_only_so_many_wake_as_could_be_asked_soon() -> None:
    keys = [txn_key(f"t{n}") for n in range(40)]
    driver = PartitionDriver(settings=settings(CheckPolicy(check_rate_max=5)))
    driver.move_to_doubt(*keys)
    driver.crash(is_new_process=True)

    for _ in range(5):
        driver.tick(after_ms=60_000, is_present=False)
        driver.publish()

    assert 10 == len(awake(driver))
    assert 40 == driver.ledger.open_count


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.promise("P11")
def test_of_very_many_groups_only_so_many_wake_at_once() -> None:
    driver = PartitionDriver(settings=settings(CheckPolicy()))
    for number in range(400):
        driver.half(txn_key(f"t{number}"), group=f"invented-{number}")
    driver.turn()
    while not all(txn.is_in_doubt for txn in driver.ledger.transactions.values()):
        driver.tick(after_ms=60_000, is_present=False)
        driver.publish()
    driver.crash(is_new_process=True)
    assert ([], 400) == (awake(driver), driver.ledger.open_count)

    driver.ledger.due(now_ms=driver.now_ms + 60_000, move_count_max=100, present=())

    assert 100 == len(awake(driver))


def test_all_of_them_are_asked_in_the_end() -> None:
    keys = [txn_key(f"t{n}") for n in range(40)]
    driver = asleep(*keys, policy=CheckPolicy(check_rate_max=50))
    driver.tick(after_ms=60_000, is_present=False)
    driver.publish()
    asked = set()

    for _ in range(3):
        driver.tick(after_ms=1_000, is_present=True)
        asked |= {check.key for check in questions(driver)}
        driver.publish()

    assert set(keys) == asked


@pytest.mark.promise("P7")
def test_those_too_old_are_parked_although_others_are_due_before_them() -> None:
    keys = [txn_key(f"t{n}") for n in range(40)]
    driver = asleep(*keys, policy=CheckPolicy(check_rate_max=1, transaction_age_max_ms=HOUR_MS))

    for _ in range(4):
        driver.tick(after_ms=HOUR_MS, is_present=False)
        driver.publish()

    assert dict.fromkeys(keys, ParkReason.TOO_OLD.value) == driver.reasons()


def test_sleepers_count_towards_their_groups_limit() -> None:
    keys = [txn_key(f"t{n}") for n in range(4)]
    driver = asleep(*keys, policy=CheckPolicy(open_count_max=4))

    driver.tick(after_ms=1_000)

    limits = [c for c in driver.ledger.batch.checks.values() if c.kind is CheckKind.LIMIT]
    assert [(GROUP, 4, "on")] == [(c.producer_group, c.number, c.text) for c in limits]
    assert [] == awake(driver)


# --- what a restart must read -----------------------------------------------------------------------------------------


@pytest.mark.promise("P1")
def test_a_sleeper_holds_the_low_water_mark_of_doubt_until_it_is_settled() -> None:
    driver = asleep(A, B)
    low = driver.ledger.doubt_index.low

    driver.op("C", A, 0)
    driver.turn()
    with_b = driver.ledger.doubt_index.low
    driver.op("R", B, 1)
    driver.turn()

    assert low < with_b < driver.ledger.doubt_index.low


def test_a_second_restart_finds_the_same_sleepers() -> None:
    driver = asleep(A, B)
    before = {txn.key: txn.summary() for txn in driver.ledger.all_unsettled()}

    driver.crash(is_new_process=True)

    assert before == {txn.key: txn.summary() for txn in driver.ledger.all_unsettled()}


def test_sleepers_are_written_again_when_they_keep_too_much_readable() -> None:
    driver = asleep(A, B)
    driver.ledger.doubt_index.next_offset = 1_000_000

    driver.tick(after_ms=1)
    keeps = {key: keep.is_whole for key, keep in driver.ledger.batch.to_doubt.items()}

    assert {A: True, B: True} == keeps


def test_the_topics_of_sleepers_are_asked_for() -> None:
    driver = asleep(A)
    driver.book.clear()

    driver.crash(is_new_process=True)

    assert {"orders"} == driver.ledger.unknown_topics | set(driver.book)


def test_nothing_sleeps_in_an_empty_partition() -> None:
    nobody = DormantTransactions()

    nobody.fill({}, CheckPolicies())

    assert (0, [], {}) == (len(nobody), nobody.groups, nobody.counts)
