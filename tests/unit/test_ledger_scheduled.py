"""Scheduled messages: a transaction waits on doubt until the coordinator's line releases it, at its time and not before."""

from dataclasses import replace

import pytest

from tests.support.core_records import GROUP, op_line, options, txn_key
from tests.support.partition_driver import ACCEPTS, FORBIDDEN, MISSING, PartitionDriver
from tests.support.partition_log import SETTINGS, Entry
from txlayer.core import codec
from txlayer.core.codec import WHOLE_MAX
from txlayer.core.ledger.batch import RELEASE_LINES_MIN, ReleaseLines
from txlayer.core.ledger.ledger import RELEASE_LINES_MAX
from txlayer.core.ledger.transaction import TIMES_MAX, Target
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import NO_OPTIONS, HalfOptions, OpMessage, OrderMode, Resolution, Source

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
RED = options("red")
MINUTE = 60_000


def timed(at_ms: int | None, others: HalfOptions = RED) -> HalfOptions:
    return others._replace(deliver_at_ms=at_ms)


def line_with_time(
    resolution: Resolution, key: str, offset: int, time_ms: int, source: Source = Source.OPERATOR
) -> str:
    return codec.encode_op(OpMessage(resolution, key, GROUP, offset, 0, source, time_ms=time_ms))


def let_pass(driver: PartitionDriver, ms: int) -> None:
    """Time passes; the lines that release are written, read and applied."""
    driver.pass_time(after_ms=ms)
    driver.turn()


def scheduled(driver: PartitionDriver, key: str, *times: int | None, others: HalfOptions = RED) -> int:
    """Prepare messages at these times and commit; the offset of the last half record."""
    for index, at_ms in enumerate(times):
        last = driver.half(key, index=index, count=len(times), options=timed(at_ms, others))
    driver.say("C", key, last)
    return last


def let_op_tell_the_time(driver: PartitionDriver) -> None:
    """A minute passes, and a line that says nothing new is appended: by op's append times it is over."""
    driver.now_ms += MINUTE
    driver.say("C", "t0/0000000a", 0)


def visible(driver: PartitionDriver) -> list[tuple[str, int]]:
    return [(message.txn_key[0], message.index) for message in driver.log.visible]


@pytest.mark.promise("P3")
def test_a_message_with_a_time_waits_on_doubt_until_then() -> None:
    driver = PartitionDriver()
    scheduled(driver, A, driver.now_ms + MINUTE)

    assert TxnState.SCHEDULED is driver.state(A)
    assert "scheduled" == driver.log.on_doubt()[A].summary().state
    let_pass(driver, MINUTE - 1)
    assert [] == driver.log.forwarded
    let_pass(driver, 1)

    assert [A] == driver.log.forwarded
    assert {} == driver.log.on_doubt()
    assert 0 == driver.ledger.open_count == driver.ledger.content_bytes


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_new_process", [False, True])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_until_its_time_it_needs_no_object(is_mixed: bool, is_new_process: bool) -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    last = scheduled(driver, A, *[None] * is_mixed, at_ms)
    driver.op_lines(line_with_time(Resolution.UNKNOWN, A, last, at_ms + MINUTE))
    driver.turn()
    if is_new_process:
        driver.crash(is_new_process=True)

    let_pass(driver, MINUTE)

    assert ([], 1, 1) == ([*driver.ledger.transactions], len(driver.ledger.dormant), driver.ledger.open_count)
    let_pass(driver, MINUTE)
    assert [("a", index) for index in range(1 + is_mixed)] == visible(driver)
    assert (0, 0) == (driver.ledger.open_count, driver.ledger.order.keyed_count)


@pytest.mark.parametrize("mode", OrderMode)
def test_it_holds_back_none_in_either_order(mode: OrderMode) -> None:
    driver, others = PartitionDriver(), options("red", order=mode)
    scheduled(driver, A, driver.now_ms + MINUTE, others=others)
    scheduled(driver, B, None, others=others)

    assert [B] == driver.log.forwarded
    let_pass(driver, MINUTE)
    assert [B, A] == driver.log.forwarded


