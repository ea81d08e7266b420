"""Kafka's error codes by name and number, and their translation to txlayer's errors.

Numbers below zero are the client's own (librdkafka); a test compares every one of them with the client. Which errors replace a
producer: txlayer/runtime/kafka_transactions.py.

Ask `fatal()`, then `txn_requires_abort()`, then `retriable()`: after a fatal error `retriable()` is always true (docs/explanation/kafka.md, Errors).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Protocol

from txlayer.adapters.ports import RecordError
from txlayer.errors import (
    BrokerUnavailableError,
    FencedError,
    ForbiddenTopicError,
    MemberFencedError,
    NotAuthorisedError,
    OutcomeUnknownError,
    ProducerFencedError,
    RefusedRecordError,
    RetriableError,
    TxLayerError,
    UsageError,
)


class Code(IntEnum):
    """The codes that txlayer handles; LOCAL_X is the client's _X."""

    UNKNOWN = -1
    NO_ERROR = 0
    OFFSET_OUT_OF_RANGE = 1
    INVALID_MSG = 2
    UNKNOWN_TOPIC_OR_PART = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_FOR_PARTITION = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MSG_SIZE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    LOCAL_TRANSPORT = -195
    LOCAL_RESOLVE = -193
    LOCAL_MSG_TIMED_OUT = -192
    LOCAL_PARTITION_EOF = -191
    LOCAL_UNKNOWN_PARTITION = -190
    LOCAL_UNKNOWN_TOPIC = -188
    LOCAL_ALL_BROKERS_DOWN = -187
    LOCAL_INVALID_ARG = -186
    LOCAL_TIMED_OUT = -185
    LOCAL_SSL = -181
    LOCAL_WAIT_COORD = -180
    LOCAL_STATE = -172
    LOCAL_AUTHENTICATION = -169
    LOCAL_TIMED_OUT_QUEUE = -166
    LOCAL_NOENT = -156
    LOCAL_PURGE_QUEUE = -152
    LOCAL_PURGE_INFLIGHT = -151
    LOCAL_FATAL = -150
    LOCAL_INCONSISTENT = -149
    LOCAL_MAX_POLL_EXCEEDED = -147
    LOCAL_FENCED = -144
    LOCAL_AUTO_OFFSET_RESET = -140
    LOCAL_DESTROY_BROKER = -137

    @property
    def kafka_name(self) -> str:
        name = self.name
        return name[5:] if name.startswith("LOCAL_") else name


_KNOWN_CODES = frozenset(Code) - {Code.UNKNOWN}


def is_unknown(code: int) -> bool:
    """True for a broker's code that txlayer does not know; the client's own codes are below -1."""
    return code >= Code.UNKNOWN and code not in _KNOWN_CODES


def codes(names: str) -> frozenset[Code]:
    """The codes of these names, with blanks between."""
    return frozenset(Code[name] for name in names.split())


