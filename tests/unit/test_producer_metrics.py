"""What a program's producers show: how their transactions ended, how long that took, what is in flight, and the spans of those that go wrong."""

import asyncio
import gc
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor

from tests.support.producer_stage import HALF, OP, ORDER, ProducerStage, World, commit, question
from tests.support.tracing import Spans, attributes
from txlayer.adapters.telemetry import HEADER_BYTES, INFO, LABEL_COUNT_MAX, HistogramView
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution
from txlayer.errors import BrokerUnavailableError, OutcomeUnknownError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.engine import assemble
from txlayer.producer.interceptors import traced
from txlayer.producer.metrics import (
    ANSWERS,
    DURATION,
    ENDED,
    FAMILIES,
    IN_FLIGHT_MAX,
    LIMITED,
    OP_DURATION,
    OPEN,
    QUESTIONS,
    ProducerMetrics,
)
from txlayer.producer.pipeline import PendingTransaction
from txlayer.producer.questions import OpenLimit
from txlayer.producer.submitted import SubmittedTransaction


class MeasuredWorld(World):
    """A world whose engine is followed."""

    def __init__(self, metrics: ProducerMetrics, **settings: Any) -> None:
        super().__init__(**settings)
        metrics.follow(self.engine)

    def end(self, txn: PendingTransaction, resolution: Resolution) -> None:
        """Say it, and have what follows reported."""
        self.say(txn, resolution)
        self.serve()

    def say(self, txn: PendingTransaction, resolution: Resolution) -> None:
        """Add it to the op queue; nothing is written."""
        txn.resolution = resolution
        txn.queue.waiting.append(txn)


@pytest.fixture
def metrics() -> ProducerMetrics:
    return ProducerMetrics()


@pytest.fixture
def world(metrics: ProducerMetrics) -> MeasuredWorld:
    return MeasuredWorld(metrics)


def values(metrics: ProducerMetrics, family: Any) -> dict[tuple[str, ...], Any]:
    """{labels behind the group: value} of a family."""
    return {s.labels[1:]: s.value for s in metrics.samples() if s.family is family}


def ended(metrics: ProducerMetrics) -> dict[str, int]:
    """{outcome: how many}, those that there are."""
    return {outcome: count for (outcome,), count in values(metrics, ENDED).items() if count}


def view(metrics: ProducerMetrics, family: Any) -> HistogramView:
    """The histogram of the one group."""
    (found,) = values(metrics, family).values()
    assert isinstance(found, HistogramView)
    return found


def test_what_the_broker_acknowledged_is_counted_by_resolution(metrics: ProducerMetrics, world: MeasuredWorld) -> None:
    for number, resolution in enumerate((COMMIT, COMMIT, ROLLBACK, UNKNOWN)):
        world.end(world.prepared(key=f"order-{number}/00000001"), resolution)
        world.serve()

    assert {"commit": 2, "rollback": 1, "unknown": 1} == ended(metrics)
    assert 4 == view(metrics, DURATION).counts[-1]
    assert 4 == view(metrics, OP_DURATION).counts[-1]


def test_many_in_one_op_record_count_as_many(metrics: ProducerMetrics, world: MeasuredWorld) -> None:
    txns = [world.prepared(key="order-1/00000001") for _ in range(11)]
    for txn in txns:
        world.say(txn, COMMIT)
    world.serve(2)

    assert {"commit": 11} == ended(metrics)
    assert 11 == view(metrics, DURATION).counts[-1]
    assert 1 == view(metrics, OP_DURATION).counts[-1]


def test_what_was_not_stored_failed_and_is_no_rollback(metrics: ProducerMetrics, world: MeasuredWorld) -> None:
    refused = iter([None, BrokerUnavailableError("away")])
    world.writer.refuse = lambda r: next(refused, None) if r.topic() == HALF else None
    world.launch([ORDER, ORDER])
    world.serve(3)  # the half message that is stored is rolled back

    assert 1 == len(world.writer.ops())
    assert {"failed": 1} == ended(metrics)
    assert 0 == view(metrics, DURATION).counts[-1]


def test_a_resolution_that_may_not_be_stored_is_lost(metrics: ProducerMetrics, world: MeasuredWorld) -> None:
    txn = world.prepared()
    world.writer.refuse = lambda r: None if r.topic() == HALF else OutcomeUnknownError("?", txn_id="a", step="op")
    world.engine.pipeline.resolution_timeout_s = 0
    world.end(txn, COMMIT)
    world.serve()

    assert {"lost": 1} == ended(metrics)


def test_the_producers_of_a_group_are_one_and_a_gone_one_leaves_its_counts(
    metrics: ProducerMetrics, world: MeasuredWorld
) -> None:
    other = MeasuredWorld(metrics, in_flight_max=7)
    other.end(other.prepared(), COMMIT)
    other.serve()
    world.engine.limit = OpenLimit((0,), 5)
    both = values(metrics, OPEN), values(metrics, IN_FLIGHT_MAX), values(metrics, LIMITED)
    in_flight_max = world.engine.config.in_flight_max
    del other
    gc.collect()

    assert ({(): 2}, {(): in_flight_max + 7}, {(): 1}) == both
    assert {"commit": 1} == ended(metrics)
    assert {"commit": 1} == ended(metrics)
    assert {(): 1} == values(metrics, OPEN)


