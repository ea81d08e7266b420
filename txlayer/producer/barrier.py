"""One transaction's use of the barrier: join a local transaction, and derive the resolution from its end.

The barrier itself is in `adapters/sql`.
"""

from functools import partial
from typing import Any, NamedTuple

from txlayer.adapters.ports import Barrier, Joined, LocalState
from txlayer.adapters.telemetry import Log
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution
from txlayer.errors import LifecycleError, UsageError
from txlayer.producer.waiting import BarrierCall, Steps

logger = Log("txlayer.producer")

NO_BARRIER = "join needs a barrier: make the producer with barrier=…, or call prepare() before the local transaction"


class Ending(NamedTuple):
    """The resolution that follows from the end of a local transaction."""

    resolution: Resolution
    misfit: str | None = None  # the caller's mistake, if the way it ended was one


class LocalPart:
    """Joins one local transaction and evaluates its end. It belongs to the thread or task of its transaction."""

    __slots__ = ("__weakref__", "_barrier", "_group", "_joined")

    def __init__(self, barrier: Barrier, *, group: str) -> None:
        self._barrier = barrier
        self._group = group
        self._joined: Joined | None = None

    def enter(self) -> None:
        """Its block begins in this thread or task."""
        self._barrier.belongs_here(self)

    def begin(self) -> None:
        """The half messages are stored: from now on local transactions of its thread or task must join to commit."""
        self._barrier.expect_join(self)

    def end(self) -> None:
        """The resolution is given: local transactions need not join any more."""
        self._barrier.forget_join(self)

    def check_steps(self, session: Any) -> Steps[None]:
        """Refuse a session that cannot be joined, before anything is sent or written.

        Raises:
            LifecycleError: a session was joined already.
            UsageError: what `Barrier.check_session` raises.
        """
        if self._joined is not None:
            raise LifecycleError("join() was called before", state="joined")
        yield BarrierCall(partial(self._barrier.check_session, session))

    def write_steps(self, session: Any, *, txn_id: str, nonce: str) -> Steps[None]:
        """Write the barrier's row inside the session's local transaction; TxLayerError: what `Barrier.write` raises."""
        write = partial(self._barrier.write, session, txn_id=txn_id, nonce=nonce, group=self._group)
        self._joined = yield BarrierCall(write)
        # The work may be rolled back and done again without the row; until the end of the block that must not commit.
        self._barrier.expect_join(self, self._joined)

    def end_steps(self, *, txn_id: str, nonce: str, has_failed: bool) -> Steps[Ending]:
        """The resolution at the end of the block, after an exception (`has_failed`) or normally."""
        self.end()
        joined = self._joined
        if joined is None and not has_failed:
            return Ending(UNKNOWN, "left without join: the barrier was not written, a check-back settles it")
        state = LocalState.ROLLED_BACK if joined is None else joined.state
        if joined is not None:
            joined.leave()
        if state is LocalState.COMMITTED:
            return Ending(COMMIT)
        if state is LocalState.OPEN:
            # A question to the barrier would wait for this transaction's own row.
            misfit = "the joined local transaction is still open; end it inside the block. A check-back settles it"
            return Ending(UNKNOWN, None if has_failed else misfit)
        ask = partial(self._barrier.resolve, txn_id, nonce, group=self._group)
        try:
            resolution: Resolution = yield BarrierCall(ask)
        except Exception as exc:  # noqa: BLE001 - border: the user's database
            # It must not replace the user's own exception, if there is one; it decides nothing.
            reason = type(exc).__name__  # its text may contain the address of the database
            logger.warning("barrier.unreadable", extra={"txn_id": txn_id, "reason": reason})
            return Ending(UNKNOWN)
        return Ending(resolution)

    def check_said(self, resolution: Resolution) -> None:
        """Refuse a resolution that the local transaction contradicts, or may still contradict.

        Raises:
            LifecycleError: it does. The transaction has no resolution yet.
        """
        state = None if self._joined is None else self._joined.state
        if resolution is COMMIT and state is not LocalState.COMMITTED:
            raise LifecycleError(
                "commit: no joined local transaction has reported its commit",
                state="not joined" if state is None else state.value,
            )
        if resolution is ROLLBACK and state in (LocalState.COMMITTED, LocalState.UNCLEAR):
            raise LifecycleError("rollback: the joined local transaction is committed, or may be", state=state.value)
        if resolution is ROLLBACK and self._joined is not None:
            self._joined.forbid_commit("tx.rollback() was called")

    def said_steps(self, said: Resolution | None, *, txn_id: str, nonce: str, has_failed: bool) -> Steps[Ending]:
        """Like `end_steps`, for a local transaction that may also return a resolution."""
        self.end()
        if said is ROLLBACK or said is UNKNOWN:
            try:
                self.check_said(said)
            except LifecycleError as exc:
                ending = yield from self.end_steps(txn_id=txn_id, nonce=nonce, has_failed=True)
                return Ending(ending.resolution, str(exc))
            return Ending(said)
        return (yield from self.end_steps(txn_id=txn_id, nonce=nonce, has_failed=has_failed))


def check_kind(barrier: Barrier | None, *, is_async: bool) -> None:
    """Refuse a barrier for the other kind of producer, whose calls this one cannot make; UsageError: it is one."""
    if barrier is not None and barrier.is_async is not is_async:
        kinds = ("AsyncSqlBarrier", "an AsyncTransactionalProducer")
        if is_async:
            kinds = ("SqlBarrier", "a TransactionalProducer")
        raise UsageError(f"{kinds[0]} goes with {kinds[1]}; use the other barrier or the other producer")


def part_of(barrier: Barrier | None, *, group: str) -> LocalPart | None:
    """The `LocalPart` of one transaction; None without a barrier."""
    return None if barrier is None else LocalPart(barrier, group=group)


def joinable(part: LocalPart | None) -> LocalPart:
    """Return `part` if there is one; UsageError: there is no barrier. Nothing was sent."""
    if part is None:
        raise UsageError(NO_BARRIER)
    return part
