"""The schedule: who is asked when, how fast, and that nobody waits for another group."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.config import IMMUNITY_MAX, milliseconds
from txlayer.core.checks import IDLE_GROUPS_MAX, CheckPolicies, CheckPolicy, CheckSchedule, immune_until_ms, pause_after
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import HalfOptions


class CountedInt(int):
    """An int; sums with it are counted ones too."""

    compared: ClassVar[int] = 0

    def __add__(self, other: int) -> CountedInt:
        """A counted one, too."""
        return CountedInt(int(self) + other)

    def __lt__(self, other: object) -> bool:
        """Counted."""
        CountedInt.compared += 1
        return int(self) < other  # type: ignore[operator]  # as int's own

    def __le__(self, other: object) -> bool:
        """Counted."""
        CountedInt.compared += 1
        return int(self) <= other  # type: ignore[operator]  # as int's own

    def __eq__(self, other: object) -> bool:
        """Counted."""
        CountedInt.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


IMMUNITY_MS = 6_000


def transaction(number: int, *, group: str = "shop", appended_ms: int = 0) -> Transaction:
    return Transaction(f"t{number}/0000000a", group, "orders", number, appended_ms, "0", (0, 0), None)


def schedule_of(*transactions: Transaction, **policies: CheckPolicy) -> CheckSchedule:
    default = policies.pop("default", CheckPolicy())
    schedule = CheckSchedule(CheckPolicies(default, policies))
    for txn in transactions:
        schedule.add(txn)
    return schedule


def taken(schedule: CheckSchedule, now_ms: int, *present: str, count_max: int = 1_000) -> list[str]:
    schedule.ripen(now_ms)
    return [txn.key for txn in schedule.take(now_ms, present, count_max)]


@pytest.mark.fault("check handler: no instance of a group runs for hours")
def test_after_a_night_of_absence_each_is_asked_once_at_the_groups_rate() -> None:
    transactions = [transaction(n) for n in range(30)]
    schedule = schedule_of(*transactions, default=CheckPolicy(check_rate_max=10))
    night_ms = 12 * 3_600_000
    for now_ms in range(0, night_ms, 600_000):
        assert [] == taken(schedule, now_ms)

    asked = [taken(schedule, night_ms + after_ms, "shop") for after_ms in range(0, 3_500, 500)]

    assert [10, 5, 5, 5, 5, 0, 0] == [len(keys) for keys in asked]
    assert [txn.key for txn in transactions] == [key for keys in asked for key in keys]


class Present(frozenset[str]):
    """Groups that are there; counts how often somebody is looked for among them."""

    look_count = 0

    def __contains__(self, group: object) -> bool:
        """Whether it is there."""
        Present.look_count += 1
        return super().__contains__(group)


@pytest.mark.threat("write `<ns>.half`")
def test_groups_that_nobody_answers_for_cost_those_that_are_there_nothing() -> None:
    invented = [transaction(n, group=f"invented-{n}", appended_ms=CountedInt(0)) for n in range(20_000)]
    schedule = schedule_of(*invented, transaction(30_000))
    schedule.ripen(IMMUNITY_MS)
    Present.look_count = CountedInt.compared = 0

    old = schedule.take_overdue(IMMUNITY_MS, 1_000)
    asked = schedule.take(IMMUNITY_MS, Present({"shop"}), 1_000)

    assert ([], ["shop"]) == (old, [txn.group for txn in asked])
    assert (0, True) == (Present.look_count, CountedInt.compared < 100)


@pytest.mark.threat("write `<ns>.half`")
def test_groups_whose_transactions_are_settled_are_forgotten() -> None:
    schedule = schedule_of()
    for number in range(20_000):
        now_ms = number * 100
        txn = transaction(number, group=f"invented-{number}", appended_ms=now_ms)
        schedule.add(txn)
        schedule.ripen(now_ms + IMMUNITY_MS)
        schedule.take(now_ms + IMMUNITY_MS, {txn.group}, 1_000)
        txn.state = TxnState.ROLLED_BACK
        schedule.tidy(0)

    assert schedule.group_count < 3 * IDLE_GROUPS_MAX


def test_those_that_are_too_old_are_found_in_every_group_and_again_later() -> None:
    young = CheckPolicy(transaction_age_max_ms=1_000)
    schedule = schedule_of(
        *(transaction(n, group=f"g{n}") for n in range(5)), transaction(9, group="brief"), brief=young
    )
    schedule.ripen(IMMUNITY_MS + 60_000)

    end_ms = IMMUNITY_MS + CheckPolicy().transaction_age_max_ms
    times = (IMMUNITY_MS, IMMUNITY_MS + 1_000, IMMUNITY_MS + 1_001, end_ms - 1, end_ms, end_ms)
    found = [[txn.group for txn in schedule.take_overdue(t, 3)] for t in times]

    assert [[], ["brief"], [], [], ["g0", "g1", "g2"], ["g3", "g4"]] == found


def test_an_absent_or_slow_group_delays_nobody() -> None:
    crowd = [transaction(n, group="absent") for n in range(1_000)]
    slow = [transaction(2_000 + n, group="slow") for n in range(1_000)]
    quick = [transaction(5_000 + n, group="quick") for n in range(5)]
    schedule = schedule_of(*crowd, *slow, *quick, slow=CheckPolicy(check_rate_max=1))

    first = taken(schedule, IMMUNITY_MS, "slow", "quick", count_max=20)

    assert {txn.key for txn in quick} <= set(first)
    assert 1 == len(set(first) & {txn.key for txn in slow})
    assert not set(first) & {txn.key for txn in crowd}


def test_groups_share_what_one_batch_takes() -> None:
    one = [transaction(n, group="one") for n in range(50)]
    two = [transaction(100 + n, group="two") for n in range(50)]
    schedule = schedule_of(*one, *two)

    keys = set(taken(schedule, IMMUNITY_MS, "one", "two", count_max=10))

    assert (5, 5) == (len(keys & {t.key for t in one}), len(keys & {t.key for t in two}))


def test_who_stands_twice_among_those_due_is_asked_and_given_up_once() -> None:
    policy = CheckPolicy(transaction_age_max_ms=1_000)
    asked, overdue = transaction(1), transaction(2)
    schedule = schedule_of(asked, default=policy)
    schedule.try_again(asked, 0)
    assert [asked.key] == taken(schedule, IMMUNITY_MS, "shop")

    schedule = schedule_of(overdue, default=policy)
    schedule.try_again(overdue, 0)
    schedule.ripen(IMMUNITY_MS + 1_000)
    assert [overdue] == schedule.take_overdue(IMMUNITY_MS + 1_000, 10)


def test_the_settled_are_dropped_when_they_are_the_most() -> None:
    transactions = [transaction(n) for n in range(20_000)]
    schedule = schedule_of(*transactions)
    for txn in transactions[10:]:
        txn.state = TxnState.ROLLED_BACK

    schedule.tidy(10)

    assert 10 == len(schedule)
    assert [txn.key for txn in transactions[:10]] == taken(schedule, IMMUNITY_MS, "shop")


@pytest.mark.parametrize("group", ["shop", "other"])
def test_a_change_among_many_costs_no_scan(group: str) -> None:
    count = 1 << 14
    many = (transaction(n, group=group, appended_ms=CountedInt(n)) for n in range(count))
    schedule = schedule_of(*many, other=CheckPolicy())
    CountedInt.compared = 0

    schedule.add(transaction(count, appended_ms=CountedInt(0)))
    schedule.ripen(IMMUNITY_MS + 1)

    assert 0 < CountedInt.compared < 400


@given(st.integers(1, 10_000))
def test_a_pause_is_never_longer_than_the_longest(number: int) -> None:
    policy = CheckPolicy()

    pause_ms = pause_after(number, policy)

    assert policy.check_interval_ms <= pause_ms <= policy.check_interval_max_ms
    assert pause_after(number + 1, policy) >= pause_ms


@pytest.mark.parametrize("asked_for_ms", [milliseconds(IMMUNITY_MAX) + 1, 1 << 62])
def test_no_half_record_is_immune_for_longer_than_a_producer_may_ask_for(asked_for_ms: int) -> None:
    txn = Transaction("a/0000000a", "shop", "orders", 0, 0, "0", (0, 0), None)
    txn.options = HalfOptions(immunity_ms=asked_for_ms)

    assert txn.appended_ms + milliseconds(IMMUNITY_MAX) == immune_until_ms(txn, CheckPolicy())
