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


Steps = Generator[Subscribe | Blocking, Any, T]
"""A protocol without waiting: it yields what to wait for, and looks again whenever it is resumed."""


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
