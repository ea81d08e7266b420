"""The doubt topic as its partition's owner knows it: the fold at a restart, and the shelf while it works."""

from typing import Any

import pytest

from tests.support.core_records import summary, txn_key
from tests.support.partition_driver import ACCEPTS, FORBIDDEN, MISSING
from txlayer.core.codec import content_key, encode_summary, quarantine_key
from txlayer.core.ledger.dormant import DormantTransactions
from txlayer.core.ledger.doubt import SMALL_OFFSET_MAX, DoubtFold, DoubtIndex
from txlayer.core.ledger.transaction import Transaction, TransactionExtras, from_summary
from txlayer.core.ledger.transitions import SETTLED, TxnState
from txlayer.core.messages import Origin

A, B = txn_key("a"), txn_key("b")


def on_doubt(key: str = A, *, at: int = 0, state: TxnState = TxnState.OPEN, **changes: Any) -> Transaction:
    """A transaction whose content stands on doubt at offset `at`."""
    return from_summary(summary(key, state=state.value, **changes), doubt_offset=at)


# --- fold -------------------------------------------------------------------------------------------------------------


def folded(*records: tuple[int, bytes, bytes | None]) -> DoubtFold:
    """The fold of these records."""
    fold = DoubtFold()
    for offset, key, value in records:
        fold.fold(offset, key, value)
    return fold


def whole(key: str, at: int, *, state: str = "open") -> list[tuple[int, bytes, bytes | None]]:
    """A transaction of one message as it is written: content, then summary."""
    return [(at, content_key(key, 0), b"v"), (at + 1, key.encode(), encode_summary(summary(key, state=state)))]


def test_the_newest_summary_wins_and_the_content_stays_where_it_is() -> None:
    newer = encode_summary(summary(A, state="parked"))
    fold = folded(*whole(A, 10), (20, A.encode(), newer))

    (found,) = fold.transactions.values()

    assert (TxnState.PARKED, 10) == (found.state, found.ensure_extras().doubt_offset)


def test_records_kept_aside_are_passed_over() -> None:
    aside = quarantine_key(Origin("txlayer.half", 0, 5))

    assert {} == folded((0, aside, b"garbage"), (1, b"\xff", b""), (2, b"x", b"")).all_unsettled()


@pytest.mark.fault("operation: two versions in one group, a wrong setting, or a return to an older version")
@pytest.mark.parametrize(
    "value",
    [
        b"garbage",
        encode_summary(summary(A, state="asleep")),
        encode_summary(summary(A, state="committed")),
        encode_summary(summary(A, reason="no such reason")),
    ],
)
def test_what_the_newest_summary_hides_is_left_as_it_is_whatever_an_older_one_says(value: bytes) -> None:
    fold = folded(*whole(A, 10), (20, A.encode(), value))

    assert ({A: 10}, {}) == (fold.unreadable, fold.all_unsettled())


# --- shelf ------------------------------------------------------------------------------------------------------------


def shelf_of(*transactions: Transaction, is_restored: bool = True) -> DoubtIndex:
    """The index of these."""
    table = {txn.key: txn for txn in transactions}

    def offset_of(key: str) -> int:
        return -1 if table[key].state in SETTLED else table[key].ensure_extras().doubt_offset

    shelf = DoubtIndex(offset_of)
    if is_restored:
        shelf.restore(table, DormantTransactions())
        return shelf
    for offset, txn in enumerate(transactions):
        shelf.put(txn, 10 * offset)
    return shelf


@pytest.mark.parametrize("is_restored", [False, True])
def test_offsets_of_a_partition_with_very_many_records_are_kept_whole(is_restored: bool) -> None:
    first, second = (from_summary(summary(key), doubt_offset=0) for key in (A, B))
    shelf = shelf_of(first, second)
    for txn, offset in ((first, SMALL_OFFSET_MAX), (second, SMALL_OFFSET_MAX + 1)):
        shelf.put(txn, offset)
    if is_restored:
        shelf.restore({first.key: first, second.key: second}, DormantTransactions())
    assert SMALL_OFFSET_MAX == shelf.low
    first.state = TxnState.COMMITTED

    assert SMALL_OFFSET_MAX + 1 == shelf.low


