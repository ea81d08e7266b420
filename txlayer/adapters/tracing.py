"""What services ask of a tracing library: Protocols whose docstrings are guarantees, and the one that does nothing.

A service looks at `is_on` once, when it is made; while tracing is off, nothing here is called.
Span names, roles and attributes are those of OpenTelemetry's conventions for messaging; users' keys, values and texts
never appear in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Protocol

from txlayer.core.trace_context import TraceContext

Attributes = Mapping[str, str | int | bool]


class SpanRole(Enum):
    """What a span does in a conversation of messages."""

    PRODUCER = "producer"  #: makes messages that carry its own context
    CLIENT = "client"  #: talks to the broker; what it sends carries another's context, or none
    CONSUMER = "consumer"  #: handles a message


class Span(Protocol):
    """Something that takes time. Any thread may end it; one that is never ended is never seen."""

    @property
    def context(self) -> TraceContext | None:
        """Where it stands, also when it is not recorded; None: nobody traces here."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """Make it the current span of this thread or task."""
        ...

    def end(
        self, *, error: str = "", attributes: Attributes | None = None, ended_ns: int | None = None
    ) -> None:
        """It is over; `error` names the kind of what went wrong."""
        ...


class Tracing(Protocol):
    """Makes spans. Any thread may; nothing of it raises."""

    @property
    def is_on(self) -> bool:
        """False: nobody need call anything else."""
        ...

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
        """A span that began now, or at `started_ns` since 1970.

        Its parent is `cause`, which happened `age_ms` ago; is that too long, it begins a trace of its own, with a link
        to `cause`. Without a cause its parent is the current span.
        """
        ...


class NoSpan:
    """Nothing."""

    context: TraceContext | None = None

    def active(self) -> AbstractContextManager[object]:
        """Changes nothing."""
        return nullcontext()

    def end(
        self, *, error: str = "", attributes: Attributes | None = None, ended_ns: int | None = None
    ) -> None:
        """Nobody hears of it."""


class NoTracing:
    """A `Tracing` that is off."""

    is_on = False

    def start(
        self,
        name: str,  # noqa: ARG002 - the protocol's
        role: SpanRole,  # noqa: ARG002 - the protocol's
        *,
        attributes: Attributes,  # noqa: ARG002 - the protocol's
        cause: TraceContext | None = None,  # noqa: ARG002 - the protocol's
        age_ms: int = 0,  # noqa: ARG002 - the protocol's
        links: Sequence[TraceContext] = (),  # noqa: ARG002 - the protocol's
        started_ns: int | None = None,  # noqa: ARG002 - the protocol's
    ) -> Span:
        """Nothing."""
        return NoSpan()


NO_TRACING: Tracing = NoTracing()
"""The default everywhere."""
