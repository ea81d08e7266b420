"""What becomes of each record of the check topic, step by step, on a clock that the test moves."""

from typing import Any

import pytest

from tests.support.fake_barrier import FakeBarrier
from tests.support.producer_stage import GROUP, heard, limit, question, refusal
from txlayer.adapters.readers import CheckRequestsRead
from txlayer.core import codec
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, CheckRecord, OpMessage, Resolution, Source
from txlayer.errors import UsageError
from txlayer.producer import questions as module
from txlayer.producer.check_handlers import Call, CallOutcome, CheckRequest, Handling, handling_of, told_cause
from txlayer.producer.pipeline import LINE_BYTES_MAX
from txlayer.producer.questions import LIMIT_KEPT_S, STALE_AFTER_S, OpenLimit, Questions, RefusedResolution

TIMEOUT_S = 10.0
OWN = frozenset({0, 1})


class Desk:
    """`Questions`, and what came out of them."""

    def __init__(self, *, group: str = GROUP, request_count_max: int = 1, source: Source = Source.CHECK) -> None:
        self.now = 100.0
        self.answers: list[tuple[int, OpMessage]] = []
        self.refused: list[RefusedResolution] = []
        handling = Handling(
            answer=list, source=source, request_count_max=request_count_max, call_count_max=2, ahead_count_max=3
        )
        self.questions = Questions(
            group=group,
            handling=handling,
            check_timeout_s=TIMEOUT_S,
            on_answer=lambda partition, answer: self.answers.append((partition, answer)),
            on_refused=self.refused.append,
        )

    def hear(self, *checks: CheckRecord | bytes, partition: int = 0, own: Any = OWN) -> None:
        self.questions.hear(CheckRequestsRead(heard(*checks, partition=partition), own), self.now)

    def begin(self) -> Call:
        """The next call, which a worker begins at once."""
        call = self.questions.next_call(self.now)
        assert call is not None
        call.started_at = self.now
        return call

    def answer(self, said: Any) -> None:
        """The next call brings this."""
        self.questions.take(CallOutcome(self.begin(), said))

    @property
    def skipped(self) -> dict[str, int]:
        return {skip.value: count for skip, count in self.questions.tally.skipped.items()}

    @property
    def resolutions(self) -> list[Resolution]:
        return [answer.resolution for _, answer in self.answers]


def test_a_question_becomes_a_request_and_its_answer_an_op_line_that_repeats_it() -> None:
    desk = Desk()
    desk.hear(question("order-7", number=3, partition=2))

    call = desk.begin()
    desk.questions.take(CallOutcome(call, [COMMIT]))

    assert [CheckRequest("order-7", "0000000a", GROUP, 1_700_000_000_000, 3, ("orders", "stock"))] == list(
        call.requests
    )
    expected = OpMessage(COMMIT, "order-7/0000000a", GROUP, 17, 1_700_000_000_000, Source.CHECK, 3)
    assert [(2, expected)] == desk.answers


@pytest.mark.fault("check handler: is slow, silent, unknown, answers garbage, or changes its answer")
@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ([UNKNOWN], "UNKNOWN"),
        ([None], "returned NoneType"),
        (["COMMIT"], "returned str"),
        (["C"], "returned str"),
        ([True], "returned bool"),
        ([1], "returned int"),
        ([Resolution], "returned EnumType"),
        (None, "returned NoneType"),
        (COMMIT, "returned Resolution"),
        ([COMMIT, COMMIT], "returned list"),
        ([], "returned list"),
    ],
)
def test_what_is_no_clear_word_is_unknown_with_its_cause(said: Any, cause: str) -> None:
    desk = Desk()
    desk.hear(question())

    desk.answer(said)

    ((_, answer),) = desk.answers
    assert (UNKNOWN, f"handler: {cause}") == (answer.resolution, answer.reason)
    assert {cause: 1} == desk.questions.tally.unknown


class MisleadingError(Exception):
    """An exception that carries a word of ours."""

    resolution = COMMIT


@pytest.mark.parametrize("error", [MisleadingError(COMMIT), KeyError("x"), SystemExit(0)])
def test_an_exception_is_unknown_by_its_kind_and_its_text_stays_here(error: BaseException) -> None:
    desk = Desk()
    desk.hear(question())

    desk.questions.take(CallOutcome(desk.begin(), error=error))

    ((_, answer),) = desk.answers
    assert (UNKNOWN, f"handler: {type(error).__name__}") == (answer.resolution, answer.reason)