@pytest.mark.promise("P5")
def test_messages_of_one_transaction_may_have_times_of_their_own() -> None:
    driver = PartitionDriver()
    now_ms = driver.now_ms
    scheduled(driver, A, now_ms + 2 * MINUTE, None, now_ms + MINUTE, now_ms + MINUTE)

    assert [("a", 1)] == visible(driver)
    let_pass(driver, MINUTE)
    assert [("a", 1), ("a", 2), ("a", 3)] == visible(driver)
    assert TxnState.SCHEDULED is driver.state(A)
    let_pass(driver, MINUTE)

    assert [("a", 1), ("a", 2), ("a", 3), ("a", 0)] == visible(driver)
    assert 0 == driver.ledger.open_count == driver.ledger.content_bytes


@pytest.mark.promise("P11")
def test_content_that_is_read_again_for_a_part_counts_once() -> None:
    driver = PartitionDriver()
    driver.half(A, index=0, count=2, options=timed(None))
    last = driver.half(A, index=1, count=2, options=timed(driver.now_ms + MINUTE))
    driver.read()
    driver.ledger.drop_content(1 << 20)
    driver.say("C", A, last)

    assert [("a", 0)] == visible(driver)
    assert 0 == driver.ledger.content_bytes


@pytest.mark.promise("P11")
def test_a_part_that_was_held_leaves_no_content_in_memory() -> None:
    driver = PartitionDriver(targets={"orders": MISSING})
    scheduled(driver, A, None, driver.now_ms + MINUTE)
    driver.set_target("orders", ACCEPTS)
    driver.turn()

    assert [("a", 0)] == visible(driver)
    assert (1, 0) == (len(driver.ledger.dormant), driver.ledger.content_bytes)


@pytest.mark.promise("P6")
@pytest.mark.parametrize("is_new_process", [False, True])
def test_of_one_key_the_order_is_by_time_and_then_by_decision(is_new_process: bool) -> None:
    driver = PartitionDriver()
    first_ms, second_ms = driver.now_ms + MINUTE, driver.now_ms + 2 * MINUTE
    scheduled(driver, A, second_ms)
    scheduled(driver, B, first_ms, second_ms)
    scheduled(driver, C, second_ms)
    let_pass(driver, MINUTE)
    if is_new_process:
        driver.crash(is_new_process=True)

    for _ in range(2):  # op's append times tell with the first line that the time of the others has come
        let_pass(driver, 5 * MINUTE)

    assert [("b", 0), ("a", 0), ("b", 1), ("c", 0)] == visible(driver)


@pytest.mark.promise("P6")
def test_of_several_that_are_overdue_the_order_is_by_time() -> None:
    driver = PartitionDriver()
    now_ms = driver.now_ms
    scheduled(driver, A, now_ms + 1, now_ms + 2, now_ms + 4)
    scheduled(driver, B, now_ms + 3)

    for _ in range(5):
        let_pass(driver, MINUTE)

    assert [("a", 0), ("a", 1), ("b", 0), ("a", 2)] == visible(driver)


@pytest.mark.promise("P6")
@pytest.mark.parametrize("is_new_process", [False, True])
def test_one_that_is_due_waits_for_a_held_one_of_its_key_and_later_ones_wait_for_it(is_new_process: bool) -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "gone": MISSING})
    scheduled(driver, A, driver.now_ms + MINUTE, driver.now_ms + 5 * MINUTE)
    driver.say("C", B, driver.half(B, topic="gone", options=RED))
    let_pass(driver, MINUTE)
    driver.say("C", C, driver.half(C, options=RED))

    assert [TxnState.WAITING, TxnState.HELD, TxnState.WAITING] == [driver.state(key) for key in (A, B, C)]
    if is_new_process:
        driver.crash(is_new_process=True)
        driver.turn()
    driver.set_target("gone", ACCEPTS)
    driver.turn()
    assert [("b", 0), ("a", 0), ("c", 0)] == visible(driver)
    let_pass(driver, 5 * MINUTE)

    assert [("b", 0), ("a", 0), ("c", 0), ("a", 1)] == visible(driver)


