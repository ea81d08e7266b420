"""The producer's parts that make spans: prepare, resolution, answer. Who traces nothing runs none of this.

prepare <ns>.half     from the first half message queued until the last is acknowledged; its context is the
                      header `traceparent` of the messages that have none
commit <ns>.op        from the op line queued until it is acknowledged; likewise rollback and unknown
answer <ns>.check     one call of the check handler
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from txlayer.adapters.tracing import (
    HEADER_BYTES,
    LINKS_MAX,
    Attributes,
    Span,
    SpanRole,
    TraceContext,
    Tracing,
    has_trace,
    parse_traceparent,
    trace_context_of,
)
from txlayer.core.messages import Message
from txlayer.errors import OutcomeUnknownError
from txlayer.producer.check_handlers import CheckRequest, Handling
from txlayer.producer.encoding import HalfRecord
from txlayer.producer.engine import Assemble, Engine, MakePending, assemble
from txlayer.producer.identity import Placement, now_ms
from txlayer.producer.pipeline import UNSTORED, OpQueue, OpRecord, PendingTransaction
from txlayer.producer.submitted import LocalWork, SubmittedTransaction


class TransactionSpans:
    """The spans of one transaction at its producer."""

    __slots__ = ("_attributes", "_prepare", "_tracing", "context")

    def __init__(self, tracing: Tracing, prepare: Span, attributes: Attributes) -> None:
        self._tracing = tracing
        self._prepare = prepare
        self._attributes = attributes
        self.context = prepare.context

    def prepared(self, txn: PendingTransaction) -> None:
        """Every half message is reported."""
        error = "" if txn.error is None else type(txn.error).__name__
        attributes: dict[str, str | int | bool] = {
            "messaging.destination.partition.id": str(txn.half_partition),
            "messaging.kafka.offset": max(txn.last_offset, 0),
        }
        self._prepare.end(error=error, attributes=attributes)

    def resolved(self, txn: PendingTransaction, *, started_ns: int, op_offset: int = -1, error: str = "") -> None:
        """The op line is acknowledged at `op_offset`, or the offset is unknown."""
        if txn.resolution is None:
            return
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
            cause=self.context,
            age_ms=now_ms() - txn.born_ms,
            started_ns=started_ns,
        )
        span.end(error=error)


if TYPE_CHECKING:
    _Base = PendingTransaction
else:
    _Base = object  # the kinds of txns have slots: only one of two bases may


class _Traced(_Base):
    if TYPE_CHECKING:
        __slots__ = ("trace",)
        trace: TransactionSpans
    else:
        __slots__ = ()  # each kind below has the slot itself

    @property
    def trace_id(self) -> str:
        """As in `PendingTransaction`."""
        return "" if self.trace.context is None else self.trace.context.trace_id

    def prepared(self) -> None:
        """Every half message is reported."""
        self.trace.prepared(self)
        super().prepared()


@cache
def _traced_kind(kind: Any) -> Any:
    return type(f"Traced{kind.__name__}", (_Traced, kind), {"__slots__": ("trace",)})


def _traced(make: MakePending, trace: TransactionSpans) -> MakePending:
    """Makes the same kind of transaction, with its spans."""
    call: Callable[..., Any]
    if isinstance(make, partial):
        call = partial(_traced_kind(make.func), *make.args, **make.keywords)
    else:
        assert isinstance(make, type)
        call = _traced_kind(make)

    def made(queue: OpQueue, key: str, born_ms: int, message_count: int) -> PendingTransaction:
        txn: _Traced = call(queue, key, born_ms, message_count)
        txn.trace = trace  # before anything is sent: reports come at once
        return txn

    return made


class ResolutionSpans:
    """Makes the spans of resolutions: an observer of a pipeline."""

    def failed(self) -> None:
        """A transaction was not prepared: its span of `prepare` says so."""

    def acknowledged(self, record: OpRecord, offset: int) -> None:
        """The record's lines are stored."""
        started_ns = time.time_ns() - int((time.monotonic() - record.written_at_s) * 1e9)
        for txn in record.txns:
            if isinstance(txn, _Traced) and txn.op_offset == UNSTORED:
                txn.trace.resolved(txn, started_ns=started_ns, op_offset=offset)

    def lost(self, record: OpRecord) -> None:
        """The record's lines may not be stored."""
        for txn in record.txns:
            if isinstance(txn, _Traced):
                txn.trace.resolved(txn, started_ns=time.time_ns(), error=OutcomeUnknownError.__name__)


class TracedEngine(Engine):
    """An `Engine` whose transactions make spans."""

    tracing: Tracing

    def launch_plain(
        self,
        message: Message,  # noqa: ARG002 - the parent's
        placement: Placement,  # noqa: ARG002 - the parent's
        work: LocalWork | None,  # noqa: ARG002 - the parent's
    ) -> SubmittedTransaction | None:
        """None: a message with a header is not that plain."""
        return None

    def launch_now(
        self, make: MakePending, records: list[HalfRecord], placement: Placement, key: str
    ) -> PendingTransaction | None:
        """As in `Engine`."""
        pipeline = self.pipeline
        if not pipeline.slots:
            return None
        attributes: dict[str, str | int | bool] = {
            "messaging.system": "kafka",
            "txlayer.txn_id": key.partition("/")[0],
            "txlayer.producer_group": pipeline.group,
        }
        given = [trace_context_of(headers) for _, _, _, headers, _ in records[:LINKS_MAX]]
        span = self.tracing.start(
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
        trace = TransactionSpans(self.tracing, span, attributes)
        return super().launch_now(_traced(make, trace), records, placement, key)


def _with_trace(record: HalfRecord, context: TraceContext) -> HalfRecord:
    topic, key, value, headers, options = record
    if has_trace(headers):
        return record
    return (topic, key, value, [*(headers or ()), *context.headers], options)


def assemble_traced(tracing: Tracing) -> Assemble:
    """`assemble` for a producer that makes spans; `assemble` itself where it makes none."""
    if not tracing.is_on:
        return assemble

    def assembled(*arguments: Any, **given: Any) -> Engine:
        engine = assemble(*arguments, **given, spare_bytes=HEADER_BYTES, kind=TracedEngine)
        assert isinstance(engine, TracedEngine)
        engine.tracing = tracing
        engine.pipeline.observers.append(ResolutionSpans())
        return engine

    return assembled


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
    with _ended(begin(requests)) as said:
        said.append(answer(requests))
    return said[0]


async def _traced_async(answer: Ask, begin: Begin, requests: Sequence[CheckRequest]) -> Any:
    with _ended(begin(requests)) as said:
        said.append(await answer(requests))
    return said[0]


@contextmanager
def _ended(span: Span) -> Iterator[list[Any]]:
    """End the span after the block, which appends what was answered."""
    said: list[Any] = []
    try:
        with span.active():
            yield said
    except BaseException as exc:
        span.end(error=type(exc).__name__)
        raise
    span.end(attributes=_said(said[0]))


def _said(said: Any) -> dict[str, str]:
    word = getattr(said[0], "name", "") if isinstance(said, list) and len(said) == 1 else ""
    return {"txlayer.resolution": word} if isinstance(word, str) and word else {}
