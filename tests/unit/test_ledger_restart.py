"""One partition: a ledger that is built again at the stored positions is the one that was there; and histories that broke a promise once."""

from dataclasses import replace

import pytest

from tests.support.core_records import FAR_AWAY, PARTITION, half_bytes, op_line, options, plain_record, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from tests.support.partition_log import SETTINGS, TOPICS
from txlayer.core.history import HistoryFold
from txlayer.core.ledger.batch import Positions, ReportKind
from txlayer.core.ledger.ledger import SECOND_COPIES_MAX
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import OrderMode, ParkReason, Source, txn_id_of

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
@pytest.mark.promise("P1", "P2")
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


def test_a_replay_reports_nothing_and_leaves_nothing_to_append() -> None:
    driver = PartitionDriver()
    offset = driver.half(A)
    driver.half_raw(b"garbage")
    driver.op_lines(op_line("U", A, offset), "garbage", op_line("C", B, offset))
    driver.turn()

    driver.crash()

    assert ([], True) == (driver.ledger.batch.reports, driver.ledger.batch.is_empty)


def test_a_line_that_doubt_refused_and_half_would_take_settles_nothing_in_the_replay() -> None:
    # Doubt remembers the first and the last of three offsets; a replay of half knows the one between.
    driver = PartitionDriver()
    driver.half(B)  # holds the low-water mark
    driver.say("C", A, FAR_AWAY)
    driver.give_up()
    offsets = [driver.half(A, index=n, count=3) for n in range(3)]
    driver.turn()
    driver.op("C", A, offsets[1])
    driver.say("R", A, offsets[2])
    assert ([], [B]) == (driver.log.visible, list(driver.ledger.transactions))

    driver.crash()

    assert [B] == list(driver.ledger.transactions)
    assert half_bytes(B) == driver.ledger.content_bytes
    driver.pass_time(after_ms=60_000)
    assert (4, {B}) == (driver.log.stored.low_water, set(driver.log.on_doubt()))


def test_the_time_goes_on_from_what_doubt_tells() -> None:
    driver = PartitionDriver(targets={})
    driver.say("C", A, driver.half(A))
    newest_ms = driver.ledger.times.newest_ms

    driver.crash()

    assert newest_ms == driver.ledger.times.newest_ms


@pytest.mark.fault("clock: a coordinator's clock is wrong or jumps back")
def test_the_newest_time_does_not_go_back() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.say("U", A, 0)
    newest_ms = driver.ledger.times.newest_ms

    driver.now_ms -= 5_000
    driver.half(B)
    driver.say("U", B, 1)

    assert newest_ms == driver.ledger.times.newest_ms


@pytest.mark.fault("coordinator: many second copies arrive of half records whose transactions are on doubt")
@pytest.mark.promise("P2")
def test_a_restart_while_a_second_copy_still_drives_others_out_of_half_forwards_nothing_twice() -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    between = [txn_key(f"between-{number}") for number in range(4)]
    for key in between:
        driver.half(key)
    driver.say("C", B, driver.half(B))
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
    monkeypatch.setattr("txlayer.core.ledger.remembered.DISTANCE_MAX", 1)
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
    driver.ledger._keep_on_doubt(txn)
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
    driver.say("C", key, offset)

    # Doubt still says that it is parked: the later release would forward it again.
    assert not driver.log.forwarded


HOUR_MS = 3_600_000


# --- op lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P7", "P11")
def test_who_is_on_doubt_on_a_lines_word_alone_names_no_topic_after_a_restart() -> None:
    """A broker is never asked about a topic without a name: the client raises ValueError."""
    driver = PartitionDriver()
    driver.say("C", A, FAR_AWAY)
    driver.give_up()
    driver.publish()
    assert TxnState.PARKED is driver.state(A)

    driver.crash(is_new_process=True)

    assert set() == driver.ledger.unknown_topics


@pytest.mark.promise("P2")
def test_a_misplaced_line_about_one_that_was_settled_before_a_restart_parks_nobody() -> None:
    """What stood on doubt then would take a second copy for its half record."""
    driver = PartitionDriver()
    driver.say("C", A, driver.half(A))
    driver.crash()

    driver.say("R", A, FAR_AWAY)
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
    driver.say("C", B, driver.half(B, options=RED_PREPARE))
    assert TxnState.WAITING is driver.state(B)

    driver.say("A", B, 1)

    assert (None, []) == (driver.state(B), driver.log.forwarded)
    assert TxnState.ROLLED_BACK is state_in_history(driver, B)
    driver.say("C", A, 0)
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
    driver.say("C", A, driver.half(A))
    assert TxnState.HELD is driver.state(A)

    if is_mended:  # it is forwarded while the operator writes
        driver.set_target("orders", ACCEPTS)
        driver.publish()
    driver.say("A", A, 0)

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
    driver.say("C", A, copy)
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
    driver.say("R", B, places[2])
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
    driver.say("C", A, last)

    assert driver.state(A) is not TxnState.OPEN


@pytest.mark.promise("P1")
def test_a_committed_one_that_waits_in_half_survives_a_restart_with_a_smaller_limit() -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "stock": ACCEPTS, "mail": ACCEPTS})
    driver.half(A, options=RED_PREPARE)
    for index, topic in enumerate(("orders", "stock", "mail")):
        last = driver.half(B, index=index, count=3, topic=topic, options=RED_PREPARE)
    driver.say("C", B, last)
    assert TxnState.WAITING is driver.state(B)

    driver.log.settings = replace(SETTINGS, transaction_messages_max=2)
    driver.crash()
    driver.say("R", A, 0)

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
        driver.ledger.let_time_pass(now_ms=driver.now_ms, move_count_max=100)
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

    driver.pass_time(after_ms=10_000)

    assert TxnState.OPEN is driver.state(B)
    assert [] == driver.reported(ReportKind.PARKED)
