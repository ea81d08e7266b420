"""The client's exceptions as what all logs share (`adapters/translation.py`): the KafkaError inside, translated."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from txlayer.adapters.translation import translate_error
from txlayer.errors import TxLayerError


def kafka_error(error: KafkaException | KafkaError) -> KafkaError:
    """The KafkaError inside."""
    if isinstance(error, KafkaException):
        inner = error.args[0]
        return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(inner))
    return error


def translate(  # the arguments of `translate_error`, for an exception as well
    error: KafkaException | KafkaError,
    *,
    bootstrap_servers: str | None = None,
    waited_ms: int | None = None,
    topic: str | None = None,
    resource: str | None = None,
    operation: str | None = None,
) -> TxLayerError:
    """Our error for a client's; raise it `from` the original."""
    return translate_error(
        kafka_error(error),
        bootstrap_servers=bootstrap_servers,
        waited_ms=waited_ms,
        topic=topic,
        resource=resource,
        operation=operation,
    )
