"""The table of unsettled transactions: a dict to whoever asks, in two tables to the processor."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.core_records import txn_key
from tests.support.partition_driver import PartitionDriver
from tests.support.partition_history import History, made_up_steps
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.ledger.unsettled import FRESH_COUNT_MAX, UnsettledTransactions

A, B, C, D = (txn_key(name) for name in "abcd")
NAMES = st.sampled_from("abcdefgh")
ACTS = st.lists(st.tuples(st.sampled_from(["put", "drop", "keep small"]), NAMES), max_size=60)


def transaction(key: str) -> Transaction:
    """An open one."""
    return Transaction(key, "shop", "orders", 0, 0, "0", (0, 0), None)


def filled(*keys: str) -> UnsettledTransactions:
    """With these, in this order."""
    found = UnsettledTransactions()
    for key in keys:
        found[key] = transaction(key)
    return found


PUT_AGAIN = [("put", "a"), ("put", "b"), ("put", "c"), ("keep small", "a"), ("put", "a")]


@given(ACTS)
@example(PUT_AGAIN)
def test_it_is_a_dict_whichever_table_somebody_is_in(acts: list[tuple[str, str]]) -> None:
    found, expected = UnsettledTransactions(), dict[str, Transaction]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txlayer.core.ledger.unsettled.FRESH_COUNT_MAX", 2)
        for act, key in acts:
            if act == "put":
                found[key] = expected[key] = transaction(key)
            elif act == "keep small":
                found.keep_fresh_small()
            else:
                assert found.pop(key, None) is expected.pop(key, None)

            assert expected == found
            assert len(expected) == len(found)
            assert list(expected) == list(found)
            assert list(expected.values()) == list(found.values()) == found.snapshot()
            assert len(expected.values()) == len(found.values())
            assert all(expected.get(name) is found.get(name) for name in "abcdefgh")
            assert [n in expected for n in "abcdefgh"] == [n in found for n in "abcdefgh"]
            assert found.fresh.keys().isdisjoint(found.rest)


@pytest.mark.parametrize("key", ["", "nobody"])
def test_who_is_not_there_is_a_key_error(key: str) -> None:
    found = filled("a")

    with pytest.raises(KeyError):
        found[key]
    with pytest.raises(KeyError):
        del found[key]
    assert ["a"] == list(found)


def test_the_older_half_of_too_many_is_no_longer_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.unsettled.FRESH_COUNT_MAX", 4)
    found = filled(*"abcd")

    found.keep_fresh_small()
    assert ([], [*"abcd"]) == (list(found.rest), list(found.fresh))

    found["e"] = transaction("e")
    found.keep_fresh_small()
    assert ([*"abc"], [*"de"]) == (list(found.rest), list(found.fresh))


class Watched(dict[str, Transaction]):
    """Takes a snapshot whenever it is changed."""

    def __init__(self, found: UnsettledTransactions, taken: list[list[str]]) -> None:
        super().__init__(found.fresh)
        self._found, self._taken = found, taken

    def __delitem__(self, key: str) -> None:
        self._take()
        super().__delitem__(key)
        self._take()

    def _take(self) -> None:
        self._taken.append([txn.key for txn in self._found.snapshot()])


def test_a_snapshot_misses_nobody_who_moves_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.unsettled.FRESH_COUNT_MAX", 1)
    taken: list[list[str]] = []
    found = filled(*"abc")
    found.fresh = Watched(found, taken)

    found.keep_fresh_small()

    assert 6 == len(taken)
    assert all(set("abc") == set(keys) for keys in taken)


def test_a_snapshot_takes_the_fresh_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # Between its two steps the owner may move them: taken first with the rest they would be in neither.
    monkeypatch.setattr("txlayer.core.ledger.unsettled.FRESH_COUNT_MAX", 1)
    found = filled(*"abc")

    class Moving(dict[str, Transaction]):
        def values(self) -> Any:
            found.keep_fresh_small()
            return super().values()

    found.fresh = Moving(found.fresh)

    assert set("abc") == {txn.key for txn in found.snapshot()}


# --- in a ledger ------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> PartitionDriver:
    """A partition in which A, B and C are open, and no longer fresh."""
    monkeypatch.setattr("txlayer.core.ledger.unsettled.FRESH_COUNT_MAX", 2)
    driver = PartitionDriver()
    for key in (A, B, C, D):
        driver.half(key)
    driver.turn()
    assert ([A, B, C], [D]) == (list(driver.ledger.transactions.rest), list(driver.ledger.transactions.fresh))
    return driver


def test_a_batch_keeps_the_fresh_ones_few(driver: PartitionDriver) -> None:
    for number in range(50):
        driver.half(txn_key(f"more-{number}"))
        driver.turn()

        assert len(driver.ledger.transactions.fresh) <= 2


@pytest.mark.parametrize("key", [A, D])
def test_a_commit_finds_its_transaction_in_either_table(driver: PartitionDriver, key: str) -> None:
    txn = driver.ledger.transactions[key]
    driver.op("C", key, txn.first_offset)
    driver.read()

    driver.advance()

    assert (TxnState.COMMITTED, None) == (txn.state, txn.extras), "the quick way was taken"
    assert key not in driver.ledger.transactions
    assert 3 == len(driver.ledger.transactions)


@pytest.mark.parametrize("key", [A, D])
def test_a_second_copy_of_a_half_record_is_no_new_transaction(driver: PartitionDriver, key: str) -> None:
    txn = driver.ledger.transactions[key]
    driver.op("C", key, driver.half(key))

    driver.turn()

    assert TxnState.COMMITTED is txn.state
    assert [key] == [message.txn_key for message in driver.log.visible]
    assert [] == driver.reported(ReportKind.WRONG_OFFSET)


@pytest.mark.parametrize("key", [A, D])
def test_a_rollback_finds_its_transaction_in_either_table(driver: PartitionDriver, key: str) -> None:
    driver.op("R", key, driver.ledger.transactions[key].first_offset)

    driver.turn()

    assert key not in driver.ledger.transactions
    assert [] == driver.log.visible


@pytest.mark.parametrize("fresh_count_max", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_histories_come_to_the_same_with_few_fresh_ones(
    fresh_count_max: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.unsettled.FRESH_COUNT_MAX", fresh_count_max)

    History().play(made_up_steps(1000 + seed, count=120))


def test_what_a_producer_has_in_flight_is_fresh() -> None:
    assert 5_000 < FRESH_COUNT_MAX
