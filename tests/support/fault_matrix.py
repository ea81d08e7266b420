"""Which fault is covered by which tests, row by row, and what is not covered and why. docs/explanation/faults.md is made of it.

`python -m tests.support.fault_page` writes the page; tests/docs/test_faults_page.py holds it to this table and collects
every test that is named here. Whoever writes a test of a fault names it here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One fault."""

    where: str
    fault: str
    outcome: str
    """What must happen."""
    tests: tuple[str, ...] = ()
    """Node ids below tests/, without parameters."""
    missing: str = ""
    """What is not covered, and why; empty: all of it is."""


_SAFETY = "simulation/test_safety.py::test_promises_hold_in_worlds_with_faults"
_LIVENESS = "simulation/test_liveness.py::test_a_healed_world_comes_to_rest_whatever_happened_before"
_CHAOS = "e2e/test_chaos.py::test_nothing_is_lost_doubled_or_shown_too_early_whatever_fails"
_KILLS = "e2e/test_coordinator_crash.py::test_twenty_kills_at_random_moments_lose_and_double_nothing"
_ZOMBIE = "e2e/test_zombie.py::test_a_zombie_that_wakes_up_writes_nothing"
_STORM = "e2e/test_rebalance.py::test_two_workers_lose_and_double_nothing_while_others_join_and_leave"
_BROKER = "e2e/test_broker_crash.py::test_a_broker_that_dies_and_comes_back_costs_nothing"
_INPUT = "integration/kafka/test_coordinator_input.py::"
_TARGETS = "integration/kafka/test_coordinator_targets.py::"
_HOSTILE = "integration/kafka/test_hostile_records.py::"
_ANYTHING = "fuzz/test_fuzz.py::test_no_input_stops_a_target"

_AGAIN = "integration/sql/test_forgotten_join.py::"
_FORBIDDEN = "integration/sql/test_forbidden_commits.py::"
_INBOX = "integration/sql/test_inbox.py::"
_CHECK_BACK = "integration/kafka/test_check_back.py::"
_QUESTIONS = "unit/test_coordinator_questions.py::"
_DEMO_CHECKS = "docs/test_demo.py::test_what_the_shop_left_in_doubt_is_settled_by_checking_back"
_CONSUMERS = "simulation/test_consumers.py::test_consumers_keep_their_promises_in_worlds_with_faults"
_CONSUMERS_END = "simulation/test_consumers.py::test_every_message_ends_in_a_healed_world_whatever_happened_before"
_HUNG = "contract/test_hung_handlers.py::"
_PROCESS = "e2e/test_consumer_process.py::"

PRODUCER = (
    Row(
        "producer",
        "kill -9 before its half messages are acknowledged",
        "Nothing is visible; half messages that did arrive stay undecided and settle later.",
        (
            _SAFETY,
            "unit/test_steps_refused.py::test_who_goes_away_while_messages_still_wait_for_room_is_rolled_back",
            "unit/test_ledger_checks.py::test_a_transaction_whose_producer_died_in_prepare_is_asked_about_too",
            _DEMO_CHECKS,
        ),
    ),
    Row(
        "producer",
        "kill -9 between the local commit and its op",
        "Nothing is visible until somebody resolves it; then it is forwarded once.",
        (
            _SAFETY,
            _LIVENESS,
            "unit/test_ledger_doubt.py::test_an_old_transaction_moves_to_doubt_with_its_content_and_half_is_free",
            _CHECK_BACK + "test_who_is_asked_answers_with_an_op_and_is_not_asked_again",
            _DEMO_CHECKS,
        ),
    ),
    Row(
        "producer",
        "its op is stored, the answer is lost",
        "The client repeats without doubling; one decision, forwarded once.",
        (
            _SAFETY,
            _CHAOS,
            "unit/test_memory_kafka.py::test_a_repeated_produce_is_stored_once",
            "unit/test_steps_refused.py::test_an_op_line_that_nobody_acknowledged_is_sent_again",
        ),
    ),
    Row(
        "producer",
        "a batch's answer is lost, and a later batch vouches for it: stored, and nobody told where",
        "Half messages are looked up in half, and their op names the place; an op or a request without a place is stored all the same; "
        "a Kafka transaction that needs the place is not committed, but made again.",
        (
            "unit/test_placeless.py::test_an_op_line_names_the_place_that_was_looked_up",
            "unit/test_placeless.py::test_a_coordinator_rebuilds_and_keeps_a_transaction_on_doubt_once",
            "unit/test_placeless.py::test_a_dead_letter_without_a_place_is_not_committed",
            _CHAOS,
            "integration/kafka/test_placeless_client.py::test_a_record_that_the_broker_has_already_is_stored_and_nobody_tells_where",
        ),
    ),
    Row(
        "producer",
        "frozen, and goes on after others decided",
        "Its late op is reported and changes nothing.",
        (
            _SAFETY,
            "unit/test_ledger.py::test_the_first_decision_stands_and_a_contrary_one_is_reported",
            "integration/kafka/test_producer.py::test_status_tells_what_became_of_a_transaction",
        ),
    ),
    Row(
        "producer",
        "a commit and a rollback of one transaction",
        "The first in the op log wins, also over a restart.",
        (
            "integration/kafka/test_decisions.py::test_the_first_decision_wins_whoever_wrote_it_and_across_a_restart",
            _INPUT + "test_a_rollback_after_the_commit_is_reported_and_changes_nothing",
            _INPUT + "test_a_commit_after_the_rollback_is_reported_and_forwards_nothing",
        ),
    ),
    Row(
        "producer",
        "its local transaction is rolled back, or its commit fails, and the work is done again without the barrier's row",
        "The second commit is refused: nothing is sold whose messages are rolled back.",
        (
            _AGAIN + "test_a_sale_that_is_done_again_after_a_rollback_is_not_committed",
            _AGAIN + "test_a_sale_that_a_task_does_again_after_a_rollback_is_not_committed",
            _AGAIN + "test_a_sale_that_is_done_again_after_its_commit_has_failed_is_not_committed",
            _AGAIN + "test_a_sale_that_is_done_again_after_a_refused_join_is_not_committed",
            _FORBIDDEN + "test_a_deadlock_that_was_swallowed_does_not_commit_the_rest",
            _FORBIDDEN + "test_the_row_of_a_check_that_came_meanwhile_is_not_taken_for_the_own",
        ),
        "Another thread or task than the block's, and statements that SQLAlchemy does not see.",
    ),
    Row(
        "producer",
        "uses an id again whose barrier row was purged, and the first transaction of that id is asked about",
        "The answer is UNKNOWN: the later row does not roll back what may be committed.",
        (
            "integration/sql/test_checks.py::test_the_absence_of_a_row_that_a_purge_may_have_taken_means_nothing",
            "integration/sql/test_checks.py::test_a_later_attempt_of_an_id_does_not_roll_back_one_whose_row_a_purge_has_taken",
        ),
    ),
    Row(
        "producer",
        "its clock is a day off",
        "Ages count by the broker's clock; a time from the future becomes now.",
        (
            _SAFETY,
            _INPUT + "test_a_producer_whose_clock_is_wrong_by_a_day_changes_nothing",
            _INPUT + "test_a_message_from_the_future_is_forwarded_with_the_time_of_now",
        ),
    ),
)

