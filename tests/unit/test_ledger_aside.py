"""One partition: what is none of ours, and where a batch ends."""

from typing import Any

import pytest

from tests.support.core_records import FAR_AWAY, half_header, op_line, options, txn_key
from tests.support.partition_driver import PartitionDriver
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.errors import Code
from txlayer.core.codec import HALF_HEADER
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import HalfOptions, OrderMode, Source

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")


def kept_aside(driver: PartitionDriver) -> list[tuple[str, int]]:
    """Where the records stood that were quarantined."""
    return [(origin.topic, origin.offset) for origin in driver.log.kept_aside]


def give_up(driver: PartitionDriver) -> None:
    """Lines that name nothing have waited long enough."""
    driver.turn()
    driver.give_up()
    driver.turn()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_batch_ends_at_the_line_where_its_limit_is() -> None:
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(5)]
    driver.op_lines(*(op_line("C", key, driver.half(key)) for key in keys))

    driver.turn(lines=2)
    assert (keys[:2], 0, 2) == (driver.log.forwarded, driver.log.stored.op_offset, driver.log.stored.op_line)
    assert driver.ledger.has_more
    driver.turn(lines=2)
    driver.turn(lines=2)

    assert (keys, False) == (driver.log.forwarded, driver.ledger.has_more)


@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_batch_ends_with_the_line_that_fills_it(is_keyed: bool) -> None:
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(3)]
    for key in keys:
        of = options("red") if is_keyed else options()
        driver.op("C", key, driver.half(key, value=b"x" * 100, options=of))

    driver.turn(byte_count=300)

    assert keys[:2] == driver.log.forwarded


def test_lines_from_which_nothing_follows_do_not_fill_a_batch() -> None:
    # Nothing would be appended then, and the next turn would find the batch full: it would stand still.
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(5)]
    for key in keys:
        driver.op("R", key, driver.half(key))
    driver.read()

    for _ in keys:
        assert driver.advance(lines=1).is_empty

    assert {} == driver.ledger.transactions


@pytest.mark.promise("P11")
def test_settled_transactions_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.remembered.RECENT_COUNT_MAX", 2)
    monkeypatch.setattr("txlayer.core.ledger.remembered.DISTANCE_MAX", 1)
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(7)]
    for key in keys:
        driver.say("C", key, driver.half(key))

    for n, key in enumerate(keys):
        driver.op("R", key, n)
    driver.turn()

    assert keys[-4:] == driver.reported(ReportKind.CONFLICT)
    assert keys[:-4] == driver.reported(ReportKind.UNMATCHED)


# --- what is none of ours ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, b"", b"\xff"])
def test_an_op_record_that_cannot_be_read_is_kept_aside_in_its_turn(value: bytes | None) -> None:
    driver = PartitionDriver()
    driver.op_lines(op_line("C", A, driver.half(A)), op_line("C", B, driver.half(B)))
    driver.log.add_op(value, appended_ms=driver.now_ms)
    driver.op("C", C, driver.half(C))

    driver.turn(lines=1)
    assert [] == kept_aside(driver), "the lines before it come first"
    driver.turn()

    assert ([("txlayer.op", 1)], [A, B, C]) == (kept_aside(driver), driver.log.forwarded)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "garbage",
        "1|C|a|b|c|d|e|f|g",
        op_line("C", A, 0).replace("1|C", "3|C"),
        op_line("C", A, 0).replace("1|C", "1|X"),
        op_line("C", A, 0).replace("producer", "nobody"),
        op_line("C", A, 0) + "|",
        op_line("C", A, 0).replace("|0|", "|+0|"),
        op_line("C", A, FAR_AWAY).replace("1|C", "3|C"),
    ],
)
def test_a_line_that_cannot_be_read_is_kept_aside_and_the_next_one_acts(line: str) -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.op_lines(line, op_line("R", A, 0))

    driver.turn()

    assert ([("txlayer.op", 0)], []) == (kept_aside(driver), list(driver.ledger.transactions))


