"""Histories that were once judged wrongly, each with the verdict that every judge must give it. Most are written as steps (steps.py)."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tests.reference.steps import DOUBT, HALF, KEY, MINUTE, OP, Log, Steps, Timed
from tests.reference.wire import History, Record

AGAIN = "again/0000000b"
AHEAD = "ahead/0000000c"
STRANGE = "order-1/zzzzzzzz"


@dataclass(frozen=True)
class Case:
    """One history, and what is right of it."""

    name: str
    build: Callable[[Log], None]
    #: Of the transaction that it is about.
    word: str
    #: Whether a record on a real topic belongs to no transaction.
    has_orphan: bool

    @property
    def txn_key(self) -> str:
        if self.name.startswith("nonces"):
            return STRANGE
        return AGAIN if "two_attempts" in self.name else KEY

    def history(self) -> History:
        log = Log()
        self.build(log)
        return log.history()


CASES: dict[str, Case] = {}


def case(word: str, orphan: str = "") -> Callable[[Callable[[Log], None]], Callable[[Log], None]]:
    """Name a history by the function that builds it, and say what it is."""

    def note(build: Callable[[Log], None]) -> Callable[[Log], None]:
        CASES[build.__name__] = Case(build.__name__, build, word, bool(orphan))
        return build

    return note


HISTORIES = """\
# --- what is in order
committed: ok
    half 0/2, half 1/2, C 1, show 0 1
forwarded_twice_and_aborted_at_first: ok
    half, C 0, show 0 kafka=aborted, show 0
forwarded_and_aborted: lost
    half, C 0, show 0 kafka=aborted
on_the_wrong_topic: corrupt
    half, C 0, show 0 to=elsewhere
one_of_two_on_the_wrong_topic: torn
    half 0/2, half 1/2, C 1, show 0, show 1 to=elsewhere
with_another_key: corrupt
    half, C 0, show 0 key=another
rolled_back: rolled_back
    half, U R 0
rolled_back_and_that_was_aborted: ok
    half, R 0 kafka=aborted, C 0, show 0
undecided: open
    half
lost: lost
    half, C 0
torn: torn
    half 0/2, half 1/2, C 1, show 0
# --- a real topic or op that begins late
real_topic_shortened: out_of_window
    half, C 0, starts shop=5
half_of_it_on_a_shortened_topic: out_of_window
    half 0/2 topic=other, half 1/2, C 1, show 0 to=other, starts shop=5
real_topic_compacted: out_of_window
    half, C 0, compacted shop
half_of_it_on_a_compacted_topic: out_of_window
    half 0/2, half 1/2, C 1, show 1, compacted shop
another_value_on_a_compacted_topic: corrupt
    half 0/2, half 1/2, C 1, show 1 value=another, compacted shop
op_shortened_before_half: out_of_window
    lines 1|C|gone/00000000|orders|9|1700000000000|producer||, half, R 0, show 0,
    lines 1|U|gone/00000000|orders|9|1700000000000|producer||, starts op=2
undecided_and_op_shortened: out_of_window
    half, starts op=3
op_shortened_long_before: ok
    lines 1|U|gone/00000000|orders|9|1700000000000|producer||,
    lines 1|U|gone/00000000|orders|9|1700000000000|producer||,
    lines 1|U|gone/00000000|orders|9|1700000000000|producer||, half, C 0, show 0, starts op=2
commit_whose_halves_are_gone: out_of_window
    half, C 0, half txn=later/00000001, starts half=1
commit_of_one_whose_halves_are_gone_and_whose_contents_are_left_beside_another_of_its_id: out_of_window
    half txn=order-1/00000001, half 0/2, half 1/2, C 0, content 2, C 2, ended 0 1, half txn=later/00000001, starts half=3
contents_without_a_summary_and_ended: out_of_window
    half 0/2, half 1/2, content 1, ended 0 1, half txn=later/00000001, starts half=2
commit_and_message_whose_halves_are_gone: out_of_window
    half, C 0, show 0, half txn=later/00000001, starts half=1
first_half_record_gone: out_of_window
    half 0/2, half 1/2, C 1, show 0 1, starts half=1
foreign_kafka_transaction_open_on_the_real_topic: open
    half, C 0, stranger shop, show 0, stable shop=0
foreign_kafka_transaction_open_on_another_topic: lost
    half, C 0, stranger other, stable other=0
# The records do not say which topics a coordinator refuses. A reader reads these topics only if it is told to.
visible_on_a_topic_whose_name_begins_with_two_underscores: ok
    half topic=__shop, C 0, show 0 to=__shop
held_for_a_topic_whose_name_begins_with_two_underscores: open
    half topic=__shop, C 0, keep held 0 reason=topic-denied
nowhere_and_of_a_topic_whose_name_begins_with_two_underscores: out_of_window
    half topic=__shop, C 0
# --- times
user_timestamps_far_in_the_past: ok
    half options=t5, C 0, show 0 at=5
another_timestamp_than_was_asked_for: corrupt
    half options=t5, C 0, show 0 at=6
user_timestamp_in_the_future: ok
    half options=t+60000, C 0, show 0 at=+1000
user_timestamp_of_zero: ok
    half options=t0, C 0, show 0 at=+1000
user_timestamp_in_the_future_and_an_earlier_one_than_that_of_forwarding: corrupt
    half options=t+60000, C 0, show 0 at=-1000
user_timestamp_in_the_future_and_a_later_one_than_was_asked_for: corrupt
    half options=t+60000, C 0, show 0 at=+120000
user_timestamps_of_which_one_is_in_the_future: ok
    half 0/2 options=t5, half 1/2 options=t+60000, C 1, show 0 at=5, show 1 at=+1000
user_timestamps_where_the_broker_sets_its_own: ok
    half options=t5, C 0, show 0
user_timestamps_and_two_attempts_of_many_messages: ok
    half txn=again/0000000a, half txn=again/0000000b options=t5, C 1, show 1 at=5
visible_before_its_decision: leaked
    half, show 0, C 0
real_topic_shortened_long_before: lost
    others shop, others shop, others shop, others shop, others shop, others shop, half, C 0, starts shop=5
# --- what decides
rollback_at_one_half_offset_and_commit_at_another: conflicting
    half 0/2, half 1/2, R 0, C 1
rollback_at_one_half_offset_and_commit_at_another_visible: leaked
    half 0/2, half 1/2, R 0, C 1, show 0 1
abandon_then_commit: conflicting
    half, A 0, C 0
abandon_then_commit_visible: leaked
    half, A 0, C 0, show 0
abandon_alone: rolled_back
    half, A 0
abandon_alone_visible: leaked
    half, A 0, show 0
commit_then_abandon: rolled_back
    half, C 0, A 0
commit_then_abandon_and_still_parked: rolled_back
    half, C 0, keep parked-committed 0 reason=too-large, A 0
commit_then_abandon_half_visible: torn
    half 0/2, half 1/2, C 1, A 1, show 0
commit_of_an_earlier_half_record: lost
    half 0/2, half 1/2, C 0
commit_of_an_earlier_half_record_then_of_the_last: ok
    half 0/2, half 1/2, C 0, C 1, show 0 1
# The producer died between its half records, and somebody answered for it: nothing takes the last one's place.
commit_without_the_last_half_record: lost
    half 0/2, C 0
commit_without_the_last_half_record_and_parked: parked
    half 0/2, C 0, keep parked-committed 0 reason=incomplete count=2
commit_without_the_last_half_record_and_held: lost
    half 0/2, C 0, keep held 0 reason=topic-missing count=2
commit_of_an_earlier_half_record_visible: leaked
    half 0/2, half 1/2, C 0, show 0 1
line_of_another_producer_group: ok
    half, R 0 group=strangers, C 0, show 0
line_of_another_producer_group_and_its_half_record_gone: out_of_window
    half, keep open 0, R 0 group=strangers, C 0, half txn=later/00000001, starts half=1
