"""One partition: a ledger that is built again at the stored positions is the one that was there."""

from dataclasses import replace

import pytest

from tests.support.core_records import FAR_AWAY, half_bytes, op_line, options, plain_record, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from tests.support.partition_log import SETTINGS, TOPICS
from txlayer.core.ledger.batch import Positions
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import OrderMode, ParkReason

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
RED_PREPARE = options("red", order=OrderMode.PREPARE)


def test_a_new_partition_begins_at_its_stored_positions() -> None:
    driver = PartitionDriver()
    for number in range(7):
        driver.op("C", txn_key(f"earlier-{number}"), driver.half(txn_key(f"earlier-{number}")))
    driver.log.stored = Positions(5, 5, 7, 0, 7, 0, 0, 5)

    driver.crash()

    assert (5, (7, 0)) == (driver.ledger.half_next, driver.ledger.op_next)


@pytest.mark.fault("coordinator: is killed at any step")
@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.parametrize("is_answered", [False, True])
def test_a_batch_whose_answer_is_lost_is_there_or_is_made_again(*, is_answered: bool) -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A))
    driver.read()
    driver.advance()
    if is_answered:
        driver.publish(is_answered=False)  # it is in the log, and nobody heard of it
    else:
        driver.crash()  # before it was in the log

    driver.turn()

    assert [A] == driver.log.forwarded
    assert 1 == len(driver.log.visible)


@pytest.mark.promise("P1")
def test_what_is_open_in_half_is_open_again() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.op("C", B, driver.half(B))
    driver.turn()
    assert (0, 2, 0, 0) == (
        driver.log.stored.low_water,
        driver.log.stored.half_next,
        driver.log.stored.replay_offset,
        driver.log.stored.replay_line,
    )

    driver.crash()
    driver.op("C", A, 0)
    driver.turn()

    assert [B, A] == driver.log.forwarded


@pytest.mark.promise("P1")
def test_lines_after_the_stored_place_within_a_record_are_applied_after_a_restart() -> None:
    driver = PartitionDriver()
    offsets = [driver.half(key) for key in (A, B, C)]
    driver.op_lines(*(op_line("C", key, at) for key, at in zip((A, B, C), offsets, strict=True)))
    driver.turn(lines=2)

    driver.crash()
    driver.turn()

    assert [A, B, C] == driver.log.forwarded
    assert 3 == len(driver.log.visible)


@pytest.mark.promise("P4")
def test_a_decision_is_remembered_over_a_restart_by_the_replay_alone() -> None:
    driver = PartitionDriver()
    driver.half(C)
    driver.op("R", A, driver.half(A))
    driver.turn()

    driver.crash()
    driver.op("C", A, 1)
    driver.turn()

    assert ([], [C]) == (driver.log.visible, list(driver.ledger.transactions))


@pytest.mark.promise("P6")
def test_one_that_waits_in_half_waits_again() -> None:
    driver = PartitionDriver()
    first = driver.half(A, options=RED_PREPARE)
    driver.op("C", B, driver.half(B, options=RED_PREPARE))
    driver.turn()

    driver.crash()
    assert TxnState.WAITING is driver.state(B)
    driver.op("C", A, first)
    driver.turn()

    assert [A, B] == driver.log.forwarded


def test_a_replay_reports_nothing_and_leaves_nothing_to_append() -> None:
    driver = PartitionDriver()
    offset = driver.half(A)
    driver.half_raw(b"garbage")
    driver.op_lines(op_line("U", A, offset), "garbage", op_line("C", B, offset))
    driver.turn()

    driver.crash()

    assert ([], True) == (driver.ledger.batch.reports, driver.ledger.batch.is_empty)


def test_what_was_held_and_is_over_is_over_in_the_replay() -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "stock": MISSING})
    driver.half(A)  # holds the low-water mark
    driver.op("C", B, driver.half(B, topic="stock"))
    driver.turn()
    driver.set_target("stock", ACCEPTS)
    driver.publish()
    assert (0, [B]) == (driver.log.stored.low_water, driver.log.forwarded)

    driver.crash()

    assert [A] == list(driver.ledger.transactions)


def test_a_line_that_doubt_refused_and_half_would_take_settles_nothing_in_the_replay() -> None:
    # Doubt remembers the first and the last of three offsets; a replay of half knows the one between.
    driver = PartitionDriver()
    driver.half(B)  # holds the low-water mark
    driver.op("C", A, FAR_AWAY)
    driver.turn()
    driver.give_up()
    offsets = [driver.half(A, index=n, count=3) for n in range(3)]
    driver.turn()
    driver.op("C", A, offsets[1])
    driver.op("R", A, offsets[2])
    driver.turn()
    assert ([], [B]) == (driver.log.visible, list(driver.ledger.transactions))

    driver.crash()

    assert [B] == list(driver.ledger.transactions)
    assert half_bytes(B) == driver.ledger.content_bytes
    driver.tick(after_ms=60_000)
    driver.publish()
    assert (4, {B}) == (driver.log.stored.low_water, set(driver.log.on_doubt()))


def test_the_time_goes_on_from_what_doubt_tells() -> None:
    driver = PartitionDriver(targets={})
    driver.op("C", A, driver.half(A))
    driver.turn()
    newest_ms = driver.ledger.times.newest_ms

    driver.crash()

    assert newest_ms == driver.ledger.times.newest_ms


