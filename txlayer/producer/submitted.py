"""A submitted transaction: it runs its local transaction itself, and is its own future.

One object instead of three, and no lock of its own: `concurrent.futures.Future` with a condition per future costs more
than everything else that a transaction needs. `wait`, `as_completed` and `asyncio.wrap_future` take it as it is.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from txlayer.adapters.ports import Barrier
from txlayer.config import seconds
from txlayer.core.messages import COMMIT, UNKNOWN, Message, Resolution
from txlayer.errors import LifecycleError, UsageError
from txlayer.producer.barrier import Ending, LocalPart, joinable, part_of
from txlayer.producer.pipeline import (
    FAILED,
    PREPARED,
    STORING,
    UNSTORED,
    OpQueue,
    PendingTransaction,
    TransactionSendResult,
)
from txlayer.producer.waiting import BarrierCall, Steps, drive

LocalTransaction = Callable[["SubmittedTransaction"], Resolution | None]
"""Called once its half messages are acknowledged. Nothing (None) commits, like leaving a `with` block."""


def said_by_local_transaction(said: object) -> Resolution:
    """The resolution for what a local transaction returned; nothing (None) commits; UsageError: it is no resolution."""
    if said is None:
        return COMMIT
    if isinstance(said, Resolution):
        return said
    raise UsageError(f"a local transaction returns COMMIT, ROLLBACK or UNKNOWN, not {said!r}")


def run_local_transaction(
    call: Callable[[], Any], txn: PendingTransaction, local: LocalPart | None
) -> Steps[tuple[Resolution, BaseException | None]]:
    """Run it, and ask the barrier, if there is one, how it ended: (what to say, what its caller gets raised)."""
    said: Any = None
    error: BaseException | None = None
    ending = Ending(UNKNOWN)
    try:
        try:
            if local is not None:
                local.begin()
            said = yield BarrierCall(call)
            ending = Ending(said_by_local_transaction(said))
        except BaseException as exc:  # noqa: BLE001 - border: the user's code, also cancelled; raised again as it was
            said, error = None, exc
        if local is not None:
            asking = local.said_steps(said, txn_id=txn.txn_id, nonce=txn.nonce, has_failed=error is not None)
            try:
                ending = yield from asking
            except BaseException as exc:  # noqa: BLE001 - border: the user's database, or cancelled
                return UNKNOWN, error or exc
        if ending.misfit is not None:
            error = error or LifecycleError(ending.misfit, state=PREPARED.value)
        return ending.resolution, error
    finally:
        del error  # it knows this frame


class LocalWork(NamedTuple):
    """What is to be done between prepare and the resolution."""

    local_transaction: LocalTransaction
    executor: Executor | None
    messages: Sequence[Message]
    barrier: Barrier | None = None


Turn = deque[None]
"""Holds one element, for the first who says how a local transaction ended: executors keep what they had no thread for, and run it later."""


def _is_taken(turn: Turn) -> bool:
    """False for the first caller: popping is atomic."""
    try:
        turn.pop()
    except IndexError:
        return True
    return False


# The words of concurrent.futures for what a future is doing.
_RUNNING, _FINISHED = "RUNNING", "FINISHED"


class SubmittedTransaction(PendingTransaction, Future[TransactionSendResult]):
    """One submitted transaction. It cannot be cancelled: its half messages are under way."""

    __slots__ = ("_callbacks", "_local", "_local_error", "_watchers", "_work", "own_condition")

    def __init__(
        self, queue: OpQueue, key: str, born_ms: int, message_count: int, work: LocalWork | None = None
    ) -> None:
        # Neither base's constructor is called. PendingTransaction's is repeated here, which saves a call per transaction.
        # Future's would make a condition and two lists; they are made when a caller needs them.
        self.queue = queue
        self.key = key
        self.born_ms = born_ms
        self.unreported_count = message_count
        self.stage = STORING
        self.first_offset = self.last_offset = UNSTORED
        self.op_offset = UNSTORED
        self.resolution = None
        self.error = None
        self.unsent = None
        self.waker = None
        self.watches = ()
        self._work = work
        self._local: LocalPart | None = None
        self._local_error: BaseException | None = None
        self.own_condition: threading.RLock | None = None
        self._watchers: list[Any] | None = None
        self._callbacks: list[Callable[[Future[Any]], object]] | None = None

    @property
    def messages(self) -> Sequence[Message]:
        """The messages, while there is a local transaction that has not run."""
        return () if self._work is None else self._work.messages

    def join(self, session: Any) -> None:
        """In the local transaction: write the barrier's row as a part of the session's own.

        Raises:
            TxLayerError: what `Transaction.join` raises.
            LifecycleError: it is not called by the local transaction.
        """
        if self._work is None or self.stage is not PREPARED:
            raise LifecycleError("join() belongs into the local transaction", state=self.stage.value)
        local = joinable(self._local)
        pipeline = self.queue.pipeline
        drive(local.check_steps(session), pipeline)
        drive(local.write_steps(session, txn_id=self.txn_id, nonce=self.nonce), pipeline)

    # --- the transaction's side, on the producer's thread ----------------------------------------------------------

    def half_reported(self, error: Any, record: Any) -> None:
        """As in `PendingTransaction`; the plain case, one message stored and committed at once, in one go."""
        offset = None if error is not None else record.offset()
        if offset is None or self.unreported_count != 1 or self._work is not None:
            PendingTransaction.half_reported(self, error, record)
            return
        queue = self.queue
        if not queue.pipeline.is_serving:
            queue.pipeline.begin_round()
        self.last_offset = offset
        self.unreported_count = 0
        self.prepared()

    def prepared(self) -> None:
        """Every half message is reported: commit, or run the local transaction."""
        if self.error is not None or self.resolution is not None:
            PendingTransaction.prepared(self)
            return
        for watch in self.watches:
            watch.prepared(self)
        self.stage = PREPARED
        if self._work is None:
            self.resolution = COMMIT
            self.queue.waiting.append(self)
        else:
            self.queue.pipeline.to_run.append(self)

    def run(self) -> None:
        """Run the local transaction here, or have its executor run it."""
        assert self._work is not None
        executor = self._work.executor
        if executor is None:
            self._resolve()
            self.queue.waiting.append(self)
            return
        turn: Turn = deque([None])
        try:
            task = executor.submit(self._run_elsewhere, turn)
            task.add_done_callback(partial(self._look_whether_it_ran, turn))
        except Exception as exc:  # noqa: BLE001 - border: the user's executor, shut down, full, without a thread, or no future
            self._not_run(turn, exc)

    def _resolve(self) -> None:
        assert self._work is not None
        work, pipeline = self._work, self.queue.pipeline
        self._local = part_of(work.barrier, group=pipeline.group)
        local_steps = run_local_transaction(partial(work.local_transaction, self), self, self._local)
        self.resolution, self._local_error = drive(local_steps, pipeline)
        self._work = None

    def _run_elsewhere(self, turn: Turn) -> None:
        if _is_taken(turn):
            return
        self._resolve()
        self.queue.waiting.append(self)
        self.queue.pipeline.resolved(self.queue)

    def _look_whether_it_ran(self, turn: Turn, task: Future[None]) -> None:
        shut_down = LifecycleError("the executor was shut down before it ran", state="closed")
        self._not_run(turn, shut_down if task.cancelled() else task.exception())

    def _not_run(self, turn: Turn, error: BaseException | None) -> None:
        if _is_taken(turn):
            return
        self._local_error = error
        self.resolution = UNKNOWN
        self.queue.waiting.append(self)
        self.queue.pipeline.resolved(self.queue)

    def abandon(self) -> None:
        """Nothing: it settles itself, whoever went away."""

    def fail(self, error: BaseException) -> None:
        """Nothing more will happen."""
        with self._condition:
            self.error = error
            self.stage = FAILED
        self.wake()

    # --- the future's side --------------------------------------------------------------------------------------------

    def result(self, timeout: timedelta | float | None = None) -> TransactionSendResult:
        """The result, once the op line is acknowledged.

        Raises:
            TimeoutError: it is not, after `timeout`; the transaction goes on.
            OutcomeUnknownError, RollbackRequiredError, …: it failed; the message says what is known.
            Exception: the local transaction's own, as it was; the resolution is then UNKNOWN.
            LifecycleError: asked on the producer's thread, which would wait for itself.
        """
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # no cycle of exception, frame and exception
        return self.send_result()

    def exception(self, timeout: timedelta | float | None = None) -> BaseException | None:
        """What `result` would raise, None when there is a result; waits like it."""
        if not self.is_over:
            self._wait(None if timeout is None else seconds(timeout))
        return self._exception

    def _wait(self, timeout_s: float | None) -> None:
        waiter = _Waiter()
        with self._condition:
            if self.is_over:
                return
            self._waiters.append(waiter)
        if self.queue.pipeline.is_own_thread:
            raise LifecycleError("result() on the producer's own thread would wait for itself", state="open")
        if not waiter.lock.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0)):
            raise TimeoutError(f"{self.txn_id}: not acknowledged within {timeout_s} s")

    def _announce(self) -> None:
        """Tell everybody who waits; the stage is final already."""
        with self._condition:
            for watcher in self._watchers or ():
                if self._exception is None:
                    watcher.add_result(self)
                else:
                    watcher.add_exception(self)
        if self._callbacks is not None:
            self._invoke_callbacks()  # type: ignore[attr-defined]  # of Future; it logs what a callback raises

    # What concurrent.futures looks at: attributes there, computed or made late here.

    @property
    def _condition(self) -> threading.RLock:  # type: ignore[override]  # made when asked for
        # Not one for all: `wait` takes those of its futures in the order of their ids, so that no two threads wait for each other.
        # The lock alone: nobody waits for a notice. An interrupt may leave a Condition locked, because its own `with` is made in Python;
        # and the producer's thread would wait for it.
        with self.queue.pipeline.making_conditions:
            if self.own_condition is None:
                self.own_condition = threading.RLock()
        return self.own_condition

    @property
    def _state(self) -> str:  # type: ignore[override]  # the stage says it
        return _FINISHED if self.is_over else _RUNNING

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]  # the same
        if self.stage is FAILED:
            return self._local_error or self.error
        return self._local_error if self.is_over else None

    @property
    def _result(self) -> TransactionSendResult | None:  # type: ignore[override]  # made when asked for
        return self.send_result() if self.is_over and self.error is None else None

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]  # made when asked for, always under the condition
        if self._watchers is None:
            self._watchers = []
            self.waker = self._announce
        return self._watchers

    @property
    def _done_callbacks(self) -> list[Callable[[Future[Any]], object]]:
        if self._callbacks is None:
            self._callbacks = []
            self.waker = self._announce
        return self._callbacks


class _Waiter:
    """One thread in `result`; the form is that of the waiters of concurrent.futures."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()  # released by the producer's thread

    def add_result(self, _future: Future[Any]) -> None:
        """It has a result."""
        self.lock.release()

    add_exception = add_cancelled = add_result