# Of three lines the first one counts for nothing.
line_of_another_producer_group_beside_contrary_ones: conflicting
    half, C 0 group=strangers, R 0, C 0
# Doubt forgets which one was the last: the line counted for nothing, or the third one would have come too late.
rollback_at_what_was_the_last_half_record_on_doubt: ok
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, content 2, summary open 0 1 2,
    C 2, show 0 1 2, ended 0 1 2
rollback_at_what_was_the_last_half_record_on_doubt_and_settled_at_once: ok
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, C 2, show 0 1 2, ended 0 1 2
abandon_at_what_was_the_last_half_record_on_doubt: ok
    half 0/3, half 1/3, C 1, content 0, content 1, summary parked-committed 0 1 reason=incomplete count=3, A 1,
    half 2/3, C 2, show 0 1 2, ended 0 1 2
rollback_at_the_last_half_record_on_doubt_before_one_came_too_late: rolled_back
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, ended 0 1
rollback_at_what_was_the_last_half_record_on_doubt_visible: leaked
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, content 2, summary open 0 1 2,
    show 0 1 2, ended 0 1 2
# Whichever line counted, that is wrong: it is no reason to take the line that makes more of it wrong.
rollback_at_what_was_the_last_half_record_on_doubt_and_a_message_visible_twice: duplicate
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, content 2, summary open 0 1 2,
    C 2, show 0 1 2 2, ended 0 1 2
rollback_at_what_was_the_last_half_record_on_doubt_and_another_value: corrupt
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, content 2, summary open 0 1 2,
    C 2, show 0 1, show 2 value=another, ended 0 1 2
rollback_at_what_was_the_last_half_record_on_doubt_and_messages_in_reverse: out_of_order
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, content 2, summary open 0 1 2,
    C 2, show 1 0 2, ended 0 1 2
# Doubt has it still, and what settles a transaction ends it there: the line did not count.
rollback_at_what_was_the_last_half_record_on_doubt_undecided: open
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, content 2, summary open 0 1 2
rollback_at_what_was_the_last_half_record_on_doubt_parked: parked
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, content 2, summary parked 0 1 2
rollback_at_what_was_the_last_half_record_on_doubt_held: open
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 1, half 2/3, C 2, content 2, summary held 0 1 2
abandon_at_what_was_the_last_half_record_on_doubt_parked: parked
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, half 2/3, C 2, A 1, content 2,
    summary parked-committed 0 1 2
rollback_at_the_first_half_record_on_doubt_and_not_ended_there: rolled_back
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 0, half 2/3, content 2, summary open 0 1 2
# Of several such lines doubt had forgotten the half record of the first one, and knew that of the second.
commit_that_doubt_forgot_and_rollback_at_the_last_half_record_there: rolled_back
    half 0/4, half 1/4, content 0, content 1, summary open 0 1 count=4, half 2/4, content 2, summary open 0 1 2 count=4,
    C 1, R 2, half 3/4, ended 0 1 2
commit_that_doubt_forgot_and_rollback_at_the_last_half_record_there_visible: leaked
    half 0/4, half 1/4, content 0, content 1, summary open 0 1 count=4, half 2/4, content 2, summary open 0 1 2 count=4,
    C 1, R 2, half 3/4, show 0 1 2, ended 0 1 2
commit_of_a_part_and_an_abandon_that_doubt_forgot: parked
    half 0/4, half 1/4, content 0, content 1, summary open 0 1 count=4, C 1,
    summary parked-committed 0 1 reason=incomplete count=4, half 2/4, content 2,
    summary parked-committed 0 1 2 reason=incomplete count=4, A 1, half 3/4, content 3,
    summary parked-committed 0 1 2 3 reason=incomplete
rollback_and_abandon_that_doubt_forgot: ok
    half 0/4, half 1/4, content 0, content 1, summary open 0 1 count=4, half 2/4, content 2, summary open 0 1 2 count=4,
    R 1, A 1, C 2, half 3/4, C 3, show 0 1 2 3, ended 0 1 2 3
# A coordinator that knew the half record of the rollback knew that of the commit before it, too.
commit_of_a_part_and_rollback_at_the_same_half_record: lost
    half 0/4, half 1/4, content 0, content 1, summary open 0 1 count=4, C 1, R 1, half 2/4, half 3/4, content 2, content 3,
    ended 0 1 2 3
commit_of_a_part_and_rollback_at_an_earlier_half_record: lost
    half 0/4, half 1/4, content 0, content 1, summary open 0 1 count=4, half 2/4, content 2, summary open 0 1 2 count=4,
    C 2, R 1, half 3/4, ended 0 1 2
# Seven lines: the seventh goes with the sixth.
many_commits_that_doubt_forgot_and_a_rollback: rolled_back
    half 0/4, half 1/4, content 0, content 1, summary open 0 1 count=4, half 2/4, content 2, summary open 0 1 2 count=4,
    C 1, C 1, C 1, C 1, C 1, R 2, R 2, half 3/4, ended 0 1 2
# Doubt keeps the first one.
rollback_at_the_first_half_record_on_doubt_before_one_joined: leaked
    half 0/3, half 1/3, content 0, content 1, summary open 0 1 count=3, R 0, half 2/3, content 2, summary open 0 1 2,
    C 2, show 0 1 2, ended 0 1 2
# Doubt keeps copies.
rollback_at_a_copy_on_doubt_before_one_joined: leaked
    half 0/3, half 1/3, half 1/3, summary open 0 1 count=3, R 2, half 2/3, C 3, show 0 1 3, ended 0 1 2
# It is the last one to the end.
rollback_at_the_last_half_record_on_doubt_after_one_joined: leaked
    half 0/3, half 1/3, half 2/3, summary open 0 1 count=3, summary open 0 1 2, R 2, C 2, show 0 1 2, ended 0 1 2
# Of what half has lost, the last one that doubt names was the last.
rollback_at_the_last_half_record_on_doubt_of_which_copies_are_left: leaked
    half 0/2, half 1/2, half 0/2, half 1/2, content 0, content 1, summary open 0 1, R 1, C 3, show 2 3, starts half=2
line_of_a_half_record_in_the_middle_of_one_not_on_doubt: rolled_back
    half 0/3, half 1/3, half 2/3, R 1
line_of_a_half_record_in_the_middle_visible: leaked
    half 0/3, half 1/3, half 2/3, R 1, C 2, show 0 1 2
# It may have been given up: nothing is wrong with a transaction that is open then.
line_ahead_of_its_half_record: open
    lines 1|C|order-1/5f3a90c2|orders|0|1700000000000|producer||, half
line_ahead_of_its_half_record_visible: ok
    lines 1|C|order-1/5f3a90c2|orders|0|1700000000000|producer||, half, show 0
# If it counted, the message may wait for the other one of its key, which is older than half.
line_ahead_of_its_half_record_in_the_order_of_half: out_of_window
    half 0/2 txn=ahead/0000000c order=prepare, lines 1|C|order-1/5f3a90c2|orders|2|1700000000000|producer||,
    half 1/2 txn=ahead/0000000c order=prepare, half order=prepare, starts half=1
# And what is behind such a one may wait for it, or for the one that is gone.
behind_one_whose_line_was_ahead_of_its_half_record_in_the_order_of_half: out_of_window
    half 0/2 txn=ahead/0000000c order=prepare, lines 1|C|other/00000009|orders|2|1700000000000|producer||,
    half 1/2 txn=ahead/0000000c order=prepare, half txn=other/00000009 order=prepare, half order=prepare, C 3, starts half=1
visible_behind_one_whose_line_was_ahead_of_its_half_record_in_the_order_of_half: ok
    half 0/2 txn=ahead/0000000c order=prepare, lines 1|C|other/00000009|orders|2|1700000000000|producer||,
    half 1/2 txn=ahead/0000000c order=prepare, half txn=other/00000009 order=prepare, half order=prepare, C 3, show 3, starts half=1