def test_the_low_water_mark_is_the_oldest_that_is_not_settled() -> None:
    first, second = on_doubt(A, at=-1), on_doubt(B, at=-1)
    shelf = shelf_of(first, second, is_restored=False)
    assert (0, 2) == (shelf.low, shelf.count)

    first.state = TxnState.COMMITTED
    shelf.ended(first)
    assert (10, 1) == (shelf.low, shelf.count)
    second.state = TxnState.ROLLED_BACK
    shelf.ended(second)

    assert (11, 0) == (shelf.low, shelf.count)


def test_what_was_restored_is_on_the_shelf() -> None:
    held = on_doubt(B, at=20, state=TxnState.HELD)
    shelf = shelf_of(held, on_doubt(A, at=10))
    shelf.next_offset = 50

    assert (10, 2, {B: held}) == (shelf.low, shelf.count, shelf.held)


def held(key: str, *, decided: int, topics: tuple[str, ...], moved_ms: int = 0) -> Transaction:
    """A committed transaction that waits for its topics."""
    return on_doubt(key, state=TxnState.HELD, decided_at=(decided, 0), topics=topics, moved_ms=moved_ms)


def test_what_is_held_in_vain_is_what_no_topic_refuses() -> None:
    mended = held(A, decided=9, topics=("orders",))
    half_mended = held(B, decided=4, topics=("stock", "orders"))
    hopeless = held(txn_key("c"), decided=1, topics=("secret",))
    unknown = held(txn_key("d"), decided=2, topics=("nobody asked",))
    shelf = shelf_of(mended, half_mended, hopeless, unknown)

    targets = {"orders": ACCEPTS, "stock": MISSING, "secret": FORBIDDEN}

    assert [hopeless, mended] == shelf.held_in_vain(targets)


class Counting(Transaction):
    """A transaction that counts how often somebody asks for its topics, or when it moved."""

    __slots__ = ()
    asked_count = 0

    @property
    def topics(self) -> tuple[str, ...]:
        Counting.asked_count += 1
        return super().topics

    def ensure_extras(self) -> TransactionExtras:
        Counting.asked_count += 1
        return super().ensure_extras()


@pytest.mark.promise("P11")
def test_what_is_held_for_a_topic_that_refuses_costs_nothing_each_time() -> None:
    """While a topic is missing there may be hundreds of thousands, and the thread that looks serves all partitions."""
    shelf = shelf_of(*(held(txn_key(f"t{n}"), decided=n, topics=("orders",)) for n in range(100)))
    refusing = {"orders": MISSING}
    assert [] == shelf.held_too_long(now_ms=500, age_max_ms=1_000, targets=refusing)
    for txn in shelf.held.values():
        txn.__class__ = Counting

    assert {"orders"} == shelf.held_topics()
    assert [] == shelf.held_in_vain(refusing) == shelf.held_for(["stock"])
    assert [] == shelf.held_too_long(now_ms=999, age_max_ms=1_000, targets=refusing)

    assert 0 == Counting.asked_count


def test_what_is_held_too_long_is_told_by_its_age() -> None:
    old, young = (
        held(A, decided=1, topics=("orders",), moved_ms=0),
        held(B, decided=2, topics=("orders",), moved_ms=500),
    )
    shelf = shelf_of(old, young)
    refusing = {"orders": MISSING}

    assert [old] == shelf.held_too_long(now_ms=1_000, age_max_ms=1_000, targets=refusing)
    assert [old, young] == shelf.held_too_long(now_ms=1_500, age_max_ms=1_000, targets=refusing)
    shelf.let_go(old)
    assert [young] == shelf.held_too_long(now_ms=1_500, age_max_ms=1_000, targets=refusing)
    shelf.hold(old)
    assert [old] == shelf.held_too_long(now_ms=1_000, age_max_ms=1_000, targets=refusing)
    assert [] == shelf.held_too_long(now_ms=999, age_max_ms=1_000, targets=refusing)
    for not_refusing in ({}, {"orders": ACCEPTS}):
        assert [] == shelf.held_too_long(now_ms=1_000, age_max_ms=1_000, targets=not_refusing)
