"""A coordinator's questions: a check topic that refuses, and the limits of the check topic with tracing."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.support.core_records import GROUP, half_header, op_line, txn_key
from tests.support.still_coordinator import RefusedTopic, StillCoordinator
from tests.support.tracing import Spans
from txlayer.adapters.errors import Code
from txlayer.adapters.telemetry import TraceContext
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.metrics import CoordinatorSpans
from txlayer.coordinator.publish import Precautions, Publisher
from txlayer.coordinator.targets import GroupPresence
from txlayer.core.codec import HALF_HEADER, decode_check
from txlayer.core.ledger.batch import Batch
from txlayer.core.messages import CheckKind, CheckRecord

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

        def answer(topic: str, records: list[Any]) -> Code | None:
            if topic != stage.topics.check:
                return None
            self.tried_at.append(stage.world.passed_s)
            return code if self.is_refusing and max(len(r.value()) for r in records) > size_max else None

        stage.refuse(answer)

    @property
    def questions(self) -> list[CheckRecord]:
        """Those that stand in the topic."""
        found = [decode_check(r.value()) for r in self._stage.kafka.records(self._stage.topics.check)]
        return [check for check in found if isinstance(check, CheckRecord)]


@pytest.mark.fault("check handler: the check topic takes nothing (no leader, too few replicas, no right)")
@pytest.mark.promise("P7", "P11")
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
            assert 30 > coordinator.counts.rebuild_count
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
    assert 40 > coordinator.counts.rebuild_count


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
    orders = RefusedTopic(stage, "orders", Code.NOT_ENOUGH_REPLICAS)
    healed_at_s, is_committed = 400.0, False
    stage.half(OPEN)

    def goes_on() -> bool:
        nonlocal is_committed
        now = stage.world.passed_s
        check.is_refusing = orders.is_refused = now < healed_at_s
        if now > 370 and not is_committed:  # questions are paused until 610 by now
            is_committed = True
            stage.commit(GOOD, stage.half(GOOD))
        return now > healed_at_s + 60 or bool(check.questions)

    stage.run(goes_on, seconds=460)

    assert [OPEN] == [question.key for question in check.questions]
    assert [GOOD.partition("/")[0]] == stage.visible()


KEY = "wide/0000000a"
PARENT = TraceContext(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
SIZE_MAX = 500


class Writer:
    """Takes everything and keeps the records."""

    batch_bytes_max = 1

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []

    def produce(self, *arguments: Any) -> None:
        """Takes it."""
        self.written.append(arguments)

    def flush(self, *, timeout_s: float) -> int:
        """Everything is acknowledged."""
        del timeout_s
        return 0

    def nothing(self, *_: Any, **__: Any) -> None:
        """Takes it."""

    initialise = begin = send_offsets = commit = close = nothing


class Book:
    """No targets."""

    batch_bytes_max = 1


def questions(
    spans: Spans, *, is_careful: bool, context: TraceContext = PARENT, kind: CheckKind = CheckKind.QUESTION
) -> list[tuple[Any, ...]]:
    """What a publisher writes that is asked about one transaction with very many topics."""
    config, writer = CoordinatorConfig(), Writer()
    observer = CoordinatorSpans(spans.tracing, check_topic=config.topics.check)
    observer.remembered[KEY] = context
    make: Any = lambda *_, **__: writer  # noqa: E731 - both writers are one
    book: Any = Book()
    publisher = Publisher(config, name="w", make_writer=make, targets=book, observer=observer)
    publisher.start()
    question = CheckRecord(kind, KEY, "shop", 0, number=1, text="x" * 2 * SIZE_MAX)
    precautions = Precautions(is_careful=is_careful, question_bytes_max=SIZE_MAX)
    publisher.publish([(0, Batch(checks={KEY: question}))], {}, None, precautions)
    return writer.written


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_careful", [True, False])
def test_a_traced_question_that_is_too_large_names_no_topics(*, is_careful: bool) -> None:
    spans = Spans()

    ((_, line, *_, headers),) = questions(spans, is_careful=is_careful)

    assert b"xxx" not in line
    assert KEY.encode() in line
    assert ["traceparent"] == [name for name, _ in headers]
    assert 1 == len(spans.all())


@pytest.mark.promise("P11")
def test_a_traced_question_of_a_careful_try_waits_for_its_report() -> None:
    (written,) = questions(Spans(), is_careful=True)

    assert written[4] is not None


TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TracedCoordinator(Coordinator):
    """A coordinator that traces."""

    def __init__(self, config: Any, connections: Any, **named: Any) -> None:
        spans = CoordinatorSpans(Spans().tracing, check_topic=config.topics.check)
        super().__init__(config, connections, observer=spans, **named)


def traced_half(still: StillCoordinator, key: str, *, parent: bytes, state: bytes) -> int:
    headers = [("traceparent", parent), ("tracestate", state), (HALF_HEADER, half_header(key))]
    return still.kafka.append(still.topics.half, b"v", partition=0, headers=headers)


@pytest.mark.promise("P7", "P11")
def test_a_long_trace_of_one_transaction_keeps_no_question_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notice that its second word came too late carries the whole trace state, and is refused for it."""
    monkeypatch.setattr(GroupPresence, "of", lambda *_: frozenset({"shop"}))
    still = StillCoordinator(make=TracedCoordinator)
    still.kafka.cluster.alter_topic(still.topics.check, {"max.message.bytes": "3000"})
    poison, good = txn_key("poison"), txn_key("good-" + "0" * 60)
    still.half(good)  # young: a restart reads half from here
    offset = traced_half(still, poison, parent=TRACEPARENT, state=b"a=" + b"b" * 5_000)
    still.commit(poison, offset)
    turn = 0

    def should_stop() -> bool:
        nonlocal turn
        turn += 1
        if turn == 20:
            still.op(op_line("R", poison, offset))
        return still.world.passed_s >= 300 or turn > 5_000

    still.run(should_stop, seconds=300)

    checks = [decode_check(r.value()) for r in still.kafka.records(still.topics.check)]
    asked = [c.key for c in checks if isinstance(c, CheckRecord) and c.kind is CheckKind.QUESTION]
    assert good in asked


@pytest.mark.promise("P11")
def test_what_is_remembered_of_traces_is_bounded() -> None:
    still = StillCoordinator(make=TracedCoordinator)
    states = [(TRACEPARENT, b"a=" + b"b" * 20_000), (b"01" + TRACEPARENT[2:] + b"-" * 20_000, b"")]
    for number in range(20):
        key, (parent, state) = txn_key(f"t{number}"), states[number % 2]
        offset = traced_half(still, key, parent=parent, state=state)
        still.op(op_line("C", key, offset))
    coordinator = still.coordinator
    still.work(seconds=10)

    kept = coordinator._traces.values()
    assert 10 == len(kept)
    assert all(len(c.traceparent) + len(c.tracestate or b"") <= 512 + 256 for c in kept)


@pytest.mark.promise("P7")
@pytest.mark.parametrize("is_careful", [True, False])
def test_a_notice_that_is_too_large_with_its_trace_goes_without(*, is_careful: bool) -> None:
    spans = Spans()
    state = b"a=" + b"b" * 500  # with the notice more than the check topic takes

    ((_, value, _, _, _, _, _, headers),) = questions(
        spans, is_careful=is_careful, context=PARENT._replace(tracestate=state), kind=CheckKind.REFUSED
    )

    assert isinstance(decode_check(value), CheckRecord)
    assert headers is None