# Half has lost its end. Doubt names the half record that was there: the line counted.
rolled_back_by_a_line_ahead_of_half_that_lost_its_end: rolled_back
    half 0/2, half 1/2, keep open 0 1, R 1, ended 0 1, stable txlayer.half=1
committed_by_a_line_ahead_of_half_that_lost_its_end: out_of_window
    half 0/2, half 1/2, keep open 0 1, C 1, show 0 1, ended 0 1, stable txlayer.half=1
# Without doubt nothing was there.
line_ahead_of_half: open
    half 0/2, half 1/2, R 1, stable txlayer.half=1
copy_whose_first_record_is_gone_and_visible_under_that: out_of_window
    half, C 0, show 0, half, starts half=1
copy_of_one_message_and_the_last_record_is_gone: out_of_window
    half 0/2, half 1/2, C 1, show 0 1, half 0/2, starts half=2
# What is behind the copy shows that the records between are gone.
copy_of_the_first_message_and_the_last_ones_are_left: out_of_window
    half 0/4, half 1/4, half 0/4, half 2/4, half 3/4, C 4, show 0 1 3 4, starts half=2
copy_of_the_first_message_and_the_last_ones_are_left_rolled_back_visible: leaked
    half 0/4, half 1/4, half 0/4, half 2/4, half 3/4, R 4, show 3 4, starts half=2
copy_of_the_first_message_and_the_last_ones_are_left_rolled_back: rolled_back
    half 0/4, half 1/4, half 0/4, half 2/4, half 3/4, R 4, starts half=2
# The commit names a half record that is gone, so the records do not show that the transaction is undecided.
copy_of_one_message_is_left_and_no_message_is_visible: out_of_window
    half 0/2, half 1/2, C 1, half 0/2, starts half=2
copy_of_one_message_is_left_in_the_order_of_half: out_of_window
    half 0/2 order=prepare, half 1/2 order=prepare, C 1, half 0/2 order=prepare, starts half=2
# Offset 0 is a place like any other.
copy_of_one_on_doubt_whose_first_record_was_the_first_of_half: rolled_back
    half, keep open 0, R 0, ended 0, half, starts half=1
# Doubt tells that it is older than what is left of op.
copy_of_one_on_doubt_whose_first_record_and_rollback_are_gone: out_of_window
    half, keep open 0, R 0, ended 0, lines 1|U|gone/00000000|orders|9|1700000000000|producer||,
    lines 1|U|gone/00000000|orders|9|1700000000000|producer||, half, starts half=1, starts op=1
# Doubt names the last half record, and what is visible may name any between the first and that one.
copies_whose_first_records_are_gone_of_one_on_doubt: ok
    half 0/2, half 1/2, C 1, keep waiting 0 1, show 0 1, ended 0 1, half 0/2, half 1/2, starts half=2
copies_whose_first_records_are_gone_of_one_on_doubt_with_another_value: corrupt
    half 0/2, half 1/2, C 1, keep waiting 0 1, show 0 value=another, show 1, ended 0 1, half 0/2, half 1/2,
    starts half=2
# The commit names the first half record, which half has lost. Doubt says that a further one joined: it is incomplete.
commit_of_the_first_half_record_of_which_a_copy_is_left_parked: parked
    half 0/2, content 0, C 0, half 0/2, half 1/2, content 2, summary parked-committed 0 2 reason=incomplete, starts half=1
commit_of_a_copy_before_the_last_half_record_visible: leaked
    half 0/3, half 1/3, half 0/3, half 2/3, C 2, keep parked-committed 0 1 3 reason=incomplete, show 0 1 3, starts half=2
commit_of_the_first_half_record_of_which_a_copy_is_left_held: lost
    half 0/2, content 0, C 0, half 0/2, half 1/2, content 2, summary held 0 2 reason=topic-missing, starts half=1
commit_of_the_first_half_record_of_which_a_copy_is_left_visible: leaked
    half 0/2, content 0, C 0, half 0/2, half 1/2, content 2, summary parked-committed 0 2 reason=incomplete, show 1 2,
    starts half=1
commit_of_the_first_half_record_of_which_a_copy_is_left_then_of_the_last: ok
    half 0/2, content 0, C 0, half 0/2, half 1/2, content 2, summary parked-committed 0 2 reason=incomplete, C 2,
    show 0 2, ended 0 1, starts half=1
commit_of_the_first_half_record_of_which_another_copy_is_left_parked: parked
    half 0/2, content 0, C 0, half 0/2 key=another, half 1/2, content 2, summary parked-committed 0 2 reason=incomplete,
    starts half=1
commit_of_the_first_half_record_of_which_a_copy_is_left_parked_with_another_value: lost
    half 0/2, content 0, C 0, half 0/2, half 1/2, content 2 value=another,
    summary parked-committed 0 2 reason=incomplete, starts half=1
commit_of_the_first_half_record_of_which_a_copy_is_left_parked_without_its_content: lost
    half 0/2, C 0, half 0/2, half 1/2, content 2, summary parked-committed 0 2 reason=incomplete, starts half=1
known_from_a_summary_that_was_ended_alone: out_of_window
    half, R 0, keep open 0, ended 0, half txn=later/00000001, starts half=1, starts op=1
visible_with_its_id_twice_and_its_half_record_gone: out_of_window orphan
    half, C 0, show 0 also=txl-id:order-1, half txn=later/00000001, starts half=1
op_record_that_is_not_ascii: ok
    half, lines 1|R|order-1/5f3a90c2|orders|0|1700000000000|producer|| 1|U|x/00000000|ö|0|0|producer||, C 0, show 0
commit_in_an_op_record_that_is_not_ascii: open
    half, lines 1|C|order-1/5f3a90c2|orders|0|1700000000000|producer|| 1|U|x/00000000|ö|0|0|producer||
commit_in_an_op_record_that_is_not_ascii_visible: leaked
    half, lines 1|C|order-1/5f3a90c2|orders|0|1700000000000|producer|| 1|U|x/00000000|ö|0|0|producer||, show 0
# Coordinators quarantine them.
lines_with_numbers_that_are_too_large: open
    half, lines 1|C|order-1/5f3a90c2|orders|9999999999999999999|5|check||,
    lines 1|C|order-1/5f3a90c2|orders|0|9999999999999999999|check||,
    lines 1|C|order-1/5f3a90c2|orders|0|5|check|9999999999999999999|
# Doubt forgets the offsets between its ends: by when it stood there the rollback counted for nothing.
line_of_a_half_record_in_the_middle_of_one_on_doubt: ok
    half 0/3, half 1/3, half 2/3, summary open 0 1 2, R 1, C 2, show 0 1 2, forgotten 0 1 2
# The commit names the copy, behind all half records that doubt has: it is complete.
copy_of_one_message_is_left_of_one_held_whole: out_of_window
    half 0/2, half 1/2, half 0/2, C 2, keep held 0 1 reason=topic-denied, starts half=2
copy_of_one_message_is_left_of_one_that_doubt_has_cut: out_of_window
    half 0/2, half 1/2, half 0/2, C 2, summary parked-committed 0 1 reason=too-large, shortened 0, shortened 1,
    starts half=2
# The commit names the copy of the first message, before the last one that doubt has: it is incomplete, and may not be held.
commit_of_a_part_beside_a_copy_of_one_held_whole: lost
    half 0/2, half 0/2, half 1/2, C 1, keep held 0 2 reason=topic-denied, starts half=1
half_record_kept_aside_behind_those_that_are_gone: out_of_window
    half 0/2, half 1/2, C 1, summary held 0 1, show 0 1, half 0/3, forgotten 0 1, aside 2, starts half=2
