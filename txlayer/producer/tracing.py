"""The producer's parts that make spans: prepare, resolution, answer. Who traces nothing runs none of this.

prepare <ns>.half     from the first half message queued until the last is acknowledged; its context is the
                      header `traceparent` of the messages that have none
commit <ns>.op        from the op line queued until it is acknowledged; likewise rollback and unknown
answer <ns>.check     one call of the check handler
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from txlayer.adapters.tracing import (
    LINKS_MAX,
    Attributes,
    Span,
    SpanRole,
    TraceContext,
    Tracing,
    current,
    has_trace,
    parse_traceparent,
    trace_context_of,
)
from txlayer.core.messages import txn_id_of
from txlayer.producer.check_handlers import CheckRequest, Handling
from txlayer.producer.encoding import HalfRecord
from txlayer.producer.identity import now_ms
from txlayer.producer.interceptors import Watch, Watcher
from txlayer.producer.pipeline import OpRecord, PendingTransaction, Pipeline


class TransactionSpans:
    """The spans of one transaction at its producer."""

    __slots__ = ("_attributes", "_context", "_prepare", "_tracing")

    def __init__(self, tracing: Tracing, prepare: Span, attributes: Attributes) -> None:
        self._tracing = tracing
        self._prepare = prepare
        self._attributes = attributes
        self._context = prepare.context

    def prepared(self, txn: PendingTransaction) -> None:
        """Every half message is reported."""
        error = "" if txn.error is None else type(txn.error).__name__
        attributes: dict[str, str | int | bool] = {
            "messaging.destination.partition.id": str(txn.half_partition),
            "messaging.kafka.offset": max(txn.last_offset, 0),
        }
        self._prepare.end(error=error, attributes=attributes)

    @property
    def trace_id(self) -> str:
        """As in `PendingTransaction`."""
        return "" if self._context is None else self._context.trace_id

    def ending(self, txn: PendingTransaction) -> None:
        """As in `Watch`."""

    def ended(self, txn: PendingTransaction, record: OpRecord, op_offset: int, error: BaseException | None) -> None:
        """As in `Watch`."""
        if txn.resolution is None:
            return
        took_s = 0.0 if error is not None else time.monotonic() - record.written_at_s
        word = txn.resolution.name.lower()
        pipeline = txn.queue.pipeline
        attributes = {
            **self._attributes,
            "messaging.operation.name": word,
            "messaging.operation.type": "settle",
            "messaging.destination.name": pipeline.op_topic,
            "messaging.destination.partition.id": str(txn.half_partition),
        }
        if op_offset >= 0:
            attributes["messaging.kafka.offset"] = op_offset
        span = self._tracing.start(
            f"{word} {pipeline.op_topic}",
            SpanRole.CLIENT,
            attributes=attributes,
            cause=self._context,
            age_ms=now_ms() - txn.born_ms,
            started_ns=time.time_ns() - int(took_s * 1e9),
        )
        span.end(error="" if error is None else type(error).__name__)


def traced(tracing: Tracing) -> list[Watcher]:
    """What makes the spans of transactions, and adds a `traceparent` to messages that have none; nothing without tracing."""
    watcher: Watcher = partial(_begin, tracing)
    return [watcher] if tracing.is_on else []


def _begin(tracing: Tracing, pipeline: Pipeline, records: list[HalfRecord], key: str) -> tuple[list[HalfRecord], Watch]:
    attributes: dict[str, str | int | bool] = {
        "messaging.system": "kafka",
        "txlayer.txn_id": txn_id_of(key),
        "txlayer.producer_group": pipeline.group,
    }
    given = [trace_context_of(headers) for _, _, _, headers, _ in records[:LINKS_MAX]]
    span = tracing.start(
        f"prepare {pipeline.half_topic}",
        SpanRole.PRODUCER,
        attributes={
            **attributes,
            "messaging.operation.name": "prepare",
            "messaging.operation.type": "send",
            "messaging.destination.name": pipeline.half_topic,
            "messaging.batch.message_count": len(records),
        },
        links=list(dict.fromkeys(c for c in given if c is not None)),
    )
    context = span.context
    if context is not None:
        records = [_with_trace(record, context) for record in records]
    return records, TransactionSpans(tracing, span, attributes)


def _with_trace(record: HalfRecord, context: TraceContext) -> HalfRecord:
    topic, key, value, headers, options = record
    if has_trace(headers):
        return record
    return (topic, key, value, [*(headers or ()), *context.headers], options)


# --- answers ----------------------------------------------------------------------------------------------------------

Ask = Callable[[Sequence[CheckRequest]], Any]
Begin = Callable[[Sequence[CheckRequest]], Span]


def traced_handling(handling: Handling | None, tracing: Tracing, *, check_topic: str) -> Handling | None:
    """The same handling with a span around each call; itself without tracing."""
    if handling is None or not tracing.is_on:
        return handling
    begin = partial(_answering, tracing, check_topic)
    around = _traced_async if handling.is_async else _traced_call
    return replace(handling, answer=partial(around, handling.answer, begin))


def _answering(tracing: Tracing, topic: str, requests: Sequence[CheckRequest]) -> Span:
    causes = [parse_traceparent(r.traceparent.encode()) for r in requests[:LINKS_MAX] if r.traceparent]
    known = [cause for cause in causes if cause is not None]
    attributes: dict[str, str | int | bool] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "answer",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "txlayer.producer_group": requests[0].group,
    }
    if len(requests) == 1:
        attributes["txlayer.txn_id"] = requests[0].txn_id
        attributes["txlayer.check_number"] = requests[0].number
    else:
        attributes["messaging.batch.message_count"] = len(requests)
    is_one = len(requests) == 1 and len(known) == 1
    # A question is answered within seconds or asked again, whatever the transaction's own age is.
    return tracing.start(
        f"answer {topic}",
        SpanRole.CONSUMER,
        attributes=attributes,
        cause=known[0] if is_one else None,
        links=() if is_one else known,
    )


def _traced_call(answer: Ask, begin: Begin, requests: Sequence[CheckRequest]) -> Any:
    span = begin(requests)
    with current(span, partial(_end, span)) as ended:
        answers = answer(requests)
        ended(answers)
    return answers


async def _traced_async(answer: Ask, begin: Begin, requests: Sequence[CheckRequest]) -> Any:
    span = begin(requests)
    with current(span, partial(_end, span)) as ended:
        answers = await answer(requests)
        ended(answers)
    return answers


def _end(span: Span, answers: Any) -> None:
    word = getattr(answers[0], "name", "") if isinstance(answers, list) and len(answers) == 1 else ""
    span.end(attributes={"txlayer.resolution": word} if isinstance(word, str) and word else {})