COORDINATOR = (
    Row(
        "coordinator",
        "half records under invented names of producer groups, more than memory takes",
        "Half of that partition waits; other partitions go on, and nothing is lost.",
        (
            "unit/test_unsettled_bytes.py::test_a_flood_of_invented_records_is_read_no_further_than_there_is_memory",
            "unit/test_unsettled_bytes.py::test_another_partition_goes_on_beside_a_flooded_one",
            "unit/test_unsettled_bytes.py::test_the_bound_holds_when_those_in_memory_go_to_doubt_while_half_waits",
            "unit/test_unsettled_bytes.py::test_a_full_partition_keeps_to_its_bound_although_op_waits_and_more_memory_ends_it",
            "contract/test_bounds.py::test_half_waits_in_its_topic_while_there_is_no_memory_for_more_transactions",
        ),
        missing="The honest transactions of that partition wait, too, until a person makes room; no simulated world is that full.",
    ),
    Row(
        "coordinator",
        "half records that a stranger writes under a group's name",
        "The group is asked, answers rollback, and is not locked out.",
        ("unit/test_ledger_limits.py::test_records_that_a_stranger_invents_do_not_lock_a_group_out_that_answers",),
    ),
    Row(
        "coordinator",
        "kill -9 at any step",
        "No loss, no duplicate; a successor takes over.",
        (
            _KILLS,
            _SAFETY,
            _CHAOS,
            "integration/kafka/test_overview.py::test_after_a_coordinator_was_killed_it_is_what_is_neither_rolled_back_nor_visible",
            "unit/test_ledger_restart.py::test_a_batch_whose_answer_is_lost_is_there_or_is_made_again",
        ),
    ),
    Row(
        "coordinator",
        "frozen beyond its session, then goes on",
        "It is fenced and writes nothing.",
        (
            _ZOMBIE,
            _SAFETY,
            _CHAOS,
            "contract/test_offsets.py::test_a_stale_generation_is_refused_and_stores_nothing",
            "contract/test_fencing.py::test_a_fenced_writers_commit_is_refused_and_its_records_stay_hidden",
        ),
    ),
    Row(
        "coordinator",
        "frozen inside a Kafka transaction",
        "Readers wait no longer than its time-out, or until a successor fences it.",
        (
            _ZOMBIE,
            _SAFETY,
            _CHAOS,
            "contract/test_isolation.py::test_a_transaction_that_hangs_is_aborted_by_the_broker_and_its_writer_fenced",
        ),
    ),
    Row(
        "coordinator",
        "two with one transactional id",
        "The older one is fenced, nothing is damaged.",
        (
            "contract/test_fencing.py::test_a_fenced_writers_next_record_is_refused",
            "contract/test_fencing.py::test_an_idle_writer_that_was_fenced_finds_out_in_its_next_kafka_transaction",
            "simulation/test_guards.py::test_a_world_is_clean_with_a_guard_and_red_without",
        ),
    ),
    Row(
        "coordinator",
        "many join and leave all the time",
        "Work goes on; nothing is doubled; half and op are shared alike.",
        (
            _STORM,
            _SAFETY,
            _CHAOS,
            "contract/test_groups.py::test_members_share_two_topics_alike_in_runs",
            "unit/test_memory_groups.py::test_every_partition_has_one_member_and_equal_topics_are_shared_alike",
        ),
    ),
    Row(
        "coordinator",
        "a batch that takes longer than the group waits",
        "It loses its share, gives up and starts over.",
        (
            _SAFETY,
            "unit/test_memory_kafka.py::test_a_member_whose_client_runs_keeps_its_share_without_reading_until_the_poll_interval",
            "unit/test_memory_groups.py::test_who_does_not_join_again_in_time_is_left_out_although_it_beats",
        ),
        "Not on a real broker: its poll interval is five minutes.",
    ),
    Row(
        "coordinator",
        "a Kafka transaction takes longer than the broker lets it live, because bytes are slow",
        "The next ones are half as large each, until one goes through. A transaction that takes longer alone is parked.",
        (
            "unit/test_shrinking.py::test_after_a_kafka_transaction_that_the_broker_ended_for_its_length_fewer_go_at_once",
            "unit/test_slow_transactions.py::test_a_committed_transaction_that_takes_too_long_alone_is_parked_and_stops_no_other",
            "unit/test_slow_transactions.py::test_an_undecided_transaction_that_takes_too_long_is_on_doubt_by_its_places_alone",
            "simulation/test_unkind.py::test_promises_hold_in_an_unkind_cluster",
            "simulation/test_unkind.py::test_a_fault_that_costs_showed_does_not_come_back",
        ),
        "Not on a real broker.",
    ),
    Row(
        "coordinator",
        "fenced by the broker while it has nothing to do",
        "Its writer is replaced, and the group is asked first whether the partitions are still its own.",
        (
            "contract/test_whole.py::test_a_writer_that_was_fenced_while_it_was_idle_is_replaced_without_a_word",
            "contract/test_offsets.py::test_a_publisher_that_was_fenced_because_the_group_went_on_writes_nothing",
        ),
    ),
    Row(
        "coordinator",
        "restarted again and again in a partition to which nothing comes",
        "Transactions there grow old all the same: the time is stored with the offsets.",
        (
            "unit/test_coordinator_time.py::test_a_quiet_partition_grows_old_however_often_its_coordinator_is_restarted",
            "unit/test_coordinator_time.py::test_a_quiet_partition_grows_old_although_its_coordinator_rebuilds_every_half_minute",
            "unit/test_coordinator_time.py::test_a_stored_time_that_no_clock_vouches_for_counts_when_it_comes",
        ),
    ),
    Row(
        "coordinator",
        "retention empties its half or op, behind a marker of a Kafka transaction",
        "What it stored stands behind the marker; a successor begins there.",
        (
            "unit/test_strangers_markers.py::test_retention_that_takes_a_strangers_marker_stops_no_successor",
            "unit/test_strangers_markers.py::test_retention_that_takes_the_marker_of_a_policys_line_stops_no_successor",
        ),
        "Not on a real broker: a consumer's test shows there that retention takes markers.",
    ),
    Row(
        "coordinator",
        "restarted while transactions on doubt are asked about again and again",
        "What it reads of doubt is bounded: the oldest summaries are written again in time.",
        ("unit/test_ledger_doubt.py::test_questions_alone_do_not_lengthen_what_a_restart_reads_of_doubt",),
    ),
    Row(
        "coordinator",
        "one transaction larger than its limit, of a producer that is not ours",
        "It is parked with the reason `limit`, and is never in memory whole.",
        ("unit/test_coordinator_bounds.py::test_a_transaction_beyond_the_limit_is_never_in_memory_whole",),
    ),
    Row(
        "coordinator",
        "many second copies of half records of transactions on doubt",
        "One Kafka transaction stays within its limit; no copy is taken for a new record, also after a crash.",
        (
            "unit/test_ledger_bytes.py::test_what_joins_transactions_on_doubt_is_bounded",
            "unit/test_ledger_bytes.py::test_a_crash_while_half_is_left_takes_no_second_copy_for_new",
            "unit/test_ledger_restart.py::test_a_restart_while_a_second_copy_still_drives_others_out_of_half_forwards_nothing_twice",
        ),
    ),
    Row(
        "coordinator",
        "short of memory",
        "What it keeps is bounded; it is fetched again when it is needed.",
        (
            _SAFETY,
            "unit/test_ledger_half.py::test_content_that_was_dropped_is_fetched_when_it_is_needed",
            "unit/test_ledger_half.py::test_settled_transactions_do_not_pile_up_behind_an_open_one",
            "unit/test_ledger_held.py::test_a_key_with_very_many_waits_on_doubt",
            "unit/test_quick_path.py::test_the_headers_remembered_for_the_quick_way_are_bounded",
            "unit/test_ledger_bytes.py::test_what_a_second_copy_drives_out_of_half_is_bounded",
            "unit/test_ledger_bytes.py::test_what_stands_on_doubt_counts_whole_after_a_restart",
        ),
        "No process runs under a limit of the operating system; an end by that limit is a kill -9 like any other.",
    ),
    Row(
        "coordinator",
        "an exception in users' code",
        "It comes out as it was, and decides nothing.",
        (
            "unit/test_producer_futures.py::test_what_the_local_transaction_raises_is_raised_as_it_was_and_nothing_is_decided",
            "unit/test_producer_encoding.py::test_a_serializers_own_exception_comes_out_as_it_is",
        ),
        "Coordinators call no users' code.",
    ),
    Row(
        "coordinator",
        "its own disk is full",
        "It keeps forwarding, or stops loudly.",
        (),
        "It writes no file: what it knows is in Kafka. Its log goes to the standard error stream.",
    ),
)