# --- doubt
parked_whole: parked
    half, keep parked 0 reason=too-old
parked_without_contents: lost
    half, summary parked 0 reason=too-old
held_whole: open
    half, C 0, keep held 0 reason=topic-missing
held_without_contents: lost
    half, C 0, summary held 0 reason=topic-missing
held_with_another_content: lost
    half, C 0, summary held 0 reason=topic-missing, content 0 value=another
parked_with_half_of_its_contents: lost
    half 0/2, half 1/2, C 1, summary parked-committed 0 1 reason=too-large, content 0
parked_and_its_half_record_gone: out_of_window
    half, C 0, keep parked-committed 0 reason=too-large, half txn=later/00000001, starts half=1
ended_on_doubt_and_undecided: lost
    half, keep open 0, ended 0
ended_on_doubt_and_visible: ok
    half, keep open 0, C 0, show 0, ended 0
ended_on_doubt_and_lost: lost
    half, C 0, keep held 0, ended 0
held_and_undecided: lost
    half, keep held 0
open_on_doubt_and_committed: lost
    half, keep open 0, C 0
undecided_in_a_state_of_a_later_release: open
    half, keep asleep 0 reason=until-monday
committed_in_a_state_of_a_later_release: open
    half, C 0, keep asleep 0 reason=until-monday
rolled_back_in_a_state_of_a_later_release: rolled_back
    half, R 0, keep asleep 0 reason=until-monday
parked_cut: parked
    half, C 0, summary parked-committed 0 reason=too-large, shortened 0
parked_cut_and_its_half_record_gone: out_of_window
    half, C 0, summary parked-committed 0 reason=too-large, shortened 0, half txn=later/00000001, starts half=1
content_that_follows_the_summary_is_cut: open
    half 0/3, half 1/3, summary open+ 0 count=3, content 0, shortened 1
committed_in_a_state_of_a_later_release_without_contents: lost
    half, C 0, summary asleep 0 reason=until-monday
phantom_beside_one_that_doubt_alone_knows: out_of_window orphan
    half, C 0, keep parked-committed 0 reason=too-large, forge order-1 0:7|0/1|1700000000000, half txn=later/00000001,
    starts half=1
incomplete_in_a_state_of_a_later_release: open
    half 0/2, C 0, keep asleep 0 count=2
committed_in_a_state_that_doubt_never_says: open
    half, C 0, keep committed 0
# It may have been parked.
overtaken_after_it_was_in_a_state_of_a_later_release: ok
    half order=commit, half txn=other/00000009 order=commit, keep asleep 0 order=commit, C 0, C 1, show 1 0, ended 0
open_on_doubt_and_committed_and_its_real_topic_shortened: out_of_window
    half, keep open 0, C 0, starts shop=5
# The coordinator died in it: what ends it on doubt is in the same Kafka transaction.
open_on_doubt_and_committed_and_forwarded_in_an_open_kafka_transaction: open
    half, keep open 0, C 0, show 0 kafka=open, stable shop=0
visible_and_still_parked: ok
    half, C 0, keep parked-committed 0 reason=too-large, show 0
# --- what is visible
second_copy_with_its_id_twice: ok orphan
    half, C 0, show 0, show 0 also=txl-id:order-1
visible_with_its_id_twice_alone: lost orphan
    half, C 0, show 0 also=txl-id:order-1
visible_with_a_further_header_of_ours: lost orphan
    half, C 0, show 0 also=txl-further:1
visible_with_the_name_of_its_producer_group_behind_the_other_headers: ok
    half options=g1, C 0, show 0 also=txl-group:shop
dead_letter_that_somebody_copied_to_its_real_topic: ok orphan
    half, C 0, show 0, show 0 also=txl-dlq:1
twice: duplicate
    half, C 0, show 0 0
another_value: corrupt
    half, C 0, show 0 value=another
wanted_partition_not_kept: corrupt
    half options=n1, C 0, show 0, partitions shop=2
wanted_partition_kept: ok
    half options=n1, C 0, show 0 partition=1, partitions shop=2
partition_of_the_ordering_key_not_kept: corrupt
    half key= options=m4, C 0, show 0 partition=2, partitions shop=3
partition_of_the_ordering_key_kept: ok
    half key= options=m4, C 0, show 0 partition=1, partitions shop=3
partition_of_the_key_not_kept: corrupt
    half key=21, C 0, show 0 partition=1, partitions shop=3
partition_of_the_key_kept: ok
    half key=21, C 0, show 0, partitions shop=3
one_wanted_partition_of_two_not_kept: corrupt
    half 0/2 options=n1, half 1/2, C 1, show 0 1, partitions shop=2
messages_of_one_transaction_and_key_reversed: out_of_order
    half 0/2, half 1/2, C 1, show 1 0
messages_of_one_transaction_and_ordering_key_reversed: out_of_order
    half 0/2 order=commit key=, half 1/2 order=commit key=, C 1, show 1 0
parked_at_first_and_its_messages_reversed: out_of_order
    half 0/2, half 1/2, keep parked 0 1 reason=checks-exhausted, C 1, show 1 0, ended 0 1
messages_reversed_and_one_of_them_behind_an_open_kafka_transaction: out_of_order
    half 0/3, half 1/3, half 2/3, C 2, show 2 0, stranger shop, show 1, stable shop=2
overtaken_by_one_of_its_ordering_key: out_of_order
    half order=commit, half txn=other/00000009 order=commit, C 0, C 1, show 1 0
visible_before_an_undecided_one_of_its_ordering_key: out_of_order
    half txn=ahead/0000000c order=prepare, half order=prepare, C 1, show 1
scheduled_and_visible_before_an_undecided_one_of_its_ordering_key: ok
    half txn=ahead/0000000c order=prepare, half order=prepare options=d0, C 1, show 1
visible_before_a_parked_one_of_its_ordering_key: ok
    half txn=ahead/0000000c order=prepare, half order=prepare, keep parked 0 reason=checks-exhausted, C 1, show 1
# Half has a second copy of the one ahead, and its line names the record that half has lost: its place is not judged.
behind_one_of_which_half_has_a_copy_alone: out_of_window
    half txn=ahead/0000000c order=prepare, half txn=ahead/0000000c order=prepare, C 0, half order=prepare, C 2, starts half=1
behind_one_in_the_order_of_decisions_of_which_half_has_a_copy_alone: out_of_window
    half txn=ahead/0000000c order=commit, half txn=ahead/0000000c order=commit, C 0, half order=prepare, C 2, starts half=1
visible_before_one_of_which_half_has_a_copy_alone: ok
    half txn=ahead/0000000c order=prepare, half txn=ahead/0000000c order=prepare, C 0, half order=prepare, C 2, show 2,
    starts half=1
behind_an_attempt_whose_half_records_are_mixed_with_those_of_a_later_one: ok
    half 0/2 txn=again/0000000a order=prepare, half order=prepare, half 0/2 txn=again/0000000b order=prepare,
    half 1/2 txn=again/0000000a order=prepare, half 1/2 txn=again/0000000b order=prepare, C 1, C 3, C 4, show 0 3 1 2 4
visible_before_an_undecided_one_in_the_order_of_decisions: ok
    half txn=ahead/0000000c order=commit, half order=commit, C 1, show 1
held_in_the_order_of_half_behind_one_of_its_ordering_key_that_is_held: open
    half txn=other/00000009 order=prepare, half order=prepare, C 0, C 1, keep held 0 order=prepare, keep held 1 order=prepare
held_behind_an_undecided_one_of_its_ordering_key: open
    half txn=ahead/0000000c order=prepare, half order=prepare, C 1, keep held 1 order=prepare
overtaken_by_an_undecided_one_of_its_ordering_key: out_of_order
    half order=prepare, half txn=ahead/0000000c order=prepare, show 1, C 0, show 0
