"""Transactional messages for Apache Kafka: a database change and its messages, both or neither.

Names are loaded on first use, and importing this package loads no Kafka client. A program that only uses an error or a
constant does not pay for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txlayer.errors import BarrierRefusedError as BarrierRefusedError
from txlayer.errors import BrokerUnavailableError as BrokerUnavailableError
from txlayer.errors import ConfigError as ConfigError
from txlayer.errors import FencedError as FencedError
from txlayer.errors import ForbiddenTopicError as ForbiddenTopicError
from txlayer.errors import InstanceFencedError as InstanceFencedError
from txlayer.errors import InvalidTransitionError as InvalidTransitionError
from txlayer.errors import InvariantError as InvariantError
from txlayer.errors import LeaseLostError as LeaseLostError
from txlayer.errors import LifecycleError as LifecycleError
from txlayer.errors import MemberFencedError as MemberFencedError
from txlayer.errors import NotAcceptingError as NotAcceptingError
from txlayer.errors import NotAuthorisedError as NotAuthorisedError
from txlayer.errors import OpenTransactionLimitError as OpenTransactionLimitError
from txlayer.errors import OutcomeUnknownError as OutcomeUnknownError
from txlayer.errors import PoisonMessageError as PoisonMessageError
from txlayer.errors import ProducerFencedError as ProducerFencedError
from txlayer.errors import RefusedRecordError as RefusedRecordError
from txlayer.errors import ReservedHeaderError as ReservedHeaderError
from txlayer.errors import RetriableError as RetriableError
from txlayer.errors import RollbackRequiredError as RollbackRequiredError
from txlayer.errors import TopicMismatchError as TopicMismatchError
from txlayer.errors import TxLayerError as TxLayerError
from txlayer.errors import UsageError as UsageError

if TYPE_CHECKING:
    from txlayer.adapters.bodies import JSON as JSON
    from txlayer.adapters.bodies import Codec as Codec
    from txlayer.adapters.sql.aio import AsyncInbox as AsyncInbox
    from txlayer.adapters.sql.aio import AsyncSqlBarrier as AsyncSqlBarrier
    from txlayer.adapters.sql.barrier import SqlBarrier as SqlBarrier
    from txlayer.adapters.sql.inbox import Inbox as Inbox
    from txlayer.consumer.aio import AsyncOrderedConsumer as AsyncOrderedConsumer
    from txlayer.consumer.consumer import ConcurrentConsumer as ConcurrentConsumer
    from txlayer.consumer.consumer import OrderedConsumer as OrderedConsumer
    from txlayer.consumer.context import Context as Context
    from txlayer.consumer.context import ReceivedMessage as ReceivedMessage
    from txlayer.consumer.handlers import Interceptor as Interceptor
    from txlayer.consumer.metrics import ConsumerStats as ConsumerStats
    from txlayer.consumer.metrics import TopicStats as TopicStats
    from txlayer.consumer.pull import PulledMessage as PulledMessage
    from txlayer.core.dead_letters import DeadLetter as DeadLetter
    from txlayer.core.dead_letters import DeadLetterReason as DeadLetterReason
    from txlayer.core.history import TransactionHistory as TransactionHistory
    from txlayer.core.messages import COMMIT as COMMIT
    from txlayer.core.messages import ROLLBACK as ROLLBACK
    from txlayer.core.messages import UNKNOWN as UNKNOWN
    from txlayer.core.messages import Message as Message
    from txlayer.core.messages import OrderMode as OrderMode
    from txlayer.core.messages import Resolution as Resolution
    from txlayer.core.messages import user_headers as user_headers
    from txlayer.core.retry import Ack as Ack
    from txlayer.core.retry import AfterExhausted as AfterExhausted
    from txlayer.core.retry import BreakerPolicy as BreakerPolicy
    from txlayer.core.retry import Later as Later
    from txlayer.core.retry import Reject as Reject
    from txlayer.core.retry import Retry as Retry
    from txlayer.core.retry import RetryPolicy as RetryPolicy
    from txlayer.producer.aio import AsyncTransaction as AsyncTransaction
    from txlayer.producer.aio import AsyncTransactionalProducer as AsyncTransactionalProducer
    from txlayer.producer.check_handlers import CheckRequest as CheckRequest
    from txlayer.producer.interceptors import ProducerInterceptor as ProducerInterceptor
    from txlayer.producer.interceptors import SentTransaction as SentTransaction
    from txlayer.producer.metrics import ProducerMetrics as ProducerMetrics
    from txlayer.producer.pipeline import TransactionSendResult as TransactionSendResult
    from txlayer.producer.producer import Transaction as Transaction
    from txlayer.producer.producer import TransactionalProducer as TransactionalProducer
    from txlayer.producer.questions import ParkedTransaction as ParkedTransaction
    from txlayer.producer.questions import RefusedResolution as RefusedResolution
    from txlayer.producer.questions import ResponderStats as ResponderStats
    from txlayer.producer.rocketmq import AsyncTransactionListener as AsyncTransactionListener
    from txlayer.producer.rocketmq import AsyncTransactionMQProducer as AsyncTransactionMQProducer
    from txlayer.producer.rocketmq import PreparedMessage as PreparedMessage
    from txlayer.producer.rocketmq import TransactionListener as TransactionListener
    from txlayer.producer.rocketmq import TransactionMQProducer as TransactionMQProducer
    from txlayer.producer.submitted import SubmittedTransaction as SubmittedTransaction

__version__ = "0.1.0"

_NAMES = {
    "txlayer.adapters.bodies": ("Codec", "JSON"),
    "txlayer.adapters.sql.aio": ("AsyncInbox", "AsyncSqlBarrier"),
    "txlayer.adapters.sql.barrier": ("SqlBarrier",),
    "txlayer.adapters.sql.inbox": ("Inbox",),
    "txlayer.consumer.aio": ("AsyncOrderedConsumer",),
    "txlayer.consumer.consumer": ("ConcurrentConsumer", "OrderedConsumer"),
    "txlayer.consumer.context": ("Context", "ReceivedMessage"),
    "txlayer.consumer.handlers": ("Interceptor",),
    "txlayer.consumer.metrics": ("ConsumerStats", "TopicStats"),
    "txlayer.consumer.pull": ("PulledMessage",),
    "txlayer.core.dead_letters": ("DeadLetter", "DeadLetterReason"),
    "txlayer.core.history": ("TransactionHistory",),
    "txlayer.core.messages": ("COMMIT", "Message", "OrderMode", "ROLLBACK", "Resolution", "UNKNOWN", "user_headers"),
    "txlayer.core.retry": ("Ack", "AfterExhausted", "BreakerPolicy", "Later", "Reject", "Retry", "RetryPolicy"),
    "txlayer.producer.aio": ("AsyncTransaction", "AsyncTransactionalProducer"),
    "txlayer.producer.check_handlers": ("CheckRequest",),
    "txlayer.producer.interceptors": ("ProducerInterceptor", "SentTransaction"),
    "txlayer.producer.metrics": ("ProducerMetrics",),
    "txlayer.producer.pipeline": ("TransactionSendResult",),
    "txlayer.producer.producer": ("Transaction", "TransactionalProducer"),
    "txlayer.producer.questions": ("ParkedTransaction", "RefusedResolution", "ResponderStats"),
    "txlayer.producer.rocketmq": (
        "AsyncTransactionListener",
        "AsyncTransactionMQProducer",
        "PreparedMessage",
        "TransactionListener",
        "TransactionMQProducer",
    ),
    "txlayer.producer.submitted": ("SubmittedTransaction",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

_ERRORS = [name for name in globals() if name.endswith("Error")]

if not TYPE_CHECKING:  # type checkers go by the imports above
    # It leaves out what needs an extra, so that `from txlayer import *` works without it.
    __all__ = ["__version__"]
    __all__ += [n for n in (*_ERRORS, *_MODULES) if not _MODULES.get(n, "").startswith("txlayer.adapters.sql")]


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
    return sorted({"__version__", *_ERRORS, *_MODULES})
