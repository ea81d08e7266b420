"""What a ledger says and counts, word for word: reports, quarantined records, limits, bytes, times, and who is still known afterwards."""

import pytest

from tests.support.core_records import BORN_MS, FAR_AWAY, PARTITION, half_bytes, op_line, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from tests.support.partition_log import SETTINGS
from txlayer.core.ledger.batch import RecordToQuarantine, Report, ReportKind
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transitions import TxnEvent, TxnState, transition
from txlayer.core.messages import Origin, ParkReason, Source, Undecodable
from txlayer.errors import InvalidTransitionError

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
DAY_MS = 86_400_000


def reported(driver: PartitionDriver, kind: ReportKind) -> list[Report]:
    """Everything of one kind, with its words."""
    return [report for report in driver.reports if report.kind is kind]


def aside_at(offset: int) -> Origin:
    """A place on the op topic."""
    return Origin(SETTINGS.op_topic, PARTITION, offset)


# --- quarantined -------------------------------------------------------------------------------------------------------


def test_an_op_record_that_nobody_can_read_is_kept_whole() -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A))
    driver.log.add_op(b"\xff", appended_ms=driver.now_ms)
    driver.read()

    (aside,) = driver.advance().quarantined

    assert (aside_at(1), None, 0) == (aside.origin, aside.line, aside.number)
    assert b"\xff" == aside.record.value()
    assert aside.why.why.startswith("op record: 'ascii' codec")


def test_a_line_that_nobody_can_read_is_kept_with_its_number() -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A))
    driver.op("C", B, driver.half(B))
    driver.op_lines(op_line("U", C, driver.half(C)), "garbage")
    driver.read()

    quarantined = driver.advance().quarantined

    why = Undecodable("op: unknown version 'garbage'")
    assert [RecordToQuarantine(aside_at(2), None, "garbage", 1, why)] == quarantined


def test_a_line_beyond_half_is_kept_with_its_number_and_its_transaction_is_all_that_it_says() -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A))
    line = op_line("C", B, FAR_AWAY, group="people", source=Source.OPERATOR)
    driver.op_lines(op_line("U", A, 0), line, op_line("U", A, 0))
    driver.turn()

    driver.give_up()

    batch = driver.ledger.batch
    why = Undecodable("names a half record that does not exist", ParkReason.MISPLACED)
    assert [RecordToQuarantine(aside_at(1), None, line, 1, why)] == batch.quarantined
    txn = batch.to_doubt[B].txn
    summary = txn.summary()
    assert (TxnState.PARKED, "", []) == (txn.state, txn.topic, txn.content)
    assert ("people", 0, 0, 0, 0) == (
        summary.producer_group,
        summary.first_offset,
        summary.last_offset,
        summary.seen,
        summary.count,
    )
    assert (BORN_MS, driver.ledger.times.newest_ms, ()) == (summary.born_ms, summary.appended_ms, summary.topics)
    assert driver.ledger.waits_for_half is None
    assert (2, 0) == driver.ledger.op_next


# --- reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("producer: is frozen, and goes on after another instance decided")
@pytest.mark.threat("write `<ns>.check`")
@pytest.mark.promise("P2", "P4")
def test_a_report_says_who_said_what_and_the_first_decision_stands() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.half(B)
    driver.op_lines(
        op_line("C", A, 0),
        op_line("R", A, 0, source=Source.OPERATOR, reason="lost order"),
        op_line("C", A, 0),
        op_line("C", C, 1),
        op_line("C", B, 0),
    )

    driver.turn()

    assert [
        Report(ReportKind.CONFLICT, A, "ROLLBACK by operator lost order"),
        Report(ReportKind.REPEAT, A, "COMMIT by producer"),
        Report(ReportKind.UNMATCHED, C, "commit by producer"),
        Report(ReportKind.WRONG_OFFSET, B, "commit names half offset 0"),
    ] == driver.reports
    assert [A] == driver.log.forwarded
    assert TxnState.OPEN is driver.state(B)


def test_a_move_and_the_end_of_holding_are_reported() -> None:
    driver = PartitionDriver(targets={"orders": MISSING})
    driver.move_to_doubt(A)
    driver.say("C", A, 0)

    driver.pass_time(after_ms=8 * DAY_MS)

    assert [Report(ReportKind.MOVED, A, "")] == reported(driver, ReportKind.MOVED)
    assert [Report(ReportKind.PARKED, A, "held-too-long")] == reported(driver, ReportKind.PARKED)


def test_a_transition_that_is_not_in_the_table_says_so() -> None:
    with pytest.raises(InvalidTransitionError, match=r"^no such transition"):
        transition(TxnState.OPEN, TxnEvent.GO, txn_id=A)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_lines_read_ahead_are_counted_over_records() -> None:
    driver = PartitionDriver()
    driver.op_lines(op_line("C", A, 0), op_line("C", B, 1))
    driver.op("C", C, 2)
    driver.read()
    assert 3 == driver.ledger.ops.line_count

    for key in (A, B, C):
        driver.half(key)
    driver.turn()

    assert 0 == driver.ledger.ops.line_count


