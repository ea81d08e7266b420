"""One partition: content leaves memory oldest first, and a drop looks at nobody who has none any more."""

from __future__ import annotations

import pytest

from tests.support.fake_records import op_line, txn_key
from tests.support.partition_driver import PartitionDriver
from txlayer.core.ledger import Ledger
from txlayer.core.transaction import Transaction

KEYS = [txn_key(f"txn-{number}") for number in range(100)]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places in half of those that were looked at."""
    seen: list[int] = []
    may_hold_content = Ledger._may_hold_content

    def look(ledger: Ledger, txn: Transaction) -> bool:
        seen.append(txn.first_offset)
        return may_hold_content(ledger, txn)

    monkeypatch.setattr(Ledger, "_may_hold_content", look)
    return seen


def bare(driver: PartitionDriver) -> list[int]:
    """The places in half of those without content."""
    return [t.first_offset for t in driver.ledger.transactions.values() if t.content is None]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_old", [False, True])
def test_a_drop_looks_at_nobody_whose_content_was_dropped_before(
    looked_at: list[int], *, is_old: bool
) -> None:
    driver = PartitionDriver()
    for key in KEYS[:50]:
        driver.half(key, value=b"v")
    driver.read()
    if is_old:  # past their immunity they are kept apart from the young ones
        driver.now_ms += 10_000
        driver.ledger._grow_old(driver.now_ms)
        assert [] == list(driver.ledger._young)
    driver.ledger.drop_content(40)
    assert list(range(40)) == bare(driver)

    for place in range(50, 100):
        driver.half(KEYS[place], value=b"v")
        driver.read()
        looked_at.clear()
        driver.ledger.drop_content(1)
        assert list(range(place, place - 12, -1)) == looked_at

    assert list(range(90)) == bare(driver)
    assert 10 == driver.ledger.content_bytes


def test_what_was_dropped_beside_what_the_batch_needs_arrives_all_the_same() -> None:
    driver = PartitionDriver()
    places = [driver.half(key, value=key.encode()) for key in KEYS]
    driver.read()
    driver.tick(after_ms=60_000, moves=30)

    driver.ledger.drop_content(1 << 30)
    assert 30 == len(KEYS) - len(bare(driver)), "those that go to doubt are not dropped"
    driver.publish()
    assert 0 == driver.ledger.content_bytes
    driver.op_lines(*(op_line("C", key, place) for key, place in zip(KEYS, places, strict=True)))
    driver.turn()

    assert sorted(key.encode() for key in KEYS) == sorted(
        m.value or b"" for m in driver.log.visible
    )
    assert 0 == driver.ledger.content_bytes


def test_what_is_about_to_be_forwarded_is_not_dropped() -> None:
    driver = PartitionDriver()
    place = driver.half(KEYS[0], value=b"first")
    driver.half(KEYS[1], value=b"second")
    driver.op("C", KEYS[0], place)
    driver.read()
    (forward,) = driver.advance().forwards
    assert 6 == driver.ledger.content_bytes

    driver.ledger.drop_content(99)

    assert (True, 0) == (forward.content is not None, driver.ledger.content_bytes)