CONSUMER = (
    Row(
        "consumer",
        "kill -9 while it handles a message",
        "It comes again, with its attempts; the inbox makes it once.",
        (
            _PROCESS + "test_attempts_survive_kill_9_and_the_last_one_makes_a_dead_letter",
            _PROCESS + "test_what_was_stored_is_not_handled_again_after_kill_9",
            _CONSUMERS,
            _CHAOS,
        ),
    ),
    Row(
        "consumer",
        "a handler's local transaction loses the inbox's row: a deadlock, a rollback, and the handler goes on",
        "The commit is refused; the message comes again and takes effect once.",
        (
            _INBOX + "test_what_is_done_behind_a_swallowed_deadlock_is_not_committed",
            _INBOX + "test_what_is_done_behind_a_conflict_that_rolled_back_is_not_committed",
            _INBOX + "test_what_is_done_again_after_a_rollback_is_not_committed",
            _INBOX + "test_what_is_done_again_after_a_rollback_is_not_committed_in_the_loop",
            _INBOX + "test_what_is_done_behind_the_rows_savepoint_is_not_committed_without_it",
        ),
        "Statements that SQLAlchemy does not see.",
    ),
    Row(
        "consumer",
        "a handler never comes back",
        "Its attempt fails at its deadline; another worker goes on; what it says later has no effect.",
        (
            _HUNG + "test_a_hung_handler_fails_its_attempt_and_delays_its_own_key_alone",
            _HUNG + "test_a_process_that_hangs_is_killed_and_its_neighbours_are_charged_with_nothing",
            _HUNG + "test_a_coroutine_that_ignores_its_cancellation_fails_its_attempt",
            _HUNG + "test_what_a_hung_handler_says_later_has_no_effect",
            _CONSUMERS,
        ),
        "A thread or task that was given up runs on beside the next attempt (docs/howto/consumers.md says what may run twice).",
    ),
    Row(
        "consumer",
        "a handlers' process that hangs before it begins a message",
        "It is killed after 60 s, and another one starts; no message is charged.",
        ("integration/test_process_pool.py::test_a_process_that_never_begins_is_replaced_and_no_message_is_charged",),
    ),
    Row(
        "consumer",
        "a handlers' process that is killed before it begins a message",
        "The first message that it was given is charged with an attempt, and no other.",
        (
            "integration/test_process_pool.py::test_of_a_chunk_that_a_process_did_not_begin_only_the_first_message_is_charged",
        ),
    ),
    Row(
        "consumer",
        "retention removes the dead letters of parked keys, and no more keys can be parked",
        "Those keys are released, and the partition goes on.",
        (
            "contract/test_parked_for_good.py::test_keys_whose_dead_letters_are_gone_hold_up_no_partition",
            "unit/test_key_queues_limits.py::test_a_parked_key_without_dead_letters_gives_its_place_to_another_one",
        ),
    ),
    Row(
        "consumer",
        "a coroutine handler stops the event loop",
        "What was not called yet is charged with no attempt, and begins only if it still may.",
        (
            "contract/test_stopped_loops.py::test_what_waits_behind_a_stopped_loop_is_charged_with_no_attempt",
            "contract/test_stopped_loops.py::test_behind_an_answered_pause_no_coroutine_begins",
        ),
    ),
    Row(
        "consumer",
        "a handler sets the event that tells of the loss of its lease",
        "Its attempt fails, and the queue goes on.",
        (
            "contract/test_unkind_results.py::test_a_handler_that_changes_the_event_of_its_lease_fails_and_stops_no_queue",
        ),
    ),
    Row(
        "consumer",
        "a handler changes the headers that it was given",
        "The next attempt, the inbox and the dead letter have those of the message.",
        (
            "contract/test_unkind_results.py::test_what_a_handler_does_to_headers_changes_no_later_attempt_and_no_dead_letter",
        ),
    ),
    Row(
        "consumer",
        "kill -9, or frozen without its processes, while these handle messages",
        "They end the message that they handle, and begin no other beside the next owner.",
        (
            "integration/test_process_pool.py::test_a_process_begins_no_message_after_its_consumer_was_killed",
            "integration/test_process_pool.py::test_a_process_begins_no_message_while_its_consumer_is_frozen",
        ),
    ),
    Row(
        "consumer",
        "its program ends without `close()`, and handlers run in processes",
        "The processes are killed, and the program ends.",
        ("integration/test_process_pool.py::test_a_program_that_does_not_close_its_consumer_ends",),
    ),
    Row(
        "consumer",
        "handlers' processes die, one after the other, thousands of times",
        "Nothing of them stays open in the consumer.",
        ("integration/test_process_pool.py::test_nothing_of_a_process_that_died_stays_open",),
    ),
    Row(
        "consumer",
        "bytes that its deserializer cannot read, or a schema registry that does not answer",
        "A dead letter, and its key goes on; without an answer, a failed attempt that is repeated.",
        (
            "contract/test_schema_registry.py::test_what_nobody_can_read_is_a_dead_letter_and_harms_nobody_else",
            "contract/test_schema_registry.py::test_a_registry_that_does_not_answer_makes_no_dead_letters",
        ),
        "When the registry stays away until the attempts are used up, its messages are dead letters.",
    ),
    Row(
        "consumer",
        "a key that fails for hours, with many messages behind it",
        "It delays itself alone; what ended between its messages is not handled again after a restart.",
        (
            "contract/test_consumers.py::test_a_key_whose_messages_outgrow_the_metadata_delays_itself_alone_also_over_a_restart",
            "unit/test_key_queues_limits.py::test_a_key_that_fails_delays_itself_alone_however_many_of_its_records_wait",
            "simulation/test_consumers.py::test_they_keep_them_where_stored_progress_names_the_keys_that_wait",
        ),
        "Beyond 28 such keys, or `record_count_max` messages, the partition pauses (docs/howto/consumers.md).",
    ),
    Row(
        "consumer",
        "a whole batch of one key fails, or more keys fail than there are places for counts of attempts",
        "Other keys are tried again in time; what is rejected becomes a dead letter.",
        (
            "unit/test_one_key_leaves_places.py::test_a_failed_batch_of_one_key_leaves_room_for_the_attempts_of_others",
            "unit/test_one_key_leaves_places.py::test_no_message_of_a_large_batch_is_tried_again_before_its_attempt_is_stored",
            "unit/test_one_key_leaves_places.py::test_a_rejected_message_is_a_dead_letter_however_many_keys_fail",
            "unit/test_one_key_leaves_places.py::test_a_rejected_batch_is_dead_letters_however_many_keys_fail",
        ),
        "Beyond 117 failing keys the others wait for a place (docs/howto/consumers.md).",
    ),
    Row(
        "consumer",
        "slow, rebalances",
        "No loss; what ended and was stored is not handled again.",
        (
            "contract/test_consumer_ends.py::test_when_the_group_shares_anew_what_runs_ends_and_is_not_repeated",
            "contract/test_consumer_ends.py::test_a_slow_handler_never_costs_the_membership",
            _CONSUMERS,
            _CONSUMERS_END,
        ),
    ),
    Row(
        "consumer",
        "frozen beyond its session or its lease, then goes on",
        "No handler begins under a lease that can be over; a stale write is refused by its token.",
        (
            "e2e/test_stale_consumer.py::test_what_a_consumer_writes_that_slept_past_its_lease_is_refused",
            _CONSUMERS,
            _CHAOS,
            "simulation/test_consumer_guards.py::test_a_world_of_consumers_is_clean_with_a_guard_and_red_without",
        ),
    ),
    Row(
        "consumer",
        "dies, or is cut off, while it writes a dead letter",
        "The dead letter stands there once, with its offset; a successor ends what was left open.",
        (
            _CONSUMERS,
            "simulation/test_consumer_guards.py::test_a_world_of_consumers_is_clean_with_a_guard_and_red_without",
            _CHAOS,
        ),
    ),
    Row(
        "consumer",
        "the last dead letter of a parked key is dropped while an earlier one is open, or retention takes a failed one",
        "The key stays parked until the earlier one has ended; one that is gone holds back no other.",
        (
            "contract/test_letter_choice.py::test_the_last_of_a_parked_key_is_not_dropped_while_an_earlier_one_is_open",
            "contract/test_letter_choice.py::test_the_last_of_a_parked_partition_is_not_dropped_while_one_of_another_key_is_open",
            "unit/test_key_queues_replay.py::test_a_key_stays_parked_at_a_failed_replay_when_its_last_dead_letter_is_dropped",
            "unit/test_key_queues_replay.py::test_a_failed_dead_letter_that_retention_took_holds_back_no_later_one_of_its_key",
        ),
    ),
    Row(
        "consumer",
        "more dead letters are replayed at once than fit into memory",
        "The requests wait, in order; their dead letters are read when others have ended.",
        (
            "contract/test_consumer_ends.py::test_a_replay_of_many_large_dead_letters_stays_within_its_share_of_the_limit",
            "contract/test_consumer_ends.py::test_a_request_that_makes_room_for_parked_keys_is_read_behind_one_that_waits_for_it",
            "unit/test_key_queues_limits.py::test_requests_are_needed_where_keys_to_be_parked_hold_all_places_for_counts",
        ),
        "While an operator's pause lasts all of them are read (docs/howto/limits.md).",
    ),
    Row(
        "consumer",
        "a partition of its dead letters takes nothing",
        "Its dead letters wait with their keys and are tried ever more seldom; all others go on, and what ended is stored.",
        (
            "contract/test_unwritten_dead_letters.py::test_a_dead_letter_that_cannot_be_written_now_delays_only_its_key",
            "contract/test_unwritten_dead_letters.py::test_requests_are_answered_beside_a_dead_letter_that_cannot_be_written",
            "unit/test_ends_shrink.py::test_ends_that_cannot_be_written_wait_ever_longer_and_hold_up_no_other_queue",
        ),
        "Not on real brokers. While it is tried all keys wait, and a successor of a consumer that dies just then waits (docs/howto/dead-letters.md).",
    ),
    Row(
        "consumer",
        "a dead letter that is to be handled again cannot be read",
        "The requests of its partition wait and are tried ever more seldom; all keys go on.",
        (
            "contract/test_unwritten_dead_letters.py::test_a_dead_letter_that_cannot_be_read_again_delays_only_its_replay",
        ),
        "Not on real brokers. While it is tried all keys wait (docs/howto/dead-letters.md).",
    ),
    Row(
        "consumer",
        "no transaction coordinator answers when its first dead letter is to be written",
        "That dead letter waits with its key and is tried ever more seldom; all others go on, and what ended is stored.",
        (
            "contract/test_unwritten_dead_letters.py::test_a_dead_letter_delays_only_its_key_while_no_transaction_coordinator_answers",
        ),
        "Once it has written, and after a restart, the consumer waits until one answers (docs/howto/dead-letters.md).",
    ),
    Row(
        "consumer",
        "a dead letter, or its key alone, is too large for its topic",
        "It is kept without its content, and then without its key.",
        (
            "contract/test_refused_dead_letters.py::test_a_dead_letter_that_its_topic_refuses_is_kept_without_content_and_nothing_runs_twice",
            "contract/test_refused_dead_letters.py::test_a_dead_letter_whose_key_is_too_large_for_its_topic_is_kept_without_it",
            "contract/test_refused_dead_letters.py::test_a_giant_key_that_compresses_well_stops_nobody_else",
        ),
        "A parked key that is left out cannot be named by a request.",
    ),
    Row(
        "consumer",
        "the machine cannot start a thread for handlers just then",
        "Other threads go on with what waits, and it is tried again.",
        ("contract/test_consumer_kinds.py::test_a_thread_that_cannot_be_started_just_then_ends_no_consumer",),
    ),
    Row(
        "consumer",
        "a handlers' process dies, and the machine cannot start another one just then",
        "Its work waits, and the next try starts one.",
        ("contract/test_consumer_kinds.py::test_a_process_that_cannot_be_started_just_then_stops_no_key_for_good",),
    ),
    Row(
        "consumer",
        "writes its lease again in a new lock log, and freezes",
        "Its token was stored before: the next holder's is higher.",
        (
            "contract/test_tokens_across_logs.py::test_no_two_holders_get_one_token_when_the_first_one_wrote_its_lease_again",
        ),
    ),
    Row(
        "consumer",
        "dead letters together take longer than a Kafka transaction may",
        "Fewer go at once, of each queue in turn, until they go through.",
        (
            "unit/test_ends_shrink.py::test_dead_letters_that_take_too_long_together_go_fewer_at_once",
            "unit/test_ends_shrink.py::test_no_queue_waits_for_all_others_while_few_go_at_once",
            "unit/test_ends_shrink.py::test_dead_letters_of_one_kafka_transaction_are_bounded_in_bytes",
            "contract/test_unwritten_dead_letters.py::test_a_parked_keys_dead_letters_are_written_however_large_they_are_together",
            "contract/test_unwritten_dead_letters.py::test_a_long_parked_key_does_not_keep_the_attempts_of_other_partitions_from_being_stored",
        ),
        "Not on a real broker. No lease is renewed while dead letters are read again for a replay.",
    ),
    Row(
        "consumer",
        "dies behind any of its stores",
        "Order, attempts, dead letters and leases are as without it.",
        (
            "simulation/test_every_restart.py::test_a_consumer_may_die_behind_any_of_its_stores",
            "simulation/test_unkind.py::test_consumers_keep_their_promises_in_an_unkind_cluster",
        ),
    ),
    Row(
        "consumer",
        "brokers are away when it starts, or when it must take its leases anew",
        "It asks again until `start_timeout`, later for as long as it runs.",
        (
            "contract/test_consumer_outages.py::test_a_broker_that_is_away_just_when_a_consumer_starts_is_waited_for",
            "contract/test_consumer_outages.py::test_a_lock_log_that_cannot_be_read_again_just_then_does_not_end_the_consumer",
            _CHAOS,
        ),
    ),
    Row(
        "consumer",
        "retention empties its partition, behind a marker of a Kafka transaction",
        "What it stored stands behind the marker; nothing is lost, and no instance ends.",
        ("integration/kafka/test_consumer_retention.py::test_retention_that_empties_a_partition_ends_no_consumer",),
        "Killed within the half second between its last message and its next fetch, and started again only after retention: it has not heard of "
        "the marker, takes it for a lost message, and ends. Nothing is lost; `txlayer consumer reset` lets it go on.",
    ),
    Row(
        "consumer",
        "retention overtakes it",
        "It ends, and names the reset of its own group.",
        (
            "integration/kafka/test_consumer_retention.py::test_a_consumer_that_retention_overtook_is_told_how_to_reset_its_own_group",
            "integration/kafka/test_consumer_retention.py::test_messages_that_retention_took_before_a_restart_are_told_as_lost",
        ),
    ),
    Row(
        "consumer",
        "a store of its offsets arrives late, behind a newer one of the same member",
        "The next store mends it; a crash before that repeats what had ended.",
        (),
        "Nothing in the protocol fences it: a known limit (simulation.md).",
    ),
    Row(
        "consumer",
        "an assignment and a revocation wait together when a member of a group ends",
        "It hears both before its client is closed; else the client may freeze the process.",
        (
            "unit/test_group_reader_close.py::test_callbacks_that_wait_behind_records_are_called_before_the_client_closes",
        ),
        "By a client that is not real: the real one freezes in a fraction of a millisecond (docs/explanation/kafka.md).",
    ),
    Row(
        "consumer",
        "a static member restarts within its session",
        "It has its partitions back; the others go on with theirs, and no lease of theirs changes.",
        (
            "e2e/test_consumer_operating.py::test_a_static_member_has_its_partitions_back_without_a_rebalance",
            "e2e/test_consumer_operating.py::test_what_a_static_member_has_ended_is_stored_when_it_closes",
            "unit/test_group_reader_close.py::test_a_static_member_gives_its_share_back_and_leaves_no_group",
        ),
    ),
    Row(
        "consumer",
        "reads uncommitted by mistake",
        "It sees what may never count; that is documented.",
        ("contract/test_isolation.py::test_a_reader_of_what_is_not_committed_sees_it_at_once",),
        "No command can see from outside how a consumer reads.",
    ),
)

