"""One trace from the producer's span to the handler's, over memory and over real Kafka."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind

from tests.contract.conftest import OF_HANDLERS
from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.tracing import Shape, Spans, attributes, link_ids, span_id
from tests.support.waiting import wait_until
from txlayer import (
    COMMIT,
    ROLLBACK,
    AsyncOrderedConsumer,
    AsyncTransactionalProducer,
    CheckRequest,
    Context,
    Message,
    OrderedConsumer,
    ReceivedMessage,
    TransactionalProducer,
)
from txlayer.adapters.connect import ProducerConnections
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.telemetry import parse_traceparent
from txlayer.config import CoordinatorConfig, ProducerConfig, SystemTopics
from txlayer.coordinator.loop import Coordinator, make_coordinator
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.testing.stage import IN_TESTS

GIVEN = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Scene:
    """A namespace with a coordinator, one real topic, and spans."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ns = unique_name("ns")
        namespace = Namespace(lab.admin(), topics=SystemTopics(self.ns))
        namespace.apply(partition_count=2, replication_factor=1)
        self.topic = lab.topic()
        self.group = unique_name("group")
        for name in (dead_letter_topic, replay_topic):
            lab.create(name(self.group, self.topic))

    def settings(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.lab.servers, "namespace": self.ns}

    def connect(self, config: ProducerConfig) -> ProducerConnections:
        given = {f.name: getattr(config, f.name) for f in fields(config)}
        del given["bootstrap_servers"]
        return self.lab.producer(**given)

    def producer(self, spans: Spans | None, **given: Any) -> TransactionalProducer:
        if spans is not None:
            given["tracing"] = spans.tracing
        return TransactionalProducer(group="shop", connect=self.connect, **self.settings(), **given)

    @contextmanager
    def coordinator(self, spans: Spans, **given: Any) -> Iterator[Coordinator]:
        config = CoordinatorConfig(**self.settings(), session_timeout=timedelta(seconds=6), **given)
        made = make_coordinator(
            config, self.lab.coordinator(self.ns, **given), tracing=spans.tracing, environment=IN_TESTS
        )
        is_stopping = threading.Event()
        thread = threading.Thread(target=made.run, kwargs={"should_stop": is_stopping.is_set})
        thread.start()
        try:
            yield made
        finally:
            is_stopping.set()
            thread.join(30)

    def consumer(self, spans: Spans) -> OrderedConsumer:
        return OrderedConsumer(
            group=self.group,
            topics=[self.topic],
            start_at="earliest",
            tracing=spans.tracing,
            connect=self.lab.connect_consumer,
            **self.settings(),
        )


@pytest.fixture
def scene(lab: Lab) -> Scene:
    return Scene(lab)


@pytest.fixture
def spans() -> Spans:
    return Spans()


def test_one_trace_from_the_producer_to_the_handler(scene: Scene, spans: Spans) -> None:
    ns, topic = scene.ns, scene.topic
    consumer = scene.consumer(spans)

    @consumer.handler
    def handle(_message: ReceivedMessage, context: Context) -> None:
        with spans.tracer.start_as_current_span("handler's own work"):
            seen.append(context.trace_id)

    seen: list[str | None] = []
    with scene.coordinator(spans), scene.producer(spans) as producer, consumer:
        with spans.tracer.start_as_current_span("POST /orders"), producer.transaction() as tx:
            tx.send(topic, key="k", value=b"v")
            tx.prepare()
        spans.wait_for("handler's own work", f"process {topic}", f"forward {topic}")
        wait_until(lambda: any(s.name == f"commit {ns}.op" for s in spans.all()), within=20, what="op")

    assert {
        Shape("POST /orders", SpanKind.INTERNAL, ""),
        Shape(f"prepare {ns}.half", SpanKind.PRODUCER, "POST /orders"),
        Shape(f"commit {ns}.op", SpanKind.CLIENT, f"prepare {ns}.half"),
        Shape(f"forward {topic}", SpanKind.CLIENT, f"prepare {ns}.half"),
        Shape(f"process {topic}", SpanKind.CONSUMER, f"prepare {ns}.half"),
        Shape("handler's own work", SpanKind.INTERNAL, f"process {topic}"),
    } == spans.shapes()
    (trace_id,) = spans.trace_ids()
    assert [f"{trace_id:032x}"] == seen
    for span in spans.all():
        if span.kind is not SpanKind.INTERNAL:
            said = attributes(span)
            assert ("kafka", tx.txn_id) == (said["messaging.system"], said["txlayer.txn_id"])
            assert span.name.startswith(said["messaging.operation.name"])
    assert topic == attributes(spans.one(f"forward {topic}"))["messaging.destination.name"]


