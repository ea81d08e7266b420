"""Histories that were once judged wrongly, each with the verdict that every judge must give it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.reference.test_model import DOUBT, HALF, HASH, KEY, OP, Log
from tests.reference.test_times import MINUTE, Timed
from tests.reference.wire import History, Record

AGAIN = "again/0000000b"


@dataclass(frozen=True)
class Case:
    """One history, and what is right of it."""

    build: Callable[[Log], None]
    #: Of the transaction that it is about.
    word: str
    #: Whether a record on a real topic belongs to no transaction.
    has_orphan: bool

    @property
    def txn_key(self) -> str:
        return AGAIN if "two_attempts" in self.build.__name__ else KEY

    def history(self) -> History:
        log = Log()
        self.build(log)
        return log.history()


CASES: dict[str, Case] = {}


def case(word: str, orphan: str = "") -> Callable[[Callable[[Log], None]], Callable[[Log], None]]:
    """Name a history by the function that builds it, and say what it is."""

    def note(build: Callable[[Log], None]) -> Callable[[Log], None]:
        CASES[build.__name__] = Case(build, word, bool(orphan))
        return build

    return note


def _whole(log: Log, **fields: Any) -> tuple[Record, Record]:
    """Two half records of a transaction."""
    return log.half(KEY, "0/2", **fields), log.half(KEY, "1/2", **fields)


# --- what is in order -------------------------------------------------------------------------------------------------


@case("ok")
def committed(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.show(first)
    log.show(last)


@case("rolled_back")
def rolled_back(log: Log) -> None:
    half = log.half()
    log.op(("U", half), ("R", half))


@case("open")
def undecided(log: Log) -> None:
    log.half()


@case("lost")
def lost(log: Log) -> None:
    half = log.half()
    log.op(("C", half))


@case("torn")
def torn(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.show(first)


# --- a real topic or op that begins late ------------------------------------------------------------------------------


@case("out_of_window")
def real_topic_shortened(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.starts["shop"] = 5


@case("lost")
def real_topic_shortened_long_before(log: Log) -> None:
    for _ in range(6):
        log.add("shop", value=b"of others")
    half = log.half()
    log.op(("C", half))
    log.starts["shop"] = 5


@case("out_of_window")
def half_of_it_on_a_shortened_topic(log: Log) -> None:
    first, last = log.half(numbers="0/2", topic="other"), log.half(numbers="1/2")
    log.op(("C", last))
    log.show(first, "other")
    log.starts["shop"] = 5


@case("out_of_window")
def real_topic_compacted(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.settings = replace(log.settings, compacted_topics=frozenset({"shop"}))


@case("out_of_window")
def half_of_it_on_a_compacted_topic(log: Log) -> None:
    _, last = _whole(log)
    log.op(("C", last))
    log.show(last)
    log.settings = replace(log.settings, compacted_topics=frozenset({"shop"}))


@case("corrupt")
def another_value_on_a_compacted_topic(log: Log) -> None:
    _, last = _whole(log)
    log.op(("C", last))
    log.show(last, value=b"another")
    log.settings = replace(log.settings, compacted_topics=frozenset({"shop"}))


@case("out_of_window")
def op_shortened_before_half(log: Log) -> None:
    log.add(OP, value=b"1|C|gone/00000000|orders|9|1700000000000|producer||")
    half = log.half()
    log.op(("R", half))
    log.show(half)
    log.add(OP, value=b"1|U|gone/00000000|orders|9|1700000000000|producer||")
    log.starts[OP] = 2


@case("out_of_window")
def undecided_and_op_shortened(log: Log) -> None:
    log.half()
    log.starts[OP] = 3


@case("ok")
def op_shortened_long_before(log: Log) -> None:
    for _ in range(3):
        log.add(OP, value=b"1|U|gone/00000000|orders|9|1700000000000|producer||")
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.starts[OP] = 2


@case("out_of_window")
def commit_whose_halves_are_gone(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.half("later/00000001")
    log.starts[HALF] = 1


@case("out_of_window")
def commit_and_message_whose_halves_are_gone(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.half("later/00000001")
    log.starts[HALF] = 1


@case("out_of_window")
def first_half_record_gone(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.show(first)
    log.show(last)
    log.starts[HALF] = 1


@case("open")
def foreign_kafka_transaction_open_on_the_real_topic(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.add("shop", value=b"of a stranger", kafka="open")
    log.show(half)
    log.stable_ends["shop"] = 0


@case("lost")
def foreign_kafka_transaction_open_on_another_topic(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.add("other", value=b"of a stranger", kafka="open")
    log.stable_ends["other"] = 0


# --- times ------------------------------------------------------------------------------------------------------------


@case("ok")
def user_timestamps_far_in_the_past(log: Log) -> None:
    half = log.half(options="t5")
    log.op(("C", half))
    log.show(half)
    log.records[-1] = replace(log.records[-1], timestamp_ms=5, is_append_time=False)


@case("corrupt")
def another_timestamp_than_was_asked_for(log: Log) -> None:
    half = log.half(options="t5")
    log.op(("C", half))
    log.show(half)
    log.records[-1] = replace(log.records[-1], timestamp_ms=6, is_append_time=False)


def _shown_at(log: Log, options: str, *, later_ms: int) -> None:
    """Forwarded so long after it was stored, to a topic that keeps the producers' times."""
    half = log.half(options=options)
    log.op(("C", half))
    log.show(half)
    shown_ms = half.timestamp_ms + later_ms
    log.records[-1] = replace(log.records[-1], timestamp_ms=shown_ms, is_append_time=False)


@case("ok")
def user_timestamp_in_the_future(log: Log) -> None:
    _shown_at(log, f"t{log.now_ms + 60_000}", later_ms=1_000)


@case("ok")
def user_timestamp_of_zero(log: Log) -> None:
    _shown_at(log, "t0", later_ms=1_000)


@case("corrupt")
def user_timestamp_in_the_future_and_an_earlier_one_than_that_of_forwarding(log: Log) -> None:
    _shown_at(log, f"t{log.now_ms + 60_000}", later_ms=-1_000)


