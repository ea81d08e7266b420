"""Spans of transactions that go wrong: every span ends, and names the kind of what happened."""

from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor

from tests.support.producer_stage import HALF, OP, ORDER, ProducerStage, World
from tests.support.tracing import Spans, attributes
from txlayer.adapters.tracing import HEADER_BYTES
from txlayer.core.messages import COMMIT
from txlayer.errors import BrokerUnavailableError, OutcomeUnknownError
from txlayer.producer.engine import assemble
from txlayer.producer.submitted import SubmittedTransaction
from txlayer.producer.tracing import traced


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