def test_a_batch_ends_with_the_byte_that_fills_it_and_counts_its_lines() -> None:
    driver = PartitionDriver()
    for key in (A, B, C):
        driver.op("C", key, driver.half(key))
    driver.read()

    size = half_bytes(A)
    batch = driver.advance(byte_count=size)
    assert ([A], 1, size) == ([t.key for t in batch.forwards], batch.line_count, batch.byte_count)

    driver.advance(byte_count=size)
    assert [A] == [t.key for t in batch.forwards]
    driver.advance(byte_count=size + 1)
    assert [A, B] == [t.key for t in batch.forwards]


def test_a_replay_that_finds_its_record_gone_begins_with_the_first_line_of_the_next() -> None:
    ledger = Ledger(PARTITION, settings=SETTINGS, targets={})
    ledger.op_next = (3, 1)
    ledger.add_ops(5, 10, "\n".join((op_line("C", A, 0), op_line("C", B, 0))).encode(), None)
    ledger.half_next = 1

    ledger.advance(line_count_max=10, byte_count_max=10)

    assert [A, B] == [report.key for report in ledger.batch.reports]


def test_what_is_written_again_shares_the_limit_of_a_batch_and_is_written_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 1)
    driver = PartitionDriver(targets={"orders": MISSING})
    driver.move_to_doubt(A, B, C)
    driver.say("C", A, 0)
    ledger = driver.ledger
    ledger.doubt_index.next_offset += 100
    old = ledger.doubt_index.held[A]
    old.ensure_extras().moved_ms -= 8 * DAY_MS
    ledger.doubt_index.hold(old)

    ledger.let_time_pass(now_ms=driver.now_ms, move_count_max=3)

    # One of three places is taken by the one that was held too long.
    assert [A] == [report.key for report in ledger.batch.reports]
    assert {A: True, B: True} == {key: k.is_whole for key, k in ledger.batch.to_doubt.items()}


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_content_that_is_fetched_again_is_counted_beside_the_rest() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.half(B)
    driver.read()
    driver.ledger.drop_content(1)
    driver.tick(after_ms=60_000, moves=1)

    driver.log.fill(driver.ledger)

    assert half_bytes(A) + half_bytes(B) == driver.ledger.content_bytes
    driver.publish()
    assert half_bytes(B) == driver.ledger.content_bytes


# --- what stands on doubt ---------------------------------------------------------------------------------------------


def test_a_summary_of_what_was_never_checked_counts_no_check() -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)

    summary = driver.log.on_doubt()[A].summary()

    assert (0, 0) == (summary.checked_count, summary.answered_count)


MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS
IMMUNITY_MS = 6_000


def holding(*keys: str) -> PartitionDriver:
    """A driver with these held on doubt, because their topic is missing."""
    driver = PartitionDriver(targets={"orders": MISSING, "stock": ACCEPTS})
    for key in keys:
        driver.op("C", key, driver.half(key))
    driver.turn()
    assert set(keys) == set(driver.log.on_doubt())
    return driver


# --- how much may go to doubt at once -----------------------------------------------------------------------------------


def test_what_the_batch_keeps_already_counts_among_its_moves() -> None:
    driver = PartitionDriver(targets={"orders": MISSING, "stock": ACCEPTS})
    driver.half(A, topic="stock")
    driver.half(B, topic="stock")
    held = driver.half(C)
    driver.now_ms += MINUTE_MS
    driver.op("C", C, held)
    driver.read()
    driver.advance()

    driver.tick(moves=2)

    assert {A, C} == set(driver.ledger.batch.to_doubt)


def test_a_batch_that_is_full_of_moves_lets_a_mended_topic_go_on() -> None:
    driver = holding(A)
    driver.half(B, topic="stock")
    driver.turn()
    driver.set_target("orders", ACCEPTS, is_told=False)

    driver.pass_time(after_ms=MINUTE_MS, moves=0)

    assert ([A], []) == (driver.log.forwarded, driver.reported(ReportKind.MOVED))


def test_a_full_batch_gives_up_nothing_that_is_held_too_long() -> None:
    driver = holding(A)

    driver.tick(after_ms=WEEK_MS, moves=0)
    assert driver.ledger.batch.is_empty
    driver.tick(moves=1)

    assert [A] == list(driver.ledger.batch.to_doubt)


def test_a_full_batch_writes_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    for n in range(4):
        key = txn_key(f"t{n}")
        driver.move_to_doubt(key)
        driver.say("R", key, n + 1)
    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 4)

    driver.tick(moves=0)
    assert driver.ledger.batch.is_empty
    driver.tick(moves=1)

    assert [A] == list(driver.ledger.batch.to_doubt)


# --- who is still known -----------------------------------------------------------------------------------------------


def test_those_that_are_open_stay_known_when_the_settled_ones_among_them_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.remembered.SETTLED_IN_HALF_MAX", 0)
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(8)]
    places = [driver.half(key) for key in keys]
    driver.turn()
    driver.tick(after_ms=IMMUNITY_MS)  # none of them is immune any more
    young = driver.half(A)
    for key, place in zip(keys[1:], places[1:], strict=True):
        driver.op("C", key, place)
    driver.turn()

    driver.pass_time(after_ms=MINUTE_MS)

    assert {keys[0], A} == set(driver.log.on_doubt())
    assert young + 1 == driver.log.stored.low_water