behind_an_undecided_one_of_its_ordering_key_that_was_said_to_be_unknown_before_its_half_record: open
    lines 1|U|ahead/0000000c|orders|0|1700000000000|check|1|, half txn=ahead/0000000c order=prepare,
    half order=prepare, C 1
behind_an_undecided_one_of_its_ordering_key_that_was_said_to_be_released_before_its_half_record: open
    lines 2|C|ahead/0000000c|orders|0|1700000000000|policy|||1700000000000, half txn=ahead/0000000c order=prepare,
    half order=prepare, C 1
# Whether the line counted or not, the transaction is committed, and has its place in half.
visible_before_an_undecided_one_of_its_ordering_key_and_committed_ahead_of_its_half_record: out_of_order
    half txn=ahead/0000000c order=prepare, lines 1|C|order-1/5f3a90c2|orders|1|1700000000000|producer||,
    half order=prepare, show 1
# The other one is open: if its line had counted, it would be lost.
visible_before_one_of_its_ordering_key_that_is_open_if_a_line_ahead_of_its_half_record_was_given_up: out_of_order
    lines 1|C|ahead/0000000c|orders|0|1700000000000|producer||, half txn=ahead/0000000c order=prepare,
    half order=prepare, C 1, show 1
behind_one_of_its_ordering_key_that_is_open_if_a_line_ahead_of_its_half_record_was_given_up: open
    lines 1|C|ahead/0000000c|orders|0|1700000000000|producer||, half txn=ahead/0000000c order=prepare,
    half order=prepare, C 1
behind_an_undecided_one_of_its_ordering_key_and_its_real_topic_shortened: open
    half txn=ahead/0000000c order=prepare, half order=prepare, C 1, starts shop=5
behind_one_of_its_ordering_key_that_may_have_been_visible: out_of_window
    half txn=ahead/0000000c topic=other order=prepare, half order=prepare, C 0, C 1, starts other=5
# It is cancelled: whether a part of it was visible is not what the other one waits for.
behind_one_of_its_ordering_key_that_was_cancelled_and_may_have_been_visible_in_part: lost
    half 0/3 txn=ahead/0000000c order=prepare, half 1/3 txn=ahead/0000000c topic=other order=prepare,
    half 2/3 txn=ahead/0000000c options=d+60000 order=prepare, half order=prepare, C 2, show 0, A 2, C 3, starts other=5
behind_one_of_its_ordering_key_that_was_cancelled_and_is_visible_in_part_with_another_value: lost
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c options=d+60000 order=prepare,
    half order=prepare, C 1, show 0 value=another, A 1, C 2
behind_one_of_its_ordering_key_that_was_cancelled_and_is_visible_in_part_twice: lost
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c options=d+60000 order=prepare,
    half order=prepare, C 1, show 0 0, A 1, C 2
behind_one_of_its_ordering_key_that_was_cancelled_and_of_which_another_part_is_visible: lost
    half 0/3 txn=ahead/0000000c order=prepare, half 1/3 txn=ahead/0000000c options=d+60000 order=prepare,
    half 2/3 txn=ahead/0000000c options=d+60000 order=prepare, half order=prepare, C 2, show 1, A 2, C 3
# An abandon has no effect on what is visible.
behind_a_later_one_in_the_order_of_half_that_was_abandoned_when_it_was_visible: out_of_order
    half order=commit, half txn=ahead/0000000c order=prepare, C 0, C 1, show 1, A 1, show 0
behind_one_of_its_ordering_key_that_was_decided_later_and_abandoned_when_it_was_visible: out_of_order
    half order=commit, half txn=ahead/0000000c order=commit, C 0, C 1, show 1 0, A 0
# It is decided, and nothing of it may be gone.
behind_one_of_its_ordering_key_of_which_a_part_was_committed_and_a_part_is_visible: lost
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare, half order=prepare, C 0, show 0,
    C 2
behind_one_of_its_ordering_key_of_which_a_part_was_committed_and_then_abandoned_and_a_part_is_visible: lost
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare, half order=prepare, C 0, show 0,
    A 1, C 2
behind_one_of_its_ordering_key_that_was_cancelled_and_of_which_lines_may_be_gone: out_of_window
    lines 1|U|gone/00000000|orders|9|1700000000000|producer||, half 0/3 txn=ahead/0000000c order=prepare,
    half 1/3 txn=ahead/0000000c topic=other order=prepare, half 2/3 txn=ahead/0000000c options=d+60000 order=prepare, C 2, show 0,
    A 2, half order=prepare, C 3, starts other=5 op=1
behind_one_of_its_ordering_key_that_is_visible_in_part_before_its_time: lost
    half 0/2 txn=ahead/0000000c order=prepare options=d+60000, half 1/2 txn=ahead/0000000c order=prepare options=d+60000,
    half order=prepare, C 1, show 0, C 2
behind_one_of_its_ordering_key_that_is_visible_in_part_before_its_decision: lost
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare, half order=prepare, show 0, C 1, C 2
behind_one_of_its_ordering_key_that_is_visible_twice_in_part: lost
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare, half order=prepare, C 1, show 0 0, C 2
# A part of it is visible, and the rest may be gone, whatever doubt says.
behind_one_of_its_ordering_key_that_is_held_and_visible_in_part: out_of_window
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare topic=other, half order=prepare,
    C 1, keep held 0 1 order=prepare, show 0 value=another, C 2, starts other=5
behind_one_of_its_ordering_key_that_differs_and_of_which_lines_may_be_gone: out_of_window
    lines 1|U|gone/00000000|orders|9|1700000000000|producer||, half txn=ahead/0000000c order=prepare, half order=prepare,
    C 0, show 0 value=another, C 1, starts op=1
# It was earlier in half than all that is there.
behind_one_of_its_ordering_key_that_half_has_lost_but_for_a_record_behind_it: out_of_window
    half 0/2 txn=ahead/0000000c order=prepare, half order=prepare, half 1/2 txn=ahead/0000000c order=prepare, C 1,
    starts half=1
# It was on doubt, and with it what waited for it.
behind_one_of_its_ordering_key_that_doubt_alone_knows: lost
    half txn=ahead/0000000c order=prepare, half order=prepare, C 0, keep held 0 order=prepare, show 0,
    ended 0 txn=ahead/0000000c, C 1, starts half=1
# If half has lost a transaction's first record, it is not known whether the transaction still goes first.
behind_one_of_its_ordering_key_whose_first_half_record_is_gone: out_of_window
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare, half order=prepare, C 2,
    starts half=1
behind_one_of_its_ordering_key_whose_first_half_record_is_gone_and_committed_ahead_of_its_half_record: out_of_window
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare,
    lines 1|C|order-1/5f3a90c2|orders|2|1700000000000|producer||, half order=prepare, C 2, starts half=1
scheduled_behind_one_of_its_ordering_key_whose_first_half_record_is_gone: out_of_window
    half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare,
    half 0/2 options=d+60000 order=prepare, half 1/2 order=prepare, C 3, starts half=1
# What waits for one on doubt is on doubt itself.
behind_one_of_its_ordering_key_that_is_open_on_doubt: lost
    half txn=ahead/0000000c order=prepare, half order=prepare, keep open 0 order=prepare, C 1
# It is decided: whether it is visible is not what the other one waits for.
behind_one_of_its_ordering_key_that_an_open_kafka_transaction_hides: lost
    half txn=ahead/0000000c topic=other order=prepare, half order=prepare, C 0, C 1, stranger other, stable other=0
# What waits on doubt stays there until it is settled.
left_doubt_behind_an_undecided_one_of_its_ordering_key: lost
    half txn=ahead/0000000c order=prepare, half order=prepare, keep open 1 order=prepare, C 1, ended 0
left_doubt_behind_one_of_its_ordering_key_that_may_have_been_visible: lost
    half txn=ahead/0000000c topic=other order=prepare, half order=prepare, C 0, keep open 1 order=prepare, C 1,
    ended 0, starts other=5
