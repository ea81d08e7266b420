"""Which function handles which message, and what stands around it: tags, policies, interceptors. Never calling one."""

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
"""Messages of one call of a batch handler that says nothing else."""


class Interceptor:
    """What is done around every attempt, on the handler's own thread, process or task. Override what is needed.

    Interceptors are called in the order in which they were given, behind the handler in the opposite one. What `before`
    or `after` raises counts as if the handler had raised it; what `on_error` raises is logged. For an asynchronous
    consumer any of them may be a coroutine. A batch handler's attempt is one call, with the batch's first message.
    """

    def before(self, message: ReceivedMessage, context: Context) -> Any:
        """An attempt begins."""

    def after(self, message: ReceivedMessage, context: Context, result: HandlerResult) -> Any:
        """The handler returned."""

    def on_error(self, message: ReceivedMessage, context: Context, error: BaseException) -> Any:
        """The handler, or an interceptor, raised."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One function and what it is for."""

    function: Callable[..., Any]
    topics: frozenset[str]  # none: every topic
    tags: TagFilter
    retry: RetryPolicy | None
    batch_count_max: int  # 0: it takes single messages
    is_async: bool

    @property
    def name(self) -> str:
        """For logs."""
        return name_of(self.function)

    def accepts(self, record: Any) -> bool:
        """True when its tags let the record through; its topic is known."""
        return self.tags.wanted is None or self.tags.accepts(header_of(record, TAGS_HEADER))


class Route:
    """What one topic's messages meet: its handlers in the order of their registration."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self._handlers = tuple(handlers)
        self.only: Handler | None = None
        """The one handler that takes every message; None: a message's tags say who takes it, if anybody."""
        if len(handlers) == 1 and handlers[0].tags.wanted is None:
            self.only = handlers[0]
        self.batch_count_max = handlers[0].batch_count_max
        self.retry = handlers[0].retry

    def handler_of(self, record: Any) -> Handler | None:
        """The first handler whose tags accept the record; None: nobody wants it."""
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
        self,
        function: F,
        *,
        topics: Sequence[str],
        tags: str,
        retry: RetryPolicy | None,
        batch_count_max: int = 0,
    ) -> F:
        """Register a function and return it as it is.

        Raises:
            ConfigError: its tags are no expression, it cannot be called with a message and a context, or it is a coroutine where
                plain functions are called (or the other way).
        """
        check_signature(function)
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - asked what kind it is, not whether
        )
        if is_async and not self._is_async:
            raise ConfigError(
                "a coroutine handler needs an event loop", name="handler", value=name_of(function),
                expected="a plain function, or an AsyncOrderedConsumer",
            )  # fmt: skip
        if self._is_async and not is_async:
            raise ConfigError(
                "a plain handler would stop the event loop while it runs", name="handler",
                value=name_of(function), expected="a coroutine function, or an OrderedConsumer",
            )  # fmt: skip
        self._handlers.append(
            Handler(function, frozenset(topics), parse_tags(tags), retry, batch_count_max, is_async)
        )
        return function

    def routes(self, topics: Sequence[str]) -> dict[str, Route]:
        """{topic: its handlers}.

        Raises:
            UsageError: a topic has none, a handler's topic is not consumed, or a batch handler shares a topic.
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
                raise UsageError(f"nobody handles {topic}: register a function with @consumer.handler")  # fmt: skip
            if len(found) > 1 and any(h.batch_count_max for h in found):
                raise UsageError(f"a batch handler must be the only one of its topic ({topic})")
            if any(h.retry != found[0].retry for h in found):
                # One key's messages may meet several of them, and its attempts are counted together.
                raise UsageError(f"the handlers of {topic} have different retry policies")
            routes[topic] = Route(found)
        return routes


def name_of(function: Callable[..., Any]) -> str:
    """What a handler is called in messages; a partial or an object has only its type's name."""
    return getattr(function, "__qualname__", type(function).__name__)


def check_signature(function: Callable[..., Any]) -> None:
    """Refuse what cannot be a handler: every message of its topics would fail with the same error.

    Raises:
        ConfigError: it is no function, takes other arguments than (message, context), or yields instead of returning.
    """
    expected = "a function that takes (message, context)"
    if not callable(function) or inspect.isclass(function):
        raise ConfigError("no function", name="handler", value=name_of(function), expected=expected)
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004 - which kind
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise ConfigError(
            "a generator does nothing when it is called", name="handler", value=name_of(function),
            expected=f"{expected} and returns",
        )  # fmt: skip
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, and does not tell
    try:
        signature.bind(None, None)
    except TypeError as exc:
        raise ConfigError(
            f"it cannot be called with two arguments: {exc}", name="handler",
            value=f"{name_of(function)}{signature}", expected=expected,
        ) from exc  # fmt: skip