@pytest.mark.promise("P6")
@pytest.mark.parametrize("is_new_process", [False, True])
@pytest.mark.parametrize("is_held_itself", [False, True])
def test_what_is_due_while_an_earlier_part_waits_goes_with_that_part(
    is_held_itself: bool, is_new_process: bool
) -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "gone": MISSING})
    if not is_held_itself:
        driver.op("C", B, driver.half(B, topic="gone", options=RED))
    first_ms = driver.now_ms + MINUTE
    for index, at_ms in enumerate((None, first_ms, first_ms + MINUTE)):
        last = driver.half(
            A, index=index, count=3, topic="gone" if is_held_itself else "orders", options=timed(at_ms, RED)
        )
    driver.say("C", A, last)
    if is_new_process:
        driver.crash(is_new_process=True)
        driver.turn()

    let_pass(driver, MINUTE)
    scheduled(driver, C, None)
    driver.set_target("gone", ACCEPTS)
    driver.turn()
    let_pass(driver, MINUTE)

    before = [] if is_held_itself else [("b", 0)]
    assert [*before, ("a", 0), ("a", 1), ("c", 0), ("a", 2)] == visible(driver)


@pytest.mark.promise("P6")
@pytest.mark.parametrize("is_new_process", [False, True])
def test_so_does_what_is_due_while_that_part_waits_in_half(is_new_process: bool) -> None:
    driver, others = PartitionDriver(), options("red", order=OrderMode.PREPARE)
    undecided = driver.half(B, options=others)
    scheduled(driver, A, None, driver.now_ms + 1_000, others=others)
    if is_new_process:
        driver.crash(is_new_process=True)

    let_pass(driver, 1_000)
    assert TxnState.WAITING is driver.state(A)
    driver.say("C", B, undecided)

    assert [("b", 0), ("a", 0), ("a", 1)] == visible(driver)


@pytest.mark.promise("P6")
def test_after_the_line_of_a_former_owner_the_next_time_is_awaited_too() -> None:
    driver = PartitionDriver()
    first_ms = driver.now_ms + MINUTE
    last = scheduled(driver, A, first_ms, first_ms + MINUTE)
    driver.set_target("orders", MISSING)
    driver.now_ms = first_ms
    driver.op_lines(line_with_time(Resolution.COMMIT, A, last, first_ms, Source.POLICY))
    driver.crash()
    driver.turn()
    assert TxnState.HELD is driver.state(A)

    let_pass(driver, MINUTE)
    scheduled(driver, C, None)
    driver.set_target("orders", ACCEPTS)
    driver.turn()

    assert [("a", 0), ("a", 1), ("c", 0)] == visible(driver)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_new_process", [False, True])
@pytest.mark.parametrize("refusing", [MISSING, FORBIDDEN])
def test_a_topic_whose_messages_are_forwarded_holds_back_no_later_part(refusing: Target, is_new_process: bool) -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "mails": ACCEPTS, "old": ACCEPTS})
    first_ms = driver.now_ms + MINUTE
    for index, (at_ms, topic) in enumerate(((None, "old"), (first_ms, "mails"), (first_ms + MINUTE, "orders"))):
        last = driver.half(A, index=index, count=3, topic=topic, options=timed(at_ms))
    driver.say("C", A, last)
    driver.turn()
    assert ("mails", "orders") == driver.log.on_doubt()[A].topics
    driver.set_target("old", refusing)
    if is_new_process:
        driver.crash(is_new_process=True)

    let_pass(driver, MINUTE)
    driver.set_target("mails", refusing)
    let_pass(driver, MINUTE)

    assert [("a", 0), ("a", 1), ("a", 2)] == visible(driver)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_lost_one_forwarded", [True, False])
