"""One partition: questions to the producer group, their answers, giving up, limits, and what a refused word leads to."""

from dataclasses import replace

import pytest

from tests.support.core_records import GROUP, op_line, options, txn_key
from tests.support.partition_driver import PartitionDriver
from tests.support.partition_log import SETTINGS
from tests.support.small_batches import SmallBatches
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.ledger import LedgerSettings
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    HalfOptions,
    OpMessage,
    OrderMode,
    ParkReason,
    Resolution,
    Source,
    UnresolvedAction,
)

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
IMMUNITY_MS, INTERVAL_MS = 6_000, 30_000
HOUR_MS = 3_600_000


def settings(policy: CheckPolicy, **groups: CheckPolicy) -> LedgerSettings:
    return replace(SETTINGS, checks=CheckPolicies(policy, groups))


def open_driver(policy: CheckPolicy | None = None, **groups: CheckPolicy) -> PartitionDriver:
    driver = PartitionDriver(settings=settings(policy or CheckPolicy(), **groups))
    driver.half(A)
    driver.turn()
    return driver


def questions(driver: PartitionDriver) -> list[CheckRecord]:
    """What is asked in the batch that is not appended yet."""
    found = driver.ledger.batch.checks.values()
    return [check for check in found if check.kind is CheckKind.QUESTION]


def ask(driver: PartitionDriver, *, after_ms: int = IMMUNITY_MS) -> list[int]:
    """Let time pass and append what follows; the numbers of the questions."""
    driver.tick(after_ms=after_ms, is_present=True)
    numbers = [check.number for check in questions(driver)]
    driver.publish()
    return numbers


def answer(driver: PartitionDriver, resolution: str, number: int, *, source: Source = Source.CHECK) -> None:
    driver.op_lines(op_line(resolution, A, 0, source=source, check_number=number))
    driver.turn()


# --- asking -----------------------------------------------------------------------------------------------------------


def test_the_first_question_names_the_transaction_and_moves_it_to_doubt() -> None:
    driver = PartitionDriver()
    driver.half(B, count=2, topic="loyalty")
    last = driver.half(B, index=1, count=2)
    driver.turn()

    driver.tick(after_ms=IMMUNITY_MS, is_present=True)

    asked = CheckRecord(
        CheckKind.QUESTION, B, GROUP, driver.ledger.partition, last, questions(driver)[0].born_ms, 1, "loyalty,orders"
    )
    assert [asked] == questions(driver)
    driver.publish()
    summary = driver.log.on_doubt()[B].summary()
    assert (1, 0, driver.now_ms) == (summary.checked_count, summary.answered_count, summary.asked_ms)
    assert driver.ledger.positions().low_water == last + 1


def test_a_group_that_is_not_there_is_not_asked_and_asked_once_when_it_comes() -> None:
    driver = open_driver()

    driver.pass_time(after_ms=12 * HOUR_MS)
    assert 0 == driver.log.on_doubt()[A].summary().checked_count

    assert [1] == ask(driver, after_ms=1)
    assert [] == ask(driver, after_ms=1)


