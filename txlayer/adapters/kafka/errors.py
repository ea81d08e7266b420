"""Theirs become ours, here and nowhere else.

Order of the questions: `fatal()`, then `txn_requires_abort()`, then `retriable()`; after a fatal error the client
calls its own answer retriable for ever (docs/explanation/kafka.md, Errors).
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from txlayer.errors import (
    BrokerUnavailableError,
    ForbiddenTopicError,
    NotAuthorisedError,
    OutcomeUnknownError,
    ProducerFencedError,
    RefusedRecordError,
    RetriableError,
    TxLayerError,
    UsageError,
)

# The codes that belong to one record: bisection finds it, and it is parked. A closed list.
REFUSED_RECORD_CODES = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_PARTITION,
    }
)
# The codes that belong to a topic: what goes there is held until it is mended.
REFUSED_TOPIC_CODES = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_EXCEPTION,
    }
)
# The group went on without this member: forget everything, wait for the rebalance.
STALE_MEMBER_CODES = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)
FENCED_CODES = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)
NOT_AUTHORISED_CODES = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
# What was asked for can never be, whoever asks: more replicas than brokers, a setting that does not exist.
MISTAKEN_CODES = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError._INVALID_ARG,
    }
)
UNAVAILABLE_CODES = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)

# The client's knowledge of leaders is out of date: asked afresh, the question has an answer.
STALE_LEADER_CODES = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


def kafka_error(error: KafkaException | KafkaError) -> KafkaError:
    """The KafkaError inside."""
    if isinstance(error, KafkaException):
        inner = error.args[0]
        return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(inner))
    return error


def is_stale_member(error: KafkaException | KafkaError) -> bool:
    """True when the group went on without us: generation or member are of the past."""
    return kafka_error(error).code() in STALE_MEMBER_CODES


def is_refused_record(error: KafkaException | KafkaError) -> bool:
    """True when one record, not a topic or the cluster, is the reason."""
    return kafka_error(error).code() in REFUSED_RECORD_CODES


def translate(
    error: KafkaException | KafkaError,
    *,
    bootstrap_servers: str | None = None,
    waited_ms: int | None = None,
    topic: str | None = None,
    resource: str | None = None,
    operation: str | None = None,
    transactional_id: str | None = None,
    txn_id: str | None = None,
    step: str | None = None,
) -> TxLayerError:
    """Our error for a client's; raise it `from` the original.

    What is not known becomes `OutcomeUnknownError` where a `step` is named (it may have happened), else
    `TxLayerError` with the client's own words.
    """
    inner = kafka_error(error)
    code = inner.code()
    detail = f"{inner.name()}: {inner.str()}"
    if code in FENCED_CODES:
        return ProducerFencedError(detail, transactional_id=transactional_id)
    if code in NOT_AUTHORISED_CODES:
        return NotAuthorisedError(detail, resource=resource or topic, operation=operation)
    if code in REFUSED_RECORD_CODES:
        return RefusedRecordError(detail, topic=topic, reason=inner.name())
    if code in REFUSED_TOPIC_CODES:
        return ForbiddenTopicError(detail, topic=topic, reason=inner.name())
    if step is not None:
        return OutcomeUnknownError(detail, txn_id=txn_id, step=step)
    if code in MISTAKEN_CODES:
        return UsageError(f"{topic}: {detail}" if topic else detail)
    if code in UNAVAILABLE_CODES:
        return BrokerUnavailableError(
            detail, bootstrap_servers=bootstrap_servers, waited_ms=waited_ms
        )
    if code in STALE_LEADER_CODES:
        return RetriableError(detail)
    return TxLayerError(detail)
