"""What somebody can do who may use one thing and means harm, as data; docs/explanation/security.md shows it."""

from __future__ import annotations

from dataclasses import dataclass

_HOSTILE = "integration/security/test_hostile.py"
_RIGHTS = f"{_HOSTILE}::test_a_role_may_write_and_read_what_it_needs_and_nothing_else"
_INPUT = "integration/kafka/test_coordinator_input.py"
_CONNECTING = "integration/security/test_connecting.py"


@dataclass(frozen=True, slots=True)
class Threat:
    """One access, and what follows from it."""

    access: str
    can: str
    cannot: str
    tests: tuple[str, ...]


THREATS = (
    Threat(
        "write `<ns>.half`",
        "Store half messages under any producer group's name, for any target; fill the topic, and the memory of the coordinators with "
        "open transactions (some 1 KB each) up to `unsettled_bytes_max`. Then the partitions that were written to are not read on until answers to "
        "check-backs, or a person, make room; other partitions go on, unless all were written to. The members of the named group are asked about them, at `check_rate_max`.",
        "Publish: nothing is forwarded without a line on op. Reach a topic that is not on `--target-topic`, or that the "
        "coordinator's rights do not name. Stop a partition by bytes that nobody can read. Forge a line of a log, or reach a "
        "terminal, with names. Slow down, or keep memory of, groups by inventing others. Take more memory than that. Lock out a group whose members decide what they "
        "are asked about.",
        (
            "unit/test_forged_lines.py::test_a_log_line_stays_one_line",
            "unit/test_checks.py::test_groups_that_nobody_answers_for_cost_those_that_are_there_nothing",
            "unit/test_checks.py::test_groups_whose_transactions_are_settled_are_forgotten",
            "unit/test_asleep.py::test_of_very_many_groups_only_so_many_wake_at_once",
            "unit/test_unsettled_bytes.py::test_a_flood_of_invented_records_is_read_no_further_than_there_is_memory",
            "unit/test_unsettled_bytes.py::test_another_partition_goes_on_beside_a_flooded_one",
            "unit/test_ledger_limits.py::test_records_that_a_stranger_invents_do_not_lock_a_group_out_that_answers",
            "integration/kafka/test_decisions.py::test_nothing_is_visible_that_is_undecided_or_rolled_back",
            "integration/kafka/test_coordinator_targets.py::test_a_forbidden_target_parks_its_transaction",
            f"{_HOSTILE}::test_a_half_message_cannot_make_the_coordinator_write_another_namespace",
            f"{_INPUT}::test_garbage_on_half_is_kept_aside_with_its_bytes",
            "integration/kafka/test_hostile_records.py::test_a_half_message_for_a_topic_that_cannot_be_stops_nobody",
            "contract/test_bounds.py::test_a_record_that_was_kept_aside_stays_there_when_content_is_read_again",
        ),
    ),
    Threat(
        "write `<ns>.op`",
        "Decide every open transaction of the namespace whose id, nonce and last half offset it knows: a namespace is one "
        "boundary of trust. Producers and responders read check, which names those of every group that are in doubt.",
        "Change a decision; decide what it cannot name (the nonce is 32 random bits, and a transaction that is not in doubt yet "
        "is named on half alone); decide in another namespace. Take a coordinator's memory with lines about transactions that "
        "never were.",
        (
            f"{_HOSTILE}::test_a_producer_of_one_namespace_cannot_resolve_a_transaction_of_another",
            "integration/kafka/test_decisions.py::test_the_first_decision_wins_whoever_wrote_it_and_across_a_restart",
            f"{_INPUT}::test_an_op_that_names_another_half_record_does_not_count",
            f"{_INPUT}::test_garbage_on_op_is_kept_aside",
            "unit/test_ledger_aside.py::test_op_lines_that_name_invented_transactions_take_no_more_memory_than_their_limit",
        ),
    ),
    Threat(
        "write `<ns>.doubt`",
        "Everything that a coordinator can: it believes this topic when it takes a partition over. Nobody but the "
        "coordinator may have it.",
        "Have it by any other role.",
        (_RIGHTS, "unit/test_acls.py::test_nobody_but_the_coordinator_may_write_real_topics_or_doubt"),
    ),
    Threat(
        "write `<ns>.check`",
        "Ask a producer group about anything, switch its limit on for half a minute, tell it of refusals that never were.",
        "Decide: the group's own handler or barrier answers, and an answer about no open transaction is only reported.",
        (
            _RIGHTS,
            "unit/test_ledger.py::test_a_line_that_names_no_half_record_of_its_transaction_decides_nothing",
            "unit/test_questions.py::test_a_limit_ends_by_its_word_or_by_its_silence",
        ),
    ),
    Threat(
        "read `<ns>.check`, and a group's name",
        "Read ids and offsets of transactions in doubt.",
        "Take another group's check-backs away: its consumer group cannot be joined.",
        (f"{_HOSTILE}::test_a_producer_joins_its_own_check_group_and_no_other",),
    ),
    Threat(
        "write `<ns>.locks`",
        "Claim queues with a generation that is too high, or release leases: consumers stand still, and are fenced.",
        "Make two holders at one position of the log, or give out a token twice: a database that checks tokens stays right.",
        (
            "unit/test_leases.py::test_the_fold_holds_what_the_rules_say_and_tokens_only_grow",
            "unit/test_leases.py::test_another_holder_always_has_another_token",
            _RIGHTS,
        ),
    ),
    Threat(
        "write `<group>.<topic>.dlq`",
        "Add dead letters of its own invention.",
        "Have them handled: only a request on the replay topic does that.",
        (_RIGHTS, "integration/kafka/test_dlq_replay.py::test_a_named_dead_letter_is_asked_for_answered_and_told"),
    ),
    Threat(
        "write `<group>.<topic>.replay`",
        "Have dead letters of that group and topic handled again, or dropped.",
        "Handle another topic's, or another group's.",
        (_RIGHTS,),
    ),
    Threat(
        "write a real topic",
        "Write messages that never were in a transaction, with our headers too: a consumer cannot tell them. "
        "`txlayer-spark audit` can: they are `phantom`.",
        "Have it as a producer: the role may describe its targets, and not write them.",
        (_RIGHTS, "unit/test_acls.py::test_nobody_but_the_coordinator_may_write_real_topics_or_doubt"),
    ),
    Threat(
        "read `<ns>.half` or `<ns>.doubt`",
        "Read every message of the namespace, also what is rolled back later.",
        "Have it as a producer, a responder or a consumer.",
        (_RIGHTS,),
    ),
    Threat(
        "a transactional id below `<ns>/`",
        "Fence coordinators again and again: nothing is lost, nothing goes on.",
        "Have it by any other role. Namespaces must not begin with each other's name and a dot (`a`, `a.b`): check "
        "groups are given by prefix.",
        (
            f"{_HOSTILE}::test_nobody_but_its_holder_may_fence_a_transactional_id",
            f"{_HOSTILE}::test_a_consumer_may_fence_neither_a_namesake_nor_a_group_whose_name_begins_alike",
            "unit/test_acls.py::test_no_right_on_transactional_ids_covers_anothers",
            "unit/test_acls.py::test_a_consumer_is_given_no_group_of_txlayers_own",
        ),
    ),
    Threat(
        "the network between",
        "Cut it; see who speaks with whom.",
        "Read or change anything, or pretend to be a broker: plain text to another machine, and TLS that verifies nobody, are "
        "refused without an explicit word.",
        (
            "unit/test_config.py::test_plain_text_to_another_machine_needs_ones_own_word",
            "unit/test_secrets.py::test_tls_to_a_broker_that_nobody_verifies_needs_ones_own_word",
            f"{_CONNECTING}::test_what_is_wrong_is_told_in_one_line_without_the_password",
        ),
    ),
    Threat(
        "reach the port of metrics",
        "Read names of topics, groups and what is open; use the one thread that answers.",
        "Take more than 16 connections of 8 KB and one answer each, or 5 s for one of them. Keep a probe of another address out: when "
        "all are taken, the oldest of the address that has the most gives way. Have a page made more than once a second. Change anything.",
        (
            "integration/test_metrics_server.py::test_readers_that_say_nothing_never_keep_a_probe_out",
            "integration/test_metrics_server.py::test_an_address_with_many_connections_pushes_out_its_own_and_no_probe_of_another",
            "integration/test_metrics_server.py::test_a_page_is_made_once_a_second_however_often_and_in_whichever_form_it_is_asked_for",
            "integration/test_metrics_server.py::test_a_request_that_is_too_large_is_refused_before_it_has_come",
            "integration/test_metrics_server.py::test_a_reader_has_one_time_for_its_whole_request",
            "integration/test_metrics_server.py::test_a_reader_that_does_not_take_its_answer_is_hung_up_on",
        ),
    ),
    Threat(
        "an account on the machine of a service",
        "Read command lines.",
        "Find a password there, or in a log, an error or a shown setting.",
        (
            "unit/test_secrets.py::test_a_secret_on_a_command_line_is_refused_and_the_way_out_is_named",
            "unit/test_secrets.py::test_a_url_with_a_password_on_a_command_line_is_refused_and_the_ways_out_are_named",
            "integration/security/test_sentinel.py::test_no_command_shows_a_password",
            f"{_CONNECTING}::test_a_coordinator_takes_every_setting_from_the_environment_and_files",
        ),
    ),
    Threat(
        "the working directory of a service or an operator",
        "Plant a module there; a program of your own that is started as `python -m NAME`, and handlers, import it.",
        "Have it run by `txlayer` itself, by its workers, or by processes for handlers before they have the path of their parent.",
        (
            "integration/test_planted_modules.py::test_a_command_runs_no_module_of_the_working_directory",
            "integration/test_planted_modules.py::test_workers_of_a_consumer_import_its_module_and_no_other",
            "spark/test_planted_modules.py::test_sparks_workers_run_no_module_of_the_working_directory",
        ),
    ),
)