def test_pauses_double_up_to_the_longest() -> None:
    driver = open_driver()
    ask(driver)

    pauses = []
    for _ in range(7):
        waited_ms = 0
        while not ask(driver, after_ms=5_000):
            waited_ms += 5_000
        pauses.append((waited_ms + 5_000) // 1_000)

    assert [30, 60, 120, 240, 480, 600, 600] == pauses


def test_its_own_immunity_holds_though_it_is_longer_or_shorter_than_the_groups() -> None:
    driver = PartitionDriver(settings=settings(CheckPolicy()))
    driver.half(A, options=HalfOptions(immunity_ms=1_000))
    driver.half(B, options=HalfOptions(immunity_ms=HOUR_MS))
    driver.turn()

    assert [1] == ask(driver, after_ms=1_000)
    driver.say("R", A, 0)
    assert [] == ask(driver, after_ms=HOUR_MS - 1_001)
    assert B in driver.log.on_doubt()  # it is old enough for doubt; that burns no attempt
    assert [1] == ask(driver, after_ms=1)


def test_a_transaction_that_went_to_doubt_within_its_groups_immunity_is_asked_about_when_that_ends() -> None:
    driver = open_driver(CheckPolicy(check_immunity_ms=HOUR_MS))
    assert [] == ask(driver, after_ms=HOUR_MS - 1)
    assert A in driver.log.on_doubt()

    assert [1] == ask(driver, after_ms=1)


@pytest.mark.fault("producer: is killed (`kill -9`) before Kafka acknowledges its half messages")
def test_a_transaction_whose_producer_died_in_prepare_is_asked_about_too() -> None:
    driver = PartitionDriver(settings=settings(CheckPolicy()))
    driver.half(A, count=3)
    last = driver.half(A, index=1, count=3)
    driver.turn()

    driver.tick(after_ms=IMMUNITY_MS, is_present=True)

    assert [last] == [check.last_offset for check in questions(driver)]


def test_no_question_is_asked_about_what_is_decided_in_the_same_batch() -> None:
    driver = open_driver()
    driver.tick(after_ms=IMMUNITY_MS, is_present=True)
    driver.op("C", A, 0)

    driver.turn()

    assert ([A], []) == (driver.log.forwarded, questions(driver))
    assert [] == ask(driver, after_ms=HOUR_MS)


def test_counts_and_times_survive_a_restart() -> None:
    driver = open_driver()
    ask(driver)
    answer(driver, "U", 1)

    driver.crash(is_new_process=True)

    assert [] == ask(driver, after_ms=INTERVAL_MS - 1)
    assert [2] == ask(driver, after_ms=1)
    summary = driver.log.on_doubt()[A].summary()
    assert (2, 1, 1) == (summary.checked_count, summary.answered_count, summary.answered_number)


def test_a_question_whose_append_failed_is_asked_again_under_the_same_number() -> None:
    driver = open_driver()
    driver.tick(after_ms=IMMUNITY_MS, is_present=True)

    driver.crash()

    assert [1] == ask(driver, after_ms=1)


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [Source.CHECK, Source.BARRIER])
def test_an_answer_that_knows_nothing_is_counted_once(source: Source) -> None:
    driver = open_driver()
    ask(driver)

    answer(driver, "U", 1, source=source)
    answer(driver, "U", 1, source=source)

    summary = driver.log.on_doubt()[A].summary()
    assert (1, 1) == (summary.answered_count, summary.answered_number)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_answer_to_another_question_than_the_last_is_not_counted(number: int) -> None:
    driver = open_driver()
    ask(driver)
    ask(driver, after_ms=INTERVAL_MS)

    answer(driver, "U", number)

    assert 0 == driver.log.on_doubt()[A].summary().answered_count


@pytest.mark.parametrize(("resolution", "forwarded"), [("C", [A]), ("R", [])], ids=["commit", "rollback"])
def test_a_decision_counts_whatever_question_it_answers(resolution: str, forwarded: list[str]) -> None:
    driver = open_driver()
    ask(driver)
    ask(driver, after_ms=INTERVAL_MS)

    answer(driver, resolution, 1)

    assert (forwarded, {}) == (driver.log.forwarded, driver.log.on_doubt())


@pytest.mark.fault("check handler: is slow, silent, unknown, answers garbage, or changes its answer")
def test_contrary_answers_of_two_instances_the_first_in_the_log_wins() -> None:
    driver = open_driver()
    ask(driver)

    driver.op_lines(
        op_line("R", A, 0, source=Source.CHECK, check_number=1), op_line("C", A, 0, source=Source.CHECK, check_number=1)
    )
    driver.turn()

    assert ([], [A]) == (driver.log.forwarded, driver.reported(ReportKind.CONFLICT))


def test_the_group_hears_of_a_commit_that_came_after_a_rollback_by_check() -> None:
    driver = open_driver()
    ask(driver)
    answer(driver, "R", 1)
    driver.op("C", A, 0)

    driver.read()
    driver.advance()

    (told,) = driver.ledger.batch.checks.values()
    assert (CheckKind.REFUSED, A, GROUP, "COMMIT by producer") == (told.kind, told.key, told.producer_group, told.text)


