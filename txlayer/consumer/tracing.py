"""Makes spans of the calls of handlers. Without tracing nothing here is called.

process <topic>       one attempt: interceptors, handler; the current span while the handler runs
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from txlayer.adapters.tracing import LINKS_MAX, Span, SpanRole, Tracing, age_ms, current, trace_context_of
from txlayer.consumer.context import Lease, ReceivedMessage
from txlayer.consumer.pools import Job, items_of
from txlayer.core.retry import Ack, WrongResult, checked


class AttemptSpans:
    """Makes a span of each attempt: a `CallObserver`."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def attempt(self, job: Job, lease: Lease) -> AbstractContextManager[Callable[[Any], None]]:
        """The current span while the handler runs; it ends with the result, or with the kind of what was raised."""
        span = self._start(job, lease)
        return current(span, partial(_end, span))

    def _start(self, job: Job, lease: Lease) -> Span:
        items = items_of(job)
        messages = [ReceivedMessage(item.record) for item in items[:LINKS_MAX]]
        first = messages[0]
        attributes: dict[str, str | int | bool] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": lease.topic,
            "messaging.destination.partition.id": str(lease.partition),
            "messaging.consumer.group.name": lease.group,
            "messaging.kafka.offset": first.offset,
            "txlayer.attempt": items[0].attempt_count + 1,
        }
        if isinstance(job, list):
            attributes["messaging.batch.message_count"] = len(items)
        txn_id = first.txn_id
        if txn_id is not None:
            attributes["txlayer.txn_id"] = txn_id
        causes = [c for m in messages if (c := trace_context_of(m.headers)) is not None]
        # Several messages have several causes, and none of them is the parent.
        is_one = len(items) == 1 and len(causes) == 1
        return self._tracing.start(
            f"process {lease.topic}",
            SpanRole.CONSUMER,
            attributes=attributes,
            cause=causes[0] if is_one else None,
            links=() if is_one else causes,
            age_ms=age_ms(first.timestamp_ms if (origin := first.origin) is None else origin.born_ms),
        )


def _end(span: Span, result: Any) -> None:
    said = checked(result)
    if said is None or isinstance(said, Ack):
        span.end()
    else:
        span.end(error="TypeError" if isinstance(said, WrongResult) else type(said).__name__)