@pytest.mark.fault("check handler: is slow, silent, unknown, answers garbage, or changes its answer")
def test_a_call_that_takes_too_long_is_unknown_and_its_late_result_counts_for_nothing() -> None:
    desk = Desk()
    desk.hear(question())
    call = desk.begin()

    desk.now += TIMEOUT_S
    assert [] == desk.questions.overdue(desk.now)
    desk.now += 0.1
    assert [call] == desk.questions.overdue(desk.now)
    desk.questions.time_out(call)
    desk.questions.take(CallOutcome(call, [COMMIT]))

    ((_, answer),) = desk.answers
    assert (UNKNOWN, "handler: TimeoutError") == (answer.resolution, answer.reason)
    assert 1 == desk.questions.tally.late


def test_the_same_question_is_answered_once_while_it_is_being_answered() -> None:
    desk = Desk()
    desk.hear(question(), question())
    call = desk.begin()
    desk.hear(question(), question(number=2))

    assert desk.questions.next_call(desk.now) is None
    desk.questions.take(CallOutcome(call, [COMMIT]))

    assert [COMMIT] == desk.resolutions
    assert {"duplicate": 3} == desk.skipped


def test_asked_again_before_its_turn_the_answer_names_the_newer_question() -> None:
    desk = Desk()
    desk.hear(question(number=1), question(number=2))

    desk.answer([ROLLBACK])

    assert [2] == [answer.check_number for _, answer in desk.answers]
    assert desk.questions.next_call(desk.now) is None


def test_what_is_not_ours_is_passed_over_and_counted() -> None:
    desk = Desk()
    desk.hear(
        question(group="other"),
        question(group=f"{GROUP}.x"),
        b"",
        b"\xff",
        f"1|Q|no-nonce|{GROUP}|1|2|3|4|".encode(),
        f"9|Q|a/0000000a|{GROUP}|1|2|3|4|".encode(),
        f"1|Z|a/0000000a|{GROUP}|1|2|3|4|".encode(),
        f"|{GROUP}|\xff".encode("latin-1"),
    )
    desk.hear(question(), partition=7)

    assert desk.questions.next_call(desk.now) is None
    assert {"other-group": 4, "undecodable": 4, "other-instance": 1} == desk.skipped


def test_a_group_that_looks_like_a_number_is_not_found_in_other_fields() -> None:
    desk = Desk(group="17")  # which is also the offset of every question here

    desk.hear(question(group="other"), question(group="17"))

    assert 1 == desk.questions.open_count
    assert {"other-group": 1} == desk.skipped


def test_a_question_that_waited_too_long_is_left_to_the_next_one() -> None:
    desk = Desk()
    desk.hear(question("a"))
    desk.now += STALE_AFTER_S + 1
    desk.hear(question("b"))

    desk.answer([COMMIT])

    assert ["b/0000000a"] == [answer.key for _, answer in desk.answers]
    assert {"stale": 1} == desk.skipped


def test_a_worker_that_comes_too_late_leaves_the_question_open() -> None:
    desk = Desk()
    desk.hear(question("a"))
    call = desk.questions.next_call(desk.now)
    assert call is not None
    assert desk.now + STALE_AFTER_S == call.stale_at

    desk.questions.take(CallOutcome(call, is_stale=True))

    assert [] == desk.answers
    assert {"stale": 1} == desk.skipped
    assert 0 == desk.questions.open_count


def test_batches_gather_what_waits_and_each_question_has_its_own_answer() -> None:
    desk = Desk(request_count_max=3, source=Source.BARRIER)
    desk.hear(*(question(name) for name in "abcd"))

    desk.answer([COMMIT, ROLLBACK, UNKNOWN])
    desk.answer([COMMIT])

    assert [COMMIT, ROLLBACK, UNKNOWN, COMMIT] == desk.resolutions
    assert {Source.BARRIER} == {answer.source for _, answer in desk.answers}
    assert "barrier: UNKNOWN" == desk.answers[2][1].reason


def test_no_more_calls_are_begun_ahead_than_the_limit_says() -> None:
    desk = Desk()
    desk.hear(*(question(name) for name in "abcde"))

    begun = [desk.begin() for _ in range(3)]

    assert desk.questions.next_call(desk.now) is None
    desk.questions.take(CallOutcome(begun[0], [COMMIT]))
    assert desk.questions.next_call(desk.now) is not None