@pytest.mark.fault("clock: a coordinator's clock is wrong or jumps back")
def test_the_newest_time_does_not_go_back() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.op("U", A, 0)
    driver.turn()
    newest_ms = driver.ledger.times.newest_ms

    driver.now_ms -= 5_000
    driver.half(B)
    driver.op("U", B, 1)
    driver.turn()

    assert newest_ms == driver.ledger.times.newest_ms


@pytest.mark.fault("coordinator: many second copies arrive of half records whose transactions are on doubt")
@pytest.mark.promise("P2")
def test_a_restart_while_a_second_copy_still_drives_others_out_of_half_forwards_nothing_twice() -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    between = [txn_key(f"between-{number}") for number in range(4)]
    for key in between:
        driver.half(key)
    driver.op("C", B, driver.half(B))
    driver.turn()
    driver.half(
        A
    )  # kept twice by the broker: whoever lies between must leave half, and there is room for one at a time
    driver.ledger.batch_bytes_max = 1
    driver.turn()
    assert driver.log.stored.low_water < len(driver.log.half) == driver.log.stored.half_next

    driver.crash(is_new_process=True)
    for _ in range(9):
        driver.turn()

    assert [B] == driver.log.forwarded
    assert 1 == len(driver.log.visible)
    assert {A, *between} == set(driver.log.on_doubt())


@pytest.mark.promise("P2")
def test_time_releases_nothing_while_a_second_copy_still_drives_others_out_of_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.second_copies.DISTANCE_MAX", 1)
    monkeypatch.setattr("txlayer.core.ledger.ledger.RELEASE_COUNT_MAX", 1)
    driver = PartitionDriver(settings=replace(SETTINGS, held_age_max_ms=10_000), targets={"orders": ACCEPTS})
    red = options("red")
    driver.op("C", A, driver.half(A, topic="missing", options=red))
    driver.op("C", B, driver.half(B, options=red))
    for _ in range(3):
        driver.turn()
    assert {A: TxnState.HELD, B: TxnState.WAITING} == {key: driver.state(key) for key in (A, B)}
    for number in range(8):
        offset = driver.half(txn_key(f"between-{number}"))
        if number < 4:  # so far behind, a second copy is known from doubt alone
            driver.op("C", txn_key(f"between-{number}"), offset)
        driver.turn()

    driver.now_ms += 11_000
    driver.half(B, options=red)  # kept twice by the broker: those between must leave half, one in each batch
    driver.op("U", txn_key("between-4"), 6)  # lines wait meanwhile, and so time goes on up to theirs
    driver.read()
    driver.advance()
    driver.tick()  # A was held for too long, and no longer goes before B
    driver.publish()
    assert {A: "held-too-long"}.items() <= driver.reasons().items()
    driver.crash(is_new_process=True)
    for _ in range(9):
        driver.turn()

    assert B == driver.log.forwarded[-1]
    assert driver.state(B) is None


@pytest.mark.promise("P11")
def test_what_a_restart_finds_settled_holds_no_content_beyond_what_is_counted() -> None:
    driver = PartitionDriver()
    driver.half(txn_key("open"))  # holds the low-water mark for `doubt_after`
    driver.turn()
    for number in range(50):
        key = txn_key(f"t{number}")
        driver.op("C", key, driver.half(key, value=b"v" * 9_000))
    driver.turn()

    driver.crash(is_new_process=True)
    driver.turn()

    ledger = driver.ledger
    held = sum(
        len(t.content) for t in (*ledger.in_half.past_immunity, *ledger.in_half.immune) if hasattr(t.content, "value")
    )
    assert held <= ledger.content_bytes


@pytest.mark.fault("operation: two versions in one group, a wrong setting, or a return to an older version")
@pytest.mark.promise("P2")
@pytest.mark.parametrize("is_older_there", [False, True])
def test_what_only_a_later_release_can_read_on_doubt_is_not_forwarded(*, is_older_there: bool) -> None:
    """A later release parked it for a reason of its own. Its partition moves back to this release, and an operator commits."""
    driver = PartitionDriver()
    driver.half(txn_key("open"))  # holds the low-water mark
    key = txn_key("parked")
    offset = driver.half(key)
    driver.turn()
    txn = driver.ledger.find(key)
    assert txn is not None
    txn.state = TxnState.PARKED
    txn.ensure_extras().reason = ParkReason.TOO_OLD
    driver.ledger._keep(txn)
    driver.publish()
    entry = next(e for e in driver.log.doubt if e.record.key() == key.encode())
    place = driver.log.doubt.index(entry)
    later = (entry.record.value() or b"").replace(b"|too-old|", b"|a-later-reason|")
    newest = entry._replace(record=plain_record(key=key.encode(), value=later))
    if is_older_there:
        driver.log.doubt.append(newest._replace(offset=driver.log.next_offset(TOPICS.doubt) - 1))
    else:
        driver.log.doubt[place] = newest

    driver.crash(is_new_process=True)
    driver.op("C", key, offset)
    driver.turn()

    # Doubt still says that it is parked: the later release would forward it again.
    assert not driver.log.forwarded
