"""The `CoordinatorConnections` of real Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # the client's stub forgets to export it

from txlayer.adapters.kafka.client import PlainReader, base_settings, stored_offsets
from txlayer.adapters.kafka.errors import NOT_AUTHORISED_CODES, translate
from txlayer.adapters.kafka.group import KafkaGroupReader
from txlayer.adapters.kafka.writer import KafkaTransactionalWriter
from txlayer.adapters.ports import StoredOffset, TopicLimits, TopicPartition
from txlayer.config import CoordinatorConfig, milliseconds
from txlayer.errors import BrokerUnavailableError, NotAuthorisedError

logger = logging.getLogger("txlayer.kafka")

_MISSING = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION}
)
_CREDENTIALS = NOT_AUTHORISED_CODES | {KafkaError._SSL}
_ANSWER_S = 2.0


class KafkaCoordinatorConnections:
    """Makes clients with the coordinator's settings. One thread uses it."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config
        self._refused: KafkaError | None = None
        self._admin: AdminClient | None = None

    def wait_until_reachable(self, *, timeout_s: float) -> None:
        """Return when a broker answers; says every few seconds that it is still waiting.

        Raises:
            BrokerUnavailableError: none answered within `timeout_s`.
            NotAuthorisedError: a broker refused the credentials or the TLS handshake failed.
        """
        started = time.monotonic()
        while True:
            try:
                self._client().list_topics(topic=self._config.topics.half, timeout=_ANSWER_S)
            except KafkaException as exc:
                waited_s = time.monotonic() - started
                if self._refused is not None:
                    raise NotAuthorisedError(
                        f"the broker refused this client: {self._refused.str()}; check client_settings (SASL, TLS)",
                        resource=self._config.bootstrap_servers,
                        operation="connect",
                    ) from exc
                if waited_s >= timeout_s:
                    raise BrokerUnavailableError(
                        "no broker answered; is the address right and the broker up?",
                        bootstrap_servers=self._config.bootstrap_servers,
                        waited_ms=int(waited_s * 1000),
                    ) from exc
                logger.warning(
                    "broker.unreachable",
                    extra={
                        "bootstrap_servers": self._config.bootstrap_servers,
                        "waited_s": round(waited_s, 1),
                        "gives_up_after_s": timeout_s,
                    },
                )
            else:
                return

    def make_writer(
        self, transactional_id: str, *, batch_bytes_max: int
    ) -> KafkaTransactionalWriter:
        """A writer, not initialised yet."""
        return KafkaTransactionalWriter(
            self._config,
            transactional_id=transactional_id,
            timeout_ms=milliseconds(self._config.kafka_transaction_timeout),
            batch_bytes_max=batch_bytes_max,
        )

    def make_reader(self, isolation: str) -> PlainReader:
        """A reader that assigns itself."""
        return PlainReader(self._config, isolation=isolation)

    def make_group_reader(self) -> KafkaGroupReader:
        """A member of the coordinator group, not started yet."""
        return KafkaGroupReader(
            self._config,
            group=self._config.topics.coordinator_group,
            session_timeout_ms=milliseconds(self._config.session_timeout),
        )

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool, timeout_s: float
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored."""
        return stored_offsets(
            self._config,
            group=group,
            partitions=partitions,
            is_stable=is_stable,
            timeout_s=timeout_s,
        )

    def topic_limits(self, topic: str, *, timeout_s: float) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: it did not answer, or this principal may not ask.
        """
        try:
            found = self._client().list_topics(topic=topic, timeout=timeout_s).topics.get(topic)
        except KafkaException as exc:
            raise translate(
                exc, bootstrap_servers=self._config.bootstrap_servers, topic=topic
            ) from exc
        if found is None or (found.error is not None and found.error.code() in _MISSING):
            return None
        if found.error is not None and found.error.code() in NOT_AUTHORISED_CODES:
            raise translate(found.error, topic=topic, operation="describe")
        is_reachable = bool(found.partitions) and all(
            p.leader >= 0 for p in found.partitions.values()
        )
        return TopicLimits(
            len(found.partitions), self._message_bytes_max(topic, timeout_s), is_reachable
        )

    def close(self) -> None:
        """Give back what is shared."""
        self._admin = None

    def _message_bytes_max(self, topic: str, timeout_s: float) -> int | None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            (answer,) = (
                self._client().describe_configs([resource], request_timeout=timeout_s).values()
            )
            return int(answer.result(timeout_s)["max.message.bytes"].value)
        except KafkaException as exc:
            # Not allowed to describe, or no answer: the broker itself refuses what is too large.
            logger.info("topic.limits_unknown", extra={"topic": topic, "reason": str(exc)})
            return None

    def _client(self) -> AdminClient:
        if self._admin is None:
            settings: dict[str, Any] = {**base_settings(self._config), "error_cb": self._on_error}
            self._admin = AdminClient(settings)
        return self._admin

    def _on_error(self, error: Any) -> None:
        if error.code() in _CREDENTIALS:
            self._refused = error
