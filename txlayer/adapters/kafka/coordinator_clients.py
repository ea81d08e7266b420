"""The `CoordinatorConnections` of real Kafka."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.admin_connection import ANSWER_TIMEOUT_MS
from txlayer.adapters.kafka.client import PlainReader
from txlayer.adapters.kafka.group import KafkaGroupReader
from txlayer.adapters.kafka.writer import KafkaTransactionalWriter
from txlayer.adapters.ports import StoredOffset, TopicLimits, TopicPartition
from txlayer.config import CoordinatorConfig, milliseconds
from txlayer.errors import BrokerUnavailableError

logger = logging.getLogger("txlayer.kafka")

ANSWER_MS = 3_000
"""How long one question waits: a coordinator asks again, and meanwhile it must serve its group."""


def wait_for_answer(ask: Callable[[], object], *, timeout_s: float, bootstrap_servers: str) -> None:
    """Return when a broker answers what `ask` asks; says every few seconds that it is still waiting.

    Raises:
        BrokerUnavailableError: none answered within `timeout_s`.
        NotAuthorisedError: a broker refused the credentials.
    """
    started = time.monotonic()
    while True:
        try:
            ask()
        except BrokerUnavailableError as exc:
            waited_s = time.monotonic() - started
            if waited_s >= timeout_s:
                raise BrokerUnavailableError(
                    f"{exc.detail}; is the address right and the broker up?",
                    bootstrap_servers=bootstrap_servers,
                    waited_ms=int(waited_s * 1000),
                ) from exc
            logger.warning(
                "broker.unreachable",
                extra={
                    "bootstrap_servers": bootstrap_servers,
                    "reason": exc.detail,
                    "waited_s": round(waited_s, 1),
                    "gives_up_after_s": timeout_s,
                },
            )
        else:
            return


class KafkaCoordinatorConnections:
    """Makes clients with the coordinator's settings; one admin client answers all questions. One thread uses it."""

    def __init__(self, config: CoordinatorConfig, *, is_one_shot: bool = False) -> None:
        """With `is_one_shot` a question waits as long as a command's: nobody serves a group, and nobody asks again."""
        self._config = config
        timeout_ms = ANSWER_TIMEOUT_MS if is_one_shot else ANSWER_MS
        self._admin = KafkaAdmin(config, timeout_ms=timeout_ms)
        self._watch = KafkaAdmin(config, timeout_ms=timeout_ms)  # asked from other threads
        self._watching = threading.Lock()

    def wait_until_reachable(self, *, timeout_s: float) -> None:
        """Return when a broker answers; says every few seconds that it is still waiting.

        Raises:
            BrokerUnavailableError: none answered within `timeout_s`.
            NotAuthorisedError: a broker refused the credentials.
        """
        wait_for_answer(
            lambda: self._admin.partition_count(self._config.topics.half),
            timeout_s=timeout_s,
            bootstrap_servers=self._config.bootstrap_servers,
        )

    def make_writer(
        self, transactional_id: str, *, batch_bytes_max: int
    ) -> KafkaTransactionalWriter:
        """A writer, not initialised yet."""
        return KafkaTransactionalWriter(
            self._config,
            transactional_id=transactional_id,
            timeout_ms=milliseconds(self._config.kafka_transaction_timeout),
            batch_bytes_max=batch_bytes_max,
            compression=self._config.compression,
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
            tells_end=True,
        )

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored; with `is_stable` the answer waits for pending transactional offsets.

        Raises:
            BrokerUnavailableError: no answer in time, for instance because offsets are pending; ask again.
        """
        return self._admin.stored_offsets(group, partitions, is_stable=is_stable)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        return self._admin.start_offsets(partitions)

    def end_offsets(
        self, partitions: Sequence[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: the last stable one, or without `is_committed` the high watermark."""
        return self._admin.end_offsets(partitions, is_committed=is_committed)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: it did not answer, or this principal may not ask.
        """
        return self._admin.topic_limits(topic)

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        """Those consumer groups that somebody is a member of. Another thread than the coordinator's may ask.

        Raises:
            BrokerUnavailableError, NotAuthorisedError: nobody said.
        """
        with self._watching:
            return self._watch.groups_with_members(groups)

    def topic_limits_aside(self, topic: str) -> TopicLimits | None:
        """`topic_limits` for another thread than the coordinator's."""
        with self._watching:
            return self._watch.topic_limits(topic)

    def close(self) -> None:
        """Give the admin clients back."""
        self._admin.close()
        self._watch.close()
