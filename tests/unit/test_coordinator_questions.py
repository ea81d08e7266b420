"""A check topic that refuses: questions wait until it takes them again, and nothing else waits for them."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.support.core_records import GROUP, txn_key
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.errors import Code
from txlayer.adapters.memory.world import RefusedError
from txlayer.core.codec import decode_check
from txlayer.core.messages import CheckRecord

OPEN, GOOD = txn_key("open"), txn_key("good")
MANY_TOPICS = "x" * 200


class CheckTopic:
    """The check topic of a stage, whose group always has members; its broker refuses records of more than `size_max` with `code`."""

    def __init__(self, stage: StillCoordinator, code: Code, *, size_max: int = 0) -> None:
        self.is_refusing = True
        self.tried_at: list[float] = []
        self._stage = stage
        connections: Any = stage.coordinator._connections
        connections.groups_with_members = frozenset  # of all that are asked about
        broker: Any = stage.kafka.cluster
        produce = broker.produce

        def refuse(place: Any, records: Any, *arguments: Any) -> Any:
            if place[0] == stage.topics.check:
                self.tried_at.append(stage.world.passed_s)
                if self.is_refusing and max(len(r.value()) for r in records) > size_max:
                    raise RefusedError(code)
            return produce(place, records, *arguments)

        broker.produce = refuse  # the broker's own answer

    @property
    def questions(self) -> list[CheckRecord]:
        """Those that stand in the topic."""
        found = [decode_check(r.value()) for r in self._stage.kafka.records(self._stage.topics.check)]
        return [check for check in found if isinstance(check, CheckRecord)]


@pytest.mark.fault("check handler: the check topic takes nothing (no leader, too few replicas, no right)")
@pytest.mark.promise("P7")
@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    "code",
    [
        Code.UNKNOWN,
        Code.INVALID_RECORD,
        Code.POLICY_VIOLATION,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_LEADER_FOR_PARTITION,
        Code.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_while_the_check_topic_refuses_questions_wait_and_nothing_else_does(code: Code) -> None:
    stage = StillCoordinator()
    coordinator, check, is_committed = stage.coordinator, CheckTopic(stage, code), False
    stage.half(OPEN)

    def goes_on() -> bool:
        nonlocal is_committed
        now = stage.world.passed_s
        if not is_committed and now > 300:
            is_committed = True
            stage.commit(GOOD, stage.half(GOOD))  # behind the one that is asked about
        if check.is_refusing and now > 900:
            assert [GOOD.partition("/")[0]] == stage.visible()
            # A try may take a time-out, in which no message is forwarded: there are few.
            assert 30 > coordinator.measures.rebuild_count
            check.is_refusing = False
        return now > 1_500

    stage.run(goes_on, seconds=1_500)

    question = check.questions[0]
    assert (OPEN, GROUP, 1) == (question.key, question.producer_group, question.number)
    assert {OPEN: "open"} == {key: summary.state for key, summary in stage.on_doubt().items()}


@pytest.mark.fault("check handler: the check topic takes nothing (no leader, too few replicas, no right)")
@pytest.mark.promise("P11")
def test_a_check_topic_that_refuses_is_tried_after_growing_pauses() -> None:
    stage = StillCoordinator()
    check, coordinator = CheckTopic(stage, Code.INVALID_RECORD), stage.coordinator
    stage.half(OPEN)

    stage.work(seconds=3_600)

    tries = [at for at in check.tried_at if at > 60]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert 5 < len(tries) < 20
    assert sorted(pauses) == pytest.approx(pauses, abs=2)
    assert 300 == pytest.approx(max(pauses), abs=2)
    assert 40 > coordinator.measures.rebuild_count


@pytest.mark.fault("check handler: the check topic refuses a question as too large")
@pytest.mark.promise("P7")
def test_the_size_of_a_question_that_was_refused_is_tried_again_after_ten_minutes() -> None:
    stage = StillCoordinator()
    check = CheckTopic(stage, Code.MSG_SIZE_TOO_LARGE, size_max=200)
    stage.half(OPEN, topic=MANY_TOPICS)

    def goes_on() -> bool:
        if stage.world.passed_s > 60:
            check.is_refusing = False  # the topic takes larger records by now
        return stage.world.passed_s > 1_800

    stage.run(goes_on, seconds=1_800)

    texts = {question.number: question.text for question in check.questions}
    assert "" == texts[1]
    assert MANY_TOPICS == texts[max(texts)]


@pytest.mark.promise("P7")
def test_the_pause_of_questions_ends_with_an_outage_of_all_topics() -> None:
    stage = StillCoordinator(hold_after=timedelta(hours=1))
    check = CheckTopic(stage, Code.NOT_ENOUGH_REPLICAS)
    broker: Any = stage.kafka.cluster
    produce, healed_at_s, is_committed = broker.produce, 400.0, False

    def refuse(place: Any, records: Any, *arguments: Any) -> Any:
        if check.is_refusing and place[0] == "orders":
            raise RefusedError(Code.NOT_ENOUGH_REPLICAS)
        return produce(place, records, *arguments)

    broker.produce = refuse
    stage.half(OPEN)

    def goes_on() -> bool:
        nonlocal is_committed
        now = stage.world.passed_s
        check.is_refusing = now < healed_at_s
        if now > 370 and not is_committed:  # questions are paused until 610 by now
            is_committed = True
            stage.commit(GOOD, stage.half(GOOD))
        return now > healed_at_s + 60 or bool(check.questions)

    stage.run(goes_on, seconds=460)

    assert [OPEN] == [question.key for question in check.questions]
    assert [GOOD.partition("/")[0]] == stage.visible()
