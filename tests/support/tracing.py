"""Spans as a test sees them: kept in memory by OpenTelemetry's own SDK."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind

from tests.support.waiting import wait_until
from txlayer.adapters.otel import TRACE_AGE_MAX, OpenTelemetryTracing


class Shape(NamedTuple):
    """A span, without what changes from run to run."""

    name: str
    kind: SpanKind
    parent: str  # the name of it; "" at the beginning of a trace


class Spans:
    """A tracing and what it recorded."""

    def __init__(self, *, sampler: Sampler | None = None, trace_age_max: timedelta = TRACE_AGE_MAX) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(
            sampler=ParentBased(ALWAYS_ON) if sampler is None else sampler, shutdown_on_exit=False
        )
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.tracing = OpenTelemetryTracing(self.provider, trace_age_max=trace_age_max)

    def all(self) -> Sequence[ReadableSpan]:
        """Every span that has ended, in the order of their beginnings."""
        return sorted(self.exporter.get_finished_spans(), key=lambda s: s.start_time or 0)

    def wait_for(self, *names: str) -> None:
        """Until spans of all these names have ended."""
        wait_until(lambda: set(names) <= {s.name for s in self.all()}, within=20, what=f"spans {names}")

    def one(self, name: str) -> ReadableSpan:
        """The one span of this name."""
        (found,) = [s for s in self.all() if s.name == name]
        return found

    def shapes(self) -> set[Shape]:
        """Names, kinds and parents."""
        names = {s.context.span_id: s.name for s in self.all() if s.context is not None}
        return {Shape(s.name, s.kind, "" if s.parent is None else names.get(s.parent.span_id, "?")) for s in self.all()}

    def trace_ids(self) -> set[int]:
        """Every trace."""
        return {s.context.trace_id for s in self.all() if s.context is not None}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """What it says of itself."""
    return dict(span.attributes or {})


def link_ids(span: ReadableSpan) -> list[int]:
    """The spans that it links to."""
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    """Its own."""
    assert span.context is not None
    return int(span.context.span_id)
