"""Which transactions the filters of `txlayer tx` let through."""

from typing import Any

import pytest

from txlayer.cli.tx import ListedState, TransactionFilters
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import ParkReason
from txlayer.operate.overview import UnsettledTransaction
from txlayer.operate.unsettled import PARKED, Filter

NOW_MS = 10_000_000
HOUR_MS = 3_600_000


def standing(*, state: str = "open", age_ms: int = 5_000, reason: ParkReason | None = None) -> UnsettledTransaction:
    """One transaction of the group orders, for the topics shop and loyalty."""
    txn = Transaction("order-1/00000001", "orders", "shop", 7, NOW_MS - age_ms, "900", (0, 0), None)
    more = txn.ensure_extras()
    more.topics = ("shop", "loyalty")
    more.reason = reason
    return UnsettledTransaction(3, state, txn)


def made(**given: Any) -> Filter:
    """A filter out of options, the others not given."""
    return TransactionFilters(**given).read()


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        (Filter(), True),
        (Filter(group="orders"), True),
        (Filter(group="order"), False),
        (Filter(topic="loyalty"), True),
        (Filter(topic="shop"), True),
        (Filter(topic="sho"), False),
        (Filter(states=frozenset({"held", "parked"})), True),
        (Filter(states=frozenset({"open"})), False),
        (Filter(reasons=frozenset({ParkReason.TOO_OLD, ParkReason.LIMIT})), True),
        (Filter(reasons=frozenset({ParkReason.CHECKS_EXHAUSTED})), False),
        (Filter(older_ms=5_000), True),
        (Filter(older_ms=5_001), False),
        (Filter(younger_ms=5_001), True),
        (Filter(younger_ms=5_000), False),
        (Filter(group="orders", topic="other"), False),
    ],
)
def test_a_filter_lets_through_what_has_all_of_it(wanted: Filter, *, is_meant: bool) -> None:
    found = standing(state="parked", reason=ParkReason.TOO_OLD)

    assert is_meant == wanted.lets_through(found, now_ms=NOW_MS)


def test_a_plain_one_has_no_reason_and_its_one_topic() -> None:
    txn = Transaction("order-1/00000001", "orders", "shop", 7, NOW_MS, "900", (0, 0), None)
    found = UnsettledTransaction(3, "open", txn)

    assert Filter(topic="shop").lets_through(found, now_ms=NOW_MS)
    assert not Filter(reasons=frozenset(ParkReason)).lets_through(found, now_ms=NOW_MS)


def test_without_options_everything_is_meant() -> None:
    assert made().is_empty
    assert not made(group="orders").is_empty


def test_states_add_up_and_everything_else_narrows() -> None:
    wanted = made(
        state=[ListedState["WAITING"]],
        is_open=True,
        is_parked=True,
        is_held=True,
        older_than="1h",
        younger_than="2h",
        reason_code=[ParkReason.TOO_LARGE],
        group="orders",
        topic="shop",
    )

    states = frozenset({"waiting", "open", "held"}) | PARKED
    reasons = frozenset({ParkReason.TOO_LARGE})
    assert Filter("orders", "shop", states, reasons, HOUR_MS, 2 * HOUR_MS) == wanted


def test_parked_means_before_and_after_the_decision() -> None:
    expected = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})

    assert expected == made(is_parked=True).states
