"""What steps wait for, as values. The drivers for threads and asyncio know how to wait, the steps know for what."""

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

Waker = Callable[[], None]  # called once, from the producer's thread; it returns at once and does not raise

T = TypeVar("T")


Subscribe = Callable[[Waker], bool]
"""Calls the waker when the condition may have become true; False if it is true already, and there is nothing to wait for.

The waker may be called even then.
"""


class Blocking(NamedTuple):
    """A call that may block because it asks a broker."""

    call: Callable[[], Any]


class BarrierCall(NamedTuple):
    """A call of the user's barrier, made at once, whose answer may be awaitable."""

    call: Callable[[], Any]


Steps = Generator[Subscribe | Blocking | BarrierCall, Any, T]
"""A generator that yields what to wait for, and checks again whenever it is resumed.

The value of a call is sent back into it. An exception of a call is thrown into it: the steps know its meaning.
"""


def answered(run: Steps[T]) -> T:
    """Run steps that only call the barrier, on any thread."""
    try:
        wait = next(run)
        while True:
            assert isinstance(wait, BarrierCall)
            wait = called(run, wait)
    except StopIteration as stop:
        value: T = stop.value
        return value


def called(run: Steps[T], asking: Blocking | BarrierCall) -> Subscribe | Blocking | BarrierCall:
    """Make the call and pass its answer to the steps; returns what they yield next; StopIteration: they have ended."""
    try:
        answer = asking.call()
    except BaseException as exc:  # noqa: BLE001 - border to the user's database and the broker; the steps raise it again
        return run.throw(exc)
    return run.send(answer)


class Bell:
    """Rung by the producer's thread when a condition may have become true for some waiters."""

    __slots__ = ("_is_true", "_wakers")

    def __init__(self, is_true: Callable[[], bool]) -> None:
        self._is_true = is_true
        self._wakers: deque[Waker] = deque()

    def subscribe(self, waker: Waker) -> bool:
        """Call `waker` when the bell rings; False if the condition is true now."""
        self._wakers.append(waker)
        return not self._is_true()

    def ring(self, count: int | None = None) -> None:
        """Wake the first `count` waiters in order; all of them if it is None."""
        for _ in range(len(self._wakers) if count is None else min(count, len(self._wakers))):
            self._wakers.popleft()()

    def __bool__(self) -> bool:
        return bool(self._wakers)
