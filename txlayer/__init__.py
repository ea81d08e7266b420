"""Transactional messages for Apache Kafka: a database change and its messages, both or neither.

Names are loaded on first use, and importing this package loads no Kafka client. A program that only uses an error or a
constant does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlayer.adapters.bodies import JSON, Codec
    from txlayer.consumer.aio import AsyncOrderedConsumer
    from txlayer.consumer.consumer import ConcurrentConsumer, OrderedConsumer
    from txlayer.consumer.context import Context, ReceivedMessage
    from txlayer.consumer.handlers import Interceptor
    from txlayer.consumer.metrics import ConsumerStats, TopicStats
    from txlayer.core.history import TransactionHistory
    from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, OrderMode, Resolution, user_headers
    from txlayer.core.retry import Ack, AfterExhausted, Reject, Retry, RetryPolicy
    from txlayer.producer.aio import AsyncTransaction, AsyncTransactionalProducer
    from txlayer.producer.check_handlers import CheckRequest
    from txlayer.producer.metrics import ProducerMetrics
    from txlayer.producer.pipeline import TransactionSendResult
    from txlayer.producer.producer import Transaction, TransactionalProducer
    from txlayer.producer.questions import RefusedResolution, ResponderStats
    from txlayer.producer.rocketmq import PreparedMessage, TransactionListener, TransactionMQProducer
    from txlayer.producer.submitted import SubmittedTransaction

__version__ = "0.1.0"

_MODULES = {
    "Ack": "txlayer.core.retry",
    "AfterExhausted": "txlayer.core.retry",
    "AsyncOrderedConsumer": "txlayer.consumer.aio",
    "AsyncTransaction": "txlayer.producer.aio",
    "AsyncTransactionalProducer": "txlayer.producer.aio",
    "COMMIT": "txlayer.core.messages",
    "CheckRequest": "txlayer.producer.check_handlers",
    "Codec": "txlayer.adapters.bodies",
    "ConcurrentConsumer": "txlayer.consumer.consumer",
    "ConsumerStats": "txlayer.consumer.metrics",
    "Context": "txlayer.consumer.context",
    "Interceptor": "txlayer.consumer.handlers",
    "JSON": "txlayer.adapters.bodies",
    "Message": "txlayer.core.messages",
    "OrderMode": "txlayer.core.messages",
    "OrderedConsumer": "txlayer.consumer.consumer",
    "PreparedMessage": "txlayer.producer.rocketmq",
    "ROLLBACK": "txlayer.core.messages",
    "ProducerMetrics": "txlayer.producer.metrics",
    "ReceivedMessage": "txlayer.consumer.context",
    "RefusedResolution": "txlayer.producer.questions",
    "Reject": "txlayer.core.retry",
    "Resolution": "txlayer.core.messages",
    "ResponderStats": "txlayer.producer.questions",
    "Retry": "txlayer.core.retry",
    "RetryPolicy": "txlayer.core.retry",
    "SubmittedTransaction": "txlayer.producer.submitted",
    "TopicStats": "txlayer.consumer.metrics",
    "Transaction": "txlayer.producer.producer",
    "TransactionHistory": "txlayer.core.history",
    "TransactionListener": "txlayer.producer.rocketmq",
    "TransactionMQProducer": "txlayer.producer.rocketmq",
    "TransactionSendResult": "txlayer.producer.pipeline",
    "TransactionalProducer": "txlayer.producer.producer",
    "UNKNOWN": "txlayer.core.messages",
    "user_headers": "txlayer.core.messages",
}

__all__ = [
    "COMMIT",
    "JSON",
    "ROLLBACK",
    "UNKNOWN",
    "Ack",
    "AfterExhausted",
    "AsyncOrderedConsumer",
    "AsyncTransaction",
    "AsyncTransactionalProducer",
    "CheckRequest",
    "Codec",
    "ConcurrentConsumer",
    "ConsumerStats",
    "Context",
    "Interceptor",
    "Message",
    "OrderMode",
    "OrderedConsumer",
    "PreparedMessage",
    "ProducerMetrics",
    "ReceivedMessage",
    "RefusedResolution",
    "Reject",
    "Resolution",
    "ResponderStats",
    "Retry",
    "RetryPolicy",
    "SubmittedTransaction",
    "TopicStats",
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
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
