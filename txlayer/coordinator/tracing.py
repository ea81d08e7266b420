"""Makes spans of what a coordinator publishes. Without tracing nothing here is called.

    forward <topic>       one transaction's messages, from the Kafka transaction's begin until it was answered
    check <ns>.check      one question; its context is the header `traceparent` of the question

Both follow from the context that the half records carry as an ordinary header. There is no span without one, or when the
context is not sampled.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.tracing import LINKS_MAX, Span, SpanRole, TraceContext, Tracing, age_ms, trace_context_of
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.metrics import trace_of
from txlayer.core.ledger.batch import Batch
from txlayer.core.ledger.transaction import Transaction, records_of
from txlayer.core.messages import CheckKind, CheckRecord, txn_id_of

REMEMBERED_MAX = 10_000
"""Contexts of transactions whose contents are on the doubt topic, or gone already: for the next question, or a refusal."""


class CoordinatorSpans:
    """Makes spans of what a coordinator's publishers publish: a `PublishObserver`."""

    def __init__(self, tracing: Tracing, *, check_topic: str) -> None:
        self.remembered: OrderedDict[str, TraceContext] = OrderedDict()
        self._tracing = tracing
        self._check_topic = check_topic
        self._started_ns = 0
        self._questions: list[Span] = []

    def begun(self) -> None:
        """A Kafka transaction begins; the spans of one that was not published are never ended, so they are never exported."""
        self._started_ns = time.time_ns()
        self._questions = []

    def published(self, batches: Sequence[tuple[int, Batch]]) -> None:
        """The Kafka transaction is committed."""
        for span in self._questions:
            span.end()
        for partition, batch in batches:
            for keep in batch.to_doubt.values():
                if keep.is_whole and (context := trace_of(keep.txn)) is not None:
                    self._remember(keep.txn.key, context)
            for txn in batch.forwards:
                context = trace_of(txn)
                if context is not None and context.is_sampled:
                    self._forwarded(partition, txn, context)

    def asked(self, partition: int, check: CheckRecord, txn: Transaction | None) -> list[tuple[str, Any]] | None:
        """The headers that carry the context of a question or notice; None: its transaction has none that is recorded."""
        context = None if txn is None else trace_of(txn)
        if context is None:
            context = self.remembered.get(check.key)
        if context is None or not context.is_sampled:
            return None
        if check.kind is CheckKind.QUESTION:
            context = self._asked(partition, check, context)
        return list(context.headers)

    def _forwarded(self, partition: int, txn: Transaction, context: TraceContext) -> None:
        self._remember(txn.key, context)
        topics = txn.topics
        attributes: dict[str, str | int | bool] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "forward",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": txn.count,
            "txlayer.txn_id": txn_id_of(txn.key),
            "txlayer.producer_group": txn.group,
            "txlayer.half.partition": partition,
            "txlayer.half.offset": txn.last_offset,
        }
        if len(topics) == 1:
            attributes["messaging.destination.name"] = topics[0]
        self._tracing.start(
            f"forward {topics[0]}" if len(topics) == 1 else "forward",
            SpanRole.CLIENT,
            attributes=attributes,
            cause=context,
            age_ms=age_ms(txn.born_ms),
            links=_others(txn, context),
            started_ns=self._started_ns,
        ).end()

    def _asked(self, partition: int, check: CheckRecord, context: TraceContext) -> TraceContext:
        self._remember(check.key, context)
        span = self._tracing.start(
            f"check {self._check_topic}",
            SpanRole.PRODUCER,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.name": "check",
                "messaging.operation.type": "send",
                "messaging.destination.name": self._check_topic,
                "txlayer.txn_id": txn_id_of(check.key),
                "txlayer.producer_group": check.producer_group,
                "txlayer.half.partition": partition,
                "txlayer.check_number": check.number,
            },
            cause=context,
            age_ms=age_ms(check.born_ms),
        )
        self._questions.append(span)
        return span.context or context

    def _remember(self, key: str, context: TraceContext) -> None:
        self.remembered[key] = context
        self.remembered.move_to_end(key)
        if len(self.remembered) > REMEMBERED_MAX:
            self.remembered.popitem(last=False)


def _others(txn: Transaction, context: TraceContext) -> list[TraceContext]:
    """Contexts of a transaction's further messages, where their user gave them others than the first one's."""
    found = [trace_context_of(record.headers()) for _, record in records_of(txn)]
    return [c for c in dict.fromkeys(found) if c is not None and c != context][:LINKS_MAX]


def make_coordinator(
    config: CoordinatorConfig, connections: CoordinatorConnections, *, tracing: Tracing
) -> Coordinator:
    """A coordinator whose forwards and questions make spans; with a tracing that is off nothing listens to it."""
    spans = CoordinatorSpans(tracing, check_topic=config.topics.check) if tracing.is_on else None
    return Coordinator(config, connections, observer=spans)