@pytest.mark.fault("data: an op without its half record, a half record without op, or an op that is read first")
def test_a_line_beyond_the_end_of_half_is_given_up_and_its_transaction_parked() -> None:
    driver = PartitionDriver()
    driver.op_lines(op_line("C", A, FAR_AWAY), op_line("C", B, driver.half(B)))
    driver.read()
    driver.advance()
    assert ([], FAR_AWAY) == (driver.ledger.batch.forwards, driver.ledger.waits_for_half)

    driver.give_up()
    driver.turn()

    assert ([B], TxnState.PARKED) == (driver.log.forwarded, driver.state(A))
    assert "misplaced" == driver.log.on_doubt()[A].summary().reason
    assert [("txlayer.op", 0)] == kept_aside(driver)


@pytest.mark.threat("write `<ns>.op`")
@pytest.mark.promise("P11")
def test_op_lines_that_name_invented_transactions_take_no_more_memory_than_their_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.ledger.ONLY_NAMED_COUNT_MAX", 3)
    driver = PartitionDriver()
    keys = [txn_key(f"t{number}") for number in range(10)]
    driver.op_lines(*(op_line("C", key, FAR_AWAY) for key in keys))
    give_up(driver)
    assert (10, keys[:3]) == (len(kept_aside(driver)), list(driver.log.on_doubt()))

    driver.crash()
    driver.op("C", txn_key("further"), FAR_AWAY)
    give_up(driver)
    assert (11, 3) == (len(kept_aside(driver)), driver.ledger.open_count)

    # One is settled, and one has its half record now: there is room for two.
    driver.op_lines(op_line("R", keys[0], FAR_AWAY, source=Source.OPERATOR, reason="zoe: invented"))
    driver.half(keys[1])
    give_up(driver)
    driver.op_lines(*(op_line("C", key, FAR_AWAY) for key in keys[3:]))
    give_up(driver)
    assert set(keys[1:5]) == set(driver.log.on_doubt())


@pytest.mark.promise("P7")
def test_a_transaction_whose_line_alone_was_kept_aside_begins_when_its_half_record_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.ledger.ONLY_NAMED_COUNT_MAX", 0)
    driver = PartitionDriver()
    driver.op("C", A, FAR_AWAY)
    give_up(driver)

    offset = driver.half(A)
    driver.crash()
    driver.turn()
    assert TxnState.OPEN is driver.state(A)
    driver.say("C", A, offset)

    assert [A] == driver.log.forwarded


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_misplaced_line_of_a_known_transaction_is_kept_aside_alone(is_settled: bool) -> None:
    driver = PartitionDriver()
    offset = driver.half(A)
    driver.op_lines(*[op_line("R", A, offset)] * is_settled, op_line("C", A, FAR_AWAY))

    give_up(driver)

    assert (None if is_settled else TxnState.OPEN) is driver.state(A)
    assert ({}, [("txlayer.op", 0)]) == (driver.log.on_doubt(), kept_aside(driver))


def test_a_misplaced_line_in_the_middle_of_a_record_is_passed_over() -> None:
    driver = PartitionDriver()
    good = driver.half(B)
    driver.op_lines(op_line("C", B, good), op_line("C", A, FAR_AWAY), op_line("U", B, good))

    give_up(driver)

    assert (1, 0, [B]) == (driver.log.stored.op_offset, driver.log.stored.op_line, driver.reported(ReportKind.REPEAT))


@pytest.mark.fault("data: an op without its half record, a half record without op, or an op that is read first")
@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_older_one_open", [False, True])
def test_a_line_that_was_given_up_does_not_act_after_a_restart(is_older_one_open: bool) -> None:
    driver = PartitionDriver()
    if is_older_one_open:
        driver.half(B)
    first = driver.half(A, index=0, count=2)
    driver.op("C", A, first + 1)
    give_up(driver)

    driver.half(A, index=1, count=2)
    driver.turn()
    driver.crash(is_new_process=True)
    driver.crash(is_new_process=True)  # what is stored by the first successor says it, too
    assert driver.state(A) is TxnState.OPEN

    driver.say("C", A, first + 1)
    assert [A] == driver.log.forwarded


@pytest.mark.fault("data: an op without its half record, a half record without op, or an op that is read first")
@pytest.mark.promise("P4")
def test_a_line_that_was_given_up_does_not_decide_again_what_was_rolled_back_since() -> None:
    driver = PartitionDriver()
    driver.half(B, options=options("red", order=OrderMode.PREPARE))
    first = driver.half(A, index=0, count=2, options=options("red", order=OrderMode.PREPARE))
    driver.op("C", A, first + 1)
    give_up(driver)
    last = driver.half(A, index=1, count=2, options=options("red", order=OrderMode.PREPARE))
    driver.say("R", A, last)

    driver.crash(is_new_process=True)
    driver.say("R", B, 0)

    assert [] == driver.log.forwarded


