"""Transactional messages for Apache Kafka: a database change and its messages, both or neither.

The names below are loaded at first use: importing txlayer loads no Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txlayer.core.messages import Message, Resolution, user_headers

if TYPE_CHECKING:
    from txlayer.producer.aio import AsyncTransactionalProducer
    from txlayer.producer.results import TransactionSendResult
    from txlayer.producer.sync import TransactionalProducer

__version__ = "0.1.0"

COMMIT = Resolution.COMMIT
ROLLBACK = Resolution.ROLLBACK
UNKNOWN = Resolution.UNKNOWN

__all__ = [
    "COMMIT",
    "ROLLBACK",
    "UNKNOWN",
    "AsyncTransactionalProducer",
    "Message",
    "Resolution",
    "TransactionSendResult",
    "TransactionalProducer",
    "__version__",
    "user_headers",
]

_LATE = {
    "AsyncTransactionalProducer": "txlayer.producer.aio",
    "TransactionSendResult": "txlayer.producer.results",
    "TransactionalProducer": "txlayer.producer.sync",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'txlayer' has no attribute {name!r}")
    return getattr(import_module(module), name)
