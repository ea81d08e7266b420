"""What runs around the send and the end of each transaction, and around answers: users' interceptors, and the spans of tracing.

A producer that has neither runs none of this. The spans:

prepare <ns>.half     from the first half message queued until the last is acknowledged; its context is the
                      header `traceparent` of the messages that have none
commit <ns>.op        from the op line queued until it is acknowledged; likewise rollback and unknown
answer <ns>.check     one call of the check handler
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from threading import current_thread, main_thread
from typing import Any, NamedTuple

from txlayer.adapters.telemetry import (
    LINKS_MAX,
    Attributes,
    Log,
    Span,
    SpanRole,
    TraceContext,
    Tracing,
    attributes_of,
    current,
    has_trace,
    parse_traceparent,
    trace_context_of,
)
from txlayer.core.messages import Message, Resolution, nonce_of, txn_id_of
from txlayer.errors import UsageError
from txlayer.producer.check_handlers import CheckRequest, Handling
from txlayer.producer.encoding import HalfRecord
from txlayer.producer.identity import now_ms
from txlayer.producer.pipeline import OpRecord, PendingTransaction, Pipeline
from txlayer.runtime.environment import is_coroutine_function

logger = Log("txlayer.producer")


class SentTransaction(NamedTuple):
    """A transaction as interceptors see it; every hook of one transaction gets the same object."""

    txn_id: str
    nonce: str
    group: str
    messages: tuple[Message, ...]  # as they are sent: keys, values and headers are bytes


class ProducerInterceptor:
    """Code that runs around the send and the end of every transaction. Override what you need.

    The `before` hooks run in the order in which interceptors were given, the others in reverse order. `before_send` runs in
    the call that sends; what it raises comes out of that call, and nothing was sent. The other hooks run on any thread,
    mostly the producer's own: they must return at once, and what they raise is logged. On the main thread a `KeyboardInterrupt` or a
    `SystemExit` passes: a signal's handler may have raised it.
    """

    def before_send(self, transaction: SentTransaction) -> None:
        """Called before the half messages are queued."""

    def after_send(self, transaction: SentTransaction) -> None:
        """Called when all half messages are acknowledged."""

    def before_end(self, transaction: SentTransaction, resolution: Resolution) -> None:
        """Called before the resolution is written."""

    def after_end(self, transaction: SentTransaction, resolution: Resolution) -> None:
        """Called when the resolution is acknowledged."""

    def on_error(self, transaction: SentTransaction, error: BaseException) -> None:
        """Called when an interceptor refused the transaction, a half message is not stored, or the resolution may not be stored.

        A transaction of which a half message is missing ends with a rollback, which calls the hooks of an end, too.
        """


def intercepting(interceptors: Iterable[ProducerInterceptor]) -> list[Watcher]:
    """What calls the interceptors; UsageError: one is no `ProducerInterceptor`, or has a coroutine function."""
    given = tuple(interceptors)
    for each in given:
        if not isinstance(each, ProducerInterceptor):
            raise UsageError(f"interceptors= takes instances of subclasses of ProducerInterceptor, not {each!r}")
        if any(is_coroutine_function(getattr(each, name)) for name in vars(ProducerInterceptor) if name[0] != "_"):
            raise UsageError(f"the hooks of {each!r} are plain functions: nothing awaits what they return")
    return [partial(_begin, given)] if given else []


def _begin(
    interceptors: tuple[ProducerInterceptor, ...], pipeline: Pipeline, records: list[HalfRecord], key: str
) -> tuple[list[HalfRecord], Watch]:
    messages = tuple(Message(topic, key, value, headers) for topic, key, value, headers, _ in records)
    sent = SentTransaction(txn_id_of(key), nonce_of(key), pipeline.group, messages)
    for number, each in enumerate(interceptors, start=1):
        try:
            each.before_send(sent)
        except BaseException as exc:
            _Intercepted(interceptors[:number], sent).call("on_error", exc)
            raise
    return records, _Intercepted(interceptors, sent)


class _Intercepted:
    """Calls the interceptors for one transaction."""

    __slots__ = ("_interceptors", "_sent")

    trace_id = ""  # of the transaction's messages: those of interceptors carry none

    def __init__(self, interceptors: tuple[ProducerInterceptor, ...], sent: SentTransaction) -> None:
        self._interceptors = interceptors
        self._sent = sent

    def prepared(self, txn: PendingTransaction) -> None:
        self.call("after_send") if txn.error is None else self.call("on_error", txn.error)

    def ending(self, txn: PendingTransaction) -> None:
        self.call("before_end", txn.resolution, is_reversed=False)

    def ended(self, txn: PendingTransaction, _record: OpRecord, _offset: int, error: BaseException | None) -> None:
        self.call("after_end", txn.resolution) if error is None else self.call("on_error", error)

    def call(self, hook: str, *said: Any, is_reversed: bool = True) -> None:
        for each in reversed(self._interceptors) if is_reversed else self._interceptors:
            try:
                getattr(each, hook)(self._sent, *said)
            except BaseException as exc:
                if isinstance(exc, KeyboardInterrupt | SystemExit) and current_thread() is main_thread():
                    raise  # a signal's handler may have raised it, which happened to interrupt a hook
                # The user's code; the transaction goes on whatever it raises.
                extra = {"txn_id": self._sent.txn_id, "nonce": self._sent.nonce}
                logger.exception("interceptor.raised", extra=extra)


# --- spans ------------------------------------------------------------------------------------------------------------


class TransactionSpans:
    """The spans of one transaction at its producer."""

    __slots__ = ("_attributes", "_context", "_prepare", "_tracing")

    def __init__(self, tracing: Tracing, prepare: Span, attributes: Attributes) -> None:
        self._tracing = tracing
        self._prepare = prepare
        self._attributes = attributes
        self._context = prepare.context

    def prepared(self, txn: PendingTransaction) -> None:
        error = "" if txn.error is None else type(txn.error).__name__
        attributes: dict[str, str | int | bool] = {
            "messaging.destination.partition.id": str(txn.half_partition),
            "messaging.kafka.offset": max(txn.last_offset, 0),
        }
        self._prepare.end(error=error, attributes=attributes)

    @property
    def trace_id(self) -> str:
        return "" if self._context is None else self._context.trace_id

    def ending(self, txn: PendingTransaction) -> None:
        """Nothing: the span begins with the op record."""

    def ended(self, txn: PendingTransaction, record: OpRecord, op_offset: int, error: BaseException | None) -> None:
        if txn.resolution is None:
            return
        took_s = 0.0 if error is not None else time.monotonic() - record.written_at_s
        word = txn.resolution.name.lower()
        pipeline = txn.queue.pipeline
        attributes = attributes_of(word, "settle", pipeline.op_topic, self._attributes)
        attributes["messaging.destination.partition.id"] = str(txn.half_partition)
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


Watch = _Intercepted | TransactionSpans
"""Sees what becomes of one transaction: all half messages reported, a resolution about to be written, by any thread, and its op line
acknowledged, or with an error not. On the producer's thread if nothing else is said. It does not raise."""

Watcher = Callable[[Pipeline, list[HalfRecord], str], tuple[list[HalfRecord], Watch]]
"""Begins to watch a transaction ("id/nonce") before it is sent, and returns the half records to send."""


def traced(tracing: Tracing) -> list[Watcher]:
    """What makes the spans of transactions, and adds a `traceparent` to messages that have none; nothing without tracing."""
    watcher: Watcher = partial(_begin_spans, tracing)
    return [watcher] if tracing.is_on else []


def _begin_spans(
    tracing: Tracing, pipeline: Pipeline, records: list[HalfRecord], key: str
) -> tuple[list[HalfRecord], Watch]:
    attributes = {"txlayer.txn_id": txn_id_of(key), "txlayer.producer_group": pipeline.group}
    more: Attributes = {**attributes, "messaging.batch.message_count": len(records)}
    given = [trace_context_of(headers) for _, _, _, headers, _ in records[:LINKS_MAX]]
    span = tracing.start(
        f"prepare {pipeline.half_topic}",
        SpanRole.PRODUCER,
        attributes=attributes_of("prepare", "send", pipeline.half_topic, more),
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
    attributes = attributes_of("answer", "process", topic, {"txlayer.producer_group": requests[0].group})
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
