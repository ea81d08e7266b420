"""What makes the clients of real Kafka for the connections of services."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from confluent_kafka.serialization import MessageField, SerializationContext

from txlayer.adapters.connect import ANSWER_TIMEOUT_MS, Clients
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.client import PlainReader
from txlayer.adapters.kafka.group import KafkaGroupReader, KafkaStoringGroupReader
from txlayer.adapters.kafka.writers import KafkaHalfWriter, KafkaTransactionalWriter
from txlayer.adapters.ports import Administration, TopicLimits
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError

logger = logging.getLogger("txlayer.kafka")

_PAUSE_S = 0.1


def kafka_clients(config: ClientConfig) -> Clients:
    """Clients with these settings; each connects at its first use."""
    return Clients(
        config=config,
        admin=partial(KafkaAdmin, config),
        shared_questions=partial(SharedAdmin, config),
        reader=partial(PlainReader, config),
        writer=partial(KafkaTransactionalWriter, config),
        half_writer=partial(KafkaHalfWriter, config),
        group_reader=partial(KafkaGroupReader, config),
        storing_group_reader=partial(KafkaStoringGroupReader, config),
        serialize=_serialize,
        wait_for=partial(_wait_for_answer, config),
    )


def _serialize(serializer: Any, value: Any, *, topic: str, headers: list[tuple[str, bytes | None]]) -> bytes | None:
    # The list itself, not a copy: a serializer may append to it.
    context = SerializationContext(topic, MessageField.VALUE, headers)  # type: ignore[arg-type]  # invariant list
    written: bytes | None = serializer(value, context)
    return written


class SharedAdmin:
    """A `KafkaAdmin` that any thread may ask. It asks again for `patience_ms`, after a failure with a new client."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        timeout_ms: int = ANSWER_TIMEOUT_MS,
        patience_ms: int = 0,
        make_admin: Callable[..., Any] = KafkaAdmin,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience_s = patience_ms / 1000
        self._clock = clock
        self._admin: KafkaAdmin = make_admin(config, timeout_ms=timeout_ms)
        self._lock = threading.Lock()
        self._is_closed = False

    def topic_limits(self, topic: str) -> TopicLimits | None:
        began = self._clock()
        while True:
            try:
                # For one question at a time, so that `close` does not wait for all of them.
                with self._lock:
                    return self._admin.topic_limits(topic)
            except BrokerUnavailableError as exc:
                waited_s = self._clock() - began
                if self._is_closed or waited_s + _PAUSE_S >= self._patience_s:
                    raise BrokerUnavailableError(
                        exc.detail, bootstrap_servers=exc.bootstrap_servers, waited_ms=int(waited_s * 1000)
                    ) from exc
            time.sleep(_PAUSE_S)

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        with self._lock:
            return self._admin.groups_with_members(groups)

    def close(self) -> None:
        self._is_closed = True
        with self._lock:
            self._admin.close()


def _wait_for_answer(config: ClientConfig, admin: Administration, topic: str, *, timeout_s: float) -> None:
    """Return when a broker answers; says every few seconds that it is still waiting.

    Raises:
        BrokerUnavailableError: none answered within `timeout_s`.
        NotAuthorisedError: a broker refused the credentials.
    """
    started = time.monotonic()
    while True:
        try:
            admin.partition_count(topic)
        except BrokerUnavailableError as exc:
            waited_s = time.monotonic() - started
            if waited_s >= timeout_s:
                raise BrokerUnavailableError(
                    f"{exc.detail}; is the address right and the broker up?",
                    bootstrap_servers=config.bootstrap_servers,
                    waited_ms=int(waited_s * 1000),
                ) from exc
            logger.warning(
                "broker.unreachable",
                extra={
                    "bootstrap_servers": config.bootstrap_servers,
                    "reason": exc.detail,
                    "waited_s": round(waited_s, 1),
                    "gives_up_after_s": timeout_s,
                },
            )
        else:
            return
