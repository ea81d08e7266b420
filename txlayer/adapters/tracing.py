"""The Protocols that services expect of a tracing library; their docstrings are the guarantees. And one that is off.

A service checks `is_on` once, when it is made; without tracing it uses classes that contain no tracing code. Span names,
roles and attributes follow OpenTelemetry's conventions for messaging; they contain no users' keys, values or texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Protocol

from txlayer.core.trace_context import TraceContext

Attributes = Mapping[str, str | int | bool]

LINKS_MAX = 128
"""Links of one span: what OpenTelemetry keeps of them by default."""


class SpanRole(Enum):
    """The role of a span in messaging."""

    PRODUCER = "producer"  #: creates messages that carry its own context
    CLIENT = "client"  #: calls the broker; what it sends carries another's context, or none
    CONSUMER = "consumer"  #: handles a message


class Span(Protocol):
    """A timed operation. Any thread may end it; a span that is not ended is not exported."""

    @property
    def context(self) -> TraceContext | None:
        """Its trace context, even if the span is not recorded; None without tracing."""

    def active(self) -> AbstractContextManager[object]:
        """Make it the current span of this thread or task."""

    def end(self, *, error: str = "", attributes: Attributes | None = None) -> None:
        """End the span; `error` names the type of the error."""


class Tracing(Protocol):
    """Makes spans. Thread-safe; its methods do not raise."""

    @property
    def is_on(self) -> bool:
        """False: no other method needs to be called."""

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
        """A span that begins now, or began at `started_ns` since 1970.

        Its parent is `cause`, which happened `age_ms` ago; if that is too long, it begins a new trace with a link to
        `cause`. Without a cause its parent is the current span.
        """


class NoSpan:
    """A span that does nothing."""

    context: TraceContext | None = None

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def end(self, *, error: str = "", attributes: Attributes | None = None) -> None:
        """Do nothing."""


class NoTracing:
    """A `Tracing` that is off."""

    is_on = False

    def start(self, *_: object, **_named: object) -> Span:
        return NoSpan()


NO_TRACING: Tracing = NoTracing()
"""The default everywhere."""
