"""What runs around the send and the end of each transaction: users' interceptors, and the spans of tracing.

A producer that has neither runs none of this.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from threading import current_thread, main_thread
from typing import Any, NamedTuple, Protocol

from txlayer.core.messages import Message, Resolution, nonce_of, txn_id_of
from txlayer.errors import OutcomeUnknownError, UsageError
from txlayer.producer.encoding import HalfRecord
from txlayer.producer.pipeline import UNSTORED, OpRecord, PendingTransaction, Pipeline
from txlayer.runtime.environment import is_coroutine_function

logger = logging.getLogger("txlayer.producer")


class SentTransaction(NamedTuple):
    """A transaction as interceptors see it; every hook of one transaction gets the same object."""

    txn_id: str
    nonce: str
    group: str
    messages: tuple[Message, ...]  # as they are sent: keys, values and headers are bytes


class ProducerInterceptor:
    """Code that runs around the send and the end of every transaction. Override what you need.

    The `before` hooks run in the order in which interceptors were given, the others in reverse order. `before_send` runs in
    the call that sends; what it raises comes out of that call, and nothing was sent. The other hooks run on any thread,
    mostly the producer's own: they must return at once, and what they raise is logged. On the main thread a `KeyboardInterrupt` or a
    `SystemExit` passes: a signal's handler may have raised it.
    """

    def before_send(self, transaction: SentTransaction) -> None:
        """Called before the half messages are queued."""

    def after_send(self, transaction: SentTransaction) -> None:
        """Called when all half messages are acknowledged."""

    def before_end(self, transaction: SentTransaction, resolution: Resolution) -> None:
        """Called before the resolution is written."""

    def after_end(self, transaction: SentTransaction, resolution: Resolution) -> None:
        """Called when the resolution is acknowledged."""

    def on_error(self, transaction: SentTransaction, error: BaseException) -> None:
        """Called when an interceptor refused the transaction, a half message is not stored, or the resolution may not be stored.

        A transaction of which a half message is missing ends with a rollback, which calls the hooks of an end, too.
        """


class Watch(Protocol):
    """Sees what becomes of one transaction, on the producer's thread if nothing else is said. It does not raise."""

    @property
    def trace_id(self) -> str:
        """The trace that its messages carry; "" without one."""

    def prepared(self, txn: PendingTransaction) -> None:
        """Every half message is reported; `txn.error` says whether one is not stored."""

    def ending(self, txn: PendingTransaction) -> None:
        """Its resolution is about to be written, by any thread."""

    def ended(self, txn: PendingTransaction, record: OpRecord, op_offset: int, error: BaseException | None) -> None:
        """Its op line is acknowledged at `op_offset`, or, with an error, may not be stored."""


Watcher = Callable[[Pipeline, list[HalfRecord], str], tuple[list[HalfRecord], Watch]]
"""Begins to watch a transaction ("id/nonce") before it is sent, and returns the half records to send."""


def intercepting(interceptors: Iterable[ProducerInterceptor]) -> list[Watcher]:
    """What calls the interceptors; nothing without any.

    Raises:
        UsageError: one of them is no `ProducerInterceptor`, or a hook of it is a coroutine function.
    """
    given = tuple(interceptors)
    for each in given:
        if not isinstance(each, ProducerInterceptor):
            raise UsageError(f"interceptors= takes instances of subclasses of ProducerInterceptor, not {each!r}")
        if any(is_coroutine_function(getattr(each, name)) for name in vars(ProducerInterceptor) if name[0] != "_"):
            raise UsageError(f"the hooks of {each!r} are plain functions: nothing awaits what they return")
    return [partial(_begin, given)] if given else []


def _begin(
    interceptors: tuple[ProducerInterceptor, ...], pipeline: Pipeline, records: list[HalfRecord], key: str
) -> tuple[list[HalfRecord], Watch]:
    messages = tuple(Message(topic, key, value, headers) for topic, key, value, headers, _ in records)
    sent = SentTransaction(txn_id_of(key), nonce_of(key), pipeline.group, messages)
    for number, each in enumerate(interceptors, start=1):
        try:
            each.before_send(sent)
        except BaseException as exc:
            _Intercepted(interceptors[:number], sent).call("on_error", exc)
            raise
    return records, _Intercepted(interceptors, sent)


class _Intercepted:
    """Calls the interceptors for one transaction."""

    __slots__ = ("_interceptors", "_sent")

    trace_id = ""

    def __init__(self, interceptors: tuple[ProducerInterceptor, ...], sent: SentTransaction) -> None:
        self._interceptors = interceptors
        self._sent = sent

    def prepared(self, txn: PendingTransaction) -> None:
        self.call("after_send") if txn.error is None else self.call("on_error", txn.error)

    def ending(self, txn: PendingTransaction) -> None:
        self.call("before_end", txn.resolution, is_reversed=False)

    def ended(self, txn: PendingTransaction, _record: OpRecord, _offset: int, error: BaseException | None) -> None:
        self.call("after_end", txn.resolution) if error is None else self.call("on_error", error)

    def call(self, hook: str, *said: Any, is_reversed: bool = True) -> None:
        for each in reversed(self._interceptors) if is_reversed else self._interceptors:
            try:
                getattr(each, hook)(self._sent, *said)
            except BaseException as exc:
                if isinstance(exc, KeyboardInterrupt | SystemExit) and current_thread() is main_thread():
                    raise  # a signal's handler may have raised it, which happened to interrupt a hook
                # The user's code; the transaction goes on whatever it raises.
                logger.exception("interceptor.raised", extra={"txn_id": self._sent.txn_id, "nonce": self._sent.nonce})


class Onlooker:
    """Tells watches how their transactions end: an observer of a pipeline."""

    def failed(self) -> None:
        """A transaction was not prepared; its watches know it."""

    def ending(self, record: OpRecord) -> None:
        """The record is about to be written."""
        for txn in record.txns:
            for watch in txn.watches:
                watch.ending(txn)

    def acknowledged(self, record: OpRecord, offset: int) -> None:
        """The record's lines are stored."""
        for txn in record.txns:
            if txn.op_offset == UNSTORED:
                for watch in txn.watches:
                    watch.ended(txn, record, offset, None)

    def lost(self, record: OpRecord) -> None:
        """The record's lines may not be stored."""
        for txn in record.txns:
            error = OutcomeUnknownError("its resolution may not be stored", txn_id=txn.txn_id, step="op")
            for watch in txn.watches:
                watch.ended(txn, record, UNSTORED, error)
