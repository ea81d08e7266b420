"""More partitions for topics of a namespace. Never: a rule of when that may be done."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stub forgets it

from txlayer.adapters.kafka.admin_connection import ANSWER_TIMEOUT_MS, LOOK_S, AdminConnection
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError


def widen_topics(
    config: ClientConfig, counts: Mapping[str, int], *, timeout_ms: int = ANSWER_TIMEOUT_MS
) -> None:
    """Give each topic so many partitions, more than it has, one topic after the other, and wait until that is known.

    Raises:
        BrokerUnavailableError: no answer in time; what came before may have happened. It may be called again.
        NotAuthorisedError: refused; likewise.
    """
    connection = AdminConnection(config, timeout_ms=timeout_ms)
    try:
        for topic, count in counts.items():
            future = connection.client().create_partitions(
                [NewPartitions(topic, count)], **connection.limits()
            )[topic]
            connection.wait(future, resource=topic, operation="create partitions")
            _wait_until_seen(connection, topic, count)
    finally:
        connection.close()


def _wait_until_seen(connection: AdminConnection, topic: str, count: int) -> None:
    deadline = connection.deadline()
    while True:
        found = connection.client().list_topics(topic, timeout=LOOK_S * 50).topics[topic]
        led = [p for p in found.partitions.values() if p.leader >= 0]
        if len(led) >= count:
            return
        if time.monotonic() > deadline:
            raise BrokerUnavailableError(
                f"{topic} shows {len(led)} of {count} partitions", waited_ms=ANSWER_TIMEOUT_MS
            )
        time.sleep(LOOK_S)