# A commit that is incomplete does not wait: it is parked.
commit_of_a_part_behind_an_undecided_one_of_its_ordering_key: lost
    half txn=ahead/0000000c order=prepare, half 0/2 order=prepare, half 1/2 order=prepare, C 1
commit_of_a_part_behind_one_of_its_ordering_key_that_may_have_been_visible: lost
    half txn=ahead/0000000c topic=other order=prepare, C 0, half 0/2 order=prepare, half 1/2 order=prepare, C 1,
    starts other=5
incomplete_at_first_and_overtaken_in_the_order_of_half: ok
    half 0/2 order=prepare, half 1/2 order=prepare, half txn=ahead/0000000c order=prepare, C 2, C 0, C 1, show 2 0 1
incomplete_at_first_and_overtaken_by_one_in_the_order_of_half: ok
    half 0/2 order=commit, half 1/2 order=commit, half txn=ahead/0000000c order=prepare, C 2, C 0, C 1, show 2 0 1
incomplete_at_first_and_visible_before_an_undecided_one_of_its_ordering_key: ok
    half txn=ahead/0000000c order=prepare, half 0/2 order=prepare, half 1/2 order=prepare, C 1, C 2, show 1 2
messages_of_different_keys_reversed: ok
    half 0/2 key=a, half 1/2 key=b, C 1, show 1 0
# --- half records
half_copy_after_settlement: ok
    half, C 0, show 0, half
half_copy_after_a_rollback: rolled_back
    half, R 0, half
half_copy_after_an_abandon: rolled_back
    half, C 0, A 0, half
half_copy_forwarded_again: duplicate
    half, C 0, show 0, half, show 1
decided_by_a_copy: ok
    half, half, C 1, show 0
# Its index is already there, so it is a second copy, whatever it holds: doubt has the first one.
half_copy_with_another_key_of_one_on_doubt: open
    half 0/2, half 0/2 key=another, half 1/2, keep open 0 2
half_record_of_another_count: ok orphan
    half, half 1/2, C 0, show 0 1
half_records_in_another_order: leaked orphan
    half 1/2, half 0/2, C 0, show 1 0
half_record_of_a_later_index: ok
    half 0/3, half 2/3, half 1/3, half 2/3, C 3, show 0 2 3
two_attempts: ok
    half txn=again/0000000a, half txn=again/0000000b, C 1, show 1
# Doubt says that what is visible is the other's, of which half has lost the record.
another_attempt_of_one_millisecond_is_visible_of_which_half_has_nothing: lost
    half txn=order-1/00000001, C 0, keep held 0, show 0, ended 0 txn=order-1/00000001, half, C 1, starts half=1
another_attempt_of_one_millisecond_is_visible_of_which_half_has_a_part: rolled_back
    half 0/2, half 0/2 txn=order-1/00000001, half 1/2, half 1/2 txn=order-1/00000001, keep open 0 2, keep open 1 3, R 2,
    ended 0 1, C 3, show 1 3, ended 0 1 txn=order-1/00000001, half 0/2, half 1/2, half 1/2 txn=order-1/00000001, starts half=4
# Half has a second copy of the first message alone, and doubt says where the record of the visible one was.
rolled_back_and_visible_of_which_half_has_a_copy_of_the_first_message_alone: leaked
    half 0/2, half 1/2, keep open 0 1, R 1, show 1, ended 0 1, half 0/2, starts half=2
# Half has second copies of both alone, and the attempts were prepared in one millisecond: doubt says where whose half records were.
two_attempts_of_which_half_has_copies_alone: ok
    half 0/2 txn=again/0000000a, half 0/2 txn=again/0000000b, half 1/2 txn=again/0000000a, half 1/2 txn=again/0000000b,
    keep open 0 2, keep open 1 3, R 2, ended 0 1 txn=again/0000000a, C 3, show 1 3, ended 0 1 txn=again/0000000b,
    half 0/2 txn=again/0000000a, half 1/2 txn=again/0000000a, half 0/2 txn=again/0000000b, half 1/2 txn=again/0000000b,
    starts half=4
two_attempts_of_which_half_has_copies_alone_and_the_other_is_visible: rolled_back
    half 0/2 txn=again/0000000b, half 0/2 txn=again/0000000a, half 1/2 txn=again/0000000b, half 1/2 txn=again/0000000a,
    keep open 0 2, keep open 1 3, R 2, ended 0 1 txn=again/0000000b, C 3, show 1 3, ended 0 1 txn=again/0000000a,
    half 0/2 txn=again/0000000b, half 1/2 txn=again/0000000b, half 0/2 txn=again/0000000a, half 1/2 txn=again/0000000a,
    starts half=4
two_attempts_of_which_half_has_copies_alone_and_the_wrong_one_is_visible: leaked
    half 0/2 txn=again/0000000a, half 0/2 txn=again/0000000b, half 1/2 txn=again/0000000a, half 1/2 txn=again/0000000b,
    keep open 0 2, keep open 1 3, C 2, ended 0 1 txn=again/0000000a, R 3, show 1 3, ended 0 1 txn=again/0000000b,
    half 0/2 txn=again/0000000a, half 1/2 txn=again/0000000a, half 0/2 txn=again/0000000b, half 1/2 txn=again/0000000b,
    starts half=4
# It is at fault in either reading, whatever is visible beside it.
two_attempts_and_one_is_rolled_back_or_torn: leaked
    half txn=again/0000000a, C 0, show 0, half 0/3 txn=again/0000000b, half 1/3 txn=again/0000000b, content 1, content 2,
    summary open 1 2 count=3, R 2, half 2/3 txn=again/0000000b, C 3, show 1 2, ended 0 1 2 txn=again/0000000b
# Half has the record that it names, which is part of neither.
two_attempts_and_a_half_record_that_belongs_to_neither_is_visible: ok orphan
    half 0/3 txn=again/0000000b, half txn=again/0000000a, half 2/3 txn=again/0000000a, half 1/3 txn=again/0000000b,
    half 2/3 txn=again/0000000b, C 4, keep held 0 3 4, show 0 3 4, ended 0 1 2 txn=again/0000000b, show 2
# Doubt names the half records in the middle with the contents alone.
two_attempts_of_three_messages_of_which_half_has_copies_alone: ok
    half 0/3 txn=again/0000000a, half 0/3 txn=again/0000000b, half 1/3 txn=again/0000000a, half 1/3 txn=again/0000000b,
    half 2/3 txn=again/0000000a, half 2/3 txn=again/0000000b, keep open 0 2 4, keep open 1 3 5, R 4,
    ended 0 1 2 txn=again/0000000a, C 5, show 1 3 5, ended 0 1 2 txn=again/0000000b, half 0/3 txn=again/0000000a,
    half 1/3 txn=again/0000000a, half 2/3 txn=again/0000000a, half 0/3 txn=again/0000000b, half 1/3 txn=again/0000000b,
    half 2/3 txn=again/0000000b, starts half=6
two_attempts_of_three_messages_of_which_half_has_copies_alone_and_the_other_is_visible: rolled_back
    half 0/3 txn=again/0000000b, half 0/3 txn=again/0000000a, half 1/3 txn=again/0000000b, half 1/3 txn=again/0000000a,
    half 2/3 txn=again/0000000b, half 2/3 txn=again/0000000a, keep open 0 2 4, keep open 1 3 5, R 4,
    ended 0 1 2 txn=again/0000000b, C 5, show 1 3 5, ended 0 1 2 txn=again/0000000a, half 0/3 txn=again/0000000b,
    half 1/3 txn=again/0000000b, half 2/3 txn=again/0000000b, half 0/3 txn=again/0000000a, half 1/3 txn=again/0000000a,
    half 2/3 txn=again/0000000a, starts half=6