@OF_HANDLERS
def test_a_question_and_its_answer_stand_in_the_trace(scene: Scene, spans: Spans) -> None:
    asked: list[CheckRequest] = []

    def check(request: CheckRequest) -> Any:
        asked.append(request)
        with spans.tracer.start_as_current_span("look into the database"):
            return ROLLBACK

    producer = scene.producer(spans, check=check)
    with scene.coordinator(spans, check_immunity=timedelta(milliseconds=1)), producer:
        with producer.transaction(immunity=timedelta(milliseconds=100)) as tx:
            tx.send(scene.topic, value=b"v")
            tx.prepare()
            tx.unknown()
        spans.wait_for(f"answer {scene.ns}.check")

    prepare = f"prepare {scene.ns}.half"
    assert {
        Shape(prepare, SpanKind.PRODUCER, ""),
        Shape(f"unknown {scene.ns}.op", SpanKind.CLIENT, prepare),
        Shape(f"check {scene.ns}.check", SpanKind.PRODUCER, prepare),
        Shape(f"answer {scene.ns}.check", SpanKind.CONSUMER, f"check {scene.ns}.check"),
        Shape("look into the database", SpanKind.INTERNAL, f"answer {scene.ns}.check"),
    } == spans.shapes()
    answer = attributes(spans.one(f"answer {scene.ns}.check"))
    assert ("ROLLBACK", tx.txn_id) == (answer["txlayer.resolution"], asked[0].txn_id)


@OF_HANDLERS
def test_what_took_longer_than_a_trace_may_is_linked(scene: Scene) -> None:
    spans = Spans(trace_age_max=timedelta(0))
    with scene.coordinator(spans), scene.producer(spans) as producer:
        with producer.transaction() as tx:
            tx.send(scene.topic, value=b"v")
            tx.prepare()
            began = time.time()
            wait_until(lambda: time.time() > began + 0.01, within=5, what="some time")
        spans.wait_for(f"forward {scene.topic}")

    prepare = spans.one(f"prepare {scene.ns}.half")
    forward = spans.one(f"forward {scene.topic}")
    assert (None, [span_id(prepare)]) == (forward.parent, link_ids(forward))


@OF_HANDLERS
def test_a_context_that_the_user_gave_stays(scene: Scene, spans: Spans) -> None:
    with scene.coordinator(spans), scene.producer(spans) as producer:
        producer.publish(Message(scene.topic, value=b"v", headers={"traceparent": GIVEN}))
        spans.wait_for(f"forward {scene.topic}")
        # The span ends with the commit's answer; markers are written behind it.
        wait_until(lambda: scene.lab.read(scene.topic), within=20, what="it is visible")

    (record,) = scene.lab.read(scene.topic)
    assert [GIVEN] == [value for name, value in record.headers if name == "traceparent"]
    assert [0xB7AD6B7169203331] == link_ids(spans.one(f"prepare {scene.ns}.half"))
    forward = spans.one(f"forward {scene.topic}").context
    assert 0x0AF7651916CD43DD8448EB211C80319C == (forward and forward.trace_id)


@OF_HANDLERS
def test_messages_of_who_traces_nothing_carry_nothing(scene: Scene, spans: Spans) -> None:
    with scene.coordinator(spans), scene.producer(None) as producer:
        producer.publish(Message(scene.topic, value=b"v"))
        wait_until(lambda: scene.lab.read(scene.topic), within=20, what="it is forwarded")

    (record,) = scene.lab.read(scene.topic)
    assert {"txl-id", "txl-origin"} == {name for name, _ in record.headers}
    assert [] == list(spans.all())


@OF_HANDLERS
def test_who_is_not_sampled_is_recorded_nowhere_and_says_so(scene: Scene) -> None:
    spans = Spans(sampler=ParentBased(ALWAYS_OFF))
    with scene.coordinator(spans), scene.producer(spans) as producer:
        producer.publish(Message(scene.topic, value=b"v"))
        wait_until(lambda: scene.lab.read(scene.topic), within=20, what="it is forwarded")

    (record,) = scene.lab.read(scene.topic)
    (context,) = [value for name, value in record.headers if name == "traceparent"]
    found = parse_traceparent(context or b"")
    assert found is not None
    assert (False, []) == (found.is_sampled, list(spans.all()))


@OF_HANDLERS
def test_submitted_transactions_and_their_futures_are_traced(scene: Scene, spans: Spans) -> None:
    with scene.producer(spans) as producer:
        with spans.tracer.start_as_current_span("load"):
            plain = producer.submit(Message(scene.topic, value=b"1"))
            worked = producer.submit(Message(scene.topic, value=b"2"), lambda _: ROLLBACK)
        assert (COMMIT, ROLLBACK) == (plain.result(20).resolution, worked.result(20).resolution)
        spans.wait_for(f"commit {scene.ns}.op", f"rollback {scene.ns}.op")

    assert 1 == len(spans.trace_ids())
    assert 2 == sum(s.name == f"prepare {scene.ns}.half" for s in spans.all())


