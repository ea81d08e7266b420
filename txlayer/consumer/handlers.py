"""Registered handlers: which function handles which message, with its body, tags, retry policy and interceptors."""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace, UnionType
from typing import Any, Never, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from txlayer.adapters.bodies import Body, Deserializer
from txlayer.consumer.context import Context, ReceivedMessage, header_of
from txlayer.core.dead_letters import EDITED, DeadLetter
from txlayer.core.messages import DLQ_SUFFIX, TAGS_HEADER, TagFilter, parse_tags
from txlayer.core.retry import BreakerPolicy, HandlerResult, RetryPolicy
from txlayer.errors import ConfigError, UsageError
from txlayer.runtime.environment import is_coroutine_function

BatchHandlerFunction = Callable[[list[ReceivedMessage], Context], HandlerResult]
AsyncBatchHandlerFunction = Callable[[list[ReceivedMessage], Context], Awaitable[HandlerResult]]

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
T = TypeVar("T")
Handling = (
    Callable[[ReceivedMessage, Context], R]
    | Callable[[Never], R]
    | Callable[[Never, ReceivedMessage], R]
    | Callable[[Never, ReceivedMessage, Context], R]
)
"""A handler of messages, or of bodies: of the type that its first parameter says, and Never is a subtype of each."""
HandlingOf = Callable[[T], R] | Callable[[T, ReceivedMessage], R] | Callable[[T, ReceivedMessage, Context], R]
"""A handler of bodies of type T."""

F = TypeVar("F", bound=Callable[..., Any])

BATCH_COUNT_MAX = 100  # default `count_max` of a batch handler


class Registration(Protocol[R_contra]):
    """A decorator that registers a handler."""

    def __call__(self, function: Handling[R_contra], /) -> Callable[..., Any]:
        """Register the function and return it."""


class Interceptor:
    """Code that runs around every attempt, on the handler's own thread, process or task. Override what you need.

    `before` runs in the order in which interceptors were given; `after` and `on_error` in reverse order. An exception
    of `before` or `after` counts as the handler's; an exception of `on_error` is logged. In an asynchronous consumer each
    may be a coroutine. A batch handler's attempt is one call, with the first message of the batch.
    """

    def before(self, message: ReceivedMessage, context: Context) -> Any:
        """Called before the handler."""

    def after(self, message: ReceivedMessage, context: Context, result: HandlerResult) -> Any:
        """Called after the handler returned."""

    def on_error(self, message: ReceivedMessage, context: Context, error: BaseException) -> Any:
        """Called after the handler or an interceptor raised."""


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """One handler function with its topics, tags and policies."""

    function: Callable[..., Any]
    topics: frozenset[str]  # empty: every topic
    tags: TagFilter
    retry: RetryPolicy | None
    batch_count_max: int  # 0: takes single messages
    is_async: bool
    deserializer: Deserializer | None = None  # for its own body; None: the consumer's
    takes_count: int = 0  # of body, message and context, how many it takes; 0: message and context
    is_of_dead_letters: bool = False  # its body is the `DeadLetter`
    producer_group: str | None = None  # whose dead letters it takes; None: all
    breaker: BreakerPolicy | None = None  # of this handler alone; None: its topics' breakers

    @property
    def name(self) -> str:
        return name_of(self.function)

    def call(self, message: ReceivedMessage, context: Context) -> Any:
        if not self.takes_count:
            return self.function(message, context)
        body = message.dead_letter if self.is_of_dead_letters else message.value
        return self.function(*(body, message, context)[: self.takes_count])

    @property
    def accepts_all(self) -> bool:
        return self.tags.wanted is None and not self.is_of_dead_letters

    def accepts(self, record: Any) -> bool:
        """True if the handler's tags, or its dead letters, match the record; the caller has matched the topic."""
        if self.is_of_dead_letters and not is_given_up(record, self.producer_group):
            return False
        return self.tags.wanted is None or self.tags.accepts(header_of(record, TAGS_HEADER))


def is_given_up(record: Any, producer_group: str | None) -> bool:
    """True if a consumer gave this message of the producer group up (None: of any), and it is not an operator's copy."""
    message = ReceivedMessage(record)
    try:
        letter = message.dead_letter
    except ValueError:
        # Of a later release: the handler fails, so that the message is not lost.
        return producer_group in (None, message.producer_group)
    return letter is not None and letter.error_type != EDITED and producer_group in (None, letter.producer_group)