def test_what_a_producer_answers_is_counted_by_answer(metrics: ProducerMetrics, stage: ProducerStage) -> None:
    stage.producer(check=commit, metrics=metrics).start()
    stage.ask(question("a"))
    stage.answers(1)

    assert {(): 1} == values(metrics, QUESTIONS)
    assert {("commit",): 1, ("rollback",): 0, ("unknown",): 0} == values(metrics, ANSWERS)


async def publish_one(stage: ProducerStage, metrics: ProducerMetrics) -> None:
    """By a producer for asyncio."""
    async with AsyncTransactionalProducer(
        bootstrap_servers="127.0.0.1:9", group="g", connect=stage.connect, metrics=metrics
    ) as producer:
        await producer.publish(ORDER)


def test_both_kinds_of_producers_are_counted_traced_or_not(metrics: ProducerMetrics, stage: ProducerStage) -> None:
    stage.producer(metrics=metrics).publish(ORDER)
    stage.producer(metrics=metrics, tracing=Spans().tracing).publish(ORDER)
    asyncio.run(publish_one(stage, metrics))

    assert {"commit": 3} == ended(metrics)


def test_every_family_is_shown_and_groups_beyond_the_limit_are_one(metrics: ProducerMetrics) -> None:
    worlds = []
    for number in range(LABEL_COUNT_MAX + 2):
        worlds.append(World())
        worlds[-1].engine.pipeline.group = f"group-{number}"
        metrics.follow(worlds[-1].engine)
    found = list(metrics.samples())

    assert {*FAMILIES, INFO} == {sample.family for sample in found}
    groups = [s.labels[0] for s in found if s.family is OPEN]
    assert LABEL_COUNT_MAX + 1 == len(groups)
    assert [2] == [s.value for s in found if s.family is OPEN and s.labels == ("other",)]


def test_who_shows_nothing_has_no_meter() -> None:
    assert not World().engine.pipeline.meters


class TracedWorld(World):
    """A world whose engine makes spans."""

    def __init__(self, spans: Spans, **settings: Any) -> None:
        super().__init__(partial(assemble, watchers=traced(spans.tracing), spare_bytes=HEADER_BYTES), **settings)


@pytest.fixture
def spans() -> Spans:
    return Spans()


def errors(spans: Spans) -> dict[str, str]:
    """{name of a span: the kind of error that it ended with, "" for none}."""
    return {s.name: str(attributes(s).get("error.type", "")) for s in spans.all()}


def test_what_was_not_stored_ends_the_span_of_prepare_and_is_rolled_back(spans: Spans) -> None:
    world = TracedWorld(spans)
    refused = iter([None, BrokerUnavailableError("away")])
    world.writer.refuse = lambda r: next(refused, None) if r.topic() == HALF else None

    world.launch([ORDER, ORDER])
    world.serve(3)

    assert {f"prepare {HALF}": "BrokerUnavailableError", f"rollback {OP}": ""} == errors(spans)


@pytest.mark.parametrize("message_count", [1, 2])
def test_a_resolution_that_may_not_be_stored_ends_its_span(spans: Spans, message_count: int) -> None:
    world = TracedWorld(spans)
    lost = OutcomeUnknownError("?", txn_id="a", step="op")
    world.writer.refuse = lambda r: None if r.topic() == HALF else lost
    world.engine.pipeline.resolution_timeout_s = 0

    txn = world.launch([ORDER] * message_count, make=SubmittedTransaction)
    world.serve(3)

    assert {f"prepare {HALF}": "", f"commit {OP}": "OutcomeUnknownError"} == errors(spans)
    assert txn.resolution is COMMIT
    assert len(txn.trace_id) == 32


def test_a_transaction_whose_offset_is_found_later_is_prepared_then(spans: Spans) -> None:
    world = TracedWorld(spans)
    txn = world.launch()
    txn.last_offset = -2  # acknowledged, the offset unknown
    txn.unreported_count = 0
    txn.offset_found(7)

    assert [f"prepare {HALF}"] == [s.name for s in spans.all()]
    assert 7 == attributes(spans.one(f"prepare {HALF}"))["messaging.kafka.offset"]


@pytest.mark.parametrize("hook", ["on_start", "on_end"])
def test_a_processor_of_the_users_that_raises_stops_no_transaction(
    spans: Spans, stage: ProducerStage, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    def raise_it(*_given: Any, **_named: Any) -> None:
        raise ValueError("the user's own")

    processor = SpanProcessor()
    monkeypatch.setattr(processor, hook, raise_it)
    spans.provider.add_span_processor(processor)
    with stage.producer(tracing=spans.tracing) as producer:
        results = [producer.submit(ORDER).result(10) for _ in range(2)]

    assert [COMMIT, COMMIT] == [result.resolution for result in results]
