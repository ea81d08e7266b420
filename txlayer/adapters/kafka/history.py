"""The `HistoryReader` of real Kafka."""

from __future__ import annotations

from txlayer.adapters.history import LogHistoryReader
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.client import PlainReader
from txlayer.config import ClientConfig


class KafkaHistoryReader(LogHistoryReader):
    """Each call makes clients of its own, so any thread may call it."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(
            config,
            make_admin=lambda: KafkaAdmin(config),
            make_reader=lambda: PlainReader(config),
        )