@OF_HANDLERS
def test_coroutines_are_traced_too(scene: Scene, spans: Spans) -> None:
    async def run() -> None:
        consumer = AsyncOrderedConsumer(
            group=scene.group,
            topics=[scene.topic],
            start_at="earliest",
            tracing=spans.tracing,
            connect=scene.lab.connect_consumer,
            **scene.settings(),
        )
        handled = asyncio.Event()

        @consumer.handler
        async def handle(_message: ReceivedMessage, _context: Context) -> None:
            with spans.tracer.start_as_current_span("own work"):
                handled.set()

        async with (
            AsyncTransactionalProducer(
                group="shop", connect=scene.connect, tracing=spans.tracing, **scene.settings()
            ) as producer,
            consumer,
        ):
            with spans.tracer.start_as_current_span("request"):
                async with producer.transaction() as tx:
                    tx.send(scene.topic, value=b"v")
                    await tx.prepare()
                await producer.publish(Message(scene.topic, value=b"w"))
            await asyncio.wait_for(handled.wait(), 20)

    with scene.coordinator(spans):
        asyncio.run(run())
    spans.wait_for(f"process {scene.topic}", "own work")

    assert 1 == len(spans.trace_ids())
    assert Shape("own work", SpanKind.INTERNAL, f"process {scene.topic}") in spans.shapes()
    assert Shape(f"prepare {scene.ns}.half", SpanKind.PRODUCER, "request") in spans.shapes()


@OF_HANDLERS
def test_a_handler_that_raises_ends_its_span_with_the_kind_alone(scene: Scene, spans: Spans) -> None:
    consumer = scene.consumer(spans)

    @consumer.handler
    def handle(_message: ReceivedMessage, _context: Context) -> None:
        raise ValueError("customer 7 is unknown")

    with scene.coordinator(spans), scene.producer(spans) as producer, consumer:
        producer.publish(Message(scene.topic, value=b"v"))
        spans.wait_for(f"process {scene.topic}")

    first = next(s for s in spans.all() if s.name == f"process {scene.topic}")
    assert "ValueError" == attributes(first)["error.type"]
    assert 1 == attributes(first)["txlayer.attempt"]
    assert "customer" not in first.to_json()


@OF_HANDLERS
def test_a_batch_links_to_all_its_messages(scene: Scene, spans: Spans) -> None:
    consumer = scene.consumer(spans)
    handled = threading.Event()

    @consumer.batch_handler
    def handle(messages: list[ReceivedMessage], _context: Context) -> None:
        assert trace.get_current_span().get_span_context().is_valid
        if len(messages) == 2:
            handled.set()

    with scene.coordinator(spans), scene.producer(spans) as producer:
        for value in (b"1", b"2"):  # in order: else two half partitions may forward them either way
            producer.publish(Message(scene.topic, key=b"k", value=value), ordering_key="k")
        wait_until(lambda: len(scene.lab.read(scene.topic)) == 2, within=20, what="both are there")
        with consumer:
            assert handled.wait(20)

    spans.wait_for(f"process {scene.topic}")
    prepared = [span_id(s) for s in spans.all() if s.name == f"prepare {scene.ns}.half"]
    batch = next(s for s in spans.all() if s.name == f"process {scene.topic}")
    assert (prepared, None) == (link_ids(batch), batch.parent)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[Any]]:
    caplog.set_level(logging.INFO, logger="txlayer")
    return lambda name: [r for r in caplog.records if r.getMessage() == name]


@OF_HANDLERS
def test_log_lines_of_a_transaction_name_it_and_its_trace(
    scene: Scene, spans: Spans, lines: Callable[[str], list[Any]]
) -> None:
    checks = {"check_immunity": timedelta(milliseconds=1), "check_max": 1}
    producer = scene.producer(spans, check=lambda _: None)
    with scene.coordinator(spans, **checks, check_interval=timedelta(milliseconds=100)), producer:
        with producer.transaction() as tx:
            tx.send(scene.topic, value=b"v")
            tx.prepare()
            tx.unknown()
        wait_until(lambda: lines("transaction.parked"), within=30, what="it is parked")

    (line,) = lines("transaction.parked")
    (trace_id,) = spans.trace_ids()
    assert (tx.txn_id, f"{trace_id:032x}") == (line.txn_id, line.trace_id)
