"""The `HalfWriter` of real Kafka: an idempotent producer for half and op records."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from txlayer.adapters.error_codes import NOT_AUTHORISED_CODES
from txlayer.adapters.kafka.client import half_producer
from txlayer.adapters.kafka.errors import kafka_error
from txlayer.adapters.translation import translate_fatal, translate_unwritten
from txlayer.config import ClientConfig
from txlayer.errors import TxLayerError

logger = logging.getLogger("txlayer.kafka")

_PURGE_S = 1.0
"""How long the reports of what was given up at the end may take."""


class KafkaHalfWriter:
    """One client, used by all threads of one producer; `poll` and `close` by one of them."""

    def __init__(
        self, config: ClientConfig, *, batch_bytes_max: int, message_timeout_ms: int
    ) -> None:
        self._failure: TxLayerError | None = None
        self._is_refusal_logged = False
        self._producer: Producer = half_producer(
            config,
            message_timeout_ms=message_timeout_ms,
            batch_bytes_max=batch_bytes_max,
            on_error=self._on_error,
        )
        # Bound once: these are called for every record and every round.
        self.produce: Callable[..., None] = self._producer.produce
        self.poll: Callable[[float], int] = self._producer.poll
        self.unreported_count: Callable[[], int] = self._producer.__len__

    def error_of(self, error: Any, *, topic: str, txn_id: str) -> TxLayerError:
        """What a report's error, or an exception of `produce`, means for the record."""
        return translate_unwritten(kafka_error(error), topic=topic, txn_id=txn_id)

    def failure(self) -> TxLayerError | None:
        """A fatal error, after which nothing is written any more."""
        return self._failure

    def close(self, timeout_s: float) -> None:
        """Wait for what is queued for at most `timeout_s` seconds, report the rest as errors, and end."""
        deadline = time.monotonic() + timeout_s
        # In slices, because the client does not react to signals while it waits.
        while self._producer.flush(0.1) and time.monotonic() < deadline:
            pass
        if len(self._producer):
            self._producer.purge()
            self._producer.flush(_PURGE_S)
        with contextlib.suppress(
            KafkaException
        ):  # raised again after a fatal error, which was told already
            self._producer.close()

    def _on_error(self, error: KafkaError) -> None:
        # Called from within `poll`; it must not raise.
        if error.fatal():
            self._failure = translate_fatal(error)
        elif error.code() in NOT_AUTHORISED_CODES and not self._is_refusal_logged:
            # The client tries again for ever: the right may come back, and records time out meanwhile.
            self._is_refusal_logged = True
            logger.error("producer.refused", extra={"reason": error.str()})