BROKER = (
    Row(
        "broker",
        "kill -9, also of the one that leads the group or the Kafka transactions",
        "Asked again inside; a pause, no loss, no duplicate.",
        (
            _BROKER,
            _CHAOS,
            _SAFETY,
            "integration/kafka/test_producer_faults.py::test_a_broker_that_dies_makes_unknown_outcomes_in_bounds_and_everything_goes_on_after_it",
            "integration/kafka/test_local_broker.py::test_three_brokers_lose_one_and_go_on",
        ),
    ),
    Row(
        "broker",
        "killed, and a client of a producer or responder was told that it is the controller",
        "Another client asks within 5 s; a responder ends within its time.",
        (
            "unit/test_producer_questions.py::test_a_client_that_gets_no_answer_is_not_waited_for_as_long_as_a_start_may_take",
            "unit/test_producer_questions.py::test_whoever_closes_waits_for_one_question_alone",
        ),
        "By injected time-outs alone; on three real brokers measured by hand (docs/explanation/kafka.md).",
    ),
    Row(
        "broker",
        "frozen for seconds, requests sent again late",
        "The producer is replaced; no Kafka transaction is torn.",
        (
            _CHAOS,
            _SAFETY,
            "contract/test_faults.py::test_a_late_end_commits_a_part_of_the_writers_next_kafka_transaction",
            "integration/kafka/test_coordinator_guard.py::test_a_late_end_of_an_earlier_kafka_transaction_does_not_end_a_later_one",
            "integration/kafka/test_coordinator_guard.py::test_late_offsets_of_an_earlier_kafka_transaction_do_not_replace_newer_ones",
            "integration/kafka/test_producer_faults.py::test_an_interrupt_ends_a_wait_for_a_broker_that_hangs",
        ),
    ),
    Row(
        "broker",
        "all of them down",
        "Producers wait with bounded buffers and say so; coordinators go on by themselves.",
        (
            _BROKER,
            _SAFETY,
            _LIVENESS,
            "integration/kafka/test_producer_faults.py::test_no_broker_at_the_start_is_told_within_its_time",
            "integration/kafka/test_producer_faults.py::test_close_gives_up_within_its_time_when_the_broker_is_away",
            "unit/test_memory_kafka.py::test_brokers_that_are_down_answer_nobody_and_take_no_session_with_them",
        ),
        "15 seconds, not 60; `E2E_BROKER_AWAY_S` makes it longer.",
    ),
    Row(
        "broker",
        "fewer replicas in sync than must be",
        "Refused and asked again, then given up; no loss. A target is held and stops no other.",
        (
            _SAFETY,
            "integration/kafka/test_too_few_in_sync.py::test_a_topic_with_too_few_replicas_in_sync_is_held_and_the_others_go_on",
            "unit/test_coordinator_refusals.py::test_a_topic_with_too_few_replicas_in_sync_is_held_and_the_others_go_on",
            "unit/test_coordinator_refusals.py::test_what_was_held_for_time_outs_is_tried_again_and_forwarded_in_order",
            "unit/test_coordinator_refusals.py::test_a_former_kafka_transaction_that_cannot_end_yet_stops_no_successor",
        ),
        "Of topics of the namespace itself by injected answers alone.",
    ),
    Row(
        "broker",
        "its disk is full",
        "After the repair everything goes on.",
        (),
        "Not built: it needs a file system of a fixed size, which takes rights that a test has not.",
    ),
    Row(
        "broker",
        "a topic is deleted; partitions are added to one of half and op",
        "The namespace stops loudly; a target that is gone holds its transactions until it is back.",
        (
            _TARGETS + "test_a_topic_deleted_between_prepare_and_commit_holds_until_it_is_back",
            "integration/kafka/test_topics.py::test_half_and_op_with_unequal_partitions_are_reported_and_left",
            "integration/kafka/test_producer_refusals.py::test_half_and_op_of_unlike_partition_counts_are_refused",
            "contract/test_topics.py::test_a_topic_that_is_deleted_under_its_writer_ruins_its_kafka_transaction",
        ),
        "Partitions that are added while a coordinator runs: it looks at every new assignment, which no test changes yet.",
    ),
    Row(
        "broker",
        "a real topic is given more partitions while a coordinator runs",
        "It asks again every five minutes; messages of one ordering key then meet in one partition.",
        (
            "unit/test_coordinator_refusals.py::test_messages_of_one_ordering_key_meet_in_one_partition_a_day_after_the_topic_was_widened",
        ),
        "Until then, messages without a key go by the old count.",
    ),
    Row(
        "broker",
        "an internal topic is not available",
        "Asked again with a pause, and an alarm.",
        (_SAFETY, _CHAOS),
        "By injected answers, and by killing whoever leads it; the alarm is a log line until there are metrics.",
    ),
)

