"""Registered handlers: which function handles which message, with its tags, retry policy and interceptors."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from txlayer.consumer.context import Context, ReceivedMessage, header_of
from txlayer.core.messages import TAGS_HEADER, TagFilter, parse_tags
from txlayer.core.retry import HandlerResult, RetryPolicy
from txlayer.errors import ConfigError, UsageError

HandlerFunction = Callable[[ReceivedMessage, Context], HandlerResult]
AsyncHandlerFunction = Callable[[ReceivedMessage, Context], Awaitable[HandlerResult]]
BatchHandlerFunction = Callable[[list[ReceivedMessage], Context], HandlerResult]
AsyncBatchHandlerFunction = Callable[[list[ReceivedMessage], Context], Awaitable[HandlerResult]]

F = TypeVar("F", bound=Callable[..., Any])

BATCH_COUNT_MAX = 100
"""Default `count_max` of a batch handler."""


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


@dataclass(frozen=True, slots=True)
class Handler:
    """One handler function with its topics, tags and policies."""

    function: Callable[..., Any]
    topics: frozenset[str]  # empty: every topic
    tags: TagFilter
    retry: RetryPolicy | None
    batch_count_max: int  # 0: takes single messages
    is_async: bool

    @property
    def name(self) -> str:
        """Name of the function, for logs."""
        return name_of(self.function)

    def accepts(self, record: Any) -> bool:
        """True if the handler's tags match the record; the caller has matched the topic."""
        return self.tags.wanted is None or self.tags.accepts(header_of(record, TAGS_HEADER))


class Route:
    """The handlers of one topic, in the order of registration."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self._handlers = tuple(handlers)
        self.only: Handler | None = None
        """The only handler, if it takes every message; None if the tags of a message decide."""
        if len(handlers) == 1 and handlers[0].tags.wanted is None:
            self.only = handlers[0]
        self.batch_count_max = handlers[0].batch_count_max
        self.retry = handlers[0].retry

    def handler_of(self, record: Any) -> Handler | None:
        """The first handler whose tags match the record; None if there is none."""
        if self.only is not None:
            return self.only
        for handler in self._handlers:
            if handler.accepts(record):
                return handler
        return None


class HandlerSet:
    """All handlers of one consumer."""

    def __init__(self, *, is_async: bool) -> None:
        self._is_async = is_async
        self._handlers: list[Handler] = []

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers)

    def add(
        self, function: F, *, topics: Sequence[str], tags: str, retry: RetryPolicy | None, batch_count_max: int = 0
    ) -> F:
        """Register a function and return it unchanged.

        Raises:
            ConfigError: the tags are not a valid expression, the function does not accept a message and a context, or
                it is a coroutine function in a consumer for plain functions (or the reverse). Nothing was registered.
        """
        check_signature(function)
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - asked what kind it is, not whether
        )
        if is_async and not self._is_async:
            raise ConfigError(
                "a coroutine handler needs an event loop",
                name="handler",
                value=name_of(function),
                expected="a plain function, or an AsyncOrderedConsumer",
            )
        if self._is_async and not is_async:
            raise ConfigError(
                "a plain handler would stop the event loop while it runs",
                name="handler",
                value=name_of(function),
                expected="a coroutine function, or an OrderedConsumer",
            )
        self._handlers.append(Handler(function, frozenset(topics), parse_tags(tags), retry, batch_count_max, is_async))
        return function

    def routes(self, topics: Sequence[str]) -> dict[str, Route]:
        """{topic: its handlers}.

        Raises:
            UsageError: a topic has no handler, a handler's topic is not consumed, or a batch handler shares a topic.
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
                raise UsageError(f"nobody handles {topic}: register a function with @consumer.handler")
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


def check_signature(function: Callable[..., Any]) -> None:
    """Refuse a function that fails for every message.

    Raises:
        ConfigError: it is not callable, does not accept (message, context), or is a generator.
    """
    expected = "a function that takes (message, context)"
    if not callable(function) or inspect.isclass(function):
        raise ConfigError("no function", name="handler", value=name_of(function), expected=expected)
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004 - which kind
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise ConfigError(
            "a generator does nothing when it is called",
            name="handler",
            value=name_of(function),
            expected=f"{expected} and returns",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: it has no signature to inspect
    try:
        signature.bind(None, None)
    except TypeError as exc:
        raise ConfigError(
            f"it cannot be called with two arguments: {exc}",
            name="handler",
            value=f"{name_of(function)}{signature}",
            expected=expected,
        ) from exc