class Route:
    """The handlers of one topic, in the order of registration."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self.handlers = tuple(handlers)
        self.only: Handler | None = None
        """The only handler, if it takes every message; None if the tags of a message decide."""
        if len(handlers) == 1 and handlers[0].accepts_all:
            self.only = handlers[0]
        self.batch_count_max = handlers[0].batch_count_max
        self.retry = handlers[0].retry

    def handler_of(self, record: Any) -> Handler | None:
        """The first handler whose tags match the record; None if there is none."""
        if self.only is not None:
            return self.only
        for handler in self.handlers:
            if handler.accepts(record):
                return handler
        return None


class HandlerSet:
    """All handlers of one consumer."""

    def __init__(self, *, is_async: bool, deserializer: Deserializer | None = None) -> None:
        self._is_async = is_async
        self._deserializer = deserializer
        self._handlers: list[Handler] = []

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers)

    def add(
        self,
        function: F,
        *,
        topics: Sequence[str],
        tags: str,
        retry: RetryPolicy | None,
        batch_count_max: int = 0,
        body: Any = None,
        producer_group: str | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> F:
        """Register a function and return it unchanged. With the body `DeadLetter` it takes those of `producer_group` alone.

        Raises:
            ConfigError: the tags are not a valid expression, the function does not accept what it would be given, its body
                cannot be read, or it is a coroutine function in a consumer for plain functions (or the reverse). Nothing was
                registered.
        """
        check_function(function)
        deserializer, kind, takes_count = None, None, 0
        if not batch_count_max:
            kind, takes_count = body_of(function, body)
            deserializer = Body(kind, self._deserializer) if takes_count and kind is not DeadLetter else None
        check_signature(function, takes_count)
        is_async = is_coroutine_function(function)
        if is_async and not self._is_async:
            expected = "a plain function, or an AsyncOrderedConsumer"
            raise _refused("a coroutine handler needs an event loop", name_of(function), expected)
        if self._is_async and not is_async:
            expected = "a coroutine function, or an OrderedConsumer"
            raise _refused("a plain handler would stop the event loop while it runs", name_of(function), expected)
        self._handlers.append(
            Handler(
                function,
                frozenset(topics),
                parse_tags(tags),
                retry,
                batch_count_max,
                is_async,
                deserializer,
                takes_count,
                is_of_dead_letters=takes_count > 0 and kind is DeadLetter,
                producer_group=producer_group,
                breaker=breaker,
            )
        )
        return function

    def routes(self, topics: Sequence[str]) -> dict[str, Route]:
        """{topic: its handlers}.

        Raises:
            UsageError: a topic has no handler, a handler's topic is not consumed, a batch handler shares a topic, or one for dead
                letters has a topic of other messages.
        """
        consumed = frozenset(topics)
        for handler in self._handlers:
            if not handler.topics <= consumed:
                raise UsageError(
                    f"the handler {handler.name} is for {', '.join(sorted(handler.topics - consumed))}, "
                    "which this consumer does not read"
                )
        routes = {}
        for topic in topics:
            found = [h for h in self._handlers if not h.topics or topic in h.topics]
            if not found:
                raise UsageError(f"no handler for {topic}: register a function with @consumer.handler")
            if any(h.is_of_dead_letters for h in found) and not topic.endswith(DLQ_SUFFIX):
                raise UsageError(f"{topic} has no dead letters: their topics end with {DLQ_SUFFIX}")
            if len(found) > 1 and any(h.batch_count_max for h in found):
                raise UsageError(f"a batch handler must be the only one of its topic ({topic})")
            if any(h.retry != found[0].retry for h in found):
                # Messages of one key may go to several handlers, and share one count of attempts.
                raise UsageError(f"the handlers of {topic} have different retry policies")
            routes[topic] = Route(found)
        return routes


def name_of(function: Callable[..., Any]) -> str:
    """Name of a handler in messages; for a partial or an object, the name of its type."""
    return getattr(function, "__qualname__", type(function).__name__)


def check_function(function: Callable[..., Any]) -> None:
    """Refuse what is no function; ConfigError: it is not callable, or is a generator."""
    expected = "a function that takes (message, context)"
    if not callable(function) or inspect.isclass(function):
        raise _refused("no function", name_of(function), expected)
    call = _routine(function)
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise _refused("a generator does nothing when it is called", name_of(function), f"{expected} and returns")


def _refused(why: str, handler: str, expected: str) -> ConfigError:
    return ConfigError(why, name="handler", value=handler, expected=expected)


def check_signature(function: Callable[..., Any], takes_count: int) -> None:
    """Refuse a function that fails for every message.

    Raises:
        ConfigError: it does not accept (message, context), or the first `takes_count` of body, message and context.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: it has no signature to inspect
    count = takes_count or len(_OF_MESSAGES)
    try:
        signature.bind(*(None,) * count)
    except TypeError as exc:
        number = {1: "one argument", 2: "two arguments"}.get(count, f"{count} arguments")
        takes = "(body, message, context), or fewer from the left" if takes_count else "(message, context)"
        why = f"it cannot be called with {number}: {exc}"
        raise _refused(why, f"{name_of(function)}{signature}", f"a function that takes {takes}") from exc