NETWORK = (
    Row(
        "network",
        "connections cut",
        "As when the other side dies: no loss, no duplicate.",
        (
            _CHAOS,
            _SAFETY,
            "contract/test_whole.py::test_a_coordinator_that_is_cut_off_is_replaced_and_nothing_is_lost_or_doubled",
            "contract/test_faults.py::test_a_member_that_is_cut_off_loses_its_session_and_its_share",
            "contract/test_faults.py::test_a_lost_answer_is_asked_for_again_without_a_word_and_nothing_is_doubled",
        ),
        "Not between brokers: their replication is Kafka's own.",
    ),
    Row(
        "network",
        "one direction lost, connections half open",
        "A time-out, a new connection, a bounded pause.",
        (_CHAOS, _SAFETY),
        "Bytes are held back by a proxy; no packet filter is used.",
    ),
    Row(
        "network",
        "loss of packets, latency, little bandwidth",
        "Slower and right.",
        (_CHAOS, _SAFETY),
        "Latency by a proxy; neither loss of packets (the kernel repeats them) nor bandwidth.",
    ),
    Row(
        "network",
        "a broker's name or advertised address is wrong",
        "A clear line in the log.",
        (
            "integration/kafka/test_local_broker.py::test_a_proxied_listener_leads_its_clients_to_the_proxy",
            "integration/kafka/test_admin.py::test_a_broker_that_is_down_is_told_with_address_and_time",
        ),
        "An address that is advertised and cannot be reached shows as a broker that is down.",
    ),
)

