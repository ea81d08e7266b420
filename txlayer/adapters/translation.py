"""A client's errors → ours, for every log that speaks Kafka's codes. Never: an exception of a client library.

Order of the questions: `fatal()`, then `txn_requires_abort()`, then `retriable()`; after a fatal error the client
calls its own answer retriable for ever (docs/explanation/kafka.md, Errors).
"""

from __future__ import annotations

from typing import Protocol

from txlayer.adapters.error_codes import (
    FENCED_CODES,
    MISTAKEN_CODES,
    NOT_AUTHORISED_CODES,
    REFUSED_RECORD_CODES,
    REFUSED_TOPIC_CODES,
    STALE_LEADER_CODES,
    STALE_MEMBER_CODES,
    UNAVAILABLE_CODES,
    Code,
)
from txlayer.errors import (
    BrokerUnavailableError,
    ConfigError,
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


class ClientError(Protocol):
    """A client's error as far as it is asked here."""

    def code(self) -> int:
        """Kafka's number."""
        ...

    def name(self) -> str:
        """Kafka's name."""
        ...

    def str(self) -> str:
        """What a person may read."""
        ...

    def fatal(self) -> bool:
        """The client is of no use any more."""
        ...

    def retriable(self) -> bool:
        """The same call may be made again."""
        ...

    def txn_requires_abort(self) -> bool:
        """The Kafka transaction must be given up."""
        ...


def detail_of(error: ClientError) -> str:
    """Name and sentence."""
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
    """Our error for a client's; raise it `from` the original.

    What is not known becomes `OutcomeUnknownError` where a `step` is named (it may have happened), else
    `TxLayerError` with the client's own words.
    """
    code = error.code()
    detail = detail_of(error)
    if code in FENCED_CODES:
        return ProducerFencedError(detail, transactional_id=transactional_id)
    if code in NOT_AUTHORISED_CODES:
        return NotAuthorisedError(detail, resource=resource or topic, operation=operation)
    if code in REFUSED_RECORD_CODES:
        return RefusedRecordError(detail, topic=topic, reason=error.name())
    if code in REFUSED_TOPIC_CODES:
        return ForbiddenTopicError(detail, topic=topic, reason=error.name())
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


# --- a transactional writer -------------------------------------------------------------------------------------------


def translate_writer_error(
    error: ClientError, *, bootstrap_servers: str, transactional_id: str
) -> TxLayerError:
    """What a call of a transactional client failed with."""
    code, detail = error.code(), detail_of(error)
    if code in STALE_MEMBER_CODES:
        return MemberFencedError(detail)
    if code == Code.LOCAL_FATAL:
        # `produce` after a fatal error does not repeat the reason. It is nearly always a newer holder of the id, and
        # what follows is the same: close, and let the group say who owns the partitions before going on.
        return ProducerFencedError(detail, transactional_id=transactional_id)
    if code == Code.CONCURRENT_TRANSACTIONS:
        return RetriableError(detail)
    if not error.fatal():
        if code in REFUSED_RECORD_CODES:
            return RefusedRecordError(detail, reason=error.name())
        if code in REFUSED_TOPIC_CODES or code == Code.LOCAL_INCONSISTENT:
            return ForbiddenTopicError(detail, reason=error.name())
    return translate_error(
        error, bootstrap_servers=bootstrap_servers, transactional_id=transactional_id
    )


def translate_refusal(
    error: ClientError, *, topic: str, txn_key: str, bootstrap_servers: str, transactional_id: str
) -> TxLayerError:
    """What a delivery report of a transactional client means: whose fault it is, the record's, its topic's or the cluster's."""
    code, detail = error.code(), detail_of(error)
    if code in REFUSED_RECORD_CODES:
        return RefusedRecordError(detail, topic=topic, reason=error.name(), txn_key=txn_key)
    if code in REFUSED_TOPIC_CODES:
        return ForbiddenTopicError(detail, topic=topic, reason=error.name())
    if code == Code.LOCAL_MSG_TIMED_OUT:
        return BrokerUnavailableError(detail, bootstrap_servers=bootstrap_servers)
    return translate_writer_error(
        error, bootstrap_servers=bootstrap_servers, transactional_id=transactional_id
    )


def unanswered_commit(error: ClientError) -> RetriableError | None:
    """The error of a commit that is merely not answered yet; None: it failed."""
    if not error.fatal() and not error.txn_requires_abort() and error.retriable():
        return RetriableError(detail_of(error))
    return None


# --- a writer of half and op records ----------------------------------------------------------------------------------


def translate_fatal(error: ClientError) -> FencedError:
    """A fatal error of an idempotent client."""
    return FencedError(
        f"{detail_of(error)}; this client writes nothing any more, close it and make a new one"
    )


def translate_unwritten(error: ClientError, *, topic: str, txn_id: str) -> TxLayerError:
    """What a half or op record's report, or an exception of `produce`, means for it."""
    if error.fatal():
        return translate_fatal(error)
    if error.code() == Code.LOCAL_PURGE_QUEUE:
        return RetriableError("closed before the record was sent")
    return translate_error(
        error,
        topic=topic,
        resource=topic,
        operation="write",
        txn_id=txn_id,
        step=topic.rpartition(".")[2],
    )


def translate_unknown_end(error: ClientError, *, bootstrap_servers: str) -> TxLayerError:
    """What a question for the ends of a partition failed with.

    The client may not know the partition at this moment, as while a broker dies; of a record to be written that is another matter.
    """
    if error.code() == Code.LOCAL_UNKNOWN_PARTITION:
        return RetriableError(detail_of(error))
    return translate_error(error, bootstrap_servers=bootstrap_servers)


# --- a member of a group ----------------------------------------------------------------------------------------------


def translate_read_error(
    error: ClientError, *, bootstrap_servers: str, reader: str, advice: str
) -> TxLayerError:
    """What an error among the records of a group's member means.

    `reader` and `advice` are for an offset that is gone: who lost something, and what to do.
    """
    if error.code() == Code.LOCAL_AUTO_OFFSET_RESET:
        return ConfigError(
            f"the stored offset is not in the log any more ({error.str()}); what was there is lost to {reader}: {advice}",
            name="stored offset",
            expected="an offset within the topic's retention",
        )
    return translate_error(error, bootstrap_servers=bootstrap_servers)


COORDINATOR_ADVICE = "say where to go on with `txlayer coordinator reset --to earliest|latest|TIME`"
"""For a coordinator whose offset is gone."""
RESPONDER_ADVICE = "start it anew; coordinators ask again"
"""For a responder: it keeps no offsets."""


def consumer_advice(group: str, topic: str) -> str:
    """For a consumer whose offset is gone."""
    return (
        f"end every consumer of {group}, and say where to go on with "
        f"`txlayer consumer reset --group {group} --topic {topic} --to earliest|latest|TIME`"
    )


def translate_store_error(
    error: ClientError, *, group: str, bootstrap_servers: str
) -> TxLayerError:
    """What a member's store of offsets failed with."""
    code, detail = error.code(), detail_of(error)
    if code in STALE_MEMBER_CODES:
        return MemberFencedError(detail, group=group)
    if code in (Code.OFFSET_METADATA_TOO_LARGE, Code.INVALID_COMMIT_OFFSET_SIZE):
        return ConfigError(
            f"the brokers allow less metadata with an offset ({detail})", name="metadata_bytes_max",
            expected="the brokers' offset.metadata.max.bytes",
        )  # fmt: skip
    return translate_error(
        error, bootstrap_servers=bootstrap_servers, resource=group, operation="store offsets"
    )