# The first half record says the ordering key and the order mode of the transaction.
half_records_of_which_a_later_one_is_in_the_order_of_half: lost
    half txn=ahead/0000000c order=prepare, half 0/2 order=commit, half 1/2 order=prepare, C 2
half_records_of_which_the_first_one_is_in_the_order_of_half: open
    half txn=ahead/0000000c order=prepare, half 0/2 order=prepare, half 1/2 order=commit, C 2
half_records_of_which_a_later_one_has_an_ordering_key: ok
    half 0/2 key=, half 1/2 key= order=commit, C 1, show 1 0
half_records_of_which_the_first_one_has_an_ordering_key: out_of_order
    half 0/2 key= order=commit, half 1/2 key=, C 1, show 1 0
many_messages_and_one_lost: torn
    half 0/70, half 1/70, half 2/70, half 3/70, half 4/70, half 5/70, half 6/70, half 7/70, half 8/70, half 9/70,
    half 10/70, half 11/70, half 12/70, half 13/70, half 14/70, half 15/70, half 16/70, half 17/70, half 18/70,
    half 19/70, half 20/70, half 21/70, half 22/70, half 23/70, half 24/70, half 25/70, half 26/70, half 27/70,
    half 28/70, half 29/70, half 30/70, half 31/70, half 32/70, half 33/70, half 34/70, half 35/70, half 36/70,
    half 37/70, half 38/70, half 39/70, half 40/70, half 41/70, half 42/70, half 43/70, half 44/70, half 45/70,
    half 46/70, half 47/70, half 48/70, half 49/70, half 50/70, half 51/70, half 52/70, half 53/70, half 54/70,
    half 55/70, half 56/70, half 57/70, half 58/70, half 59/70, half 60/70, half 61/70, half 62/70, half 63/70,
    half 64/70, half 65/70, half 66/70, half 67/70, half 68/70, half 69/70, C 69,
    show 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68
# The first half record of each has the place: this one is behind the other.
half_records_of_two_that_are_mixed_in_half: ok
    half 0/2 txn=other/00000009 order=prepare, half 0/2 order=commit, half 1/2 txn=other/00000009 order=prepare,
    half 1/2 order=commit, C 2, C 3, show 0 2 1 3
second_copy_with_a_broken_origin: ok orphan
    half, C 0, show 0, forge order-1 0:0|0
phantom_without_an_origin: open orphan
    half, forge order-1
phantom_with_a_broken_origin: open orphan
    half, forge order-1 0:0|0
phantom_of_a_half_record_that_never_was: open orphan
    half, forge order-1 0:7|0/1|1700000000000
# Another namespace may have forwarded it to the same topic, under the same id and half offset.
phantom_of_a_half_record_that_was_rolled_back_and_has_another_birth: rolled_back orphan
    half, R 0, forge order-1 0:0|0/1|5
phantom_of_a_half_record_that_has_another_id: rolled_back orphan
    half txn=other/00000009, half, R 1, forge order-1 0:0|0/1|1700000000000
phantom_of_a_half_record_that_doubt_had_with_another_birth: rolled_back
    half 0/2, half 1/2, keep open 0 1, half 0/2, R 2, ended 0 1, forge order-1 0:1|1/2|5, starts half=2
phantom_of_a_half_record_that_doubt_had_with_another_count: rolled_back
    half 0/2, half 1/2, keep open 0 1, half 0/2, R 2, ended 0 1, forge order-1 0:1|1/3|1700000000000, starts half=2
# What was parked gave up its place.
overtaken_and_compaction_may_have_taken_that_it_was_parked: ok
    half order=commit, half txn=other/00000009 order=commit, keep open 0 order=commit, C 0, C 1, show 1 0, forgotten 0
# --- messages with times
scheduled_and_shown_at_its_times: ok
    timed, show 0, release 0, show 1, release 1, show 2
scheduled_and_waiting: open
    timed, show 0, keep scheduled 0 1 2 due=1/1/1700000060000+1700000120000/0:0
scheduled_and_released_by_a_line_before_the_time: leaked
    timed, show 0, at 1700000059000, lines 2|C|order-1/5f3a90c2|orders|2|1700000000000|policy|||1700000060000, show 1
scheduled_for_one_time_and_only_some_are_visible: torn
    half 0/2 options=d1700000060000, half 1/2 options=d1700000060000, C 1, at 1700000060000,
    lines 2|C|order-1/5f3a90c2|orders|1|1700000000000|policy|||1700000060000, show 0
scheduled_and_doubt_says_that_it_is_held: lost
    half options=d1700000060000, C 0, keep held 0 reason=topic-missing due=0/0/1700000060020/0:0
scheduled_and_released_and_not_visible: lost
    timed, keep scheduled 0 1 2 due=1/1/1700000060000+1700000120000/0:0
scheduled_and_released_and_held: open
    timed, show 0, release 0, keep held 0 1 2 due=1/1700000060001/1700000120000/0:0
scheduled_and_released_and_parked: parked
    timed, show 0, release 0, keep parked-committed 0 1 2 due=1/1700000060001/1700000120000/0:0
scheduled_and_given_another_time: ok
    timed, show 0, lines 2|U|order-1/5f3a90c2|orders|2|1700000000000|policy|||1700000180000, at 1700000180000, lines 2|C|order-1/5f3a90c2|orders|2|1700000000000|policy|||1700000180000, show 1 2
scheduled_and_visible_at_the_time_before_it_was_moved: leaked
    timed, show 0, lines 2|U|order-1/5f3a90c2|orders|2|1700000000000|policy|||1700000180000, release 0, show 1
line_with_a_later_time_releases_nothing: leaked
    timed, show 0, release 1, show 2
scheduled_and_early: leaked
    timed, show 0, release 0, show 1 2
scheduled_and_undecided_and_visible: leaked
    half options=d+60000, show 0
scheduled_and_rolled_back: rolled_back
    half options=d+60000, R 0
scheduled_and_a_released_one_is_nowhere: torn
    timed, show 0, release 0, release 1, show 2
scheduled_and_nowhere: lost
    half options=d+60000, C 0
scheduled_and_the_rest_cancelled: ok
    timed, show 0, says A
scheduled_and_cancelled_behind_a_rollback: conflicting
    timed, show 0, says R, says A
scheduled_and_cancelled: rolled_back
    half options=d+60000, C A 0
# What was released together is forwarded together, or given up together.
scheduled_and_cancelled_and_a_part_of_what_was_released_before_is_hidden: open
    half 0/3, half 1/3 topic=other, half 2/3 options=d+60000, C 2, show 0, show 1 to=other kafka=open, A 2, stable other=0
scheduled_and_cancelled_and_a_part_of_what_was_released_before_may_be_gone: out_of_window
    half 0/3, half 1/3 topic=other, half 2/3 options=d+60000, C 2, show 0, A 2, starts other=1
scheduled_and_visible_although_it_was_cancelled: leaked
    timed, show 0, says A, release 0, show 1
scheduled_and_its_first_half_record_gone_which_the_commit_names: parked
    half 0/2 options=d+120000, content 0, C 0, half 0/2 options=d+120000, half 1/2 options=d+180000, content 2,
    summary parked-committed 0 2 reason=incomplete due=0/0/1700000120010+1700000180050/0:0, starts half=1
# Its real topic keeps messages for less long than the others wait.
scheduled_and_what_was_visible_is_gone: out_of_window
    half 0/2 topic=other, half 1/2 options=d+60000, C 1, show 0 to=other, keep scheduled 0 1 due=1/1/1700000060010/0:0,
    starts other=1
scheduled_for_no_time_at_all: ok
    half options=d0, C 0, show 0
scheduled_and_visible_twice: duplicate
    timed, show 0 0, release 0, show 1, release 1, show 2
