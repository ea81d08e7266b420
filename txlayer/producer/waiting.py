"""What steps wait for, as values: drivers (threads, asyncio) know how to wait, steps know for what."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

Waker = Callable[[], None]
"""Called once, from the producer's thread; it returns at once and does not raise."""

T = TypeVar("T")


Subscribe = Callable[[Waker], bool]
"""Has the waker called when something may have come true; False when it is true already: then nobody need wait.

The waker may be called all the same.
"""


class Blocking(NamedTuple):
    """A call that asks a broker and so may block; its value is sent back into the steps, its exception thrown."""

    call: Callable[[], Any]


class BarrierCall(NamedTuple):
    """A call of the user's barrier, made on the spot, whose answer may have to be awaited.

    Its value is sent back into the steps; whatever it raises is thrown, because the steps know what that means.
    """

    call: Callable[[], Any]


Steps = Generator[Subscribe | Blocking | BarrierCall, Any, T]
"""A protocol without waiting: it yields what to wait for, and looks again whenever it is resumed."""


def answered(run: Steps[T]) -> T:
    """Run steps that do nothing but ask, on any thread."""
    try:
        wait = next(run)
        while True:
            assert isinstance(wait, BarrierCall)
            wait = ask(run, wait)
    except StopIteration as stop:
        value: T = stop.value
        return value


def ask(run: Steps[T], asking: BarrierCall) -> Subscribe | Blocking | BarrierCall:
    """Make the call and tell the steps; what they yield next.

    Raises:
        StopIteration: they are at their end.
    """
    try:
        answer = asking.call()
    except BaseException as exc:  # noqa: BLE001 - border to the user's database; the steps raise it again
        return run.throw(exc)
    return run.send(answer)


class Bell:
    """Rung by the producer's thread when something may have come true for some of those who wait."""

    __slots__ = ("_is_true", "_wakers")

    def __init__(self, is_true: Callable[[], bool]) -> None:
        self._is_true = is_true
        self._wakers: deque[Waker] = deque()

    def subscribe(self, waker: Waker) -> bool:
        """Have `waker` called when the bell rings; False when that would be true now."""
        self._wakers.append(waker)
        return not self._is_true()

    def ring(self, count: int | None = None) -> None:
        """Wake `count` of those who wait, the first first; all of them when it is None."""
        for _ in range(len(self._wakers) if count is None else min(count, len(self._wakers))):
            self._wakers.popleft()()

    def __bool__(self) -> bool:
        return bool(self._wakers)