@case("corrupt")
def user_timestamp_in_the_future_and_a_later_one_than_was_asked_for(log: Log) -> None:
    _shown_at(log, f"t{log.now_ms + 60_000}", later_ms=120_000)


@case("ok")
def user_timestamps_of_which_one_is_in_the_future(log: Log) -> None:
    first, last = log.half(numbers="0/2", options="t5"), log.half(numbers="1/2", options=f"t{log.now_ms + 60_000}")
    log.op(("C", last))
    for half, shown_ms in ((first, 5), (last, last.timestamp_ms + 1_000)):
        log.show(half)
        log.records[-1] = replace(log.records[-1], timestamp_ms=shown_ms, is_append_time=False)


@case("ok")
def user_timestamps_where_the_broker_sets_its_own(log: Log) -> None:
    half = log.half(options="t5")
    log.op(("C", half))
    log.show(half)


@case("ok")
def user_timestamps_and_two_attempts_of_many_messages(log: Log) -> None:
    log.half("again/0000000a")
    half = log.half("again/0000000b", options="t5")
    log.op(("C", half), key="again/0000000b")
    log.show(half)
    log.records[-1] = replace(log.records[-1], timestamp_ms=5, is_append_time=False)


@case("leaked")
def visible_before_its_decision(log: Log) -> None:
    half = log.half()
    log.show(half)
    log.op(("C", half))


# --- what decides -----------------------------------------------------------------------------------------------------


@case("conflicting")
def rollback_at_one_half_offset_and_commit_at_another(log: Log) -> None:
    first, last = _whole(log)
    log.op(("R", first))
    log.op(("C", last))


@case("leaked")
def rollback_at_one_half_offset_and_commit_at_another_visible(log: Log) -> None:
    first, last = _whole(log)
    log.op(("R", first))
    log.op(("C", last))
    log.show(first)
    log.show(last)


@case("conflicting")
def abandon_then_commit(log: Log) -> None:
    half = log.half()
    log.op(("A", half))
    log.op(("C", half))


@case("leaked")
def abandon_then_commit_visible(log: Log) -> None:
    half = log.half()
    log.op(("A", half))
    log.op(("C", half))
    log.show(half)


@case("rolled_back")
def abandon_alone(log: Log) -> None:
    half = log.half()
    log.op(("A", half))


@case("leaked")
def abandon_alone_visible(log: Log) -> None:
    half = log.half()
    log.op(("A", half))
    log.show(half)


