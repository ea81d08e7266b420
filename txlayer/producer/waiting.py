"""What steps wait for, as values, and the driver for threads (aio.py has that for asyncio): drivers know how to wait, steps know for what."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from txlayer.errors import LifecycleError

if TYPE_CHECKING:
    from txlayer.producer.pipeline import Pipeline

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


LOOK_S = 1.0  # so often those who wait are woken to look at their own limits


def drive(run: Steps[T], pipeline: Pipeline, *, timeout_s: float | None = None) -> T:
    """Run steps to their end in this thread; it waits for what they yield.

    Raises:
        TimeoutError: the steps did not end within `timeout_s`.
        LifecycleError: this is the producer's own thread, which would wait for itself.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        wait = next(run)
        while True:
            if isinstance(wait, Blocking | BarrierCall):
                try:
                    answer = wait.call()
                except BaseException as exc:  # noqa: BLE001 - border to the user's database and the broker; the steps raise it again
                    wait = run.throw(exc)
                else:
                    wait = run.send(answer)
                continue
            if pipeline.is_own_thread:
                raise LifecycleError("the producer's own thread would wait for itself", state="open")
            lock = threading.Lock()
            lock.acquire()
            if wait(lock.release):
                # Wait LOOK_S at most, so that the steps see their own limits and the end of the producer.
                left_s = LOOK_S if deadline is None else min(deadline - time.monotonic(), LOOK_S)
                if not lock.acquire(timeout=max(left_s, 0)) and left_s < LOOK_S:
                    raise TimeoutError(f"not acknowledged within {timeout_s} s")
            wait = next(run)
    except StopIteration as stop:
        return cast("T", stop.value)  # no variable keeps it: it may be an error that knows this frame
    finally:
        run.close()


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
