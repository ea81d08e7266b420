"""The trace context in headers, and the Protocols that services expect of a tracing library; their docstrings are the guarantees. And one that is off.

A service checks `is_on` once, when it is made; without tracing it uses classes that contain no tracing code. Span names,
roles and attributes follow OpenTelemetry's conventions for messaging; they contain no users' keys, values or texts.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import Any, NamedTuple, Protocol

from txlayer.core.messages import Headers

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

HEADER_BYTES = len(TRACEPARENT) + 55  # bytes that `traceparent` adds to a message, name and value

STATE_BYTES_MAX = 512  # a longer `tracestate` is dropped: W3C requires no more to be passed on

PARENT_BYTES_MAX = 256  # A longer `traceparent` is malformed. Version 00 has 55 bytes; a later one may add fields.

# A later version may have more fields behind these; the first four keep their meaning.
_FORM = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL
)


class TraceContext(NamedTuple):
    """The position of a span, as written into headers and read from them."""

    traceparent: bytes
    tracestate: bytes | None = None

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent[3:35].decode("ascii")

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return self.traceparent[36:52].decode("ascii")

    @property
    def flags(self) -> int:
        """The trace flags."""
        return int(self.traceparent[53:55], 16)

    @property
    def is_sampled(self) -> bool:
        """True if the service that began the trace wants it recorded."""
        return bool(self.flags & 1)

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The context as ordinary headers."""
        found: list[tuple[str, bytes | None]] = [(TRACEPARENT, self.traceparent)]
        if self.tracestate:
            found.append((TRACESTATE, self.tracestate))
        return found


def trace_context_of(headers: Headers | None) -> TraceContext | None:
    """The last context among a record's headers; None if there is none, or if it is malformed."""
    if not headers:
        return None
    parent = state = None
    for name, value in headers:
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value
    return None if parent is None else parse_traceparent(parent, state)


def parse_traceparent(parent: bytes, state: bytes | None = None) -> TraceContext | None:
    """Parse a header's value; None if it is malformed."""
    if len(parent) > PARENT_BYTES_MAX or _FORM.fullmatch(parent) is None:
        return None
    if parent[:2] == b"00" and len(parent) != 55:
        return None
    if state is not None and len(state) > STATE_BYTES_MAX:
        state = None
    return TraceContext(bytes(parent), state)


def has_trace(headers: Sequence[tuple[str, bytes | None]] | None) -> bool:
    """True if the headers contain a context of any form: it is the user's."""
    return any(name == TRACEPARENT for name, _ in headers or ())


Attributes = Mapping[str, str | int | bool]

LINKS_MAX = 128  # links of one span: what OpenTelemetry keeps of them by default


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


NO_TRACING: Tracing = NoTracing()  # the default everywhere


def age_ms(born_ms: int) -> int:
    """How long ago that was, by this machine's clock."""
    return int(time.time() * 1000) - born_ms


@contextmanager
def current(span: Span, end: Callable[[Any], None]) -> Iterator[Callable[[Any], None]]:
    """Make a span the current one of a block, which gives its result to what it gets; `end` ends the span with the result.

    If the block raises, the span ends with the type of the error.
    """
    results = list[Any]()
    try:
        with span.active():
            yield results.append
    except BaseException as exc:
        span.end(error=type(exc).__name__)
        raise
    end(results[0])