# --- the end of asking ------------------------------------------------------------------------------------------------


def test_after_so_many_unknown_answers_it_is_parked_whole() -> None:
    driver = open_driver(CheckPolicy(check_max=2))
    ask(driver)
    answer(driver, "U", 1)
    ask(driver, after_ms=INTERVAL_MS)

    answer(driver, "U", 2)

    assert TxnState.PARKED is driver.state(A)
    assert {A: ParkReason.CHECKS_EXHAUSTED.value} == driver.reasons()
    assert [0] == list(driver.log.contents_on_doubt(A))
    assert [] == ask(driver, after_ms=HOUR_MS)


def test_unanswered_questions_never_count() -> None:
    driver = open_driver(CheckPolicy(check_max=2))

    for _ in range(20):
        ask(driver, after_ms=600_000)

    assert (TxnState.OPEN, 20) == (driver.state(A), driver.ledger.transactions[A].ensure_extras().checked_count)


@pytest.mark.parametrize("is_present", [True, False])
def test_too_old_counts_from_the_end_of_the_immunity_whether_or_not_somebody_is_there(is_present: bool) -> None:
    policy = CheckPolicy(transaction_age_max_ms=HOUR_MS)
    driver = PartitionDriver(settings=settings(policy))
    driver.half(A, options=HalfOptions(immunity_ms=HOUR_MS))
    driver.turn()

    driver.pass_time(after_ms=2 * HOUR_MS - 1, is_present=is_present)
    assert TxnState.OPEN is driver.state(A)

    driver.pass_time(after_ms=1, is_present=is_present)
    assert {A: ParkReason.TOO_OLD.value} == driver.reasons()


def test_the_policy_rollback_is_an_op_line_that_acts_only_when_it_is_read() -> None:
    driver = open_driver(CheckPolicy(transaction_age_max_ms=HOUR_MS, unresolved=UnresolvedAction.ROLLBACK))

    driver.tick(after_ms=2 * HOUR_MS)

    (line,) = driver.ledger.batch.policy_lines.values()
    op = codec.decode_op(line)
    assert isinstance(op, OpMessage)
    assert (Resolution.ROLLBACK, A, 0, Source.POLICY, "too-old") == (
        op.resolution,
        op.key,
        op.last_offset,
        op.source,
        op.reason,
    )
    assert TxnState.OPEN is driver.state(A)
    driver.publish()
    driver.tick(after_ms=500)
    assert {} == driver.ledger.batch.policy_lines  # said once, not with every tick
    driver.turn()
    assert (None, []) == (driver.state(A), driver.log.forwarded)


def test_the_policy_rollback_never_undoes_a_commit_that_is_read_first() -> None:
    driver = open_driver(CheckPolicy(transaction_age_max_ms=HOUR_MS, unresolved=UnresolvedAction.ROLLBACK))
    driver.tick(after_ms=2 * HOUR_MS)
    driver.op("C", A, 0)
    driver.publish()

    driver.turn()

    assert ([A], [A]) == (driver.log.forwarded, driver.reported(ReportKind.CONFLICT))


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_an_operators_unknown_asks_at_once_whoever_is_there_and_the_schedule_goes_on() -> None:
    driver = open_driver()
    driver.op_lines(op_line("U", A, 0, source=Source.OPERATOR))

    driver.read()
    driver.advance()

    assert [1] == [check.number for check in questions(driver)]
    driver.publish()
    assert [] == ask(driver, after_ms=INTERVAL_MS - 1)
    assert [2] == ask(driver, after_ms=1)


@pytest.mark.promise("P7")
def test_a_question_for_an_operator_is_asked_and_counted_when_the_check_topic_takes_it_again() -> None:
    driver = open_driver()
    driver.half(A)
    driver.ledger.may_ask = False
    driver.op_lines(op_line("U", A, 0, source=Source.OPERATOR))
    driver.turn()
    driver.pass_time()
    assert ([], []) == (driver.log.questions, [*driver.log.on_doubt()])

    driver.ledger.may_ask = True
    for _ in range(2):
        driver.pass_time()

    assert [1] == [question.number for question in driver.log.questions]
    assert 1 == driver.log.on_doubt()[A].summary().checked_count


