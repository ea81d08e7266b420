"""A transaction that was submitted to an event loop: its local transaction runs as a task there."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from txlayer.adapters.barrier import Barrier
from txlayer.core.messages import UNKNOWN, Resolution
from txlayer.errors import LifecycleError
from txlayer.producer import steps
from txlayer.producer.flight import Flight
from txlayer.producer.local import Ending, LocalPart, joinable, part_of
from txlayer.producer.loop_bound import LoopEngine
from txlayer.producer.ops import OpQueue
from txlayer.producer.results import TransactionSendResult
from txlayer.producer.submitted import said_by_local_transaction

AsyncLocalTransaction = Callable[
    ["AsyncSubmittedTransaction"], Resolution | Awaitable[Resolution | None] | None
]
"""Called once the half messages are acknowledged; a plain function or a coroutine function."""


class AsyncSubmittedTransaction(Flight):
    """One submitted transaction, as its local transaction sees it."""

    __slots__ = ("_local", "_started")

    def __init__(
        self,
        started: LoopEngine,
        barrier: Barrier | None,
        queue: OpQueue,
        key: str,
        born_ms: int,
        message_count: int,
    ) -> None:
        super().__init__(queue, key, born_ms, message_count)
        self._started = started
        self._local: LocalPart | None = part_of(barrier, group=queue.pipeline.group)

    async def join(self, session: Any) -> None:
        """In the local transaction: write the barrier's row as a part of the session's own.

        Raises:
            TxLayerError: what `Transaction.join` raises.
        """
        local = joinable(self._local)
        await self._started.drive(local.check_steps(session))
        await self._started.drive(local.write_steps(session, txn_id=self.txn_id, nonce=self.nonce))

    async def finish(self, local_transaction: AsyncLocalTransaction) -> TransactionSendResult:
        """Wait for the half messages, run the local transaction, and wait until its resolution is acknowledged.

        Raises:
            What `TransactionalProducer.submit` lets its future raise.
        """
        engine = self._started.engine
        await self._started.drive(steps.stored(engine, self))
        said: Resolution | None = None
        error: BaseException | None = None
        try:
            if self._local is not None:
                self._local.begin()
            answer = local_transaction(self)
            if inspect.isawaitable(answer):
                answer = await answer
            said = answer
            resolution = said_by_local_transaction(said)
        except BaseException as exc:  # noqa: BLE001 - border: the user's code, also cancelled; raised again below
            error = exc
            resolution = UNKNOWN
        try:
            ending = await self._ending(resolution, said, has_failed=error is not None)
        except BaseException:
            steps.resolve(engine, self, UNKNOWN)
            raise
        steps.resolve(engine, self, ending.resolution)
        result = await self._started.drive(steps.result(engine, self))
        if error is not None:
            raise error
        if ending.misfit is not None:
            raise LifecycleError(ending.misfit, state="prepared")
        return result

    async def _ending(
        self, resolution: Resolution, said: Resolution | None, *, has_failed: bool
    ) -> Ending:
        if self._local is None:
            return Ending(resolution)
        run = self._local.said_steps(
            None if has_failed else said,
            txn_id=self.txn_id,
            nonce=self.nonce,
            has_failed=has_failed,
        )
        return await self._started.drive(run)
