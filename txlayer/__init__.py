"""Transactional messages for Apache Kafka: a database change and its messages, both or neither.

Names are loaded when they are first used, and no import of this package loads a Kafka client: programs that only name
an error or a constant pay for nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlayer.core.history import TransactionHistory
    from txlayer.core.messages import (
        COMMIT,
        ROLLBACK,
        UNKNOWN,
        Message,
        OrderMode,
        Resolution,
        user_headers,
    )
    from txlayer.producer.aio import AsyncTransaction, AsyncTransactionalProducer
    from txlayer.producer.check_handler import CheckRequest
    from txlayer.producer.questions import RefusedResolution, ResponderStats
    from txlayer.producer.results import TransactionSendResult
    from txlayer.producer.rocketmq import (
        PreparedMessage,
        TransactionListener,
        TransactionMQProducer,
    )
    from txlayer.producer.submitted import SubmittedTransaction
    from txlayer.producer.sync import Transaction, TransactionalProducer

__version__ = "0.1.0"

_PLACES = {
    "AsyncTransaction": "txlayer.producer.aio",
    "AsyncTransactionalProducer": "txlayer.producer.aio",
    "COMMIT": "txlayer.core.messages",
    "CheckRequest": "txlayer.producer.check_handler",
    "Message": "txlayer.core.messages",
    "OrderMode": "txlayer.core.messages",
    "PreparedMessage": "txlayer.producer.rocketmq",
    "ROLLBACK": "txlayer.core.messages",
    "RefusedResolution": "txlayer.producer.questions",
    "Resolution": "txlayer.core.messages",
    "ResponderStats": "txlayer.producer.questions",
    "SubmittedTransaction": "txlayer.producer.submitted",
    "Transaction": "txlayer.producer.sync",
    "TransactionHistory": "txlayer.core.history",
    "TransactionListener": "txlayer.producer.rocketmq",
    "TransactionMQProducer": "txlayer.producer.rocketmq",
    "TransactionSendResult": "txlayer.producer.results",
    "TransactionalProducer": "txlayer.producer.sync",
    "UNKNOWN": "txlayer.core.messages",
    "user_headers": "txlayer.core.messages",
}

__all__ = [
    "COMMIT",
    "ROLLBACK",
    "UNKNOWN",
    "AsyncTransaction",
    "AsyncTransactionalProducer",
    "CheckRequest",
    "Message",
    "OrderMode",
    "PreparedMessage",
    "RefusedResolution",
    "Resolution",
    "ResponderStats",
    "SubmittedTransaction",
    "Transaction",
    "TransactionHistory",
    "TransactionListener",
    "TransactionMQProducer",
    "TransactionSendResult",
    "TransactionalProducer",
    "__version__",
    "user_headers",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(place), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
