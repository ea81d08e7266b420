"""Messages that a program takes itself. Their handler hands each over and waits for the answer; all else is as for any handler."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import timedelta
from functools import partial

from txlayer.consumer.context import Context, DecodedMessage, ReceivedMessage
from txlayer.core.retry import Ack, HandlerResult, Later, NotBegun, Reject, Retry, WrongResult, checked
from txlayer.errors import LifecycleError, UsageError

LOOK_S = 0.1  # how often a thread looks whether the time of its message is over
MARGIN_S = 0.2  # so long before its deadline an answer comes too late: the thread that waits for it must end in time
NO_ANSWER = "no answer in time"  # why an attempt failed whose message was taken


class PulledMessage(DecodedMessage):
    """A message that was taken by `poll`. Answer it once, from any thread, by `context.deadline`.

    Without an answer until then its attempt has failed. An answer has the effect of the same answer of a handler, and raises
    `LifecycleError` if the message was answered before, or if it comes too late: also when the queue has another owner.
    """

    __slots__ = ("answer", "context", "give_back_at")

    def __init__(self, message: ReceivedMessage, context: Context) -> None:
        super().__init__(message._record, message.key, message.value)  # noqa: SLF001 - the same message
        self.context = context
        self.answer: Future[HandlerResult | NotBegun] = Future()
        """For the consumer alone."""
        # The lease may end earlier, but it is renewed.
        self.give_back_at = (time.monotonic() + context._deadline) / 2  # noqa: SLF001 - the end of `attempt_timeout` alone
        """Likewise: until when it may be taken."""

    def ack(self) -> None:
        """The message is handled."""
        self._say(Ack())

    def retry(self, delay: timedelta | None = None, reason: str = "") -> None:
        """Its attempt failed: hand it out again after `delay`, or after the back-off."""
        self._say(Retry(delay, reason))

    def later(self, delay: timedelta, reason: str = "") -> None:
        """Not now: hand it out again after `delay`; no attempt is counted."""
        self._say(Later(delay, reason))

    def reject(self, reason: str) -> None:
        """It becomes a dead letter at once."""
        self._say(Reject(reason))

    def _say(self, result: HandlerResult) -> None:
        said = checked(result)
        if isinstance(said, WrongResult):
            raise UsageError(said.why)
        is_lost = self.context.lease_lost.is_set()
        if is_lost or self.context.remaining_s <= 0:
            # Its handler sees it, too, but may not have run since.
            with suppress(InvalidStateError):
                self.answer.set_result(NotBegun() if is_lost else Retry(reason=NO_ANSWER))
        try:
            self.answer.set_result(result)
        except InvalidStateError:
            text = f"{self.topic}-{self.partition}@{self.offset} was answered before, or its time is over"
            raise LifecycleError(text, state="answered") from None


class Desk:
    """Where messages wait until the program takes them. `hand_over` and `hand_over_async` are the handlers of its consumer."""

    def __init__(self) -> None:
        self._waiting: deque[PulledMessage] = deque()
        self._taken: set[PulledMessage] = set()  # without an answer
        self._of_workers: dict[object, PulledMessage] = {}
        self._is_closed = False
        # Entered by itself: an interrupt within the steps of a Condition, which are Python, could leave it locked.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._arrived = asyncio.Event()

    # --- handlers -----------------------------------------------------------------------------------------------------

    def hand_over(self, message: ReceivedMessage, context: Context) -> HandlerResult | NotBegun:
        """Wait until the message is taken and answered. A message that is not taken in half of its time is given back."""
        pulled, thread = self._put(message, context), threading.current_thread()
        self._of_workers[thread] = pulled
        try:
            while True:
                try:
                    return pulled.answer.result(LOOK_S)
                except TimeoutError:
                    is_over = context.lease_lost.is_set() or context.remaining_s <= MARGIN_S
                if (is_over or time.monotonic() >= pulled.give_back_at) and self._withdraw(pulled):
                    return NotBegun()
                if is_over and pulled.answer.cancel():
                    raise TimeoutError(NO_ANSWER)
        finally:
            del self._of_workers[thread]

    async def hand_over_async(self, message: ReceivedMessage, context: Context) -> HandlerResult | NotBegun:
        """The same as a task, which its pool cancels at the deadline unless it `is_idle`."""
        pulled, task = self._put(message, context), asyncio.current_task()
        self._of_workers[task] = pulled
        self._arrived.set()
        answer = asyncio.wrap_future(pulled.answer)
        try:
            await asyncio.wait([answer], timeout=pulled.give_back_at - time.monotonic())
            return NotBegun() if not answer.done() and self._withdraw(pulled) else await answer
        finally:
            self._withdraw(pulled)
            answer.cancel()
            # Not before its pool knows the answer.
            asyncio.get_running_loop().call_soon(self._of_workers.pop, task)

    def is_idle(self, worker: object) -> bool:
        """True if the message of this thread or task is not taken, or answered and its worker does not know it yet. Any thread may ask."""
        pulled = self._of_workers.get(worker)
        return pulled is not None and pulled not in self._taken

    def answer_of(self, worker: object) -> HandlerResult | NotBegun:
        """How the message of this task was answered, if its task does not know it yet; None: it was not. Any thread may ask."""
        pulled = self._of_workers.get(worker)
        return pulled.answer.result() if pulled and pulled.answer.done() and not pulled.answer.cancelled() else None

    def _put(self, message: ReceivedMessage, context: Context) -> PulledMessage:
        pulled = PulledMessage(message, context)
        with self._lock:
            self._waiting.append(pulled)
            self._change.notify()
        return pulled

    def _withdraw(self, pulled: PulledMessage) -> bool:
        """True if the message was not taken, and is not any more."""
        with self._lock:
            if pulled not in self._waiting:
                return False
            self._waiting.remove(pulled)
            return True

    # --- the program --------------------------------------------------------------------------------------------------

    def take(self, timeout_s: float | None, *, has_ended: Callable[[], bool]) -> PulledMessage | None:
        """The next message; None: there was none within `timeout_s`, or the consumer has ended."""
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while True:
                if (found := self._next()) is not None or has_ended():
                    return found
                rest_s = LOOK_S if give_up_at is None else min(give_up_at - time.monotonic(), LOOK_S)
                if rest_s <= 0:
                    return None
                self._change.wait(rest_s)

    async def take_async(self, timeout_s: float | None, *, has_ended: Callable[[], bool]) -> PulledMessage | None:
        """The same on the event loop."""
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._arrived.clear()
            with self._lock:
                found = self._next()
            if found is not None or has_ended():
                return found
            rest_s = LOOK_S if give_up_at is None else min(give_up_at - time.monotonic(), LOOK_S)
            if rest_s <= 0:
                return None
            try:
                await asyncio.wait_for(self._arrived.wait(), rest_s)
            except TimeoutError:
                continue

    def _next(self) -> PulledMessage | None:
        while self._waiting:
            pulled = self._waiting.popleft()
            # A program that blocks its event loop comes before the task that would withdraw it.
            is_late = time.monotonic() >= pulled.give_back_at or pulled.context.remaining_s <= 0
            if not is_late and not pulled.context.lease_lost.is_set():
                self._taken.add(pulled)
                pulled.answer.add_done_callback(partial(self._answered, pulled))
                return pulled
            pulled.answer.set_result(NotBegun())
        return None

    def _answered(self, pulled: PulledMessage, _answer: object) -> None:
        with self._lock:
            self._taken.discard(pulled)

    def give_back(self, *, is_late: bool = False) -> None:
        """Give back what was not taken, and what lost its lease: the consumer ends, or its partitions get other owners.

        `is_late`: also what was taken and not answered. Workers say soon how these messages were answered, and end.
        """
        is_late |= self._is_closed
        with self._lock:
            left = [pulled for pulled in self._taken if is_late or pulled.context.lease_lost.is_set()]
            found = [*self._waiting, *left]
            self._waiting.clear()
            for pulled in found:
                with suppress(InvalidStateError):  # it is answered just now
                    pulled.answer.set_result(NotBegun())

    def close(self) -> None:
        """Give back what was taken and not answered, too, from now on: the program that closes its consumer answers nothing more."""
        self._is_closed = True
        self.give_back()