scheduled_and_cancelled_and_maybe_visible_in_part_ahead_of_one_in_the_order_of_half: lost
    half 0/3 txn=ahead/0000000c order=prepare, half 1/3 txn=ahead/0000000c topic=other order=prepare,
    half 2/3 txn=ahead/0000000c options=d+60000 order=prepare, half order=prepare, C 2, show 0, A 2, C 3, starts other=5
scheduled_in_the_order_of_half_behind_an_undecided_one: open
    half txn=other/0000000c order=prepare, half 0/2 options=d+60000 order=prepare, half 1/2 order=prepare, C 2
# Only a commit and an unknown have a time there; a further field of another line is one of a later release.
rolled_back_by_a_line_with_one_more_field: rolled_back
    half, lines 2|R|order-1/5f3a90c2|orders|0|1700000000000|producer|||5
abandoned_and_then_rolled_back: rolled_back
    half, C A R 0
abandoned_and_then_committed: conflicting
    half, C A C 0
"""


def _write(steps: str, log: Log) -> None:
    Steps(log).write(steps)


for _block in re.split(r"\n(?=\w)", re.sub(r"^#.*\n", "", HISTORIES, flags=re.MULTILINE)):
    _head, _steps = _block.split("\n", 1)
    _name, _word, *_orphan = _head.replace(":", "").split()
    CASES[_name] = Case(_name, partial(_write, _steps), _word, bool(_orphan))


# --- what the steps have no words for ---------------------------------------------------------------------------------


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


def _rolled_back_before_its_half_record_came(log: Log) -> Record:
    """A line that named nothing was quarantined, and an operator ended what was on doubt because of it alone."""
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


@case("open")
def committed_in_an_empty_state(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.summary("", half)
    log.content(half)


@case("ok")
def visible_with_the_name_of_its_producer_group(log: Log) -> None:
    half = log.half(options="g1")
    log.op(("C", half))
    log.show(half)
    shown = log.records[-1]
    log.records[-1] = replace(shown, headers=[*shown.headers[:-2], ("txl-group", b"shop"), *shown.headers[-2:]])


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


@case("leaked")
def scheduled_and_visible_before_its_line(log: Log) -> None:
    timed = Timed(log)
    timed.show(0)
    timed.release(0)
    shown = log.show(timed.halves[1])
    log.records[-1] = replace(shown, timestamp_ms=timed.times[0] - MINUTE)
    timed.release(1)
    timed.show(2)


# --- values and keys that are swapped ---------------------------------------------------------------------------------

Content = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
CONTENTS: dict[str, tuple[str, Content, Content]] = {
    "tombstone_of_a_key_is_shown_with_the_key_as_its_value": ("corrupt", (b"k-7", None, []), (None, b"k-7", [])),
    "value_without_a_key_is_shown_as_a_tombstone": ("corrupt", (None, b"k-7", []), (b"k-7", None, [])),
    "headers_without_values_are_shown_as_one_with_a_value": (
        "corrupt",
        (b"k", b"v", [("a", None), ("b", None)]),
        (b"k", b"v", [("a", b"b")]),
    ),
    "a_header_has_the_value_that_the_next_one_should_have": (
        "corrupt",
        (b"k", b"v", [("a", None), ("b", b"c")]),
        (b"k", b"v", [("a", b"b"), ("c", None)]),
    ),
    "value_is_shown_as_a_header": ("corrupt", (b"k", b"paid", []), (b"k", None, [("paid", None)])),
    "nothing_is_shown_as_an_empty_value": ("corrupt", (b"k", None, []), (b"k", b"", [])),
    "without_key_and_value_and_shown_so": ("ok", (None, None, [("a", None)]), (None, None, [("a", None)])),
}
"""{case: (its verdict, the key, value and headers of a committed message, and those that are visible)}."""


def _shown_as(content: Content, seen: Content, log: Log) -> None:
    key, value, headers = content
    half = log.half(key=key, value=value)
    log.records[-1] = half = replace(half, headers=[*headers, half.headers[-1]])
    log.op(("C", half))
    shown = log.show(half)
    key, value, headers = seen
    log.records[-1] = replace(shown, key=key, value=value, headers=[*headers, *list(shown.headers)[-2:]])


for _name, (_word, _content, _seen) in CONTENTS.items():
    CASES[_name] = Case(_name, partial(_shown_as, _content, _seen), _word, has_orphan=False)


@case("lost", "orphan")
def id_on_the_real_topic_has_a_slash_behind_it(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    shown = log.show(half)
    headers = [(n, b"order-1/00000000" if n == "txl-id" else v) for n, v in shown.headers]
    log.records[-1] = replace(shown, headers=headers)


@case("lost")
def held_without_a_value_and_its_content_has_the_key_there(log: Log) -> None:
    half = log.half(key=b"customer-7", value=None)
    log.op(("C", half))
    log.summary("held", half, reason="topic-missing")
    log.content(half, value=b"customer-7", headers=[*half.headers])


# --- numbers of any size, and wrong clocks ----------------------------------------------------------------------------


@case("ok")
def nonces_of_two_attempts_are_no_hexadecimal_digits(log: Log) -> None:
    """A producer in another language: coordinators take any eight characters."""
    first = log.half(STRANGE)
    log.op(("C", first), key=STRANGE)
    log.show(first)
    second = log.half("order-1/YYYYYYYY")
    log.op(("R", second), key="order-1/YYYYYYYY")


def _half_born(log: Log, born_ms: int | str, *, key: str = KEY, numbers: str = "0/1", options: str = "") -> Record:
    """A half record whose producer says another time, or something else."""
    half = log.half(key, numbers)
    txl = f"1|{key}|orders|shop|{numbers}|{born_ms}|{options}".encode()
    log.records[-1] = replace(half, headers=[("trace", b"t"), ("txl", txl)])
    return log.records[-1]


@case("leaked")
def clocks_of_two_brokers_are_five_seconds_apart(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    shown = log.show(half)
    log.records[-1] = replace(shown, timestamp_ms=shown.timestamp_ms - 5_000)


@case("lost")
def lost_by_a_producer_whose_clock_is_three_days_ahead(log: Log) -> None:
    born_ms = log.now_ms + 3 * 86_400_000
    halves = [_half_born(log, born_ms, numbers=f"{index}/70") for index in range(70)]
    log.add(OP, value=f"1|C|{KEY}|orders|{halves[-1].offset}|{born_ms}|producer||".encode())


@case("ok")
def born_at_the_largest_time_that_is_in_form(log: Log) -> None:
    half = _half_born(log, 2**63 - 1)
    log.add(OP, value=f"1|C|{KEY}|orders|{half.offset}|{2**63 - 1}|producer||".encode())
    log.show(half)


@case("open")
def asked_for_the_largest_immunity_and_open_at_the_largest_time(log: Log) -> None:
    _half_born(log, 2**63 - 1)


MALFORMED: dict[str, tuple[int | str, str]] = {
    "with_a_header_of_more_than_2048_bytes": (1_700_000_000_000, "x" * 2_048),
    "that_was_born_at_a_number_of_more_than_63_bits": (TOO_LARGE, ""),
    "for_a_partition_that_kafka_cannot_have": (1_700_000_000_000, "n2147483648"),
    **{f"with_the_option_{o}_of_more_than_63_bits": (1_700_000_000_000, o + TOO_LARGE) for o in "intm"},
}
"""{what a half record is like that coordinators quarantine: (when it was born, its options)}."""


def _malformed(born_ms: int | str, options: str, log: Log) -> None:
    """A committed one beside a good one."""
    half = _half_born(log, born_ms, key="malformed/00000001", options=options)
    log.op(("C", half), key="malformed/00000001")
    good = log.half()
    log.op(("C", good))
    log.show(good)


for _name, _said in MALFORMED.items():
    CASES[_name := f"malformed_half_record_{_name}"] = Case(_name, partial(_malformed, *_said), "ok", has_orphan=False)