def test_reading_should_stop_while_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_COUNT_MAX", 2)
    desk = Desk()
    desk.hear(question("a"))
    assert not desk.questions.is_full

    desk.hear(question("b"))

    assert desk.questions.is_full


def test_kinds_of_causes_are_bounded_and_one_that_is_known_is_counted_as_itself() -> None:
    desk = Desk()
    for number in [*range(module.CAUSE_COUNT_MAX + 5), 0]:
        desk.hear(question(str(number)))
        error = type(f"Error{number}", (Exception,), {})()
        desk.questions.take(CallOutcome(desk.begin(), error=error))

    counts = desk.questions.tally.unknown
    assert (module.CAUSE_COUNT_MAX + 1, 5) == (len(counts), counts["other"])
    assert 2 == max(count for cause, count in counts.items() if cause != "other")


def test_the_same_question_twice_is_one_that_was_asked() -> None:
    desk = Desk()
    desk.hear(question(), question())

    assert (1, {"duplicate": 1}) == (desk.questions.tally.asked, desk.skipped)


def test_an_answer_names_the_question_that_was_heard_before_it() -> None:
    desk = Desk()
    desk.hear(question(number=1))
    call = desk.begin()
    desk.hear(question(number=2))

    desk.questions.take(CallOutcome(call, [COMMIT]))

    assert [1] == [answer.check_number for _, answer in desk.answers]
    assert desk.questions.next_call(desk.now) is None


def test_asked_again_before_its_turn_it_waits_from_then_on() -> None:
    desk = Desk()
    desk.hear(question(number=1))
    desk.now += STALE_AFTER_S
    desk.hear(question(number=2))
    desk.now += 1

    assert desk.questions.next_call(desk.now) is not None


def test_limits_and_refusals_are_heard_whoever_answers() -> None:
    desk = Desk()
    desk.hear(
        limit("on", partition=2, count=7),
        limit("on", partition=1, count=9),
        limit("on", group="other", partition=0),
        refusal("late"),
        partition=7,
    )

    assert OpenLimit((1, 2), 9) == desk.questions.limits.current(desk.now)
    expected = RefusedResolution("late", "0000000a", GROUP, 3, "COMMIT by producer")
    assert [expected] == desk.refused
    assert {"other-group": 1} == desk.skipped


@pytest.mark.threat("write `<ns>.check`")
def test_a_limit_ends_by_its_word_or_by_its_silence() -> None:
    desk = Desk()
    desk.hear(limit("on", partition=1), limit("on", partition=2))
    desk.hear(limit("off", partition=1))
    desk.now += LIMIT_KEPT_S - 1
    assert OpenLimit((2,), 10) == desk.questions.limits.current(desk.now)

    desk.hear(limit("on", partition=2))
    desk.now += LIMIT_KEPT_S - 1
    assert OpenLimit((2,), 10) == desk.questions.limits.current(desk.now)

    desk.now += 1
    assert desk.questions.limits.current(desk.now) is None


def test_at_the_end_what_is_begun_is_waited_for_and_the_rest_is_dropped() -> None:
    desk = Desk()
    desk.hear(*(question(name) for name in "abcde"))
    begun = desk.begin()
    queued = desk.questions.next_call(desk.now)
    assert queued is not None

    desk.questions.drop_waiting()
    desk.questions.drop_unstarted()
    desk.questions.take(CallOutcome(queued, [COMMIT]))
    desk.questions.take(CallOutcome(begun, [ROLLBACK]))

    assert [ROLLBACK] == desk.resolutions
    assert {"closed": 4} == desk.skipped
    assert 0 == desk.questions.open_count


def test_an_answer_fits_into_the_longest_line() -> None:
    cause = told_cause(Source.BARRIER, "Ä" * 200)
    widest = OpMessage(
        UNKNOWN, "x" * 128 + "/0000000a", "g" * 200, 2**63 - 1, 1_700_000_000_000, Source.BARRIER, 10**9, reason=cause
    )

    assert LINE_BYTES_MAX >= len(codec.encode_op(widest))


def test_a_handler_and_a_barrier_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="generated"):
        handling_of(lambda _: COMMIT, FakeBarrier(), worker_count=8, is_async=False)
