"""What Spark and its Kafka source raise → our errors: one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from txlayer.errors import (
    BrokerUnavailableError,
    NotAuthorisedError,
    RetriableError,
    TopicMismatchError,
    TxLayerError,
    UsageError,
)

_DATA_LOSS = (
    "KAFKA_DATA_LOSS", "data may have been lost", "OffsetOutOfRangeException", "PARTITION_OFFSET_CHANGED",
)  # fmt: skip

# What the text of a failure holds → what it is. The first that fits counts.
_SIGNS: tuple[tuple[tuple[str, ...], type[TxLayerError], str], ...] = (
    (
        ("UnknownTopicOrPartitionException", "UNKNOWN_TOPIC_OR_PARTITION"),
        TopicMismatchError,
        "a topic of the namespace is missing: correct the namespace, or create its topics with txlayer topics apply",
    ),
    (
        _DATA_LOSS,
        UsageError,
        ("Kafka's retention has overtaken the reader, or a topic was made anew: records are gone before they were read, "
        "and their transactions cannot be judged. Begin again in another folder, and run more often"),
    ),
    (
        ("AuthorizationException", "AuthenticationException", "SaslAuthentication", "SslAuthentication"),
        NotAuthorisedError,
        "the broker refuses these credentials, or they may not describe and read the topics",
    ),
    (
        ("Timed out waiting for a node assignment", "No resolvable bootstrap urls", "TimeoutException",
         "DisconnectException", "Failed to create new KafkaAdminClient"),
        BrokerUnavailableError,
        "no broker answers: correct --bootstrap-servers, or start it",
    ),
    (
        ("OutOfMemoryError", "Unable to acquire"),
        RetriableError,
        ("Spark has not enough memory: give it more with --memory, or smaller parts with "
        "--spark-setting spark.sql.shuffle.partitions=64"),
    ),
)  # fmt: skip


def is_data_loss(failure: Exception) -> bool:
    """Whether Spark's Kafka source says that records, partitions or topics are gone that were to be read."""
    return any(sign in str(failure) for sign in _DATA_LOSS)


_FILE_GONE = ("FileNotFoundException", "FILE_NOT_EXIST", "PATH_NOT_FOUND")
_TRIES_MAX = 5


_Result = TypeVar("_Result")


def done_again(job: Callable[[], _Result]) -> _Result:
    """The job's result; done again from its beginning where files that it read were folded into others or ended meanwhile.

    For jobs that do the same when they are called again.
    """
    for _ in range(_TRIES_MAX - 1):
        try:
            return job()
        except (PySparkException, Py4JJavaError) as exc:
            if not any(sign in str(exc) for sign in _FILE_GONE):
                raise
    return job()


@contextmanager
def failures_as_ours() -> Iterator[None]:
    """Raise what is known as one of our errors; anything else passes as it is.

    Raises:
        TxLayerError: see `_SIGNS`. What the job has written before stays, and the job may be run again.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as exc:
        told = str(exc)
        for signs, kind, sentence in _SIGNS:
            if any(sign in told for sign in signs):
                raise kind(sentence) from exc
        raise
