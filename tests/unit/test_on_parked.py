"""A producer group hears of its parked transactions at least once, and may settle them then."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support.core_records import GROUP as CORE_GROUP
from tests.support.core_records import op_line, txn_key
from tests.support.producer_stage import ProducerStage, parking, question, stats_of
from tests.support.still_coordinator import StillCoordinator
from tests.unit.test_responder import Answerer
from txlayer.coordinator.targets import GroupPresence
from txlayer.core import codec
from txlayer.core.checks import GAPS_MAX, NOTICE_LOOK_MS, CheckPolicies, CheckPolicy, ParkedNotices
from txlayer.core.messages import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckKind,
    CheckRecord,
    OpMessage,
    Resolution,
    Source,
    txn_id_of,
)
from txlayer.errors import UsageError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import ParkedTransaction, RefusedResolution

A = txn_key("a")
AGE_S = 60
HOUR_MS = 3_600_000

# --- the coordinator --------------------------------------------------------------------------------------------------


def notices(stage: StillCoordinator) -> list[CheckRecord]:
    found = [codec.decode_check(record.value()) for record in stage.kafka.records(stage.topics.check)]
    return [check for check in found if isinstance(check, CheckRecord) and check.kind is CheckKind.PARKED]


def open_stage(**settings: Any) -> StillCoordinator:
    return StillCoordinator(doubt_after=timedelta(seconds=5), transaction_age_max=timedelta(seconds=AGE_S), **settings)


def present(monkeypatch: pytest.MonkeyPatch, *, is_present: bool) -> None:
    """The group has a member, or none."""
    groups = frozenset({CORE_GROUP} if is_present else ())
    monkeypatch.setattr(GroupPresence, "of", lambda _self, _schedules: groups)


@pytest.mark.promise("P7")
def test_a_group_hears_of_a_parking_again_and_again_and_settles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage(check_interval_max=timedelta(minutes=1))
    present(monkeypatch, is_present=True)
    offset = stage.half(A)
    stage.work(seconds=AGE_S + 20)
    (first,) = notices(stage)
    assert (A, CORE_GROUP, 0, offset, 1, "too-old") == (
        first.key,
        first.producer_group,
        first.partition,
        first.last_offset,
        first.number,
        first.text,
    )
    stage.work(seconds=65)  # a successor tells again at once, and then after a minute
    assert [1, 1, 2] == [check.number for check in notices(stage)]

    stage.op(op_line("C", A, offset, source=Source.CHECK))
    stage.work(seconds=600)
    assert ([txn_id_of(A)], {}, 3) == (stage.visible(), stage.on_doubt(), len(notices(stage)))


@pytest.mark.promise("P7")
def test_a_group_without_a_member_hears_of_it_when_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage()
    present(monkeypatch, is_present=False)
    stage.half(A)
    stage.work(seconds=AGE_S + 20)
    assert ("parked", []) == (stage.on_doubt()[A].state, notices(stage))

    present(monkeypatch, is_present=True)
    stage.work(seconds=5)
    assert [A] == [check.key for check in notices(stage)]


def test_what_is_settled_or_committed_and_parked_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage()
    present(monkeypatch, is_present=True)
    offset = stage.half(A, count=2)
    stage.op(op_line("C", A, offset))
    stage.work(seconds=AGE_S + 20)
    assert ("parked-committed", []) == (stage.on_doubt()[A].state, notices(stage))


@pytest.mark.promise("P11")
def test_notices_of_a_group_are_spread_and_grow_rarer() -> None:
    policy = CheckPolicy(check_rate_max=4, check_interval_max_ms=HOUR_MS)
    made = ParkedNotices(CheckPolicies(policy))
    for number in range(5):
        made.add("g", f"{number}")

    def take(now_ms: int, *, groups: frozenset[str] = frozenset({"g"})) -> list[tuple[str, int]]:
        return made.take(now_ms, groups, is_parked=lambda _: True, open_count=5)

    assert ["g"] == made.groups_due()
    assert [] == take(1, groups=frozenset({"other"}))
    # While scheduled messages are released, or much moves to doubt, time goes on more often.
    looks = [[key for key, _ in take(now_ms)] for now_ms in (1, 2, 101, 501, 1_001, 1_501)]
    assert [["0", "1"], [], [], ["2", "3"], ["4"], []] == looks
    assert [] == made.groups_due()
    told = [at for at in range(0, 10 * 24 * HOUR_MS, HOUR_MS) if any(key == "0" for key, _ in take(at + 10))]
    assert [1, 3, 7, 15, 31, 55] == [at // HOUR_MS for at in told][:6]  # 1, 2, 4, 8, 16, then 24 hours


@pytest.mark.promise("P11")
class Aside(list[tuple[int, str, int]]):
    """What nobody may count."""

    def __len__(self) -> int:
        raise AssertionError("it was looked at")


@pytest.mark.promise("P11")
def test_groups_without_members_cost_nothing_when_others_are_told() -> None:
    """Half records may invent hundreds of thousands of them."""
    made = ParkedNotices(CheckPolicies())
    for group in ("away", "shop"):
        made.add(group, group)
    made._entries["away"] = Aside(made._entries["away"])

    found = made.take(NOTICE_LOOK_MS, {"shop"}, is_parked=lambda _key: True, open_count=2)

    assert ([("shop", 1)], 2) == (found, len(made))


def test_notices_of_what_is_settled_are_forgotten() -> None:
    made = ParkedNotices(CheckPolicies())
    for number in range(GAPS_MAX + 1):
        made.add("absent", f"{number}")
    made.take(1, (), is_parked=lambda key: key == "7", open_count=0)
    assert 1 == len(made)
    made.take(2, {"absent"}, is_parked=lambda _: False, open_count=0)
    assert (0, []) == (len(made), made.groups_due())


# --- the producer -----------------------------------------------------------------------------------------------------


def answer_of(stage: ProducerStage) -> OpMessage:
    return stage.answers(1)[0]


@pytest.mark.parametrize("said", [COMMIT, ROLLBACK])
def test_what_on_parked_returns_is_written(stage: ProducerStage, said: Resolution) -> None:
    heard: list[ParkedTransaction] = []

    def on_parked(parked: ParkedTransaction) -> Resolution:
        heard.append(parked)
        return said

    stage.producer(check=lambda _: UNKNOWN, on_parked=on_parked).start()
    stage.ask(parking("a"))

    expected = OpMessage(said, "a/0000000a", "g", 17, 1_700_000_000_000, Source.CHECK)
    assert expected == answer_of(stage)
    assert [ParkedTransaction("a", "0000000a", "g", "too-old", 1, 1_700_000_000_000)] == heard


def test_on_parked_may_leave_it_raise_or_be_missing_and_questions_go_on(
    stage: ProducerStage, caplog: pytest.LogCaptureFixture
) -> None:
    said = iter([None, UNKNOWN, "commit", ValueError("as planned"), SystemExit(), asyncio.CancelledError()])

    def on_parked(_: ParkedTransaction) -> Any:
        answer = next(said)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    producer = stage.producer(check=lambda _: COMMIT, on_parked=on_parked)
    producer.start()
    stage.ask(*(parking(name) for name in "abcdgh"), parking("e", group="other"), question("f"))

    assert ["f/0000000a"] == [answer.key for answer in stage.answers(1)]
    assert {"on_parked.returned", "on_parked.raised"} <= {record.getMessage() for record in caplog.records}
    assert 1 == stats_of(producer).asked


def test_a_coroutine_function_is_refused_where_no_loop_runs_it(stage: ProducerStage) -> None:
    async def on_parked(_parked: ParkedTransaction) -> None:
        raise AssertionError("nothing awaits it")

    with pytest.raises(UsageError, match="AsyncTransactionalProducer"):
        stage.producer(on_parked=on_parked)


def test_a_coroutine_function_that_nothing_awaits_hears_of_no_refusal() -> None:
    async def on_refused(_refused: RefusedResolution) -> None:
        raise AssertionError("nothing awaits it")

    with pytest.raises(UsageError, match="nothing awaits"):
        TransactionalProducer(bootstrap_servers="127.0.0.1:9", group="g", on_refused=on_refused)
    with pytest.raises(UsageError, match="nothing awaits"):
        AsyncTransactionalProducer(bootstrap_servers="127.0.0.1:9", group="g", on_refused=on_refused)


def test_a_notice_without_on_parked_is_passed_over(stage: ProducerStage) -> None:
    stage.producer(check=lambda _: COMMIT).start()
    stage.ask(parking("a"), question("b"))
    assert ["b/0000000a"] == [answer.key for answer in stage.answers(1)]


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_on_parked_runs_on_the_loop(is_coroutine: bool) -> None:
    def plain(_: ParkedTransaction) -> Resolution:
        asyncio.get_running_loop()
        return ROLLBACK

    async def coroutine(parked: ParkedTransaction) -> Resolution:
        await asyncio.sleep(0)
        return plain(parked)

    async def run() -> None:
        answerer = Answerer(check=lambda _: UNKNOWN, on_parked=coroutine if is_coroutine else plain)
        async with answerer.producer:
            await answerer.ask(parking("a"))
            await answerer.until(answerer.stage.resolutions)
        assert [ROLLBACK] == answerer.stage.resolutions()

    asyncio.run(run())


@pytest.mark.promise("P11")
def test_calls_that_never_return_are_bounded_and_that_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("txlayer.producer.aio.HEARING_COUNT_MAX", 3)
    heard: list[str] = []

    async def run() -> None:
        is_over = asyncio.Event()

        async def on_parked(parked: ParkedTransaction) -> None:
            heard.append(parked.txn_id)
            await is_over.wait()

        answerer = Answerer(check=lambda _: COMMIT, on_parked=on_parked)
        async with answerer.producer:
            await answerer.ask(*(parking(name) for name in "abcdef"), question("g"))
            await answerer.until(answerer.stage.resolutions)
            assert ["a", "b", "c"] == heard

            is_over.set()
            await answerer.until(lambda: not answerer.producer._hearing)
            await answerer.ask(parking("d"))
            await answerer.until(lambda: "d" in heard)

    asyncio.run(run())
    assert 1 == [record.getMessage() for record in caplog.records].count("on_parked.left_out")