def test_a_part_is_forwarded_although_doubt_and_half_have_another_one_no_more(is_lost_one_forwarded: bool) -> None:
    driver = PartitionDriver()
    driver.log._publisher._doubt_bytes_max = 1_500
    times = (None if is_lost_one_forwarded else driver.now_ms + 2 * MINUTE, driver.now_ms + MINUTE)
    for index, at_ms in enumerate(times):
        value = b"x" * 1_000 if index == 0 else b"v"
        last = driver.half(A, index=index, count=2, options=timed(at_ms), value=value)
    driver.say("C", A, last)
    del driver.log.half[:1]

    let_pass(driver, MINUTE)

    assert ("a", 1) in visible(driver)


@pytest.mark.promise("P2")
@pytest.mark.parametrize("at", ["scheduled", "part", "line", "answer"])
def test_a_restart_repeats_nothing_and_loses_nothing(at: str) -> None:
    driver = PartitionDriver()
    now_ms = driver.now_ms
    scheduled(driver, A, None, now_ms + MINUTE, now_ms + 2 * MINUTE)
    if at == "scheduled":
        driver.crash(is_new_process=True)
    driver.tick(after_ms=MINUTE)
    driver.publish(is_answered=at != "answer")
    if at == "line":
        driver.crash(is_new_process=True)
        driver.tick()  # it does not know that the line is there, and writes it again
        driver.publish()
    driver.turn()
    if at == "part":
        driver.crash(is_new_process=True)

    let_pass(driver, MINUTE)
    driver.crash(is_new_process=True)
    let_pass(driver, MINUTE)

    assert [("a", 0), ("a", 1), ("a", 2)] == visible(driver)
    assert 0 == driver.ledger.open_count
    assert {} == driver.log.on_doubt()


@pytest.mark.promise("P3")
def test_a_line_that_was_appended_before_the_time_releases_nothing() -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    last = scheduled(driver, A, at_ms)
    driver.op_lines(line_with_time(Resolution.COMMIT, A, last, at_ms, Source.POLICY))
    driver.turn()

    assert TxnState.SCHEDULED is driver.state(A)
    let_pass(driver, MINUTE)

    assert [A] == driver.log.forwarded


def test_a_line_with_another_time_releases_nothing() -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    last = scheduled(driver, A, at_ms)
    for wrong_ms in (0, at_ms - 1, at_ms + 1):
        driver.op_lines(line_with_time(Resolution.COMMIT, A, last, wrong_ms, Source.POLICY))
    driver.say("C", A, last)

    assert [] == driver.log.forwarded


@pytest.mark.promise("P4")
def test_one_that_is_abandoned_before_its_time_is_never_visible() -> None:
    driver = PartitionDriver()
    last = scheduled(driver, A, driver.now_ms + MINUTE)
    driver.say("A", A, last)

    let_pass(driver, 2 * MINUTE)
    driver.crash(is_new_process=True)
    let_pass(driver, 2 * MINUTE)

    assert [] == driver.log.forwarded
    assert 0 == driver.ledger.open_count
    assert [b"A"] == [dict(e.record.headers() or ())[codec.END_HEADER] for e in ends_of(driver, A)]


def test_what_is_forwarded_stays_when_the_rest_is_abandoned() -> None:
    driver = PartitionDriver()
    last = scheduled(driver, A, None, driver.now_ms + MINUTE)
    driver.say("A", A, last)

    let_pass(driver, 2 * MINUTE)

    assert [("a", 0)] == visible(driver)
    assert [b"A1"] == [dict(e.record.headers() or ())[codec.END_HEADER] for e in ends_of(driver, A)]


