"""What may be a handler: its signature, at registration and for mypy. No consumer runs here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.handlers import Interceptor
from txlayer.core.retry import HandlerResult, Retry, RetryPolicy
from txlayer.errors import ConfigError

if TYPE_CHECKING:
    from tests.unit.test_bodies import Line  # not there at run time, as in a user's module


def consumer() -> OrderedConsumer:
    return OrderedConsumer(group="g", topics=["t"])


@dataclass
class Order:
    """What a handler wants."""

    cents: int


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


# --- bodies -----------------------------------------------------------------------------------------------------------


def body_alone(order: Order) -> None:
    """The least."""


def body_and_message(order: Order, message: ReceivedMessage) -> None:
    """The usual."""


def all_three(order: Order | None, message: ReceivedMessage, context: Context, more: int = 0) -> None:
    """The most."""


def vague(order: Any, message: ReceivedMessage) -> None:
    """Its body is said by the decorator."""


def unknown(order: Line, message: ReceivedMessage) -> None:
    """Its type is not there at run time."""


class Listening:
    """An object with a method that takes a body."""

    def __call__(self, order: Order) -> None:
        """A handler."""


@pytest.mark.parametrize(
    "function", [body_alone, body_and_message, all_three, Listening(), Listening().__call__, partial(all_three, more=1)]
)
def test_a_handler_may_take_a_body_of_its_own_type(function: Callable[..., Any]) -> None:
    made = consumer()

    assert function is made.handler(function)
    assert function is made.handler("t")(function)
    assert function is made.handler("t", body=Order)(function)
    assert function is made.handler(body=Order, tags="a")(function)


@pytest.mark.parametrize("function", [vague, unknown, lambda order: order, lambda order, *_: order])
def test_the_decorator_says_the_body_of_a_function_that_does_not(function: Callable[..., Any]) -> None:
    assert function is consumer().handler(body=Order)(function)


@pytest.mark.parametrize(
    ("function", "body", "why"),
    [
        (vague, None, "its parameter message gets the Context"),
        (unknown, None, "its annotation of order is not known at run time: name 'Line' is not defined"),
        (body_and_message, int, "its parameter order gets the int"),
        (lambda: None, Order, "it cannot be called with one argument"),
        (lambda _a, _b, _c, _d: None, Order, "it cannot be called with 3 arguments"),
        (body_alone, Handling, "its parameter order gets the Handling"),
        (vague, Handling, "Handling cannot be read from JSON"),
        (with_more, Order, "its parameter message gets the Order"),
    ],
)
def test_a_handler_that_contradicts_what_it_gets_is_refused_in_one_line(function: Any, body: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        consumer().handler(function) if body is None else consumer().handler(body=body)(function)

    assert "\n" not in str(raised.value)


def test_a_topic_that_is_not_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="no function and no topic"):
        consumer().handler("other")


class AwaitedFunction(Interceptor):
    async def before(self, message: ReceivedMessage, context: Context) -> None:
        raise PermissionError(message, context)


class AwaitedObject(Interceptor):
    class Hook:
        async def __call__(self, message: ReceivedMessage, context: Context) -> None:
            raise PermissionError(message, context)

    before = Hook()


@pytest.mark.parametrize("kind", [AwaitedFunction, AwaitedObject])
def test_an_interceptor_whose_hook_nothing_awaits_is_refused(kind: type[Interceptor]) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.before"):
        OrderedConsumer(group="g", topics=["t"], interceptors=[kind()])
    AsyncOrderedConsumer(group="g", topics=["t"], interceptors=[kind()])


def test_a_batch_handler_takes_no_body() -> None:
    with pytest.raises(ConfigError, match="too many positional arguments"):
        consumer().batch_handler(body_alone)  # type: ignore[arg-type]  # it takes no list of messages


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

    with pytest.raises(ConfigError, match="its parameter context gets the ReceivedMessage"):

        @made.handler(tags="a")  # type: ignore[arg-type]  # its first argument is no message, and its second is none
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


def test_mypy_checks_handlers_of_bodies() -> None:
    """As above."""
    made, asynchronous = consumer(), AsyncOrderedConsumer(group="g", topics=["t"])

    @made.handler
    def right_body(order: Order, message: ReceivedMessage) -> HandlerResult:
        return Retry(reason=f"{order.cents} {message.topic}")

    @made.handler("t", body=Order)
    def right_body_alone(order: Order) -> None: ...

    @made.handler(tags="a", body=Order)
    def right_body_or_none(order: Order | None, message: ReceivedMessage, context: Context) -> None: ...

    @made.handler("t", tags="a")
    def right_body_of_a_topic(order: dict[str, int], message: ReceivedMessage) -> None: ...

    @made.handler(body=Order)  # type: ignore[arg-type]  # it returns a text
    def wrong_result_of_body(_order: Order) -> str:
        return ""

    @made.handler  # type: ignore[arg-type]  # it returns a number
    def wrong_result_beside_body(_order: Order, _message: ReceivedMessage) -> int:
        return 0

    with pytest.raises(ConfigError):

        @made.handler(body=Order)  # type: ignore[arg-type]  # its body is another one
        def wrong_body(order: Handling) -> None: ...

    with pytest.raises(ConfigError):

        @made.handler(body=Order)  # type: ignore[arg-type]  # its second argument is no message
        def wrong_second(order: Order, context: Context) -> None: ...

    with pytest.raises(ConfigError):

        @made.handler(body=Order)  # type: ignore[arg-type]  # it is a coroutine
        async def wrong_coroutine(order: Order) -> None: ...

    @asynchronous.handler("t", body=Order)
    async def right_coroutine_of_body(order: Order, message: ReceivedMessage) -> None: ...
