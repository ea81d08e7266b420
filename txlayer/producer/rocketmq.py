"""The names of RocketMQ's transactional messages, for users who come from RocketMQ; the behaviour is that of producer.py."""

import inspect
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, TypeVar, Unpack

from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, Resolution
from txlayer.errors import UsageError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.identity import TransactionOptions
from txlayer.producer.pipeline import TransactionSendResult
from txlayer.producer.producer import OpenTransaction, TransactionalProducer

_MINUTES = (*range(1, 11), 20, 30, 60, 120)
DELAYS = (*(timedelta(seconds=s) for s in (1, 5, 10, 30)), *(timedelta(minutes=m) for m in _MINUTES))
"""The delays of RocketMQ's levels, as its brokers have them unless `messageDelayLevel` is set."""


def delay_of(level: int) -> timedelta:
    """The delay of one of RocketMQ's levels; UsageError: it is not 1 to 18."""
    if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= len(DELAYS):
        raise UsageError(f"a delay level is 1 to {len(DELAYS)}, not {level!r}")
    return DELAYS[level - 1]


class PreparedMessage(NamedTuple):
    """A message whose half is stored, as `execute_local_transaction` receives it."""

    txn_id: str  # store it with the local transaction: a check names it
    nonce: str
    message: Message


class TransactionListener(Protocol):
    """The two methods of RocketMQ's interface of this name. They may be called from any thread."""

    def execute_local_transaction(self, prepared: PreparedMessage, arg: Any) -> Resolution | None:
        """Run the local transaction; return COMMIT, ROLLBACK, or UNKNOWN (or None) for a later check."""
        ...

    def check_local_transaction(self, request: CheckRequest) -> Resolution:
        """How the local transaction ended: COMMIT or ROLLBACK if that is certain, otherwise UNKNOWN."""
        ...


class AsyncTransactionListener(Protocol):
    """`TransactionListener` for asyncio: both methods may be coroutine functions, which run on the producer's loop."""

    def execute_local_transaction(
        self, prepared: PreparedMessage, arg: Any
    ) -> Resolution | Awaitable[Resolution | None] | None:
        """As in `TransactionListener`."""
        ...

    def check_local_transaction(self, request: CheckRequest) -> Resolution | Awaitable[Resolution]:
        """As in `TransactionListener`."""
        ...


ListenerT = TypeVar("ListenerT", TransactionListener, AsyncTransactionListener)


class TransactionMQProducer(TransactionalProducer):
    """A `TransactionalProducer` with RocketMQ's methods.

    Args:
        listener: runs local transactions and answers checks.
        settings: those of `TransactionalProducer`, without `check` and `barrier`.

    Raises:
        ConfigError, UsageError: a setting is not valid, or `listener` lacks a method. Nothing was connected.
    """

    def __init__(self, *, listener: TransactionListener, **settings: Any) -> None:
        super().__init__(check=_checked(listener, settings).check_local_transaction, **settings)
        self._listener = listener

    def send_message_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        txn_id: str | None = None,
        delay_level: int | None = None,
        **options: Unpack[TransactionOptions],
    ) -> TransactionSendResult:
        """Store the half message, run the local transaction on this thread, and return when its resolution is acknowledged.

        With `delay_level` (1 to 18, RocketMQ's own: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h), or the message's `deliver_at` or
        `delay`, consumers see it that much later. Options: see `TransactionalProducer.transaction`.

        Raises:
            What `transaction`, `prepare` and `result` raise: the local transaction did not run, or a check settles it.
            Exception: the listener's own error, unchanged, after UNKNOWN was sent: a check settles it. (RocketMQ only
                logs it.)
            UsageError: the listener returned something other than a resolution; UNKNOWN was sent.
        """
        with self.transaction(txn_id, **options) as tx:
            _send(tx, message, delay_level)
            tx.prepare()
            said = self._listener.execute_local_transaction(PreparedMessage(tx.txn_id, tx.nonce, message), arg)
            _say(tx, said)
        _check_said(said)
        return tx.result()


class AsyncTransactionMQProducer(AsyncTransactionalProducer):
    """`TransactionMQProducer` for one event loop.

    Args and Raises: as in `TransactionMQProducer`.
    """

    def __init__(self, *, listener: AsyncTransactionListener, **settings: Any) -> None:
        super().__init__(check=_checked(listener, settings).check_local_transaction, **settings)
        self._listener = listener

    async def send_message_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        txn_id: str | None = None,
        delay_level: int | None = None,
        **options: Unpack[TransactionOptions],
    ) -> TransactionSendResult:
        """As in `TransactionMQProducer`; the local transaction runs in this task."""
        async with self.transaction(txn_id, **options) as tx:
            _send(tx, message, delay_level)
            await tx.prepare()
            said = self._listener.execute_local_transaction(PreparedMessage(tx.txn_id, tx.nonce, message), arg)
            if inspect.isawaitable(said):
                said = await said
            _say(tx, said)
        _check_said(said)
        return await tx.result()


def _checked(listener: ListenerT, settings: dict[str, Any]) -> ListenerT:
    for call in ("execute_local_transaction", "check_local_transaction"):
        if not callable(getattr(listener, call, None)):
            raise UsageError(f"a TransactionListener has {call}; {type(listener).__name__} has not")
    refused = sorted({"check", "barrier"} & set(settings))
    if refused:
        raise UsageError(f"{refused[0]}= and a listener: the listener answers checks")
    return listener


def _send(tx: OpenTransaction, message: Message, delay_level: int | None) -> None:
    if delay_level is not None:
        if message.delay is not None:
            raise UsageError("delay_level or delay, not both. Nothing was sent")
        message = message._replace(delay=delay_of(delay_level))
    tx.send(**message._asdict())


def _say(tx: OpenTransaction, said: object) -> None:
    if said is COMMIT:
        tx.commit()
    elif said is ROLLBACK:
        tx.rollback()
    else:
        tx.unknown()


def _check_said(said: object) -> None:
    if not (said is None or said is UNKNOWN or said is COMMIT or said is ROLLBACK):
        raise UsageError(f"execute_local_transaction returns COMMIT, ROLLBACK or UNKNOWN, not {said!r}")