@pytest.mark.promise("P1", "P4")
def test_a_line_that_releases_may_name_any_half_record() -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    scheduled(driver, A, at_ms, at_ms)
    driver.now_ms = at_ms

    driver.op_lines(line_with_time(Resolution.COMMIT, A, 0, at_ms, Source.POLICY))
    driver.turn()

    assert [("a", 0), ("a", 1)] == visible(driver)


@pytest.mark.parametrize("is_abandon_first", [True, False])
def test_the_first_word_wins(is_abandon_first: bool) -> None:
    driver = PartitionDriver()
    last = scheduled(driver, A, driver.now_ms + MINUTE)
    if is_abandon_first:
        driver.op("A", A, last)
    driver.pass_time(after_ms=MINUTE)
    if not is_abandon_first:
        driver.op("A", A, last)
    driver.turn()

    assert ([] if is_abandon_first else [A]) == driver.log.forwarded


@pytest.mark.parametrize("is_new_process", [False, True])
def test_another_time_counts_for_all_that_is_left(is_new_process: bool) -> None:
    driver = PartitionDriver()
    now_ms = driver.now_ms
    last = scheduled(driver, A, None, now_ms + MINUTE, now_ms + 9 * MINUTE)
    driver.op_lines(line_with_time(Resolution.UNKNOWN, A, last, now_ms + 3 * MINUTE))
    driver.turn()
    if is_new_process:
        driver.crash(is_new_process=True)

    let_pass(driver, 2 * MINUTE)
    assert [("a", 0)] == visible(driver)
    let_pass(driver, MINUTE)

    assert [("a", 0), ("a", 1), ("a", 2)] == visible(driver)
    assert 0 == driver.ledger.open_count


def test_one_that_doubt_cannot_keep_whole_is_parked_at_its_decision() -> None:
    driver = PartitionDriver(settings=replace(SETTINGS, transaction_bytes_max=10))
    scheduled(driver, A, driver.now_ms + MINUTE)

    assert {A: "limit"} == driver.reasons()


def test_a_part_that_comes_after_an_incomplete_commit_keeps_its_time() -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    first = driver.half(A, count=2)
    driver.say("C", A, first)
    second = driver.half(A, index=1, count=2, options=timed(at_ms, HalfOptions()))
    driver.say("C", A, second)

    assert [("a", 0)] == visible(driver)
    let_pass(driver, MINUTE)

    assert [("a", 0), ("a", 1)] == visible(driver)


@pytest.mark.promise("P3")
@pytest.mark.parametrize("is_new_process", [False, True])
def test_parts_that_came_late_and_lie_apart_on_doubt_are_forwarded_at_their_times(is_new_process: bool) -> None:
    driver = PartitionDriver()
    first_ms = driver.now_ms + 10 * MINUTE
    for index in range(3):
        last = driver.half(A, index=index, count=3, options=timed(first_ms + index * MINUTE))
        driver.half(txn_key(f"t{index}"))
        driver.turn()
        let_pass(driver, MINUTE)
    driver.say("C", A, last)
    if is_new_process:
        driver.log.compact_doubt()
        driver.crash(is_new_process=True)

    seen = []
    for after_ms in (first_ms - driver.now_ms, MINUTE, MINUTE):
        let_pass(driver, after_ms)
        seen.append(visible(driver))

    assert [[("a", 0)], [("a", 0), ("a", 1)], [("a", 0), ("a", 1), ("a", 2)]] == seen
    assert A not in driver.log.on_doubt()
    assert {} == driver.log.contents_on_doubt(A)


def test_a_transaction_has_a_bounded_number_of_times() -> None:
    driver = PartitionDriver()
    count = TIMES_MAX + 1
    for index in range(count):
        last = driver.half(A, index=index, count=count, options=timed(1_000 + index))
    driver.turn()

    assert 1 == len(driver.log.kept_aside)
    assert last == driver.log.kept_aside[0].offset


