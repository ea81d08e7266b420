"""Transactional messages for Apache Kafka: a database change and its messages, both or neither.

Names are loaded on first use, and importing this package loads no Kafka client. A program that only uses an error or a
constant does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlayer.adapters.bodies import JSON, Codec
    from txlayer.adapters.sql.aio import AsyncInbox as AsyncInbox
    from txlayer.adapters.sql.aio import AsyncSqlBarrier as AsyncSqlBarrier
    from txlayer.adapters.sql.barrier import SqlBarrier as SqlBarrier
    from txlayer.adapters.sql.inbox import Inbox as Inbox
    from txlayer.consumer.aio import AsyncOrderedConsumer
    from txlayer.consumer.consumer import ConcurrentConsumer, OrderedConsumer
    from txlayer.consumer.context import Context, ReceivedMessage
    from txlayer.consumer.handlers import Interceptor
    from txlayer.consumer.metrics import ConsumerStats, TopicStats
    from txlayer.consumer.pull import PulledMessage
    from txlayer.core.breaker import BreakerPolicy
    from txlayer.core.dead_letters import DeadLetter, DeadLetterReason
    from txlayer.core.history import TransactionHistory
    from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, OrderMode, Resolution, user_headers
    from txlayer.core.retry import Ack, AfterExhausted, Later, Reject, Retry, RetryPolicy
    from txlayer.errors import (
        BarrierRefusedError,
        BrokerUnavailableError,
        ConfigError,
        FencedError,
        ForbiddenTopicError,
        InstanceFencedError,
        InvalidTransitionError,
        InvariantError,
        LeaseLostError,
        LifecycleError,
        MemberFencedError,
        NotAcceptingError,
        NotAuthorisedError,
        OpenTransactionLimitError,
        OutcomeUnknownError,
        PoisonMessageError,
        ProducerFencedError,
        RefusedRecordError,
        ReservedHeaderError,
        RetriableError,
        RollbackRequiredError,
        TopicMismatchError,
        TxLayerError,
        UsageError,
    )
    from txlayer.producer.aio import AsyncTransaction, AsyncTransactionalProducer
    from txlayer.producer.check_handlers import CheckRequest
    from txlayer.producer.interceptors import ProducerInterceptor, SentTransaction
    from txlayer.producer.metrics import ProducerMetrics
    from txlayer.producer.pipeline import TransactionSendResult
    from txlayer.producer.producer import Transaction, TransactionalProducer
    from txlayer.producer.questions import ParkedTransaction, RefusedResolution, ResponderStats
    from txlayer.producer.rocketmq import (
        AsyncTransactionListener,
        AsyncTransactionMQProducer,
        PreparedMessage,
        TransactionListener,
        TransactionMQProducer,
    )
    from txlayer.producer.submitted import SubmittedTransaction

__version__ = "0.1.0"

# `__all__` leaves out what needs an extra, so that `from txlayer import *` works without it.
_MODULES = {
    "Ack": "txlayer.core.retry",
    "AfterExhausted": "txlayer.core.retry",
    "AsyncInbox": "txlayer.adapters.sql.aio",
    "AsyncOrderedConsumer": "txlayer.consumer.aio",
    "AsyncSqlBarrier": "txlayer.adapters.sql.aio",
    "AsyncTransaction": "txlayer.producer.aio",
    "AsyncTransactionListener": "txlayer.producer.rocketmq",
    "AsyncTransactionMQProducer": "txlayer.producer.rocketmq",
    "AsyncTransactionalProducer": "txlayer.producer.aio",
    "BarrierRefusedError": "txlayer.errors",
    "BreakerPolicy": "txlayer.core.breaker",
    "BrokerUnavailableError": "txlayer.errors",
    "COMMIT": "txlayer.core.messages",
    "CheckRequest": "txlayer.producer.check_handlers",
    "Codec": "txlayer.adapters.bodies",
    "ConcurrentConsumer": "txlayer.consumer.consumer",
    "ConfigError": "txlayer.errors",
    "ConsumerStats": "txlayer.consumer.metrics",
    "Context": "txlayer.consumer.context",
    "DeadLetter": "txlayer.core.dead_letters",
    "DeadLetterReason": "txlayer.core.dead_letters",
    "FencedError": "txlayer.errors",
    "ForbiddenTopicError": "txlayer.errors",
    "Inbox": "txlayer.adapters.sql.inbox",
    "InstanceFencedError": "txlayer.errors",
    "Interceptor": "txlayer.consumer.handlers",
    "InvalidTransitionError": "txlayer.errors",
    "InvariantError": "txlayer.errors",
    "JSON": "txlayer.adapters.bodies",
    "Later": "txlayer.core.retry",
    "LeaseLostError": "txlayer.errors",
    "LifecycleError": "txlayer.errors",
    "MemberFencedError": "txlayer.errors",
    "Message": "txlayer.core.messages",
    "NotAcceptingError": "txlayer.errors",
    "NotAuthorisedError": "txlayer.errors",
    "OpenTransactionLimitError": "txlayer.errors",
    "OrderMode": "txlayer.core.messages",
    "OrderedConsumer": "txlayer.consumer.consumer",
    "OutcomeUnknownError": "txlayer.errors",
    "ParkedTransaction": "txlayer.producer.questions",
    "PoisonMessageError": "txlayer.errors",
    "PreparedMessage": "txlayer.producer.rocketmq",
    "ProducerFencedError": "txlayer.errors",
    "ProducerInterceptor": "txlayer.producer.interceptors",
    "ProducerMetrics": "txlayer.producer.metrics",
    "ROLLBACK": "txlayer.core.messages",
    "PulledMessage": "txlayer.consumer.pull",
    "ReceivedMessage": "txlayer.consumer.context",
    "RefusedRecordError": "txlayer.errors",
    "RefusedResolution": "txlayer.producer.questions",
    "Reject": "txlayer.core.retry",
    "ReservedHeaderError": "txlayer.errors",
    "Resolution": "txlayer.core.messages",
    "ResponderStats": "txlayer.producer.questions",
    "RetriableError": "txlayer.errors",
    "Retry": "txlayer.core.retry",
    "RetryPolicy": "txlayer.core.retry",
    "RollbackRequiredError": "txlayer.errors",
    "SentTransaction": "txlayer.producer.interceptors",
    "SqlBarrier": "txlayer.adapters.sql.barrier",
    "SubmittedTransaction": "txlayer.producer.submitted",
    "TopicMismatchError": "txlayer.errors",
    "TopicStats": "txlayer.consumer.metrics",
    "Transaction": "txlayer.producer.producer",
    "TransactionHistory": "txlayer.core.history",
    "TransactionListener": "txlayer.producer.rocketmq",
    "TransactionMQProducer": "txlayer.producer.rocketmq",
    "TransactionSendResult": "txlayer.producer.pipeline",
    "TransactionalProducer": "txlayer.producer.producer",
    "TxLayerError": "txlayer.errors",
    "UNKNOWN": "txlayer.core.messages",
    "UsageError": "txlayer.errors",
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
    "AsyncTransactionListener",
    "AsyncTransactionMQProducer",
    "AsyncTransactionalProducer",
    "BarrierRefusedError",
    "BreakerPolicy",
    "BrokerUnavailableError",
    "CheckRequest",
    "Codec",
    "ConcurrentConsumer",
    "ConfigError",
    "ConsumerStats",
    "Context",
    "DeadLetter",
    "DeadLetterReason",
    "FencedError",
    "ForbiddenTopicError",
    "InstanceFencedError",
    "Interceptor",
    "InvalidTransitionError",
    "InvariantError",
    "Later",
    "LeaseLostError",
    "LifecycleError",
    "MemberFencedError",
    "Message",
    "NotAcceptingError",
    "NotAuthorisedError",
    "OpenTransactionLimitError",
    "OrderMode",
    "OrderedConsumer",
    "OutcomeUnknownError",
    "ParkedTransaction",
    "PoisonMessageError",
    "PreparedMessage",
    "ProducerFencedError",
    "ProducerInterceptor",
    "ProducerMetrics",
    "PulledMessage",
    "ReceivedMessage",
    "RefusedRecordError",
    "RefusedResolution",
    "Reject",
    "ReservedHeaderError",
    "Resolution",
    "ResponderStats",
    "RetriableError",
    "Retry",
    "RetryPolicy",
    "RollbackRequiredError",
    "SentTransaction",
    "SubmittedTransaction",
    "TopicMismatchError",
    "TopicStats",
    "Transaction",
    "TransactionHistory",
    "TransactionListener",
    "TransactionMQProducer",
    "TransactionSendResult",
    "TransactionalProducer",
    "TxLayerError",
    "UsageError",
    "__version__",
    "user_headers",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(module), name)
    except ModuleNotFoundError as exc:
        if exc.name != "sqlalchemy":
            raise
        raise ImportError(f'{name} needs SQLAlchemy: pip install "txlayer[sql]"') from exc
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
