"""`AsyncTransactionalProducer` and `AsyncTransaction`: the producer for one event loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar, Unpack, cast

from txlayer.adapters.ports import Barrier
from txlayer.adapters.telemetry import Log
from txlayer.config import seconds
from txlayer.core.history import TransactionHistory
from txlayer.core.messages import Message
from txlayer.errors import LifecycleError, TxLayerError
from txlayer.producer import steps
from txlayer.producer.check_handlers import AsyncCheckHandler
from txlayer.producer.encoding import new_time_ms
from txlayer.producer.engine import SINCE, Engine
from txlayer.producer.identity import Entry, TransactionOptions, now_ms
from txlayer.producer.pipeline import OpQueue, PipelineState, TransactionSendResult
from txlayer.producer.producer import ConfiguredProducer, OpenTransaction
from txlayer.producer.questions import ParkedTransaction, ResponderStats
from txlayer.producer.responder import OnParked
from txlayer.producer.submitted import SubmittedTransaction
from txlayer.producer.waiting import BarrierCall, Blocking, Steps
from txlayer.producer.waiting import drive as drive_in_thread

T = TypeVar("T")

logger = Log("txlayer.producer")

HEARING_COUNT_MAX = 1_000  # calls of `on_parked` that have not returned; further notices are left out: they come again


class LoopEngine:
    """The engine and the wake-ups that the tasks of one event loop share; one wake-up of the loop per round of reports."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._woken: list[asyncio.Future[None]] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_write_due = False
        engine.pipeline.write_soon = self._write_soon
        engine.pipeline.at_end_of_round = self._end_of_round

    async def drive(self, run: Steps[T]) -> T:
        """Run steps to their end in this task; it awaits what they yield.

        Raises:
            LifecycleError: this is not the loop that started the producer.
        """
        if threading.get_ident() != self._thread_id or not self._loop.is_running():
            raise LifecycleError("started in another event loop; make one producer per loop")
        try:
            wait = next(run)
            while True:
                if isinstance(wait, Blocking | BarrierCall):
                    try:
                        is_blocking = isinstance(wait, Blocking)
                        answer = self._loop.run_in_executor(None, wait.call) if is_blocking else wait.call()
                        if inspect.isawaitable(answer):
                            answer = await answer
                    except BaseException as exc:  # noqa: BLE001 - border to the user's database and the broker
                        wait = run.throw(exc)
                    else:
                        wait = run.send(answer)
                    continue
                future = self._loop.create_future()
                if wait(partial(self._wake, future)):
                    self._waiting.add(future)
                    try:
                        await future
                    finally:
                        self._waiting.discard(future)
                wait = next(run)
        except StopIteration as stop:
            return cast("T", stop.value)  # no variable keeps it: it may be an error that knows this frame
        finally:
            run.close()

    def close_at_exit(self) -> None:
        """Close an open producer at interpreter exit; the loop may be closed by then."""
        pipeline = self.engine.pipeline
        if pipeline.state is PipelineState.FORKED:
            return  # as in `TransactionalProducer.close`
        pipeline.at_end_of_round = None
        timeout_s = self.engine.config.close_timeout.total_seconds()
        drive_in_thread(steps.close(self.engine, timeout_s), pipeline)

    # --- the loop's thread --------------------------------------------------------------------------------------------

    def _write_soon(self, queue: OpQueue) -> None:
        if threading.get_ident() != self._thread_id:  # called from a thread of the user
            queue.write()
            return
        # call_soon runs after the tasks of this turn, so their resolutions go out in one write.
        if not self._is_write_due:
            self._is_write_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_write_due = False
        self.engine.pipeline.write_ops()

    def _serve(self, woken: list[asyncio.Future[None]]) -> None:
        for future in woken:
            if not future.done():  # it may have been cancelled
                future.set_result(None)

    # --- the producer's thread ----------------------------------------------------------------------------------------

    def _wake(self, future: asyncio.Future[None]) -> None:
        self._woken.append(future)

    def _end_of_round(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            if self._woken:
                woken, self._woken = self._woken, []
                self._loop.call_soon_threadsafe(self._serve, woken)
            if not self.engine.pipeline.is_alive:
                self._loop.call_soon_threadsafe(lambda: self._serve(list(self._waiting)))


class AsyncTransactionalProducer(ConfiguredProducer[AsyncCheckHandler]):
    """`TransactionalProducer` for one event loop: the same methods, awaited, but for `submit`: a task of your own publishes beside others.

    The tasks of the loop that started it share it; no call blocks the loop.

    Args and Raises: as in `TransactionalProducer`. `check` may be a coroutine function, which runs as tasks of the
    loop; `on_refused` and `on_parked` are called on the loop; the latter may be a coroutine function.
    """

    _is_async = True

    def _set_up(self) -> None:
        self._ready: LoopEngine | None = None
        self._opening: asyncio.Future[LoopEngine] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._is_closed = False
        self._hearing: set[asyncio.Task[None]] = set()
        self._has_left_out = False

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """As `TransactionalProducer.start`."""
        await self._started()

    async def close(
        self,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - the same parameter as in producer.py
    ) -> None:
        """As `TransactionalProducer.close`. If it is cancelled, the close goes on by itself; another call waits for it."""
        if self._ready is not None and self._ready.engine.pipeline.state is PipelineState.FORKED:
            return  # as in `TransactionalProducer.close`
        self._is_closed = True
        opening, self._opening, self._ready = self._opening, None, None
        if opening is not None:
            timeout_s = seconds(self._config.close_timeout if timeout is None else timeout)
            self._closing = asyncio.ensure_future(self._close(opening, timeout_s))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self, opening: asyncio.Future[LoopEngine], timeout_s: float) -> None:
        try:
            started = await asyncio.shield(opening)
        except TxLayerError:
            return  # it is not started, as the call that began the start hears
        try:
            await started.drive(steps.close(started.engine, timeout_s))
        finally:
            if not started.engine.pipeline.is_alive:  # else the loop ends: the hook does the rest
                atexit.unregister(started.close_at_exit)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- transactions -------------------------------------------------------------------------------------------------

    def transaction(
        self, txn_id: str | None = None, **options: Unpack[TransactionOptions]
    ) -> AbstractAsyncContextManager[AsyncTransaction]:
        """Open a transaction as an `async with` block: `send`, `await tx.prepare()`, then do the local work.

        Args and Raises: as in `TransactionalProducer.transaction`. If the producer is not started yet, the errors are
        raised on entering the block.
        """
        started = self._ready
        if started is None:
            return self._transaction_of_unstarted(txn_id, **options)
        started.engine.pipeline.check_open()
        return AsyncTransaction(started, self._barrier, started.engine.enter(txn_id, **options))

    @asynccontextmanager
    async def _transaction_of_unstarted(
        self, txn_id: str | None, **options: Unpack[TransactionOptions]
    ) -> AsyncIterator[AsyncTransaction]:
        await self._started()
        async with self.transaction(txn_id, **options) as tx:
            yield tx

    async def publish(
        self, messages: Sequence[Message] | Message, *, txn_id: str | None = None, **options: Unpack[TransactionOptions]
    ) -> TransactionSendResult:
        """As `TransactionalProducer.publish`."""
        started = self._ready or await self._started()
        entry = started.engine.enter(txn_id, **options)
        key = started.engine.identity.draw(entry.txn_id, now_ms())
        several = (messages,) if isinstance(messages, Message) else messages
        txn = await started.drive(steps.launch(started.engine, SubmittedTransaction, several, entry, key))
        return await started.drive(steps.result(started.engine, txn))

    async def status(self, txn_id: str, *, since: timedelta = SINCE) -> list[TransactionHistory]:
        """As `TransactionalProducer.status`."""
        started = self._ready or await self._started()
        ask = partial(started.engine.status, txn_id, since=since)
        return await asyncio.get_running_loop().run_in_executor(None, ask)

    async def cancel(self, txn_id: str, *, since: timedelta = SINCE) -> bool:
        """As `TransactionalProducer.cancel`."""
        return await self._change_time(txn_id, None, since)

    async def reschedule(
        self,
        txn_id: str,
        *,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        since: timedelta = SINCE,
    ) -> bool:
        """As `TransactionalProducer.reschedule`."""
        return await self._change_time(txn_id, new_time_ms(deliver_at, delay), since)

    async def _change_time(self, txn_id: str, time_ms: int | None, since: timedelta) -> bool:
        started = self._ready or await self._started()
        return await started.drive(steps.change_time(started.engine, txn_id, time_ms=time_ms, since=since))

    def responder_stats(self) -> ResponderStats | None:
        """As `TransactionalProducer.responder_stats`."""
        started = self._ready
        if started is None or started.engine.responder is None:
            return None
        return started.engine.responder.stats()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _started(self) -> LoopEngine:
        if self._is_closed:
            raise LifecycleError("this producer is closed; make a new one", state="closed")
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        opening = self._opening
        try:
            # Shielded: cancelling one task must not cancel the start that other tasks wait for.
            started = await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:  # else another task has begun the next try
                self._opening = None
            raise
        if not self._is_closed:
            self._ready = started
        return started

    async def _open(self) -> LoopEngine:
        loop = asyncio.get_running_loop()
        on_refused: Any = self._on_refused
        tell = None if on_refused is None else partial(loop.call_soon_threadsafe, on_refused)
        engine = await loop.run_in_executor(None, partial(self._open_engine, tell, loop))
        started = LoopEngine(engine, loop)
        atexit.register(started.close_at_exit)
        return started

    def _told_of_parked(self, loop: asyncio.AbstractEventLoop | None) -> OnParked | None:
        on_parked = self._on_parked
        if on_parked is None or loop is None:
            return None

        async def hear(parked: ParkedTransaction, say: Callable[[object], None]) -> None:
            try:
                said = on_parked(parked)
                say(await said if inspect.isawaitable(said) else said)
            except Exception:
                # The user's code. The coordinator sends the notice again.
                extra = {"txn_id": parked.txn_id, "trace_id": parked.trace_id}
                logger.exception("on_parked.raised", extra=extra)

        def start(parked: ParkedTransaction, say: Callable[[object], None]) -> None:
            if len(self._hearing) >= HEARING_COUNT_MAX:
                # Calls that hang, most likely. The coordinator sends the notice again.
                if not self._has_left_out:
                    self._has_left_out = True
                    logger.error(
                        "on_parked.left_out", extra={"txn_id": parked.txn_id, "call_count": len(self._hearing)}
                    )
                return
            task = loop.create_task(hear(parked, say))
            self._hearing.add(task)  # the loop itself keeps no task alive
            task.add_done_callback(self._hearing.discard)

        return lambda parked, say: loop.call_soon_threadsafe(start, parked, say)


class AsyncTransaction(OpenTransaction):
    """One transaction of one task; `Transaction` with `await`."""

    __slots__ = ("_started",)

    def __init__(self, started: LoopEngine, barrier: Barrier | None, entry: Entry) -> None:
        super().__init__(started.engine, barrier, entry)
        self._started = started

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        try:
            if self._local is None:
                self.leave(exc)
            else:
                await self._started.drive(self._leave_steps(exc))
        finally:
            self._abandon()

    async def prepare(self) -> None:
        """As `Transaction.prepare`. If it is cancelled, a check-back settles what is stored."""
        await self._started.drive(self._prepare_steps())

    async def join(self, session: Any) -> None:
        """As `Transaction.join`."""
        await self._started.drive(self._join_steps(session))

    async def result(
        self,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - the same parameter as in producer.py
        *,
        with_decision: bool = False,
    ) -> TransactionSendResult:
        """As `Transaction.result`."""
        async with asyncio.timeout(None if timeout is None else seconds(timeout)):
            return await self._started.drive(self._result_steps(with_decision=with_decision))
