"""What a check handler is asked, and what its answer counts for. Never: COMMIT or ROLLBACK out of an exception or a time-out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from txlayer.adapters.barrier import Barrier
from txlayer.core.messages import UNKNOWN, Resolution, Source
from txlayer.errors import UsageError

BATCH_COUNT_MAX = 1_000
"""Questions of one call of the barrier: as many as it settles in one database transaction."""

AHEAD_COUNT_MAX = 1_000
"""Calls that may wait for a worker; more questions than these wait where a newer one can replace them."""

BATCHES_AHEAD_MAX = 2
"""Calls of the barrier under way: questions that come meanwhile gather for the next one."""

CAUSE_LENGTH_MAX = 40
"""An op line has room for a short cause."""

TIMED_OUT = "TimeoutError"
"""The cause of an answer that was not there in time."""


class CheckRequest(NamedTuple):
    """A question: what became of this transaction's local transaction?"""

    txn_id: str
    nonce: str  # of the attempt: the transaction is id and nonce together
    group: str
    born_at_ms: int  # the producer's clock when the transaction began
    number: int  # of the question, from 1 on
    topics: tuple[str, ...]  # the real topics of its messages
    traceparent: str = ""  # of the question, where the coordinator traces


CheckHandler = Callable[[CheckRequest], Resolution]
"""COMMIT when the local transaction is durable, ROLLBACK when it never will be, UNKNOWN while nobody can say."""

AsyncCheckHandler = Callable[[CheckRequest], Resolution | Awaitable[Resolution]]
"""The same for asyncio; a coroutine function runs on the producer's loop."""


@dataclass(frozen=True, slots=True)
class Handling:
    """How questions are put to an application."""

    answer: Callable[[Sequence[CheckRequest]], Any]
    """One answer for each, in order; with `is_async` awaited."""
    source: Source
    request_count_max: int  # of one call
    call_count_max: int  # at a time
    ahead_count_max: int  # calls begun or waiting for a worker
    is_async: bool = False


class Verdict(NamedTuple):
    """What one answer counts for."""

    resolution: Resolution
    cause: str = ""  # why it is UNKNOWN


def handling_of(
    check: Callable[[CheckRequest], Any] | None,
    barrier: Barrier | None,
    *,
    worker_count: int,
    is_async: bool,
) -> Handling | None:
    """How a producer with this handler or barrier answers; None: it does not.

    Raises:
        UsageError: both are given, or a handler that this kind of producer cannot call.
    """
    if check is None and barrier is None:
        return None
    if check is None:
        assert barrier is not None
        answer = barrier.resolve_many
        return Handling(
            partial(_ask_barrier, answer),
            Source.BARRIER,
            BATCH_COUNT_MAX,
            # One at a time: two would only wait for each other's rows.
            call_count_max=1,
            ahead_count_max=BATCHES_AHEAD_MAX,
            is_async=is_async,
        )
    if barrier is not None:
        raise UsageError(
            "check= and barrier=: with a barrier the handler is generated, and another could contradict it"
        )
    if not callable(check):
        raise UsageError(
            f"a check handler is called with a CheckRequest; {type(check).__name__} is not callable"
        )
    is_coroutine = is_coroutine_function(check)
    if is_coroutine and not is_async:
        raise UsageError(
            "a coroutine function needs an event loop: use AsyncTransactionalProducer, or a plain function"
        )
    return Handling(
        partial(_ask_loop if is_coroutine else _ask, check),
        Source.CHECK,
        1,
        call_count_max=worker_count,
        ahead_count_max=AHEAD_COUNT_MAX,
        is_async=is_coroutine,
    )


def is_coroutine_function(handler: object) -> bool:
    """True for a coroutine function, and for an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - asked what kind it is, not whether
    )


def verdicts(said: object, *, count: int) -> list[Verdict]:
    """What the answers of one call count for; anything but `count` clear words is UNKNOWN for all of them."""
    if not isinstance(said, list | tuple) or len(said) != count:
        return [Verdict(UNKNOWN, f"returned {type(said).__name__}")] * count
    return [_verdict(one) for one in said]


def failed(error: BaseException, *, count: int) -> list[Verdict]:
    """What a call that raised counts for."""
    return [Verdict(UNKNOWN, type(error).__name__)] * count


def told_cause(source: Source, cause: str) -> str:
    """The reason in the op line of an UNKNOWN: who was asked, and the kind of what went wrong, never its text."""
    who = "handler" if source is Source.CHECK else source.value
    return f"{who}: {re.sub(r'[^A-Za-z0-9_. ]', '_', cause)[:CAUSE_LENGTH_MAX]}"


def _verdict(said: object) -> Verdict:
    if isinstance(said, Resolution):
        return Verdict(said, "UNKNOWN" if said is UNKNOWN else "")
    if inspect.iscoroutine(said):
        said.close()  # nobody awaits it, and Python would say so later
    return Verdict(UNKNOWN, f"returned {type(said).__name__}")


def _ask(handler: Callable[[CheckRequest], Any], requests: Sequence[CheckRequest]) -> list[Any]:
    return [handler(request) for request in requests]


async def _ask_loop(
    handler: Callable[[CheckRequest], Awaitable[Any]], requests: Sequence[CheckRequest]
) -> list[Any]:
    return [await handler(request) for request in requests]


def _ask_barrier(
    resolve_many: Callable[..., Any], requests: Sequence[CheckRequest]
) -> Any:  # a list, or what is awaited for one
    return resolve_many(requests, group=requests[0].group)
