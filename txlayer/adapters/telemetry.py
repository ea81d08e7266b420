"""What a process tells of itself, without users' values and secrets: log lines, as text or as JSON; the seam of
tracing; and metrics as plain values.

Ids, groups, topics and reasons come from the log, where any client may have written anything. `printable` is applied
wherever they leave the process: to log lines, terminals and metric labels.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import accumulate
from threading import current_thread, main_thread
from typing import Any, NamedTuple, Protocol

from txlayer.core.messages import Headers
from txlayer.errors import ConfigError

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def printable(text: str) -> str:
    """Text without line breaks and control characters; these are shown as Python escapes them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """A traceback with its lines kept and indented, so that none of them looks like a log line."""
    return "\n".join(f"  {printable(line)}" for line in text.split("\n"))


def set_up_logging(*, log_format: str, level: str) -> None:
    """Write txlayer's log lines to standard error; ConfigError: there is no such format, or no such level."""
    if log_format not in ("text", "json"):
        raise ConfigError("no such log format", name="log format", value=log_format, expected="text or json")
    if level.upper() not in _LEVELS:
        raise ConfigError("no such log level", name="log level", value=level, expected=" ".join(_LEVELS))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger("txlayer")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())
    # The client repeats every lost connection; txlayer logs the relevant ones itself.
    logging.getLogger("txlayer.librdkafka").setLevel(logging.ERROR if level.upper() != "DEBUG" else logging.DEBUG)


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger of this name, for threads that must outlive it: what a log handler raises goes to standard error, and no further."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        """As `logging.Logger.log`; only an interruption of the main thread raises."""
        try:
            self.logger.log(level, msg, *args, **{"stacklevel": 2, **more})
        except BaseException as exc:
            if not isinstance(exc, Exception) and current_thread() is main_thread():
                raise
            # Standard error may be none, full or closed, and there is no other place.
            with suppress(AttributeError, OSError, ValueError):
                said = " ".join(map(str, (msg, *args)))
                sys.stderr.write(f"txlayer: not logged everywhere, a log handler raised {kind_of(exc)}: {said}\n")


def kind_of(error: BaseException) -> str:
    """The name of an error's class, with its module if it is not built in."""
    try:
        kind = type(error)
        return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    except BaseException:  # noqa: BLE001 - its class may be the user's, too
        return "Exception"


def text_of(error: BaseException) -> str:
    """The text of an error of the user's code, which may raise."""
    try:
        return str.__str__(str(error))
    except BaseException as exc:  # noqa: BLE001 - the user's code, too
        return f"its text raised {kind_of(exc)}"


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a log line, without those that every record has."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _at(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            "pid": record.process,
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str).replace("\x7f", r"\u007f")


class TextFormatter(logging.Formatter):
    """Time, level, name, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_field(value)}" for name, value in fields_of(record).items())
        line = f"{_at(record)} {record.levelname:<7} {printable(record.getMessage())} {fields}".rstrip()
        if record.exc_info:
            line = f"{line}\n{printable_lines(self.formatException(record.exc_info))}"
        return line


def _field(value: object) -> str:
    """The value, quoted if it could be read as more than one field."""
    text = printable(str(value))
    return json.dumps(text, ensure_ascii=False) if "=" in text or '"' in text else text


# --- tracing ---------------------------------------------------------------------------------------------------------
# The trace context in headers, the Protocols that services expect of a tracing library, and one that is off. A service checks
# `is_on` once, when it is made; without tracing it uses classes that contain no tracing code. Names and attributes follow
# OpenTelemetry's conventions for messaging; they contain no users' keys, values or texts.


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


def attributes_of(operation: str, kind: str, topic: str | None, more: Attributes) -> dict[str, str | int | bool]:
    """Attributes of a span: the operation, its kind in OpenTelemetry's conventions, and the topic if there is one alone."""
    of_topic = {} if topic is None else {"messaging.destination.name": topic}
    operations = {"messaging.operation.name": operation, "messaging.operation.type": kind}
    return {"messaging.system": "kafka", **operations, **of_topic, **more}


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


# --- metrics ----------------------------------------------------------------------------------------------------------

# Families, samples, histograms and health are independent of Prometheus' client. Services keep their counts in any form and turn them
# into samples on request. The reader and the output format are decided elsewhere.

OTHER = "other"  # the label for values that are not counted separately

