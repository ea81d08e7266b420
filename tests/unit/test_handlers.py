"""What may be a handler: its signature, at registration and for mypy. No consumer runs here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.retry import HandlerResult, Retry, RetryPolicy
from txlayer.errors import ConfigError


def consumer() -> OrderedConsumer:
    return OrderedConsumer(group="g", topics=["t"])


class Handling:
    """An object whose methods are handlers."""

    def __call__(self, message: ReceivedMessage, context: Context) -> None:
        """A handler."""

    def method(self, message: ReceivedMessage, context: Context) -> None:
        """Another one."""


def with_more(message: ReceivedMessage, context: Context, more: int = 0) -> None:
    """A third argument that nobody needs."""


def generator(_message: ReceivedMessage, _context: Context) -> Iterator[None]:
    """Does nothing when it is called."""
    yield


async def async_generator(_message: ReceivedMessage, _context: Context) -> AsyncIterator[None]:
    """Likewise."""
    yield


def message_alone(message: ReceivedMessage) -> None:
    """Takes one argument."""


def by_name(message: ReceivedMessage, *, context: Context) -> None:
    """Takes its second argument by name alone."""


@pytest.mark.parametrize(
    "function", [Handling(), Handling().method, with_more, partial(with_more, more=1), lambda *_: None, max, pow]
)
def test_what_can_be_called_with_a_message_and_a_context_is_a_handler(function: Callable[..., Any]) -> None:
    made = consumer()

    assert function is made.handler(function)
    assert function is made.batch_handler(count_max=2)(function)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (message_alone, "too many positional arguments"),
        (by_name, "too many positional arguments"),
        (lambda: None, "too many positional arguments"),
        (lambda _a, _b, _c: None, "missing a required argument"),
        (partial(message_alone), "too many positional arguments"),
        (Handling, "no function"),
        ("text", "no function"),
        (generator, "a generator does nothing"),
    ],
)
def test_what_cannot_be_called_so_is_refused_when_it_is_registered(function: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        consumer().handler(function)
    with pytest.raises(ConfigError, match=why):
        consumer().batch_handler(function)


def test_an_asynchronous_generator_is_refused() -> None:
    made = AsyncOrderedConsumer(group="g", topics=["t"])

    with pytest.raises(ConfigError, match="a generator does nothing"):
        made.handler(async_generator)  # type: ignore[arg-type]  # what mypy says of it


def test_a_policy_that_would_not_park_is_refused() -> None:
    with pytest.raises(ConfigError, match="after_exhausted"):
        RetryPolicy(after_exhausted="park")  # type: ignore[arg-type]  # the word, not the member


def test_mypy_checks_handlers() -> None:
    """The ignores below are the test: `mypy --strict` fails when one of them is not needed."""
    made, asynchronous = consumer(), AsyncOrderedConsumer(group="g", topics=["t"])

    @made.handler
    def right(_message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Retry()

    @made.handler(tags="a")
    def also_right(message: ReceivedMessage, context: Context) -> None: ...

    @made.handler  # type: ignore[arg-type]  # it returns a text
    def wrong_result(_message: ReceivedMessage, _context: Context) -> str:
        return ""

    @made.handler(tags="a")  # type: ignore[arg-type]  # its first argument is no message
    def wrong_message(message: str, context: Context) -> None: ...

    @made.batch_handler
    def right_batch(messages: list[ReceivedMessage], context: Context) -> None: ...

    @made.batch_handler
    def also_right_batch(messages: Sequence[ReceivedMessage], context: Context) -> None: ...

    @made.batch_handler  # type: ignore[arg-type]  # it takes one message
    def wrong_batch(message: ReceivedMessage, context: Context) -> None: ...

    @asynchronous.handler
    async def right_coroutine(message: ReceivedMessage, context: Context) -> None: ...

    with pytest.raises(ConfigError):

        @asynchronous.handler  # type: ignore[arg-type]  # it is no coroutine
        def wrong_plain(message: ReceivedMessage, context: Context) -> None: ...
