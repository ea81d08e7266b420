"""Spans through OpenTelemetry's API. The program sets up the SDK, the exporter and the sampler."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.span import TraceState
from opentelemetry.trace.status import Status, StatusCode

from txlayer.adapters.telemetry import Attributes, NoSpan, Span, SpanRole, TraceContext

logger = logging.getLogger("txlayer.tracing")

TRACER = "txlayer"

TRACE_AGE_MAX = timedelta(minutes=15)
"""A cause that is older becomes a link instead of the parent: backends close a trace minutes after its last span, and
cannot show a trace that lasts for days."""

_KINDS = {SpanRole.PRODUCER: SpanKind.PRODUCER, SpanRole.CLIENT: SpanKind.CLIENT, SpanRole.CONSUMER: SpanKind.CONSUMER}


class OpenTelemetryTracing:
    """A `Tracing` through the program's own OpenTelemetry SDK; without one it records nothing.

    Args:
        tracer_provider: the provider of the tracer; None: the global one at the time of the first span.
        trace_age_max: a span with an older cause begins a new trace, with a link to its cause.
    """

    is_on = True

    def __init__(
        self, tracer_provider: trace.TracerProvider | None = None, *, trace_age_max: timedelta = TRACE_AGE_MAX
    ) -> None:
        self._provider = tracer_provider
        self._age_max_ms = trace_age_max // timedelta(milliseconds=1)
        self._tracer: trace.Tracer | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the tracer: each process has its own."""
        return {**self.__dict__, "_tracer": None}

    def start(
        self,
        name: str,
        role: SpanRole,
        *,
        attributes: Attributes,
        cause: TraceContext | None = None,
        age_ms: int = 0,
        links: Sequence[TraceContext] = (),
        started_ns: int | None = None,
    ) -> Span:
        tracer = self._tracer
        if tracer is None:
            tracer = self._tracer = trace.get_tracer(TRACER, tracer_provider=self._provider)
        context = None
        linked = list(links)
        if cause is not None:
            if age_ms <= self._age_max_ms:
                context = trace.set_span_in_context(NonRecordingSpan(_remote(cause)), Context())
            else:
                context = Context()
                linked.insert(0, cause)
        given = (attributes, [Link(_remote(c)) for c in linked], started_ns)
        try:
            return OpenTelemetrySpan(tracer.start_span(name, context, _KINDS[role], *given))
        except Exception:
            # The user's sampler or processor: what is traced goes on, whatever it raises.
            logger.exception("tracing.raised")
            return NoSpan()


class OpenTelemetrySpan:
    """A `Span` of OpenTelemetry."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def context(self) -> TraceContext | None:
        found = self._span.get_span_context()
        if not found.is_valid:
            return None
        parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
        state = found.trace_state.to_header() if found.trace_state else ""
        return TraceContext(parent.encode(), state.encode() or None)

    def active(self) -> AbstractContextManager[object]:
        """As in `Span`. An exception inside is not recorded: its text may contain users' values."""
        return trace.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    def end(self, *, error: str = "", attributes: Attributes | None = None) -> None:
        span = self._span
        if attributes:
            span.set_attributes(attributes)
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        try:
            span.end()
        except Exception:
            logger.exception("tracing.raised")  # as in `start`


def is_recorded() -> bool:
    """False while the program has set up no SDK: spans are then discarded."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def _remote(context: TraceContext) -> SpanContext:
    state = TraceState.from_header([context.tracestate.decode("ascii", "replace")]) if context.tracestate else None
    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(context.flags),
        trace_state=state,
    )
