"""A namespace that is closed to new transactions: producers refuse them, and what has begun goes on."""

from collections.abc import Iterator

import pytest

from tests.support.producer_stage import HALF, ORDER, PATIENCE_S, ProducerStage, World, finish
from tests.support.waiting import wait_until
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.ports import TopicLimits
from txlayer.config import SystemTopics
from txlayer.core.messages import COMMIT
from txlayer.core.topics import closed_at_ms
from txlayer.errors import BrokerUnavailableError, NotAcceptingError, RetriableError, TopicMismatchError
from txlayer.operate.topics import Acceptance, accept
from txlayer.producer import engine, steps
from txlayer.producer.engine import watch_entry
from txlayer.producer.questions import OpenLimit

AT_MS = 1_700_000_000_000


def set_accepting(kafka: MemoryKafka, wanted: bool | None, *, now_ms: int = AT_MS) -> Acceptance:
    with kafka.admin() as admin:
        return accept(admin, SystemTopics("txlayer"), wanted=wanted, now_ms=now_ms)


def test_it_is_closed_since_the_first_call_until_it_is_opened(stage: ProducerStage) -> None:
    assert Acceptance(None) == set_accepting(stage.kafka, None)
    assert Acceptance(None) == set_accepting(stage.kafka, True)
    assert Acceptance(AT_MS, is_changed=True) == set_accepting(stage.kafka, False)
    assert Acceptance(AT_MS) == set_accepting(stage.kafka, False, now_ms=AT_MS + 1)
    assert Acceptance(AT_MS) == set_accepting(stage.kafka, None)
    assert Acceptance(None, is_changed=True) == set_accepting(stage.kafka, True)
    assert Acceptance(None) == set_accepting(stage.kafka, None)


def test_without_a_half_topic_nothing_can_be_closed(stage: ProducerStage) -> None:
    stage.kafka.delete_topic(HALF)
    with pytest.raises(TopicMismatchError):
        set_accepting(stage.kafka, False)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), ("0", None), ("3600000", None), ("x", None), (str(AT_MS), AT_MS)]
)
def test_only_a_time_of_this_century_closes(value: str | None, expected: int | None) -> None:
    settings = {} if value is None else {"min.compaction.lag.ms": value}
    assert expected == closed_at_ms(settings)


def test_a_producer_that_starts_while_it_is_closed_sends_nothing(stage: ProducerStage) -> None:
    set_accepting(stage.kafka, False)
    producer = stage.producer()
    producer.start()
    for enter in (producer.transaction, lambda: producer.submit(ORDER), lambda: producer.publish([ORDER, ORDER])):
        with pytest.raises(NotAcceptingError) as raised:
            enter()
        assert ("txlayer", AT_MS) == (raised.value.namespace, raised.value.closed_at_ms)
    assert isinstance(raised.value, RetriableError)
    assert [] == stage.writer.stored


def test_what_is_prepared_goes_on_and_what_is_not_is_refused_at_prepare() -> None:
    world = World()
    prepared = world.prepared()
    world.engine.hear_closed(AT_MS)
    with pytest.raises(NotAcceptingError):
        finish(world.steps(key="order-2/00000002"))
    steps.resolve(world.engine, prepared, COMMIT)
    world.serve()
    assert COMMIT == world.writer.ops()[0].resolution
    world.engine.hear_closed(None)
    assert world.launch(key="order-2/00000002") is not None


def test_what_waits_for_its_turn_when_it_is_closed_sends_nothing() -> None:
    world = World(in_flight_max=1)
    prepared = world.prepared()
    waiting = world.steps(key="order-2/00000002")
    next(waiting)
    world.engine.hear_closed(AT_MS)
    steps.resolve(world.engine, prepared, COMMIT)
    world.serve(2)
    with pytest.raises(NotAcceptingError):
        next(waiting)


def test_the_limit_of_open_transactions_counts_again_once_it_is_opened() -> None:
    made = World().engine
    limit = OpenLimit((0,), 7)
    made.hear_closed(AT_MS)
    made.hear_limit(limit)
    with pytest.raises(NotAcceptingError):
        made.check_entry()
    made.hear_closed(None)
    assert limit == made.limit
    made.hear_limit(None)
    made.check_entry()


def test_a_producer_asks_again_and_believes_the_last_answer() -> None:
    heard: list[TopicLimits] = []
    answers: Iterator[int | Exception | None] = iter([AT_MS, BrokerUnavailableError("away"), None])

    def ask() -> TopicLimits | None:
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        return TopicLimits(1, None, closed_at_ms=answer)

    is_over = watch_entry(ask, heard.append, interval_s=0.001)
    wait_until(lambda: len(heard) >= 2, within=PATIENCE_S, what="two answers")
    is_over.set()
    assert [AT_MS, None] == [limits.closed_at_ms for limits in heard[:2]]


def test_a_running_producer_hears_of_it_within_two_looks_of_five_seconds(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 5.0 == engine.ENTRY_LOOK_S
    monkeypatch.setattr(engine, "ENTRY_LOOK_S", 0.1)
    producer = stage.producer(check=lambda _request: COMMIT)
    with producer.transaction() as tx:
        tx.send("orders", value=b"v")
        tx.prepare()
        set_accepting(stage.kafka, False)

        def is_refused() -> bool:
            try:
                producer.publish(ORDER)
            except NotAcceptingError:
                return True
            return False

        wait_until(is_refused, within=PATIENCE_S, what="the producer refuses")
    assert COMMIT == tx.result().resolution
    set_accepting(stage.kafka, True)
    wait_until(lambda: not is_refused(), within=PATIENCE_S, what="the producer accepts")


@pytest.mark.fault("broker: half and op get more partitions while a producer runs")
def test_a_producer_that_hears_of_another_number_of_partitions_begins_nothing_more_and_ends_what_it_began() -> None:
    world = World()
    prepared = world.prepared()
    count = len(world.engine.pipeline.queues)
    for _ in range(2):
        world.engine.hear_half(TopicLimits(count + 2, None))
        with pytest.raises(TopicMismatchError) as raised:
            world.engine.check_entry()
        assert (HALF, f"{count} partitions", f"{count + 2}") == (
            raised.value.topic,
            raised.value.expected,
            raised.value.found,
        )
        with pytest.raises(TopicMismatchError):
            finish(world.steps(key="order-2/00000002"))
    steps.resolve(world.engine, prepared, COMMIT)
    world.serve()
    assert [COMMIT] == [op.resolution for op in world.writer.ops()]