# Codes caused by a single record: bisection finds it, and it is parked. A closed list.
REFUSED_RECORD_CODES = codes(
    "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_TIMESTAMP INVALID_RECORD INVALID_MSG POLICY_VIOLATION "
    "LOCAL_UNKNOWN_PARTITION"
)
TOO_LARGE_REASONS = frozenset(code.kafka_name for code in codes("MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE"))
"""The `reason` of a `RefusedRecordError` whose record may be accepted with less content."""
# Codes caused by a topic: its messages are held until the topic is repaired.
REFUSED_TOPIC_CODES = codes("TOPIC_AUTHORIZATION_FAILED UNKNOWN_TOPIC_OR_PART LOCAL_UNKNOWN_TOPIC TOPIC_EXCEPTION")
# The client's Kafka transaction cannot go on; the reason comes from the client's own state.
GIVEN_UP_CODES = codes("LOCAL_PURGE_QUEUE LOCAL_PURGE_INFLIGHT LOCAL_STATE")
# The group continued without this member: drop everything and wait for the rebalance.
STALE_MEMBER_CODES = codes(
    "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID REBALANCE_IN_PROGRESS STALE_MEMBER_EPOCH"
)
FENCED_CODES = codes("LOCAL_FENCED PRODUCER_FENCED INVALID_PRODUCER_EPOCH")
NOT_AUTHORISED_CODES = codes(
    "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED SASL_AUTHENTICATION_FAILED LOCAL_AUTHENTICATION"
)
# The request can never succeed, for any principal: more replicas than brokers, a setting that does not exist.
MISTAKEN_CODES = codes("INVALID_CONFIG INVALID_PARTITIONS INVALID_REPLICATION_FACTOR LOCAL_INVALID_ARG")
# A group's coordinator is being elected, has moved or still reads its log, as after every start of a broker. Nothing was done.
MOVED_COORDINATOR_CODES = codes("COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR")
# Not failures of a reader: its client recovers by itself.
PASSING_CODES = MOVED_COORDINATOR_CODES | codes(
    "LOCAL_ALL_BROKERS_DOWN LOCAL_TRANSPORT LOCAL_RESOLVE REQUEST_TIMED_OUT"
)
# LOCAL_DESTROY_BROKER: the client dropped the broker during the request, because it moved or is gone.
UNAVAILABLE_CODES = PASSING_CODES | codes(
    "LOCAL_SSL LOCAL_DESTROY_BROKER NETWORK_EXCEPTION LOCAL_TIMED_OUT LOCAL_TIMED_OUT_QUEUE LOCAL_WAIT_COORD "
    "BROKER_NOT_AVAILABLE LEADER_NOT_AVAILABLE"
)
# The client's metadata about leaders is out of date; after a refresh the question has an answer. OFFSET_NOT_AVAILABLE: a new
# leader does not know the other replicas' positions yet. KAFKA_STORAGE_ERROR: a disk failed, another replica becomes the leader.
# NOENT: the admin client found no leader, as while a broker starts.
STALE_LEADER_CODES = codes(
    "FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH NOT_LEADER_FOR_PARTITION REPLICA_NOT_AVAILABLE OFFSET_NOT_AVAILABLE "
    "KAFKA_STORAGE_ERROR LOCAL_NOENT"
)


class ClientError(RecordError, Protocol):
    """The methods of a client's error that txlayer uses.

    `str` is a message for people. `fatal`: the client can no longer be used. `retriable`: the same call may be made again.
    `txn_requires_abort`: the Kafka transaction must be aborted.
    """

    def str(self) -> str: ...
    def fatal(self) -> bool: ...
    def retriable(self) -> bool: ...
    def txn_requires_abort(self) -> bool: ...


def detail_of(error: ClientError) -> str:
    return f"{error.name()}: {error.str()}"


