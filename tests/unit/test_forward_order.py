"""P6: who of an ordering key may go now."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_records import GROUP, options, plain_record, txn_key
from txlayer.core.ledger.forward_order import ForwardOrder
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import OrderMode

OPEN, WAITING, HELD = TxnState.OPEN, TxnState.WAITING, TxnState.HELD
COMMIT, PREPARE = OrderMode.COMMIT, OrderMode.PREPARE


def transaction(
    offset: int,
    *,
    state: TxnState = OPEN,
    order: OrderMode = COMMIT,
    key: str | None = "red",
    decided: int | None = None,
    doubt_offset: int = -1,
) -> Transaction:
    """A transaction with one half record at `offset`, decided by op record `decided`."""
    name = txn_key(f"t{offset}")
    txn = Transaction(name, GROUP, "orders", offset, 0, "0", (0, 0), plain_record())
    txn.state = state
    txn.options, more = options(key, order=order), txn.ensure_extras()
    more.decided_at = None if decided is None else (decided, 0)
    more.doubt_offset = doubt_offset
    return txn


def test_a_transaction_without_ordering_key_is_free() -> None:
    plain = transaction(2, key=None, state=WAITING, decided=1)
    order = ForwardOrder([transaction(0, state=HELD, decided=0), plain])

    assert order.is_free(plain)


def test_a_prepare_ordered_one_that_is_held_late_takes_its_place_among_the_decisions() -> None:
    first = transaction(0, state=HELD, decided=1)
    waits = transaction(1, state=WAITING, order=PREPARE, decided=3)
    later = transaction(2, state=WAITING, decided=4)
    order = ForwardOrder([first, waits, later])
    waits.state = HELD
    order.stuck(waits)

    order.remove(first)

    assert not order.is_free(later)


class Watched(Transaction):
    """Counts how often its place in half is asked for."""

    __slots__ = ("place",)
    ask_count = 0

    @property
    def first_offset(self) -> int:
        Watched.ask_count += 1
        return self.place

    @first_offset.setter
    def first_offset(self, offset: int) -> None:
        self.place = offset


@pytest.mark.promise("P6", "P11")
def test_scheduled_ones_that_come_back_to_a_key_with_many_scan_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__name__ + ".Transaction", Watched)
    count, many = 100, 2_000
    scheduled = [transaction(n, state=TxnState.SCHEDULED, order=PREPARE, decided=0) for n in range(count)]
    waiting = [transaction(count + n, state=WAITING, order=PREPARE, decided=1 + n) for n in range(many)]
    order = ForwardOrder([*scheduled, *waiting])
    Watched.ask_count = 0

    for place, txn in enumerate(reversed(scheduled)):
        txn.state, txn.ensure_extras().decided_at = WAITING, (10 * many + place, 0)
        order.put_back(txn)
        assert order.is_free(txn)
        assert not order.is_free(waiting[0])

    assert Watched.ask_count < 20 * count
    for txn in (*scheduled, *waiting):
        assert order.next_free(txn.key_hash or "") is txn
        order.remove(txn)
    assert Watched.ask_count < 20 * (count + many)


@pytest.mark.promise("P6")
@pytest.mark.parametrize("seed", range(20))
def test_whoever_comes_and_goes_the_first_in_half_goes_first(seed: int) -> None:
    dice = Random(seed)
    order, there, away = ForwardOrder([]), list[Transaction](), list[Transaction]()
    for offset in range(200):
        kind = dice.choice(("add", "add", "leave", "leave", "come back"))
        if kind == "add":
            there.append(transaction(offset, state=WAITING, order=PREPARE, decided=offset))
            order.add(there[-1])
        elif kind == "leave" and there:
            away.append(there.pop(dice.randrange(len(there)) * dice.randrange(2)))
            order.remove(away[-1])
        elif kind == "come back" and away:
            there.append(away.pop(dice.randrange(len(away))))
            order.put_back(there[-1])
        there.sort(key=lambda txn: txn.first_offset)
        assert there[:1] == [txn for txn in there if order.is_free(txn)]
        assert order.next_free(there[0].key_hash or "" if there else "red") is (there[0] if there else None)
    for txn in there:
        order.remove(txn)
    assert {} == order._returned


def test_it_knows_which_keys_have_something_on_doubt() -> None:
    there, here, blue = transaction(1, doubt_offset=7), transaction(2), transaction(3, key="blue")
    order = ForwardOrder([there, here, blue])
    assert (True, False) == (order.is_on_doubt(there.key_hash), order.is_on_doubt(blue.key_hash))

    for txn in (here, blue, blue):  # one of them is there already
        order.goes_to_doubt(txn)
    assert order.is_on_doubt(blue.key_hash)
    order.remove(blue)
    assert not order.is_on_doubt(blue.key_hash)
    order.remove(there)
    assert order.is_on_doubt(here.key_hash)
    order.remove(here)

    assert not order.is_on_doubt(here.key_hash)
    assert not order.is_on_doubt(None)


def test_nothing_stays_behind_when_all_are_gone() -> None:
    order = ForwardOrder()
    txns = [transaction(n, order=(COMMIT, PREPARE)[n % 2], decided=n) for n in range(10)]
    for txn in txns:
        order.add(txn)
        txn.state = WAITING
        order.stuck(txn)
        order.goes_to_doubt(txn)
    assert 10 == order.count(txns[0].key_hash)

    for txn in txns:
        order.remove(txn)

    assert ForwardOrder().__dict__ == order.__dict__
    assert 0 == order.count(txns[0].key_hash)
    assert [] == order.waiting(txns[0].key_hash)


def test_methods_for_a_key_do_nothing_without_one() -> None:
    order, plain = ForwardOrder(), transaction(1, key=None, state=WAITING)

    order.add(plain)
    order.stuck(plain)
    order.put_back(plain)
    order.remove(plain)

    assert ForwardOrder().__dict__ == order.__dict__
    assert (0, []) == (order.count(None), order.waiting(None))


def test_one_key_with_many_lets_them_go_one_after_the_other() -> None:
    count = 5_000  # more than what a fresh dict is made for
    txns = [transaction(n, state=WAITING, decided=n) for n in range(count)]
    order = ForwardOrder(txns)
    key_hash = txns[0].key_hash
    assert key_hash is not None

    for txn in txns:
        assert txn is order.next_free(key_hash)
        order.remove(txn)

    assert None is order.next_free(key_hash)


# --- against the words of the module's docstring ----------------------------------------------------------------------

MEMBERS = st.lists(
    st.tuples(st.sampled_from([OPEN, WAITING, HELD]), st.sampled_from(OrderMode), st.integers(0, 99)),
    max_size=8,
    unique_by=lambda member: member[2],
)


def may_go(txn: Transaction, others: list[Transaction]) -> bool:
    """The rule as the docstring says it."""
    decided = txn.ensure_extras().decided_at
    if txn.waits_for_undecided:
        return not any(other.first_offset < txn.first_offset for other in others)
    return not any(
        (other.state is HELD or (other.state is WAITING and not other.waits_for_undecided))
        and (other.ensure_extras().decided_at or (0, 0)) < (decided or (0, 0))
        for other in others
    )


@pytest.mark.promise("P6")
@given(MEMBERS)
def test_who_may_go_is_what_the_rule_says(members: list[tuple[TxnState, OrderMode, int]]) -> None:
    txns = [
        transaction(n, state=state, order=mode, decided=None if state is OPEN else decided)
        for n, (state, mode, decided) in enumerate(members)
    ]
    order = ForwardOrder(txns)
    free = [t for t in txns if t.state is WAITING and may_go(t, [other for other in txns if other is not t])]

    assert free == [t for t in txns if t.state is WAITING and order.is_free(t)]
    if txns:
        first = min(free, key=lambda t: t.ensure_extras().decided_at or (0, 0), default=None)
        assert first is order.next_free(txns[0].key_hash or "")


@pytest.mark.promise("P6")
@given(MEMBERS)
def test_who_passes_may_go_and_lets_nobody_go(members: list[tuple[TxnState, OrderMode, int]]) -> None:
    txns = [
        transaction(n, state=state, order=mode, decided=None if state is OPEN else decided)
        for n, (state, mode, decided) in enumerate(members)
    ]
    last = transaction(len(txns), decided=100)
    order = ForwardOrder([*txns, last])
    able = {t.key for t in txns if t.state is WAITING and order.is_free(t)}
    last.state = WAITING

    passes = order.passes(last)

    assert passes is (not able and may_go(last, txns) and PREPARE not in [m[1] for m in members])
    if passes:
        assert not [t for t in txns if t.state is WAITING and order.is_free(t)]
