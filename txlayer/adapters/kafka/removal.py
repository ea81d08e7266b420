"""Removes topics and groups that somebody made for a while: tests on brokers of others. No command of txlayer does it."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import KafkaError, KafkaException

from txlayer.adapters.kafka.admin_connection import ANSWER_TIMEOUT_MS, AdminConnection
from txlayer.config import ClientConfig

_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND)


def remove(config: ClientConfig, *, topics: Collection[str], groups: Collection[str]) -> None:
    """Delete topics with their records, and groups with their offsets; what is not there is passed over.

    Raises:
        BrokerUnavailableError, NotAuthorisedError, TxLayerError: some of it may be left.
    """
    connection = AdminConnection(config, timeout_ms=ANSWER_TIMEOUT_MS)
    client = connection.client()
    limits = connection.limits()
    asked = []
    if topics:
        asked += [*client.delete_topics(list(topics), **limits).items()]
    if groups:
        asked += [*client.delete_consumer_groups(list(groups), **limits).items()]
    for name, future in asked:
        try:
            connection.wait(future, resource=name, operation="delete", foreseen=_GONE)
        except KafkaException:
            continue  # of a foreseen code: it never was, or is gone already
    connection.close()