CLOCK = (
    Row(
        "clock",
        "a coordinator's is wrong or jumps back",
        "It decides nothing; more than a minute behind the brokers', nothing that time brings about happens until it is mended, and a log line says so.",
        (
            _SAFETY,
            "unit/test_coordinator_time.py::test_the_coordinators_own_wrong_clock_decides_nothing",
            "unit/test_coordinator_time.py::test_a_clock_that_was_set_right_is_believed_without_a_new_record",
            "unit/test_memory_threads.py::test_the_brokers_clock_can_be_moved_and_the_clients_cannot",
            "unit/test_ledger_restart.py::test_the_newest_time_does_not_go_back",
            "unit/test_tx_rows.py::test_a_time_is_said_in_utc_and_a_broken_clock_breaks_nothing",
        ),
        "Wall clocks of the simulation are a day off until everything heals, and their rates differ; a jump while a real process runs is not tested.",
    ),
    Row(
        "clock",
        "a broker's is hours ahead, for one record or for long",
        "Each partition has its own time. What is more than a minute ahead of the coordinator's clock is reported and decides nothing.",
        (
            "unit/test_coordinator_time.py::test_one_record_from_the_future_rolls_nothing_back",
            "unit/test_coordinator_time.py::test_one_record_from_the_future_holds_up_nobody_behind_it",
            "unit/test_coordinator_time.py::test_records_from_the_future_are_counted",
        ),
        "A leader whose clock is hours behind makes its transactions look older once another leads.",
    ),
    Row(
        "clock",
        "the next leader's is hours behind",
        "What it appends is as young as the newest half record before it: nobody is given up in the moment in which he comes.",
        ("unit/test_ledger_histories.py::test_a_broker_whose_clock_is_far_behind_makes_nobody_old",),
        "A restart while it leads, before it has moved to doubt what it appended.",
    ),
    Row(
        "clock",
        "half or op have the timestamps of their producers",
        "A coordinator refuses to start; what was written so before tells no time.",
        (
            "unit/test_coordinator_time.py::test_a_topic_whose_producers_stamp_its_records_is_refused_at_start",
            "unit/test_coordinator_time.py::test_records_that_their_producers_stamped_decide_nothing",
        ),
    ),
)

CHECK = (
    Row(
        "check handler",
        "slow, silent, garbage, unknown, changes its mind",
        "Unknown, never a decision; limits, then the policy.",
        (
            "integration/kafka/test_responder.py::test_only_a_clear_word_decides_and_every_answer_names_its_question",
            "unit/test_responder.py::test_one_slow_call_does_not_hold_up_the_others",
            "unit/test_responder.py::test_a_late_result_is_dropped",
            "unit/test_ledger_checks.py::test_contrary_answers_of_two_instances_the_first_in_the_log_wins",
            _CHECK_BACK + "test_after_check_max_unknown_answers_it_is_parked_and_a_later_commit_settles_it",
        ),
    ),
    Row(
        "check handler",
        "a question that the check topic refuses as too large",
        "It names no topics then, or is not asked; its partition goes on.",
        (
            "integration/kafka/test_check_back.py::test_a_question_larger_than_its_topic_allows_names_no_topics_and_stops_nobody",
            "unit/test_ledger_checks.py::test_a_question_that_its_topic_refuses_names_no_topics_and_stops_nobody",
            _QUESTIONS + "test_the_size_of_a_question_that_was_refused_is_tried_again_after_ten_minutes",
        ),
    ),
    Row(
        "check handler",
        "the check topic takes nothing: no leader, too few replicas, no right",
        "Questions wait, with a try after growing pauses; everything else goes on.",
        (
            _QUESTIONS + "test_while_the_check_topic_refuses_questions_wait_and_nothing_else_does",
            _QUESTIONS + "test_a_check_topic_that_refuses_is_tried_after_growing_pauses",
        ),
    ),
    Row(
        "check handler",
        "no instance of a group for hours",
        "Open transactions are kept, and asked about once when somebody comes.",
        (
            _CHECK_BACK + "test_a_group_without_members_is_not_asked_until_somebody_comes",
            "unit/test_checks.py::test_after_a_night_of_absence_each_is_asked_once_at_the_groups_rate",
            "unit/test_ledger_doubt.py::test_old_doubt_records_are_written_again_before_a_restart_becomes_slow",
        ),
    ),
)