def test_lines_that_release_are_bounded_in_a_batch_and_ahead_of_the_log() -> None:
    driver, line_count_max, count = PartitionDriver(), 500, 600
    assert RELEASE_LINES_MAX == driver.ledger.release_lines_max
    driver.ledger.release_lines_max = line_count_max
    for number in range(count):
        key = f"t{number}/0000000a"
        driver.op("C", key, driver.half(key, options=timed(driver.now_ms + MINUTE)))
    driver.turn()
    let_op_tell_the_time(driver)
    lines = []
    for _ in range(4):
        for _ in range(2):  # however often time goes on before a batch is appended
            driver.tick()
        lines.append(len(driver.ledger.batch.policy_lines))
        driver.publish()

    assert [line_count_max, 0, 0, 0] == lines
    while driver.ledger.open_count:
        let_pass(driver, 1)

    assert [f"t{number}/0000000a" for number in range(count)] == driver.log.forwarded


@pytest.mark.promise("P11")
def test_turns_that_take_long_allow_fewer_lines_that_release_and_quick_ones_more() -> None:
    lines = ReleaseLines(5_000)
    for _ in range(10):
        lines.took(100, written_count=lines.count)
    assert 5_000 == lines.count
    for _ in range(5):
        lines.took(100, written_count=10)
    assert 5_000 == lines.count
    for _ in range(20):
        lines.took(400, written_count=lines.count)
    assert RELEASE_LINES_MIN == lines.count
    lines.took(100, written_count=10)  # nothing tells what a full turn would take
    assert RELEASE_LINES_MIN == lines.count
    lines.took(280, written_count=lines.count)
    assert RELEASE_LINES_MIN == lines.count


@pytest.mark.promise("P1")
def test_a_message_with_the_latest_time_is_forwarded_when_it_is_given_another_one() -> None:
    driver = PartitionDriver()
    now_ms = driver.now_ms
    last = scheduled(driver, A, now_ms + MINUTE, WHOLE_MAX)
    driver.op_lines(line_with_time(Resolution.UNKNOWN, A, last, now_ms + 2 * MINUTE))
    driver.turn()

    let_pass(driver, 3 * MINUTE)

    assert [("a", 0), ("a", 1)] == visible(driver)
    assert 0 == driver.ledger.open_count


@pytest.mark.slow
@pytest.mark.promise("P11")
def test_times_that_are_not_awaited_any_more_leave_memory() -> None:
    driver, far_ms = PartitionDriver(), 30 * 24 * 60 * MINUTE
    last = scheduled(driver, A, driver.now_ms + far_ms)
    for number in range(30):
        keys = [f"t{number}-{n}/0000000a" for n in range(100)]
        offsets = [driver.half(key, options=timed(driver.now_ms + far_ms)) for key in keys]
        driver.op_lines(*(op_line("C", key, offset) for key, offset in zip(keys, offsets, strict=True)))
        driver.turn()
        driver.op_lines(
            line_with_time(Resolution.UNKNOWN, A, last, driver.now_ms + far_ms + number),
            *(op_line("A", key, offset) for key, offset in zip(keys, offsets, strict=True)),
        )
        driver.turn()

    assert 1 == driver.ledger.open_count
    assert len(driver.ledger.release_times) < 2_500
    let_pass(driver, far_ms + MINUTE)
    assert [A] == driver.log.forwarded