def test_what_was_kept_aside_holds_back_doubt_no_longer_than_op_is_read_again() -> None:
    driver = PartitionDriver()
    held_back = driver.half(B)
    driver.turn()
    driver.op_lines("garbage", op_line("C", A, FAR_AWAY))
    give_up(driver)
    assert 0 == driver.log.stored.doubt_low

    driver.op("R", B, held_back)
    driver.say("R", A, held_back)
    driver.crash()
    driver.turn()

    assert driver.log.stored.doubt_low == driver.ledger.doubt_index.next_offset > 0


def test_a_line_that_came_after_the_wait_is_waited_for_anew() -> None:
    driver = PartitionDriver()
    driver.say("C", A, FAR_AWAY)
    driver.give_up()
    driver.op("C", B, 0)

    driver.turn()
    assert driver.ledger.waits_for_half == 0
    driver.half(B)
    driver.turn()

    assert [B] == driver.log.forwarded


@pytest.mark.fault("data: an op without its half record, a half record without op, or an op that is read first")
@pytest.mark.promise("P4")
@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("is_line_read_again", [False, True])
@pytest.mark.parametrize("restart_count", [0, 1, 2])
def test_what_was_rolled_back_on_a_lines_word_alone_stays_so_when_its_half_record_comes(
    *, restart_count: int, is_line_read_again: bool, is_compacted: bool
) -> None:
    driver, key, older = PartitionDriver(), txn_key("late"), txn_key("older")
    if is_line_read_again:
        driver.half(older)  # open: half and op are read again from here
        driver.turn()
    driver.op("C", key, 1)
    give_up(driver)
    assert {key: "misplaced"} == driver.reasons()
    if not is_line_read_again:
        driver.half(older)
        driver.turn()
    driver.op_lines(op_line("R", key, 0, source=Source.OPERATOR))  # what `tx rollback` writes
    driver.turn()
    assert {} == driver.reasons()
    offset = driver.half(key)
    driver.turn()
    if is_compacted:
        driver.log.compact_doubt()
    for _ in range(restart_count):
        driver.crash(is_new_process=True)
        driver.publish()

    driver.say("C", key, offset)

    assert [] == driver.log.forwarded


@pytest.mark.fault("data: an op without its half record, a half record without op, or an op that is read first")
@pytest.mark.promise("P4")
def test_what_two_lines_of_one_batch_brought_and_rolled_back_stays_so_when_its_half_record_comes() -> None:
    driver, key = PartitionDriver(), txn_key("late")
    driver.half(txn_key("older"))
    driver.op_lines(op_line("C", key, FAR_AWAY), op_line("R", key, 0))
    give_up(driver)
    assert {} == driver.reasons()

    offset = driver.half(key)
    driver.turn()
    driver.crash(is_new_process=True)
    driver.say("C", key, offset)

    assert [] == driver.log.forwarded


@pytest.mark.promise("P7")
@pytest.mark.parametrize("is_half_empty", [False, True])
def test_a_person_settles_what_an_op_line_alone_brought(is_half_empty: bool) -> None:
    """`txlayer tx rollback` names half offset 0 for a transaction without a half record."""
    still, key = StillCoordinator(), txn_key("alone")
    if not is_half_empty:
        still.half(txn_key("other"))
    still.op(op_line("C", key, FAR_AWAY))
    still.work(seconds=60)  # `misplaced_after` is 10 s
    assert still.on_doubt()[key].state == "parked"

    still.op(op_line("R", key, 0, source=Source.OPERATOR, reason="zoe: nothing is there"))
    still.work(seconds=60)

    assert key not in still.on_doubt()


# --- what doubt does not take -----------------------------------------------------------------------------------------

SMALL_DOUBT = "5000"


def run_for(still: StillCoordinator, *, seconds: float, turns_max: int = 3_000) -> int:
    """A coordinator works for so long; how often it started over."""
    coordinator, until_s, turns = still.coordinator, still.world.passed_s + seconds, 0

    def should_stop() -> bool:
        nonlocal turns
        turns += 1
        return still.world.passed_s >= until_s or turns > turns_max

    still.run(should_stop, seconds=seconds)
    count = coordinator.counts.rebuild_count
    still.start()
    return count