def test_a_parked_one_is_asked_once_for_an_operator() -> None:
    driver = open_driver(CheckPolicy(transaction_age_max_ms=HOUR_MS))
    driver.pass_time(after_ms=2 * HOUR_MS)
    driver.op_lines(op_line("U", A, 0, source=Source.OPERATOR))

    driver.read()
    driver.advance()

    assert [1] == [check.number for check in questions(driver)]
    driver.publish()
    assert [] == ask(driver, after_ms=HOUR_MS)
    answer(driver, "C", 1)
    assert [A] == driver.log.forwarded


@pytest.mark.fault("check handler: the check topic refuses a question as too large")
@pytest.mark.promise("P7", "P11")
@pytest.mark.parametrize(("bytes_max", "is_asked"), [(200, True), (10, False)])
def test_a_question_that_its_topic_refuses_names_no_topics_and_stops_nobody(*, bytes_max: int, is_asked: bool) -> None:
    driver = PartitionDriver(settings=settings(CheckPolicy()))
    driver.log.check_bytes_max = bytes_max
    for index in range(2):
        driver.half(A, index=index, count=2, topic=str(index) * 200)
    driver.half(B)

    for _ in range(4):
        driver.read()
        driver.advance()
        driver.pass_time(after_ms=IMMUNITY_MS, is_present=True)

    assert {A, B} == set(driver.log.on_doubt())
    asked = {(question.key, question.text) for question in driver.log.questions}
    assert ({(A, ""), (B, "orders")} if is_asked else set()) == asked