DATA = (
    Row(
        "data",
        "garbage: no header, an unknown version, not UTF-8, no id, a thousand headers",
        "Kept aside with its origin; others pass; nobody ends in a loop of crashes.",
        (
            _INPUT + "test_garbage_on_half_is_kept_aside_with_its_bytes",
            _INPUT + "test_garbage_on_op_is_kept_aside",
            _INPUT + "test_a_wrong_line_among_right_ones_is_kept_aside_alone",
            "fuzz/test_whole_system.py::test_garbage_on_every_topic_stops_no_coordinator",
            _ANYTHING,
            _HOSTILE + "test_a_header_whose_name_is_no_text_stops_nobody",
            _HOSTILE + "test_a_thousand_headers_are_forwarded_as_they_are",
            "unit/test_codec_garbage.py::test_what_is_out_of_form_says_why_word_for_word",
            _SAFETY,
        ),
    ),
    Row(
        "data",
        "a message that its topic refuses, or too large with its headers",
        "Found, parked with its reason; the rest goes on.",
        (
            _TARGETS + "test_a_record_that_the_broker_alone_refuses_is_found_and_parked_and_the_rest_goes_on",
            _TARGETS + "test_a_message_larger_than_its_topic_allows_is_parked_before_it_is_tried",
            "unit/test_batch.py::test_a_bad_line_is_found_within_log2_of_the_run_whatever_its_place",
            "unit/test_coordinator_refusals.py::test_a_record_that_is_refused_with_an_unlisted_code_is_found_and_the_rest_goes_on",
            "unit/test_coordinator_refusals.py::test_an_answer_that_nobody_knows_parks_nothing_when_it_passes",
            "unit/test_refusals.py::test_a_code_that_nobody_knows_cuts_nothing_on_doubt_before_it_came_again_and_again",
            "unit/test_coordinator_refusals.py::test_a_message_that_its_topic_takes_by_now_is_not_parked_as_too_large",
            "unit/test_coordinator_bounds.py::test_the_largest_message_that_a_producer_takes_is_forwarded",
            "unit/test_coordinator_refusals.py::test_a_suspected_partition_that_became_quiet_slows_no_other_down",
            "unit/test_coordinator_refusals.py::test_a_suspected_partition_that_went_to_another_coordinator_slows_no_other_down",
            _SAFETY,
        ),
    ),
    Row(
        "data",
        "one id twice",
        "Two transactions.",
        (
            _INPUT + "test_two_attempts_with_one_id_know_nothing_of_each_other",
            "unit/test_ledger_half.py::test_a_record_that_stands_there_twice_is_forwarded_once",
            "unit/test_overview_second_copies.py::test_a_look_ends_where_a_second_copy_drives_more_out_of_half_than_a_batch_takes",
            _SAFETY,
        ),
    ),
    Row(
        "data",
        "a second copy of a half record, near the first one or behind its commit",
        "It is known for a copy, before and after a restart, and every line about it has one effect.",
        (
            "unit/test_ledger_half.py::test_a_second_copy_of_one_that_waits_is_remembered",
            "unit/test_ledger_half.py::test_a_line_that_names_a_copy_behind_the_commit_has_one_effect_with_and_without_a_restart",
            "unit/test_ledger_half.py::test_many_that_end_after_a_restart_do_not_make_a_near_one_forgotten",
        ),
        "Further behind than `DISTANCE_MAX` it is taken for new (docs/howto/limits.md).",
    ),
    Row(
        "data",
        "very many names of real topics that half records invent",
        "Topics of committed transactions are asked about first; the rest is bounded.",
        ("unit/test_coordinator_bounds.py::test_names_that_half_records_invent_do_not_keep_a_real_topic_waiting",),
    ),
    Row(
        "data",
        "a line of another producer group",
        "It decides nothing, and operators and producers are told of no decision.",
        (
            "unit/test_history.py::test_a_line_of_another_producer_group_says_nothing",
            "contract/test_whole.py::test_a_result_tells_what_was_decided_where_another_word_came_first",
        ),
    ),
    Row(
        "data",
        "the target topic does not exist",
        "Refused by `send`; if it vanishes later, held until it is back.",
        (
            _TARGETS + "test_an_unknown_topic_holds_its_transaction_until_it_exists",
            "unit/test_producer_encoding.py::test_a_topic_that_does_not_exist_is_refused_and_asked_for_again",
            _SAFETY,
        ),
    ),
    Row(
        "data",
        "op without half, half without op, op read before half",
        "It waits by the half offset; nothing is guessed.",
        (
            _INPUT + "test_an_op_that_comes_before_its_half_record_waits_for_it",
            _INPUT + "test_an_op_beyond_the_end_of_half_is_given_up_and_stops_nobody",
            _INPUT + "test_an_op_that_names_another_half_record_does_not_count",
            "unit/test_ledger_aside.py::test_a_line_beyond_the_end_of_half_is_given_up_and_its_transaction_parked",
            "unit/test_ledger_aside.py::test_a_line_that_was_given_up_does_not_act_after_a_restart",
            "unit/test_ledger_aside.py::test_what_was_rolled_back_on_a_lines_word_alone_stays_so_when_its_half_record_comes",
            "unit/test_ledger_aside.py::test_a_line_that_was_given_up_does_not_decide_again_what_was_rolled_back_since",
            "unit/test_shard_waiting.py::test_the_lines_of_one_record_wait_once",
            "unit/test_coordinator_bounds.py::test_lines_that_name_nothing_stop_nothing_that_time_brings_and_hold_no_commit_for_long",
            _SAFETY,
        ),
    ),
    Row(
        "data",
        "null values, control characters, names that no topic can have",
        "Passed on, or kept aside; terminals show and do not obey them.",
        (
            _INPUT + "test_a_null_key_and_a_null_value_are_forwarded_as_they_are",
            _HOSTILE + "test_a_half_message_for_a_topic_that_cannot_be_stops_nobody",
            "unit/test_tx_rows.py::test_a_group_with_control_characters_and_markup_moves_no_cursor",
            _ANYTHING,
        ),
        "A small batch that unpacks to gigabytes is not tested: the client's `fetch` limits count packed bytes.",
    ),
)

AUTH = (
    Row(
        "rights",
        "the coordinator may not write a topic",
        "Its transactions are held, others pass; an alarm.",
        (
            _SAFETY,
            _LIVENESS,
            "unit/test_memory_kafka.py::test_a_denied_topic_is_denied_to_all",
            "integration/security/test_denied_topic.py::test_a_topic_that_may_be_described_and_not_written_is_held_and_the_others_go_on",
            "unit/test_coordinator_refusals.py::test_a_topic_that_may_be_described_and_not_written_is_held_and_seldom_tried",
        ),
        "The alarm is a log line.",
    ),
    Row(
        "rights",
        "wrong password, missing rights",
        "Told at the start, within seconds, by name.",
        (
            "integration/kafka/test_producer_faults.py::test_wrong_credentials_and_missing_rights_are_told_at_the_start",
            "integration/kafka/test_admin.py::test_wrong_credentials_are_told_at_once_and_end_with_5",
            "integration/kafka/test_admin.py::test_missing_rights_are_told_by_resource_and_operation",
        ),
        "Certificates (wrong authority, wrong name, expired) and a password that changes meanwhile are not tested.",
    ),
    Row(
        "rights",
        "throttled by a quota",
        "Slower; no storm of time-outs.",
        (_SAFETY,),
        "As slow answers only; no quota is set on a real broker.",
    ),
)

OPERATION = (
    Row(
        "operation",
        "many readers of metrics from one address, or very often",
        "A page is made once a second; that address loses its own oldest connections, and probes of others get in.",
        (
            "integration/test_metrics_server.py::test_an_address_with_many_connections_pushes_out_its_own_and_no_probe_of_another",
            "integration/test_metrics_server.py::test_a_page_is_made_once_a_second_however_often_and_in_whichever_form_it_is_asked_for",
        ),
    ),
    Row(
        "operation",
        "two versions in one group, a wrong setting, an older version again",
        "Unknown versions are kept aside or refused; a wrong setting ends the start.",
        (
            "unit/test_codec_garbage.py::test_options_of_later_versions_are_passed_over",
            "unit/test_stored.py::test_metadata_of_somebody_else_are_refused",
            "unit/test_doubt.py::test_an_unreadable_summary_is_counted_and_the_one_before_it_stays",
            "unit/test_config.py::test_an_unknown_name_is_refused_and_its_value_not_shown",
        ),
        "There is one version; two in one group come with the second.",
    ),
)

_SPARK_LEDGER, _SPARK_BRONZE = "spark/test_ledger.py::", "spark/test_bronze.py::"
_SPARK_SINK = "spark/test_sink.py::"