LABEL_COUNT_MAX = 50
"""Values of a label that users name (producer groups, causes): the largest keep their names, the rest is `other`."""

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds for how long transactions take: from one Kafka transaction to an hour of check-backs."""

CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds for calls to a broker."""


class FamilyKind(Enum):
    """The kind of a metric."""

    COUNTER = "counter"  #: only grows while its process lives
    GAUGE = "gauge"  #: the current value
    HISTOGRAM = "histogram"  #: a count per range of sizes


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its Prometheus name, its help text and its label names."""

    name: str
    kind: FamilyKind
    text: str
    labels: tuple[str, ...] = ()


class HistogramView(NamedTuple):
    """The content of a histogram at one moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # cumulative counts: values up to each bound, and finally all values
    total: float


class Sample(NamedTuple):
    """One value of a family."""

    family: Family
    value: float | HistogramView
    labels: tuple[str, ...] = ()


class Health(NamedTuple):
    """The health of a process, for supervisors and load balancers."""

    stalled: str  # why it should be restarted; empty: it is alive
    waiting: str  # why it does not do its work yet; empty: it is ready


class Measured(Protocol):
    """A source of metrics. Any thread may ask at any time; the answer does not wait for other threads."""

    def samples(self) -> Iterable[Sample]:
        """The current samples."""


class Observed(Measured, Protocol):
    """A source of metrics and health."""

    def health(self) -> Health:
        """The current health."""


class Histogram:
    """Counts by size. One thread writes; any thread may read."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Count `weight` values of this size, which is 0 or more."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self.total += value * weight

    def add(self, other: Histogram) -> None:
        self._counts = [ours + theirs for ours, theirs in zip(self._counts, other._counts, strict=True)]
        self.total += other.total

    def view(self) -> HistogramView:
        return HistogramView(self._bounds, tuple(accumulate(tuple(self._counts))), self.total)


def counter(name: str, text: str, *labels: str) -> Family:
    """A family of counters; its name ends in `_total`."""
    return Family(name, FamilyKind.COUNTER, text, labels)


def gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name, FamilyKind.GAUGE, text, labels)


def histogram(name: str, text: str, *labels: str) -> Family:
    return Family(name, FamilyKind.HISTOGRAM, text, labels)


def with_few_labels(counts: Mapping[str, int], count_max: int = LABEL_COUNT_MAX) -> dict[str, int]:
    """The same sum over at most `count_max` names and `other`; of equal counts, names that sort first are kept."""
    if len(counts) <= count_max:
        return dict(counts)
    in_order = sorted(counts, key=lambda name: (-counts[name], name))
    kept = {name: counts[name] for name in in_order[:count_max]}
    rest = sum(counts[name] for name in in_order[count_max:])
    kept[OTHER] = kept.get(OTHER, 0) + rest
    return kept


INFO = gauge(
    "txlayer_info",
    "Always 1; the labels name the release, the role and the namespace or group.",
    "role",
    "version",
    "name",
)
ALIVE = gauge("txlayer_alive", "1 while the loop makes progress, else 0; the answer of /livez.")
READY = gauge("txlayer_ready", "1 while the process is ready, else 0; the answer of /readyz.")
EVERYBODYS = (INFO, ALIVE, READY)  # the families of every role

STALL_S = 60.0
"""A loop without a turn for this long hangs. The slowest turn that can still succeed is a coordinator's: it waits 10 s for records,
10 s for offsets and 20 s for a commit. A responder pauses for 19 s at most. Users' handlers run elsewhere."""


def stall_of(turned_at: float, now: float) -> str:
    """Why a process should be restarted whose loop last turned at `turned_at`, in monotonic seconds; empty: it is alive."""
    return "" if now - turned_at < STALL_S else f"the loop has not turned for {now - turned_at:.0f} s"


class ObservedRole:
    """The metrics and the health of one process. Thread-safe.

    Args:
        name: its namespace or group.
        version: of txlayer.
        clock: monotonic seconds, the same clock as that of the loop.
    """

    role = ""

    def __init__(self, *, name: str, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._labels = (self.role, version, name)
        self._clock = clock

    def _look(self, now: float) -> tuple[Health, Iterable[Sample]]:
        raise NotImplementedError

    def health(self) -> Health:
        return self._look(self._clock())[0]

    def samples(self) -> Iterator[Sample]:
        health, own = self._look(self._clock())
        yield Sample(INFO, 1, self._labels)
        yield Sample(ALIVE, 0 if health.stalled else 1)
        yield Sample(READY, 0 if health.stalled or health.waiting else 1)
        yield from own