@pytest.mark.promise("P11")
@pytest.mark.parametrize("behind_ms", [20_000, 200_000])
def test_where_the_clock_of_op_is_behind_a_line_is_written_once_more_and_not_again_and_again(behind_ms: int) -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    scheduled(driver, A, at_ms)
    scheduled(driver, B, at_ms + 10_000)
    written, driver.op_behind_ms = 0, behind_ms
    driver.tick(after_ms=MINUTE)
    for _ in range(400):
        written += len(driver.ledger.batch.policy_lines)
        driver.publish()
        driver.turn()
        driver.tick(after_ms=behind_ms // 200)
    driver.turn()

    assert [A, B] == driver.log.forwarded
    assert written < 10


@pytest.mark.fault("clock: the clock of the next leader is hours behind")
def test_after_a_leader_whose_clock_was_hours_behind_messages_are_late_by_a_minute_at_most() -> None:
    driver, hour_ms = PartitionDriver(), 60 * MINUTE
    scheduled(driver, A, driver.now_ms + MINUTE)
    driver.op_behind_ms = hour_ms
    let_pass(driver, MINUTE)
    scheduled(driver, B, driver.now_ms + MINUTE)
    let_pass(driver, MINUTE)
    assert [] == driver.log.forwarded

    driver.op_behind_ms = 0
    for _ in range(61):
        let_pass(driver, 1_000)

    assert [A, B] == driver.log.forwarded


@pytest.mark.promise("P6")
@pytest.mark.parametrize("gap_ms", [0, 10])
def test_where_the_clock_of_op_is_a_moment_behind_none_of_a_key_overtakes_another(gap_ms: int) -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    scheduled(driver, A, at_ms)
    scheduled(driver, B, at_ms + gap_ms)
    driver.ledger.release_lines_max = 1
    driver.op_behind_ms = 5
    driver.pass_time(after_ms=MINUTE)
    driver.ledger.release_lines_max = 2
    driver.tick(after_ms=20)  # the line for the first one came too early, and is not read yet
    driver.publish()
    driver.op("U", C, driver.half(C))
    driver.read()  # nor is it applied, although later records are read
    driver.pass_time()
    driver.turn()

    for _ in range(5):
        let_pass(driver, 100)

    assert [A, B] == driver.log.forwarded


@pytest.mark.promise("P6")
@pytest.mark.fault("clock: the clock of the next leader is a moment behind")
def test_after_a_leader_whose_clock_was_a_moment_ahead_none_of_a_key_overtakes_another() -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    scheduled(driver, A, at_ms)
    scheduled(driver, B, at_ms + 10)
    driver.now_ms = at_ms
    driver.say("U", C, driver.half(C))  # by the clock of this leader A's time has come
    driver.op_behind_ms = 5  # not by that of the next one
    driver.pass_time()
    driver.pass_time(after_ms=20)  # A's line came too early, and is not read yet

    for _ in range(5):
        let_pass(driver, 100)

    assert [A, B] == driver.log.forwarded


@pytest.mark.promise("P6")
@pytest.mark.parametrize("is_probed", [False, True])
def test_one_whose_commit_waits_to_be_applied_is_overtaken_by_none_that_is_due_later(is_probed: bool) -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + 1_000
    scheduled(driver, B, at_ms + 1_000)
    driver.op("C", "t0/0000000a", 1_000)  # names no half record: the lines behind it are read, and wait
    driver.op("C", A, driver.half(A, options=timed(at_ms)))
    driver.read()
    driver.advance()
    if is_probed:
        driver.now_ms += 3_000
        driver.ledger.probe_time(now_ms=driver.now_ms - 3_000, wall_ms=driver.now_ms)
        driver.publish()
    else:
        driver.pass_time(after_ms=3_000)  # both are due, and A's commit is not applied
    driver.give_up()
    for _ in range(3):
        let_pass(driver, 100)

    assert [A, B] == driver.log.forwarded


@pytest.mark.promise("P6")
def test_behind_lines_of_a_former_owner_none_of_a_key_overtakes_another() -> None:
    driver = PartitionDriver()
    before_ms, at_ms = driver.now_ms + MINUTE, driver.now_ms + MINUTE + 50
    last = scheduled(driver, C, before_ms, others=NO_OPTIONS)
    scheduled(driver, A, at_ms)
    scheduled(driver, B, at_ms)
    driver.op("C", "t0/0000000a", 1_000)  # names no half record: the lines behind it are read, and wait
    driver.now_ms = before_ms
    driver.op_lines(line_with_time(Resolution.COMMIT, C, last, before_ms, Source.POLICY))  # by a former owner
    driver.now_ms, driver.op_behind_ms = at_ms, 5
    driver.read()
    driver.advance()
    driver.pass_time()  # C's line is written once more, and A's, too early by the clock of op
    driver.give_up()
    for _ in range(20):
        driver.turn(lines=1)
        driver.pass_time(after_ms=5)

    assert [C, A, B] == driver.log.forwarded


@pytest.mark.promise("P11")
def test_what_waits_in_half_for_one_that_returns_from_its_short_form_must_fit_into_the_batch() -> None:
    driver, bytes_max, red = PartitionDriver(), 8_000, options("red", order=OrderMode.PREPARE)
    at_ms = driver.now_ms + MINUTE
    scheduled(driver, A, at_ms, others=red)
    driver.half(B, options=red)
    for number in range(20):
        key = f"w{number}/0000000a"
        driver.op("C", key, driver.half(key, options=red, value=bytes(200)))
    driver.turn()
    others = [txn_key(f"other{number}") for number in range(20)]
    lines = [op_line("C", key, driver.half(key, value=bytes(200))) for key in others]
    driver.now_ms = at_ms
    driver.op_lines(*lines, line_with_time(Resolution.COMMIT, A, 0, at_ms, Source.POLICY))
    driver.ledger.batch_bytes_max = bytes_max
    driver.read()

    assert driver.advance(byte_count=bytes_max).byte_count < bytes_max
    driver.publish()
    driver.turn()
    assert A == driver.log.forwarded[-1]


@pytest.mark.promise("P11")
def test_a_line_of_another_writer_before_the_time_delays_nothing() -> None:
    driver = PartitionDriver()
    far_ms, soon_ms = driver.now_ms + 100 * MINUTE, driver.now_ms + MINUTE
    last = scheduled(driver, A, far_ms)
    scheduled(driver, B, soon_ms)
    for _ in range(10):
        driver.op_lines(line_with_time(Resolution.COMMIT, A, last, far_ms, Source.POLICY))
    driver.turn()

    assert len(driver.ledger.release_times) == 2
    let_pass(driver, MINUTE)
    assert [B] == driver.log.forwarded


@pytest.mark.promise("P11")
def test_a_line_that_is_written_twice_in_a_batch_is_waited_for_once() -> None:
    driver = PartitionDriver()
    at_ms = driver.now_ms + MINUTE
    last = scheduled(driver, A, at_ms)
    driver.tick(after_ms=MINUTE)
    driver.op_lines(line_with_time(Resolution.UNKNOWN, A, last, at_ms))
    driver.read()
    driver.advance()
    driver.tick()
    assert driver.ledger.is_releasing
    driver.publish()
    driver.turn()

    assert ([A], False) == (driver.log.forwarded, driver.ledger.is_releasing)


def ends_of(driver: PartitionDriver, key: str) -> list[Entry]:
    return [e for e in driver.log.doubt if e.record.key() == key.encode() and e.record.value() is None]


@pytest.mark.promise("P5")
def test_what_is_asked_about_and_committed_in_one_batch_goes_whole() -> None:
    driver = PartitionDriver()
    driver.half(A, count=3, options=timed(driver.now_ms + 20 * MINUTE, RED._replace(check_with="k")))
    driver.half(A, index=1, count=3, options=RED)
    last = driver.half(A, index=2, count=3, options=RED)
    driver.turn()
    driver.pass_time(after_ms=driver.log.settings.doubt_after_ms)
    first, *others = driver.log.doubt
    # The marker of the Kafka transaction before came between the batches of this one.
    driver.log.doubt = [first, *(entry._replace(offset=entry.offset + 1) for entry in others)]

    driver.tick(is_present=True)
    driver.op("C", A, last)
    driver.turn()

    assert 1 == len(driver.log.questions)
    assert [("a", 1), ("a", 2)] == visible(driver)