@pytest.mark.promise("P7", "P11")
def test_a_long_header_that_doubt_does_not_take_stops_nobody_else() -> None:
    still = StillCoordinator()
    still.kafka.cluster.alter_topic(still.topics.doubt, {"max.message.bytes": SMALL_DOUBT})
    poison, good = txn_key("poison"), txn_key("good")
    raw = half_header(poison) + b",".join([b"z" * 1_000] * 10)  # an option that we do not know
    still.kafka.append(still.topics.half, b"v", partition=0, headers=[(HALF_HEADER, raw)])
    run_for(still, seconds=120)  # `doubt_after` is 60 s

    still.half(good)
    count = run_for(still, seconds=300)

    # A question about `good`, and its place on doubt, must not depend on the poison.
    assert good in still.on_doubt()
    stored = still.kafka.stored_offsets(still.topics.coordinator_group)
    assert stored[still.topics.half, 0].offset > 0
    assert count < 10


@pytest.mark.promise("P1", "P11")
@pytest.mark.parametrize("is_limit_known", [False, True])
@pytest.mark.parametrize("is_held", [False, True])
def test_names_of_real_topics_that_doubt_does_not_take_stop_none(is_held: bool, is_limit_known: bool) -> None:
    still, many, good = StillCoordinator(), txn_key("many"), txn_key("good")
    if not is_limit_known:
        still.refuse(lambda topic, records: _too_large(records) if topic == still.topics.doubt else None)
    else:
        still.kafka.cluster.alter_topic(still.topics.doubt, {"max.message.bytes": SMALL_DOUBT})
    names = [f"{number:0240}" for number in range(30)]
    for name in names[is_held:]:
        still.kafka.create_topic(name)
    halves = [still.half(many, index=index, count=len(names), topic=name) for index, name in enumerate(names)]
    count = run_for(still, seconds=120)  # `doubt_after` is 60 s
    assert () == still.on_doubt()[many].topics

    still.half(good)
    still.commit(many, halves[-1])
    count = max(count, run_for(still, seconds=120))  # by a successor
    assert good in still.on_doubt()

    if is_held:
        still.kafka.create_topic(names[0])
        count = max(count, run_for(still, seconds=120))
    assert [[b"v"]] * len(names) == [[r.value() for r in still.kafka.records(name)] for name in names]
    assert count < 20


def _too_large(records: list[Any]) -> Code | None:
    """What a broker says that tells no limit of doubt beforehand."""
    return Code.MSG_SIZE_TOO_LARGE if any(len(record.value() or b"") > int(SMALL_DOUBT) for record in records) else None


@pytest.mark.promise("P7", "P11")
def test_a_misplaced_line_that_names_a_long_group_stops_nobody_else() -> None:
    still = StillCoordinator()
    still.kafka.cluster.alter_topic(still.topics.doubt, {"max.message.bytes": SMALL_DOUBT})
    good, other = txn_key("good"), txn_key("other", is_home=False)
    still.op(op_line("C", txn_key("poison"), FAR_AWAY, group="g" * 10_000))
    run_for(still, seconds=60)  # `misplaced_after` is 10 s

    still.commit(good, still.half(good))
    still.commit(other, still.half(other, partition=1), partition=1)
    count = run_for(still, seconds=600)

    assert {key.partition("/")[0] for key in (good, other)} == set(still.visible())
    assert count < 10


@pytest.mark.promise("P1")
def test_a_committed_message_behind_one_out_of_form_is_kept_whole() -> None:
    """The protocol cannot say this timestamp."""
    still, key = StillCoordinator(), txn_key("two")
    still.half(key, index=0, count=2, options=HalfOptions(timestamp_ms=1 << 63), value=b"first")
    last = still.half(key, index=1, count=2, value=b"second")
    still.commit(key, last)

    still.work(seconds=120)

    doubt = {r.value() for r in still.kafka.records(still.topics.doubt)}
    forwarded = {r.value() for r in still.kafka.records("orders")}
    assert b"first" in doubt | forwarded
    assert b"second" in doubt | forwarded