def translate_error(
    error: ClientError,
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
    """Translate a client's error; raise the result `from` the original.

    An unknown error becomes `OutcomeUnknownError` if a `step` is named (it may have happened), else `TxLayerError` with
    the client's own message.
    """
    code, detail = error.code(), detail_of(error)
    if code in FENCED_CODES:
        return ProducerFencedError(detail, transactional_id=transactional_id)
    if code in NOT_AUTHORISED_CODES:
        return NotAuthorisedError(detail, resource=resource or topic, operation=operation)
    if (refused := _refused(error, topic=topic)) is not None:
        return refused
    if step is not None:
        return OutcomeUnknownError(detail, txn_id=txn_id, step=step)
    if code in MISTAKEN_CODES:
        return UsageError(f"{topic}: {detail}" if topic else detail)
    if code in UNAVAILABLE_CODES:
        return BrokerUnavailableError(detail, bootstrap_servers=bootstrap_servers, waited_ms=waited_ms)
    if code in STALE_LEADER_CODES:
        return RetriableError(detail)
    return TxLayerError(detail)


def _refused(
    error: ClientError, *, topic: str | None = None, txn_key: str | None = None
) -> RefusedRecordError | ForbiddenTopicError | None:
    """The error for a record, or for its topic, that is refused; None: it is another one."""
    if error.code() in REFUSED_RECORD_CODES:
        return RefusedRecordError(detail_of(error), topic=topic, reason=error.name(), txn_key=txn_key)
    if error.code() in REFUSED_TOPIC_CODES:
        return ForbiddenTopicError(detail_of(error), topic=topic, reason=error.name())
    return None


# --- a transactional writer -------------------------------------------------------------------------------------------


class TranslatedWriter:
    """A transactional client whose errors are txlayer's, whatever client it is.

    A subclass says what its client's exceptions hold, and why a Kafka transaction cannot go on.
    """

    def __init__(self, *, transactional_id: str, batch_bytes_max: int, bootstrap_servers: str) -> None:
        self.transactional_id = transactional_id
        self.batch_bytes_max = batch_bytes_max
        self._bootstrap_servers = bootstrap_servers

    def _error_in(self, exc: Exception) -> ClientError | None:
        raise NotImplementedError

    def _cause(self, error: ClientError) -> ClientError:
        raise NotImplementedError

    def failure(self, exc: Exception) -> TxLayerError:
        error = self._error_in(exc)
        if error is None:
            raise exc
        return self.translated(self._cause(error))

    def refusal(self, error: Any, *, topic: str, txn_key: str) -> TxLayerError:
        """Translate a delivery report: the cause is the record, its topic or the cluster."""
        cause = self._cause(error)
        if cause.code() == Code.LOCAL_MSG_TIMED_OUT:
            return BrokerUnavailableError(detail_of(cause), bootstrap_servers=self._bootstrap_servers)
        return _refused(cause, topic=topic, txn_key=txn_key) or self.translated(cause)

    @contextmanager
    def _errors_as_ours(self, *, is_commit: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as exc:
            error = self._error_in(exc)
            if error is None:
                raise
            if is_commit and not error.fatal() and not error.txn_requires_abort() and error.retriable():
                raise RetriableError(detail_of(error)) from exc  # unanswered so far; it has not failed
            ours = self.translated(error)
            if is_commit and type(ours) is RetriableError:  # it has failed
                ours = BrokerUnavailableError(ours.detail, bootstrap_servers=self._bootstrap_servers)
            raise ours from exc

    def translated(self, error: ClientError) -> TxLayerError:
        code, detail = error.code(), detail_of(error)
        if code in STALE_MEMBER_CODES:
            return MemberFencedError(detail)
        if code == Code.LOCAL_FATAL:
            # After a fatal error `produce` does not repeat the reason. Nearly always there is a newer holder of the id, and
            # the remedy is the same: close, and let the group decide who owns the partitions before going on.
            return ProducerFencedError(detail, transactional_id=self.transactional_id)
        if code == Code.CONCURRENT_TRANSACTIONS:
            return RetriableError(detail)
        if not error.fatal():
            if code == Code.LOCAL_INCONSISTENT:
                return ForbiddenTopicError(detail, reason=error.name())
            if (refused := _refused(error)) is not None:
                return refused
        return translate_error(error, bootstrap_servers=self._bootstrap_servers, transactional_id=self.transactional_id)


# --- a writer of half and op records ----------------------------------------------------------------------------------


def translate_fatal(error: ClientError) -> FencedError | NotAuthorisedError:
    """Why an idempotent client writes nothing any more."""
    if error.code() in NOT_AUTHORISED_CODES:  # they may write no topic, so the broker gives the client no id
        return NotAuthorisedError(detail_of(error), resource="every topic", operation="write")
    return _ended(error)


def _ended(error: ClientError) -> FencedError:
    return FencedError(f"{detail_of(error)}; this client writes nothing any more, close it and make a new one")


def translate_unwritten(error: ClientError, *, topic: str, txn_id: str) -> TxLayerError:
    """Translate a half or op record's delivery report, or an exception of `produce`."""
    if error.fatal():
        return _ended(error)  # for whatever reason: the record may be stored
    return translate_error(
        error, topic=topic, resource=topic, operation="write", txn_id=txn_id, step=topic.rpartition(".")[2]
    )