@case("rolled_back")
def commit_then_abandon(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.op(("A", half))


@case("rolled_back")
def commit_then_abandon_and_still_parked(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("parked-committed", half, reason="too-large")
    log.content(half)
    log.op(("A", half))


@case("torn")
def commit_then_abandon_half_visible(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.op(("A", last))
    log.show(first)


@case("lost")
def commit_of_an_earlier_half_record(log: Log) -> None:
    first, _ = _whole(log)
    log.op(("C", first))


@case("ok")
def commit_of_an_earlier_half_record_then_of_the_last(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", first))
    log.op(("C", last))
    log.show(first)
    log.show(last)


@case("lost")
def commit_without_the_last_half_record(log: Log) -> None:
    """The producer died between its half records, and somebody answered for it: nothing takes the last one's place."""
    log.op(("C", log.half(numbers="0/2")))


@case("parked")
def commit_without_the_last_half_record_and_parked(log: Log) -> None:
    first = log.half(numbers="0/2")
    log.op(("C", first))
    log.summary("parked-committed", first, reason="incomplete", count=2)
    log.content(first)


@case("lost")
def commit_without_the_last_half_record_and_held(log: Log) -> None:
    first = log.half(numbers="0/2")
    log.op(("C", first))
    log.summary("held", first, reason="topic-missing", count=2)
    log.content(first)


@case("leaked")
def commit_of_an_earlier_half_record_visible(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", first))
    log.show(first)
    log.show(last)


@case("ok")
def line_of_another_producer_group(log: Log) -> None:
    half = log.half()
    log.op(("R", half), group="strangers")
    log.op(("C", half))
    log.show(half)


@case("out_of_window")
def line_of_another_producer_group_and_its_half_record_gone(log: Log) -> None:
    half = log.half()
    log.summary("open", half)
    log.content(half)
    log.op(("R", half), group="strangers")
    log.op(("C", half))
    log.half("later/00000001")
    log.starts[HALF] = 1


@case("conflicting")
def line_of_another_producer_group_beside_contrary_ones(log: Log) -> None:
    """Of three lines the first one counts for nothing."""
    half = log.half()
    log.op(("C", half), group="strangers")
    log.op(("R", half))
    log.op(("C", half))


def _long(log: Log, **fields: Any) -> list[Record]:
    """Three half records of a transaction."""
    return [log.half(KEY, f"{index}/3", **fields) for index in range(3)]


def _ends_on_doubt(log: Log, halves: list[Record], *, key: str = KEY) -> None:
    log.end_on_doubt(*range(len(halves)), key=key)
    # Nothing of what was there before is left.
    log.records = [r for r in log.records if r.topic != DOUBT or r.value is None]
    log.settings = replace(log.settings, compacted_topics=frozenset({DOUBT}))


@case("ok")
def line_of_a_half_record_in_the_middle_of_one_on_doubt(log: Log) -> None:
    """Doubt forgets the offsets between its ends: by when it stood there the rollback counted for nothing."""
    halves = _long(log)
    log.summary("open", *halves)
    log.op(("R", halves[1]))
    log.op(("C", halves[2]))
    for half in halves:
        log.show(half)
    _ends_on_doubt(log, halves)


def _went_on(log: Log, said: str, *, named: int = 1, is_written_again: bool = True) -> list[Record]:
    """Two of three half records stand on doubt, and a line names one of them; the third one joins before the line is applied."""
    halves = [log.half(numbers=f"{index}/3") for index in range(2)]
    for index, half in enumerate(halves):
        log.content(half, index)
    log.summary("open", *halves, count=3)
    log.op((said, halves[named]))
    halves.append(log.half(numbers="2/3"))
    if is_written_again:
        log.content(halves[2], 2)
        log.summary("open", *halves)
    return halves


def _shown_and_ended(log: Log, halves: list[Record]) -> None:
    log.op(("C", halves[-1]))
    for half in halves:
        log.show(half)
    log.end_on_doubt(0, 1, 2)


@case("ok")
def rollback_at_what_was_the_last_half_record_on_doubt(log: Log) -> None:
    """Doubt forgets which one was the last: the line counted for nothing, or the third one would have come too late."""
    _shown_and_ended(log, _went_on(log, "R"))


@case("ok")
def rollback_at_what_was_the_last_half_record_on_doubt_and_settled_at_once(log: Log) -> None:
    _shown_and_ended(log, _went_on(log, "R", is_written_again=False))


@case("ok")
def abandon_at_what_was_the_last_half_record_on_doubt(log: Log) -> None:
    halves = [log.half(numbers=f"{index}/3") for index in range(2)]
    log.op(("C", halves[1]))
    for index, half in enumerate(halves):
        log.content(half, index)
    log.summary("parked-committed", *halves, count=3, reason="incomplete")
    log.op(("A", halves[1]))
    halves.append(log.half(numbers="2/3"))
    _shown_and_ended(log, halves)


@case("rolled_back")
def rollback_at_the_last_half_record_on_doubt_before_one_came_too_late(log: Log) -> None:
    _went_on(log, "R", is_written_again=False)
    log.end_on_doubt(0, 1)


@case("leaked")
def rollback_at_what_was_the_last_half_record_on_doubt_visible(log: Log) -> None:
    for half in _went_on(log, "R"):
        log.show(half)
    log.end_on_doubt(0, 1, 2)


@case("leaked")
def rollback_at_the_first_half_record_on_doubt_before_one_joined(log: Log) -> None:
    """Doubt keeps the first one."""
    _shown_and_ended(log, _went_on(log, "R", named=0))


@case("leaked")
def rollback_at_a_copy_on_doubt_before_one_joined(log: Log) -> None:
    """Doubt keeps copies."""
    halves = [log.half(numbers="0/3"), log.half(numbers="1/3")]
    copy = log.half(numbers="1/3")
    log.summary("open", *halves, count=3)
    log.op(("R", copy))
    _shown_and_ended(log, [*halves, log.half(numbers="2/3")])


@case("leaked")
def rollback_at_the_last_half_record_on_doubt_after_one_joined(log: Log) -> None:
    """It is the last one to the end."""
    halves = [log.half(numbers=f"{index}/3") for index in range(3)]
    log.summary("open", *halves[:2], count=3)
    log.summary("open", *halves)
    log.op(("R", halves[2]))
    _shown_and_ended(log, halves)


@case("leaked")
def rollback_at_the_last_half_record_on_doubt_of_which_copies_are_left(log: Log) -> None:
    """Of what half has lost, the last one that doubt names was the last."""
    halves = [log.half(numbers="0/2"), log.half(numbers="1/2")]
    copies = [log.half(numbers="0/2"), log.half(numbers="1/2")]
    for index, half in enumerate(halves):
        log.content(half, index)
    log.summary("open", *halves)
    log.op(("R", halves[1]))
    log.op(("C", copies[1]))
    for half in copies:
        log.show(half)
    log.starts[HALF] = 2


@case("rolled_back")
def line_of_a_half_record_in_the_middle_of_one_not_on_doubt(log: Log) -> None:
    halves = _long(log)
    log.op(("R", halves[1]))


@case("leaked")
def line_of_a_half_record_in_the_middle_visible(log: Log) -> None:
    halves = _long(log)
    log.op(("R", halves[1]))
    log.op(("C", halves[2]))
    for half in halves:
        log.show(half)


@case("open")
def line_ahead_of_its_half_record(log: Log) -> None:
    """It may have been given up: nothing is wrong with a transaction that is open then."""
    ahead = f"1|C|{KEY}|orders|0|1700000000000|producer||".encode()
    log.op(ahead)
    log.half()


@case("ok")
def line_ahead_of_its_half_record_visible(log: Log) -> None:
    ahead = f"1|C|{KEY}|orders|0|1700000000000|producer||".encode()
    log.op(ahead)
    log.show(log.half())


@case("out_of_window")
def copy_whose_first_record_is_gone_and_visible_under_that(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.half()
    log.starts[HALF] = 1


@case("out_of_window")
def copy_of_one_message_and_the_last_record_is_gone(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.show(first)
    log.show(last)
    log.half(KEY, "0/2")
    log.starts[HALF] = 2


@case("out_of_window")
def copy_of_one_message_is_left_and_no_message_is_visible(log: Log) -> None:
    """The commit names a half record that is gone, so the records do not show that the transaction is undecided."""
    _, last = _whole(log)
    log.op(("C", last))
    log.half(KEY, "0/2")
    log.starts[HALF] = 2


@case("out_of_window")
def copy_of_one_message_is_left_in_the_order_of_half(log: Log) -> None:
    _, last = _whole(log, options=PREPARE_ORDER)
    log.op(("C", last))
    log.half(KEY, "0/2", options=PREPARE_ORDER)
    log.starts[HALF] = 2


def _hold_whole(log: Log, first: Record, last: Record) -> None:
    """Doubt has both halves of a committed transaction whose topic refuses it."""
    log.summary("held", first, last, reason="topic-denied")
    for index, half in enumerate((first, last)):
        log.content(
            half,
            index,
            headers=[
                *half.headers,
                ("txl-key", half.key),
                ("txl-origin", f"0:{half.offset}|{index}/2|1700000000000".encode()),
            ],
        )


@case("out_of_window")
def copy_of_one_message_is_left_of_one_held_whole(log: Log) -> None:
    """The commit names the copy, behind all half records that doubt has: it is complete."""
    first, last = _whole(log)
    copy = log.half(KEY, "0/2")
    log.op(("C", copy))
    _hold_whole(log, first, last)
    log.starts[HALF] = 2


@case("out_of_window")
def copy_of_one_message_is_left_of_one_that_doubt_has_cut(log: Log) -> None:
    first, last = _whole(log)
    copy = log.half(KEY, "0/2")
    log.op(("C", copy))
    log.summary("parked-committed", first, last, reason="too-large")
    for index, half in enumerate((first, last)):
        origin = ("txl-origin", f"0:{half.offset}|{index}/2|1700000000000".encode())
        log.content(half, index, value=b"", headers=[*half.headers, origin, ("txl-cut", b"too-large 2000000")])
    log.starts[HALF] = 2


@case("lost")
def commit_of_a_part_beside_a_copy_of_one_held_whole(log: Log) -> None:
    """The commit names the copy of the first message, before the last one that doubt has: it is incomplete, and may not be held."""
    first = log.half(KEY, "0/2")
    copy = log.half(KEY, "0/2")
    last = log.half(KEY, "1/2")
    log.op(("C", copy))
    _hold_whole(log, first, last)
    log.starts[HALF] = 1


@case("rolled_back")
def copy_of_one_on_doubt_whose_first_record_was_the_first_of_half(log: Log) -> None:
    """Offset 0 is a place like any other."""
    half = log.half()
    log.summary("open", half)
    log.content(half)
    log.op(("R", half))
    log.end_on_doubt(0)
    log.half()
    log.starts[HALF] = 1


@case("ok")
def copies_whose_first_records_are_gone_of_one_on_doubt(log: Log) -> None:
    """Doubt names the last half record, and what is visible may name any between the first and that one."""
    first, last = _whole(log)
    log.op(("C", last))
    log.summary("waiting", first, last)
    for index, half in enumerate((first, last)):
        log.content(half, index)
    log.show(first)
    log.show(last)
    log.end_on_doubt(0, 1)
    _whole(log)
    log.starts[HALF] = 2


@case("corrupt")
def copies_whose_first_records_are_gone_of_one_on_doubt_with_another_value(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.summary("waiting", first, last)
    for index, half in enumerate((first, last)):
        log.content(half, index)
    log.show(first, value=b"another")
    log.show(last)
    log.end_on_doubt(0, 1)
    _whole(log)
    log.starts[HALF] = 2


@case("out_of_window")
def known_from_a_summary_that_was_ended_alone(log: Log) -> None:
    half = log.half()
    log.op(("R", half))
    log.summary("open", half)
    log.content(half)
    log.end_on_doubt(0)
    log.half("later/00000001")
    log.starts[HALF] = log.starts[OP] = 1


@case("out_of_window", "orphan")
def visible_with_its_id_twice_and_its_half_record_gone(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    _with_its_id_twice(log, half)
    log.half("later/00000001")
    log.starts[HALF] = 1


@case("out_of_window")
def half_record_kept_aside_behind_those_that_are_gone(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.summary("held", first, last)
    log.show(first)
    log.show(last)
    stray = log.half(numbers="0/3")
    _ends_on_doubt(log, [first, last])
    log.add(DOUBT, key=f"origin/{HALF}/0/{stray.offset}".encode(), value=stray.value, headers=stray.headers)
    log.starts[HALF] = 2


@case("ok")
def op_record_that_is_not_ascii(log: Log) -> None:
    half = log.half()
    rollback = f"1|R|{KEY}|orders|{half.offset}|1700000000000|producer||".encode()
    log.op(rollback, "1|U|x/00000000|ö|0|0|producer||".encode())
    log.op(("C", half))
    log.show(half)


@case("open")
def commit_in_an_op_record_that_is_not_ascii(log: Log) -> None:
    half = log.half()
    commit = f"1|C|{KEY}|orders|{half.offset}|1700000000000|producer||".encode()
    log.op(commit, "1|U|x/00000000|ö|0|0|producer||".encode())


@case("leaked")
def commit_in_an_op_record_that_is_not_ascii_visible(log: Log) -> None:
    half = log.half()
    commit = f"1|C|{KEY}|orders|{half.offset}|1700000000000|producer||".encode()
    log.op(commit, "1|U|x/00000000|ö|0|0|producer||".encode())
    log.show(half)


@case("rolled_back")
def line_that_was_given_up_has_a_later_time_than_its_half_record(log: Log) -> None:
    """The clock of op's broker is ahead: by the times alone the commit counted."""
    line = f"1|C|{KEY}|orders|1|1700000000000|producer||".encode()
    log.half("other/00000001")
    given_up = log.op(line)
    log.records[-1] = replace(given_up, timestamp_ms=given_up.timestamp_ms + 20_000)
    half = log.half()
    log.add(DOUBT, key=f"origin/{OP}/0/{given_up.offset}:0".encode(), value=line, headers=[("txl-why", b"misplaced")])
    log.now_ms += 30_000
    log.op(("R", half))


@case("leaked")
def rolled_back_by_a_line_that_names_a_copy_of_which_doubt_alone_knows(log: Log) -> None:
    log.half("other/00000001")
    half, copy, last = log.half(), log.half(), log.half()
    value = log.summary("open", half).value or b""
    offsets = f"|{half.offset}+{copy.offset}+{last.offset}|".encode()
    log.records[-1] = replace(log.records[-1], value=value.replace(f"|{half.offset}|".encode(), b"|", 1))
    ahead, behind = value.split(f"|{half.offset}|{half.offset}|".encode(), 1)
    log.records[-1] = replace(log.records[-1], value=ahead + f"|{half.offset}".encode() + offsets + behind)
    log.content(half)
    log.op(("R", copy))
    log.op(("C", last))
    log.show(last)
    log.starts[HALF] = last.offset


TOO_LARGE = "9" * 19


@case("open")
def lines_with_numbers_that_are_too_large(log: Log) -> None:
    """Coordinators keep them aside."""
    half = log.half()
    for offset, born, check in ((TOO_LARGE, 5, ""), (half.offset, TOO_LARGE, ""), (half.offset, 5, TOO_LARGE)):
        log.op(f"1|C|{KEY}|orders|{offset}|{born}|check|{check}|".encode())


# --- doubt ------------------------------------------------------------------------------------------------------------


@case("parked")
def parked_whole(log: Log) -> None:
    half = log.half()
    log.summary("parked", half, reason="too-old")
    log.content(half)


@case("lost")
def parked_without_contents(log: Log) -> None:
    half = log.half()
    log.summary("parked", half, reason="too-old")


@case("open")
def held_whole(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("held", half, reason="topic-missing")
    log.content(half)


@case("lost")
def held_without_contents(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("held", half, reason="topic-missing")


@case("lost")
def held_with_another_content(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("held", half, reason="topic-missing")
    log.content(half, value=b"another")


@case("lost")
def parked_with_half_of_its_contents(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.summary("parked-committed", first, last, reason="too-large")
    log.content(first)


@case("parked")
def parked_cut(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("parked-committed", half, reason="too-large")
    cut = [*half.headers, ("txl-origin", b"0:0"), ("txl-cut", b"too-large 2000000")]
    log.content(half, value=b"", headers=cut)


@case("out_of_window")
def parked_cut_and_its_half_record_gone(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("parked-committed", half, reason="too-large")
    cut = [*half.headers, ("txl-origin", b"0:0"), ("txl-cut", b"too-large 2000000")]
    log.content(half, value=b"", headers=cut)
    log.half("later/00000001")
    log.starts[HALF] = 1


@case("out_of_window")
def parked_and_its_half_record_gone(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("parked-committed", half, reason="too-large")
    log.content(half)
    log.half("later/00000001")
    log.starts[HALF] = 1


@case("lost")
def ended_on_doubt_and_undecided(log: Log) -> None:
    half = log.half()
    log.summary("open", half)
    log.content(half)
    log.end_on_doubt(0)


def _rolled_back_before_its_half_record_came(log: Log) -> Record:
    """A line that named nothing was kept aside, and an operator ended what was on doubt because of it alone."""
    log.half("other/00000001")
    line = f"1|C|{KEY}|orders|7|1700000000000|producer||".encode()
    given_up = log.op(line)
    log.add(DOUBT, key=f"origin/{OP}/0/{given_up.offset}:0".encode(), value=line, headers=[("txl-why", b"misplaced")])
    value = f"1|parked|misplaced|orders|0|0|0|0|{log.now_ms}|1700000000000||commit|||{log.now_ms}||0/0/0/0"
    log.add(DOUBT, key=KEY.encode(), value=value.encode())
    log.op(f"1|R|{KEY}|orders|0|1700000000000|operator||zo%C3%AB: why".encode())
    log.end_on_doubt()
    log.now_ms += 30_000
    return log.half()


@case("rolled_back")
def rolled_back_before_its_half_record_came(log: Log) -> None:
    _rolled_back_before_its_half_record_came(log)


@case("leaked")
def rolled_back_before_its_half_record_came_and_visible(log: Log) -> None:
    log.show(_rolled_back_before_its_half_record_came(log))


@case("ok")
def ended_on_doubt_and_visible(log: Log) -> None:
    half = log.half()
    log.summary("open", half)
    log.content(half)
    log.op(("C", half))
    log.show(half)
    log.end_on_doubt(0)


@case("lost")
def ended_on_doubt_and_lost(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("held", half)
    log.content(half)
    log.end_on_doubt(0)


@case("lost")
def held_and_undecided(log: Log) -> None:
    half = log.half()
    log.summary("held", half)
    log.content(half)


@case("lost")
def open_on_doubt_and_committed(log: Log) -> None:
    half = log.half()
    log.summary("open", half)
    log.content(half)
    log.op(("C", half))


def _of_a_later_release(log: Log, said: str = "") -> Record:
    """On doubt in a state that only a later release knows."""
    half = log.half()
    if said:
        log.op((said, half))
    log.summary("asleep", half, reason="until-monday")
    log.content(half)
    return half


@case("open")
def undecided_in_a_state_of_a_later_release(log: Log) -> None:
    _of_a_later_release(log)


@case("open")
def committed_in_a_state_of_a_later_release(log: Log) -> None:
    _of_a_later_release(log, "C")


@case("rolled_back")
def rolled_back_in_a_state_of_a_later_release(log: Log) -> None:
    _of_a_later_release(log, "R")


@case("lost")
def committed_in_a_state_of_a_later_release_without_contents(log: Log) -> None:
    _of_a_later_release(log, "C")
    del log.records[-1]


@case("open")
def incomplete_in_a_state_of_a_later_release(log: Log) -> None:
    first = log.half(KEY, "0/2")
    log.op(("C", first))
    log.summary("asleep", first, count=2)
    log.content(first)


@case("open")
def committed_in_a_state_that_doubt_never_says(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("committed", half)
    log.content(half)


@case("open")
def committed_in_an_empty_state(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("", half)
    log.content(half)


@case("ok")
def overtaken_after_it_was_in_a_state_of_a_later_release(log: Log) -> None:
    """It may have been parked."""
    other, in_order = "other/00000009", f"k{HASH}"
    first, second = log.half(options=in_order), log.half(other, options=in_order)
    log.summary("asleep", first, key_hash=HASH)
    log.content(first)
    log.op(("C", first))
    log.op(("C", second), key=other)
    log.show(second)
    log.show(first)
    log.end_on_doubt(0)


def _open_on_doubt_and_committed(log: Log) -> None:
    half = log.half()
    log.summary("open", half)
    log.content(half)
    log.op(("C", half))


@case("out_of_window")
def open_on_doubt_and_committed_and_its_real_topic_shortened(log: Log) -> None:
    _open_on_doubt_and_committed(log)
    log.starts["shop"] = 5


@case("open")
def open_on_doubt_and_committed_and_forwarded_in_an_open_kafka_transaction(log: Log) -> None:
    """The coordinator died in it: what ends it on doubt is in the same Kafka transaction."""
    _open_on_doubt_and_committed(log)
    log.show(log.records[0], kafka="open")
    log.stable_ends["shop"] = 0


@case("ok")
def visible_and_still_parked(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("parked-committed", half, reason="too-large")
    log.content(half)
    log.show(half)


# --- what is visible --------------------------------------------------------------------------------------------------


@case("ok", "orphan")
def second_copy_with_a_broken_origin(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    headers = [("trace", b"t"), ("txl-id", KEY.split("/")[0].encode()), ("txl-origin", b"0:0|0")]
    log.show(half, headers=headers)


def _with_its_id_twice(log: Log, half: Record) -> None:
    log.show(half)
    shown = log.records[-1]
    [ours] = [header for header in shown.headers if header[0] == "txl-id"]
    log.records[-1] = replace(shown, headers=[*shown.headers, ours])


@case("ok", "orphan")
def second_copy_with_its_id_twice(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    _with_its_id_twice(log, half)


@case("lost", "orphan")
def visible_with_its_id_twice_alone(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    _with_its_id_twice(log, half)


@case("lost", "orphan")
def visible_with_a_further_header_of_ours(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    _show_with(log, half, "txl-further")


@case("ok")
def visible_with_the_name_of_its_producer_group(log: Log) -> None:
    half = log.half(options="g1")
    log.op(("C", half))
    log.show(half)
    shown = log.records[-1]
    log.records[-1] = replace(shown, headers=[*shown.headers[:-2], ("txl-group", b"shop"), *shown.headers[-2:]])


@case("ok")
def visible_with_the_name_of_its_producer_group_behind_the_other_headers(log: Log) -> None:
    half = log.half(options="g1")
    log.op(("C", half))
    log.show(half)
    log.records[-1] = replace(log.records[-1], headers=[*log.records[-1].headers, ("txl-group", b"shop")])


@case("ok", "orphan")
def dead_letter_that_somebody_copied_to_its_real_topic(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    _show_with(log, half, "txl-dlq")


def _show_with(log: Log, half: Record, name: str) -> None:
    log.show(half)
    log.records[-1] = replace(log.records[-1], headers=[*log.records[-1].headers, (name, b"1")])


@case("open", "orphan")
def phantom_without_an_origin(log: Log) -> None:
    log.half()
    log.add("shop", value=b"x", headers=[("txl-id", KEY.split("/")[0].encode())])


@case("open", "orphan")
def phantom_with_a_broken_origin(log: Log) -> None:
    log.half()
    headers = [("txl-id", KEY.split("/")[0].encode()), ("txl-origin", b"0:0|0")]
    log.add("shop", key=b"k", value=b"0/1", headers=headers)


@case("open", "orphan")
def phantom_of_a_half_record_that_never_was(log: Log) -> None:
    log.half()
    headers = [("txl-id", KEY.split("/")[0].encode()), ("txl-origin", b"0:7|0/1|1700000000000")]
    log.add("shop", key=b"k", value=b"0/1", headers=headers)


@case("duplicate")
def twice(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.show(half)


@case("corrupt")
def another_value(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half, value=b"another")


@case("corrupt")
def wanted_partition_not_kept(log: Log) -> None:
    half = log.half(options="n1")
    log.op(("C", half))
    log.partition_counts["shop"] = 2
    log.show(half, partition=0)


@case("ok")
def wanted_partition_kept(log: Log) -> None:
    half = log.half(options="n1")
    log.op(("C", half))
    log.partition_counts["shop"] = 2
    log.show(half, partition=1)


@case("corrupt")
def one_wanted_partition_of_two_not_kept(log: Log) -> None:
    first, last = log.half(numbers="0/2", options="n1"), log.half(numbers="1/2")
    log.op(("C", last))
    log.show(first)
    log.show(last)
    log.partition_counts["shop"] = 2


@case("out_of_order")
def messages_of_one_transaction_and_key_reversed(log: Log) -> None:
    first, last = _whole(log)
    log.op(("C", last))
    log.show(last)
    log.show(first)


@case("out_of_order")
def messages_of_one_transaction_and_ordering_key_reversed(log: Log) -> None:
    first, last = _whole(log, options=f"k{HASH}", key=None)
    log.op(("C", last))
    log.show(last)
    log.show(first)


def _overtaken(log: Log, *, is_on_doubt: bool = False) -> Record:
    """The first of two of one ordering key that is decided is visible behind the other one."""
    other, in_order = "other/00000009", f"k{HASH}"
    first, second = log.half(options=in_order), log.half(other, options=in_order)
    if is_on_doubt:
        log.summary("open", first, key_hash=HASH)
        log.content(first)
    log.op(("C", first))
    log.op(("C", second), key=other)
    log.show(second)
    log.show(first)
    return first


@case("out_of_order")
def overtaken_by_one_of_its_ordering_key(log: Log) -> None:
    _overtaken(log)


@case("ok")
def overtaken_and_compaction_may_have_taken_that_it_was_parked(log: Log) -> None:
    """What was parked gave up its place."""
    _ends_on_doubt(log, [_overtaken(log, is_on_doubt=True)])


AHEAD = "ahead/0000000c"
PREPARE_ORDER = f"k{HASH},op"


@case("out_of_order")
def visible_before_an_undecided_one_of_its_ordering_key(log: Log) -> None:
    log.half(AHEAD, options=PREPARE_ORDER)
    half = log.half(options=PREPARE_ORDER)
    log.op(("C", half))
    log.show(half)


@case("ok")
def visible_before_a_parked_one_of_its_ordering_key(log: Log) -> None:
    ahead, half = log.half(AHEAD, options=PREPARE_ORDER), log.half(options=PREPARE_ORDER)
    log.summary("parked", ahead, key=AHEAD, reason="checks-exhausted")
    log.content(ahead, key=AHEAD)
    log.op(("C", half))
    log.show(half)


@case("ok")
def visible_before_an_undecided_one_in_the_order_of_decisions(log: Log) -> None:
    log.half(AHEAD, options=f"k{HASH}")
    half = log.half(options=f"k{HASH}")
    log.op(("C", half))
    log.show(half)


@case("out_of_order")
def overtaken_by_an_undecided_one_of_its_ordering_key(log: Log) -> None:
    half, later = log.half(options=PREPARE_ORDER), log.half(AHEAD, options=PREPARE_ORDER)
    log.show(later)
    log.op(("C", half))
    log.show(half)


@case("open")
def behind_an_undecided_one_of_its_ordering_key_that_was_said_to_be_unknown_before_its_half_record(log: Log) -> None:
    log.op(f"1|U|{AHEAD}|orders|0|1700000000000|check|1|".encode())
    log.half(AHEAD, options=PREPARE_ORDER)
    log.op(("C", log.half(options=PREPARE_ORDER)))


@case("open")
def behind_an_undecided_one_of_its_ordering_key_that_was_said_to_be_released_before_its_half_record(log: Log) -> None:
    log.op(f"2|C|{AHEAD}|orders|0|1700000000000|policy|||1700000000000".encode())
    log.half(AHEAD, options=PREPARE_ORDER)
    log.op(("C", log.half(options=PREPARE_ORDER)))


@case("open")
def behind_an_undecided_one_of_its_ordering_key_and_its_real_topic_shortened(log: Log) -> None:
    log.half(AHEAD, options=PREPARE_ORDER)
    half = log.half(options=PREPARE_ORDER)
    log.op(("C", half))
    log.starts["shop"] = 5


@case("out_of_window")
def behind_one_of_its_ordering_key_that_may_have_been_visible(log: Log) -> None:
    ahead, half = log.half(AHEAD, topic="other", options=PREPARE_ORDER), log.half(options=PREPARE_ORDER)
    log.op(("C", ahead), key=AHEAD)
    log.op(("C", half))
    log.starts["other"] = 5


@case("lost")
def behind_one_of_its_ordering_key_that_is_open_on_doubt(log: Log) -> None:
    """What waits for one on doubt is on doubt itself."""
    ahead, half = log.half(AHEAD, options=PREPARE_ORDER), log.half(options=PREPARE_ORDER)
    _keep_open(log, ahead, AHEAD)
    log.op(("C", half))


def _keep_open(log: Log, half: Record, key: str) -> None:
    log.summary("open", half, key=key, key_hash=HASH, order="prepare")
    log.content(half, key=key)


@case("lost")
def left_doubt_behind_an_undecided_one_of_its_ordering_key(log: Log) -> None:
    """What waits on doubt stays there until it is settled."""
    log.half(AHEAD, options=PREPARE_ORDER)
    half = log.half(options=PREPARE_ORDER)
    _keep_open(log, half, KEY)
    log.op(("C", half))
    log.end_on_doubt(0)


@case("lost")
def left_doubt_behind_one_of_its_ordering_key_that_may_have_been_visible(log: Log) -> None:
    ahead, half = log.half(AHEAD, topic="other", options=PREPARE_ORDER), log.half(options=PREPARE_ORDER)
    log.op(("C", ahead), key=AHEAD)
    _keep_open(log, half, KEY)
    log.op(("C", half))
    log.end_on_doubt(0)
    log.starts["other"] = 5


@case("lost")
def commit_of_a_part_behind_an_undecided_one_of_its_ordering_key(log: Log) -> None:
    """A commit that is incomplete does not wait: it is parked."""
    log.half(AHEAD, options=PREPARE_ORDER)
    first, _ = _whole(log, options=PREPARE_ORDER)
    log.op(("C", first))


@case("lost")
def commit_of_a_part_behind_one_of_its_ordering_key_that_may_have_been_visible(log: Log) -> None:
    ahead = log.half(AHEAD, topic="other", options=PREPARE_ORDER)
    log.op(("C", ahead), key=AHEAD)
    first, _ = _whole(log, options=PREPARE_ORDER)
    log.op(("C", first))
    log.starts["other"] = 5


def _incomplete_at_first(log: Log, options: str) -> None:
    """Its place is given up by a commit of a part, and the next commit is read at once: doubt shows nothing of it."""
    first, last = _whole(log, options=options)
    later = log.half(AHEAD, options=PREPARE_ORDER)
    log.op(("C", later), key=AHEAD)
    log.op(("C", first))
    log.op(("C", last))
    for half in (later, first, last):
        log.show(half)


@case("ok")
def incomplete_at_first_and_overtaken_in_the_order_of_half(log: Log) -> None:
    _incomplete_at_first(log, PREPARE_ORDER)


@case("ok")
def incomplete_at_first_and_overtaken_by_one_in_the_order_of_half(log: Log) -> None:
    _incomplete_at_first(log, f"k{HASH}")


@case("ok")
def incomplete_at_first_and_visible_before_an_undecided_one_of_its_ordering_key(log: Log) -> None:
    log.half(AHEAD, options=PREPARE_ORDER)
    first, last = _whole(log, options=PREPARE_ORDER)
    log.op(("C", first))
    log.op(("C", last))
    for half in (first, last):
        log.show(half)


@case("ok")
def messages_of_different_keys_reversed(log: Log) -> None:
    first, last = log.half(numbers="0/2", key=b"a"), log.half(numbers="1/2", key=b"b")
    log.op(("C", last))
    log.show(last)
    log.show(first)


# --- half records -----------------------------------------------------------------------------------------------------


@case("ok")
def half_record_with_further_headers_of_ours(log: Log) -> None:
    """A service in another language sends on what it read from a real topic, with all headers."""
    half = log.half()
    log.op(("C", half))
    log.show(half)
    _add_headers(log, ("txl", b"1|nothing"), ("txl-id", b"another"), ("txl-origin", b"0:7|0/1|5"))


@case("open")
def half_record_with_further_headers_of_ours_on_doubt(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("held", half)
    log.content(half)
    _add_headers(log, ("txl-id", b"another"))


def _add_headers(log: Log, *more: tuple[str, bytes | None]) -> None:
    """Before those of the first record."""
    log.records[0] = replace(log.records[0], headers=[*more, *log.records[0].headers])


@case("ok")
def half_copy_after_settlement(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.half()


@case("rolled_back")
def half_copy_after_a_rollback(log: Log) -> None:
    half = log.half()
    log.op(("R", half))
    log.half()


@case("rolled_back")
def half_copy_after_an_abandon(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.op(("A", half))
    log.half()


@case("duplicate")
def half_copy_forwarded_again(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.show(log.half())


@case("ok")
def decided_by_a_copy(log: Log) -> None:
    half = log.half()
    log.op(("C", log.half()))
    log.show(half)


@case("ok", "orphan")
def half_record_of_another_count(log: Log) -> None:
    half = log.half()
    stray = log.half(numbers="1/2")
    log.op(("C", half))
    log.show(half)
    log.show(stray)


@case("leaked", "orphan")
def half_records_in_another_order(log: Log) -> None:
    last, first = log.half(numbers="1/2"), log.half(numbers="0/2")
    log.op(("C", last))
    log.show(first)
    log.show(last)


@case("ok")
def half_record_of_a_later_index(log: Log) -> None:
    first = log.half(numbers="0/3")
    stray = log.half(numbers="2/3")
    middle, last = log.half(numbers="1/3"), log.half(numbers="2/3")
    log.op(("C", last))
    for half in (first, middle, last):
        log.show(half)
    assert stray.offset < middle.offset


@case("ok")
def two_attempts(log: Log) -> None:
    log.half("again/0000000a")
    half = log.half("again/0000000b")
    log.op(("C", half), key="again/0000000b")
    log.show(half)


@case("torn")
def many_messages_and_one_lost(log: Log) -> None:
    halves = [log.half(numbers=f"{index}/70") for index in range(70)]
    log.op(("C", halves[-1]))
    for half in halves[:-1]:
        log.show(half)


@case("ok")
def half_records_of_two_that_are_mixed_in_half(log: Log) -> None:
    """The first half record of each has the place: this one is behind the other."""
    other, in_order = "other/00000009", f"k{HASH},op"
    other_first = log.half(other, "0/2", options=in_order)
    first = log.half(numbers="0/2", options=f"k{HASH}")
    other_last = log.half(other, "1/2", options=in_order)
    last = log.half(numbers="1/2", options=f"k{HASH}")
    log.op(("C", other_last), key=other)
    log.op(("C", last))
    for half in (other_first, other_last, first, last):
        log.show(half)


# --- messages with times ----------------------------------------------------------------------------------------------


@case("open")
def scheduled_and_waiting(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.on_doubt("scheduled", f"1/1/{timed.times[0]}+{timed.times[1]}/0:0")


@case("ok")
def scheduled_and_shown_at_its_times(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.release(0)
    timed.show(1)
    timed.release(1)
    timed.show(2)


@case("leaked")
def scheduled_and_early(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.release(0)
    timed.show(1, 2)


@case("leaked")
def scheduled_and_released_by_a_line_before_the_time(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.line("C", timed.times[0], at_ms=timed.times[0] - 1_000)
    timed.show(1)


@case("leaked")
def scheduled_and_visible_before_its_line(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.release(0)
    shown = log.show(timed.halves[1])
    log.records[-1] = replace(shown, timestamp_ms=timed.times[0] - MINUTE)
    timed.release(1)
    timed.show(2)


@case("leaked")
def scheduled_and_undecided_and_visible(log: Log) -> None:
    half = log.half(options=f"d{log.now_ms + MINUTE}")
    log.show(half)


@case("rolled_back")
def scheduled_and_rolled_back(log: Log) -> None:
    log.op(("R", log.half(options=f"d{log.now_ms + MINUTE}")))


@case("torn")
def scheduled_and_a_released_one_is_nowhere(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.release(0)
    timed.release(1)
    timed.show(2)


@case("torn")
def scheduled_for_one_time_and_only_some_are_visible(log: Log) -> None:
    time_ms = log.now_ms + MINUTE
    halves = [log.half(numbers=f"{index}/2", options=f"d{time_ms}") for index in range(2)]
    log.op(("C", halves[-1]))
    log.now_ms = time_ms
    log.op(f"2|C|{KEY}|orders|{halves[-1].offset}|1700000000000|policy|||{time_ms}".encode())
    log.show(halves[0])


@case("lost")
def scheduled_and_nowhere(log: Log) -> None:
    log.op(("C", log.half(options=f"d{log.now_ms + MINUTE}")))


@case("lost")
def scheduled_and_doubt_says_that_it_is_held(log: Log) -> None:
    half = log.half(options=f"d{log.now_ms + MINUTE}")
    log.op(("C", half))
    log.summary("held", half, reason="topic-missing", due=f"0/0/{log.now_ms + MINUTE}/0:0")
    log.content(half)


@case("open")
def scheduled_and_released_and_held(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.release(0)
    timed.on_doubt("held", f"1/{timed.times[0] + 1}/{timed.times[1]}/0:0")


@case("parked")
def scheduled_and_released_and_parked(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.release(0)
    timed.on_doubt("parked-committed", f"1/{timed.times[0] + 1}/{timed.times[1]}/0:0")


@case("ok")
def scheduled_and_the_rest_cancelled(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.line("A", None)


@case("conflicting")
def scheduled_and_cancelled_behind_a_rollback(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.line("R", None)
    timed.line("A", None)


@case("rolled_back")
def scheduled_and_cancelled(log: Log) -> None:
    half = log.half(options=f"d{log.now_ms + MINUTE}")
    log.op(("C", half), ("A", half))


@case("leaked")
def scheduled_and_visible_although_it_was_cancelled(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.line("A", None)
    timed.release(0)
    timed.show(1)


@case("ok")
def scheduled_and_given_another_time(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    later_ms = timed.times[1] + MINUTE
    timed.line("U", later_ms)
    timed.line("C", later_ms, at_ms=later_ms)
    timed.show(1, 2)


@case("leaked")
def scheduled_and_visible_at_the_time_before_it_was_moved(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.line("U", timed.times[1] + MINUTE)
    timed.release(0)
    timed.show(1)


@case("ok")
def scheduled_for_no_time_at_all(log: Log) -> None:
    half = log.half(options="d0")
    log.op(("C", half))
    log.show(half)


@case("duplicate")
def scheduled_and_visible_twice(log: Log) -> None:
    timed = Timed(log)
    timed.show(0, 0)
    timed.release(0)
    timed.show(1)
    timed.release(1)
    timed.show(2)


@case("open")
def scheduled_in_the_order_of_half_behind_an_undecided_one(log: Log) -> None:
    log.half("other/0000000c", options=f"k{HASH},op")
    log.half(numbers="0/2", options=f"d{log.now_ms + MINUTE},k{HASH},op")
    log.op(("C", log.half(numbers="1/2", options=f"k{HASH},op")))


@case("rolled_back")
def rolled_back_by_a_line_with_one_more_field(log: Log) -> None:
    """Only a commit and an unknown have a time there; a further field of another line is one of a later release."""
    half = log.half()
    log.op(f"2|R|{KEY}|orders|{half.offset}|1700000000000|producer|||5".encode())


@case("rolled_back")
def abandoned_and_then_rolled_back(log: Log) -> None:
    half = log.half()
    log.op(("C", half), ("A", half), ("R", half))


@case("conflicting")
def abandoned_and_then_committed(log: Log) -> None:
    half = log.half()
    log.op(("C", half), ("A", half), ("C", half))
