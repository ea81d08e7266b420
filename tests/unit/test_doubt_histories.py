"""One partition: what doubt does not take whole, written again; and what is bounded there."""

import pytest

from tests.support.core_records import half_header, half_record, txn_key
from tests.support.partition_driver import MISSING, PartitionDriver
from txlayer.core import codec
from txlayer.core.codec import HALF_HEADER
from txlayer.core.ledger.transaction import accepting_target

A, B = txn_key("a"), txn_key("b")
KEYS = [txn_key(f"t{number}") for number in range(12)]
LARGE = b"x" * 1_000


def cut_on_doubt(*, count: int = 1) -> PartitionDriver:
    """A stands on doubt, which does not take its first content whole, and half has it no more."""
    driver = PartitionDriver()
    driver.log._publisher._doubt_bytes_max = 1_500
    driver.half(A, value=LARGE, count=count)
    driver.turn()
    driver.tick(after_ms=60_000)
    driver.publish()
    driver.half(B)
    driver.turn()
    del driver.log.half[0]
    return driver


@pytest.mark.promise("P11")
def test_what_is_cut_on_doubt_can_be_written_again_when_half_has_it_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = cut_on_doubt()
    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 1)
    driver.ledger.doubt_index.next_offset += 10

    before = driver.log.on_doubt()[A].ensure_extras().doubt_offset

    driver.tick(after_ms=1_000)
    assert driver.ledger.batch.to_doubt[A].is_whole
    driver.publish()

    assert driver.log.on_doubt()[A].ensure_extras().doubt_offset > before
    assert codec.is_cut(driver.log.contents_on_doubt(A)[0].headers())
    assert [half_header(A)] == [codec.half_header_of(driver.log.contents_on_doubt(A)[0].headers())]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_headers_count_on_doubt(*, is_restarted: bool) -> None:
    driver = PartitionDriver(targets={"orders": MISSING})
    for key in KEYS:
        raw = [("big", LARGE), (HALF_HEADER, half_header(key))]
        record = half_record(None, key=b"k", value=None, headers=raw)
        driver.op("C", key, driver.log.add_half(record, appended_ms=driver.now_ms))
    driver.turn()
    if is_restarted:
        driver.crash(is_new_process=True)
        driver.turn()
    driver.ledger.batch_bytes_max = 4_000

    driver.set_target("orders", accepting_target(100_000))
    for _ in KEYS:
        driver.publish()
        driver.advance(byte_count=4_000)

    sent = [len(appended.messages) for appended in driver.log.appended if appended.messages]
    assert max(sent) <= 4


@pytest.mark.promise("P11")
def test_a_second_copy_of_one_on_doubt_moves_as_many_as_a_batch_takes() -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    for key in KEYS:
        driver.half(key, value=LARGE)
    driver.half(A)
    driver.ledger.batch_bytes_max = 4_000

    driver.read()
    driver.advance(byte_count=4_000)

    assert len(driver.ledger.batch.to_doubt) <= 5
