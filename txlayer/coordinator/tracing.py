"""A coordinator that makes spans. Who traces nothing runs `Coordinator` itself, which knows nothing of this.

    forward <topic>       one transaction's messages, from the Kafka transaction's begin until it was answered
    check <ns>.check      one question; its context is the header `traceparent` of the question

Both follow from the context that the half records carry as an ordinary header; without one, or with one that nobody
records, there is no span.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from txlayer.adapters.ports import (
    CoordinatorConnections,
    StoredOffset,
    TopicPartition,
    TransactionalWriter,
)
from txlayer.adapters.tracing import Span, SpanRole, Tracing
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.partition import log_reports, trace_of
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.surroundings import REAL, Surroundings
from txlayer.core import codec
from txlayer.core.batch import Batch
from txlayer.core.messages import CheckKind, CheckRecord, txn_id_of
from txlayer.core.trace_context import TraceContext, trace_context_of
from txlayer.core.transaction import Transaction, records_of

REMEMBERED_MAX = 10_000
"""Contexts of transactions whose contents are on the doubt topic, or gone already: for the next question, or a refusal."""


LINKS_MAX = 128
"""Links of one span: what OpenTelemetry keeps of them by default."""


class TracedPublisher(Publisher):
    """A `Publisher` that makes spans of what it publishes."""

    tracing: Tracing
    remembered: OrderedDict[str, TraceContext]

    def publish(
        self,
        batches: Sequence[tuple[int, Batch]],
        offsets: Mapping[TopicPartition, StoredOffset],
        member: Any,
        *,
        is_careful: bool = False,
        cut: Collection[bytes] = (),
        is_watched: bool = False,
    ) -> dict[int, dict[str, int]]:
        """As in `Publisher`; what is not known to have happened has no span."""
        started_ns = time.time_ns()
        self._questions: list[Span] = []
        kept = super().publish(
            batches, offsets, member, is_careful=is_careful, cut=cut, is_watched=is_watched
        )
        for span in self._questions:
            span.end()
        for partition, batch in batches:
            for keep in batch.keeps.values():
                if keep.is_whole and (context := trace_of(keep.txn)) is not None:
                    self._remember(keep.txn.key, context)
            for txn in batch.forwards:
                context = trace_of(txn)
                if context is not None and context.is_sampled:
                    self._forwarded(partition, txn, context, started_ns)
        return kept

    def _forwarded(
        self, partition: int, txn: Transaction, context: TraceContext, started_ns: int
    ) -> None:
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
        self.tracing.start(
            f"forward {topics[0]}" if len(topics) == 1 else "forward",
            SpanRole.CLIENT,
            attributes=attributes,
            cause=context,
            age_ms=self._age_ms(txn.born_ms),
            links=_others(txn, context),
            started_ns=started_ns,
        ).end()

    def _write_words(self, writer: TransactionalWriter, partition: int, batch: Batch) -> None:
        super()._write_words(writer, partition, Batch(policy_lines=batch.policy_lines))
        topic = self._topics.check
        for check in batch.checks.values():
            keep = batch.keeps.get(check.key)
            context = None if keep is None else trace_of(keep.txn)
            if context is None:
                context = self.remembered.get(check.key)
            place = (topic, codec.encode_check(check), codec.check_key(check))
            if context is None or not context.is_sampled:
                self._produce(writer, place)
                continue
            if check.kind is CheckKind.QUESTION:
                context = self._asked(partition, check, context)
            self._produce(writer, (*place, -1, None, None, 0, context.headers))

    def _asked(self, partition: int, check: CheckRecord, context: TraceContext) -> TraceContext:
        self._remember(check.key, context)
        span = self.tracing.start(
            f"check {self._topics.check}",
            SpanRole.PRODUCER,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.name": "check",
                "messaging.operation.type": "send",
                "messaging.destination.name": self._topics.check,
                "txlayer.txn_id": txn_id_of(check.key),
                "txlayer.producer_group": check.producer_group,
                "txlayer.half.partition": partition,
                "txlayer.check_number": check.number,
            },
            cause=context,
            age_ms=self._age_ms(check.born_ms),
        )
        self._questions.append(span)
        return span.context or context

    def _remember(self, key: str, context: TraceContext) -> None:
        self.remembered[key] = context
        self.remembered.move_to_end(key)
        if len(self.remembered) > REMEMBERED_MAX:
            self.remembered.popitem(last=False)

    def _age_ms(self, born_ms: int) -> int:
        return int(self._wall_clock() * 1000) - born_ms


def _others(txn: Transaction, context: TraceContext) -> list[TraceContext]:
    """Contexts of a transaction's further messages, where their user gave them others than the first one's."""
    found = [trace_context_of(record.headers()) for _, record in records_of(txn)]
    return [c for c in dict.fromkeys(found) if c is not None and c != context][:LINKS_MAX]


class TracedCoordinator(Coordinator):
    """A `Coordinator` whose forwards and questions make spans."""

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections,
        *,
        tracing: Tracing,
        surroundings: Surroundings = REAL,
    ) -> None:
        super().__init__(config, connections, surroundings=surroundings)

        class Traced(TracedPublisher):
            """The publisher of this coordinator: the loop makes one for every assignment."""

        Traced.tracing, Traced.remembered = tracing, OrderedDict()
        self.make_publisher = Traced
        self.log_reports = partial(log_reports, known=Traced.remembered)


def make_coordinator(
    config: CoordinatorConfig, connections: CoordinatorConnections, *, tracing: Tracing
) -> Coordinator:
    """The coordinator that this tracing needs."""
    if tracing.is_on:
        return TracedCoordinator(config, connections, tracing=tracing)
    return Coordinator(config, connections)
