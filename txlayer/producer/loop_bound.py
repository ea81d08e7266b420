"""An engine bound to one event loop: how tasks wait for steps, with one wake-up of the loop per round of reports."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from functools import partial
from typing import TypeVar

from txlayer.errors import LifecycleError, TxLayerError
from txlayer.producer import steps
from txlayer.producer.engine import Engine
from txlayer.producer.ops import OpQueue
from txlayer.producer.sync import drive as drive_in_thread
from txlayer.producer.waiting import Asking, Blocking, Steps

T = TypeVar("T")


class LoopEngine:
    """What the tasks of one loop share."""

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
        """Run steps to their end; this task waits for what they yield.

        Raises:
            LifecycleError: this is another loop than the one that started the producer.
        """
        if threading.get_ident() != self._thread_id or not self._loop.is_running():
            raise LifecycleError("started in another event loop; make one producer per loop")
        try:
            wait = next(run)
            while True:
                if isinstance(wait, Asking):
                    try:
                        answer = wait.call()
                        if inspect.isawaitable(answer):
                            answer = await answer
                    except BaseException as exc:  # noqa: BLE001 - border to the user's database; the steps raise it again
                        wait = run.throw(exc)
                    else:
                        wait = run.send(answer)
                    continue
                if isinstance(wait, Blocking):
                    try:
                        answer = await self._loop.run_in_executor(None, wait.call)
                    except TxLayerError as exc:
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
            value: T = stop.value
            return value
        finally:
            run.close()

    def close_at_exit(self) -> None:
        """The interpreter ends and nobody closed the producer; the loop may be gone."""
        pipeline = self.engine.pipeline
        pipeline.at_end_of_round = None
        timeout_s = self.engine.config.close_timeout.total_seconds()
        drive_in_thread(steps.close(self.engine, timeout_s), pipeline)

    # --- the loop's thread --------------------------------------------------------------------------------------------

    def _write_soon(self, queue: OpQueue) -> None:
        if threading.get_ident() != self._thread_id:  # a thread of the user's
            queue.write()
            return
        # Behind all tasks that run in this turn of the loop: what they say goes out together.
        if not self._is_write_due:
            self._is_write_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_write_due = False
        self.engine.pipeline.write_ops()

    def _serve(self, woken: list[asyncio.Future[None]]) -> None:
        for future in woken:
            if not future.done():  # cancelled meanwhile
                future.set_result(None)

    def _serve_all(self) -> None:
        self._serve(list(self._waiting))

    # --- the producer's thread ----------------------------------------------------------------------------------------

    def _wake(self, future: asyncio.Future[None]) -> None:
        self._woken.append(future)

    def _end_of_round(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            if self._woken:
                woken, self._woken = self._woken, []
                self._loop.call_soon_threadsafe(self._serve, woken)
            if not self.engine.pipeline.is_alive:
                self._loop.call_soon_threadsafe(self._serve_all)
