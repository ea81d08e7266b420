"""One partition: content leaves memory oldest first, and a drop looks at nobody who has none any more."""

from typing import Any

import pytest

from tests.support.core_records import half_bytes, half_header, half_record, op_line, txn_key
from tests.support.partition_driver import PartitionDriver
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.ledger.unsettled import UnsettledInHalf

KEYS = [txn_key(f"txn-{number}") for number in range(100)]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places in half of those that were looked at."""
    seen: list[int] = []
    may_hold_content = UnsettledInHalf._may_hold_content

    def look(in_half: UnsettledInHalf, txn: Transaction) -> bool:
        seen.append(txn.first_offset)
        return may_hold_content(in_half, txn)

    monkeypatch.setattr(UnsettledInHalf, "_may_hold_content", look)
    return seen


def bare(driver: PartitionDriver) -> list[int]:
    """The places in half of those without content."""
    return [t.first_offset for t in driver.ledger.transactions.values() if t.content is None]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_old", [False, True])
def test_a_drop_looks_at_nobody_whose_content_was_dropped_before(looked_at: list[int], *, is_old: bool) -> None:
    driver = PartitionDriver()
    for key in KEYS[:50]:
        driver.half(key, value=b"v")
    driver.read()
    if is_old:  # past their immunity they are kept apart from the young ones
        driver.now_ms += 10_000
        driver.ledger.in_half.end_immunity(driver.now_ms, newest_ms=driver.ledger.times.newest_ms)
        assert [] == list(driver.ledger.in_half.immune)
    driver.ledger.drop_content(sum(map(half_bytes, KEYS[:40])))
    assert list(range(40)) == bare(driver)

    for place in range(50, 100):
        driver.half(KEYS[place], value=b"v")
        driver.read()
        looked_at.clear()
        driver.ledger.drop_content(1)
        assert list(range(place, place - 12, -1)) == looked_at

    assert list(range(90)) == bare(driver)
    assert sum(map(half_bytes, KEYS[90:])) == driver.ledger.content_bytes


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

    assert sorted(key.encode() for key in KEYS) == sorted(m.value or b"" for m in driver.log.visible)
    assert 0 == driver.ledger.content_bytes


def test_what_is_about_to_be_forwarded_is_not_dropped() -> None:
    driver = PartitionDriver()
    place = driver.half(KEYS[0], value=b"first")
    driver.half(KEYS[1], value=b"second")
    driver.op("C", KEYS[0], place)
    driver.read()
    (forward,) = driver.advance().forwards
    assert half_bytes(KEYS[1], value=b"second") == driver.ledger.content_bytes

    driver.ledger.drop_content(99)

    assert (True, 0) == (forward.content is not None, driver.ledger.content_bytes)


# --- what is fetched again --------------------------------------------------------------------------------------------

A, B = KEYS[0], KEYS[1]


@pytest.mark.promise("P3")
@pytest.mark.parametrize(
    "stranger",
    [
        {"index": 3, "count": 4, "topic": "secrets"},  # kept aside: out of turn
        {"index": 2, "count": 4, "topic": "secrets"},  # kept aside: another count
        {"index": 1, "count": 3, "topic": "secrets"},  # a copy by its numbers, to another topic
        {"index": 1, "count": 3, "value": b"second copy"},
    ],
)
@pytest.mark.parametrize("is_dropped", [False, True])
def test_what_did_not_join_is_not_forwarded_with_fetched_content(stranger: dict[str, Any], *, is_dropped: bool) -> None:
    driver = PartitionDriver()
    driver.half(A, index=0, count=3, value=b"first")
    driver.half(A, index=1, count=3, value=b"second")
    driver.half(A, **stranger)
    last = driver.half(A, index=2, count=3, value=b"third")
    driver.read()
    if is_dropped:
        driver.ledger.drop_content(1 << 30)

    driver.op("C", A, last)
    driver.turn()

    assert [("orders", b"first"), ("orders", b"second"), ("orders", b"third")] == [
        (m.topic, m.value) for m in driver.log.visible
    ]


@pytest.mark.promise("P3")
def test_a_strange_record_behind_a_single_message_is_not_fetched_for_it() -> None:
    driver = PartitionDriver()
    place = driver.half(A, value=b"mine")
    driver.half(A, index=3, count=7, topic="secrets", value=b"stranger")
    driver.half(B, value=b"other")
    driver.read()
    driver.ledger.drop_content(1 << 30)

    driver.op_lines(op_line("C", A, place), op_line("C", B, 2))
    driver.turn()

    assert [b"mine", b"other"] == [m.value for m in driver.log.visible]


@pytest.mark.promise("P3")
def test_a_strange_record_goes_to_doubt_with_nobody() -> None:
    driver = PartitionDriver()
    driver.half(A, value=b"mine")
    driver.half(A, index=3, count=7, topic="secrets", value=b"stranger")
    driver.half(B)
    driver.read()
    driver.ledger.drop_content(1 << 30)

    driver.tick(after_ms=60_000)
    driver.publish()

    assert [b"mine"] == [r.value() for r in driver.log.contents_on_doubt(A).values()]


@pytest.mark.promise("P3")
def test_a_forged_place_of_origin_does_not_come_back_from_doubt() -> None:
    driver = PartitionDriver()
    forged = [("txl-origin", b"7:4711|0/1|5")]
    raw = half_header(A)
    driver.log.add_half(half_record(raw, headers=forged), appended_ms=driver.now_ms)
    driver.read()
    driver.tick(after_ms=60_000)
    driver.publish()

    driver.op("C", A, 0)
    driver.turn()

    assert [0] == [m.half_offset for m in driver.log.visible]