_OF_MESSAGES = (ReceivedMessage, Context)
_OF_BODIES = (None, ReceivedMessage, Context)


def body_of(function: Callable[..., Any], body: Any) -> tuple[Any, int]:
    """(the type of the body that a handler takes, how many of body, message and context it takes); (None, 0): no body.

    The body is the first parameter. Its type is `body`, or what the parameter is annotated with.

    Raises:
        ConfigError: an annotation contradicts what the parameter gets, or its name is not known when it is registered.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []  # written in C
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is p.empty]
    said = [_annotation(function, p, is_known=body is not None and i == 0) for i, p in enumerate(needed)]
    takes_body = body is not None or (bool(said) and _own(said[0]) is None and said[0] is not None)
    gets = _OF_BODIES if takes_body else _OF_MESSAGES
    for parameter, annotation, own in zip(needed, said, gets, strict=False):
        fits = annotation is None or _own(annotation) is own
        if own is None and body is not None and annotation is not None:
            fits = annotation == body or _is_subclass(body, annotation) or body in _parts_of_union(annotation)
        if not fits:
            name = getattr(own or body, "__name__", str(own or body))
            expected = "(message, context), or (body, message, context) with fewer from the left"
            said_by = f"{name_of(function)}{inspect.signature(function)}"
            raise _refused(f"its parameter {parameter.name} gets the {name}", said_by, expected)
    if not takes_body:
        return None, 0
    wide = said and body in _parts_of_union(said[0])  # `Order | None`: also messages without a value
    return (said[0] if body is None or wide else body), min(max(len(needed), 1), len(gets))


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter, *, is_known: bool) -> Any:
    """What the parameter is annotated with; None: nothing that names its type."""
    found = parameter.annotation
    if found is parameter.empty:
        return None
    if isinstance(found, str):
        routine = _routine(function)
        names = getattr(inspect.unwrap(routine), "__globals__", {})
        try:
            holder = SimpleNamespace(__annotations__={"it": found})
            found = get_type_hints(holder, globalns=names, include_extras=True)["it"]
        except (NameError, AttributeError) as exc:
            own = {kind.__name__: kind for kind in _OF_MESSAGES}.get(found.rpartition(".")[2])
            if own is not None or is_known:
                return own
            why = f"its annotation of {parameter.name} is not known at run time: {exc}"
            said_by = f"{name_of(function)}{inspect.signature(function)}"
            raise _refused(why, said_by, "types that are imported in its module, or body=") from exc
    is_vague = found in (Any, object) or isinstance(found, TypeVar) or getattr(found, "_is_protocol", False)
    return None if is_vague else found


def _parts_of_union(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()


def _own(annotation: Any) -> type | None:
    """`ReceivedMessage` or `Context`, whichever is annotated; None: neither is."""
    return next((kind for kind in _OF_MESSAGES if _is_subclass(annotation, kind)), None)


def _is_subclass(kind: Any, of: Any) -> bool:
    return inspect.isclass(kind) and inspect.isclass(of) and issubclass(kind, of)


def _routine(function: Callable[..., Any]) -> Any:
    """The function that is called in the end, for a partial or an object."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004 - which kind
