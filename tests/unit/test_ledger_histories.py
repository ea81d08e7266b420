"""One partition: histories that broke a promise once."""

from dataclasses import replace

import pytest

from tests.support.core_records import FAR_AWAY, PARTITION, op_line, options, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from tests.support.partition_log import SETTINGS
from txlayer.core.history import HistoryFold
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.ledger import SECOND_COPIES_MAX
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import OrderMode, Source, txn_id_of

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
RED_PREPARE = options("red", order=OrderMode.PREPARE)
HOUR_MS = 3_600_000


# --- op lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P11")
@pytest.mark.promise("P7")
def test_who_is_on_doubt_on_a_lines_word_alone_names_no_topic_after_a_restart() -> None:
    """A broker is never asked about a topic without a name: the client raises ValueError."""
    driver = PartitionDriver()
    driver.op("C", A, FAR_AWAY)
    driver.turn()
    driver.give_up()
    driver.publish()
    assert TxnState.PARKED is driver.state(A)

    driver.crash(is_new_process=True)

    assert set() == driver.ledger.unknown_topics


@pytest.mark.promise("P2")
def test_a_misplaced_line_about_one_that_was_settled_before_a_restart_parks_nobody() -> None:
    """What stood on doubt then would take a second copy for its half record."""
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A))
    driver.turn()
    driver.crash()

    driver.op("R", A, FAR_AWAY)
    driver.turn()
    driver.give_up()
    driver.publish()

    assert ([A], {}) == (driver.log.forwarded, driver.log.on_doubt())


def state_in_history(driver: PartitionDriver, key: str, *, doubt_ahead_ms: int = 0) -> TxnState | None:
    """What `txlayer tx show` and `status` say of it. `doubt_ahead_ms`: how far the clock of doubt's broker is ahead of op's."""
    log, fold = driver.log, HistoryFold(txn_id_of(key))
    for half in log.half:
        headers = half.record.headers()
        fold.half(partition=PARTITION, offset=half.offset, appended_ms=half.appended_ms, headers=headers)
    for op in log.op:
        fold.op(partition=PARTITION, offset=op.offset, appended_ms=op.appended_ms, value=op.record.value())
    for doubt in log.doubt:
        key_bytes, value = doubt.record.key(), doubt.record.value()
        at_ms = doubt.appended_ms + doubt_ahead_ms
        headers = doubt.record.headers()
        fold.doubt(partition=PARTITION, appended_ms=at_ms, key=key_bytes, value=value, headers=headers)
    (history,) = fold.histories()
    return history.state


def test_one_that_was_abandoned_while_it_waited_in_half_is_told_as_rolled_back() -> None:
    driver = PartitionDriver()
    driver.half(A, options=RED_PREPARE)
    driver.op("C", B, driver.half(B, options=RED_PREPARE))
    driver.turn()
    assert TxnState.WAITING is driver.state(B)

    driver.op("A", B, 1)
    driver.turn()

    assert (None, []) == (driver.state(B), driver.log.forwarded)
    assert TxnState.ROLLED_BACK is state_in_history(driver, B)
    driver.op("C", A, 0)
    driver.turn()
    driver.crash()
    assert ([A], {}) == (driver.log.forwarded, driver.log.on_doubt())


def test_one_that_was_abandoned_before_doubt_said_that_it_is_held_is_told_as_rolled_back() -> None:
    driver = PartitionDriver(targets={"orders": MISSING})
    driver.op_lines(op_line("C", A, driver.half(A)), op_line("A", A, 0))
    driver.turn()

    assert (None, []) == (driver.state(A), driver.log.forwarded)
    assert TxnState.ROLLED_BACK is state_in_history(driver, A)