@pytest.mark.promise("P11")
def test_decided_transactions_of_a_group_that_nobody_answers_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its producers have no check handler, and their local transactions take longer than the immunity."""
    monkeypatch.setattr("txlayer.core.checks.GAPS_MAX", 10)
    monkeypatch.setattr("txlayer.core.ledger.remembered.RECENT_COUNT_MAX", 10)
    monkeypatch.setattr("txlayer.core.ledger.remembered.DISTANCE_MAX", 10)
    monkeypatch.setattr("txlayer.core.ledger.remembered.SETTLED_IN_HALF_MAX", 10)
    driver, count = PartitionDriver(), 500
    for number in range(count):
        key = txn_key(f"t{number}")
        offset = driver.half(key)
        driver.turn()
        driver.tick(after_ms=10_000)  # the immunity is 6 s
        driver.publish()
        driver.say("C", key, offset)
    driver.pass_time(after_ms=3_600_000)

    assert count == len(driver.log.forwarded)
    assert 0 == driver.ledger.open_count
    assert driver.ledger.schedule.due_count(GROUP) <= 30


# --- two reasons to ask -----------------------------------------------------------------------------------------------


def test_two_reasons_to_ask_in_one_batch_are_one_question() -> None:
    driver = open_driver()
    driver.tick(after_ms=IMMUNITY_MS, is_present=True)
    driver.op_lines(*[op_line("U", A, 0, source=Source.OPERATOR)] * 2)
    driver.read()
    driver.advance()

    assert [1] == [check.number for check in questions(driver)]
    driver.publish()
    assert 1 == driver.log.on_doubt()[A].summary().checked_count


def test_who_is_due_in_the_batch_that_asks_by_hand_keeps_its_place() -> None:
    driver = open_driver()
    ask(driver)
    driver.op_lines(op_line("U", A, 0, source=Source.OPERATOR))
    driver.read()
    driver.advance()
    driver.tick(after_ms=HOUR_MS, is_present=True)
    assert [2] == [check.number for check in questions(driver)]
    driver.publish()

    assert [3] == ask(driver, after_ms=1)


def test_who_was_asked_by_hand_as_well_is_parked_once() -> None:
    driver = open_driver(replace(CheckPolicy(), transaction_age_max_ms=INTERVAL_MS))
    ask(driver)
    driver.op_lines(op_line("U", A, 0, source=Source.OPERATOR))
    driver.turn()

    driver.pass_time(after_ms=HOUR_MS, is_present=True)

    assert TxnState.PARKED.value == driver.log.on_doubt()[A].summary().state


# --- parked, and committed at once ------------------------------------------------------------------------------------


def _others_wait(driver: PartitionDriver) -> None:
    """A is undecided, and B waits behind it."""
    order = options("red", order=OrderMode.PREPARE)
    driver.half(A, options=order)
    driver.say("C", B, driver.half(B, options=order))
    assert TxnState.WAITING is driver.state(B)


@pytest.mark.promise("P6")
def test_that_one_was_parked_is_on_doubt_before_its_commit_lets_it_go_behind_others() -> None:
    """Its age ended its questions, its commit was read in the same moment, and B went first."""
    policy = CheckPolicy(transaction_age_max_ms=HOUR_MS)
    driver = PartitionDriver(settings=replace(settings(policy), doubt_after_ms=2 * HOUR_MS))
    _others_wait(driver)
    driver.tick(after_ms=HOUR_MS + IMMUNITY_MS)
    driver.op("C", A, 0)
    driver.read()

    driver.advance()
    driver.publish()

    assert ([B], TxnState.PARKED) == (driver.log.forwarded, driver.state(A))
    assert {A: ParkReason.TOO_OLD.value} == driver.reasons()
    driver.turn()
    assert [B, A] == driver.log.forwarded


@pytest.mark.promise("P6")
def test_that_a_commit_was_incomplete_is_on_doubt_before_the_next_one_lets_it_go_behind_others() -> None:
    order = options("red", order=OrderMode.PREPARE)
    driver = PartitionDriver()
    first, last = (driver.half(A, index=index, count=2, options=order) for index in range(2))
    behind = driver.half(B, options=order)
    driver.op_lines(op_line("C", B, behind), op_line("C", A, first), op_line("C", A, last))
    driver.read()

    driver.advance()
    driver.publish()

    assert ([B], {A: ParkReason.INCOMPLETE.value}) == (driver.log.forwarded, driver.reasons())
    driver.turn()
    assert [B, A] == driver.log.forwarded[:2]


@pytest.mark.promise("P6")
def test_that_checks_were_exhausted_is_on_doubt_before_a_commit_lets_one_go_behind_others() -> None:
    """The last answer and the producer's commit were read together, for example after an outage of the coordinator."""
    driver = PartitionDriver(settings=settings(CheckPolicy(check_max=1)))
    _others_wait(driver)
    assert [1] == ask(driver)
    driver.op_lines(op_line("U", A, 0, source=Source.CHECK, check_number=1), op_line("C", A, 0))
    driver.read()

    driver.advance()
    driver.publish()

    assert ([B], {A: ParkReason.CHECKS_EXHAUSTED.value}) == (driver.log.forwarded, driver.reasons())
    driver.turn()
    assert [B, A] == driver.log.forwarded


@pytest.mark.promise("P1", "P6")
def test_what_waits_behind_one_that_is_given_up_is_not_left_in_half_while_others_must_leave_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Free and in half at a stored position, it would be taken for forwarded by a replay."""
    monkeypatch.setattr("txlayer.core.ledger.ledger.BatchSize", lambda: SmallBatches(1))
    driver = PartitionDriver(settings=settings(CheckPolicy(transaction_age_max_ms=10_000)))
    in_order: dict[str, list[str]] = {"red": [], "blue": []}
    for name, behind_count in (("red", 2), ("blue", 1)):
        its = options(name, order=OrderMode.PREPARE)
        driver.half(txn_key(f"{name}-open"), options=its)
        for number in range(behind_count):
            in_order[name].append(txn_key(f"{name}-{number}"))
            driver.op("C", in_order[name][-1], driver.half(in_order[name][-1], options=its))
    driver.turn()

    driver.tick(after_ms=20_000)  # red has more in half than one batch takes: it goes to doubt first, one by one
    driver.publish()
    driver.crash()
    for _ in range(9):
        driver.turn()
        driver.pass_time()

    assert sorted([*in_order["red"], *in_order["blue"]]) == sorted(driver.log.forwarded)
    assert in_order["red"] == [key for key in driver.log.forwarded if key in in_order["red"]]
