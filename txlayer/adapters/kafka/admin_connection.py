"""One admin client and its answers: waited for, told apart from refusals, translated. Never: a question of its own."""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from txlayer.adapters.kafka.client import base_settings, new_client
from txlayer.adapters.kafka.errors import kafka_error, translate
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError, NotAuthorisedError, TxLayerError

logger = logging.getLogger("txlayer.admin")

ANSWER_TIMEOUT_MS = 10_000
"""How long one question waits for its answer, connecting included: a person waits for it."""

DOUBTED_AFTER_S = 30.0
"""A client that misses something is not believed for longer than this: it may know the cluster as it was once."""

LOOK_S = 0.05
"""How often a wait looks at what it waits for."""

_GRACE_S = 1.0
"""The client ends its questions itself; this is for one that does not."""


class AdminConnection:
    """One cluster's admin client, made at its first use. Used by one thread at a time."""

    def __init__(self, config: ClientConfig, *, timeout_ms: int) -> None:
        self._config = config
        self._timeout_ms = timeout_ms
        self._client: AdminClient | None = None
        self._made_at = 0.0
        self._has_answered = False
        self._refusal: KafkaError | None = None
        self._trouble = ""

    def close(self) -> None:
        """Give the client back; the next use would make a new one."""
        self._client = None

    def client(self) -> AdminClient:
        """The admin client; it connects by itself."""
        if self._client is None:
            # What goes wrong is told once, by the error, and not by the client's own log.
            settings = {**base_settings(self._config), "log_level": 0, "error_cb": self._on_error}
            self._client = new_client(AdminClient, settings)
            self._made_at, self._has_answered = time.monotonic(), False
        return self._client

    def connected_client(self) -> AdminClient:
        """The admin client once a broker has answered it: for what goes to the leaders of partitions.

        A client that is not connected yet may miss the moment to ask who leads, and looks again after 3 s
        (docs/explanation/kafka.md, "Asking").

        Raises:
            NotAuthorisedError, BrokerUnavailableError: as `wait`.
        """
        client = self.client()
        if not self._has_answered:
            self.wait(
                client.describe_cluster(**self.limits()), resource="cluster", operation="describe"
            )
        return client

    def doubt(self, errors: Sequence[Exception]) -> None:
        """Something was missing in an answer: the next question gets a new client, at once if a broker did not say."""
        if errors:
            logger.warning("answer.incomplete", extra={"reason": str(errors[0])})
        if errors or time.monotonic() - self._made_at > DOUBTED_AFTER_S:
            self.close()

    def wait(
        self,
        future: concurrent.futures.Future[Any],
        *,
        resource: str,
        operation: str,
        foreseen: Collection[int] = (),
    ) -> Any:
        """The answer to a question about `resource`.

        Raises:
            KafkaException: the cluster refused with a `foreseen` code, whose meaning the caller knows.
            NotAuthorisedError: credentials or rights were refused; nothing was changed.
            BrokerUnavailableError: no answer in time; a change may have happened.
        """
        waited_ms = self._wait_until_done(future)
        try:
            answer = future.result()
        except KafkaException as exc:
            if kafka_error(exc).code() in foreseen:
                raise
            # The client believes what it once learned about leaders, also when a broker says that it is out of date
            # (FENCED_LEADER_EPOCH after a restart): the next question gets a new one that asks afresh.
            self.close()
            error = self.translated(exc, resource=resource, operation=operation)
            if isinstance(error, BrokerUnavailableError):
                raise self._unavailable(waited_ms) from exc
            raise error from exc
        self._refusal, self._trouble, self._has_answered = None, "", True
        return answer

    def translated(
        self, error: KafkaException | KafkaError, *, resource: str, operation: str
    ) -> TxLayerError:
        """Our error for the cluster's refusal."""
        return translate(
            error,
            bootstrap_servers=self._config.bootstrap_servers,
            resource=resource,
            topic=resource,
            operation=operation,
        )

    def limits(self) -> dict[str, float]:
        """What every question to the client is given as its limit."""
        return {"request_timeout": self._timeout_ms / 1000}

    def deadline(self) -> float:
        """When what begins now has taken too long, on the monotonic clock."""
        return time.monotonic() + self._timeout_ms / 1000

    def _wait_until_done(self, future: concurrent.futures.Future[Any]) -> int:
        started, deadline = time.monotonic(), self.deadline() + _GRACE_S
        while True:
            concurrent.futures.wait([future], timeout=LOOK_S)
            self.client().poll(0)  # calls `_on_error`
            waited_ms = int((time.monotonic() - started) * 1000)
            if future.done():
                return waited_ms
            if self._refusal is not None:
                # The client would try again until its time is over; the answer will not change.
                refusal, self._refusal = self._refusal, None
                raise NotAuthorisedError(
                    f"the broker refused the credentials: {self._trouble}",
                    resource=self._config.bootstrap_servers,
                    operation="connect",
                ) from KafkaException(refusal)
            if time.monotonic() > deadline:
                raise self._unavailable(waited_ms)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            self._refusal = error
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error.str().partition(" (after ")[0]

    def _unavailable(self, waited_ms: int) -> BrokerUnavailableError:
        # A client that knew a group's coordinator before the brokers went away may wait for that one for ever
        # (librdkafka #5511): the next question gets a new client.
        self.close()
        return BrokerUnavailableError(
            f"no broker answered: {self._trouble or 'timed out'}",
            bootstrap_servers=self._config.bootstrap_servers,
            waited_ms=waited_ms,
        )