SPARK = (
    Row(
        "Spark",
        "the clock of the driver is ahead, or two runs begin in the same millisecond",
        "An epoch that is tried again by the same program is found; it is published once.",
        (
            "spark/test_sink_window.py::test_an_epoch_that_is_tried_again_is_found_although_the_clock_of_the_driver_is_ahead",
            _SPARK_SINK + "test_two_runs_that_begin_in_the_same_millisecond_publish_their_epoch_once",
        ),
        "A driver whose clock is ahead by most of `window` looks back less far at its start.",
    ),
    Row(
        "Spark",
        "bronze is killed at any step, also between its readers, while a ledger is made",
        "The ledger reads the cut of the last whole call; no fault is told that is none, and none stays.",
        (
            "spark/test_kills.py::test_a_ledger_beside_a_bronze_that_is_killed_says_nothing_that_is_not_so",
            _SPARK_LEDGER + "test_wherever_bronze_is_killed_a_ledger_says_nothing_that_is_not_so",
            _SPARK_LEDGER + "test_a_ledger_beside_bronze_that_goes_on_says_nothing_that_is_not_so",
            _SPARK_BRONZE + "test_a_job_killed_in_the_middle_of_a_batch_loses_and_repeats_nothing",
        ),
    ),
    Row(
        "Spark",
        "half records are read after what came of them",
        "What was an orphan is judged anew from every record of its transaction.",
        (_SPARK_LEDGER + "test_half_records_that_are_read_later_heal_what_came_before_them",),
    ),
    Row(
        "Spark",
        "a topic is shortened by retention, compacted, deleted, or ends behind a stranger's open Kafka transaction",
        "Bronze goes on; what may be missing is not judged, or open, and the report names it.",
        (
            _SPARK_BRONZE + "test_gaps_that_retention_left_are_noted_and_stop_nothing",
            _SPARK_BRONZE + "test_a_deleted_topic_and_a_gap_in_locks_stop_nothing",
            "spark/test_edges.py::test_what_an_open_kafka_transaction_hides_is_open_and_what_compaction_may_have_taken_is_not_judged",
            "spark/test_edges.py::test_what_is_lost_after_a_gap_was_seen_is_lost_also_where_nothing_tells_how_old_the_gap_is",
            "spark/test_edges.py::test_what_was_gone_of_an_added_partition_before_it_was_read_is_not_lost",
        ),
        "A system topic that was deleted and made anew stops bronze.",
    ),
    Row(
        "Spark",
        "a real topic is deleted and made anew, and is longer than it was",
        "Bronze knows it by Kafka's id of it and reads it from its beginning; a system topic that was made anew stops it.",
        ("spark/test_edges.py::test_a_topic_that_was_made_anew_and_is_longer_now_is_read_from_its_beginning",),
    ),
    Row(
        "Spark",
        "what belongs to one transaction is read in several runs, young or old, in any parts",
        "Run by run the ledger says what one run over everything says; what was parked stays when bronze forgets its day.",
        (
            "spark/test_run_by_run.py::test_run_by_run_the_ledger_says_of_a_case_what_one_run_says",
            "spark/test_run_by_run.py::test_random_histories_run_by_run",
            "spark/test_run_by_run.py::test_what_is_parked_as_incomplete_stays_in_the_ledger_when_bronze_forgets_its_day",
            "spark/test_run_by_run.py::test_a_phantom_of_an_old_time_stays_in_the_ledger_when_what_is_old_ends",
            "spark/test_edges.py::test_a_transaction_of_a_topic_that_was_not_read_is_judged_when_it_is",
        ),
    ),
    Row(
        "Spark",
        "a ledger is made twice at once, or on a cluster with other rules for what is written",
        "No row is doubled, and no record is passed over.",
        (
            "spark/test_run_by_run.py::test_of_two_runs_at_once_the_one_that_began_last_counts",
            "spark/test_run_by_run.py::test_a_run_that_is_done_again_doubles_nothing_whatever_the_session_says_of_overwriting",
            "spark/test_edges.py::test_what_a_cluster_says_of_the_file_that_ends_a_write_hides_nothing",
        ),
    ),
    Row(
        "Spark",
        "clocks that are wrong, times and counts of any size, values and keys that change places",
        "Ledger and `txlayer verify` say the same of it, and neither is stopped.",
        (
            "spark/test_two_judges.py::test_the_two_judges_say_the_same",
            "reference/test_verified.py::test_a_transaction_that_says_it_has_very_many_messages_does_not_stop_verify",
        ),
    ),
    Row(
        "Spark",
        "a history that was once judged wrongly, or any random one",
        "Ledger, `txlayer verify` and the reference model give one verdict, and the right one.",
        (
            "reference/test_cases.py::test_model_and_verify_give_a_case_its_right_verdict",
            "spark/test_against_model.py::test_the_ledger_gives_a_case_its_right_verdict_and_says_what_the_model_says",
            "spark/test_against_model.py::test_random_histories_are_judged_alike",
            "reference/test_differential.py::test_the_judges_agree_on_fresh_histories",
        ),
    ),
    Row(
        "Spark",
        "kill -9 of a job that publishes, at any step",
        "Its epoch is published once.",
        (
            "spark/test_sink_kills.py::test_a_run_killed_at_a_step_and_started_again_publishes_its_epoch_once",
            "spark/test_sink_kills.py::test_a_stream_that_lost_its_note_of_a_batch_publishes_it_once",
        ),
    ),
    Row(
        "Spark",
        "a second copy of a task still writes, or a retried one has its rows in another order",
        "What was published is whole and in order; `spark.speculation` is refused.",
        (
            _SPARK_SINK + "test_a_second_copy_of_a_task_that_still_writes_hides_nothing",
            _SPARK_SINK + "test_a_task_that_is_retried_with_its_rows_in_another_order_mixes_nothing",
            _SPARK_SINK + "test_where_tasks_are_started_twice_nothing_is_published",
        ),
    ),
    Row(
        "Spark",
        "a service of another producer group uses the id of an epoch",
        "The epoch is refused; the service's transaction is neither rolled back nor taken for the epoch.",
        (
            _SPARK_SINK + "test_an_epoch_decides_no_transaction_of_another_producer_group_that_has_its_id",
            _SPARK_SINK + "test_an_epoch_is_not_skipped_for_what_another_producer_group_committed_under_its_id",
            _SPARK_SINK + "test_what_another_producer_group_writes_while_an_epoch_is_published_is_left_to_it",
            _SPARK_SINK + "test_an_epoch_is_not_skipped_for_what_another_producer_group_commits_during_a_take_over",
        ),
    ),
    Row(
        "Spark",
        "a batch names a topic that coordinators refuse for good, or a partition that is not there, or has a message that its topic does not take",
        "It is refused before anything is written.",
        (
            _SPARK_SINK + "test_a_real_topic_that_coordinators_refuse_is_refused_as_producers_refuse_it",
            _SPARK_SINK + "test_what_cannot_be_published_is_refused_before_anything_is_written",
            _SPARK_SINK + "test_a_message_that_its_topic_does_not_take_is_refused_before_anything_is_written",
        ),
        "A topic that is not on the coordinators' list `target_topics` is parked.",
    ),
    Row(
        "Spark",
        "the checkpoint of a stream is put back from a copy",
        "What was published within `window` is skipped, in the same process and in a new one.",
        ("spark/test_sink_window.py::test_a_checkpoint_that_is_put_back_from_a_copy_publishes_no_epoch_twice",),
        "From a copy that is older than `window`, every epoch may be published again.",
    ),
    Row(
        "Spark",
        "an epoch is begun again with other limits, so in other parts",
        "It is refused, wherever the former parts live.",
        (
            "spark/test_sink_window.py::test_an_epoch_that_was_published_in_other_parts_is_refused_wherever_they_live",
            "spark/test_sink_window.py::test_an_epoch_with_an_undecided_part_on_doubt_is_refused_wherever_it_lives",
        ),
        "Two runs with different limits at one time are not kept apart.",
    ),
)

MATRIX: tuple[Row, ...] = (
    *PRODUCER,
    *COORDINATOR,
    *CONSUMER,
    *BROKER,
    *NETWORK,
    *CLOCK,
    *CHECK,
    *DATA,
    *AUTH,
    *OPERATION,
    *SPARK,
)
