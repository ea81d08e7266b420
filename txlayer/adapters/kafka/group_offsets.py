"""Reading what a consumer group stored. Never: joining it, or storing.

Consumers ask, one per group and isolation level, because an admin client that hears that the group's coordinator has moved
ends the process: librdkafka 2.16 then looks for a group that only a consumer has (docs/explanation/kafka.md, Groups).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from txlayer.adapters.error_codes import MOVED_COORDINATOR_CODES, NOT_AUTHORISED_CODES
from txlayer.adapters.kafka.admin_connection import LOOK_S
from txlayer.adapters.kafka.client import plain_consumer
from txlayer.adapters.kafka.errors import kafka_error, translate
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError, TxLayerError

_OPERATION = "read stored offsets"
_SLICE_S = 0.5
"""So often a wait for an answer looks whether it was refused."""


class GroupOffsets:
    """Asks for stored offsets. Used by one thread at a time."""

    def __init__(self, config: ClientConfig, *, timeout_ms: int) -> None:
        self._config = config
        self._timeout_ms = timeout_ms
        self._consumers: dict[tuple[str, bool], Consumer] = {}

    def close(self) -> None:
        """Give the clients back; the next question would make new ones."""
        consumers, self._consumers = list(self._consumers.values()), {}
        for consumer in consumers:
            consumer.close()

    def read(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What `group` stored for each of `partitions`, None where nothing is; `is_stable` waits for what is pending.

        Raises:
            BrokerUnavailableError: no answer in time, for instance because offsets are pending; ask again.
            NotAuthorisedError: this principal may not read the group.
        """
        started = time.monotonic()
        wanted = [ClientPartition(*p) for p in partitions]
        consumer = self._consumer(group, is_stable=is_stable)
        while True:
            left_s = started + self._timeout_ms / 1000 - time.monotonic()
            try:
                return _found(consumer.committed(wanted, timeout=max(min(left_s, _SLICE_S), 0.001)))
            except KafkaException as exc:
                code = kafka_error(exc).code()
                if code in MOVED_COORDINATOR_CODES and left_s > LOOK_S:
                    # The client looks for the new one by itself, but tells the answer of the old one at once.
                    time.sleep(LOOK_S)
                elif code == KafkaError._TIMED_OUT and left_s > _SLICE_S:
                    # A refused group is told to those who poll, and to nobody else.
                    self._raise_refusal(consumer, group, started)
                else:
                    raise self._failed(exc, group, started) from exc

    def _consumer(self, group: str, *, is_stable: bool) -> Consumer:
        consumer = self._consumers.get((group, is_stable))
        if consumer is None:
            isolation = "read_committed" if is_stable else "read_uncommitted"
            consumer = plain_consumer(self._config, isolation=isolation, group=group)
            self._consumers[group, is_stable] = consumer
        return consumer

    def _raise_refusal(self, consumer: Consumer, group: str, started: float) -> None:
        told = consumer.poll(0)
        error = None if told is None else told.error()
        if error is not None and error.code() in NOT_AUTHORISED_CODES:
            raise self._failed(KafkaException(error), group, started)

    def _failed(self, exc: KafkaException, group: str, started: float) -> TxLayerError:
        # A client that knew the group's coordinator before the brokers went away may wait for that one for ever
        # (librdkafka #5511): the next question gets a new one.
        self.close()
        error = translate(
            exc,
            bootstrap_servers=self._config.bootstrap_servers,
            waited_ms=int((time.monotonic() - started) * 1000),
            resource=group,
            operation=_OPERATION,
        )
        if isinstance(error, BrokerUnavailableError):
            return BrokerUnavailableError(
                f"the stored offsets of {group} did not come: {error.detail}",
                bootstrap_servers=self._config.bootstrap_servers,
                waited_ms=error.waited_ms,
            )
        return error


def _found(answer: Sequence[ClientPartition]) -> dict[TopicPartition, StoredOffset | None]:
    found: dict[TopicPartition, StoredOffset | None] = {}
    for p in answer:
        if p.error is not None:
            raise KafkaException(p.error)
        stored = StoredOffset(p.offset, p.metadata or "") if p.offset >= 0 else None
        found[p.topic, p.partition] = stored
    return found