@pytest.mark.parametrize("doubt_ahead_ms", [-50, 0, 50])
@pytest.mark.parametrize("is_mended", [False, True])
def test_a_history_tells_whether_an_abandon_came_in_time_whatever_the_clocks(
    doubt_ahead_ms: int, *, is_mended: bool
) -> None:
    driver = PartitionDriver(targets={"orders": MISSING})
    driver.op("C", A, driver.half(A))
    driver.turn()
    assert TxnState.HELD is driver.state(A)

    if is_mended:  # it is forwarded while the operator writes
        driver.set_target("orders", ACCEPTS)
        driver.publish()
    driver.op("A", A, 0)
    driver.turn()

    expected = TxnState.COMMITTED if is_mended else TxnState.ROLLED_BACK
    assert expected is state_in_history(driver, A, doubt_ahead_ms=doubt_ahead_ms)
    assert ([A] if is_mended else []) == driver.log.forwarded


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P2")
def test_a_line_counts_alike_live_and_in_a_replay_with_many_second_copies() -> None:
    driver = PartitionDriver()
    driver.half(B)
    driver.half(A)
    copy = driver.half(A)
    driver.op("C", A, copy)
    driver.turn()
    for _ in range(SECOND_COPIES_MAX + 1):
        driver.half(A)
    driver.turn()
    assert [A] == driver.log.forwarded

    driver.crash()

    assert driver.state(A) is None


@pytest.mark.promise("P2")
def test_a_second_copy_of_what_a_replay_could_not_settle_is_not_taken_for_new() -> None:
    driver = PartitionDriver()
    driver.half(A)  # stays open, so that half is read from here again
    places = [driver.half(B, index=index, count=3) for index in range(3)]
    driver.op_lines(op_line("U", B, places[2], source=Source.OPERATOR))
    driver.turn()  # a question: B stands on doubt, which remembers its first and last half offset
    driver.op("C", B, places[1])
    driver.op("R", B, places[2])
    driver.turn()
    assert driver.state(B) is None

    driver.crash()
    driver.half(B, index=0, count=3)
    driver.turn()

    assert driver.state(B) is None


@pytest.mark.promise("P2")
def test_the_line_that_names_the_copy_of_a_last_record_counts_behind_many_other_copies() -> None:
    driver = PartitionDriver()
    count = SECOND_COPIES_MAX + 2
    for _ in range(2):
        last = [driver.half(A, index=index, count=count) for index in range(count)][-1]
    driver.op("C", A, last)
    driver.turn()

    assert driver.state(A) is not TxnState.OPEN


@pytest.mark.promise("P1")
def test_a_committed_one_that_waits_in_half_survives_a_restart_with_a_smaller_limit() -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "stock": ACCEPTS, "mail": ACCEPTS})
    driver.half(A, options=RED_PREPARE)
    for index, topic in enumerate(("orders", "stock", "mail")):
        last = driver.half(B, index=index, count=3, topic=topic, options=RED_PREPARE)
    driver.op("C", B, last)
    driver.turn()
    assert TxnState.WAITING is driver.state(B)

    driver.log.settings = replace(SETTINGS, transaction_messages_max=2)
    driver.crash()
    driver.op("R", A, 0)
    driver.turn()

    assert [B] == driver.log.forwarded or B in driver.log.on_doubt()


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P11")
def test_those_that_go_on_when_a_topic_is_mended_are_remembered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.ledger.RELEASE_COUNT_MAX", 5)
    driver = PartitionDriver(targets={"orders": MISSING})
    keys = [txn_key(f"t{number}") for number in range(100)]
    for key in keys:
        driver.op("C", key, driver.half(key))
    driver.turn()

    driver.set_target("orders", ACCEPTS)
    most = 0
    while driver.ledger.doubt_index.held:
        driver.advance()
        driver.ledger.due(now_ms=driver.now_ms, move_count_max=100)
        most = max(most, len(driver.ledger._mended))
        driver.publish()

    assert sorted(keys) == sorted(driver.log.forwarded)
    assert most <= len(keys)


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("clock: the clock of the next leader is hours behind")
@pytest.mark.promise("P7")
def test_a_broker_whose_clock_is_far_behind_makes_nobody_old() -> None:
    """The leader moves to it: what it appends is hours old in the moment in which it is appended."""
    driver = PartitionDriver()
    driver.half(A)
    driver.turn()
    driver.now_ms -= 400 * HOUR_MS
    driver.half(B)
    driver.now_ms += 400 * HOUR_MS
    driver.turn()

    driver.tick(after_ms=10_000)
    driver.publish()

    assert TxnState.OPEN is driver.state(B)
    assert [] == driver.reported(ReportKind.PARKED)
